//! A run: rounds of faults, each of them checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::BootInstant;
use lockkeeper_history::{Event, FaultEvent, History};
use lockkeeper_rig::Network;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::check::check;
use crate::cluster::Cluster;
use crate::inject::World;
use crate::options::Options;
use crate::plan::{Fault, KINDS, Kind, Plan, Victim};
use crate::summary::Summary;
use crate::workers::Workers;
use crate::{others, record};

/// How long workers run before the first fault of a round, and after the last.
const MARGIN: Duration = Duration::from_secs(1);
/// Room for the histories of a round.
const DISK: &str = "size=6g";

/// Runs; returns whether all is well.
pub(crate) fn run(options: Options) -> Result<bool> {
    let kinds = kinds(&options)?;
    if options.plan {
        print_plan(&options, kinds);
        return Ok(true);
    }
    if !nix::unistd::geteuid().is_root() {
        return Err("only root may make network namespaces, disks and faults: run it with sudo".into());
    }
    // Disks and networks vanish with the last process, however it ends.
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let folder = tempfile::tempdir()?;
    mount(Some("chaos"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(DISK))?;
    let hosts = options.nodes() + options.workers;
    let network = Rc::new(Network::around_this_thread(u8::try_from(hosts)?));
    // The processes are children of this thread, and end with it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(rounds(&Rc::new(options.clone()), kinds, network, folder.path()));
    // The disk must be free before its folder is removed.
    nix::mount::umount2(folder.path(), nix::mount::MntFlags::MNT_DETACH)?;
    let summary = summary?;
    println!("{}", if options.json { summary.json() } else { summary.text() });
    if options.record {
        record::record(&summary)?;
    }
    Ok(summary.is_well())
}

/// The kinds of faults that the options allow, on this service.
fn kinds(options: &Options) -> Result<Vec<Kind>> {
    let possible: Vec<Kind> = match options.on.as_str() {
        "own" => KINDS.into_iter().filter(|kind| options.nodes() > 1 || !needs_followers(*kind)).collect(),
        other => others::kinds(other),
    };
    if options.faults.is_empty() {
        return Ok(possible);
    }
    let named = |name: &String| {
        possible.iter().find(|kind| kind.name() == *name).copied().ok_or_else(|| {
            let names: Vec<_> = possible.iter().map(|kind| kind.name()).collect();
            format!("there is no fault `{name}` here; there are {}", names.join(", ")).into()
        })
    };
    options.faults.iter().map(named).collect()
}

fn needs_followers(kind: Kind) -> bool {
    use Victim::Follower;
    match kind {
        Kind::Kill(victim) | Kind::Stop(victim) | Kind::Cut(victim) => victim == Follower,
        Kind::OneWay | Kind::Halves | Kind::Transfer => true,
        _ => false,
    }
}

fn print_plan(options: &Options, kinds: Vec<Kind>) {
    let mut at = Duration::ZERO;
    for fault in Plan::new(options.seed, kinds) {
        println!("{:>8.1} s  {:<14} {:>5} ms", at.as_secs_f64(), fault.kind.name(), fault.lasts.as_millis());
        at += fault.lasts + fault.then;
        if at.as_secs() >= options.seconds {
            break;
        }
    }
}

/// The lock service of a run.
enum Service {
    Own(Cluster),
    Other(others::Other),
}

async fn rounds(
    options: &Rc<Options>,
    kinds: Vec<Kind>,
    network: Rc<Network>,
    folder: &Path,
) -> Result<Summary> {
    let mut service = match options.on.as_str() {
        "own" => {
            let program = std::env::current_exe()?.with_file_name("lockkeeper");
            if !program.is_file() {
                return Err(format!("{} is missing: build the command first", program.display()).into());
            }
            Service::Own(Cluster::start(&network, options.nodes(), &program, folder).await?)
        }
        other => Service::Other(others::Other::start(other, folder).await?),
    };
    let mut plan = Plan::new(options.seed, kinds);
    let mut summary = Summary::new(options);
    let end = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < end && summary.failures.is_empty() {
        summary.rounds += 1;
        let place = folder.join(format!("round{}", summary.rounds));
        let at = match &service {
            Service::Own(cluster) => {
                let host = |worker| (cluster.url(), Some(options.nodes() + worker));
                (0..options.workers).map(host).collect()
            }
            Service::Other(other) => other.urls(options.workers),
        };
        let seed = options.seed.wrapping_mul(1_000_000) + summary.rounds * 10_000;
        let mut workers = Workers::start(&network, options, &at, &place, seed)?;
        let history = place.join("faults.history");
        let faults = fault_history(&history)?;
        sleep(MARGIN).await;
        let until = end.min(Instant::now() + Duration::from_secs(options.round));
        while Instant::now() < until {
            let Some(fault) = plan.next() else { break };
            let name = fault.kind.name();
            let tell = |target: &str, begins| tell(&faults, &fault, target, begins);
            let played = match &mut service {
                Service::Own(cluster) => {
                    let mut world = World { network: &network, cluster, workers: &mut workers };
                    world.play(&fault, tell).await
                }
                Service::Other(other) => other.play(&fault, &mut workers, tell).await,
            };
            match played {
                Ok(bitten) => summary.played(&name, bitten),
                Err(error) => {
                    summary.failures.push(format!("after {name}: {error}"));
                    break;
                }
            }
            sleep(fault.then).await;
        }
        sleep(MARGIN).await;
        summary.failures.append(&mut workers.end().await?);
        let mut files = workers.histories();
        files.push(history);
        files.retain(|file| file.exists());
        let checked = check(&files)?;
        eprintln!("{}", summary.round(&checked));
        if !checked.violations.is_empty() || !summary.failures.is_empty() {
            keep(options, &place, folder, &mut summary)?;
        }
        fs::remove_dir_all(&place)?;
    }
    Ok(summary)
}

fn fault_history(file: &Path) -> Result<History> {
    let clock = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    let now = BootInstant::now().as_nanos();
    Ok(History::append(file, format!("faults-{now}"), clock, "faults".into(), now)?)
}

fn tell(history: &History, fault: &Fault, target: &str, begins: bool) {
    let event = FaultEvent { fault: fault.kind.name(), target: target.to_owned(), begins };
    history.write(BootInstant::now().as_nanos(), Event::Fault(event));
}

/// Copies the histories of a round, and the logs of all nodes.
fn keep(options: &Options, place: &Path, folder: &Path, summary: &mut Summary) -> Result {
    let kept = options.keep.join(format!("{}-seed{}-round{}", options.on, options.seed, summary.rounds));
    fs::create_dir_all(&kept)?;
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for entry in fs::read_dir(place)?.flatten() {
        files.push((entry.path(), entry.file_name().to_string_lossy().into_owned()));
    }
    for node in 1..=options.nodes() {
        files.push((folder.join(format!("node{node}/log")), format!("node{node}.log")));
    }
    for (file, name) in files.into_iter().filter(|(file, _)| file.is_file()) {
        fs::copy(file, kept.join(name))?;
    }
    summary.kept.push(kept);
    Ok(())
}
