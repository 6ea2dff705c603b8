//! Connections for each runtime whose tasks acquire and release, beside the main one on the backend's own thread.
//!
//! A call that crosses to another thread and back costs more than Redis does, so it uses a connection whose driver
//! runs on the caller's own runtime. Traffic that must not depend on a caller's runtime, such as renewals and pushes,
//! stays on the main connection, which also serves all callers until their own is established. Such a connection (a
//! lane) ends with its runtime, with its socket, or with the main connection.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::paced::{Made, UnderWay};

/// Lanes of one link, at most; callers on further runtimes use the main connection.
const LANES: usize = 8;
/// Pending calls on a lane before another one is opened. Fewer on each would only add packets.
const FULL: usize = 16;
/// Pause between attempts to open a lane: meanwhile the main connection serves.
const PAUSE: Duration = Duration::from_secs(1);

/// Outcome of a command on a lane.
pub(super) enum Passed {
    Answered(Value),
    /// The server may have executed it.
    InDoubt,
    /// It was not sent.
    NotSent,
}

/// The lanes of one link.
pub(super) struct Lanes {
    lanes: Mutex<Vec<Lane>>,
    /// Lanes for each runtime, at most.
    each: usize,
}

/// One runtime's connection to the server.
#[derive(Clone)]
pub(super) struct Lane {
    runtime: Id,
    /// The number of the main connection beside which it was opened.
    beside: u64,
    way: Arc<Way>,
}

struct Way {
    /// Set once it is established.
    wire: Arc<OnceLock<MultiplexedConnection>>,
    /// Set once it has ended.
    ended: Ended,
    /// How many replies it has received.
    heard: AtomicU64,
    callers: UnderWay,
    /// A call was dropped before its reply, and may still arrive.
    unsettled: AtomicBool,
    /// Closed when its runtime has ended.
    runs: oneshot::Sender<()>,
}

/// Whether a connection has ended.
pub(super) type Ended = Arc<AtomicBool>;

impl Lanes {
    pub(super) fn new(each: usize) -> Self {
        Self { lanes: Mutex::default(), each }
    }

    /// Returns a lane of the current runtime. A new one is opened in the background with the connector, which sets
    /// the given [`Ended`] when its connection ends. Returns `None` on `thread`, whose connection is the link's main
    /// one, outside a runtime, and if there are too many lanes.
    pub(super) fn here<C, F>(&self, thread: Id, beside: u64, connector: impl FnOnce() -> C) -> Option<Lane>
    where
        C: Fn(Ended, UnderWay) -> F + Send + Sync + 'static,
        F: Future<Output = Option<Made>> + Send + 'static,
    {
        let here = Handle::try_current().ok()?;
        let runtime = here.id();
        if runtime == thread {
            return None;
        }
        let mut lanes = self.lanes();
        let serves = |lane: &&Lane| lane.runtime == runtime && lane.beside == beside && !lane.has_ended();
        if let Some(lane) = lanes.iter().filter(serves).find(|lane| lane.load() < FULL) {
            return Some(lane.clone());
        }
        let idlest = lanes.iter().filter(serves).min_by_key(|lane| lane.load()).cloned();
        if lanes.iter().filter(serves).count() >= self.each
            || lanes.iter().filter(serves).any(Lane::is_being_made)
        {
            return idlest;
        }
        lanes.retain(|lane| lane.beside == beside && !lane.has_ended() && !lane.way.runs.is_closed());
        if lanes.len() >= LANES {
            return idlest;
        }
        let (runs, over) = oneshot::channel();
        let (wire, ended, callers) = (Arc::new(OnceLock::new()), Ended::default(), UnderWay::default());
        let (heard, way_callers) = (AtomicU64::new(0), callers.clone());
        let way = Way {
            wire: wire.clone(),
            ended: ended.clone(),
            heard,
            callers: way_callers,
            unsettled: AtomicBool::new(false),
            runs,
        };
        let lane = Lane { runtime, beside, way: Arc::new(way) };
        lanes.push(lane.clone());
        drop(lanes);
        let connect = connector();
        // Ends with the lane, or is dropped with its runtime.
        here.spawn(async move {
            let making = async {
                loop {
                    if let Some((made, driver)) = connect(ended.clone(), callers.clone()).await {
                        // No other task sets it.
                        let _ = wire.set(made);
                        driver.await;
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::select! {
                () = making => {}
                _ = over => {}
            }
        });
        Some(idlest.unwrap_or(lane))
    }

    /// Drops a lane after a call that timed out without any reply on it: the next call gets another.
    pub(super) fn give_up(&self, lane: &Lane) {
        self.lanes().retain(|other| !Arc::ptr_eq(&other.way, &lane.way));
    }

    /// Waits until no earlier call is pending on any lane: replies arrive in the order of the calls.
    pub(super) async fn settle(&self) {
        let unsettled = |lane: &&Lane| {
            lane.way.callers.load(Ordering::SeqCst) > 0 || lane.way.unsettled.load(Ordering::SeqCst)
        };
        let lanes: Vec<Lane> = self.lanes().iter().filter(unsettled).cloned().collect();
        for lane in lanes {
            lane.way.unsettled.store(false, Ordering::SeqCst);
            lane.pass(&redis::cmd("TIME")).await;
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Number of callers that wait for replies on it; the maximum before it is established, since it serves none.
    fn load(&self) -> usize {
        if self.is_being_made() { usize::MAX } else { self.way.callers.load(Ordering::Relaxed) }
    }

    fn is_being_made(&self) -> bool {
        self.way.wire.get().is_none()
    }

    fn has_ended(&self) -> bool {
        self.way.ended.load(Ordering::Relaxed)
    }

    /// Sends a command and waits for its reply.
    pub(super) async fn pass(&self, command: &Cmd) -> Passed {
        let Some(wire) = self.way.wire.get().filter(|_| !self.has_ended()) else { return Passed::NotSent };
        let caller = Caller::of(&self.way);
        let answered = wire.clone().send_packed_command(command).await;
        caller.answered();
        match answered {
            Ok(answer) => {
                self.way.heard.fetch_add(1, Ordering::Relaxed);
                Passed::Answered(answer)
            }
            Err(_) => {
                self.way.ended.store(true, Ordering::Relaxed);
                Passed::InDoubt
            }
        }
    }

    pub(super) fn heard(&self) -> u64 {
        self.way.heard.load(Ordering::Relaxed)
    }
}

/// A pending call.
struct Caller<'a> {
    way: &'a Way,
    answered: bool,
}

impl<'a> Caller<'a> {
    fn of(way: &'a Way) -> Self {
        way.callers.fetch_add(1, Ordering::SeqCst);
        Self { way, answered: false }
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.way.unsettled.store(true, Ordering::SeqCst);
        }
        self.way.callers.fetch_sub(1, Ordering::SeqCst);
    }
}
