//! The queues between the front (the module that serves clients' connections) and the replica's thread: events in,
//! outputs out.
//!
//! Responsible for a low cost per item: a reader locks the queue's mutex once to take all pending items, and is woken
//! once if it sleeps. No request has a channel, task or allocation of its own here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use lockkeeper_core::Command;
use lockkeeper_replica::{Event, Output};
use lockkeeper_wire::request::Request;

use crate::peers::Bell;

/// While the pending requests weigh this much or more, no further input is read from streams. Enough work for
/// several turns.
const REQUESTS_MAX: usize = 1 << 16;

/// The weight of an event, as counted against `REQUESTS_MAX`: one for each request, plus one for every 64 bytes of
/// the request's content.
pub(crate) fn weight(event: &Event) -> usize {
    match event {
        Event::Frame(_, requests) => requests.iter().map(request_weight).sum::<usize>().max(1),
        _ => 1,
    }
}

fn request_weight(request: &Request) -> usize {
    let bytes = match request {
        Request::Command { command: Command::Acquire(it), .. }
        | Request::Denied { command: Command::Acquire(it), .. } => {
            let names: usize = it.names.iter().map(|name| name.as_str().len()).sum();
            names + it.value.len() + it.meta.len()
        }
        Request::Command { command: Command::SetValue { value, .. }, .. } => value.len(),
        Request::Open(open) => open.label.len(),
        _ => 0,
    };
    1 + bytes / 64
}

/// The queue of events for the replica.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    /// How to wake the replica's thread, the only reader.
    replica: OnceLock<Sleeper>,
}

/// How the replica's thread is woken.
enum Sleeper {
    /// A node without peers parks.
    Parks(Thread),
    /// A node with peers polls their sockets too.
    Polls(Arc<Bell>),
}

#[derive(Default)]
struct Waiting {
    events: Vec<Event>,
    /// The weight of the events that were pushed and that the replica has not reported as handled.
    requests: usize,
    /// Wakers of the tasks that have paused reading a stream until there is room, by the number that each drew when
    /// it began to wait.
    paused: BTreeMap<u64, Waker>,
    last_turn: u64,
    is_closed: bool,
}

impl Inbox {
    /// Appends an event. The replica is not woken before the next [`Inbox::ring`].
    pub(crate) fn push(&self, event: Event) {
        let mut waiting = self.lock();
        waiting.requests += weight(&event);
        waiting.events.push(event);
    }

    /// Wakes the replica.
    pub(crate) fn ring(&self) {
        match self.replica.get() {
            Some(Sleeper::Parks(replica)) => replica.unpark(),
            Some(Sleeper::Polls(bell)) => bell.ring(),
            None => {}
        }
    }

    /// Ready if there is room for more requests; otherwise the calling task is woken as soon as there is. The task
    /// draws `number` when it begins to wait, and keeps it until it finds room. Tasks are woken in the order of these
    /// numbers, so a task that always has more requests can't starve others.
    pub(crate) fn poll_room(&self, number: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.lock();
        if waiting.requests < REQUESTS_MAX {
            *number = None;
            return Poll::Ready(());
        }
        let number = *number.get_or_insert_with(|| {
            waiting.last_turn += 1;
            waiting.last_turn
        });
        waiting.paused.insert(number, cx.waker().clone());
        Poll::Pending
    }

    /// Closes the inbox because the process ends: the next [`Inbox::take`] returns `false`, and neither pending nor
    /// later events are handled.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.ring();
    }

    /// Registers the calling thread as the replica's.
    pub(crate) fn is_mine(&self) {
        // Fails if a bell is registered already, which then remains the way to wake this thread.
        let _ = self.replica.set(Sleeper::Parks(std::thread::current()));
    }

    /// Registers the bell that wakes the replica's thread.
    pub(crate) fn rings(&self, bell: Arc<Bell>) {
        // Never fails: the replica's thread calls `is_mine` later, when it runs.
        let _ = self.replica.set(Sleeper::Polls(bell));
    }

    /// Moves all pending events into `events`, which must be empty. `handled` is the weight of the events handled
    /// since the last call. Returns `false` if the inbox was closed.
    pub(crate) fn take(&self, events: &mut Vec<Event>, handled: usize) -> bool {
        let mut waiting = self.lock();
        waiting.requests -= handled;
        std::mem::swap(&mut waiting.events, events);
        if waiting.requests < REQUESTS_MAX && !waiting.paused.is_empty() {
            std::mem::take(&mut waiting.paused).into_values().for_each(Waker::wake);
        }
        !waiting.is_closed
    }

    pub(crate) fn is_empty(&self) -> bool {
        let waiting = self.lock();
        waiting.events.is_empty() && !waiting.is_closed
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of the replica's outputs; one task of the front takes them.
#[derive(Default)]
pub(crate) struct Outbox(Mutex<OutboxContents>);

#[derive(Default)]
struct OutboxContents {
    outputs: Vec<Output>,
    state: ReplicaStatus,
    waker: Option<Waker>,
}

/// The state of the replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReplicaStatus {
    /// This node knows no leader, or it leads but has not yet applied all entries that were committed before.
    #[default]
    Waiting,
    /// This node leads and answers.
    Ready,
    /// This node follows a leader, which answers.
    Following {
        /// The leader's id.
        leader: u64,
    },
    /// This node shuts down and has ended its streams. If it led, it has transferred the leadership before, unless
    /// no node took over.
    Left,
    /// The replica's thread has ended.
    Ended,
}

impl Outbox {
    /// Appends the outputs of a turn of the replica.
    pub(crate) fn put(&self, outputs: &mut Vec<Output>, state: ReplicaStatus) {
        let mut done = self.lock();
        if outputs.is_empty() && done.state == state {
            return;
        }
        done.state = state;
        if done.outputs.is_empty() {
            std::mem::swap(&mut done.outputs, outputs);
        } else {
            done.outputs.append(outputs);
        }
        let waker = done.waker.take();
        drop(done);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves all pending outputs into `outputs`, which must be empty. The calling task is woken when there are
    /// more.
    pub(crate) fn take(&self, outputs: &mut Vec<Output>, cx: &mut Context<'_>) -> ReplicaStatus {
        let mut done = self.lock();
        std::mem::swap(&mut done.outputs, outputs);
        done.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        done.state
    }

    fn lock(&self) -> MutexGuard<'_, OutboxContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
