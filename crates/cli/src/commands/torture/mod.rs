//! `torture`: real processes write under a lock while faults stop, kill and disconnect holders; then the lost
//! updates are counted.
//!
//! Reading order: `worker` (a worker's loop and the points at which it waits), `journal` (a worker's log of
//! its steps), `resource` (the ledger that workers write to), `crew` (the worker processes), `conductor`
//! (which fault is injected into which worker, and when), `proxy` (network cuts), `verdict` (the analysis),
//! `report`.
//!
//! Every object that a run creates (the ledger, its marks, the workers' logs) has a name with a random
//! suffix. All are removed at the end, except with `--keep`, after a second signal, or if this process is
//! killed.

mod conductor;
mod crew;
mod journal;
mod proxy;
mod report;
mod resource;
mod verdict;
mod worker;

use std::time::{Duration, Instant};

use lockkeeper::{Capabilities, Fencing, Reach};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::runtime::{Handle, Runtime};

use crate::args::{HolderFault, TokenUse, Torture};
use crate::exit::{Failure, INTERNAL, NO, OK, USAGE};
use crate::guardian::{Signal, Signals};
use crate::output;
use crate::settings;
use conductor::{Conductor, Times};
use crew::{Crew, CrewEvent, Stop};
use journal::{JournalStep, Steps};
use report::TortureReport;
use resource::OpenLedger;
use verdict::TortureVerdict;
use worker::Orders;

/// The time limit for closing the session; if it is not closed in time, it expires by itself.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// The exit code after a second signal: the code that shells report for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;
/// Name prefix of everything that a run creates.
const PREFIX: &str = "lockkeeper-torture-";

pub(super) fn torture(args: &Torture) -> Result<u8, Failure> {
    if args.worker {
        return super::block_on_all_cores(worker::work());
    }
    super::check_room(1)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(INTERNAL, format!("no runtime can be started: {error}")))?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let can = runtime.block_on(capabilities(&url))?;
    let hosts = possible(args, &url, &can)?;

    // The directory's random suffix is part of every other name of this run.
    let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
    let name = directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The ledger's name differs from the lock's, since lock service and resource may be the same Redis.
    let ledger = format!("{name}-ledger");
    let resource_url = args.resource.clone().unwrap_or_default();
    let shown = settings::shown(&url);
    let mut resource = runtime.block_on(OpenLedger::open(&resource_url, &ledger, args.fence))?;
    runtime.block_on(resource.create())?;
    let orders = Orders {
        locks: url,
        resource: resource_url,
        fence: args.fence,
        ttl: args.ttl,
        cached: args.cached,
        name,
        ledger,
        journal: directory.path().to_owned(),
        serial: 0,
        conductor: std::process::id(),
    };
    let crew = Crew::new(orders, hosts, directory.path().to_owned(), runtime.handle().clone());
    let ended = conduct(args, (shown, &can), crew, &mut resource, &runtime);
    if args.keep {
        let logs = directory.keep();
        output::say(format_args!(
            "kept: the ledger {}, the workers' logs {}",
            resource.location(),
            logs.display()
        ));
        return ended;
    }
    let removed = runtime.block_on(resource.remove());
    // An error of the run takes precedence over one of the removal. After a completed run, a failed removal
    // is the result, whatever the verdict is.
    ended.and_then(|code| removed.map(|()| code))
}

async fn capabilities(url: &str) -> Result<Capabilities, Failure> {
    let locks = settings::connect(url, "torture").await?;
    let can = locks.capabilities().clone();
    let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
    Ok(can)
}

/// Refuses options that this lock service does not support, and a server process that can't be signalled,
/// before anything is started. Returns the hosts to which connections can be cut; empty without `--faults
/// cut`.
fn possible(args: &Torture, url: &str, can: &Capabilities) -> Result<Vec<(String, u16)>, Failure> {
    let cannot = |what: &str, why: &str| {
        Err(Failure::new(USAGE, format!("{what} is not possible with `{}:` locks: {why}", can.backend)))
    };
    if can.reach == Reach::Process {
        return cannot("torture", "each worker is a process, and would have locks of its own");
    }
    if let (Fencing::None { why, instead }, true) = (&can.fencing, args.fence != TokenUse::None) {
        return cannot(
            &format!("--fence {}", args.fence.name()),
            &format!("{why}; {instead}; or try --fence none"),
        );
    }
    if args.cached && !can.cached {
        return cannot("--cached", "this lock service can't call a lock back; try our own, `lockkeeper:`");
    }
    if let (true, Some(pid)) = (args.faults.contains(&HolderFault::Server), args.server_pid) {
        conductor::can_signal(Pid::from_raw(pid))?;
    }
    if !args.faults.contains(&HolderFault::Cut) {
        return Ok(Vec::new());
    }
    let hosts = proxy::hosts(url);
    if hosts.is_empty() {
        return cannot("--faults cut", "no network lies between; try --faults pause,kill");
    }
    Ok(hosts)
}

/// Runs the test, from the start of the workers to the report.
fn conduct(
    args: &Torture,
    (locks, can): (String, &Capabilities),
    crew: Crew,
    resource: &mut OpenLedger,
    runtime: &Runtime,
) -> Result<u8, Failure> {
    let began = Instant::now();
    let pause = args.pause.with(args.ttl);
    let times = Times { ttl: args.ttl, pause, duration: args.duration };
    listen(&crew, args.server_pid.map(Pid::from_raw), runtime.handle())?;
    let mut conductor = Conductor::new(crew, times, can.ttl, args.server_pid.map(Pid::from_raw));
    let interrupted = match conductor.conduct(&args.faults, args.workers) {
        Ok(()) => false,
        Err(Stop::Interrupted) => true,
        Err(Stop::Failed(failure)) => return Err(explained(failure, &conductor.crew)),
    };
    // The workers are killed first: they must not write while the ledger is read.
    conductor.crew.dismiss();
    let took = began.elapsed();
    let journals = journals(&conductor.crew, interrupted)?;
    let ledger = runtime.block_on(resource.read()).map_err(|trouble| {
        let why = format!("the ledger {} can't be read: {}", resource.location(), trouble.why());
        Failure::new(crate::exit::IO, why)
    })?;
    let verdict = TortureVerdict::new(&journals, &ledger, &conductor.injected);
    let report = TortureReport {
        locks,
        resource: settings::shown(args.resource.as_deref().unwrap_or_default()),
        fence: args.fence,
        workers: args.workers,
        ttl: can.ttl.then_some(args.ttl),
        pause,
        took,
        injected: &conductor.injected,
        verdict: &verdict,
        interrupted,
    };
    if args.json { report.print_json() } else { report.print_text() }?;
    Ok(if report.is_safe() { OK } else { NO })
}

/// The journals of all workers ever started. With `may_be_missing`, a missing journal is no error: a worker
/// may have ended before it created its journal.
fn journals(crew: &Crew, may_be_missing: bool) -> Result<Vec<(u32, Steps)>, Failure> {
    let mut journals = Vec::new();
    for (serial, path) in crew.journals() {
        match journal::read(&path) {
            Ok(steps) => journals.push((serial, steps)),
            Err(error) if may_be_missing && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let doing = format!(
                    "cannot read the worker's log `{}`, without which nothing can be told",
                    path.display()
                );
                return Err(Failure::system(crate::exit::IO, &doing, &error));
            }
        }
    }
    Ok(journals)
}

/// Adds the last error that a worker logged, since that error may be the cause of the failure.
fn explained(failure: Failure, crew: &Crew) -> Failure {
    let steps = journals(crew, true).unwrap_or_default().into_iter().flat_map(|(_, steps)| steps);
    let troubles = steps.filter_map(|(at, step)| match step {
        JournalStep::Trouble { why } => Some((at, why)),
        _ => None,
    });
    match troubles.max() {
        Some((_, why)) => {
            Failure::new(failure.code, format!("{}; a worker's last trouble: {why}", failure.message))
        }
        None => failure,
    }
}

/// Forwards the first termination signal to the crew's event queue.
fn listen(crew: &Crew, server: Option<Pid>, runtime: &Handle) -> Result<(), Failure> {
    let tell = crew.sender();
    let _inside = runtime.enter();
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    runtime.spawn(async move {
        let mut asked = false;
        loop {
            signals.until_end().await;
            if asked {
                // A second signal ends the program at once, without waiting for an unresponsive resource. The
                // kernel kills the workers when this process ends (`PR_SET_PDEATHSIG`).
                if let Some(server) = server {
                    // The lock server may be stopped at this moment.
                    let _ = kill(server, Signal::SIGCONT);
                }
                std::process::exit(INTERRUPTED);
            }
            asked = true;
            // Sending fails if the conductor has ended.
            let _ = tell.send(CrewEvent::Interrupted);
        }
    });
    Ok(())
}
