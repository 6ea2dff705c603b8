//! A majority of independent stores as one [`Store`].
//!
//! What follows from the nodes' answers is decided in [`claim`](super::claim) and [`tally`](super::tally); here the
//! nodes are asked, all at once, each with a time limit of its own, on the runtime of whoever asks: a call that crosses
//! to another thread and back costs more than Redis does. A caller that is gone, or its whole runtime, cancels nothing:
//! every step that is dropped before its end is taken over by the library's own thread, which takes back what was
//! granted on the way (peers' flaw 1).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::End;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::carry::{go_on, next_said, step};
use super::claim::{Claim, Debt, Ending, TakeBack, majority_of};
use super::tally::{Said, Tally, Verdict, timed_out};
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, EntryId, Renewed, Store, Tried, Wake, Wakes};
use crate::machine::Granted;
use crate::mailbox::{Writer, mailbox};
use crate::time::BootInstant;
use crate::worker::Worker;

/// How often a try without a wait is repeated while rivals have a few nodes each and nobody a majority.
const SPLIT_TRIES: u32 = 3;
/// How long such a try pauses, in milliseconds.
const SPLIT_PAUSE_MS: std::ops::Range<u64> = 10..60;
/// A node that owes answers to so many take-backs is not asked for more until it is heard of again: memory is finite.
const OWED_MAX: usize = 256;
/// The first pause before a take-back is repeated, and the longest: a node that is back has it within a second.
const REPEAT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A node that says so lets us try at once; any later moment is as good as the next try that is due anyway.
const AT_ONCE: Duration = Duration::from_millis(50);

/// One of the servers.
pub(super) struct Node {
    /// As the URL names it, for people.
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
    /// Where it tells that it may be an entry's turn there.
    pub(super) wakes: Wakes,
}

/// The quorum.
pub(super) struct RedlockStore(Arc<Inner>);

pub(super) struct Inner {
    pub(super) nodes: Vec<Node>,
    names: Vec<String>,
    /// Take-backs that a node has not answered.
    owed: Vec<AtomicUsize>,
    pub(super) majority: usize,
    worker: Worker,
    /// Where sessions hear that it may be their turn.
    wakes: Wakes,
    pub(super) now: fn() -> BootInstant,
    book: Mutex<Book>,
    trouble: Mutex<Option<String>>,
}

/// Every request that may have something at a node.
#[derive(Default)]
struct Book {
    claims: BTreeMap<EntryId, Arc<Claim>>,
    /// Ended, while a try of it may still be on its way here; until when that is remembered.
    over: BTreeMap<EntryId, BootInstant>,
    /// At so many of both those are looked for that are long over.
    sweep_at: usize,
}

const SWEEP_MIN: usize = 1024;

impl Book {
    /// Forgets what is long over: what was in doubt, and claims whose session was given up, which nobody ends.
    fn sweep(&mut self, now: BootInstant) {
        if self.claims.len() + self.over.len() >= self.sweep_at {
            self.claims.retain(|_, claim| !claim.is_forgotten(now));
            self.over.retain(|_, until| now < *until);
            self.sweep_at = (2 * (self.claims.len() + self.over.len())).max(SWEEP_MIN);
        }
    }
}

impl RedlockStore {
    pub(super) fn new(nodes: Vec<Node>, worker: Worker, wakes: Wakes, now: fn() -> BootInstant) -> Self {
        let inner = Arc::new(Inner {
            names: nodes.iter().map(|node| node.name.clone()).collect(),
            owed: nodes.iter().map(|_| AtomicUsize::new(0)).collect(),
            majority: majority_of(nodes.len()),
            nodes,
            worker,
            wakes,
            now,
            book: Mutex::default(),
            trouble: Mutex::default(),
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

impl Store for RedlockStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            // It may have been ended before it began.
            let Some(claim) = inner.claim_for(&attempt.entry) else { return Err(LOST) };
            let step = Step::of(&inner, &claim, None);
            let tried = inner.attempt(&claim, attempt).await;
            step.done();
            tried
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let inner = self.0.clone();
        let (answer, answered) = oneshot::channel();
        // On the library's own thread, where most come from: whoever asked may be gone, and it is done all the same.
        self.0.worker.run(Box::pin(async move { drop(answer.send(inner.renew(entries).await)) }));
        Box::pin(async move { answered.await.unwrap_or(Err(LOST)) })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.finish(&entry, doubt).await })
    }

    fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The library's thread has ended, or the request: what was sent is not known here.
const LOST: CallError = CallError { sent: true };

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim of a request, made if it is new; `None` if the request is over.
    fn claim_for(&self, entry: &Arc<Entry>) -> Option<Arc<Claim>> {
        let now = (self.now)();
        let mut book = self.book();
        if book.over.contains_key(&entry.id) {
            return None;
        }
        if let Some(claim) = book.claims.get(&entry.id) {
            return Some(claim.clone());
        }
        book.sweep(now);
        let claim = Arc::new(Claim::new(entry.clone(), self.nodes.len(), now));
        book.claims.insert(entry.id.clone(), claim.clone());
        Some(claim)
    }

    pub(super) fn known(&self, id: &EntryId) -> Option<Arc<Claim>> {
        self.book().claims.get(id).cloned()
    }

    /// From here on no try of it begins.
    pub(super) fn remember_over(&self, entry: &Entry) {
        let now = (self.now)();
        let mut book = self.book();
        book.sweep(now);
        book.over.insert(entry.id.clone(), now + entry.ttl.saturating_mul(2));
    }

    fn forget(&self, claim: &Claim) {
        self.book().claims.remove(&claim.entry.id);
    }

    fn set_trouble(&self, says: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = says;
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
                // Open: it was won too late to be of use.
                Verdict::Unreachable | Verdict::Open => return Err(CallError { sent: tally.in_doubt() }),
            }
        }
    }

    /// A further attempt of what holds already, or is over: asks whether it holds, and makes nothing anew.
    async fn again(self: &Arc<Self>, claim: &Arc<Claim>) -> Result<Tried, CallError> {
        match self.renew(vec![claim.entry.clone()]).await?[..] {
            [Renewed::Kept] => Ok(Tried::Granted(Granted::default())),
            _ => Err(LOST),
        }
    }

    /// Asks every node once, and settles what follows. `None`: the claim is no longer to be asked for. A tally that
    /// is left open was won too late.
    async fn round(self: &Arc<Self>, claim: &Arc<Claim>, attempt: &Attempt) -> Option<Tally> {
        let round = claim.begin((self.now)())?;
        let (says, mut said) = mailbox();
        let (says, mut asking) = (Arc::new(says), Vec::<BoxFuture<()>>::with_capacity(self.nodes.len()));
        for index in 0..self.nodes.len() {
            let (inner, claim, attempt, says) = (self.clone(), claim.clone(), attempt.clone(), says.clone());
            let step = Step::of(&inner, &claim, Some(index));
            asking.push(Box::pin(async move {
                inner.ask(index, &claim, round, attempt, says).await;
                step.done();
            }));
        }
        drop(says);
        let mut tally = Tally::new(self.nodes.len(), self.majority);
        while tally.verdict() == Verdict::Open {
            let Some((index, answer)) = next_said(&mut asking, &mut said).await else { break };
            tally.add(index, answer);
        }
        let verdict = tally.verdict();
        if matches!(verdict, Verdict::Unreachable | Verdict::Refused) {
            // Whoever is told that it failed is told what each node said.
            while let Some((index, answer)) = next_said(&mut asking, &mut said).await {
                tally.add(index, answer);
            }
        }
        // What the others say decides nothing, but must be heard.
        go_on(asking);
        if verdict == Verdict::Won {
            match claim.win(round, (self.now)()) {
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
            self.take_back_all(claim, claim.lose(round));
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

    /// One try at one node.
    async fn ask(
        self: &Arc<Self>,
        index: usize,
        claim: &Arc<Claim>,
        round: u64,
        attempt: Attempt,
        says: Arc<Writer<(usize, Said)>>,
    ) {
        let limit = claim.try_limit();
        let deadline = Instant::now() + limit;
        let failed = |why: &str| Said::Failed { sent: false, why: why.to_owned() };
        // Nobody listens once the outcome is certain. Whoever does is done when each node has said something.
        let tell = move |answer: Said| {
            let says = says;
            drop(says.send((index, answer)));
        };
        if self.owed[index].load(Ordering::Relaxed) >= OWED_MAX {
            return tell(failed("not asked: it has not answered to earlier calls"));
        }
        const STILL: &str = "not asked: it has not yet taken back an earlier try";
        let door = claim.doors[index].clone();
        let inside = match door.clone().try_lock_owned() {
            Ok(inside) => inside,
            Err(_) => match timeout_at(deadline, door.lock_owned()).await {
                Ok(inside) => inside,
                Err(_) => return tell(failed(STILL)),
            },
        };
        // The door may have been reached before whoever takes back.
        if claim.owed(index).is_some() {
            match timeout_at(deadline, Box::pin(self.take_back(index, claim))).await {
                Ok(true) => {}
                Ok(false) | Err(_) => {
                    tell(failed(STILL));
                    return self.go_on_taking_back(index, claim, inside);
                }
            }
        }
        let Some((entry, first)) = claim.ask(index, round) else {
            return tell(failed("not asked: the outcome was certain"));
        };
        let node = &self.nodes[index];
        let attempt = Attempt { entry: entry.clone(), first, ..attempt };
        let tried = timeout_at(deadline, node.store.attempt(attempt)).await;
        let answer = match tried {
            Ok(Ok(Tried::Granted(_))) => Said::Granted,
            Ok(Ok(Tried::Busy(busy))) => Said::Busy(busy),
            Ok(Ok(Tried::Waits { ahead, .. })) => Said::Waits { ahead },
            Ok(Ok(Tried::Refused(error))) => Said::Refused(error),
            Ok(Err(CallError { sent })) => {
                let why = node.store.trouble().unwrap_or_else(|| "out of reach".to_owned());
                Said::Failed { sent, why }
            }
            Err(_) => timed_out(limit),
        };
        let take_back = claim.heard(index, round, &answer);
        tell(answer);
        if take_back && !Box::pin(self.take_back(index, claim)).await {
            self.go_on_taking_back(index, claim, inside);
        }
    }

    /// A node says that it may be an entry's turn there, or anyone's. The session of a claim hears of it once a majority of
    /// the nodes is free as far as is known. Fewer are of no use: with them, those who wait would only wake each other by
    /// what they take back.
    fn woken(&self, index: usize, id: Option<&EntryId>, wake: Wake) {
        // Nobody can break a hold of a majority (`Backend::break_hold`): other news than a turn there is none.
        let Wake::Try(after) = wake else { return };
        if after > AT_ONCE {
            return;
        }
        let claims: Vec<Arc<Claim>> = match id {
            Some(id) => Claim::of_entry(id).and_then(|claim| self.known(&claim)).into_iter().collect(),
            None => self.book().claims.values().cloned().collect(),
        };
        for claim in claims {
            if claim.woken(index) {
                self.wakes.deliver(&claim.entry.id, wake);
            }
        }
    }

    fn take_back_all(self: &Arc<Self>, claim: &Arc<Claim>, indexes: Vec<usize>) {
        go_on(self.taking_back(claim, indexes));
    }

    fn taking_back(self: &Arc<Self>, claim: &Arc<Claim>, indexes: Vec<usize>) -> Vec<BoxFuture<()>> {
        let mut taking_back = Vec::<BoxFuture<()>>::with_capacity(indexes.len());
        for index in indexes {
            let (inner, claim) = (self.clone(), claim.clone());
            let step = Step::of(&inner, &claim, Some(index));
            taking_back.push(Box::pin(async move {
                let inside = claim.doors[index].clone().lock_owned().await;
                if !inner.take_back(index, &claim).await {
                    inner.go_on_taking_back(index, &claim, inside);
                }
                step.done();
            }));
        }
        taking_back
    }

    /// Takes back at a node whatever is marked so, with the door of that node closed behind it. `false`: it did not
    /// answer.
    async fn take_back(&self, index: usize, claim: &Claim) -> bool {
        let Some(TakeBack { entry, doubt }) = claim.owed(index) else { return true };
        let node = &self.nodes[index];
        let _debt = doubt.then(|| Debt::of(&self.owed[index]));
        match timeout(claim.entry.limit(), node.store.finish(entry, doubt)).await {
            Ok(Ok(end)) => {
                self.cleared(index, claim, end);
                true
            }
            Ok(Err(_)) | Err(_) => {
                claim.not_cleared(index);
                false
            }
        }
    }

    /// Goes on with it on the library's own thread, until the node answers, or the entry has long ended there by itself.
    fn go_on_taking_back(self: &Arc<Self>, index: usize, claim: &Arc<Claim>, inside: OwnedMutexGuard<()>) {
        let (inner, claim) = (self.clone(), claim.clone());
        self.worker.run(Box::pin(async move {
            let _inside = inside;
            let _debt = Debt::of(&inner.owed[index]);
            let give_up = Instant::now() + claim.entry.ttl.saturating_mul(2);
            let mut pause = REPEAT.0;
            loop {
                sleep(pause).await;
                pause = (2 * pause).min(REPEAT.1);
                if inner.take_back(index, &claim).await {
                    return;
                }
                if Instant::now() >= give_up {
                    return inner.cleared(index, &claim, End::Gone);
                }
            }
        }));
    }

    fn cleared(&self, index: usize, claim: &Claim, end: End) {
        claim.cleared(index, end);
        if claim.is_gone() {
            self.forget(claim);
        }
    }

    /// Ends a claim at every node, in the background.
    pub(super) fn end(self: &Arc<Self>, claim: &Arc<Claim>) {
        go_on(self.ending(claim));
    }

    /// What ends a claim at every node.
    fn ending(self: &Arc<Self>, claim: &Arc<Claim>) -> Vec<BoxFuture<()>> {
        let taking_back = self.taking_back(claim, claim.end());
        if claim.is_gone() {
            self.forget(claim);
        }
        taking_back
    }

    async fn finish(self: &Arc<Self>, entry: &Entry, doubt: bool) -> Result<End, CallError> {
        if doubt {
            self.remember_over(entry);
        }
        let Some(claim) = self.known(&entry.id) else { return Ok(End::Gone) };
        let mut taking_back = self.ending(&claim);
        let mut ended = pin!(async {
            loop {
                let mut changed = pin!(claim.changed.notified());
                changed.as_mut().enable();
                match claim.ending() {
                    Ending::Pending => changed.await,
                    ending => return ending,
                }
            }
        });
        let carried = poll_fn(|context| {
            step(&mut taking_back, context);
            ended.as_mut().poll(context)
        });
        let ended = timeout(entry.limit(), carried).await;
        go_on(taking_back);
        match ended {
            // What is left is taken back in the background: no majority can be made of it.
            Ok(Ending::Done(end)) => Ok(end),
            Ok(_) | Err(_) => Err(CallError { sent: true }),
        }
    }
}

/// A step of a claim on a caller's task or runtime, either of which may be gone before its end: then the library's own
/// thread sees to it that nothing is left. At one node, or at all of them.
struct Step(Option<(Arc<Inner>, Arc<Claim>, Option<usize>)>);

impl Step {
    fn of(inner: &Arc<Inner>, claim: &Arc<Claim>, at: Option<usize>) -> Self {
        Self(Some((inner.clone(), claim.clone(), at)))
    }

    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let Some((inner, claim, at)) = self.0.take() else { return };
        let worker = inner.worker.clone();
        worker.run(Box::pin(async move {
            let Some(index) = at else { return inner.end(&claim) };
            let inside = claim.doors[index].clone().lock_owned().await;
            claim.unheard(index);
            if !inner.take_back(index, &claim).await {
                inner.go_on_taking_back(index, &claim, inside);
            }
        }));
    }
}
