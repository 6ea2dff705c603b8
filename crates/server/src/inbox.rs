//! What has happened, on its way to the thread of the replica, and what it answers, on its way back.
//!
//! Responsible for: whoever takes gets everything that waits, by one lock; a sleeper is woken once. No channel, task or
//! allocation for a single request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;

use lockkeeper_core::Command;
use lockkeeper_replica::{Event, Output};
use lockkeeper_wire::request::Request;

use crate::peers::Bell;

/// Above this many requests that wait, streams are not read further: some turns' worth.
const REQUESTS_MAX: usize = 1 << 16;

/// What an event takes of the room: its requests, and a long one counts as several (one for each 64 bytes).
pub(crate) fn weight(event: &Event) -> usize {
    match event {
        Event::Frame(_, requests) => requests.iter().map(request_weight).sum::<usize>().max(1),
        _ => 1,
    }
}

fn request_weight(request: &Request) -> usize {
    let bytes = match request {
        Request::Command { command: Command::Acquire(it), .. } => {
            let names: usize = it.names.iter().map(|name| name.as_str().len()).sum();
            names + it.value.len() + it.meta.len()
        }
        Request::Command { command: Command::SetValue { value, .. }, .. } => value.len(),
        Request::Open(open) => open.label.len(),
        _ => 0,
    };
    1 + bytes / 64
}

/// To the replica.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    /// Who takes.
    replica: OnceLock<Sleeper>,
}

/// How the replica's thread is woken.
enum Sleeper {
    /// It has no peers, and parks.
    Parks(Thread),
    /// It waits for its peers too.
    Polls(Arc<Bell>),
}

#[derive(Default)]
struct Waiting {
    events: Vec<Event>,
    /// Requests that were pushed and that the replica has not handled yet.
    requests: usize,
    /// Readers that stopped because of too many of them, by their turn.
    paused: BTreeMap<u64, Waker>,
    last_turn: u64,
    is_closed: bool,
}

impl Inbox {
    /// Puts an event behind all others. The replica hears of it at the next [`Inbox::ring`].
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

    /// Whether there is room for more; if not, the task is woken as soon as there is. `turn` is the reader's own: who
    /// finds no room keeps its turn until it does, so that one who always has more to say can't keep others out.
    pub(crate) fn poll_room(&self, turn: &mut Option<u64>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.lock();
        if waiting.requests < REQUESTS_MAX {
            *turn = None;
            return Poll::Ready(());
        }
        let turn = *turn.get_or_insert_with(|| {
            waiting.last_turn += 1;
            waiting.last_turn
        });
        waiting.paused.insert(turn, cx.waker().clone());
        Poll::Pending
    }

    /// No event that is pushed from now on counts: the process ends.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.ring();
    }

    /// The present thread is the replica's.
    pub(crate) fn is_mine(&self) {
        // One that polls has its bell already.
        let _ = self.replica.set(Sleeper::Parks(std::thread::current()));
    }

    /// The replica's thread waits at this bell.
    pub(crate) fn rings(&self, bell: Arc<Bell>) {
        // Nobody is the replica's thread before its node runs.
        let _ = self.replica.set(Sleeper::Polls(bell));
    }

    /// Everything that waits, into `events`, which must be empty. `handled` of the earlier requests were handled
    /// meanwhile. `false`: the process ends.
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

/// From the replica to the front, whose one task takes.
#[derive(Default)]
pub(crate) struct Outbox(Mutex<Done>);

#[derive(Default)]
struct Done {
    outputs: Vec<Output>,
    state: State,
    waker: Option<Waker>,
}

/// How the replica is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum State {
    /// It doesn't lead, or doesn't know yet all that was committed.
    #[default]
    Waiting,
    /// It answers.
    Ready,
    /// It hears a leader, who answers.
    Following {
        /// Who leads.
        leader: u64,
    },
    /// It was told to stop: what it led is handed over, if anybody took it, and its streams were told.
    Left,
    /// Its thread has ended.
    Ended,
}

impl Outbox {
    /// Hands over a turn's outputs.
    pub(crate) fn put(&self, outputs: &mut Vec<Output>, state: State) {
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

    /// Everything that waits, into `outputs`, which must be empty. The task is woken when there is more.
    pub(crate) fn take(&self, outputs: &mut Vec<Output>, cx: &mut Context<'_>) -> State {
        let mut done = self.lock();
        std::mem::swap(&mut done.outputs, outputs);
        done.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        done.state
    }

    fn lock(&self) -> MutexGuard<'_, Done> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
