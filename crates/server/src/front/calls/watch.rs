//! A watch: buffers the changes of locks for one client.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lockkeeper_replica::Answer;
use lockkeeper_wire::v1::{self, WatchResponse, watch_response::What};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tonic::Status;

use super::Waits;
use crate::access::Identity;
use crate::front::callers::Caller;
use crate::front::statuses::refusal;
use crate::front::transport::{Connection, WATCHED_BYTES_MAX};
use lockkeeper_places::TakenPlace;

/// The unsent changes of one watch.
pub(in crate::front) struct Watcher {
    connection: Arc<Connection>,
    /// The client that watches.
    pub(super) caller: Caller,
    _place: TakenPlace<Identity>,
    state: Mutex<WatchBuffer>,
}

#[derive(Default)]
struct WatchBuffer {
    changes: std::collections::VecDeque<WatchResponse>,
    bytes: usize,
    end: Option<Status>,
    is_over: bool,
    /// The replica sends the initial state of a watch in parts. Set when the last part received was sent on,
    /// and the next one was requested.
    has_asked: bool,
    waker: Option<Waker>,
}

impl Watcher {
    pub(super) fn new(connection: Arc<Connection>, caller: Caller, place: TakenPlace<Identity>) -> Self {
        Self { connection, caller, _place: place, state: Mutex::default() }
    }

    pub(in crate::front) fn deliver(&self, changes: Vec<WatchResponse>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        let bytes = changes.iter().map(memory).sum::<usize>();
        state.bytes += bytes;
        state.has_asked = false;
        state.changes.extend(changes);
        if !self.connection.watch_waits(bytes) {
            state.changes.clear();
            self.connection.watch_sent(std::mem::take(&mut state.bytes));
            state.end(Status::resource_exhausted(format!(
                "the changes were not read fast enough: too many wait here for the watches of one connection, of which {} \
                 MiB are allowed at most; watch again, from the state as it is",
                WATCHED_BYTES_MAX >> 20
            )));
        }
        state.wake();
    }

    /// Ends the watch with the error for `answer`, after which the replica sends no more changes.
    pub(in crate::front) fn end(&self, answer: Answer, clients: &BTreeMap<u64, String>) {
        self.stop(refusal(answer, clients));
    }

    pub(super) fn stop(&self, status: Status) {
        let mut state = self.lock();
        state.end(status);
        state.wake();
    }

    fn lock(&self) -> MutexGuard<'_, WatchBuffer> {
        self.state.lock()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let bytes = self.lock().bytes;
        self.connection.watch_sent(bytes);
    }
}

impl WatchBuffer {
    fn end(&mut self, status: Status) {
        if !self.is_over {
            self.is_over = true;
            self.end = Some(status);
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// The memory of a change, in bytes: an estimate.
fn memory(change: &WatchResponse) -> usize {
    let parts = match &change.what {
        Some(What::State(lock) | What::Changed(lock)) => {
            lock.holds.len() * size_of::<v1::Hold>() + lock.waiters.len() * size_of::<v1::Waiter>()
        }
        Some(What::Synced(_)) | None => 0,
    };
    change.encoded_len() + size_of::<WatchResponse>() + parts
}

/// The changes that are sent to the client.
pub(in crate::front) struct Watching {
    pub(super) watcher: Arc<Watcher>,
    /// Requests further parts from the replica, and ends the watch when dropped.
    pub(super) waits: Waits,
}

impl tonic::codegen::tokio_stream::Stream for Watching {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.watcher.lock();
        if let Some(change) = state.changes.pop_front() {
            let bytes = memory(&change);
            state.bytes -= bytes;
            self.watcher.connection.watch_sent(bytes);
            return Poll::Ready(Some(Ok(change)));
        }
        if !state.has_asked && !state.is_over {
            state.has_asked = true;
            self.waits.read_on();
        }
        if let Some(status) = state.end.take() {
            return Poll::Ready(Some(Err(status)));
        }
        if state.is_over {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
