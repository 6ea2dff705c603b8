//! Test support: start a wrapper, wait for conditions, find survivors.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wrapper::{FAMILY, Options};

/// Timeout of a step: far more than a step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition; fails the test with `what` after a time limit.
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < give_up, "did not happen in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// The number of repetitions of the scenarios that kill processes.
pub(crate) fn rounds() -> usize {
    std::env::var("GUARDIAN_ROUNDS").map_or(25, |rounds| rounds.parse().expect("GUARDIAN_ROUNDS is a number"))
}

/// A directory that contains a lock, and at most one wrapper.
pub(crate) struct Scenario {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) options: Options,
    wrapper: Option<Child>,
}

impl Scenario {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            lock: folder.path().join("lock").into(),
            report: folder.path().join("report").into(),
            family: folder.path().into(),
            grace_ms: 20_000,
            ttl_ms: 0,
            renews: false,
            usr2_is_loss: false,
        };
        Self { folder, options, wrapper: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The wrapper's command line, for tests that start it through a shell.
    pub(crate) fn words(&self, command: &[&str]) -> Vec<OsString> {
        let own = std::env::current_exe().unwrap().into_os_string();
        let mut words = vec![own, "role:wrapper".into()];
        words.extend(self.options.to_arguments());
        words.extend(command.iter().map(OsString::from));
        words
    }

    /// The wrapper, not yet started; its command's output goes to the file "out".
    pub(crate) fn command(&self, command: &[&str]) -> Command {
        let words = self.words(command);
        let mut wrapper = Command::new(&words[0]);
        wrapper.args(&words[1..]).current_dir(self.folder.path());
        wrapper.stdin(Stdio::null()).stdout(File::create(self.path("out")).unwrap());
        wrapper
    }

    /// Starts the wrapper, in a process group of its own.
    pub(crate) fn start(&mut self, command: &[&str]) {
        let child = self.command(command).process_group(0).spawn().unwrap();
        self.wrapper = Some(child);
    }

    /// Starts the wrapper and waits until it has the lock and the command runs.
    pub(crate) fn run(&mut self, command: &[&str]) {
        self.start(command);
        self.wait_for_report("started");
    }

    /// Runs a tree of five processes (see [`FAMILY_SCRIPT`]), and waits until all of them have started.
    pub(crate) fn run_family(&mut self, first_words: &str) {
        let script = format!("{first_words}\n{FAMILY_SCRIPT}");
        self.run(&["sh", "-c", &script]);
        wait_until("the family is complete", || self.read("members").lines().count() == 5);
    }

    pub(crate) fn signal_wrapper(&self, signal: Signal) {
        kill(self.wrapper_pid(), signal).unwrap();
    }

    pub(crate) fn wrapper_pid(&self) -> Pid {
        Pid::from_raw(self.wrapper.as_ref().expect("the wrapper was started").id().cast_signed())
    }

    /// The guardian, found as the parent of the command.
    pub(crate) fn guardian_pid(&self) -> Pid {
        let line = self.wait_for_report("started");
        let command: i32 = line["started ".len()..].parse().unwrap();
        Pid::from_raw(stat_field(command, 1).expect("the command lives").parse().unwrap())
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let wrapper = self.wrapper.as_mut().expect("the wrapper was started");
        wait_for("the wrapper ends", || wrapper.try_wait().unwrap())
    }

    /// The contents of a file in the folder; empty if it does not exist yet.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The last line of the wrapper's report that starts with `word`; waits until there is one.
    pub(crate) fn wait_for_report(&self, word: &str) -> String {
        wait_for(&format!("the wrapper reports `{word}`"), || self.reported(word))
    }

    pub(crate) fn reported(&self, word: &str) -> Option<String> {
        let report = self.read("report");
        // A last line without a newline is still being written.
        let whole = &report[..report.rfind('\n')? + 1];
        whole.lines().rfind(|line| line.starts_with(word)).map(str::to_owned)
    }

    /// Acquires the lock as the next holder would, as soon as it is free.
    pub(crate) fn wait_for_lock(&self) -> Flock<File> {
        let mut file = Some(File::options().write(true).open(&self.options.lock).unwrap());
        wait_for("the lock is free", || match Flock::lock(file.take()?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Some(lock),
            Err((back, _)) => {
                file = Some(back);
                None
            }
        })
    }

    /// All live processes that descend from this scenario's wrapper, the guardian included. They are found by
    /// an environment variable that they inherit, so no process can be missed.
    pub(crate) fn survivors(&self) -> Vec<i32> {
        let mark = [FAMILY.as_bytes(), b"=", self.folder.path().as_os_str().as_bytes()].concat();
        let has_mark = |pid: &i32| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == mark))
        };
        let pids = fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
    }
}

impl Drop for Scenario {
    /// Leaves no process running after a failed test: the guardian ends the descendants.
    fn drop(&mut self) {
        if let Some(wrapper) = &mut self.wrapper {
            let _ = wrapper.kill();
            let _ = wrapper.wait();
        }
    }
}

/// A command with a child, a grandchild, a daemon that forked twice and has its own session, and a stopped
/// process. Each of the five adds a line to `members`.
const FAMILY_SCRIPT: &str = r#"
echo command >> members
sh -c 'echo child >> members; sh -c "echo grandchild >> members; while :; do sleep 600; done" & wait; while :; do sleep 600; done' &
(setsid sh -c 'echo daemon >> members; while :; do sleep 600; done' &)
sh -c 'echo stopped >> members; kill -STOP $$' &
wait
while :; do sleep 600; done
"#;

/// A field of `/proc/<pid>/stat`; index 0 is the state.
pub(crate) fn stat_field(pid: i32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(index).map(str::to_owned)
}

/// The state letter; `None` once the process is gone.
pub(crate) fn state(pid: Pid) -> Option<String> {
    stat_field(pid.as_raw(), 0)
}
