//! How the calls of a round are carried: on the task of whoever waits for them, and in the background once nobody does.
//!
//! A task for each of them, or one for all, would cost more than what they do; so would a piece of memory or a timer for
//! each. All are polled side by side, with one timer, until enough is known; then the rest goes on in a task of its own. If
//! they are dropped before their end, with their caller or its runtime, the library's thread takes back what they may have
//! left behind (peers' flaw 1).

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio_util::sync::ReusableBoxFuture;

use super::claim::Claim;
use super::limit::RoundLimit;
use super::node::NodeStore;
use super::store::Inner;

/// For how many rounds places are kept: a megabyte at most.
const KEPT: usize = 64;

/// What the calls of a round have in common.
pub(super) struct Round<S: NodeStore, K> {
    pub(super) inner: Arc<Inner<S>>,
    pub(super) claim: Arc<Claim>,
    pub(super) limit: RoundLimit,
    pub(super) kind: K,
}

/// What kind of calls they are.
pub(super) trait Kind: Send + Sync + Sized + 'static {
    /// Where places for them are kept.
    fn places<S: NodeStore>(inner: &Inner<S>) -> &Places;

    /// They were dropped: whatever may come of them is to be taken back.
    fn abandon(&self, claim: &Claim);
}

/// Memory for one call, and whether it is under way.
struct Place {
    call: ReusableBoxFuture<'static, ()>,
    is_under_way: bool,
}

/// Places for calls of one kind, kept from round to round: beyond a kilobyte each, to ask the allocator for them and give
/// them back, often on another thread, would cost more than anything else in a round.
#[derive(Default)]
pub(super) struct Places(Mutex<Vec<Vec<Place>>>);

impl Places {
    fn kept(&self) -> MutexGuard<'_, Vec<Vec<Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<Place> {
        self.kept().pop().unwrap_or_default()
    }

    /// Keeps them. Calls that have ended hold nothing any more.
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

    /// Carries them until `enough` finds what it looks for; `None` if it did not when all have ended.
    pub(super) async fn until<T>(&mut self, mut enough: impl FnMut() -> Option<T>) -> Option<T> {
        let Self { round, places, done } = self;
        let carrying = poll_fn(|context| {
            // One step of each.
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

    /// Carries them to their ends in the background.
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
