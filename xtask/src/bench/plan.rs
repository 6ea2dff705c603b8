//! What runs when.
//!
//! Responsible for servers that are fresh, for turns (one round of each system before the next round of any, so that a
//! slow minute of the machine hits all), and for a bounded time.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::Outcome;
use crate::bench::report::Report;
use crate::bench::server::Server;
use crate::bench::systems::{Etcd, KEEPALIVE_SESSIONS, Ours, Peer, Redis, SERVICE_OF_OURS, Zookeeper};
use crate::bench::workloads::{self, Measured};
use crate::bench::{Bench, System, Workload, disk, name};
use crate::services::catalogue::{ETCD, REDIS_FSYNC, REDIS_NOFSYNC, Service, ZOOKEEPER};
use crate::services::{self, Place};

/// No measurement takes as long on a machine that can be measured on; a system that hangs is given up.
const ENDS_WITHIN: Duration = Duration::from_secs(120);
/// The first turn of each system is thrown away: a server in Java is several times faster once it has been compiled.
const WARM_UP: &str = "warm-up";
/// A session of ZooKeeper takes one at each end, and there are other things to open.
const DESCRIPTORS: u64 = KEEPALIVE_SESSIONS as u64 + 1_000;

/// A system, and where it is.
struct Subject {
    system: System,
    /// What its client connects to.
    at: String,
    /// `None` where it runs already: then nothing of its process can be measured.
    place: Option<Place>,
}

/// Runs everything that was chosen, and prints the report.
pub(super) fn run(choice: &Bench) -> Outcome {
    allow_descriptors()?;
    let systems: Vec<System> = of(&choice.only);
    let services: Vec<&Service> = systems.iter().filter_map(|system| service(*system, choice)).collect();
    let measured = measure(choice, &systems);
    let stopped = services::down(&services);
    let report = measured?;
    stopped?;
    report.print();
    if let Some(file) = &choice.json {
        report.write_json(file)?;
    }
    report.failures()
}

fn measure(choice: &Bench, systems: &[System]) -> Outcome<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start tokio: {error}"))?;
    let folder = services::root()?;
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let subjects: Vec<Subject> =
        systems.iter().map(|system| subject(*system, choice)).collect::<Outcome<_>>()?;
    let workloads: Vec<Workload> = of(&choice.workloads);
    let chosen = |of: &[Workload]| -> Vec<Workload> {
        of.iter().copied().filter(|workload| workloads.contains(workload)).collect()
    };
    let mut report = Report::new(systems, &workloads);
    // One that can't be measured doesn't keep the others from it.
    let mut failed: BTreeMap<System, String> = BTreeMap::new();
    for system in systems {
        if let Err(error) = restart(*system, choice) {
            eprintln!("xtask: {}: {error}", name(*system));
            failed.insert(*system, error);
        }
    }
    report.fdatasync(disk::fdatasync_p50_us(&folder, disk::LONG)?);

    let mut turn = |report: &mut Report, what: &str, workload: Workload, subject: &Subject| {
        if failed.contains_key(&subject.system) {
            return;
        }
        let system = name(subject.system);
        eprintln!("{what}: {system}, {}", name(workload));
        // What a server has grown to before would hide by how much it grows now.
        let fresh = if workload == Workload::Memory { restart(subject.system, choice) } else { Ok(()) };
        let disk = fresh.and_then(|()| disk::fdatasync_p50_us(&folder, disk::SHORT));
        let measured = disk.and_then(|disk| Ok((disk, runtime.block_on(one(choice, workload, subject))?)));
        match measured {
            Ok((_, Some(_))) if what == WARM_UP => {}
            Ok((disk, Some(measured))) => {
                report.fdatasync_before(subject.system, disk);
                report.add(subject.system, measured);
            }
            Ok((_, None)) => {
                let why = match subject.place {
                    Some(_) => "there is no client for it",
                    None => "it runs elsewhere, and its process is not known",
                };
                report.note(format!("{system}: {} was left out: {why}", name(workload)));
            }
            Err(error) => {
                eprintln!("xtask: {system}: {error}");
                failed.insert(subject.system, error);
            }
        }
    };
    for subject in &subjects {
        turn(&mut report, WARM_UP, Workload::Pairs, subject);
    }
    for round in 1..=choice.rounds {
        for subject in &subjects {
            for workload in chosen(&[Workload::Single, Workload::Pairs, Workload::Handover]) {
                turn(&mut report, &format!("round {round} of {}", choice.rounds), workload, subject);
            }
        }
    }
    for workload in chosen(&[Workload::Keepalive, Workload::Memory]) {
        for subject in &subjects {
            turn(&mut report, "once", workload, subject);
        }
    }
    report.fdatasync(disk::fdatasync_p50_us(&folder, disk::LONG)?);
    failed.into_iter().for_each(|(system, error)| report.fail(system, error));
    Ok(report)
}

/// One workload on one system; `None` if that system can't be measured so.
async fn one(choice: &Bench, workload: Workload, subject: &Subject) -> Outcome<Option<Measured>> {
    let at = subject.at.as_str();
    let work = async {
        match subject.system {
            System::Ours => on::<Ours>(choice, workload, subject).await,
            System::RedisFsync | System::RedisNofsync => on::<Redis>(choice, workload, subject).await,
            System::Etcd => on::<Etcd>(choice, workload, subject).await,
            System::Zookeeper => on::<Zookeeper>(choice, workload, subject).await,
        }
    };
    let limit = ENDS_WITHIN + Duration::from_secs(2 * choice.keepalive_seconds + 20 * choice.seconds);
    let late = |_| format!("{} at {at} did not end within {} s", name(workload), limit.as_secs());
    tokio::time::timeout(limit, work).await.map_err(late)?
}

async fn on<P: Peer>(choice: &Bench, workload: Workload, subject: &Subject) -> Outcome<Option<Measured>> {
    let at = subject.at.as_str();
    let duration = Duration::from_secs(choice.seconds);
    let server = || subject.place.as_ref().and_then(Place::pid).map(|pid| Server { pid });
    match workload {
        Workload::Single => workloads::single::<P>(at, duration).await.map(Some),
        Workload::Pairs => workloads::pairs::<P>(at, duration).await.map(Some),
        // Eight measurements instead of one or two.
        Workload::Handover => workloads::handover::<P>(at, duration / 2).await.map(Some),
        Workload::Memory => match server() {
            Some(server) => workloads::memory::<P>(at, server).await.map(Some),
            None => Ok(None),
        },
        Workload::Keepalive => match server() {
            Some(server) => keep_alive(choice, server, subject).await.map(Some),
            None => Ok(None),
        },
    }
}

async fn keep_alive(choice: &Bench, server: Server, subject: &Subject) -> Outcome<Measured> {
    let duration = Duration::from_secs(choice.keepalive_seconds);
    let at = subject.at.as_str();
    let cores = match subject.system {
        System::Ours => {
            let cores = Ours::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?;
            return Ok(vec![
                ("keepalive.cpu".to_owned(), cores.spread * 100.0),
                ("keepalive.together.cpu".to_owned(), cores.together * 100.0),
            ]);
        }
        System::RedisFsync | System::RedisNofsync => {
            Redis::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?
        }
        System::Etcd => Etcd::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?,
        System::Zookeeper => Zookeeper::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?,
    };
    Ok(vec![("keepalive.cpu".to_owned(), cores * 100.0)])
}

fn subject(system: System, choice: &Bench) -> Outcome<Subject> {
    let Some(service) = service(system, choice) else {
        let at = choice.ours_at.clone().unwrap_or_default();
        return Ok(Subject { system, at, place: None });
    };
    let host = format!("127.0.0.1:{}", service.port);
    let at = if system == System::Ours { format!("lockkeeper://{host}") } else { host };
    Ok(Subject { system, at, place: Some(services::place_of(service)?) })
}

/// Starts the server of `system` with nothing in it, unless it runs elsewhere.
fn restart(system: System, choice: &Bench) -> Outcome {
    let services: Vec<&Service> = service(system, choice).into_iter().collect();
    services::down(&services)?;
    services::up(&services)
}

/// The service that has to be started for `system`; `None` for ours if it runs elsewhere.
fn service(system: System, choice: &Bench) -> Option<&'static Service> {
    match system {
        System::Ours => choice.ours_at.is_none().then_some(&SERVICE_OF_OURS),
        System::RedisFsync => Some(&REDIS_FSYNC),
        System::RedisNofsync => Some(&REDIS_NOFSYNC),
        System::Etcd => Some(&ETCD),
        System::Zookeeper => Some(&ZOOKEEPER),
    }
}

/// What was chosen, each once and in order; everything if nothing was.
fn of<T: ValueEnum + Copy + PartialEq>(chosen: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| chosen.is_empty() || chosen.contains(value)).collect()
}

/// Makes room for the sockets of `keepalive`, also for the servers, which inherit the limit.
fn allow_descriptors() -> Outcome {
    let unknown = |error| format!("cannot see how many descriptors are allowed: {error}");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(unknown)?;
    let wanted = DESCRIPTORS.max(soft).min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
        .map_err(|error| format!("cannot raise the limit of descriptors to {wanted}: {error}"))
}
