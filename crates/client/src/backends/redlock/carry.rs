//! Drives the calls of a round: on the task that waits for them, and in the background once it has its result.
//!
//! A task for each call, or one for all, would cost more than the calls themselves; so would an allocation or a timer
//! for each. All calls are polled by one future with one timer until the outcome is certain; then a task of its own
//! finishes the rest. If the calls are dropped before their end, with their caller or its runtime, the library's
//! thread takes back the entries that they may have left.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio_util::sync::ReusableBoxFuture;

use super::claim::Claim;
use super::limit::RoundLimit;
use super::node::NodeStore;
use super::store::Inner;

/// Rounds for which call buffers are kept: a megabyte at most.
const KEPT: usize = 64;

/// The shared state of a round's calls.
pub(super) struct Round<S: NodeStore, K> {
    pub(super) inner: Arc<Inner<S>>,
    pub(super) claim: Arc<Claim>,
    pub(super) limit: RoundLimit,
    pub(super) kind: K,
}

/// The kind of a round's calls.
pub(super) trait Kind: Send + Sync + Sized + 'static {
    /// The pool of their buffers.
    fn places<S: NodeStore>(inner: &Inner<S>) -> &Places;

    /// Called when they were dropped before their end: marks the entries that they may have left.
    fn abandon(&self, claim: &Claim);
}

/// The buffer of one call's future, and whether the call is running.
struct Place {
    call: ReusableBoxFuture<'static, ()>,
    is_under_way: bool,
}

/// Pooled buffers for the calls of one kind. A future has more than a kilobyte; to allocate and free that for each
/// call, often on different threads, would be the largest cost of a round.
#[derive(Default)]
pub(super) struct Places(Mutex<Vec<Vec<Place>>>);

impl Places {
    fn kept(&self) -> MutexGuard<'_, Vec<Vec<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Place> {
        self.kept().pop().unwrap_or_default()
    }

    /// Returns buffers to the pool. Ended calls hold no resources.
    fn put(&self, places: Vec<Place>) {
        let mut kept = self.kept();
        if kept.len() < KEPT {
            kept.push(places);
        }
    }
}

/// The calls of a round, one for each node that is asked.
pub(super) struct Carried<S: NodeStore, K: Kind> {
    round: Arc<Round<S, K>>,
    places: Vec<Place>,
    done: bool,
}

impl<S: NodeStore, K: Kind> Carried<S, K> {
    pub(super) fn new<F>(round: Arc<Round<S, K>>, calls: impl Iterator<Item = F>) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut places = K::places(&round.inner).take();
        for (index, call) in calls.enumerate() {
            match places.get_mut(index) {
                Some(place) => {
                    place.call.set(call);
                    place.is_under_way = true;
                }
                None => places.push(Place { call: ReusableBoxFuture::new(call), is_under_way: true }),
            }
        }
        Self { round, places, done: false }
    }

    /// Drives the calls until `enough` returns a value; `None` if all end before that.
    pub(super) async fn until<T>(&mut self, mut enough: impl FnMut() -> Option<T>) -> Option<T> {
        let Self { round, places, done } = self;
        let carrying = poll_fn(|context| {
            // Polls each running call once.
            let mut all = true;
            for place in places.iter_mut().filter(|place| place.is_under_way) {
                place.is_under_way = place.call.poll(context).is_pending();
                all &= !place.is_under_way;
            }
            *done = all;
            match enough() {
                None if !*done => Poll::Pending,
                found => Poll::Ready(found),
            }
        });
        round.limit.watch_over(carrying).await
    }

    /// Drives the calls to their end in the background.
    pub(super) fn go_on(mut self) {
        if !self.done {
            tokio::spawn(async move { self.until(|| None::<()>).await });
        }
    }
}

impl<S: NodeStore, K: Kind> Drop for Carried<S, K> {
    fn drop(&mut self) {
        let Round { inner, claim, kind, .. } = &*self.round;
        if self.done {
            return K::places(inner).put(std::mem::take(&mut self.places));
        }
        kind.abandon(claim);
        inner.take_back_elsewhere(claim);
    }
}
