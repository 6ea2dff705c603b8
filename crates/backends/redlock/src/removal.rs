//! Removal of the entries of ended holds and of failed attempts, on the runtime of the caller that releases
//! or on the lease thread, until the node has answered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_backend::leased::Entry;
use lockkeeper_backend::{BackendError, BackendErrorKind, CallError};
use lockkeeper_core::End;
use tokio::time::{Instant, sleep, timeout};

use super::claim::Claim;
use super::store::{Quorum, QuorumNode, run_in_background};

/// Pauses before a removal is repeated: the first, and the longest, so that a node that is back gets it
/// within a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Quorum {
    pub(super) async fn finish(self: &Arc<Self>, entry: &Entry, doubt: bool) -> Result<End, CallError> {
        if doubt {
            self.claims.remember_over(entry, (self.now)());
        }
        let Some(claim) = self.claims.get(&entry.id) else { return Ok(End::Gone) };
        let removal =
            |index| NodeRemoval { quorum: self.clone(), claim: claim.clone(), index, is_done: false };
        let removals = self.begin_end(&claim).into_iter().map(|index| removal(index).run());
        let mut removals: FuturesUnordered<_> = removals.collect();
        let mut failures = Vec::new();
        let outcome = timeout(entry.limit(), async {
            tokio::select! {
                biased;
                // After these removals, attempts and removals that earlier calls began may still be running.
                () = async {
                    while let Some(removed) = removals.next().await {
                        failures.extend(removed.err());
                    }
                } => claim.ended().await,
                outcome = claim.ended() => outcome,
            }
        });
        let outcome = outcome.await.unwrap_or(Err(CallError::IN_DOUBT));
        // The removals that are left can't change the outcome, or the outcome is returned as unknown.
        run_in_background(removals);
        outcome.map_err(|unknown| {
            if failures.is_empty() {
                // Removals that an earlier call began have not returned here.
                let trouble = |node: &QuorumNode| Some(format!("{}: {}", node.name, node.store.trouble()?));
                failures.extend(self.nodes.iter().filter_map(trouble));
            }
            if failures.is_empty() {
                return unknown;
            }
            let what = format!("no majority of the servers confirms the release: {}", failures.join("; "));
            let refusal = BackendError::new(BackendErrorKind::Unreachable, what);
            CallError { sent: true, ..CallError::refused(refusal) }
        })
    }

    /// Ends a claim on every node, in the background.
    pub(super) fn end(self: &Arc<Self>, claim: &Arc<Claim>) {
        self.remove_in_background(claim, self.begin_end(claim));
    }

    /// Begins the end of a claim. Returns the nodes from which its entry must be removed.
    fn begin_end(&self, claim: &Claim) -> Vec<usize> {
        let removals = claim.end();
        self.forget_if_gone(claim);
        removals
    }

    fn forget_if_gone(&self, claim: &Claim) {
        if claim.is_gone() {
            self.claims.remove(claim);
        }
    }

    /// Removes the entry from a node, if any.
    ///
    /// # Errors
    /// Why the node did not.
    async fn try_remove(&self, claim: &Claim, index: usize) -> Result<(), String> {
        let Some(removal) = claim.removal(index) else { return Ok(()) };
        let node = &self.nodes[index];
        match node.store.finish(removal.entry, removal.doubt).await {
            Ok(end) => {
                self.removed(claim, index, end);
                Ok(())
            }
            Err(error) => {
                claim.not_removed(index);
                Err(format!("{}: {}", node.name, node.why(&error)))
            }
        }
    }

    fn removed(&self, claim: &Claim, index: usize, end: End) {
        claim.removed(index, end);
        self.forget_if_gone(claim);
    }

    /// Removes the entries from these nodes on the lease thread.
    pub(super) fn remove_in_background(self: &Arc<Self>, claim: &Arc<Claim>, indexes: Vec<usize>) {
        for index in indexes {
            let (quorum, claim) = (self.clone(), claim.clone());
            self.lease_thread.run(Box::pin(async move { quorum.remove(&claim, index).await }));
        }
    }

    /// Repeats the removal until the node answers, or the entry has long expired there.
    async fn remove(&self, claim: &Claim, index: usize) {
        let give_up = Instant::now() + claim.entry.ttl.saturating_mul(2);
        let mut pause = PAUSES.0;
        let mut unanswered = None;
        loop {
            if claim.removal(index).is_some_and(|removal| removal.unanswered) && unanswered.is_none() {
                unanswered = self.nodes[index].unanswered.try_acquire().ok();
            }
            if self.try_remove(claim, index).await.is_ok() {
                return;
            }
            if Instant::now() >= give_up {
                return self.removed(claim, index, End::Gone);
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSES.1);
        }
    }
}

/// A removal from one node by the caller of a release. If it gets no answer, or is dropped because its
/// runtime ends, the lease thread repeats it.
struct NodeRemoval {
    quorum: Arc<Quorum>,
    claim: Arc<Claim>,
    index: usize,
    is_done: bool,
}

impl NodeRemoval {
    async fn run(mut self) -> Result<(), String> {
        let removed = self.quorum.try_remove(&self.claim, self.index).await;
        self.is_done = removed.is_ok();
        removed
    }
}

impl Drop for NodeRemoval {
    fn drop(&mut self) {
        if !self.is_done {
            self.quorum.remove_in_background(&self.claim, vec![self.index]);
        }
    }
}
