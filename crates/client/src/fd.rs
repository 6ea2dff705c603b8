//! Waiting for a descriptor on tokio's reactor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that can be waited for.
///
/// # Safety
/// It is open for as long as the value lives, and the number that it answers with never changes.
pub(crate) unsafe trait Steady: AsRawFd {}

// SAFETY: it owns the descriptor, and gives it away only by its own end.
unsafe impl Steady for OwnedFd {}

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// The reactor's own. Panics outside of a tokio runtime with I/O enabled.
pub(crate) fn watch<T: Steady>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the `AsyncFd` owns the value, which is `Steady`.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
