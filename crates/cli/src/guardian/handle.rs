//! The wrapper's side: starts a guarded command, sends it orders, and receives its events.
//!
//! The caller decides what a loss or an exit means for `lockkeeper run`. This module guarantees that the
//! command and all its descendants are gone when it returns [`GuardianEvent::Gone`] or
//! [`GuardianEvent::GuardianDied`]: only then may the caller release the lock.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Child;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid, getpgrp, getppid};
use tokio::io::unix::AsyncFd;

use super::channel::{Channel, next_message};
use super::deadline::margin;
use super::inherited::inherited;
use super::left::Left;
use super::own::own_program;
use super::process::{SCAN_FILES, Startup, spare_files};
use super::protocol::{CommandEnd, GuardianOrder, GuardianReport, Reason};
use super::relay::{CommandGroup, Relay, RelayStep};
use super::signals::{ends, hand_terminal_to, stop_self};
use super::witness::Witness;
use super::{EPILOGUE_URL, GUARDIAN_ARGUMENT, boot_now, tree};

/// The command, and the lock under which it runs.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The command and its arguments, looked up in `PATH` as `execvp` does. Must not be empty.
    pub argv: Vec<OsString>,
    /// Changes to the environment: `Some` sets a variable, `None` removes it.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// File descriptors that constitute the lock, for backends where the lock is a descriptor (`file:`). The
    /// guardian keeps them open until the last descendant is gone; the command does not inherit them. The
    /// caller keeps its own copies; they must be above 2 and close-on-exec.
    pub lock_fds: Vec<RawFd>,
    /// The lock's deadline (`CLOCK_BOOTTIME`, ns); `None` if the lock has none.
    pub valid_until: Option<u64>,
    /// The longest time from SIGTERM to SIGKILL. SIGTERM is sent this long before the deadline; SIGKILL is
    /// sent a quarter of this (50 ms to 1 s) before the deadline.
    pub grace: Duration,
    /// The treatment of descendants that outlive the command.
    pub left: Left,
    /// The program that replaces the guardian once no descendant is left, if this process was killed.
    pub epilogue: Option<Epilogue>,
}

/// A call of this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its `LOCKKEEPER_URL`. It may contain a password, so the command does not get it.
    pub url: OsString,
}

/// Why the command was not started. The guardian has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The program, or the interpreter of a script, does not exist. Shells exit with 127 for this.
    #[error("cannot run `{program}`: not found; check its name, its `#!` line and PATH")]
    NotFound {
        /// The program as given.
        program: String,
    },
    /// The file may not be executed, or is not a program. Shells exit with 126 for this.
    #[error(
        "cannot run `{program}`: not executable; check its permissions and that it is a program or a script"
    )]
    NotExecutable {
        /// The program as given.
        program: String,
    },
    /// Another OS error, for example arguments too long or too many processes.
    #[error("cannot run `{program}`: error {errno} from the system", errno = .source.raw_os_error().unwrap_or(0))]
    Other {
        /// The program as given.
        program: String,
        /// The OS error.
        source: io::Error,
    },
    /// Less than one grace is left until the lock's deadline, so the command would be ended at once.
    #[error(
        "`{program}` was not started: less than the grace is left until the lock's deadline; use a longer ttl"
    )]
    TooLate {
        /// The program as given.
        program: String,
    },
    /// The guardian itself did not start.
    #[error(
        "cannot start the guardian of `{program}` from /proc/self/exe; check that /proc is mounted, and the limits of processes and open files"
    )]
    Guardian {
        /// The program as given.
        program: String,
        /// The OS error.
        source: io::Error,
    },
}

/// An event reported by the guardian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardianEvent {
    /// The command stopped: by Ctrl-Z, or in a process group of its own (for example, an interactive shell
    /// that suspends itself). The caller must call [`Guarded::stop_too`].
    Stopped,
    /// The command ended. Its descendants may still run.
    Exited(CommandEnd),
    /// The command has ended, but these descendants still run. [`Spec::left`] determines their treatment.
    LeftBehind {
        /// The number of remaining descendants.
        total: u32,
        /// The process ids of the first 32 of them.
        pids: Vec<i32>,
    },
    /// SIGTERM was sent to all descendants; SIGKILL follows.
    Terminating(Reason),
    /// No descendant is left, or those that are left may run on ([`Left::Release`]), and the guardian has
    /// exited: the lock may be released.
    Gone {
        /// When the guardian observed that no descendant was left (`CLOCK_BOOTTIME`, ns).
        at: u64,
    },
    /// The guardian was killed. Its descendants were reparented to this process, which ended them: SIGTERM,
    /// then SIGKILL after the grace, or before the lock's deadline if that is earlier. None is left: the lock
    /// may be released.
    GuardianDied,
}

/// A command under a guardian. Dropping it ends the command and all its descendants, without waiting for
/// them.
#[derive(Debug)]
pub struct Guarded {
    channel: AsyncFd<Channel>,
    guardian: Child,
    /// Set until the command has ended. `None` also if the witness was killed: signals are then relayed
    /// without evidence.
    witness: Option<Witness>,
    relay: Relay,
    pid: i32,
    command_ended: bool,
    /// Whether the witness was asked after the end of the command.
    asked_at_end: bool,
    /// Whether this process has stopped itself together with the command and was not continued since.
    has_stopped_too: bool,
    valid_until: Option<u64>,
    grace: u64,
    /// Kept for the scans of `/proc` if the guardian is killed: the process may have no other descriptors
    /// left then.
    spare: Option<[File; SCAN_FILES]>,
    /// The last event, once it was returned; every later call returns it again.
    finished: Option<GuardianEvent>,
    gone_at: Option<u64>,
}

impl Guarded {
    /// Starts the guardian, which starts the command; returns once the command's program has been executed.
    /// Must be called inside a tokio runtime. Cancelling the future ends the processes that were started.
    ///
    /// The command inherits the standard input, output and error, process group, session, terminal and signal
    /// state that this process inherited from its own parent. This process becomes a child subreaper.
    ///
    /// # Errors
    /// See [`SpawnError`].
    pub async fn spawn(spec: Spec) -> Result<Self, SpawnError> {
        let program = spec.argv.first().map_or(OsStr::new(""), OsString::as_os_str);
        let program = program.to_string_lossy().into_owned();
        let mut guarded = match Self::start(spec) {
            Ok(guarded) => guarded,
            Err(source) => return Err(SpawnError::Guardian { program, source }),
        };
        let errno = match guarded.report().await {
            Some(GuardianReport::Started { pid }) => {
                guarded.pid = pid;
                return Ok(guarded);
            }
            Some(GuardianReport::SpawnFailed { errno }) => errno,
            Some(_) | None => {
                guarded.end_orphans().await;
                let source = io::Error::other("the guardian ended before it had started the command");
                return Err(SpawnError::Guardian { program, source });
            }
        };
        let _ = guarded.guardian.wait();
        Err(match Errno::from_raw(errno) {
            Errno::ENOENT | Errno::ENOTDIR => SpawnError::NotFound { program },
            Errno::EACCES | Errno::ENOEXEC => SpawnError::NotExecutable { program },
            Errno::ETIME => SpawnError::TooLate { program },
            _ => SpawnError::Other { program, source: io::Error::from_raw_os_error(errno) },
        })
    }

    fn start(spec: Spec) -> io::Result<Self> {
        if spec.argv.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
        }
        // If the guardian is killed, its descendants are reparented to this process, which can end them.
        nix::sys::prctl::set_child_subreaper(true)?;
        let grace = u64::try_from(spec.grace.as_nanos()).unwrap_or(u64::MAX);
        let spare = spare_files()?;
        // Started before the command, so that the witness receives every signal to the group that the command
        // receives.
        let witness = Witness::start()?;
        let (channel, theirs) = Channel::pair()?;
        // SAFETY: a channel owns one open socket for all its life.
        let channel = unsafe { AsyncFd::register(channel) }?;
        let startup = Startup {
            socket: theirs.as_raw_fd(),
            lock_fds: spec.lock_fds,
            inherited: inherited(),
            valid_until: spec.valid_until,
            grace,
            left: spec.left,
            epilogue: spec.epilogue.as_ref().map(|epilogue| epilogue.arguments.clone()).unwrap_or_default(),
            argv: spec.argv,
        };
        let passed = startup.lock_fds.iter().copied().chain([startup.socket]).collect();
        let mut command = own_program("lk-guardian", GUARDIAN_ARGUMENT, passed);
        command.args(startup.to_arguments());
        for (name, value) in spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(epilogue) = spec.epilogue {
            command.env(EPILOGUE_URL, epilogue.url);
        }
        let guardian = command.spawn()?;
        Ok(Self {
            channel,
            guardian,
            witness: Some(witness),
            relay: Relay::default(),
            pid: 0,
            command_ended: false,
            asked_at_end: false,
            has_stopped_too: false,
            valid_until: spec.valid_until,
            grace,
            spare: Some(spare),
            finished: None,
            gone_at: None,
        })
    }

    /// The command's process id. The kernel may reuse the id once the command has ended.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends the guardian a renewal of the lock: the new deadline (`CLOCK_BOOTTIME`, ns). Once termination
    /// has begun, a later deadline has no effect. Never blocks: an order that does not fit into the socket is
    /// sent later by [`Guarded::next`].
    pub fn set_valid_until(&mut self, at: u64) {
        self.valid_until = Some(at);
        self.channel.get_mut().send(GuardianOrder::ValidUntil(at).encode(), true);
    }

    /// Ends all descendants: SIGTERM now, SIGKILL at `by` (`CLOCK_BOOTTIME`, ns), or before the lock's
    /// deadline if that is earlier.
    pub fn end(&mut self, by: u64) {
        self.order(GuardianOrder::End { by });
    }

    /// To be called when this process was continued (SIGCONT): continues the command if it is stopped. If the
    /// command stopped in its own process group, and this process's group is the terminal's foreground group,
    /// the command's group becomes the foreground group.
    pub fn resume(&mut self) {
        if std::mem::take(&mut self.has_stopped_too) && !self.command_ended {
            hand_terminal_to(self.pid);
        }
        self.order(GuardianOrder::Continue);
    }

    /// To be called after [`GuardianEvent::Stopped`]: stops this process, so that the parent shell takes
    /// over. Once that shell continues this process, [`Signals`](super::Signals) returns SIGCONT, which must
    /// be passed to [`Guarded::relay`].
    pub fn stop_too(&mut self) {
        // The command may have been continued meanwhile, together with this process.
        if tree::read_process(self.pid).is_some_and(|command| command.is_stopped()) {
            self.has_stopped_too = true;
            stop_self();
        }
    }

    /// Relays a signal that this process received to the command, unless the command has received it too
    /// (`relay.rs`). Once the command has ended and only other descendants remain, SIGTERM, SIGINT, SIGHUP
    /// and SIGQUIT end them: SIGTERM now, SIGKILL after the grace. [`Guarded::next`] does so a moment later.
    pub fn relay(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCONT => return self.resume(),
            Signal::SIGTSTP if self.command_ended => return stop_self(),
            Signal::SIGTSTP => self.order(GuardianOrder::ReportStop),
            _ => {}
        }
        self.relay.received(signal, boot_now());
    }

    /// Returns the next event. Cancel-safe. Every call after the last event, [`GuardianEvent::Gone`] or
    /// [`GuardianEvent::GuardianDied`], returns that event again.
    pub async fn next(&mut self) -> GuardianEvent {
        if let Some(last) = &self.finished {
            return last.clone();
        }
        loop {
            let until = match self.relay.poll(boot_now()) {
                RelayStep::Wait(until) => until.unwrap_or(u64::MAX),
                RelayStep::Ask => {
                    self.asked_at_end = self.command_ended;
                    match &mut self.witness {
                        Some(witness) => witness.ask(),
                        None => self.answered(0),
                    }
                    continue;
                }
                RelayStep::GiveUp => {
                    self.witness = None;
                    self.answered(0);
                    continue;
                }
            };
            // Signals that arrived before the command ended are decided before the remaining descendants are
            // reported: a Ctrl-C in answer to that report is a new signal.
            let is_settled = !self.command_ended || self.witness.is_none();
            let answer = async {
                match &mut self.witness {
                    Some(witness) if self.relay.is_asked() => witness.answer().await,
                    _ => std::future::pending().await,
                }
            };
            let report = tokio::select! {
                message = next_message(&mut self.channel), if is_settled => match message {
                    Some(message) => GuardianReport::decode(&message),
                    None => break,
                },
                answer = answer => {
                    if answer.is_none() || self.asked_at_end {
                        self.witness = None;
                    }
                    self.answered(answer.unwrap_or(0));
                    continue;
                }
                () = tokio::time::sleep(Duration::from_nanos(until.saturating_sub(boot_now()))) => continue,
            };
            match report {
                Some(GuardianReport::Stopped) => return GuardianEvent::Stopped,
                Some(GuardianReport::LeftBehind { total, pids }) => {
                    return GuardianEvent::LeftBehind { total, pids };
                }
                Some(GuardianReport::Exited(outcome)) => {
                    self.command_ended = true;
                    self.relay.command_ended(boot_now());
                    return GuardianEvent::Exited(outcome);
                }
                Some(GuardianReport::Terminating(reason)) => return GuardianEvent::Terminating(reason),
                Some(GuardianReport::Received { signal, sender }) => self.guardian_got(signal, sender),
                // Returned to the caller only once the guardian has exited: until then the guardian holds the
                // lock's descriptors open.
                Some(GuardianReport::Gone { at }) => self.gone_at = Some(at),
                Some(GuardianReport::Started { .. } | GuardianReport::SpawnFailed { .. }) | None => {}
            }
        }
        let last = match self.gone_at {
            Some(at) => {
                // The guardian has closed the socket, so it is about to exit and this wait is short.
                let _ = self.guardian.wait();
                GuardianEvent::Gone { at }
            }
            None => {
                self.end_orphans().await;
                GuardianEvent::GuardianDied
            }
        };
        self.finished = Some(last.clone());
        last
    }

    fn order(&mut self, order: GuardianOrder) {
        self.channel.get_mut().send(order.encode(), false);
    }

    /// Receives the next message of the guardian; `None` once the guardian has closed its end. Cancel-safe.
    async fn report(&mut self) -> Option<GuardianReport> {
        loop {
            if let Some(report) = GuardianReport::decode(&next_message(&mut self.channel).await?) {
                return Some(report);
            }
        }
    }

    /// The guardian has received a signal that ends programs.
    fn guardian_got(&mut self, signal: i32, sender: i32) {
        let from_manager = [0, 1, getppid().as_raw()].contains(&sender);
        if let Ok(signal) = Signal::try_from(signal) {
            self.relay.guardian_got(signal, from_manager, boot_now());
        }
    }

    /// Relays the signals that the command has not received. `got` is the witness's answer.
    fn answered(&mut self, got: u64) {
        let now = boot_now();
        let command = match getpgid(Some(Pid::from_raw(self.pid))) {
            _ if self.command_ended => CommandGroup::Ended,
            Ok(group) if group != getpgrp() => CommandGroup::Elsewhere,
            _ => CommandGroup::WithWrapper,
        };
        for signal in self.relay.answered(got, command, now) {
            if !self.command_ended {
                self.order(GuardianOrder::Forward(signal as i32));
            } else if ends(signal) {
                self.end(now.saturating_add(self.grace));
            }
        }
    }

    /// The guardian is dead, and its descendants are children of this process now: ends them, and returns
    /// when none is left.
    async fn end_orphans(&mut self) {
        let after_grace = boot_now().saturating_add(self.grace);
        let last = self.valid_until.map_or(u64::MAX, |at| at.saturating_sub(margin(self.grace)));
        // `end_all` also reaps the guardian, which is a child of this process.
        self.spare = None;
        tree::end_all(after_grace.min(last)).await;
    }
}
