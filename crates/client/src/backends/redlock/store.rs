//! A majority of independent stores as one [`Store`].
//!
//! The decisions are in [`claim`](super::claim) and [`tally`](super::tally). Attempts ([`round`](super::round)) and
//! take-backs ([`taking_back`](super::taking_back)) go to all nodes at once, each within a time limit, on the
//! caller's own runtime: a call that crosses to another thread and back costs more than Redis does. If the caller or
//! its runtime is dropped before its calls have ended, the library's own thread takes over and takes back the entries
//! granted so far, so that a cancelled attempt leaves no entries.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::End;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::book::Book;
use super::carry::Places;
use super::claim::{Claim, majority_of};
use super::node::{Node, NodeStore};
use super::tally::Verdict;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, EntryId, Renewed, Store, Tried, Wake, Wakes};
use crate::io::LeaseThread;
use crate::machine::Granted;
use crate::time::BootInstant;

/// Attempts without waiting are repeated up to this number of rounds while rivals split the nodes and none has a
/// majority.
const SPLIT_TRIES: u32 = 3;
/// The random pause between them, in milliseconds.
const SPLIT_PAUSE_MS: std::ops::Range<u64> = 10..60;
/// A node with this many unanswered take-backs gets no further attempts until it answers: this bounds memory.
pub(super) const OWED_MAX: usize = 256;
/// Only wake-ups due within this time trigger an attempt at once; later ones are covered by the next scheduled
/// attempt.
const AT_ONCE: Duration = Duration::from_millis(50);

/// The quorum.
pub(super) struct RedlockStore<S>(Arc<Inner<S>>);

pub(super) struct Inner<S> {
    pub(super) nodes: Vec<Node<S>>,
    pub(super) names: Vec<String>,
    /// Unanswered take-backs, by node.
    pub(super) owed: Vec<AtomicUsize>,
    pub(super) majority: usize,
    pub(super) worker: LeaseThread,
    /// The listeners of the sessions.
    wakes: Wakes,
    pub(super) now: fn() -> BootInstant,
    pub(super) book: Book,
    pub(super) places_of_tries: Places,
    pub(super) places_of_ends: Places,
    trouble: Trouble,
}

/// Why no majority answered the latest round.
#[derive(Default)]
struct Trouble {
    /// Whether `says` is set: avoids the mutex on the usual path.
    is_there: AtomicBool,
    says: Mutex<Option<String>>,
}

impl<S: NodeStore> RedlockStore<S> {
    pub(super) fn new(
        nodes: Vec<Node<S>>,
        worker: LeaseThread,
        wakes: Wakes,
        now: fn() -> BootInstant,
    ) -> Self {
        let inner = Arc::new(Inner {
            names: nodes.iter().map(|node| node.name.clone()).collect(),
            owed: nodes.iter().map(|_| AtomicUsize::new(0)).collect(),
            majority: majority_of(nodes.len()),
            nodes,
            worker,
            wakes,
            now,
            book: Book::default(),
            places_of_tries: Places::default(),
            places_of_ends: Places::default(),
            trouble: Trouble::default(),
        });
        for (index, node) in inner.nodes.iter().enumerate() {
            let inner = Arc::downgrade(&inner);
            node.wakes.listen_to_others(move |id, wake| {
                if let Some(inner) = inner.upgrade() {
                    inner.woken(index, id, wake);
                }
            });
        }
        Self(inner)
    }
}

impl<S: NodeStore> Store for RedlockStore<S> {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            // `None`: the request was ended before this attempt began.
            let claim = inner.book.claim_for(&attempt.entry, inner.nodes.len(), (inner.now)());
            let Some(claim) = claim else { return Err(LOST) };
            let trying = Trying(Some((&inner, &claim)));
            let tried = inner.attempt(&claim, attempt).await;
            trying.done();
            tried
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let inner = self.0.clone();
        let (answer, answered) = oneshot::channel();
        // Renewals run to their end on the library's own thread, where most keep-alives come from, also if the caller
        // is gone.
        self.0.worker.run(Box::pin(async move { drop(answer.send(inner.renew(entries).await)) }));
        Box::pin(async move { answered.await.unwrap_or(Err(LOST)) })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.finish(&entry, doubt).await })
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble.says.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The library's thread or the request has ended: the outcome of the call is unknown here.
const LOST: CallError = CallError { sent: true };

impl<S: NodeStore> Inner<S> {
    pub(super) fn set_trouble(&self, says: Option<String>) {
        if says.is_some() || self.trouble.is_there.load(Ordering::SeqCst) {
            let mut trouble = self.trouble.says.lock().unwrap_or_else(PoisonError::into_inner);
            self.trouble.is_there.store(says.is_some(), Ordering::SeqCst);
            *trouble = says;
        }
    }

    async fn attempt(self: &Arc<Self>, claim: &Arc<Claim>, attempt: Attempt) -> Result<Tried, CallError> {
        let _turn = claim.turn.lock().await;
        let started = Instant::now();
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(tally) = self.round(claim, &attempt).await else { return self.again(claim).await };
            match tally.verdict() {
                Verdict::Won => return Ok(Tried::Granted(Granted::default())),
                Verdict::Taken if attempt.wait => {
                    return Ok(Tried::Waits { ahead: tally.ahead(), again: claim.next_pause() });
                }
                Verdict::Taken
                    if tally.is_split() && tries < SPLIT_TRIES && started.elapsed() < claim.try_limit() =>
                {
                    sleep(Duration::from_millis(fastrand::u64(SPLIT_PAUSE_MS))).await;
                }
                Verdict::Taken => {
                    self.end(claim);
                    return Ok(Tried::Busy(tally.busy()));
                }
                Verdict::Refused => {
                    self.end(claim);
                    return Ok(Tried::Refused(tally.refusal(&self.names)));
                }
                // `Open`: a majority granted, but too late.
                Verdict::Unreachable | Verdict::Open => return Err(CallError { sent: tally.in_doubt() }),
            }
        }
    }

    /// A repeated attempt of a claim that holds or is over: checks the hold by a renewal, which creates nothing.
    async fn again(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Tried, CallError> {
        match self.renew(vec![claim.entry.clone()]).await?[..] {
            [Renewed::Kept] => Ok(Tried::Granted(Granted::default())),
            _ => Err(LOST),
        }
    }

    /// Handles a wake-up from a node for one entry, or for all. It is passed on to the claim's session once a
    /// majority of the nodes may be free. With fewer an attempt could not succeed, and waiters would wake each other
    /// by their take-backs.
    fn woken(&self, index: usize, id: Option<&EntryId>, wake: Wake) {
        // A majority's hold can't be broken (`Backend::break_hold`), so that a node sends no other wake-ups.
        let Wake::Try(after) = wake else { return };
        if after > AT_ONCE {
            return;
        }
        let claims: Vec<Arc<Claim>> = match id {
            Some(id) => Claim::of_entry(id).and_then(|claim| self.book.known(&claim)).into_iter().collect(),
            None => self.book.all(),
        };
        for claim in claims {
            if claim.woken(index) {
                self.wakes.deliver(&claim.entry.id, wake);
            }
        }
    }
}

/// An attempt on a caller's task. If it is dropped before its end, by itself or with its runtime, the library's own
/// thread ends the claim and takes back its entries.
struct Trying<'a, S: NodeStore>(Option<(&'a Arc<Inner<S>>, &'a Arc<Claim>)>);

impl<S: NodeStore> Trying<'_, S> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl<S: NodeStore> Drop for Trying<'_, S> {
    fn drop(&mut self) {
        if let Some((inner, claim)) = self.0.take() {
            let (inner, claim) = (inner.clone(), claim.clone());
            let worker = inner.worker.clone();
            worker.run(Box::pin(async move { inner.end(&claim) }));
        }
    }
}
