//! The worker processes of a round.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;
use std::time::Duration;

use lockkeeper_rig::{Network, Shim};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::mutant::ChaosMutant;
use crate::options::RunOptions;
use crate::processes::{command_at, stands_still};
use crate::run::Programs;

/// What workers can work with.
pub(crate) const CLIENTS: [&str; 6] = ["rust", "python", "asyncio", "node", "go", "java"];
/// A driver's worker has this many times fewer tasks: all go through one pipe.
const DRIVEN: usize = 4;

/// The hosts of workers come after those of nodes.
pub(crate) struct Worker {
    pub(crate) name: String,
    place: WorkerPlace,
    folder: PathBuf,
    history: PathBuf,
    seed: u64,
    child: Option<(Child, ChildStdin)>,
}

/// Where a worker works.
#[derive(Clone)]
pub(crate) struct WorkerPlace {
    pub(crate) url: String,
    /// Its network host; none: that of the service.
    pub(crate) host: Option<usize>,
    /// The name of the service in the history.
    pub(crate) service: &'static str,
}

/// All workers of a round.
pub(crate) struct Workers {
    pub(crate) all: Vec<Worker>,
    /// For their clocks.
    pub(crate) shim: Shim,
    /// Each worker writes through one of them.
    gates: Vec<SocketAddr>,
    network: Rc<Network>,
    options: Rc<RunOptions>,
    programs: Rc<Programs>,
}

impl Workers {
    /// Starts workers, one for each place, with their histories in `folder`.
    pub(crate) fn start(
        network: &Rc<Network>,
        options: &Rc<RunOptions>,
        programs: &Rc<Programs>,
        (at, gates): (&[WorkerPlace], Vec<SocketAddr>),
        folder: &Path,
        seed: u64,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder.join("ledgers"))?;
        let worker = |(number, place): (usize, &WorkerPlace)| {
            let name = format!("worker{}", number + 1);
            let history = folder.join(format!("{name}.history"));
            let (place, folder) = (place.clone(), folder.to_owned());
            Worker { name, place, folder, history, seed: seed + number as u64, child: None }
        };
        let all = at.iter().enumerate().map(worker).collect();
        let (network, options, programs) = (Rc::clone(network), Rc::clone(options), Rc::clone(programs));
        let mut workers = Self { all, shim: Shim::new(folder), gates, network, options, programs };
        (0..at.len()).try_for_each(|index| workers.begin(index))?;
        Ok(workers)
    }

    /// Starts one, again.
    fn begin(&mut self, index: usize) -> Result {
        let (worker, options) = (&mut self.all[index], &self.options);
        let driver = self.programs.drivers.get(options.clients[index].as_str());
        let program = &self.programs.chaos;
        let mut command = command_at(&self.network, worker.place.host, program);
        worker.seed += 1000;
        let log = File::options().create(true).append(true).open(worker.folder.join(&worker.name))?;
        command.args(["worker", "--name", &worker.name, "--url", &worker.place.url, "--history"]);
        command.arg(&worker.history).arg("--ledgers").arg(worker.folder.join("ledgers"));
        let tasks = if driver.is_some() { options.tasks.div_ceil(DRIVEN) } else { options.tasks };
        command.args(["--seed", &worker.seed.to_string(), "--tasks", &tasks.to_string()]);
        command.args(driver.iter().flat_map(|driver| ["--driver", driver]));
        command.args(["--service", worker.place.service]);
        if let Some(gate) = self.gates.iter().cycle().nth(index) {
            command.args(["--gate", &gate.to_string()]);
        }
        if let Some(mutant) = options.mutant {
            command.args(["--mutant", &mutant.name()]).envs(self.shim.environment());
        }
        // A worker with a driver writes its history itself, also of those drivers whose library would.
        if driver.is_none() && !options.mutant.is_some_and(ChaosMutant::has_claims) {
            command.env("LOCKKEEPER_HISTORY", &worker.history);
        }
        command.env("LOCKKEEPER_HISTORY_SERVICE", worker.place.service);
        // A driver is stopped together with its worker.
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let stdin = child.stdin.take().ok_or("a worker without a pipe")?;
        worker.child = Some((child, stdin));
        Ok(())
    }

    /// Waits until each has written to its history.
    ///
    /// # Errors
    /// One of them has not after a minute.
    pub(crate) async fn all_work(&self) -> Result {
        let until = Instant::now() + Duration::from_secs(60);
        while let Some(idle) = self.all.iter().find(|worker| worker.written() == 0) {
            if Instant::now() >= until {
                return Err(format!("{} has written nothing in a minute", idle.name).into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// SIGKILL; started again after this time. Returns whether it had worked.
    pub(crate) async fn kill_and_start(&mut self, index: usize, after: Duration) -> Result<bool> {
        let written = self.all[index].written();
        self.all[index].kill()?;
        sleep(after).await;
        self.begin(index)?;
        Ok(written > 0)
    }

    /// SIGSTOP for this time. Returns whether it has stood still.
    pub(crate) async fn stop(&mut self, index: usize, lasts: Duration) -> Result<bool> {
        let worker = &self.all[index];
        worker.signal(Signal::SIGSTOP)?;
        let stood = stands_still(lasts, || worker.written()).await;
        worker.signal(Signal::SIGCONT)?;
        Ok(stood)
    }

    /// Asks all to close their sessions, and waits until they have ended. Those that take too long are
    /// killed. Returns the failures: workers that ended by themselves, and workers that had to be killed.
    pub(crate) async fn end(&mut self) -> Result<Vec<String>> {
        let until = Instant::now() + Duration::from_secs(30);
        let mut failed = Vec::new();
        for worker in &mut self.all {
            if let Some((child, stdin)) = &mut worker.child {
                if let Some(status) = child.try_wait()? {
                    let log = std::fs::read_to_string(worker.folder.join(&worker.name))?;
                    failed.push(format!("{} has ended by itself: {status}; {}", worker.name, log.trim_end()));
                }
                let _ = stdin.write_all(b"end\n");
            }
        }
        for worker in &mut self.all {
            while let Some((child, _)) = &mut worker.child
                && child.try_wait()?.is_none()
            {
                if Instant::now() >= until {
                    worker.kill()?;
                    failed.push(format!("{} does not end", worker.name));
                }
                sleep(Duration::from_millis(10)).await;
            }
            worker.child = None;
        }
        Ok(failed)
    }

    /// The histories.
    pub(crate) fn histories(&self) -> Vec<PathBuf> {
        self.all.iter().map(|worker| worker.history.clone()).collect()
    }
}

impl Worker {
    fn signal(&self, signal: Signal) -> Result {
        let (child, _) = self.child.as_ref().ok_or("the worker does not run")?;
        Ok(killpg(Pid::from_raw(i32::try_from(child.id())?), signal)?)
    }

    fn kill(&mut self) -> Result {
        if let Some((mut child, _)) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The size of its history.
    fn written(&self) -> u64 {
        std::fs::metadata(&self.history).map_or(0, |it| it.len())
    }
}
