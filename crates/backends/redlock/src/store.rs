//! A majority of independent stores as one [`Store`].
//!
//! An attempt, a release and a keep-alive each go to all nodes at once ([`acquire`](super::acquire),
//! [`removal`](super::removal), [`renewal`](super::renewal)), on the runtime of their caller. The result is
//! returned as soon as it is certain; the other nodes' calls run to their end in the background. If the
//! runtime ends before, the lease thread removes the entries that they may have left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{Attempt, Entry, EntryId, Renewed, Store, Tried, Wake, Wakes};
use lockkeeper_backend::{BootInstant, BoxFuture, CallError};
use lockkeeper_core::End;
use tokio::sync::Semaphore;

use super::claim::Claim;
use super::claims::Claims;
use super::majority::majority_of;

/// Only wake-ups due within this time trigger an attempt at once; later ones are covered by the next
/// scheduled attempt.
const AT_ONCE: Duration = Duration::from_millis(50);

/// While this many removals on a node are unanswered, the node gets no attempts. This bounds memory.
const UNANSWERED_MAX: usize = 256;

/// One of the servers.
pub(super) struct QuorumNode {
    /// As the URL names it, for display.
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
    /// The listener for its wake-ups.
    wakes: Wakes,
    /// Each removal that the node has not answered takes a permit. While none is left, the node gets no
    /// attempts.
    pub(super) unanswered: Semaphore,
}

impl QuorumNode {
    pub(super) fn new(name: String, store: Arc<dyn Store>, wakes: Wakes) -> Self {
        Self { name, store, wakes, unanswered: Semaphore::new(UNANSWERED_MAX) }
    }

    /// Why a call has failed.
    pub(super) fn why(&self, error: &CallError) -> String {
        let refusal = error.refusal.as_ref().map(|refusal| refusal.to_string());
        refusal.or_else(|| self.store.trouble()).unwrap_or_else(|| "out of reach".to_owned())
    }
}

/// The store over all nodes. Clones share it.
#[derive(Clone)]
pub(super) struct RedlockStore(Arc<Quorum>);

pub(super) struct Quorum {
    pub(super) nodes: Vec<QuorumNode>,
    pub(super) majority: usize,
    pub(super) lease_thread: LeaseThread,
    /// The listeners of the sessions.
    wakes: Wakes,
    pub(super) now: fn() -> BootInstant,
    pub(super) claims: Claims,
    /// Why no majority answered the latest round.
    trouble: Mutex<Option<String>>,
}

impl RedlockStore {
    pub(super) fn new(
        nodes: Vec<QuorumNode>,
        lease_thread: LeaseThread,
        wakes: Wakes,
        now: fn() -> BootInstant,
    ) -> Self {
        let majority = majority_of(nodes.len());
        let (claims, trouble) = (Claims::default(), Mutex::default());
        let quorum = Arc::new(Quorum { nodes, majority, lease_thread, wakes, now, claims, trouble });
        for (index, node) in quorum.nodes.iter().enumerate() {
            let quorum = Arc::downgrade(&quorum);
            node.wakes.listen_to_others(move |id, wake| {
                if let Some(quorum) = quorum.upgrade() {
                    quorum.woken(index, id, wake);
                }
            });
        }
        Self(quorum)
    }
}

impl Store for RedlockStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.0.attempt(attempt).await })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move { self.0.renew(&entries).await })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.0.finish(&entry, doubt).await })
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Quorum {
    pub(super) fn set_trouble(&self, says: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    /// Handles a wake-up from a node for one entry, or for all. It is passed on to the claim's session once a
    /// majority of the nodes may be free. With fewer an attempt could not succeed, and waiters would wake
    /// each other by removing the entries of their failed attempts.
    fn woken(&self, index: usize, id: Option<&EntryId>, wake: Wake) {
        // A majority's hold can't be broken (`Backend::break_hold`), so that a node sends no other wake-ups.
        let Wake::Try(after) = wake else { return };
        if after > AT_ONCE {
            return;
        }
        let claims: Vec<Arc<Claim>> = match id {
            Some(id) => Claim::id_of(id).and_then(|claim| self.claims.get(&claim)).into_iter().collect(),
            None => self.claims.all(),
        };
        for claim in claims {
            if claim.woken(index) {
                self.wakes.deliver(&claim.entry.id, wake);
            }
        }
    }
}

/// Runs calls whose results change no outcome to their end, in the background.
pub(super) fn run_in_background<F>(calls: FuturesUnordered<F>)
where
    F: Future<Output: Send> + Send + 'static,
{
    if !calls.is_empty() {
        tokio::spawn(calls.for_each(|_| std::future::ready(())));
    }
}
