//! Waiting for a descriptor on tokio's reactor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor whose readiness can be awaited.
///
/// # Safety
/// The descriptor stays open while the value lives, and `as_raw_fd` always returns the same number.
pub unsafe trait Steady: AsRawFd {}

// SAFETY: `OwnedFd` owns the descriptor and releases it only when it is dropped or consumed.
unsafe impl Steady for OwnedFd {}

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// The reactor's errors. Panics outside of a tokio runtime with I/O enabled.
pub fn watch<T: Steady>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the `AsyncFd` owns the value, which is `Steady`.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}
