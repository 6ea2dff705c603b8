//! The guardian process: starts the command, then runs an event loop until no descendant is left.
//!
//! One thread, one loop, no runtime. Only SIGKILL ends it early: all signals are blocked (SIGCHLD, and those
//! that end programs, are read from a signalfd), its session has no terminal, and it never waits for the
//! wrapper.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::ValueEnum;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, killpg, sigaction};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getpgid, getpgrp, getppid, setsid};

use super::addressed::Addressed;
use super::channel::{Channel, Incoming};
use super::deadline::{DeadlineStep, Schedule};
use super::inherited::Inherited;
use super::left::Left;
use super::own::close_on_exec;
use super::protocol::{CommandEnd, GuardianOrder, GuardianReport, PIDS_MAX, Reason};
use super::signals::ENDS;
use super::{EPILOGUE_URL, boot_now, tree};

/// The longest interval that the timer is set to, in ns. The clock is read at each wake-up, so a timer that
/// misbehaves during suspend or migration is late by at most this interval.
const WAKE_NS_MAX: u64 = 1_000_000_000;

/// First and longest pause between two SIGKILL scans, in ns; the pause doubles.
const KILL_PAUSE_NS_MIN: u64 = 1_000_000;
const KILL_PAUSE_NS_MAX: u64 = 50_000_000;

/// How many files a scan of `/proc` has open at once, at most.
pub(crate) const SCAN_FILES: usize = 3;

pub(crate) fn spare_files() -> io::Result<[File; SCAN_FILES]> {
    let open = || File::open("/dev/null");
    Ok([open()?, open()?, open()?])
}

/// The guardian's command line, after `GUARDIAN_ARGUMENT`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Startup {
    pub(crate) socket: RawFd,
    pub(crate) lock_fds: Vec<RawFd>,
    pub(crate) inherited: Inherited,
    pub(crate) valid_until: Option<u64>,
    /// The grace in ns.
    pub(crate) grace: u64,
    pub(crate) left: Left,
    /// The arguments of the epilogue; empty if there is none.
    pub(crate) epilogue: Vec<OsString>,
    pub(crate) argv: Vec<OsString>,
}

impl Startup {
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let lock_fds: Vec<_> = self.lock_fds.iter().map(RawFd::to_string).collect();
        let words = [
            format!("socket={}", self.socket),
            format!("locks={}", lock_fds.join(",")),
            format!("ignored={}", self.inherited.ignored),
            format!("blocked={}", self.inherited.blocked),
            format!("until={}", self.valid_until.map_or_else(String::new, |at| at.to_string())),
            format!("grace={}", self.grace),
            format!("left={}", self.left.name()),
            format!("epilogue={}", self.epilogue.len()),
        ];
        let words = words.into_iter().map(OsString::from).chain(self.epilogue.iter().cloned());
        words.chain(["--".into()]).chain(self.argv.iter().cloned()).collect()
    }

    fn from_arguments(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut word = |name: &str| {
            let word = arguments.next()?.into_string().ok()?;
            word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
        };
        let socket = word("socket")?.parse().ok()?;
        let lock_fds = word("locks")?;
        let lock_fds = lock_fds.split_terminator(',').map(|fd| fd.parse().ok()).collect::<Option<_>>()?;
        let inherited =
            Inherited { ignored: word("ignored")?.parse().ok()?, blocked: word("blocked")?.parse().ok()? };
        let valid_until = match word("until")?.as_str() {
            "" => None,
            at => Some(at.parse().ok()?),
        };
        let grace = word("grace")?.parse().ok()?;
        let left = Left::from_str(&word("left")?, false).ok()?;
        let epilogue_count: usize = word("epilogue")?.parse().ok()?;
        let epilogue: Vec<_> = arguments.by_ref().take(epilogue_count).collect();
        let is_separated = arguments.next()? == "--";
        let argv: Vec<_> = arguments.collect();
        (is_separated && !argv.is_empty()).then_some(Self {
            socket,
            lock_fds,
            inherited,
            valid_until,
            grace,
            left,
            epilogue,
            argv,
        })
    }
}

/// The guardian's `main`; `arguments` are those after `GUARDIAN_ARGUMENT`.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let startup = Startup::from_arguments(arguments).filter(|startup| {
        [startup.socket].iter().chain(&startup.lock_fds).all(|fd| *fd > 2 && close_on_exec(*fd).is_ok())
    });
    let Some(startup) = startup else {
        eprintln!(
            "this is an inner command of `lockkeeper run`, which starts it with a socket; use `lockkeeper run`"
        );
        return ExitCode::from(64);
    };
    // SAFETY: the wrapper passed this descriptor to be owned here, and it was just checked to be open.
    let mut channel = Channel::new(unsafe { OwnedFd::from_raw_fd(startup.socket) });
    let errno = match Guardian::start(startup, &mut channel) {
        Ok(Some(guardian)) => return guardian.watch(channel),
        Ok(None) => return ExitCode::SUCCESS,
        Err(errno) => errno,
    };
    channel.send(GuardianReport::SpawnFailed { errno: errno as i32 }.encode(), false);
    ExitCode::SUCCESS
}

struct Guardian {
    signals: SignalFd,
    timer: TimerFd,
    schedule: Schedule,
    wrapper: Pid,
    wrapper_group: Pid,
    /// The command's process id; `None` once reaped, as the kernel may reuse the id from then on.
    command: Option<Pid>,
    /// Whether the wrapper has received SIGTSTP, and the command was not continued since.
    reports_stop: bool,
    /// Whether `Stopped` was reported to the wrapper, which then stops itself, and the wrapper was not
    /// continued since.
    wrapper_paused: bool,
    left: Left,
    left_behind_reported: bool,
    kill_pause: u64,
    epilogue: Vec<OsString>,
    epilogue_url: Option<OsString>,
}

impl Guardian {
    /// Starts the command, and then leaves the wrapper's session. `None` if the wrapper died before the
    /// command was started.
    fn start(startup: Startup, channel: &mut Channel) -> Result<Option<Self>, Errno> {
        // A signal from the terminal must not end the guardian while it is still in the foreground group.
        SigSet::all().thread_set_mask()?;
        // An ignored SIGCHLD is inherited, and children would leave no wait status: resets it to the default.
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action installs no code.
        unsafe { sigaction(Signal::SIGCHLD, &default)? };
        nix::sys::prctl::set_child_subreaper(true)?;
        // The name in `ps`; by default "exe", the last component of `/proc/self/exe`.
        let _ = nix::sys::prctl::set_name(c"lk-guardian");

        // Everything that can fail is done before the command starts.
        let mut listened = SigSet::empty();
        listened.extend([Signal::SIGCHLD].into_iter().chain(ENDS));
        let signals = SignalFd::with_flags(&listened, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let timer =
            TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let null =
            OpenOptions::new().read(true).write(true).open("/dev/null").map_err(|error| errno_of(&error))?;
        // Nothing else in this process takes descriptors, so those of a scan remain free.
        drop(spare_files().map_err(|error| errno_of(&error))?);

        let mut guardian = Self {
            signals,
            timer,
            schedule: Schedule::new(startup.valid_until, startup.grace),
            wrapper: getppid(),
            wrapper_group: getpgrp(),
            command: None,
            reports_stop: false,
            wrapper_paused: false,
            left: startup.left,
            left_behind_reported: false,
            kill_pause: KILL_PAUSE_NS_MIN,
            epilogue: startup.epilogue.clone(),
            // SAFETY: this process has one thread, and reads this variable here only.
            epilogue_url: unsafe { taken_variable(EPILOGUE_URL) },
        };
        if !guardian.take_orders(channel) {
            return Ok(None);
        }
        if guardian.schedule.is_due(boot_now()) {
            return Err(Errno::ETIME);
        }
        let pid = spawn(&startup)?;
        guardian.command = Some(pid);
        channel.send(GuardianReport::Started { pid: pid.as_raw() }.encode(), false);
        leave(&null);
        Ok(Some(guardian))
    }

    /// Runs until no descendant is left, or those that are left may run on.
    fn watch(mut self, channel: Channel) -> ExitCode {
        let mut channel = Some(channel);
        loop {
            if self.reap_all(&mut channel) || self.is_released(&mut channel) {
                let is_alone = channel.as_mut().is_none_or(|open| !self.take_orders(open));
                send(&mut channel, &GuardianReport::Gone { at: boot_now() });
                if is_alone && !self.epilogue.is_empty() {
                    become_epilogue(&self.epilogue, self.epilogue_url);
                }
                return ExitCode::SUCCESS;
            }
            let now = boot_now();
            let wake = match self.schedule.poll(now) {
                DeadlineStep::Wait(until) => until.map(|at| at.saturating_sub(now)),
                DeadlineStep::Terminate(reason) => {
                    tree::terminate_all();
                    send(&mut channel, &GuardianReport::Terminating(reason));
                    continue;
                }
                DeadlineStep::Kill => {
                    // First the command itself, by its id: a scan of `/proc` needs descriptors, which the
                    // system may refuse.
                    if let Some(command) = self.command {
                        let _ = kill(command, Signal::SIGKILL);
                    }
                    tree::kill_all();
                    let pause = self.kill_pause;
                    self.kill_pause = (pause * 2).min(KILL_PAUSE_NS_MAX);
                    Some(pause)
                }
            };
            self.wait(channel.as_ref(), wake);
            self.take_signals(&mut channel);
            if let Some(open) = &mut channel {
                open.flush();
                if !self.take_orders(open) {
                    channel = None;
                    self.schedule.end_after_grace(Reason::WrapperGone, boot_now());
                }
            }
        }
    }

    /// Sleeps until a message or a signal arrives, queued messages can be sent, or `wake` ns (at most
    /// `WAKE_NS_MAX`) have passed.
    fn wait(&self, channel: Option<&Channel>, wake: Option<u64>) {
        let armed = match wake {
            // At least 1, since a value of 0 would disarm the timer.
            Some(ns) => {
                let ns = ns.clamp(1, WAKE_NS_MAX);
                let spec = TimeSpec::new((ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64);
                self.timer.set(Expiration::OneShot(spec), TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
        let mut sources = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(channel) = channel {
            let mut events = PollFlags::POLLIN;
            events.set(PollFlags::POLLOUT, channel.has_waiting());
            sources.push(PollFd::new(channel.as_fd(), events));
        }
        // An error here (no memory for the poll, a timer that can't be set) must neither end nor block the
        // guardian: the loop checks all sources again after at most 10 ms.
        let timeout = if armed.is_ok() { PollTimeout::NONE } else { PollTimeout::from(10u8) };
        if poll(&mut sources, timeout).is_err() {
            std::thread::yield_now();
        }
    }

    /// Reports signals to the wrapper, which decides about them. Without a wrapper the job is being ended
    /// already.
    fn take_signals(&mut self, channel: &mut Option<Channel>) {
        while let Ok(Some(got)) = self.signals.read_signal() {
            let signal = got.ssi_signo.cast_signed();
            if signal != libc::SIGCHLD {
                send(channel, &GuardianReport::Received { signal, sender: got.ssi_pid.cast_signed() });
            }
        }
    }

    /// Executes the wrapper's orders. Returns false if the wrapper is dead.
    fn take_orders(&mut self, channel: &mut Channel) -> bool {
        loop {
            let message = match channel.receive() {
                Incoming::Message(message) => message,
                Incoming::Empty => return true,
                Incoming::Closed => return false,
            };
            match GuardianOrder::decode(&message) {
                Some(GuardianOrder::ValidUntil(at)) => self.schedule.set_valid_until(at),
                Some(GuardianOrder::End { by }) => self.schedule.end(Reason::Asked, by),
                Some(GuardianOrder::Forward(signal)) => {
                    if let (Some(command), Ok(signal)) = (self.command, Signal::try_from(signal)) {
                        self.forward(command, signal);
                    }
                }
                Some(GuardianOrder::ReportStop) => {
                    self.reports_stop = true;
                    if self.command.is_some_and(is_stopped) {
                        self.report_stop(channel);
                    }
                }
                Some(GuardianOrder::Continue) => self.continue_command(),
                // Can't happen, since both sides are the same binary; it is safe to ignore the message.
                None => {}
            }
        }
    }

    /// Reaps all children that changed state. Returns true if no child is left.
    fn reap_all(&mut self, channel: &mut Option<Channel>) -> bool {
        loop {
            let (pid, status) = match tree::reap() {
                tree::Reaped::Changed { pid, status } => (Pid::from_raw(pid), status),
                tree::Reaped::Nothing => return false,
                tree::Reaped::NobodyLeft => return true,
            };
            // An orphaned descendant needs nothing more than to be reaped.
            if Some(pid) != self.command {
                continue;
            }
            if libc::WIFSTOPPED(status) {
                // A command in the wrapper's group that was stopped by a SIGSTOP to the command alone must
                // not stop the renewals.
                if (self.reports_stop || self.own_group(pid).is_some())
                    && let Some(open) = channel
                {
                    self.report_stop(open);
                }
            } else if libc::WIFCONTINUED(status) {
                self.reports_stop = false;
                self.wake_wrapper();
            } else {
                self.command = None;
                send(channel, &GuardianReport::Exited(outcome(status)));
                self.wake_wrapper();
            }
        }
    }

    /// The command's process group, if that isn't the wrapper's.
    fn own_group(&self, command: Pid) -> Option<Pid> {
        getpgid(Some(command)).ok().filter(|group| *group != self.wrapper_group)
    }

    fn report_stop(&mut self, channel: &mut Channel) {
        if !self.schedule.is_ending() {
            self.wrapper_paused = true;
            channel.send(GuardianReport::Stopped.encode(), false);
        }
    }

    fn forward(&self, command: Pid, signal: Signal) {
        let _ = match self.own_group(command) {
            // Ctrl-Z stops a whole group. SIGSTOP, because the kernel ignores SIGTSTP in this orphaned
            // process group.
            Some(group) if signal == Signal::SIGTSTP => killpg(group, Signal::SIGSTOP),
            _ => kill(command, signal),
        };
    }

    /// Continues a wrapper that stopped itself because the command was stopped.
    fn wake_wrapper(&mut self) {
        // The wrapper is still the parent of this process, so its id was not reused.
        if std::mem::take(&mut self.wrapper_paused) && getppid() == self.wrapper {
            let _ = kill(self.wrapper, Signal::SIGCONT);
        }
    }

    fn continue_command(&mut self) {
        self.wrapper_paused = false;
        let Some(command) = self.command else { return };
        // A shell continues the whole process group, so a command in the wrapper's group usually runs
        // already.
        if !is_stopped(command) {
            return;
        }
        let _ = match self.own_group(command) {
            Some(group) => killpg(group, Signal::SIGCONT),
            None => kill(command, Signal::SIGCONT),
        };
    }

    /// Handles descendants that outlive the command. Returns whether they may continue without the lock.
    fn is_released(&mut self, channel: &mut Option<Channel>) -> bool {
        if self.command.is_some() || self.left_behind_reported || !self.report_left_behind(channel) {
            return false;
        }
        match self.left {
            Left::Wait => false,
            Left::End => {
                self.schedule.end_after_grace(Reason::Asked, boot_now());
                false
            }
            // Not if the lock is being lost, or the wrapper is gone: the next holder may not expect them.
            Left::Release => {
                channel.as_mut().is_some_and(|open| self.take_orders(open)) && !self.schedule.is_ending()
            }
        }
    }

    /// Reports descendants that outlive the command. Returns false if there are none.
    fn report_left_behind(&mut self, channel: &mut Option<Channel>) -> bool {
        let alive: Vec<_> = tree::descendants()
            .iter()
            .filter(|process| !process.is_zombie())
            .map(|process| process.pid)
            .collect();
        if alive.is_empty() {
            return false;
        }
        self.left_behind_reported = true;
        let total = u32::try_from(alive.len()).unwrap_or(u32::MAX);
        let pids = alive.into_iter().take(PIDS_MAX).collect();
        send(channel, &GuardianReport::LeftBehind { total, pids });
        true
    }
}

fn is_stopped(process: Pid) -> bool {
    tree::read_process(process.as_raw()).is_some_and(|process| process.is_stopped())
}

/// Replaces this process by the epilogue. Returns only if that fails: the lock is then free when its lease
/// ends.
fn become_epilogue(arguments: &[OsString], url: Option<OsString>) {
    let _ = SigSet::all().thread_unblock();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("lockkeeper").args(arguments);
    if let Some(url) = url {
        command.env("LOCKKEEPER_URL", url);
    }
    let _ = command.exec();
}

fn send(channel: &mut Option<Channel>, report: &GuardianReport) {
    if let Some(channel) = channel {
        channel.send(report.encode(), false);
    }
}

fn outcome(status: i32) -> CommandEnd {
    if libc::WIFSIGNALED(status) {
        CommandEnd::Signal(libc::WTERMSIG(status))
    } else {
        // The kernel keeps 8 bits of an exit code.
        CommandEnd::Code((libc::WEXITSTATUS(status) & 0xff) as u8)
    }
}

/// Starts the command as a child in the wrapper's session and process group, with the descriptors and the
/// signal state that the wrapper inherited from its own parent.
fn spawn(startup: &Startup) -> Result<Pid, Errno> {
    let (program, arguments) = startup.argv.split_first().ok_or(Errno::EINVAL)?;
    let inherited = startup.inherited;
    // The command must inherit the environment in place: `Command` would copy a changed one before the
    // command's id is known.
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: this process has one thread, and does not change its environment.
    let addressed = unsafe { Addressed::of(getppid()) };
    let prepare = move || {
        addressed.name_this_process();
        inherited.restore()
    };
    // SAFETY: `prepare` makes system calls only and allocates nothing, as code between fork and exec must.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn().map_err(|error| errno_of(&error))?;
    Ok(Pid::from_raw(child.id().cast_signed()))
}

/// Takes a variable out of this process's environment.
///
/// # Safety
/// The process must have one thread.
unsafe fn taken_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name);
    // SAFETY: there is one thread.
    unsafe { std::env::remove_var(name) };
    value
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}

/// Leaves the wrapper's session, terminal, standard descriptors and directory, so that the guardian keeps no
/// pipe open and no filesystem busy. None of these calls can fail in a forked child; if one did, the guardian
/// would still work.
fn leave(null: &File) {
    let _ = setsid();
    let _ = dup2_stdin(null);
    let _ = dup2_stdout(null);
    let _ = dup2_stderr(null);
    let _ = nix::unistd::chdir("/");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[OsString]) -> Option<Startup> {
        Startup::from_arguments(words.iter().cloned())
    }

    #[test]
    fn startup_arguments_round_trip() {
        let breaks = vec!["break".into(), "--".into(), "a b".into()];
        for (lock_fds, valid_until, epilogue) in
            [(vec![], None, vec![]), (vec![7, 9], Some(u64::MAX), breaks)]
        {
            let startup = Startup {
                socket: 5,
                lock_fds,
                inherited: Inherited { ignored: 1, blocked: u64::MAX },
                valid_until,
                grace: 3,
                left: Left::Release,
                epilogue,
                argv: vec!["--".into(), "a b".into(), "".into()],
            };
            assert_eq!(parsed(&startup.to_arguments()), Some(startup));
        }
    }

    #[test]
    fn incomplete_startup_arguments_are_refused() {
        for words in [&[][..], &["true"], &["socket=1"], &["socket=x", "locks="]] {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            assert_eq!(parsed(&words), None, "{words:?}");
        }
    }
}
