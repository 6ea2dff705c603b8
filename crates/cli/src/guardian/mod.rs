//! The guardian of `lockkeeper run`: no job outlives its lock (DESIGN section 8, promise P5).
//!
//! Three processes. The *wrapper* (`lockkeeper run`) holds the lock and keeps it alive. It starts the *guardian*
//! (this same binary), which starts the *command* and is the parent of every process the command leaves:
//!
//! ```text
//! shell ── wrapper ── guardian ── command ── …          (the terminal's session: shell, wrapper, command)
//!             └─ socket ─┘    └── orphaned descendants  (the guardian alone has a session of its own)
//! ```
//!
//! The guardian needs nobody: it ends all descendants before the lock's deadline by its own timer, and when the
//! socket closes, so a wrapper that was killed or stopped leaves no job without its lock. It also holds the
//! lock's file descriptors until the last descendant is gone, so that a lock which *is* a descriptor (`file:`)
//! can't pass to the next holder earlier.
//!
//! What this module may not do: know what a lock or a lease is, choose exit codes of `run`, or print. It is told
//! one number ("valid until", `CLOCK_BOOTTIME` nanoseconds) and descriptors to keep open.
//!
//! Reading order: `protocol` what the two say to each other, `deadline` when to end, `tree` whom to end,
//! `process` the guardian, `handle` and `signals` the wrapper's side.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "lockkeeper-cli builds on Linux only: the guardian of `lockkeeper run` needs a child subreaper, signalfd and \
     timers on CLOCK_BOOTTIME, and there is no weaker stand-in that keeps its promise"
);

mod channel;
mod deadline;
mod handle;
mod inherited;
mod process;
mod protocol;
mod signals;
mod tree;

use std::ffi::OsStr;
use std::process::ExitCode;

pub use handle::{Event, Guarded, SpawnError, Spec};
pub use nix::sys::signal::Signal;
pub use protocol::{Outcome, Reason};
pub use signals::{Received, Signals};

/// The first argument that makes this binary a guardian. Hidden: no user types it.
const GUARDIAN_ARGUMENT: &str = "__guardian";

/// Runs the guardian and returns its exit code if this process was started as one; else returns `None` at once.
///
/// Must be the first thing that `main` does: a guardian has no time for argument parsing, and forks while it has
/// one thread only.
#[must_use]
pub fn main_if_called() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(GUARDIAN_ARGUMENT) {
        return None;
    }
    Some(process::main(arguments))
}

/// Now on `CLOCK_BOOTTIME`, in nanoseconds: the clock of leases, which counts suspend (P5).
#[must_use]
pub fn boot_now() -> u64 {
    lockkeeper::BootInstant::now().as_nanos()
}
