//! The wrapper's signals, and its stop by Ctrl-Z. `relay` decides which signals the command receives.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::unistd::{Pid, getpgid, getpgrp, tcgetpgrp, tcsetpgrp};
use signal_hook_registry::{SigId, register_sigaction, unregister};
use tokio::net::UnixDatagram;

use super::inherited::inherited;
use super::protocol::FORWARDED;

/// Receives SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH and SIGTSTP; SIGTTIN and
/// SIGTTOU, which stop a job as well, as SIGTSTP. The other signals that would end this process, and with it
/// the command, have no effect: timers, SIGPWR, SIGIO, and real-time signals.
///
/// A signal that was ignored at process start (by `nohup`, or by a shell that started the process in the
/// background) stays ignored and gets no handler.
///
/// After a drop these signals have no effect: the default actions are not restored.
#[derive(Debug)]
pub struct Signals {
    incoming: UnixDatagram,
    // The handlers write to this socket, so it must outlive them.
    _outgoing: StdDatagram,
    handlers: Vec<SigId>,
    ended_by: Option<Signal>,
    /// The number of the last signal that asks a program to end; 0 if none came.
    asked: Arc<AtomicI32>,
}

impl Signals {
    /// Installs the handlers. Must be called once, before waiting for the lock, inside a tokio runtime.
    ///
    /// # Errors
    /// The OS refused a socket or a handler.
    pub fn install() -> io::Result<Self> {
        // The command's inherited signal state must be recorded before the handlers change it.
        let inherited = inherited();
        let (incoming, outgoing) = StdDatagram::pair()?;
        incoming.set_nonblocking(true)?;
        let socket = outgoing.as_raw_fd();
        let mut signals = Self {
            incoming: UnixDatagram::from_std(incoming)?,
            _outgoing: outgoing,
            handlers: Vec::new(),
            ended_by: None,
            asked: Arc::default(),
        };
        let stops = [Signal::SIGTTIN, Signal::SIGTTOU].map(|stop| (stop, Signal::SIGTSTP));
        let received = FORWARDED.map(|signal| (signal, signal)).into_iter().chain(stops);
        for (signal, taken_as) in received.filter(|(signal, _)| !inherited.ignores(*signal)) {
            let asked = ends(signal).then(|| signals.asked.clone());
            let handler = move |info: &libc::siginfo_t| {
                if let Some(asked) = &asked {
                    asked.store(signal as i32, Ordering::Relaxed);
                }
                let bytes = [taken_as as i32 as u8, u8::from(info.si_code == libc::SI_KERNEL)];
                // A full socket holds hundreds of unread signals, so it does no harm to drop one more.
                // SAFETY: a system call that signal handlers may make, on a descriptor that outlives the
                // handler.
                unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
            };
            // SAFETY: the handler makes one system call and stores one atomic. `send` may change errno, which
            // the registry's own handler saves and restores.
            signals.handlers.push(unsafe { register_sigaction(signal as i32, handler)? });
        }
        // Handlers instead of SIG_IGN, which the command would inherit.
        for number in
            WITHOUT_EFFECT.into_iter().map(|signal| signal as i32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
        {
            // SAFETY: the handler does nothing.
            signals.handlers.push(unsafe { register_sigaction(number, |_| {})? });
        }
        Ok(signals)
    }

    /// Returns the first signal that ends a program. Ctrl-Z stops this process meanwhile, like any program.
    pub async fn until_end(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGTSTP => stop_self(),
                signal if ends(signal) => return signal,
                _ => {}
            }
        }
    }

    /// The last signal that asked this program or its command to end: SIGTERM, SIGINT, SIGQUIT or any SIGHUP.
    /// Known as soon as the signal has arrived, also before [`Signals::next`] returns it.
    #[must_use]
    pub fn asked(&self) -> Option<Signal> {
        Signal::try_from(self.asked.load(Ordering::Relaxed)).ok()
    }

    /// The first signal that asked this program to end. A SIGHUP counts only from a terminal; otherwise it
    /// asks many programs to reload their settings.
    #[must_use]
    pub fn ended_by(&self) -> Option<Signal> {
        self.ended_by
    }

    /// The next signal. Cancel-safe.
    pub async fn next(&mut self) -> Signal {
        loop {
            let mut bytes = [0; 2];
            if self.incoming.recv(&mut bytes).await.is_err() {
                // Can't happen, since this process holds the other end. If `recv` failed all the same, the
                // wrapper would work without signals.
                return std::future::pending().await;
            }
            if let Ok(signal) = Signal::try_from(i32::from(bytes[0])) {
                let is_from_terminal = bytes[1] != 0;
                let is_end = ends(signal) && (signal != Signal::SIGHUP || is_from_terminal);
                self.ended_by = self.ended_by.or(is_end.then_some(signal));
                return signal;
            }
        }
    }
}

/// Signals with other uses whose default action ends the process.
const WITHOUT_EFFECT: [Signal; 6] =
    [Signal::SIGALRM, Signal::SIGVTALRM, Signal::SIGPROF, Signal::SIGIO, Signal::SIGPWR, Signal::SIGSTKFLT];

/// The signals by which others ask a program to end.
pub(crate) const ENDS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

pub(crate) fn ends(signal: Signal) -> bool {
    ENDS.contains(&signal)
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}

/// Stops this process as Ctrl-Z would, so that the parent shell takes its terminal back. Returns after
/// SIGCONT, or at once in an orphaned process group, where the kernel ignores SIGTSTP.
pub(crate) fn stop_self() {
    if inherited().ignores(Signal::SIGTSTP) {
        return;
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action installs no code, and the action that is put back was in force before.
    unsafe {
        let Ok(handler) = sigaction(Signal::SIGTSTP, &default) else { return };
        // Sent to this thread, so that the stop takes effect before the call returns. A SIGTSTP to the
        // process might be handled by another thread, and this one would continue for a moment.
        let _ = raise(Signal::SIGTSTP);
        let _ = sigaction(Signal::SIGTSTP, &handler);
    }
}

/// Makes the group of `pid` the foreground group of the terminal, if this process's group is. A shell's `fg`
/// makes our group the foreground group; a command with a group of its own would stop again at its first read
/// from the terminal.
pub(crate) fn hand_terminal_to(pid: i32) {
    // Nothing to do without a terminal or if the process has ended.
    let Ok(terminal) = File::open("/dev/tty") else { return };
    let Ok(group) = getpgid(Some(Pid::from_raw(pid))) else { return };
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        let _ = tcsetpgrp(&terminal, group);
    }
}
