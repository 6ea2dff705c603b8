//! The wrapper's signals: which one came, and whether the command had it too.
//!
//! Ctrl-C goes from the terminal to every process of the foreground group, so it reaches the command without us;
//! passing it on would make it two. `kill` reaches the wrapper alone, so it must be passed on. The kernel says
//! which it was (`si_code`). One case can't be told apart: `kill -INT -<group>` reaches both *and* is passed on.

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
    /// Which.
    pub signal: Signal,
    /// The kernel sent it, as it does for keys (Ctrl-C, Ctrl-\), a change of the window's size and a terminal that
    /// hung up. The whole foreground group had it, the command included.
    pub from_terminal: bool,
}

/// Listens to SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT and SIGWINCH.
///
/// A signal that was ignored when this process began (by `nohup`, or by a shell that put it into the background)
/// stays ignored and is not listened to. SIGTSTP is left alone, so that Ctrl-Z stops the wrapper as any program.
///
/// After a drop these signals do nothing at all: their default action does not come back.
#[derive(Debug)]
pub struct Signals {
    incoming: UnixDatagram,
    // The handlers write to this one, so it lives until they are gone.
    _outgoing: StdDatagram,
    handlers: Vec<SigId>,
}

impl Signals {
    /// Starts to listen. To be called once, before waiting for the lock, inside a tokio runtime.
    ///
    /// # Errors
    /// The system refused a socket or a handler.
    pub fn install() -> io::Result<Self> {
        // What the command shall start with must be known before it is changed here.
        let inherited = inherited();
        let (incoming, outgoing) = StdDatagram::pair()?;
        incoming.set_nonblocking(true)?;
        let socket = outgoing.as_raw_fd();
        let mut signals =
            Self { incoming: UnixDatagram::from_std(incoming)?, _outgoing: outgoing, handlers: Vec::new() };
        for signal in FORWARDED.into_iter().filter(|signal| !inherited.ignores(*signal)) {
            let handler = move |info: &libc::siginfo_t| {
                let bytes = [signal as i32 as u8, u8::from(info.si_code == libc::SI_KERNEL)];
                // A full socket means thousands of unread signals: one more would not be missed.
                // SAFETY: a system call that signal handlers may make, on a descriptor that outlives the handler.
                unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
            };
            // SAFETY: the handler makes one system call and touches no memory of others. `send` may change errno,
            // which the registry's own handler saves and restores.
            signals.handlers.push(unsafe { register_sigaction(signal as i32, handler)? });
        }
        Ok(signals)
    }

    /// The next signal. Cancel-safe.
    pub async fn next(&mut self) -> Received {
        loop {
            let mut bytes = [0; 2];
            if self.incoming.recv(&mut bytes).await.is_err() {
                // Not reached: the other end is ours. Without signals a wrapper still works.
                return std::future::pending().await;
            }
            if let Ok(signal) = Signal::try_from(i32::from(bytes[0])) {
                return Received { signal, from_terminal: bytes[1] != 0 };
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

/// Stops this process as Ctrl-Z would, so that the shell that started it takes its terminal back. Returns once it
/// was continued; or at once where the kernel stops nobody, in a process group that no shell looks after.
pub(crate) fn stop_self() {
    // To this very thread, so the stop happens before the call returns; SIGTSTP to the process might be taken by
    // another thread, and this one would go on for a moment.
    let _ = raise(Signal::SIGTSTP);
}

/// Makes the group of `pid` the foreground group of our terminal, if ours is. A shell's `fg` gives the terminal to
/// our group; a command with a group of its own would stop again at its first read.
pub(crate) fn hand_terminal_to(pid: i32) {
    // No terminal, or no such process: nothing to hand over.
    let Ok(terminal) = File::open("/dev/tty") else { return };
    let Ok(group) = getpgid(Some(Pid::from_raw(pid))) else { return };
    if tcgetpgrp(&terminal) == Ok(getpgrp()) {
        let _ = tcsetpgrp(&terminal, group);
    }
}
