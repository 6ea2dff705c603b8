//! One running server: all its processes, from its start to its end.
//!
//! Responsible for a server never outliving the test, and for stops and kills that are complete when the call
//! returns. The same for all kinds of servers.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::{CommandLine, SETPRIV};
use crate::wait::wait;

const NOT_RUNNING: &str = "it does not run";

/// Defines the methods that all servers have, for a type whose field `slot` is a [`ProcessSlot`]; with
/// `wipe` also that method, for a server that keeps its data in the folder `data` and makes it when it is
/// missing.
macro_rules! process_methods {
    ($server:ident) => {
        impl $server {
            /// `kill -9` of all the server's processes at once; when this returns, its ports and all
            /// connections are closed.
            pub fn kill(&self) {
                self.slot.kill();
            }

            /// SIGSTOP of all the server's processes: it does not answer, and its connections stay open.
            /// When this returns, all processes are stopped.
            pub fn stop(&self) {
                self.slot.stop();
            }

            /// SIGCONT after [`Self::stop`].
            pub fn cont(&self) {
                self.slot.cont();
            }

            /// The pid of the server's first process, if it runs.
            #[must_use]
            pub fn pid(&self) -> Option<u32> {
                self.slot.pid()
            }
        }
    };
    ($server:ident, wipe) => {
        $crate::process::process_methods!($server);

        impl $server {
            /// Deletes the server's data. A running server is killed first, and then started again without
            /// data.
            pub fn wipe(&self) {
                let ran = self.pid().is_some();
                if ran {
                    self.kill();
                }
                std::fs::remove_dir_all(self.folder.data()).expect("our folder is ours");
                if ran {
                    self.start_again();
                }
            }
        }
    };
}
pub(crate) use process_methods;

/// The processes of a server that was started. Killed when dropped, if they have not ended.
pub(crate) struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts the server; its output is appended to `log`. When this process ends, the server gets the signal
    /// `orphaned`.
    pub(crate) fn start(line: &CommandLine, orphaned: Signal, log: &Path) -> Self {
        SETPRIV.path();
        let file = File::options().create(true).append(true).open(log);
        let file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", log.display()));
        let errors = file.try_clone().expect("a descriptor can be copied");
        let mut command = line.tied(orphaned);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let shown = format!("{command:?}");
        let child = spawn(command).unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
        Self { child, log: log.to_owned() }
    }

    /// Polls `ready` until it returns `Ok`.
    ///
    /// # Panics
    /// The server has ended, or isn't ready in time; the text has the last lines of its log.
    pub(crate) fn wait_until_ready(&mut self, name: &str, mut ready: impl FnMut() -> Result<(), String>) {
        let mut ended = None;
        let waited = wait(|| {
            ended = self.child.try_wait().expect("a child can be asked");
            if ended.is_some() { Ok(()) } else { ready() }
        });
        let log = end_of(&self.log);
        if let Some(status) = ended {
            panic!("{name} ended before it was ready ({status}); {log}");
        }
        waited.unwrap_or_else(|why| panic!("{name} is not ready: {why}; {log}"));
    }

    /// Stops (SIGSTOP) all processes of the server. When this returns, all of them are stopped.
    fn stop(&self) {
        wait(|| self.try_stop()).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Succeeds if two listings of the processes agree and all processes were stopped at the first listing. A
    /// process that the first listing missed was forked before its parent stopped, and the second listing
    /// contains it.
    fn try_stop(&self) -> Result<(), String> {
        let all = self.all();
        let running: Vec<Pid> = all.iter().filter(|pid| !stands_still(**pid)).copied().collect();
        for pid in &running {
            let _ = kill(*pid, Signal::SIGSTOP);
        }
        if running.is_empty() && self.all() == all {
            return Ok(());
        }
        Err(format!("processes {running:?} do not stop"))
    }

    /// Continues all processes of the server.
    fn cont(&self) {
        for pid in self.all().into_iter().rev() {
            let _ = kill(pid, Signal::SIGCONT);
        }
    }

    /// `kill -9` of all processes of the server at once: they are stopped first, so that none observes
    /// another's death. When this returns, they are gone, and so are their connections.
    ///
    /// # Errors
    /// A process could not be killed.
    fn kill(&mut self) -> Result<(), String> {
        let _ = wait(|| self.try_stop());
        let all = self.all();
        for pid in &all {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        self.child.wait().map_err(|error| format!("cannot wait for a child: {error}"))?;
        gone(&all)
    }

    /// Sends `signal` to the first process, and waits until all processes of the server are gone.
    ///
    /// # Errors
    /// The server does not end.
    fn end(&mut self, signal: Signal) -> Result<(), String> {
        let all = self.all();
        self.cont();
        // Fails if the server has ended by itself.
        let _ = kill(self.pid(), signal);
        wait(|| match self.child.try_wait() {
            Ok(Some(_)) => Ok(()),
            _ => Err(format!("process {} does not end by {signal}", self.child.id())),
        })?;
        gone(&all)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("the system's pids are i32"))
    }

    /// The server's first process, then all its descendants.
    fn all(&self) -> Vec<Pid> {
        let parents: Vec<(Pid, Pid)> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid: i32| Some((Pid::from_raw(pid), Pid::from_raw(stat(pid)?.1))))
            .collect();
        let mut all = vec![self.pid()];
        let mut next = 0;
        while let Some(parent) = all.get(next).copied() {
            all.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
            next += 1;
        }
        all
    }
}

/// The slot for a server's process; empty while the server does not run.
pub(crate) struct ProcessSlot(Mutex<Option<ServerProcess>>);

impl ProcessSlot {
    pub(crate) fn empty() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.get().as_ref().map(|process| process.child.id())
    }

    /// # Panics
    /// A process runs already.
    pub(crate) fn fill(&self, start: impl FnOnce() -> ServerProcess) {
        let mut running = self.get();
        assert!(running.is_none(), "it runs already: kill it first");
        *running = Some(start());
    }

    /// As [`ServerProcess::wait_until_ready`].
    pub(crate) fn wait_until_ready(&self, name: &str, ready: impl FnMut() -> Result<(), String>) {
        self.get().as_mut().expect(NOT_RUNNING).wait_until_ready(name, ready);
    }

    /// As [`ServerProcess::stop`].
    pub(crate) fn stop(&self) {
        self.get().as_ref().expect(NOT_RUNNING).stop();
    }

    /// As [`ServerProcess::cont`].
    pub(crate) fn cont(&self) {
        self.get().as_ref().expect(NOT_RUNNING).cont();
    }

    /// As [`ServerProcess::kill`].
    pub(crate) fn kill(&self) {
        let mut process = self.get().take().expect(NOT_RUNNING);
        process.kill().unwrap_or_else(|why| panic!("{why}"));
    }

    /// As [`ServerProcess::end`].
    pub(crate) fn end(&self, signal: Signal) {
        let mut process = self.get().take().expect(NOT_RUNNING);
        process.end(signal).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Called when the owner of the slot is dropped: ends the process, if there is one, with `signal`. If
    /// that fails, `ServerProcess::drop` kills it.
    pub(crate) fn clear(&self, signal: Signal) {
        if let Some(mut process) = self.get().take() {
            let _ = process.end(signal);
        }
    }

    /// Ignores poisoning: the servers of a failed test must be ended too.
    fn get(&self) -> MutexGuard<'_, Option<ServerProcess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A panic here would hide the test's own failure.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.kill();
        }
    }
}

/// Spawns `command` on a thread that lives as long as this process. The kernel sends the parent-death signal
/// when the *thread* ends that started the child, and a test may start its servers on a thread that ends
/// early.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (starter, orders) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                // Never fails: the caller waits for the answer.
                let _ = answer.send(command.spawn());
            }
        });
        starter
    });
    let (answer, started) = sync_channel(1);
    starter.send((command, answer)).expect("the starter never ends");
    started.recv().expect("the starter answers")
}

/// Waits until all of `pids` are dead.
fn gone(pids: &[Pid]) -> Result<(), String> {
    wait(|| match pids.iter().find(|pid| stat(pid.as_raw()).is_some_and(|(state, _)| !is_dead(state))) {
        None => Ok(()),
        Some(pid) => Err(format!("process {pid} does not end")),
    })
}

/// Whether each thread of process `pid` is stopped or dead.
fn stands_still(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let mut states = threads.filter_map(|thread| {
        let file = thread.ok()?.path().join("stat");
        Some(parse_stat(&fs::read_to_string(file).ok()?)?.0)
    });
    states.all(|state| state == 'T' || is_dead(state))
}

/// Dead, and possibly not reaped yet.
fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

/// The state and the parent of process `pid`; `None` if it does not exist.
fn stat(pid: i32) -> Option<(char, i32)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line of `/proc/PID/stat`: the state follows the program's name, which may contain any character;
/// then comes the parent.
fn parse_stat(text: &str) -> Option<(char, i32)> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// The last lines of a log, for a panic's text.
fn end_of(log: &Path) -> String {
    const LINES: usize = 20;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return format!("its log {} is empty", log.display());
    }
    format!("the end of {}:\n{}", log.display(), lines[lines.len().saturating_sub(LINES)..].join("\n"))
}
