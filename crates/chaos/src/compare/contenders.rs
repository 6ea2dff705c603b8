//! The processes of all contenders, each with the client that it runs in a process group of its own.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper_rig::Network;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::rows::ComparedRow;
use crate::Result;
use crate::processes::command_at;
use crate::worker::SERVICE;

/// Only bounds the wait for one that does not end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How a contender reaches the service.
pub(crate) struct ContenderRoute {
    pub(crate) url: String,
    pub(crate) addresses: Vec<String>,
    /// Its network host; none: that of the service.
    pub(crate) host: Option<usize>,
}

/// One process.
struct ContenderProcess {
    name: String,
    route: ContenderRoute,
    seed: u64,
    child: Option<(Child, ChildStdin)>,
}

/// All contenders of a row.
pub(crate) struct Contenders {
    all: Vec<ContenderProcess>,
    row: &'static ComparedRow,
    folder: PathBuf,
    program: PathBuf,
    network: Rc<Network>,
}

impl Contenders {
    /// Starts one for each of these routes.
    pub(crate) fn start(
        row: &'static ComparedRow,
        routes: Vec<ContenderRoute>,
        folder: &Path,
        program: &Path,
        network: &Rc<Network>,
        seed: u64,
    ) -> Result<Self> {
        let contender = |(number, route): (usize, ContenderRoute)| ContenderProcess {
            name: format!("contender{}", number + 1),
            route,
            seed: seed.wrapping_mul(100) + number as u64,
            child: None,
        };
        let all: Vec<_> = routes.into_iter().enumerate().map(contender).collect();
        let (folder, program) = (folder.to_owned(), program.to_owned());
        let mut contenders = Self { all, row, folder, program, network: Rc::clone(network) };
        (0..contenders.len()).try_for_each(|index| contenders.begin(index))?;
        Ok(contenders)
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn name(&self, index: usize) -> &str {
        &self.all[index].name
    }

    /// Starts one, again.
    pub(crate) fn begin(&mut self, index: usize) -> Result {
        let contender = &mut self.all[index];
        let mut command = command_at(&self.network, contender.route.host, &self.program);
        contender.seed += 10;
        let log = self.folder.join(format!("{}.log", contender.name));
        let log = File::options().create(true).append(true).open(log)?;
        command.args(["contend", "--row", self.row.name, "--name", &contender.name]);
        command.args(["--url", &contender.route.url, "--seed", &contender.seed.to_string()]);
        command.args(contender.route.addresses.iter().flat_map(|at| ["--addresses", at]));
        command.arg("--folder").arg(&self.folder);
        // The library writes the history of our own holds.
        let history = self.folder.join(format!("{}.history", contender.name));
        command.env("LOCKKEEPER_HISTORY", history).env("LOCKKEEPER_HISTORY_SERVICE", SERVICE);
        command.process_group(0).stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or("a contender without a pipe")?;
        contender.child = Some((child, stdin));
        Ok(())
    }

    /// Sends a signal to a contender and its client.
    pub(crate) fn signal(&self, index: usize, signal: Signal) -> Result {
        let (child, _) = self.all[index].child.as_ref().ok_or("the contender does not run")?;
        Ok(killpg(Pid::from_raw(i32::try_from(child.id())?), signal)?)
    }

    /// `kill -9` of a contender and its client.
    pub(crate) fn kill(&mut self, index: usize) -> Result {
        self.signal(index, Signal::SIGKILL)?;
        if let Some((mut child, _)) = self.all[index].child.take() {
            child.wait()?;
        }
        for end in ["section", "slow"] {
            // It may have none.
            let _ = fs::remove_file(self.marked(index, end));
        }
        Ok(())
    }

    fn marked(&self, index: usize, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.all[index].name))
    }

    /// When a contender has begun the section that it is in.
    pub(crate) fn in_section_since(&self, index: usize) -> Option<SystemTime> {
        fs::metadata(self.marked(index, "section")).and_then(|it| it.modified()).ok()
    }

    /// The first contender that is in its section; `without` is left out.
    pub(crate) fn in_section(&self, without: Option<usize>) -> Option<usize> {
        (0..self.len()).find(|index| Some(*index) != without && self.in_section_since(*index).is_some())
    }

    /// Whether anyone has begun a section after this moment.
    pub(crate) fn goes_on_after(&self, then: SystemTime) -> bool {
        (0..self.len()).any(|index| self.in_section_since(index).is_some_and(|since| since > then))
    }

    /// Makes the next section of a contender last this long.
    pub(crate) fn slow(&self, index: usize, lasts: Duration) -> Result {
        let new = self.folder.join("slow.new");
        fs::write(&new, lasts.as_millis().to_string())?;
        Ok(fs::rename(new, self.marked(index, "slow"))?)
    }

    /// Whether it is in the slow section.
    pub(crate) fn is_slow(&self, index: usize) -> bool {
        !self.marked(index, "slow").exists() && self.in_section_since(index).is_some()
    }

    /// Asks all to end after their section, and kills those that do not.
    pub(crate) async fn end(&mut self) -> Result {
        for (_, stdin) in self.all.iter_mut().filter_map(|it| it.child.as_mut()) {
            // One that has ended by itself is found below.
            let _ = stdin.write_all(b"end\n");
        }
        let until = Instant::now() + ENDS_WITHIN;
        for index in 0..self.len() {
            while let Some((child, _)) = &mut self.all[index].child
                && child.try_wait()?.is_none()
                && Instant::now() < until
            {
                sleep(Duration::from_millis(10)).await;
            }
            // Its client may outlive it.
            let _ = self.kill(index);
        }
        Ok(())
    }

    /// The histories.
    pub(crate) fn histories(&self) -> Vec<PathBuf> {
        (0..self.len()).map(|index| self.marked(index, "history")).filter(|file| file.exists()).collect()
    }
}
