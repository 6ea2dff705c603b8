//! Where I/O runs. There are two places.
//!
//! - **The lease thread** ([`LeaseThread`]): what must not depend on a caller's runtime. It renews leases, detects
//!   losses, receives wake-ups, and ends what a caller left behind. A caller's runtime may be starved, blocked in a
//!   signal handler, or dropped.
//! - **The caller's runtime**: the calls that a caller waits for ([`Place::spawn`]), on connections of that runtime
//!   ([`Pool`]). A call that crosses to another thread and back costs more than most lock services need to answer it.
//!   These are ordinary connections of the service's client library. If the runtime ends, its connections end with it,
//!   and the next caller opens others.
//!
//! A caller without a runtime, such as a guard that is dropped outside of one, is served by the lease thread.

mod lease_thread;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod pool;

use tokio::runtime::Handle;

use crate::backend::BoxFuture;
pub(crate) use lease_thread::{LeaseThread, SharedLeaseThread};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use pool::{Connect, Pool, PoolLimits, Used};

/// Where a call runs.
#[derive(Clone)]
pub(crate) enum Place {
    /// On the runtime of the caller that waits for it.
    Runtime(Handle),
    LeaseThread(LeaseThread),
}

impl Place {
    /// The current runtime, or the lease thread outside of one.
    pub(crate) fn here(lease_thread: &LeaseThread) -> Self {
        match Handle::try_current() {
            Ok(runtime) => Self::Runtime(runtime),
            Err(_) => Self::LeaseThread(lease_thread.clone()),
        }
    }

    /// Runs a future to its end, or drops it with its runtime. Never blocks.
    pub(crate) fn spawn(&self, future: BoxFuture<()>) {
        match self {
            Self::Runtime(runtime) => drop(runtime.spawn(future)),
            Self::LeaseThread(thread) => thread.run(future),
        }
    }
}
