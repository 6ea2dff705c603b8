//! The order of the measurements.
//!
//! Responsible for servers with empty data, for the order of the measurements, and for their time limits. The
//! short workloads run in rounds: each round measures all systems one after the other, so that a slow minute
//! of the machine affects all of them.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::TaskResult;
use crate::bench::bars::{BARS, CLUSTER_BARS};
use crate::bench::failover::{blocking, failover, leader};
use crate::bench::report::BenchReport;
use crate::bench::server::ServerProcesses;
use crate::bench::systems::{
    CLUSTER_OF_OURS, Etcd, KEEPALIVE_SESSIONS, Ours, Peer, RedisSystem, SERVICE_OF_OURS, Zookeeper,
};
use crate::bench::workloads::{self, Measured};
use crate::bench::{Bench, System, Workload, disk, name};
use crate::services;
use crate::services::catalogue::{ETCD, REDIS_FSYNC, REDIS_NOFSYNC, ServiceSpec, ZOOKEEPER};
use crate::services::clusters::{ETCD_CLUSTER, NODES, ThreeNodes, ZOOKEEPER_CLUSTER};

/// The time-out of a measurement, in addition to the configured durations. No system takes as long on a
/// usable machine; one that hangs is reported as failed.
const ENDS_WITHIN: Duration = Duration::from_secs(120);
/// The results of each system's first measurement are discarded: a server in Java is several times faster
/// once its code is compiled.
const WARM_UP: &str = "warm-up";
/// The limit of open descriptors of each process: a ZooKeeper session takes one in the client and one in the
/// server; the rest is reserve.
const DESCRIPTORS: u64 = KEEPALIVE_SESSIONS as u64 + 1_000;

/// A system under test, and its servers.
struct Subject {
    system: System,
    /// The address that the system's client connects to.
    at: String,
    /// The system's nodes. Empty if the system already runs elsewhere: then its processes can't be measured.
    services: Vec<&'static ServiceSpec>,
    /// Set if the system has several nodes that we started.
    cluster: Option<&'static ThreeNodes>,
}

/// Runs all selected measurements and prints the report.
pub(super) fn run(choice: &Bench) -> TaskResult {
    allow_descriptors()?;
    let systems = of(&choice.only, |system| match choice.cluster {
        true => !matches!(system, System::RedisFsync | System::RedisNofsync),
        false => system != System::OursAlone,
    });
    let workloads = of(&choice.workloads, |workload| match choice.cluster {
        true => workload != Workload::Memory,
        false => workload != Workload::Failover,
    });
    if !choice.cluster && systems.contains(&System::OursAlone) {
        return Err("ours-alone is one node beside three: it goes with --cluster only".to_owned());
    }
    if !choice.cluster && workloads.contains(&Workload::Failover) {
        return Err("failover needs nodes that go on: it goes with --cluster only".to_owned());
    }
    let subjects: Vec<Subject> = systems.iter().map(|system| subject(*system, choice)).collect();
    let measured = measure(choice, &subjects, &systems, &workloads);
    let services: Vec<&ServiceSpec> =
        subjects.iter().flat_map(|subject| subject.services.iter().copied()).collect();
    let stopped = services::down(&services);
    let report = measured?;
    stopped?;
    report.print();
    if let Some(file) = &choice.json {
        report.write_json(file)?;
    }
    report.failures()
}

fn measure(
    choice: &Bench,
    subjects: &[Subject],
    systems: &[System],
    workloads: &[Workload],
) -> TaskResult<BenchReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start tokio: {error}"))?;
    let folder = services::root()?;
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let chosen = |of: &[Workload]| -> Vec<Workload> {
        of.iter().copied().filter(|workload| workloads.contains(workload)).collect()
    };
    let (bars, nodes) = if choice.cluster { (CLUSTER_BARS, NODES) } else { (BARS, 1) };
    let mut report = BenchReport::new(systems, workloads, bars, nodes);
    // A system that can't be measured does not stop the others.
    let mut failed: BTreeMap<System, String> = BTreeMap::new();
    for subject in subjects {
        if let Err(error) = restart(subject) {
            eprintln!("xtask: {}: {error}", name(subject.system));
            failed.insert(subject.system, error);
        }
    }
    report.fdatasync(disk::fdatasync_p50_us(&folder, disk::LONG, nodes)?);

    let mut turn = |report: &mut BenchReport, what: &str, workload: Workload, subject: &Subject| {
        if failed.contains_key(&subject.system) {
            return;
        }
        let system = name(subject.system);
        eprintln!("{what}: {system}, {}", name(workload));
        // Memory that a server has allocated earlier would hide its growth, so `memory` begins with a fresh
        // server.
        let fresh = if workload == Workload::Memory { restart(subject) } else { Ok(()) };
        let disk = fresh.and_then(|()| disk::fdatasync_p50_us(&folder, disk::SHORT, nodes));
        let measured = disk.and_then(|disk| Ok((disk, runtime.block_on(one(choice, workload, subject))?)));
        match measured {
            Ok((_, Some(_))) if what == WARM_UP => {}
            Ok((disk, Some(measured))) => {
                report.fdatasync_before(subject.system, disk);
                report.add(subject.system, measured);
            }
            Ok((_, None)) => {
                let why = match subject.services.len() {
                    0 => "it runs elsewhere, and its processes are not known",
                    _ => "it has one node",
                };
                report.note(format!("{system}: {} was left out: {why}", name(workload)));
            }
            Err(error) => {
                eprintln!("xtask: {system}: {error}");
                failed.insert(subject.system, error);
            }
        }
    };
    for subject in subjects {
        turn(&mut report, WARM_UP, Workload::Pairs, subject);
    }
    for round in 1..=choice.rounds {
        for subject in subjects {
            for workload in chosen(&[Workload::Single, Workload::Pairs, Workload::Handover, Workload::Cached])
            {
                turn(&mut report, &format!("round {round} of {}", choice.rounds), workload, subject);
            }
        }
    }
    for workload in chosen(&[Workload::Keepalive, Workload::Failover, Workload::Memory]) {
        for subject in subjects {
            turn(&mut report, "once", workload, subject);
        }
    }
    report.fdatasync(disk::fdatasync_p50_us(&folder, disk::LONG, nodes)?);
    failed.into_iter().for_each(|(system, error)| report.fail(system, error));
    Ok(report)
}

/// Runs one workload on one system; `None` if the workload does not apply to that system.
async fn one(choice: &Bench, workload: Workload, subject: &Subject) -> TaskResult<Option<Measured>> {
    let at = subject.at.as_str();
    let work = async {
        match subject.system {
            System::Ours | System::OursAlone => on::<Ours>(choice, workload, subject).await,
            System::RedisFsync | System::RedisNofsync => on::<RedisSystem>(choice, workload, subject).await,
            System::Etcd => on::<Etcd>(choice, workload, subject).await,
            System::Zookeeper => on::<Zookeeper>(choice, workload, subject).await,
        }
    };
    let limit = ENDS_WITHIN + Duration::from_secs(2 * choice.keepalive_seconds + 20 * choice.seconds);
    let late = |_| format!("{} at {at} did not end within {} s", name(workload), limit.as_secs());
    tokio::time::timeout(limit, work).await.map_err(late)?
}

async fn on<P: Peer>(choice: &Bench, workload: Workload, subject: &Subject) -> TaskResult<Option<Measured>> {
    let at = subject.at.as_str();
    let duration = Duration::from_secs(choice.seconds);
    match workload {
        Workload::Single => workloads::single::<P>(at, duration).await.map(Some),
        Workload::Pairs => workloads::pairs::<P>(at, duration).await.map(Some),
        // Half the duration, because `handover` has eight measurements, and other workloads have one or two.
        Workload::Handover => workloads::handover::<P>(at, duration / 2).await.map(Some),
        Workload::Cached => workloads::cached::<P>(at, duration).await.map(Some),
        Workload::Memory => match server(subject)? {
            Some(server) => workloads::memory::<P>(at, &server).await.map(Some),
            None => Ok(None),
        },
        Workload::Keepalive => match server(subject)? {
            Some(server) => keep_alive(choice, &server, subject).await.map(Some),
            None => Ok(None),
        },
        Workload::Failover => match subject.cluster {
            Some(cluster) => failover::<P>(at, cluster).await.map(Some),
            None => Ok(None),
        },
    }
}

async fn keep_alive(choice: &Bench, server: &ServerProcesses, subject: &Subject) -> TaskResult<Measured> {
    let duration = Duration::from_secs(choice.keepalive_seconds);
    let at = subject.at.as_str();
    let cores = match subject.system {
        System::Ours | System::OursAlone => {
            // The sessions are on raw protocol streams, which do not search for the leader.
            let at = match subject.cluster {
                Some(cluster) => blocking(move || leader(cluster)).await.map(address)?,
                None => at.to_owned(),
            };
            let cores = Ours::keep_alive(&at, server, KEEPALIVE_SESSIONS, duration).await?;
            return Ok(vec![
                ("keepalive.cpu".to_owned(), cores.spread * 100.0),
                ("keepalive.together.cpu".to_owned(), cores.together * 100.0),
            ]);
        }
        System::RedisFsync | System::RedisNofsync => {
            RedisSystem::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?
        }
        System::Etcd => Etcd::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?,
        System::Zookeeper => Zookeeper::keep_alive(at, server, KEEPALIVE_SESSIONS, duration).await?,
    };
    Ok(vec![("keepalive.cpu".to_owned(), cores * 100.0)])
}

/// The processes of a system's nodes; `None` if the system runs elsewhere.
fn server(subject: &Subject) -> TaskResult<Option<ServerProcesses>> {
    let mut pids = Vec::new();
    for service in &subject.services {
        let pid = services::place_of(service)?.pid();
        pids.push(pid.ok_or_else(|| format!("{} has ended", service.name))?);
    }
    Ok((!pids.is_empty()).then_some(ServerProcesses { pids }))
}

fn subject(system: System, choice: &Bench) -> Subject {
    let cluster = cluster(system).filter(|_| choice.cluster);
    let services: Vec<&'static ServiceSpec> = match (system, &choice.ours_at, cluster) {
        (System::Ours, Some(at), _) => {
            return Subject { system, at: at.clone(), services: Vec::new(), cluster: None };
        }
        (_, _, Some(cluster)) => cluster.nodes.iter().collect(),
        (_, _, None) => vec![alone(system)],
    };
    let at: Vec<String> = services.iter().copied().map(address).collect();
    let scheme = if matches!(system, System::Ours | System::OursAlone) { "lockkeeper://" } else { "" };
    Subject { system, at: format!("{scheme}{}", at.join(",")), services, cluster }
}

/// The client address of a node.
fn address(node: &ServiceSpec) -> String {
    format!("127.0.0.1:{}", node.port)
}

/// Restarts the servers of a system with empty data, unless the system runs elsewhere.
fn restart(subject: &Subject) -> TaskResult {
    services::down(&subject.services)?;
    services::up(&subject.services)
}

/// The single-node service of `system`.
fn alone(system: System) -> &'static ServiceSpec {
    match system {
        System::Ours | System::OursAlone => &SERVICE_OF_OURS,
        System::RedisFsync => &REDIS_FSYNC,
        System::RedisNofsync => &REDIS_NOFSYNC,
        System::Etcd => &ETCD,
        System::Zookeeper => &ZOOKEEPER,
    }
}

/// The three-node cluster of `system`; `None` if it is measured with one node only.
fn cluster(system: System) -> Option<&'static ThreeNodes> {
    match system {
        System::Ours => Some(&CLUSTER_OF_OURS),
        System::Etcd => Some(&ETCD_CLUSTER),
        System::Zookeeper => Some(&ZOOKEEPER_CLUSTER),
        System::OursAlone | System::RedisFsync | System::RedisNofsync => None,
    }
}

/// The selected values, each once and in the order of their declaration; without a selection, those for which
/// `is_usual` returns true.
fn of<T: ValueEnum + Copy + PartialEq>(chosen: &[T], is_usual: impl Fn(T) -> bool) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| if chosen.is_empty() { is_usual(*value) } else { chosen.contains(value) }).collect()
}

/// Raises the descriptor limit for the sockets of `keepalive`; servers inherit it.
fn allow_descriptors() -> TaskResult {
    let unknown = |error| format!("cannot see how many descriptors are allowed: {error}");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(unknown)?;
    let wanted = DESCRIPTORS.max(soft).min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
        .map_err(|error| format!("cannot raise the limit of descriptors to {wanted}: {error}"))
}
