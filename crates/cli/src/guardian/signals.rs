//! The wrapper's signals, each with its origin: the terminal, or a process that sent it to the wrapper alone.
//!
//! The terminal sends Ctrl-C to every process of the foreground group, so the command receives the signal itself, and
//! relaying would deliver it twice. `kill` reaches the wrapper alone, so the wrapper must relay the signal. The kernel
//! distinguishes the two (`si_code`). One case is ambiguous: `kill -INT -<group>` reaches both processes and is also
//! relayed, so the command receives the signal twice.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram as StdDatagram;

use nix::sys::signal::{Signal, raise};
use nix::unistd::{Pid, getpgid, getpgrp, tcgetpgrp, tcsetpgrp};
use signal_hook_registry::{SigId, register_sigaction, unregister};
use tokio::net::UnixDatagram;

use super::inherited::inherited;
use super::protocol::FORWARDED;

/// A signal that this process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The signal.
    pub signal: Signal,
    /// Whether the kernel sent the signal, as for keys (Ctrl-C, Ctrl-\), a window size change and a terminal
    /// hang-up. Then the whole foreground group received it, the command included.
    pub from_terminal: bool,
}

/// Receives SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT and SIGWINCH.
///
/// A signal that was ignored at process start (by `nohup`, or by a shell that started the process in the
/// background) stays ignored and gets no handler. SIGTSTP is left alone, so Ctrl-Z stops the wrapper like any
/// program.
///
/// After a drop these signals have no effect: the default actions are not restored.
#[derive(Debug)]
pub struct Signals {
    incoming: UnixDatagram,
    // The handlers write to this socket, so it must outlive them.
    _outgoing: StdDatagram,
    handlers: Vec<SigId>,
    ended_by: Option<Signal>,
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
        };
        for signal in FORWARDED.into_iter().filter(|signal| !inherited.ignores(*signal)) {
            let handler = move |info: &libc::siginfo_t| {
                let bytes = [signal as i32 as u8, u8::from(info.si_code == libc::SI_KERNEL)];
                // A full socket holds hundreds of unread signals, so it does no harm to drop one more.
                // SAFETY: a system call that signal handlers may make, on a descriptor that outlives the handler.
                unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
            };
            // SAFETY: the handler makes one system call and accesses no shared memory. `send` may change errno,
            // which the registry's own handler saves and restores.
            signals.handlers.push(unsafe { register_sigaction(signal as i32, handler)? });
        }
        Ok(signals)
    }

    /// Returns at the first signal that ends a program.
    pub async fn until_end(&mut self) {
        use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        while !matches!(self.next().await.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {}
    }

    /// The first signal that asked this program to end. A SIGHUP counts only from a terminal: many programs take another
    /// for the order to read their settings again.
    #[must_use]
    pub fn ended_by(&self) -> Option<Signal> {
        self.ended_by
    }

    /// The next signal. Cancel-safe.
    pub async fn next(&mut self) -> Received {
        loop {
            let mut bytes = [0; 2];
            if self.incoming.recv(&mut bytes).await.is_err() {
                // Can't happen, since this process holds the other end. If `recv` failed all the same, the wrapper
                // would work without signals.
                return std::future::pending().await;
            }
            if let Ok(signal) = Signal::try_from(i32::from(bytes[0])) {
                let received = Received { signal, from_terminal: bytes[1] != 0 };
                let ends = match signal {
                    Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => true,
                    Signal::SIGHUP => received.from_terminal,
                    _ => false,
                };
                self.ended_by = self.ended_by.or(ends.then_some(signal));
                return received;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}

/// Stops this process as Ctrl-Z would, so that the parent shell takes its terminal back. Returns after SIGCONT,
/// or at once in an orphaned process group, where the kernel ignores SIGTSTP.
pub(crate) fn stop_self() {
    // Sent to this thread, so that the stop takes effect before the call returns. A SIGTSTP to the process might be
    // handled by another thread, and this one would continue for a moment.
    let _ = raise(Signal::SIGTSTP);
}

/// Makes the group of `pid` the foreground group of the terminal, if this process's group is. A shell's `fg` makes
/// our group the foreground group; a command with a group of its own would stop again at its first read from the
/// terminal.
pub(crate) fn hand_terminal_to(pid: i32) {
    // Nothing to do without a terminal or if the process has ended.
    let Ok(terminal) = File::open("/dev/tty") else { return };
    let Ok(group) = getpgid(Some(Pid::from_raw(pid))) else { return };
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        let _ = tcsetpgrp(&terminal, group);
    }
}
