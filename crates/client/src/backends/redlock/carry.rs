//! How the calls of a round are carried: on the task of whoever waits for them, and in the background once nobody does.
//!
//! A task for each of them, or one for all, would cost more than what they do; so would a piece of memory or a timer for
//! each. All are polled side by side, with one timer, until enough is known; then the rest goes on in a task of its own. If
//! they are dropped before their end, with their caller or its runtime, the library's thread takes back what they may have
//! left behind (peers' flaw 1).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{JoinAll, join_all};

use super::claim::Claim;
use super::limit::RoundLimit;
use super::node::NodeStore;
use super::store::Inner;

/// What the calls of a round have in common.
pub(super) struct Round<S: NodeStore, K> {
    pub(super) inner: Arc<Inner<S>>,
    pub(super) claim: Arc<Claim>,
    pub(super) limit: RoundLimit,
    pub(super) kind: K,
}

/// What kind of calls they are.
pub(super) trait Kind: Send + Sync + 'static {
    /// They were dropped: whatever may come of them is to be taken back.
    fn abandon(&self, claim: &Claim);
}

/// The calls of a round, one for each node that is asked.
pub(super) struct Carried<S: NodeStore, K: Kind, F: Future<Output = ()>> {
    round: Arc<Round<S, K>>,
    calls: JoinAll<F>,
    done: bool,
}

impl<S: NodeStore, K: Kind, F: Future<Output = ()>> Carried<S, K, F> {
    pub(super) fn new(round: Arc<Round<S, K>>, calls: impl Iterator<Item = F>) -> Self {
        Self { round, calls: join_all(calls), done: false }
    }

    /// Carries them until `enough` finds what it looks for; `None` if it did not when all have ended.
    pub(super) async fn until<T>(&mut self, mut enough: impl FnMut() -> Option<T>) -> Option<T> {
        let Self { round, calls, done } = self;
        let carrying = poll_fn(|context| {
            // One step of each.
            *done = *done || Pin::new(&mut *calls).poll(context).is_ready();
            match enough() {
                None if !*done => Poll::Pending,
                found => Poll::Ready(found),
            }
        });
        round.limit.watch_over(carrying).await
    }

    /// Carries them to their ends in the background.
    pub(super) fn go_on(mut self)
    where
        F: Send + 'static,
    {
        if !self.done {
            tokio::spawn(async move { self.until(|| None::<()>).await });
        }
    }
}

impl<S: NodeStore, K: Kind, F: Future<Output = ()>> Drop for Carried<S, K, F> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let Round { inner, claim, kind, .. } = &*self.round;
        kind.abandon(claim);
        inner.take_back_elsewhere(claim);
    }
}
