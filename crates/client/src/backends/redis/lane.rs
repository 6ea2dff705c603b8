//! Lanes: connections for each runtime whose tasks acquire and release, beside the one on the backend's own thread.
//!
//! A call that crosses to another thread and back costs more than Redis does; so it travels on a connection that its own
//! runtime drives. What must not depend on a caller's runtime, renewals and messages, stays on the thread's connection,
//! which also serves everybody until a lane is there. A lane ends with its runtime, its connection, or the thread's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::paced::{Made, UnderWay};

/// How many lanes there are at most; callers on further runtimes share the thread's connection.
const LANES: usize = 8;
/// How many callers a lane has before another is made. Fewer on each would only make for more packets.
const FULL: usize = 16;
/// The pause between tries to make a lane: the thread's connection serves as well.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of a command on a lane.
pub(super) enum Passed {
    Answered(Value),
    /// It may have arrived.
    InDoubt,
    /// It did not leave.
    NotSent,
}

/// The lanes of one link.
pub(super) struct Lanes {
    lanes: Mutex<Vec<Lane>>,
    /// How many of them a runtime has at most.
    each: usize,
}

/// One runtime's way to the server.
#[derive(Clone)]
pub(super) struct Lane {
    runtime: Id,
    /// The connection of the link beside which it was made.
    beside: u64,
    way: Arc<Way>,
}

struct Way {
    /// Set once it is made.
    wire: Arc<OnceLock<MultiplexedConnection>>,
    /// Set once it has ended.
    ended: Ended,
    /// How many answers came on it.
    heard: AtomicU64,
    callers: UnderWay,
    /// A call was given up before its answer: it may still arrive.
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

    /// A lane of the runtime that we are on; it is made in the background, by what `connector` gives, which says when its
    /// connection ends. `None` where there is none to have: on `thread`, whose connection is the link's, outside of a
    /// runtime, and where there are too many.
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
                        // Nobody else makes it.
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

    /// Nothing was heard on it for as long as a call may take: the next call gets another.
    pub(super) fn give_up(&self, lane: &Lane) {
        self.lanes().retain(|other| !Arc::ptr_eq(&other.way, &lane.way));
    }

    /// Waits until nothing is on its way any more of what was sent before: answers come in the order of the calls.
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
    /// How many callers wait for answers on it. It serves none before it is made.
    fn load(&self) -> usize {
        if self.is_being_made() { usize::MAX } else { self.way.callers.load(Ordering::Relaxed) }
    }

    fn is_being_made(&self) -> bool {
        self.way.wire.get().is_none()
    }

    fn has_ended(&self) -> bool {
        self.way.ended.load(Ordering::Relaxed)
    }

    /// Sends a command and waits for its answer.
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

/// A call that is under way.
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
