//! The two runtimes on which I/O runs.
//!
//! - **The lease thread** ([`LeaseThread`]) runs what must not depend on a caller's runtime, which may be
//!   starved, blocked in a signal handler, or dropped: it renews leases, detects losses, receives wake-ups,
//!   and ends requests and holds that a caller abandoned.
//! - **The caller's runtime** runs the calls that a caller waits for ([`CallRuntime::spawn`]), on
//!   connections of that runtime ([`Pool`]): moving a call to another thread and its answer back takes longer
//!   than most lock services need to answer. The connections are ordinary ones of the service's client
//!   library. They end with their runtime, and the next caller opens others.
//!
//! A caller without a runtime, such as a guard that is dropped outside of one, is served by the lease thread.

pub mod fd;
mod happy_eyeballs;
mod lease_thread;
mod pool;

use tokio::runtime::Handle;

pub use happy_eyeballs::{HEAD_START, first_success};
pub use lease_thread::{LeaseThread, SharedLeaseThread, start_runtime_thread};
pub use pool::{Connect, Pool, PoolLimits, Used};

/// Where a call runs.
#[derive(Clone)]
pub enum CallRuntime {
    /// On the runtime of the caller that waits for it.
    Runtime(Handle),
    /// On the lease thread, for callers without a runtime.
    LeaseThread(LeaseThread),
}

impl CallRuntime {
    /// The current runtime, or the lease thread outside of one.
    pub fn here(lease_thread: &LeaseThread) -> Self {
        match Handle::try_current() {
            Ok(runtime) => Self::Runtime(runtime),
            Err(_) => Self::LeaseThread(lease_thread.clone()),
        }
    }

    /// Runs a future to its end, or drops it with its runtime. Never blocks.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Runtime(runtime) => drop(runtime.spawn(future)),
            Self::LeaseThread(thread) => thread.run(Box::pin(future)),
        }
    }
}
