//! A round of attempts: asks all nodes at once, and applies the majority's outcome.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::carry::{Carried, Kind, Places, Round};
use super::claim::{Asking, Claim};
use super::limit::RoundLimit;
use super::node::{NodeStore, TryLetter};
use super::store::{Inner, OWED_MAX};
use super::tally::{Said, Tally, Verdict, timed_out};
use crate::backend::CallError;
use crate::backends::leased::{Attempt, Tried};

/// The shared state of a round's attempts.
pub(super) struct Tries {
    round: u64,
    attempt: Attempt,
    /// The call for most nodes: the same for all, except for nodes on which an earlier entry was taken back.
    letter: OnceLock<TryLetter>,
    /// `None` once the caller has read the outcome.
    tally: Mutex<Option<Tally>>,
}

impl Tries {
    fn tally(&self) -> MutexGuard<'_, Option<Tally>> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, index: usize, said: Said) {
        if let Some(tally) = &mut *self.tally() {
            tally.add(index, said);
        }
    }

    fn verdict(&self) -> Verdict {
        self.tally().as_ref().map_or(Verdict::Open, Tally::verdict)
    }
}

impl Kind for Tries {
    fn places<S: NodeStore>(inner: &Inner<S>) -> &Places {
        &inner.places_of_tries
    }

    fn abandon(&self, claim: &Claim) {
        claim.unheard(self.round);
    }
}

const STILL: &str = "not asked: it has not yet taken back an earlier try";

/// One attempt on one node.
async fn ask<S: NodeStore>(round: Arc<Round<S, Tries>>, index: usize) {
    let Round { inner, claim, limit, kind } = &*round;
    let failed = |why: &str| Said::Failed { sent: false, why: why.to_owned() };
    if inner.owed[index].load(Ordering::Relaxed) >= OWED_MAX {
        return kind.tell(index, failed("not asked: it has not answered to earlier calls"));
    }
    let door = &claim.doors[index];
    let inside = match door.try_lock() {
        Ok(inside) => inside,
        Err(_) => match limit.within(door.lock()).await {
            Some(inside) => inside,
            None => return kind.tell(index, failed(STILL)),
        },
    };
    let (entry, first) = loop {
        match claim.ask(index, kind.round) {
            Asking::Try { entry, first } => break (entry, first),
            Asking::Nothing => return kind.tell(index, failed("not asked: the outcome was certain")),
            // This task may have locked the node's mutex before the task that is to take the entry back.
            Asking::Owed => {
                let taking_back = async { inner.take_back(index, claim, limit, &OnceLock::new()).await };
                if !Box::pin(taking_back).await {
                    kind.tell(index, failed(STILL));
                    return inner.go_on_taking_back(index, claim);
                }
            }
        }
    };
    let attempt = |entry| Attempt { entry, first, ..kind.attempt.clone() };
    let letter = kind.letter.get_or_init(|| TryLetter::new(attempt(entry.clone())));
    let own;
    let letter = if Arc::ptr_eq(&letter.attempt.entry, &entry) && letter.attempt.first == first {
        letter
    } else {
        own = Box::new(TryLetter::new(attempt(entry)));
        &own
    };
    let node = &inner.nodes[index];
    let answer = match node.store.attempt(letter, limit).await {
        Ok(Tried::Granted(_)) => Said::Granted,
        Ok(Tried::Busy(busy)) => Said::Busy(busy),
        Ok(Tried::Waits { ahead, .. }) => Said::Waits { ahead },
        Ok(Tried::Refused(error)) => Said::Refused(error),
        Err(CallError { sent: true }) if limit.left().is_zero() => timed_out(limit.length()),
        Err(CallError { sent }) => {
            let why = node.store.trouble().unwrap_or_else(|| "out of reach".to_owned());
            Said::Failed { sent, why }
        }
    };
    let take_back = claim.heard(index, kind.round, &answer);
    // Has no effect once the outcome was read.
    kind.tell(index, answer);
    if !take_back {
        return;
    }
    if limit.has_passed() {
        // A new round, with a time limit of its own.
        drop(inside);
        return inner.take_back_all(claim, vec![index]);
    }
    let taking_back = async { inner.take_back(index, claim, limit, &OnceLock::new()).await };
    if !Box::pin(taking_back).await {
        drop(inside);
        inner.go_on_taking_back(index, claim);
    }
}

impl<S: NodeStore> Inner<S> {
    /// Asks every node once, and applies the outcome. `None`: the claim holds already or is over. A tally without
    /// answers: a majority granted too late.
    pub(super) async fn round(self: &Arc<Self>, claim: &Arc<Claim>, attempt: &Attempt) -> Option<Tally> {
        let number = claim.begin((self.now)())?;
        let round = Arc::new(Round {
            inner: self.clone(),
            claim: claim.clone(),
            limit: RoundLimit::new(claim.try_limit()),
            kind: Tries {
                round: number,
                attempt: attempt.clone(),
                letter: OnceLock::new(),
                tally: Mutex::new(Some(Tally::new(self.nodes.len(), self.majority))),
            },
        });
        let calls = (0..self.nodes.len()).map(|index| ask(round.clone(), index));
        let mut asking = Carried::new(round.clone(), calls);
        let certain = || match round.kind.verdict() {
            Verdict::Open => None,
            verdict => Some(verdict),
        };
        let verdict = asking.until(certain).await.unwrap_or(Verdict::Open);
        if matches!(verdict, Verdict::Unreachable | Verdict::Refused) {
            // The error describes every node's answer.
            asking.until(|| None::<()>).await;
        }
        let tally = round.kind.tally().take()?;
        // The remaining answers change no outcome, but must be processed.
        asking.go_on();
        if verdict == Verdict::Won {
            match claim.win(number, (self.now)()) {
                Ok(queues) => {
                    self.take_back_all(claim, queues);
                    self.set_trouble(None);
                }
                Err(late) => {
                    self.take_back_all(claim, late);
                    return Some(Tally::new(self.nodes.len(), self.majority));
                }
            }
        } else {
            self.take_back_all(claim, claim.lose(number));
        }
        if verdict == Verdict::Unreachable {
            let says = tally.describe(&self.names);
            tracing::debug!(name = %claim.entry.name, "no majority of {} nodes answers: {says}", self.nodes.len());
            self.set_trouble(Some(format!(
                "{} of {} nodes must grant it ({says})",
                self.majority,
                self.nodes.len()
            )));
        }
        Some(tally)
    }
}
