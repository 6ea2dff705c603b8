//! What is no hold, or no longer one, is taken back at every node: with whoever ends it, and in the background until the
//! node has answered.

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

/// The first pause before a take-back is repeated, and the longest: a node that is back has it within a second.
const REPEAT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What a round of ends has in common.
#[derive(Default)]
pub(super) struct Ends {
    /// What most nodes are asked to take back: the same, unless something was taken back at one before.
    letter: OnceLock<EndLetter>,
    /// A node has not answered, and is asked again by the library's thread.
    is_repeated: AtomicBool,
}

impl Kind for Ends {
    fn places<S: NodeStore>(inner: &Inner<S>) -> &Places {
        &inner.places_of_ends
    }

    /// What leaves is marked already.
    fn abandon(&self, _: &Claim) {}
}

/// Takes back at one node.
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
    /// Takes back at these nodes, in the background.
    pub(super) fn take_back_all(self: &Arc<Self>, claim: &Arc<Claim>, indexes: Vec<usize>) {
        if !indexes.is_empty() {
            self.taking_back(claim, indexes).0.go_on();
        }
    }

    /// Sees to it, on the library's own thread, that whatever leaves is taken back: whoever was at it is gone.
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

    /// Takes back at a node whatever is marked so, with the door of that node closed behind it. `false`: it did not
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

    /// Goes on with it on the library's own thread, until the node answers, or the entry has long ended there by itself.
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

    /// Ends a claim at every node, in the background.
    pub(super) fn end(self: &Arc<Self>, claim: &Arc<Claim>) {
        let (leaving, _) = self.ending(claim);
        self.take_back_all(claim, leaving);
    }

    /// From here on nothing may be left of it: the nodes at which it must be taken back, and whether others are at it.
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
            // What changes, changes by what is carried here.
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
            // What is left is taken back in the background: no majority can be made of it.
            Ending::Done(end) => Ok(end),
            Ending::Pending | Ending::Unknown => Err(CallError { sent: true }),
        }
    }
}
