//! Keep-alives: renews holds on all nodes and counts majorities.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::claim::{Claim, Renewing};
use super::node::NodeStore;
use super::store::Inner;
use crate::backend::CallError;
use crate::backends::leased::{Entry, Renewed};

impl<S: NodeStore> Inner<S> {
    pub(super) async fn renew(self: &Arc<Self>, entries: Vec<Arc<Entry>>) -> Result<Vec<Renewed>, CallError> {
        let now = (self.now)();
        let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
        let mut asked: Vec<Vec<Asked>> = self.nodes.iter().map(|_| Vec::new()).collect();
        let mut counts = Vec::new();
        for entry in &entries {
            let mut count =
                Count { claim: self.book.known(&entry.id), kept: 0, revoked: 0, pending: 0, holds: true };
            match count.claim.as_ref().map(|claim| claim.renewing(now)) {
                Some(Renewing::Ask(seats)) => {
                    count.pending = seats.len();
                    for (index, entry) in seats {
                        let Some(claim) = count.claim.clone() else { continue };
                        asked[index].push(Asked { which: counts.len(), claim, entry });
                    }
                }
                Some(Renewing::Nothing) => count.holds = false,
                Some(Renewing::Over) | None => {}
            }
            counts.push(count);
        }
        let (says, mut said) = mpsc::unbounded_channel();
        for (index, asked) in asked.into_iter().enumerate().filter(|(_, asked)| !asked.is_empty()) {
            let (inner, says) = (self.clone(), says.clone());
            tokio::spawn(async move { inner.renew_at(index, asked, limit, &says).await });
        }
        drop(says);
        // Waits until each entry's outcome is certain: slow nodes delay nothing if the others suffice.
        let mut open = counts.iter().filter(|count| count.renewed(self.majority).is_none()).count();
        while open > 0 {
            let Some((which, renewed)) = said.recv().await else { return Err(CallError { sent: true }) };
            let count: &mut Count = &mut counts[which];
            let was_open = count.renewed(self.majority).is_none();
            count.add(renewed);
            if was_open && count.renewed(self.majority).is_some() {
                open -= 1;
            }
        }
        let settle = |count: Count| {
            let renewed = count.renewed(self.majority).unwrap_or(Renewed::Gone);
            if let (Renewed::Gone, Some(claim)) = (renewed, &count.claim) {
                // The remaining minority of its entries would only keep others out.
                self.book.remember_over(&claim.entry, (self.now)());
                self.end(claim);
            }
            renewed
        };
        Ok(counts.into_iter().map(settle).collect())
    }

    async fn renew_at(
        &self,
        index: usize,
        asked: Vec<Asked>,
        limit: Duration,
        says: &mpsc::UnboundedSender<(usize, Option<Renewed>)>,
    ) {
        let entries = asked.iter().map(|asked| asked.entry.clone()).collect();
        let answer = timeout(limit, self.nodes[index].store.renew(entries)).await;
        let answers = answer.ok().and_then(Result::ok);
        for (at, Asked { which, claim, entry }) in asked.into_iter().enumerate() {
            let renewed = answers.as_ref().and_then(|answers| answers.get(at).copied());
            if let Some(renewed) = renewed {
                claim.renewed(index, &entry, renewed);
            }
            // The receiver stops once all outcomes are certain.
            let _ = says.send((which, renewed));
        }
    }
}

/// One entry in a renewal on one node.
struct Asked {
    /// Its index in the keep-alive.
    which: usize,
    claim: Arc<Claim>,
    entry: Arc<Entry>,
}

/// The nodes' answers for one entry of a keep-alive.
struct Count {
    claim: Option<Arc<Claim>>,
    kept: usize,
    revoked: usize,
    /// Nodes that have not answered, or never will: they may have the entry.
    pending: usize,
    /// `false`: it has no hold that could expire.
    holds: bool,
}

impl Count {
    fn add(&mut self, renewed: Option<Renewed>) {
        match renewed {
            // No answer: the node may have the entry or not.
            None => return,
            Some(Renewed::Kept) => self.kept += 1,
            Some(Renewed::Revoked) => self.revoked += 1,
            Some(Renewed::Gone) => {}
        }
        self.pending -= 1;
    }

    /// The outcome once it is certain: kept if a majority renewed it, gone if no majority can have it any more.
    fn renewed(&self, majority: usize) -> Option<Renewed> {
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
