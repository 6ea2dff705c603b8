//! The front's handle of the replica's thread: passes events to it, and has its published state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use lockkeeper_replica::Event;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch as shown;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::statuses::shuts_down;
use crate::inbox::{Inbox, ReplicaStatus, Source};

/// The replica, as the tasks of the front see it. All of them run on one thread; the mutexes are never
/// contended, but the types must be `Sync`.
pub(crate) struct ReplicaHandle {
    pub(super) inbox: Arc<Inbox>,
    /// Cancelled when this node shuts down: from then on new connections, streams and calls are refused.
    pub(super) stopping: CancellationToken,
    /// Whether this node was told to stop: set some time before `stopping`, as a leader first transfers the
    /// leadership.
    is_leaving: AtomicBool,
    /// The last id that was given to a stream, call or connection.
    last_id: AtomicU64,
    /// Whether an event was pushed and the replica was not woken since.
    is_pushed: AtomicBool,
    /// The number of the drain barrier in progress; 0: none.
    barrier: AtomicU64,
    pump: Mutex<Option<Waker>>,
    state: shown::Sender<ReplicaStatus>,
    /// The client address of each node.
    clients: Mutex<BTreeMap<u64, String>>,
}

impl ReplicaHandle {
    pub(super) fn new(inbox: Arc<Inbox>, clients: BTreeMap<u64, String>) -> Self {
        Self {
            inbox,
            stopping: CancellationToken::new(),
            is_leaving: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            is_pushed: AtomicBool::new(false),
            barrier: AtomicU64::new(0),
            pump: Mutex::default(),
            state: shown::Sender::new(ReplicaStatus::default()),
            clients: Mutex::new(clients),
        }
    }

    /// The state of the replica, with notifications of changes.
    pub(super) fn state(&self) -> shown::Receiver<ReplicaStatus> {
        self.state.subscribe()
    }

    /// The number of tasks that follow the state.
    #[cfg(test)]
    pub(super) fn state_receivers(&self) -> usize {
        self.state.receiver_count()
    }

    /// Publishes the state of the replica; returns whether it has changed.
    pub(super) fn set_state(&self, state: ReplicaStatus) -> bool {
        self.state.send_if_modified(|known| std::mem::replace(known, state) != state)
    }

    /// The client address of each node. The mutex guard must not be held across an await.
    pub(super) fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.clients.lock()
    }

    /// A new id for a stream, call or connection.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes the replica hand over the leadership, then end.
    pub(super) fn shut_down(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.push(Event::ShutDown);
    }

    /// Whether this node was told to stop.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// # Errors
    /// This node shuts down.
    pub(super) fn check_serving(&self) -> Result<(), Status> {
        if self.stopping.is_cancelled() { Err(shuts_down()) } else { Ok(()) }
    }

    /// Appends an event of a client to the inbox. The replica is woken only after all tasks that are ready
    /// now have run, so that the requests of several streams form one batch.
    pub(super) fn push_from(&self, source: &Source, event: Event) {
        self.inbox.push_from(source, event);
        self.pushed();
    }

    /// As [`ReplicaHandle::push_from`], for an event of this node.
    pub(super) fn push(&self, event: Event) {
        self.inbox.push(event);
        self.pushed();
    }

    fn pushed(&self) {
        if !self.is_pushed.swap(true, Ordering::Relaxed) {
            self.wake_pump();
        }
    }

    /// Wakes the replica if an event was pushed since the last call.
    pub(super) fn ring(&self) {
        if self.is_pushed.swap(false, Ordering::Relaxed) {
            self.inbox.ring();
        }
    }

    /// The number of the drain barrier in progress; 0: none.
    pub(super) fn barrier(&self) -> u64 {
        self.barrier.load(Ordering::Relaxed)
    }

    /// A drain barrier has begun, or with 0 is complete.
    pub(super) fn set_barrier(&self, number: u64) {
        self.barrier.store(number, Ordering::Relaxed);
    }

    /// Whether a drain barrier is in progress.
    pub(super) fn has_barrier(&self) -> bool {
        self.barrier() > 0
    }

    /// To be called when a connection may have passed the drain barrier in progress.
    pub(super) fn barrier_moved(&self) {
        if self.has_barrier() {
            self.wake_pump();
        }
    }

    /// The task that [`ReplicaHandle::push`] and [`ReplicaHandle::barrier_moved`] wake.
    pub(super) fn set_pump(&self, waker: Waker) {
        *self.pump.lock() = Some(waker);
    }

    fn wake_pump(&self) {
        let pump = self.pump.lock().take();
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}
