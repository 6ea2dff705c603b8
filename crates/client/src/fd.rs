//! Waiting for a descriptor on tokio's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the current runtime.
///
/// # Errors
/// The reactor's own. Panics outside of a tokio runtime with I/O enabled.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, an `OwnedFd` is open for as long as it lives and never changes the
    // number it answers with.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}
