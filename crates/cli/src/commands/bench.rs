//! `bench`: throughput and latency of a lock service, measured by clients of the library.
//!
//! Clients are tasks of this process with one session each, or processes. Tasks share connections to the
//! `lockkeeper://` service, as the tasks of a program do; with other services each task has its own
//! connection. All clients timestamp with `CLOCK_BOOTTIME`, which all processes of a host share: once sorted
//! by token, the measurements of all clients form one sequence.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper::{BootInstant, Locks};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::args::{Bench, Workload};
use crate::exit::{Failure, INTERNAL, OK, UNAVAILABLE};
use crate::guardian::{Signal, Signals};
use crate::output;
use crate::settings;
use crate::table::Table;

/// The time limit for closing sessions; a session that is not closed in time expires by itself.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Of the pairs of cached locks, one in this number is timed: reading the clock costs a tenth of a pair each
/// time, and a second has millions of them.
const CACHED_PAIRS_PER_SAMPLE: u64 = 16;

/// One acquire and its release, in nanoseconds since boot.
#[derive(Clone, Copy, Default)]
struct Pair {
    token: u64,
    asked: u64,
    granted: u64,
    releasing: u64,
    released: u64,
}

/// The results of a run. Values that a workload does not measure are empty, zero or `None`.
#[derive(Default)]
struct Figures {
    /// The timed ones.
    pairs: Vec<Pair>,
    /// The number of all pairs.
    count: u64,
    seconds: f64,
    cpu_us: f64,
    /// The number of library clients that the tasks share.
    connections: Option<usize>,
    bytes_per_lock: Option<f64>,
}

pub(super) async fn bench(args: Bench) -> Result<u8, Failure> {
    let url = match (&args.service.locks, args.workload) {
        (Some(url), _) if url == "memory:" => "memory:bench".to_owned(),
        (url, _) => settings::locks_url(url.as_deref(), args.service.local || args.worker.is_some())?,
    };
    if let Some(worker) = args.worker {
        let stop = Arc::new(AtomicBool::new(false));
        let mut signals = install_signals()?;
        let locks = settings::connect(&url, "bench").await?;
        let (pairs, count) = {
            let measuring = client(&locks, args.workload, worker, stop.clone(), Some(args.seconds));
            tokio::pin!(measuring);
            tokio::select! {
                measured = &mut measuring => measured?,
                _ = signals.until_end() => {
                    stop.store(true, Ordering::Relaxed);
                    measuring.await?
                }
            }
        };
        let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
        output::line(count.to_string())?;
        for pair in pairs {
            let Pair { token, asked, granted, releasing, released } = pair;
            output::line(format!("{token} {asked} {granted} {releasing} {released}"))?;
        }
        return Ok(OK);
    }
    let bar = progress(args.seconds);
    let figures = match args.workload {
        Workload::Memory => memory(&url, args.held).await?,
        _ if args.processes => processes(&args, &url).await?,
        _ => tasks(&args, &url).await?,
    };
    bar.finish_and_clear();
    print(&args, &settings::shown(&url), &figures)?;
    Ok(OK)
}

/// A progress bar over the duration of the run; drawn on a terminal only.
fn progress(seconds: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(seconds * 10);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent}% {msg}") {
        bar.set_style(style);
    }
    let ticking = bar.clone();
    // Without a thread the bar stands still.
    let _ = std::thread::Builder::new().spawn(move || {
        while !ticking.is_finished() && ticking.position() < seconds * 10 {
            std::thread::sleep(Duration::from_millis(100));
            ticking.inc(1);
        }
    });
    bar
}

/// Runs one client until the run is over: repeats acquire and release; or, for `keepalive`, holds one lock.
/// Returns the timed pairs, and the number of all.
async fn client(
    locks: &Locks,
    workload: Workload,
    number: u32,
    stop: Arc<AtomicBool>,
    seconds: Option<u64>,
) -> Result<(Vec<Pair>, u64), Failure> {
    let name = match workload {
        Workload::Handoff => "lockkeeper-bench/contended".to_owned(),
        _ => format!("lockkeeper-bench/{number}"),
    };
    let until = seconds.map(|seconds| BootInstant::now() + Duration::from_secs(seconds));
    let over = || stop.load(Ordering::Relaxed) || until.is_some_and(|until| BootInstant::now() >= until);
    if workload == Workload::Keepalive {
        let _held = locks.mutex(&name).ttl(own_session(10, number)).acquire().await?;
        while !over() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        return Ok((Vec::new(), 0));
    }
    let mut lock = locks.mutex(&name).ttl(own_session(30, number));
    if workload == Workload::Cached {
        lock = lock.cached();
    }
    let failed = |error: lockkeeper::ReleaseError| Failure::new(UNAVAILABLE, error.to_string());
    let (mut pairs, mut count) = (Vec::new(), 0_u64);
    let now = || BootInstant::now().as_nanos();
    loop {
        count += 1;
        if workload == Workload::Cached && !count.is_multiple_of(CACHED_PAIRS_PER_SAMPLE) {
            lock.acquire().await?.release().await.map_err(failed)?;
            tokio::task::yield_now().await;
            continue;
        }
        let asked = now();
        let guard = lock.acquire().await?;
        let granted = now();
        let token = guard.token_hint().map_or(0, lockkeeper::Token::get);
        if workload == Workload::Handoff {
            // Lets the other tasks of this thread enter the queue.
            tokio::task::yield_now().await;
        }
        let releasing = now();
        guard.release().await.map_err(failed)?;
        pairs.push(Pair { token, asked, granted, releasing, released: now() });
        if over() {
            return Ok((pairs, count));
        }
        // Without this, the task would acquire again at once and starve the other tasks of this thread.
        tokio::task::yield_now().await;
    }
}

/// A ttl that is unique to the task: locks with equal ttls share a session, and each task needs its own. The
/// differences are below 1 ms, the resolution of the protocol, so the service gets the same ttl for all
/// sessions.
fn own_session(seconds: u64, number: u32) -> Duration {
    Duration::from_secs(seconds) + Duration::from_nanos(u64::from(number))
}

/// The library clients of the tasks: for `lockkeeper:` a few that the tasks share, else one per task.
async fn connections(args: &Bench, url: &str) -> Result<Vec<Locks>, Failure> {
    let is_ours = url.starts_with("lockkeeper:") || url.starts_with("lockkeepers:");
    let wanted = if is_ours { args.connections.min(args.clients) } else { args.clients };
    let mut clients = Vec::with_capacity(wanted as usize);
    for _ in 0..wanted {
        clients.push(settings::connect(url, "bench").await?);
    }
    Ok(clients)
}

async fn tasks(args: &Bench, url: &str) -> Result<Figures, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let connections = connections(args, url).await?;
    let mut signals = install_signals()?;
    let cpu = cpu_us(UsageWho::RUSAGE_SELF);
    let began = BootInstant::now();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..args.clients {
        let locks = connections[number as usize % connections.len()].clone();
        let (workload, stop) = (args.workload, stop.clone());
        running.spawn(async move { client(&locks, workload, number, stop, None).await });
    }
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(args.seconds)) => {}
        // Prints the measurements so far.
        _ = signals.until_end() => {}
    }
    stop.store(true, Ordering::Relaxed);
    let mut figures = Figures { connections: Some(connections.len()), ..Figures::default() };
    while let Some(done) = running.join_next().await {
        let (pairs, count) = done.map_err(|error| Failure::new(INTERNAL, error.to_string()))??;
        figures.pairs.extend(pairs);
        figures.count += count;
    }
    figures.seconds = (BootInstant::now() - began).as_secs_f64();
    figures.cpu_us = cpu_us(UsageWho::RUSAGE_SELF) - cpu;
    for locks in connections {
        let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
    }
    Ok(figures)
}

async fn processes(args: &Bench, url: &str) -> Result<Figures, Failure> {
    let cpu = cpu_us(UsageWho::RUSAGE_CHILDREN);
    let began = BootInstant::now();
    let workload = match args.workload {
        Workload::Handoff => "handoff",
        Workload::Cached => "cached",
        _ => "uncontended",
    };
    let mut signals = install_signals()?;
    let mut workers = Vec::new();
    for number in 0..args.clients {
        let worker = std::process::Command::new("/proc/self/exe")
            .args(["bench", "--locks", url, "--workload", workload])
            .args(["--seconds", &args.seconds.to_string(), "--worker", &number.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        workers.push(worker);
    }
    // Prints the measurements so far: the workers end early and report theirs.
    let pids: Vec<Pid> =
        workers.iter().filter_map(|it| i32::try_from(it.id()).ok()).map(Pid::from_raw).collect();
    let forwarding = tokio::spawn(async move {
        signals.until_end().await;
        for pid in pids {
            // Fails if it has ended already: the terminal has signalled it as well.
            let _ = kill(pid, Signal::SIGTERM);
        }
    });
    let mut figures = Figures::default();
    for worker in &mut workers {
        let lines = BufReader::new(worker.stdout.take().into_iter().next().ok_or_else(lost_worker)?).lines();
        for line in lines {
            let line = line?;
            let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
            match numbers[..] {
                [count] => figures.count += count,
                [token, asked, granted, releasing, released] => {
                    figures.pairs.push(Pair { token, asked, granted, releasing, released });
                }
                _ => return Err(lost_worker()),
            }
        }
    }
    // Before the workers' pids are free for others.
    forwarding.abort();
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err(lost_worker());
        }
    }
    figures.seconds = (BootInstant::now() - began).as_secs_f64();
    figures.cpu_us = cpu_us(UsageWho::RUSAGE_CHILDREN) - cpu;
    Ok(figures)
}

fn install_signals() -> Result<Signals, Failure> {
    Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))
}

fn lost_worker() -> Failure {
    Failure::new(INTERNAL, "a worker of the bench failed; its own message is above")
}

/// Holds many locks at once and measures the growth of this process's resident memory.
async fn memory(url: &str, held: u32) -> Result<Figures, Failure> {
    let began = BootInstant::now();
    let locks: Locks = settings::connect(url, "bench").await?;
    let warm = locks.mutex("lockkeeper-bench/warm").acquire().await?;
    let mut guards = Vec::with_capacity(held as usize);
    let before = resident_bytes()?;
    for number in 0..held {
        // Names of 32 bytes, the same length as in published figures for other services.
        guards.push(locks.mutex(format!("lockkeeper-bench/memory/{number:08}")).acquire().await?);
    }
    let grown = resident_bytes()?.saturating_sub(before);
    drop((warm, guards));
    let _ = locks.shutdown(Duration::from_secs(10)).await;
    let seconds = (BootInstant::now() - began).as_secs_f64();
    Ok(Figures { bytes_per_lock: Some(grown as f64 / f64::from(held)), seconds, ..Figures::default() })
}

fn resident_bytes() -> Result<u64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    Ok(pages * 4096)
}

fn cpu_us(who: UsageWho) -> f64 {
    let Ok(usage) = getrusage(who) else { return 0.0 };
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    micros(usage.user_time()) + micros(usage.system_time())
}

fn percentile(sorted: &[u64], percent: usize) -> Option<f64> {
    let index = (sorted.len() * percent / 100).min(sorted.len().checked_sub(1)?);
    Some((sorted[index] as f64 / 10.0).round() / 100.0)
}

/// The latencies of a run in nanoseconds, each ascending.
struct Latencies {
    acquire: Vec<u64>,
    release: Vec<u64>,
    /// From the call of a release to the next holder's grant; only if that holder was already waiting.
    handoff: Vec<u64>,
}

impl Latencies {
    fn of(figures: &Figures, workload: Workload) -> Self {
        let mut pairs = figures.pairs.clone();
        pairs.sort_unstable_by_key(|pair| pair.token);
        let sorted = |mut values: Vec<u64>| {
            values.sort_unstable();
            values
        };
        let handoff = match workload {
            Workload::Handoff => {
                let waited = pairs.windows(2).filter(|two| two[1].asked < two[0].releasing);
                waited.map(|two| two[1].granted.saturating_sub(two[0].releasing)).collect()
            }
            _ => Vec::new(),
        };
        Self {
            acquire: sorted(pairs.iter().map(|pair| pair.granted - pair.asked).collect()),
            release: sorted(pairs.iter().map(|pair| pair.released - pair.releasing).collect()),
            handoff: sorted(handoff),
        }
    }
}

fn print(args: &Bench, url: &str, figures: &Figures) -> Result<(), Failure> {
    let latencies = Latencies::of(figures, args.workload);
    if args.json {
        return output::json(&in_json(args, url, figures, &latencies));
    }
    let connections =
        figures.connections.map_or_else(String::new, |count| format!(" on {}", counted(count, "connection")));
    let workload = format!("{:?}", args.workload).to_lowercase();
    let clients = counted(args.clients as usize, "client");
    output::line(format!("{url}: {workload}, {clients}{connections}, {:.1} s", figures.seconds))?;
    if let Some(bytes) = figures.bytes_per_lock {
        return output::line(format!("{bytes:.0} bytes of memory for each of {} held locks", args.held));
    }
    let cores = figures.cpu_us / figures.seconds / 1e6;
    if figures.count == 0 {
        return output::line(format!("{cores:.2} cores"));
    }
    let pairs = figures.count as f64;
    output::line(format!(
        "{:.0} pairs of acquire and release a second, {:.1} µs of CPU each, {cores:.2} cores",
        pairs / figures.seconds,
        figures.cpu_us / pairs
    ))?;
    let mut table = Table::new(["", "P50", "P90", "P99", "MAX"]);
    let rows =
        [("acquire", &latencies.acquire), ("release", &latencies.release), ("hand-over", &latencies.handoff)];
    for (name, values) in rows.into_iter().filter(|(_, values)| !values.is_empty()) {
        let at = |percent| micros(percentile(values, percent).unwrap_or_default());
        table.row([name.to_owned(), at(50), at(90), at(99), at(100)]);
    }
    table.print()?;
    let (name, values) = match latencies.handoff.is_empty() {
        true => ("acquire", &latencies.acquire),
        false => ("hand-over", &latencies.handoff),
    };
    output::line(format!("{name}, how long it took:"))?;
    histogram(values).into_iter().try_for_each(output::line)
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The length of the longest bar of a histogram, in characters.
const BAR: usize = 40;

/// A line for each power of two of microseconds, from the shortest latency to the longest, with its share.
fn histogram(sorted: &[u64]) -> Vec<String> {
    let bucket = |nanos: u64| (nanos / 1000).max(1).ilog2();
    let (Some(&first), Some(&last)) = (sorted.first(), sorted.last()) else { return Vec::new() };
    let buckets = bucket(first)..=bucket(last);
    let counts: Vec<(u32, usize)> =
        buckets.map(|at| (at, sorted.iter().filter(|&&nanos| bucket(nanos) == at).count())).collect();
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    let line = |(at, count): (u32, usize)| {
        let below = micros((1_u64 << (at + 1)) as f64);
        let share = count as f64 * 100.0 / sorted.len() as f64;
        let bar = "#".repeat((count * BAR).div_ceil(most));
        format!("  < {below:>8}  {share:5.1} %  {bar}").trim_end().to_owned()
    };
    counts.into_iter().map(line).collect()
}

/// Microseconds for display, in milliseconds or seconds where that is shorter.
fn micros(micros: f64) -> String {
    match micros {
        ..1.0 => format!("{micros:.2} µs"),
        ..1e3 => format!("{micros:.0} µs"),
        ..1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

fn in_json(args: &Bench, url: &str, figures: &Figures, latencies: &Latencies) -> Value {
    let Latencies { acquire, release, handoff } = latencies;
    let count = figures.count;
    let rate = |count: u64| (count > 0).then(|| (count as f64 / figures.seconds).round());
    let cpu_per_pair = (count > 0).then(|| (figures.cpu_us / count as f64 * 100.0).round() / 100.0);
    json!({
        "locks": url,
        "workload": format!("{:?}", args.workload).to_lowercase(),
        "clients": args.clients,
        "connections": figures.connections,
        "seconds": (figures.seconds * 1e3).round() / 1e3,
        "pairs_per_s": rate(count),
        "acquire_us": { "p50": percentile(acquire, 50), "p99": percentile(acquire, 99) },
        "release_us": { "p50": percentile(release, 50) },
        "handoffs_per_s": rate(handoff.len() as u64),
        "handoff_us": { "p50": percentile(handoff, 50), "p99": percentile(handoff, 99) },
        "cpu_us_per_pair": cpu_per_pair,
        "cpu_percent": (figures.seconds > 0.0).then(|| (figures.cpu_us / figures.seconds / 1e2).round() / 100.0),
        "bytes_per_lock": figures.bytes_per_lock.map(f64::round),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_has_a_line_for_each_power_of_two_and_shares() {
        let lines = histogram(&[3_000, 3_000, 3_000, 100_000]);
        assert_eq!(lines.len(), 6, "2 to 4 µs, and so on to 64 to 128 µs: {lines:#?}");
        assert!(lines[0].contains("4 µs   75.0 %") && lines[0].ends_with(&"#".repeat(BAR)), "{lines:#?}");
        assert!(lines[1].ends_with("0.0 %") && lines[5].contains("128 µs   25.0 %"), "{lines:#?}");
        assert!(histogram(&[]).is_empty());
    }

    #[test]
    fn latencies_are_shown_in_a_fitting_unit() {
        let shown = [0.354, 7.4, 1_500.0, 2_340_000.0].map(micros);
        assert_eq!(shown, ["0.35 µs", "7 µs", "1.5 ms", "2.3 s"]);
    }
}
