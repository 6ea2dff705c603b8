//! Lanes: a connection for each runtime whose tasks acquire and release, beside the one on the backend's own thread.
//!
//! A call that crosses to another thread and back costs more than Redis does; so it travels on a connection that its own
//! runtime drives. What must not depend on a caller's runtime, renewals and messages, stays on the thread's connection.
//! A lane ends with its runtime, its first error, or the thread's connection.
//!
//! Everybody who is ready goes first: a lane that is woken lets the tasks run that are ready as well, and then writes what
//! all of them ask for at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// How many lanes there are at most; callers on further runtimes share the thread's connection.
const LANES: usize = 8;
/// How many commands are written at once.
const TOGETHER: usize = 256;

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
    calls: UnboundedSender<Request>,
    /// How many answers came on it.
    heard: Arc<AtomicU64>,
}

struct Request {
    command: Cmd,
    passed: oneshot::Sender<Passed>,
}

impl Lanes {
    /// The lane of the runtime that we are on; `connect` makes its connection. `None` where there is none to have: on
    /// `worker`, whose connection is the link's, outside of a runtime, and where there are too many.
    pub(super) fn here<F>(&self, worker: Id, beside: u64, connect: impl FnOnce() -> F) -> Option<Lane>
    where
        F: Future<Output = Option<MultiplexedConnection>> + Send + 'static,
    {
        let here = Handle::try_current().ok()?;
        let runtime = here.id();
        if runtime == worker {
            return None;
        }
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.iter().find(|lane| lane.serves(runtime, beside)) {
            return Some(lane.clone());
        }
        lanes.retain(|lane| lane.beside == beside && !lane.calls.is_closed());
        if lanes.len() >= LANES {
            return None;
        }
        let (calls, requests) = unbounded_channel();
        let lane = Lane { runtime, beside, calls, heard: Arc::default() };
        lanes.push(lane.clone());
        drop(lanes);
        let (connecting, heard) = (connect(), lane.heard.clone());
        here.spawn(async move {
            match connecting.await {
                Some(wire) => drive(wire, requests, &heard).await,
                None => turn_away(requests),
            }
        });
        Some(lane)
    }

    /// Nothing was heard on it for as long as a call may take: the next call gets another.
    pub(super) fn give_up(&self, lane: &Lane) {
        self.lanes().retain(|other| !other.calls.same_channel(&lane.calls));
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn serves(&self, runtime: Id, beside: u64) -> bool {
        self.runtime == runtime && self.beside == beside && !self.calls.is_closed()
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn pass(&self, command: Cmd) -> Passed {
        let (passed, answer) = oneshot::channel();
        if self.calls.send(Request { command, passed }).is_err() {
            return Passed::NotSent;
        }
        // Dropped unanswered with its runtime.
        answer.await.unwrap_or(Passed::InDoubt)
    }

    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }
}

/// Writes what is asked for and hands out the answers, until nobody asks any more or the connection fails.
async fn drive(wire: MultiplexedConnection, mut requests: UnboundedReceiver<Request>, heard: &AtomicU64) {
    let mut under_way = FuturesUnordered::new();
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            received = requests.recv_many(&mut batch, TOGETHER) => {
                if received == 0 {
                    break;
                }
                tokio::task::yield_now().await;
                while batch.len() < TOGETHER && let Ok(request) = requests.try_recv() {
                    batch.push(request);
                }
                under_way.push(exchange(wire.clone(), std::mem::take(&mut batch)));
            }
            Some(sound) = under_way.next() => {
                if !sound {
                    break;
                }
                heard.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    turn_away(requests);
    // What is under way fails by itself.
    while under_way.next().await.is_some() {}
}

/// Whoever asked hears that nothing was sent, and goes another way.
fn turn_away(mut requests: UnboundedReceiver<Request>) {
    requests.close();
    while let Ok(Request { passed, .. }) = requests.try_recv() {
        // Whoever asked may be gone.
        let _ = passed.send(Passed::NotSent);
    }
}

/// One write, and its answers. Whether the connection still works.
async fn exchange(mut wire: MultiplexedConnection, mut batch: Vec<Request>) -> bool {
    let answers = if let [request] = &batch[..] {
        wire.send_packed_command(&request.command).await.map(|answer| vec![answer])
    } else {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for request in &mut batch {
            pipeline.add_command(std::mem::take(&mut request.command));
        }
        wire.send_packed_commands(&pipeline, 0, batch.len()).await
    };
    let sound = answers.is_ok();
    let mut answers = answers.unwrap_or_default().into_iter();
    for Request { passed, .. } in batch {
        // Whoever asked may be gone.
        let _ = passed.send(answers.next().map_or(Passed::InDoubt, Passed::Answered));
    }
    sound
}
