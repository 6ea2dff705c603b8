//! Keep-alives: renews holds on all nodes and counts majorities.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_backend::leased::{Entry, Renewed};
use lockkeeper_backend::{BackendError, BackendErrorKind, CallError};

use super::claim::{Claim, Renewing};
use super::store::{Quorum, run_in_background};

impl Quorum {
    pub(super) async fn renew(self: &Arc<Self>, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, CallError> {
        let now = (self.now)();
        let mut calls: Vec<Vec<NodeRenewal>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut counts = Vec::new();
        for entry in entries {
            let claim = self.claims.get(&entry.id);
            let mut count = RenewalCount { holds: true, ..RenewalCount::default() };
            match claim.as_ref().map(|claim| (claim, claim.renewing(now))) {
                Some((claim, Renewing::Entries(entries))) => {
                    count.pending = entries.len();
                    for (index, entry) in entries {
                        calls[index].push(NodeRenewal { of: counts.len(), claim: claim.clone(), entry });
                    }
                }
                Some((_, Renewing::Nothing)) => count.holds = false,
                Some((_, Renewing::Over)) | None => {}
            }
            counts.push((claim, count));
        }
        let calls = calls.into_iter().enumerate().filter(|(_, renewals)| !renewals.is_empty());
        let calls = calls.map(|(index, renewals)| self.clone().renew_on_node(index, renewals));
        let mut calls: FuturesUnordered<_> = calls.collect();
        // Stops as soon as the outcomes are certain, without waiting for slow nodes.
        let mut failures = Vec::new();
        while counts.iter().any(|(_, count)| count.outcome(self.majority).is_none()) {
            match calls.next().await {
                Some(Ok(results)) => results.into_iter().for_each(|(of, renewed)| counts[of].1.add(renewed)),
                Some(Err(failure)) => failures.push(failure),
                None => {
                    let what =
                        format!("no majority of the servers renews the lease: {}", failures.join("; "));
                    let refusal = BackendError::new(BackendErrorKind::Unreachable, what);
                    return Err(CallError { sent: true, ..CallError::refused(refusal) });
                }
            }
        }
        run_in_background(calls);
        let settle = |(claim, count): (Option<Arc<Claim>>, RenewalCount)| {
            let renewed = count.outcome(self.majority).unwrap_or(Renewed::Gone);
            if let (Renewed::Gone, Some(claim)) = (renewed, &claim) {
                // Ends the remaining minority of entries, which would only block other clients.
                self.claims.remember_over(&claim.entry, (self.now)());
                self.end(claim);
            }
            renewed
        };
        Ok(counts.into_iter().map(settle).collect())
    }

    /// Returns the results of one node.
    ///
    /// # Errors
    /// Why the node returned none.
    async fn renew_on_node(
        self: Arc<Self>,
        index: usize,
        renewals: Vec<NodeRenewal>,
    ) -> Result<Vec<(usize, Renewed)>, String> {
        let entries = renewals.iter().map(|renewal| renewal.entry.clone()).collect();
        let node = &self.nodes[index];
        let answers = node.store.renew(entries).await;
        let answers = answers.map_err(|error| format!("{}: {}", node.name, node.why(&error)))?;
        let results = renewals.into_iter().zip(answers).map(|(renewal, renewed)| {
            if renewed == Renewed::Gone {
                renewal.claim.lost(index, &renewal.entry);
            }
            (renewal.of, renewed)
        });
        Ok(results.collect())
    }
}

/// One entry in a renewal on one node.
struct NodeRenewal {
    /// The index of its request in the keep-alive.
    of: usize,
    claim: Arc<Claim>,
    entry: Arc<Entry>,
}

/// The nodes' answers for one request of a keep-alive.
#[derive(Default)]
struct RenewalCount {
    kept: usize,
    revoked: usize,
    /// Nodes without an answer: they may have the entry.
    pending: usize,
    /// `false`: the request has no hold that could expire.
    holds: bool,
}

impl RenewalCount {
    fn add(&mut self, renewed: Renewed) {
        match renewed {
            Renewed::Kept => self.kept += 1,
            Renewed::Revoked => self.revoked += 1,
            Renewed::Gone => {}
        }
        self.pending -= 1;
    }

    /// The outcome once it is certain: kept if a majority renewed the entry. If no majority can renew it any
    /// more: revoked if the nodes on which an operator broke it would complete a majority, otherwise gone.
    fn outcome(&self, majority: usize) -> Option<Renewed> {
        if !self.holds || self.kept >= majority {
            Some(Renewed::Kept)
        } else if self.kept + self.pending >= majority {
            None
        } else if self.kept + self.pending + self.revoked >= majority {
            Some(Renewed::Revoked)
        } else {
            Some(Renewed::Gone)
        }
    }
}
