//! The signal state at the start of this process, so that the command can be started with the same state.
//!
//! `nohup` ignores SIGHUP, and a shell without job control ignores SIGINT and SIGQUIT in background
//! processes; wrapper and guardian must pass these dispositions on unchanged. Sets of signals are bit sets
//! with signal n at bit n − 1, as in `/proc/<pid>/status`.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::Signal;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    pub(crate) ignored: u64,
    pub(crate) blocked: u64,
}

/// Whether SIGPIPE was ignored at process start. Rust's runtime ignores SIGPIPE before `main`, so only code
/// in `.init_array` can read the inherited disposition.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_THE_RUNTIME: extern "C" fn() = {
    extern "C" fn read_sigpipe() {
        // SAFETY: with a null action this only reads; `action` is valid memory, and all zeroes is a valid
        // value.
        let ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
        };
        PIPE_WAS_IGNORED.store(ignored, Ordering::Relaxed);
    }
    read_sigpipe
};

/// The signal state at the first call, which must precede any change by this program. `Signals::install`
/// makes that call, or `Guarded::spawn` if no handlers were installed.
pub(crate) fn inherited() -> Inherited {
    static AT_START: OnceLock<Inherited> = OnceLock::new();
    *AT_START.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let mut found = Inherited {
            ignored: field(&status, "SigIgn:").unwrap_or(0),
            blocked: field(&status, "SigBlk:").unwrap_or(0),
        };
        found.ignored &= !bit(Signal::SIGPIPE as i32);
        if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            found.ignored |= bit(Signal::SIGPIPE as i32);
        }
        found
    })
}

impl Inherited {
    pub(crate) fn ignores(self, signal: Signal) -> bool {
        self.ignored & bit(signal as i32) != 0
    }

    /// Sets this state in the calling process. Safe between fork and exec: it makes system calls only.
    pub(crate) fn restore(self) -> io::Result<()> {
        // SAFETY: `signal` with SIG_IGN installs no code; `mask` is initialised by sigemptyset before use.
        unsafe {
            for signal in (1..=64).filter(|n| self.ignored & bit(*n) != 0) {
                libc::signal(signal, libc::SIG_IGN);
            }
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut mask);
            for signal in (1..=64).filter(|n| self.blocked & bit(*n) != 0) {
                libc::sigaddset(&raw mut mask, signal);
            }
            match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

pub(crate) fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_sets_of_proc_status_are_parsed() {
        let status = "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert_eq!(field(status, "SigBlk:"), Some(bit(libc::SIGINT)));
        assert_eq!(field(status, "SigIgn:"), Some(bit(libc::SIGHUP) | bit(libc::SIGPIPE)));
        assert_eq!(field(status, "SigCgt:"), None);
    }
}
