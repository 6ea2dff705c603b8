//! Lanes: a connection for each runtime whose tasks acquire and release, beside the one on the backend's own thread.
//!
//! A call that crosses to another thread and back costs more than Redis does; so it travels on a connection that its own
//! runtime drives. What must not depend on a caller's runtime, renewals and messages, stays on the thread's connection.
//! A lane ends with its runtime, its first error, or the thread's connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{OnceCell, oneshot};

/// How many lanes there are at most; callers on further runtimes share the thread's connection.
const LANES: usize = 8;

/// What became of a command on a lane.
pub(super) enum Passed {
    Answered(Value),
    /// It may have arrived.
    InDoubt,
    /// It did not leave.
    NotSent,
}

/// The lanes of one link.
#[derive(Default)]
pub(super) struct Lanes(Mutex<Vec<Lane>>);

/// One runtime's way to the server.
#[derive(Clone)]
pub(super) struct Lane {
    runtime: Id,
    /// The connection of the link beside which it was made.
    beside: u64,
    way: Arc<Way>,
}

struct Way {
    /// Made by whoever needs it first; `None` if that went wrong.
    wire: OnceCell<Option<MultiplexedConnection>>,
    /// How many answers came on it.
    heard: AtomicU64,
    /// Closed when its runtime has ended.
    runs: oneshot::Sender<()>,
}

impl Lanes {
    /// The lane of the runtime that we are on. `None` where there is none to have: on `thread`, whose connection is the
    /// link's, outside of a runtime, and where there are too many.
    pub(super) fn here(&self, thread: Id, beside: u64) -> Option<Lane> {
        let here = Handle::try_current().ok()?;
        let runtime = here.id();
        if runtime == thread {
            return None;
        }
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.iter().find(|lane| lane.runtime == runtime && lane.beside == beside) {
            return Some(lane.clone());
        }
        lanes.retain(|lane| lane.beside == beside && lane.runtime != runtime && !lane.way.runs.is_closed());
        if lanes.len() >= LANES {
            return None;
        }
        let (runs, ended) = oneshot::channel();
        // Ends with the lane, or is dropped with its runtime.
        here.spawn(async move { drop(ended.await) });
        let way = Way { wire: OnceCell::new(), heard: AtomicU64::new(0), runs };
        let lane = Lane { runtime, beside, way: Arc::new(way) };
        lanes.push(lane.clone());
        Some(lane)
    }

    /// It is of no use any more: the next call gets another.
    pub(super) fn give_up(&self, lane: &Lane) {
        self.lanes().retain(|other| !Arc::ptr_eq(&other.way, &lane.way));
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Sends a command and waits for its answer; `connect` makes the connection if there is none yet.
    pub(super) async fn pass(
        &self,
        command: &Cmd,
        connect: impl Future<Output = Option<MultiplexedConnection>>,
    ) -> Passed {
        let Some(wire) = self.way.wire.get_or_init(|| connect).await else { return Passed::NotSent };
        match wire.clone().send_packed_command(command).await {
            Ok(answer) => {
                self.way.heard.fetch_add(1, Ordering::Relaxed);
                Passed::Answered(answer)
            }
            Err(_) => Passed::InDoubt,
        }
    }

    pub(super) fn heard(&self) -> u64 {
        self.way.heard.load(Ordering::Relaxed)
    }
}
