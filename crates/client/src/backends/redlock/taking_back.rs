//! Taking back: removes the entries of ended holds and of failed attempts from every node, on the task that ends
//! them, and then in the background until the node has answered.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::End;
use tokio::time::{Instant, sleep, sleep_until};

use super::carry::{Carried, Kind, Places, Round};
use super::claim::{Claim, Debt, Ending, TakeBack};
use super::limit::RoundLimit;
use super::node::{EndLetter, NodeStore};
use super::store::Inner;
use crate::backend::CallError;
use crate::backends::leased::Entry;

/// Pauses before a take-back is repeated: the first, and the longest, so that a node that is back gets it within a
/// second.
const REPEAT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The shared state of a round of take-backs.
#[derive(Default)]
pub(super) struct Ends {
    /// The call for most nodes: the same for all, except for nodes on which an earlier entry was taken back.
    letter: OnceLock<EndLetter>,
    /// A node has not answered, and the library's thread repeats its take-back.
    is_repeated: AtomicBool,
}

impl Kind for Ends {
    fn places<S: NodeStore>(inner: &Inner<S>) -> &Places {
        &inner.places_of_ends
    }

    /// The entries to take back are marked already.
    fn abandon(&self, _: &Claim) {}
}

/// Takes back on one node.
async fn take_back<S: NodeStore>(round: Arc<Round<S, Ends>>, index: usize) {
    let Round { inner, claim, limit, kind } = &*round;
    let inside = claim.doors[index].lock().await;
    if !inner.take_back(index, claim, limit, &kind.letter).await {
        drop(inside);
        inner.go_on_taking_back(index, claim);
        kind.is_repeated.store(true, Ordering::Relaxed);
    }
}

impl<S: NodeStore> Inner<S> {
    /// Takes back on these nodes, in the background.
    pub(super) fn take_back_all(self: &Arc<Self>, claim: &Arc<Claim>, indexes: Vec<usize>) {
        if !indexes.is_empty() {
            self.taking_back(claim, indexes).0.go_on();
        }
    }

    /// Takes back all marked entries on the library's own thread, after the task that did so was dropped.
    pub(super) fn take_back_elsewhere(self: &Arc<Self>, claim: &Arc<Claim>) {
        let (inner, claim) = (self.clone(), claim.clone());
        self.worker.run(Box::pin(async move { inner.take_back_all(&claim, claim.leaving()) }));
    }

    fn taking_back(
        self: &Arc<Self>,
        claim: &Arc<Claim>,
        indexes: Vec<usize>,
    ) -> (Carried<S, Ends>, Arc<Round<S, Ends>>) {
        let round = Arc::new(Round {
            inner: self.clone(),
            claim: claim.clone(),
            limit: RoundLimit::new(claim.entry.limit()),
            kind: Ends::default(),
        });
        let calls = indexes.into_iter().map({
            let round = round.clone();
            move |index| take_back(round.clone(), index)
        });
        (Carried::new(round.clone(), calls), round)
    }

    /// Takes back the marked entry on a node, if any. The caller holds the node's mutex. Returns `false` without an
    /// answer.
    pub(super) async fn take_back(
        &self,
        index: usize,
        claim: &Claim,
        limit: &RoundLimit,
        letter: &OnceLock<EndLetter>,
    ) -> bool {
        let Some(TakeBack { entry, doubt }) = claim.owed(index) else { return true };
        let node = &self.nodes[index];
        let _debt = doubt.then(|| Debt::of(&self.owed[index]));
        let letter = letter.get_or_init(|| EndLetter::new(entry.clone(), doubt));
        let own;
        let letter = if Arc::ptr_eq(&letter.entry, &entry) && letter.doubt == doubt {
            letter
        } else {
            own = Box::new(EndLetter::new(entry, doubt));
            &own
        };
        match node.store.finish(letter, limit).await {
            Ok(end) => {
                self.cleared(index, claim, end);
                true
            }
            Err(_) => {
                claim.not_cleared(index);
                false
            }
        }
    }

    /// Repeats the take-back on the library's own thread until the node answers, or the entry has long expired there.
    pub(super) fn go_on_taking_back(self: &Arc<Self>, index: usize, claim: &Arc<Claim>) {
        let (inner, claim) = (self.clone(), claim.clone());
        self.worker.run(Box::pin(async move {
            let _inside = claim.doors[index].lock().await;
            let _debt = Debt::of(&inner.owed[index]);
            let give_up = Instant::now() + claim.entry.ttl.saturating_mul(2);
            let mut pause = REPEAT.0;
            loop {
                sleep(pause).await;
                pause = (2 * pause).min(REPEAT.1);
                let (limit, letter) = (RoundLimit::new(claim.entry.limit()), OnceLock::new());
                if limit.watch_over(inner.take_back(index, &claim, &limit, &letter)).await {
                    return;
                }
                if Instant::now() >= give_up {
                    return inner.cleared(index, &claim, End::Gone);
                }
            }
        }));
    }

    fn cleared(&self, index: usize, claim: &Claim, end: End) {
        if claim.cleared(index, end) {
            self.book.forget(claim);
        }
    }

    /// Ends a claim on every node, in the background.
    pub(super) fn end(self: &Arc<Self>, claim: &Arc<Claim>) {
        let (leaving, _) = self.ending(claim);
        self.take_back_all(claim, leaving);
    }

    /// Begins the end of a claim. Returns the nodes on which to take back, and whether other calls or take-backs are
    /// running.
    fn ending(&self, claim: &Claim) -> (Vec<usize>, bool) {
        let ending = claim.end();
        if ending.0.is_empty() && claim.is_gone() {
            self.book.forget(claim);
        }
        ending
    }

    pub(super) async fn finish(self: &Arc<Self>, entry: &Entry, doubt: bool) -> Result<End, CallError> {
        if doubt {
            self.book.remember_over(entry, (self.now)());
        }
        let Some(claim) = self.book.known(&entry.id) else { return Ok(End::Gone) };
        let (leaving, others) = self.ending(&claim);
        let (mut taking_back, round) = self.taking_back(&claim, leaving);
        let mut ending = Ending::Pending;
        if !others {
            // Only the calls of this round can change the claim.
            let settled = || match claim.ending() {
                Ending::Pending
                    if !round.kind.is_repeated.load(Ordering::Relaxed) && !round.limit.has_passed() =>
                {
                    None
                }
                ending => Some(ending),
            };
            ending = taking_back.until(settled).await.unwrap_or(Ending::Pending);
        }
        if ending == Ending::Pending {
            let settled = async {
                loop {
                    let mut changed = pin!(claim.changed.notified());
                    changed.as_mut().enable();
                    match claim.ending() {
                        Ending::Pending => changed.await,
                        ending => return ending,
                    }
                }
            };
            let carried = async {
                taking_back.until(|| None::<()>).await;
                pending().await
            };
            ending = Box::pin(async {
                tokio::select! {
                    ending = settled => ending,
                    ending = carried => ending,
                    () = sleep_until(round.limit.deadline()) => Ending::Unknown,
                }
            })
            .await;
        }
        taking_back.go_on();
        match ending {
            // The remaining entries are taken back in the background: they can't form a majority.
            Ending::Done(end) => Ok(end),
            Ending::Pending | Ending::Unknown => Err(CallError { sent: true }),
        }
    }
}
