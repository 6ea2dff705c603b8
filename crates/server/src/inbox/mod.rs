//! The queues between the front (the module that serves clients' connections) and the replica's thread:
//! events in, outputs out.
//!
//! Responsible for: callers are served in turn (`fair_queue.rs`), and one that asks for more than its share
//! waits, without delay for others; and a low cost per item: a reader locks the queue's mutex once for all
//! items that it takes, and is woken once if it sleeps. No request has a channel, task or allocation of its
//! own here.

mod fair_queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use lockkeeper_replica::{CallRequest, Event, Output, Question};
use lockkeeper_wire::request::Request;
use parking_lot::Mutex;

use crate::access::Identity;
use crate::peers::Bell;
use fair_queue::{FairQueue, QUANTUM, QueuedWeight};

/// The weight that the queue has room for. A caller may fill half of the room that is left, and a stream half
/// of the room of its caller, so there is always room for another one. Enough work for several turns.
const WEIGHT_MAX: usize = 1 << 13;

/// The weight of reading many table entries: some hundred microseconds of the replica's time.
const LIST_WEIGHT: usize = 128;

/// The weight of an event: one for each request, plus one for every 64 bytes of the request's content.
fn weight(event: &Event) -> usize {
    match event {
        Event::Frame(_, requests) => requests.iter().map(request_weight).sum::<usize>().max(1),
        Event::Called(_, called) => match &called.request {
            CallRequest::Open(open) => 1 + open.label.len() / 64,
            CallRequest::KeepAlive { poll, .. } => 1 + poll.bytes() / 64,
            CallRequest::Command { command, .. } => 1 + command.content_bytes() / 64,
        },
        Event::Asked(
            _,
            Question::List { .. }
            | Question::Sessions { .. }
            | Question::Describe { .. }
            | Question::Load { .. },
        ) => LIST_WEIGHT,
        _ => 1,
    }
}

fn request_weight(request: &Request) -> usize {
    let bytes = match request {
        Request::Denied { request, .. } => return request_weight(request),
        Request::Command { command, .. } => command.content_bytes(),
        Request::Open(open) => open.label.len(),
        Request::Attach { .. } | Request::KeepAlive { .. } => 0,
    };
    1 + bytes / 64
}

/// Splits a long frame into events that are about as heavy as a caller's turn: others are served in between.
/// Returns each with its weight.
fn parts(event: Event) -> Vec<(usize, Event)> {
    let all = weight(&event);
    let (stream, requests) = match event {
        Event::Frame(stream, requests) if all > QUANTUM => (stream, requests),
        other => return vec![(all, other)],
    };
    let mut parts = Vec::new();
    let (mut part, mut part_weight) = (Vec::new(), 0);
    for request in requests {
        part_weight += request_weight(&request);
        part.push(request);
        if part_weight >= QUANTUM {
            parts.push((std::mem::take(&mut part_weight), Event::Frame(stream, std::mem::take(&mut part))));
        }
    }
    if !part.is_empty() {
        parts.push((part_weight, Event::Frame(stream, part)));
    }
    parts
}

/// Whether there is room for a further event of this stream or call.
fn has_room(queued: QueuedWeight) -> bool {
    let of_caller = WEIGHT_MAX.saturating_sub(queued.all) / 2;
    let of_lane = of_caller.saturating_sub(queued.caller) / 2;
    queued.lane <= of_lane && queued.caller <= of_caller
}

/// Where a client's event comes from: events of one source keep their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub(crate) caller: Identity,
    /// The number of a stream or call.
    pub(crate) lane: u64,
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
    events: FairQueue<Identity, Event>,
    /// Wakers of the tasks that have paused reading a stream until there is room, by caller, and by the
    /// number that each drew when it began to wait.
    paused: HashMap<Identity, BTreeMap<u64, Waker>>,
    last_number: u64,
    is_closed: bool,
}

impl Inbox {
    /// Appends an event of a client. The replica is not woken before the next [`Inbox::ring`].
    pub(crate) fn push_from(&self, source: &Source, event: Event) {
        let parts = parts(event);
        let mut waiting = self.waiting.lock();
        for (weight, event) in parts {
            waiting.events.push(&source.caller, source.lane, weight, event);
        }
    }

    /// Appends an event of this node, which follows everything that was pushed before it.
    pub(crate) fn push(&self, event: Event) {
        self.waiting.lock().events.push_after_all(event);
    }

    /// Wakes the replica.
    pub(crate) fn ring(&self) {
        match self.replica.get() {
            Some(Sleeper::Parks(replica)) => replica.unpark(),
            Some(Sleeper::Polls(bell)) => bell.ring(),
            None => {}
        }
    }

    /// Ready if there is room for more requests of this source; otherwise the calling task is woken as soon
    /// as there is. The task draws `number` when it begins to wait, and keeps it until it finds room. Tasks
    /// of a caller are woken in the order of these numbers, so a task that always has more requests can't
    /// starve others.
    pub(crate) fn poll_room(
        &self,
        source: &Source,
        number: &mut Option<u64>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut waiting = self.waiting.lock();
        if has_room(waiting.events.weight(&source.caller, source.lane)) {
            *number = None;
            return Poll::Ready(());
        }
        let Waiting { paused, last_number, .. } = &mut *waiting;
        let number = *number.get_or_insert_with(|| {
            *last_number += 1;
            *last_number
        });
        paused.entry(source.caller.clone()).or_default().insert(number, cx.waker().clone());
        Poll::Pending
    }

    /// Closes the inbox because the process ends: the next [`Inbox::take`] returns `None`, and neither
    /// pending nor later events are handled.
    pub(crate) fn close(&self) {
        self.waiting.lock().is_closed = true;
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

    /// Moves events into `events`, in the order in which they are to be handled, until they weigh
    /// `weight_max` or more. Returns their weight; `None` if the inbox was closed.
    pub(crate) fn take(&self, events: &mut Vec<Event>, weight_max: usize) -> Option<usize> {
        let mut waiting = self.waiting.lock();
        let mut weight_taken = 0;
        while weight_taken < weight_max
            && let Some((caller, weight, event)) = waiting.events.pop()
        {
            weight_taken += weight;
            events.push(event);
            if let Some(caller) = caller {
                waiting.wake_paused(&caller);
            }
        }
        (!waiting.is_closed).then_some(weight_taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.events.is_empty() && !waiting.is_closed
    }
}

impl Waiting {
    /// Wakes a task of the caller, of which an event was taken; all of them if no event of the caller is
    /// left, since the woken ones may have nothing to send, and no other event would wake the rest.
    fn wake_paused(&mut self, caller: &Identity) {
        let Some(paused) = self.paused.get_mut(caller) else { return };
        if self.events.weight(caller, 0).caller == 0 {
            self.paused.remove(caller).into_iter().flatten().for_each(|(_, task)| task.wake());
        } else if let Some((_, task)) = paused.pop_first() {
            task.wake();
        }
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
    /// This node knows no leader, or it leads but has not yet applied all log entries committed before.
    #[default]
    Waiting,
    /// This node leads and answers.
    Ready,
    /// This node follows a leader, which answers.
    Following {
        /// The leader's id.
        leader: u64,
    },
    /// This node shuts down and has ended its streams. If it led, it has transferred the leadership before,
    /// unless no node took over.
    Left,
    /// The replica's thread has ended.
    Ended,
}

impl Outbox {
    /// Appends the outputs of a turn of the replica.
    pub(crate) fn put(&self, outputs: &mut Vec<Output>, state: ReplicaStatus) {
        let mut done = self.0.lock();
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

    /// Moves all pending outputs into `outputs`, which must be empty. The calling task is woken when there
    /// are more.
    pub(crate) fn take(&self, outputs: &mut Vec<Output>, cx: &mut Context<'_>) -> ReplicaStatus {
        let mut done = self.0.lock();
        std::mem::swap(&mut done.outputs, outputs);
        done.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        done.state
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::SessionId;
    use lockkeeper_replica::StreamId;

    use super::*;

    fn frame(stream: u64, requests: u64) -> Event {
        let keep_alive = |id| Request::KeepAlive { session: SessionId(1), id };
        Event::Frame(StreamId(stream), (0..requests).map(keep_alive).collect())
    }

    /// The largest frame that a client may send would take some 40 ms of the replica's time.
    #[test]
    fn others_are_served_between_the_parts_of_a_long_frame() {
        let inbox = Inbox::default();
        let source = |name: &str, lane| Source { caller: Identity::new(name).unwrap(), lane };
        inbox.push_from(&source("flood", 1), frame(1, 16_384));
        inbox.push_from(&source("other", 2), frame(2, 1));
        let mut events = Vec::new();
        let weight = inbox.take(&mut events, 256).unwrap();
        assert!((256..256 + QUANTUM).contains(&weight), "{weight}");
        let streams = events.iter().map(|event| match event {
            Event::Frame(stream, requests) => (stream.0, requests.len()),
            other => panic!("{other:?}"),
        });
        assert_eq!(streams.collect::<Vec<_>>(), [(1, 64), (2, 1), (1, 64), (1, 64), (1, 64)]);
        // All of it comes, in its order.
        inbox.take(&mut events, usize::MAX);
        let ids = events.iter().flat_map(|event| match event {
            Event::Frame(StreamId(1), requests) => &requests[..],
            _ => &[],
        });
        let ids = ids.map(|request| match request {
            Request::KeepAlive { id, .. } => *id,
            other => panic!("{other:?}"),
        });
        assert!(ids.eq(0..16_384));
    }
}
