//! The guardian of `lockkeeper run`: neither the command nor any of its descendants outlives the lock (P5).
//!
//! Four processes. The *wrapper* (`lockkeeper run`) holds the lock and keeps it alive. It starts the
//! *guardian* (the same binary), which starts the *command* and, as a child subreaper, becomes the parent of
//! every process that the command orphans:
//!
//! ```text
//! shell ── wrapper ── guardian ── command ── …          (the terminal's session: all but the guardian,
//!             ├─ socket ─┘    └── orphaned descendants   which alone has a session of its own)
//!             └─ witness
//! ```
//!
//! The *witness* does nothing: its pending signals show the wrapper whether a signal was sent to the whole
//! process group, and has reached the command as well.
//!
//! The guardian does not depend on the wrapper: by its own timer it ends all descendants before the lock's
//! deadline, and it also ends them when the wrapper's end of the socket is closed. So no command continues
//! without its lock after the wrapper was stopped or killed. The guardian also holds the lock's file
//! descriptors until the last descendant is gone, so that a lock which *is* a descriptor (`file:`) can't pass
//! to the next holder earlier.
//!
//! If the wrapper was killed, the guardian's last act is to become another program, the [`Epilogue`], which
//! frees the lock.
//!
//! This module must not depend on locks or leases, choose exit codes of `run`, or print. Its only inputs from
//! the lock are a deadline ("valid until", `CLOCK_BOOTTIME` nanoseconds), descriptors to keep open, and the
//! epilogue.
//!
//! Reading order: `protocol` (messages between wrapper and guardian), `deadline` (when to send SIGTERM and
//! SIGKILL), `tree` (descendant processes), `process` (the guardian), `handle`, `signals`, `relay` and
//! `witness` (the wrapper's side).

#[cfg(not(target_os = "linux"))]
compile_error!(
    "lockkeeper-cli builds on Linux only: the guardian of `lockkeeper run` needs a child subreaper, signalfd and \
     timers on CLOCK_BOOTTIME, and there is no weaker stand-in that keeps its promise"
);

mod addressed;
mod channel;
mod deadline;
mod handle;
mod inherited;
mod left;
mod own;
mod process;
mod protocol;
mod relay;
mod signals;
mod tree;
mod witness;

use std::ffi::OsStr;
use std::process::ExitCode;

pub use handle::{Epilogue, Guarded, GuardianEvent, SpawnError, Spec};
pub use left::Left;
pub use nix::sys::signal::Signal;
pub use protocol::{CommandEnd, Reason};
pub use signals::Signals;
pub(crate) use signals::{ends, stop_self};

/// The first argument that makes this binary a guardian. Internal: users never type it.
const GUARDIAN_ARGUMENT: &str = "__guardian";
/// The variable in which a guardian gets the URL of its [`Epilogue`].
const EPILOGUE_URL: &str = "LOCKKEEPER_EPILOGUE_URL";

/// Runs the guardian or the witness and returns its exit code if this process was started as one; otherwise
/// returns `None` at once.
///
/// `main` must call this first: the guardian parses no other arguments, and must fork while it has only one
/// thread.
#[must_use]
pub fn main_if_called() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()? {
        word if word == OsStr::new(GUARDIAN_ARGUMENT) => Some(process::main(arguments)),
        word if word == OsStr::new(witness::WITNESS_ARGUMENT) => {
            Some(witness::main(arguments.next().and_then(|fd| fd.to_str()?.parse().ok())))
        }
        _ => None,
    }
}

/// The current time on `CLOCK_BOOTTIME` in nanoseconds: the clock of leases, which includes suspend (P5).
#[must_use]
pub fn boot_now() -> u64 {
    lockkeeper::BootInstant::now().as_nanos()
}
