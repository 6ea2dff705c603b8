//! Elections on our own service: how soon observers hear of a change, and how soon a leader whose process was
//! killed is replaced.
//!
//! `cargo bench -p lockkeeper --bench election`. The service runs in this process, and syncs to the disk of
//! the build. The leader that is killed is another process; its connection is closed by the kernel.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockkeeper::{Election, LeaderWatch, Locks};
use lockkeeper_server::{Running, ServerOptions};

const OBSERVERS: usize = 20;
const CHANGES: u32 = 500;
const KILLS: usize = 20;
/// The argument that makes this program a candidate.
const CANDIDATE: &str = "--candidate";

#[expect(clippy::print_stdout, reason = "a bench prints its figures")]
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let Some(at) = arguments.iter().position(|argument| argument == CANDIDATE) {
        runtime.block_on(campaign(&arguments[at + 1]));
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory can be made");
    let service = serve(dir.path());
    let url = format!("lockkeeper://{}", service.address());
    let mut heard = runtime.block_on(changes(&url));
    println!("{OBSERVERS} observers, {CHANGES} proclamations: from the call until one hears it");
    println!("  p50 {:?}, p99 {:?}, most {:?}", at(&mut heard, 50), at(&mut heard, 99), at(&mut heard, 100));
    let mut replaced = runtime.block_on(kills(&url));
    println!("{KILLS} leaders killed, ttl 5 s, linger 1 s: until the next one leads");
    println!("  p50 {:?}, most {:?}", at(&mut replaced, 50), at(&mut replaced, 100));
    service.stop();
}

fn serve(data: &std::path::Path) -> Running {
    let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data.join("data")) };
    let (ready, started) = mpsc::channel();
    std::thread::spawn(move || {
        lockkeeper_server::run(options, |running| ready.send(running).expect("it waits"))
    });
    started.recv().expect("a node that runs")
}

/// The percentile of the times.
fn at(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn election(locks: &Locks) -> Election {
    locks.election("bench").with(|lock| lock.ttl(Duration::from_secs(5)).linger(Duration::from_secs(1)))
}

async fn until(observed: &mut LeaderWatch, value: &[u8]) -> Instant {
    loop {
        if observed.next().await.expect("the service answers").is_some_and(|leader| leader.value == value) {
            return Instant::now();
        }
    }
}

/// For each proclamation and each observer, the time from the call until the observer returns the value.
/// Observers are separate clients.
async fn changes(url: &str) -> Vec<Duration> {
    let locks = Locks::connect(url).await.expect("a service");
    let leads = election(&locks).campaign("0").await.expect("elected");
    let mut observers = Vec::new();
    for _ in 0..OBSERVERS {
        let locks = Locks::connect(url).await.expect("a service");
        let mut observed = election(&locks).observe();
        until(&mut observed, b"0").await;
        observers.push((locks, observed));
    }
    let mut times = Vec::new();
    for change in 1..=CHANGES {
        let value = change.to_string().into_bytes();
        let began = Instant::now();
        let mut hearing = tokio::task::JoinSet::new();
        for (locks, mut observed) in observers.drain(..) {
            let value = value.clone();
            hearing.spawn(async move { (until(&mut observed, &value).await, locks, observed) });
        }
        leads.set_value(value).await.expect("it leads");
        for (heard, locks, observed) in hearing.join_all().await {
            times.push(heard - began);
            observers.push((locks, observed));
        }
    }
    leads.release().await.expect("it led");
    times
}

/// The times from the kill of a leader's process until the next candidate leads.
async fn kills(url: &str) -> Vec<Duration> {
    let locks = Locks::connect(url).await.expect("a service");
    let mut times = Vec::new();
    for _ in 0..KILLS {
        let mut leader = Command::new(std::env::current_exe().expect("this program"))
            .args([CANDIDATE, url])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(leader.stdout.take().expect("piped")).read_line(&mut line).expect("it leads");
        let next = tokio::spawn({
            let election = election(&locks);
            async move { (election.campaign("").await.expect("elected"), Instant::now()) }
        });
        while locks.inspect("bench").await.expect("the service answers").waiter_count == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let began = Instant::now();
        leader.kill().expect("it runs");
        leader.wait().expect("it has ended");
        let (guard, elected) = next.await.expect("no panic");
        times.push(elected - began);
        guard.release().await.expect("it led");
    }
    times
}

#[expect(clippy::print_stdout, reason = "tells that it leads")]
async fn campaign(url: &str) {
    let locks = Locks::connect(url).await.expect("a service");
    let leads = election(&locks).campaign("").await.expect("elected");
    println!("leads");
    leads.lost().cancelled().await;
}
