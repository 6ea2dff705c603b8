//! A run: rounds of faults, each of them checked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use lockkeeper::BootInstant;
use lockkeeper_history::{FaultEvent, HistoryEvent, HistoryWriter, host_clock};
use lockkeeper_lab::conformance::languages::Language;
use lockkeeper_rig::Network;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::certificates::ClusterTls;
use crate::check::check;
use crate::cluster::{Cluster, ClusterStart, DiskKind};
use crate::gate::ChaosGate;
use crate::inject::World;
use crate::mutant::ChaosMutant;
use crate::options::RunOptions;
use crate::plan::{Fault, FaultKind, KINDS, Plan, Victim};
use crate::summary::Summary;
use crate::worker::SERVICE;
use crate::workers::{WorkerPlace, Workers};
use crate::{others, record, samples};

/// How long workers run before the first fault of a round, and after the last.
const MARGIN: Duration = Duration::from_secs(1);
/// Between two samples of a steady load.
const SAMPLE: Duration = Duration::from_secs(5);
/// The size of a file of the log. Small ones roll all the time.
pub(crate) const SMALL_SEGMENT: u64 = 1 << 18;
pub(crate) const LARGE_SEGMENT: u64 = 1 << 26;
/// Room for the histories of a round.
const DISK: &str = "size=6g";

/// Runs; returns whether all is well.
pub(crate) fn run(options: RunOptions) -> Result<bool> {
    let kinds = kinds(&options)?;
    if options.plan {
        print_plan(&options, kinds);
        return Ok(true);
    }
    let commit = options.record.then(record::commit).transpose()?;
    let folder = private_disk()?;
    // The last is that of the gates, or of the second service.
    let hosts = options.nodes() + options.clients.len() + 1;
    let network = Rc::new(Network::around_this_thread(u8::try_from(hosts)?));
    // The processes are children of this thread, and end with it.
    // A build during the run must not change what runs.
    let mut programs = Programs::copied(folder.path())?;
    if let Some(previous) = &options.previous {
        let copy = folder.path().join("lockkeeper-previous");
        fs::copy(previous, &copy).map_err(|error| format!("{}: {error}", previous.display()))?;
        programs.previous = Some(copy);
    }
    programs.build_drivers(&options, folder.path())?;
    let programs = Rc::new(programs);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = Run { options: Rc::new(options.clone()), network, programs, folder: folder.path() };
    let summary = runtime.block_on(run.rounds(kinds));
    free_disk(&folder)?;
    let summary = summary?;
    println!("{}", if options.json { summary.json() } else { summary.text() });
    if let Some(file) = &options.samples {
        fs::write(file, samples::plot(&summary.samples))?;
    }
    if let Some(commit) = commit {
        record::record(&summary, &commit)?;
    }
    Ok(summary.is_well())
}

/// Moves this process into a mount namespace of its own, with a disk in memory for a run.
///
/// # Errors
/// This process is not root.
pub(crate) fn private_disk() -> Result<TempDir> {
    if !nix::unistd::geteuid().is_root() {
        return Err("only root may make network namespaces, disks and faults: run it with sudo".into());
    }
    // Disks and networks vanish with the last process, however it ends.
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let folder = tempfile::tempdir()?;
    mount(Some("chaos"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(DISK))?;
    Ok(folder)
}

/// The disk must be free before its folder is removed.
pub(crate) fn free_disk(folder: &TempDir) -> Result {
    Ok(nix::mount::umount2(folder.path(), nix::mount::MntFlags::MNT_DETACH)?)
}

/// The kinds of faults that the options allow, on this service.
fn kinds(options: &RunOptions) -> Result<Vec<FaultKind>> {
    let possible: Vec<FaultKind> = match options.on.as_str() {
        "own" => KINDS.into_iter().filter(|kind| options.nodes() > 1 || !needs_followers(*kind)).collect(),
        other => others::kinds(other),
    };
    if options.faults.is_empty() {
        let is_usual = |kind: &FaultKind| match kind {
            FaultKind::Power | FaultKind::Certificates => false,
            FaultKind::Upgrade => options.previous.is_some(),
            _ => true,
        };
        let usual = || possible.into_iter().filter(is_usual).collect();
        return Ok(options.mutant.map_or_else(usual, ChaosMutant::faults));
    }
    let named = |name: &String| {
        possible.iter().find(|kind| kind.name() == *name).copied().ok_or_else(|| {
            let names: Vec<_> = possible.iter().map(|kind| kind.name()).collect();
            format!("there is no fault `{name}` here; there are {}", names.join(", ")).into()
        })
    };
    if options.faults == ["none"] {
        return Ok(Vec::new());
    }
    let kinds: Vec<_> = options.faults.iter().map(named).collect::<Result<_>>()?;
    let uses_http = || options.clients.iter().any(|client| ["go", "java"].contains(&client.as_str()));
    if kinds.contains(&FaultKind::Upgrade) && options.previous.is_none() {
        return Err("an upgrade needs another release: --previous FILE".into());
    }
    if kinds.contains(&FaultKind::Certificates) && uses_http() {
        return Err("the drivers of Go and Java take no certificates: leave them out of --clients".into());
    }
    Ok(kinds)
}

fn needs_followers(kind: FaultKind) -> bool {
    use Victim::Follower;
    match kind {
        FaultKind::Kill(victim) | FaultKind::Stop(victim) | FaultKind::Cut(victim) => victim == Follower,
        FaultKind::OneWay | FaultKind::Halves | FaultKind::Transfer | FaultKind::Member => true,
        _ => false,
    }
}

fn print_plan(options: &RunOptions, kinds: Vec<FaultKind>) {
    let mut at = Duration::ZERO;
    for fault in Plan::new(options.seed, kinds) {
        println!("{:>8.1} s  {:<14} {:>5} ms", at.as_secs_f64(), fault.kind.name(), fault.lasts.as_millis());
        at += fault.lasts + fault.then;
        if at.as_secs() >= options.seconds {
            break;
        }
    }
}

/// The programs of a run, in its own folder: a build during the run does not change what runs.
pub(crate) struct Programs {
    pub(crate) lockkeeper: PathBuf,
    pub(crate) chaos: PathBuf,
    /// Another release of `lockkeeper`.
    previous: Option<PathBuf>,
    /// The command lines of drivers, by their language.
    pub(crate) drivers: BTreeMap<&'static str, String>,
}

impl Programs {
    pub(crate) fn copied(folder: &Path) -> Result<Self> {
        let own = std::env::current_exe()?;
        let copied = |program: PathBuf, name: &str| -> Result<PathBuf> {
            let copy = folder.join(name);
            fs::copy(&program, &copy).map_err(|error| {
                format!(
                    "{}: {error}; build it first: cargo build --release -p lockkeeper-cli",
                    program.display()
                )
            })?;
            Ok(copy)
        };
        Ok(Self {
            lockkeeper: copied(own.with_file_name("lockkeeper"), "lockkeeper")?,
            chaos: copied(own, "lockkeeper-chaos")?,
            previous: None,
            drivers: BTreeMap::new(),
        })
    }

    /// What nodes run first, and after an upgrade.
    fn releases(&self) -> [PathBuf; 2] {
        let present = self.lockkeeper.clone();
        [self.previous.clone().unwrap_or_else(|| present.clone()), present]
    }

    /// Builds the drivers of the clients that are not in Rust.
    fn build_drivers(&mut self, options: &RunOptions, folder: &Path) -> Result {
        // Where cargo has the native modules, also those that it has built for tests.
        let modules = std::env::current_exe()?.with_file_name("deps");
        for language in Language::ALL {
            if options.clients.iter().any(|client| client == language.name()) {
                if options.on != "own" {
                    return Err("clients in other languages work on our own service only: --on own".into());
                }
                self.drivers.insert(language.name(), language.driver(folder, &modules)?);
            }
        }
        Ok(())
    }
}

/// The lock service of a run.
enum TestedService {
    /// And a second one, for some workers: a planted mistake.
    Own(Cluster, Option<Cluster>),
    Other(others::Other),
}

struct Run<'a> {
    options: Rc<RunOptions>,
    network: Rc<Network>,
    programs: Rc<Programs>,
    folder: &'a Path,
}

impl Run<'_> {
    async fn rounds(&self, kinds: Vec<FaultKind>) -> Result<Summary> {
        let options = &self.options;
        let mut service = match options.on.as_str() {
            "own" => self.own(&kinds).await?,
            other => TestedService::Other(others::Other::start(other, self.folder).await?),
        };
        let mut plan = Plan::new(options.seed, kinds);
        let mut summary = Summary::new(options);
        let end = Instant::now() + Duration::from_secs(options.seconds);
        while Instant::now() < end && summary.failures.is_empty() {
            summary.rounds += 1;
            let place = self.folder.join(format!("round{}", summary.rounds));
            let until = end.min(Instant::now() + Duration::from_secs(options.round));
            let files = self.round(&mut service, &mut plan, until, &place, &mut summary).await?;
            let checked = check(&files)?;
            eprintln!("{}", summary.round(&checked));
            let longest = checked.gaps.values().flatten().max().map_or(0, |ns| ns / 1_000_000);
            let has_paused = options.keep_pauses.is_some_and(|limit| longest >= limit);
            let has_violations = !checked.violations.is_empty() && options.mutant.is_none();
            if has_violations || !summary.failures.is_empty() || has_paused {
                self.keep(&place, &mut summary)?;
            }
            fs::remove_dir_all(&place)?;
            if summary.found_mutant() {
                break;
            }
        }
        Ok(summary)
    }

    /// Starts our own service.
    async fn own(&self, kinds: &[FaultKind]) -> Result<TestedService> {
        let (nodes, mutant) = (self.options.nodes(), self.options.mutant);
        let lies = mutant == Some(ChaosMutant::LyingDisk);
        let mut start = ClusterStart {
            network: &self.network,
            hosts: 0..nodes,
            programs: self.programs.releases(),
            folder: self.folder.to_owned(),
            tls: None,
            more: Vec::new(),
            disk: if lies || kinds.contains(&FaultKind::Power) { DiskKind::Power } else { DiskKind::Memory },
            // New files that a disk has lost would be noticed.
            segment_bytes: if lies { LARGE_SEGMENT } else { SMALL_SEGMENT },
        };
        if kinds.contains(&FaultKind::Certificates) {
            let hosts = (0..nodes).map(|host| self.network.address(host)).collect();
            let tls = ClusterTls::new(&self.programs.lockkeeper, self.folder, hosts)?;
            start.tls = Some(Rc::new(RefCell::new(tls)));
        }
        let cluster = Cluster::start(&start).await?;
        if !mutant.is_some_and(ChaosMutant::has_second_service) {
            return Ok(TestedService::Own(cluster, None));
        }
        let last = nodes + self.options.clients.len();
        start.hosts = last..last + 1;
        start.folder = self.folder.join("second");
        Ok(TestedService::Own(cluster, Some(Cluster::start(&start).await?)))
    }

    /// Where workers work.
    fn places(&self, service: &TestedService) -> Vec<WorkerPlace> {
        let options = &self.options;
        let place = |worker| match service {
            TestedService::Own(_, Some(second)) if worker % 2 == 1 => {
                let is_told = options.mutant == Some(ChaosMutant::TwoServices);
                let service = if is_told { "chaos-2" } else { SERVICE };
                WorkerPlace { url: second.url(), host: Some(options.nodes() + worker), service }
            }
            TestedService::Own(cluster, _) => {
                let (url, host) = (cluster.url(), Some(options.nodes() + worker));
                WorkerPlace { url, host, service: SERVICE }
            }
            TestedService::Other(_) => unreachable!("it has its own places"),
        };
        match service {
            TestedService::Own(..) => (0..options.clients.len()).map(place).collect(),
            TestedService::Other(other) => other.places(options.clients.len()),
        }
    }

    /// Workers and faults until this moment; returns their histories.
    async fn round(
        &self,
        service: &mut TestedService,
        plan: &mut Plan,
        until: Instant,
        place: &Path,
        summary: &mut Summary,
    ) -> Result<Vec<PathBuf>> {
        let options = &self.options;
        let at = self.places(service);
        let seed = options.seed.wrapping_mul(1_000_000) + summary.rounds * 10_000;
        let mut gates = Vec::new();
        if let TestedService::Own(..) = service {
            let host = options.nodes() + options.clients.len();
            for number in 0..ChaosMutant::gates(options.mutant) {
                gates.push(ChaosGate::start(&self.network, &self.programs, (host, number), place).await?);
            }
        }
        let at = (&at[..], gates.iter().map(ChaosGate::address).collect());
        let mut workers = Workers::start(&self.network, options, &self.programs, at, place, seed)?;
        let history = place.join("faults.history");
        let faults = fault_history(&history)?;
        sleep(MARGIN).await;
        if let (Some(mutant), TestedService::Own(cluster, _)) = (options.mutant, &mut *service) {
            workers.all_work().await?;
            mutant.strike(cluster, &workers).await?;
        }
        while Instant::now() < until {
            let Some(fault) = plan.next() else {
                self.sampled(service, until, summary).await?;
                break;
            };
            let name = fault.kind.name();
            let tell = |target: &str, begins| tell(&faults, &fault, target, begins);
            let played = match service {
                TestedService::Own(cluster, _) => {
                    let (workers, gate) = (&mut workers, gates.first_mut());
                    let mut world = World { network: &self.network, cluster, workers, gate };
                    world.play(&fault, tell).await
                }
                TestedService::Other(other) => other.play(&fault, &mut workers, tell).await,
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
        for gate in gates {
            files.push(gate.history());
            summary.failures.extend(gate.end().await?);
        }
        files.retain(|file| file.exists());
        Ok(files)
    }

    /// A steady load until this moment.
    async fn sampled(&self, service: &TestedService, until: Instant, summary: &mut Summary) -> Result {
        while Instant::now() < until {
            if let TestedService::Own(cluster, _) = service {
                let seconds = summary.seconds();
                summary.samples.push(cluster.sample(seconds).await?);
            }
            sleep(SAMPLE).await;
        }
        Ok(())
    }

    /// Copies the histories of a round, and the logs of all nodes.
    fn keep(&self, place: &Path, summary: &mut Summary) -> Result {
        let RunOptions { on, seed, keep, .. } = &*self.options;
        let kept = keep.join(format!("{on}-seed{seed}-round{}", summary.rounds));
        fs::create_dir_all(&kept)?;
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        for entry in fs::read_dir(place)?.flatten() {
            files.push((entry.path(), entry.file_name().to_string_lossy().into_owned()));
        }
        for node in 1..=self.options.nodes() {
            files.push((self.folder.join(format!("node{node}/log")), format!("node{node}.log")));
        }
        for (file, name) in files.into_iter().filter(|(file, _)| file.is_file()) {
            fs::copy(file, kept.join(name))?;
        }
        summary.kept.push(kept);
        Ok(())
    }
}

pub(crate) fn fault_history(file: &Path) -> Result<HistoryWriter> {
    let clock = host_clock()?;
    let now = BootInstant::now().as_nanos();
    Ok(HistoryWriter::append(file, format!("faults-{now}"), clock, "faults".into(), now)?)
}

fn tell(history: &HistoryWriter, fault: &Fault, target: &str, begins: bool) {
    let event = FaultEvent { fault: fault.kind.name(), target: target.to_owned(), begins };
    history.write(BootInstant::now().as_nanos(), HistoryEvent::Fault(event));
}
