//! A watch: changes on their way to one who watches.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_replica::Answer;
use lockkeeper_wire::v1::WatchResponse;
use lockkeeper_wire::v1::watch_response::What;
use prost::Message;
use tonic::Status;

use super::ask::{Waits, refusal};

/// What may wait for one who watches, in bytes. The state that a watch begins with isn't counted: it comes once.
const BYTES_MAX: usize = 16 << 20;

/// Changes that wait to be sent.
#[derive(Default)]
pub(super) struct Watcher(Mutex<State>);

#[derive(Default)]
struct State {
    changes: std::collections::VecDeque<WatchResponse>,
    bytes: usize,
    end: Option<Status>,
    is_over: bool,
    waker: Option<Waker>,
}

impl Watcher {
    pub(super) fn deliver(&self, changes: Vec<WatchResponse>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.bytes += changes.iter().map(size).sum::<usize>();
        state.changes.extend(changes);
        if state.bytes > BYTES_MAX {
            state.changes.clear();
            state.end(Status::resource_exhausted(format!(
                "the changes were not read fast enough: more than {} MiB wait here; watch again, from the state as it is",
                BYTES_MAX >> 20
            )));
        }
        state.wake();
    }

    /// The replica gives no more changes.
    pub(super) fn end(&self, answer: Answer, clients: &BTreeMap<u64, String>) {
        self.stop(refusal(answer, clients));
    }

    pub(super) fn stop(&self, status: Status) {
        let mut state = self.lock();
        state.end(status);
        state.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(change: &WatchResponse) -> usize {
    match change.what {
        Some(What::Changed(_)) => change.encoded_len(),
        _ => 0,
    }
}

impl State {
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

/// What who watches is sent.
pub(super) struct Watching {
    pub(super) watcher: Arc<Watcher>,
    /// Tells the replica once nobody watches any more.
    pub(super) _waits: Waits,
}

impl tonic::codegen::tokio_stream::Stream for Watching {
    type Item = Result<WatchResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.watcher.lock();
        if let Some(change) = state.changes.pop_front() {
            state.bytes -= size(&change);
            return Poll::Ready(Some(Ok(change)));
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
