//! One session over a [`Store`]: its entries, and the meaning of a keep-alive for them.
//!
//! Why an acknowledged keep-alive may extend the session's deadline (P5): it renews all entries that hold, wait, or
//! may hold by an attempt without an answer yet, and no others. So the expiry of each hold at the service is later
//! than the session's deadline: this keep-alive or a later renewal set it. There are two exceptions. An entry that a
//! keep-alive did not find may have got its expiry before and become visible after (a transaction with a slow
//! commit), and an entry under a break is not renewed. Such an entry is renewed once more before its grant is
//! returned or, if the grant was returned already, before the keep-alive is acknowledged. A session without entries
//! has nothing that can expire: its keep-alives are acknowledged without a call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{End, Seq};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::store::{Attempt, Entry, EntryId, Renewed, Store, Tried};
use super::wakes::{Wake, Wakes};
use crate::backend::{AcquireRequest, Call, CallError, Conn, Submitted};
use crate::error::{BackendError, BackendErrorKind};
use crate::machine::{Answer, Granted, Push, Spec};
use crate::time::BootInstant;

/// A session of leased entries.
pub(crate) struct LeasedConn(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    wakes: Wakes,
    label: Arc<str>,
    ttl: Duration,
    lock_delay: Duration,
    pushes: UnboundedSender<Push>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// 128 random bits in hex: no entry of another session has the same id.
    session: String,
    requests: BTreeMap<Seq, Request>,
    /// The highest seq of a request so far, if any. A request with a lower seq that is not in `requests` is over.
    last: Option<Seq>,
}

struct Request {
    entry: Arc<Entry>,
    woken: Arc<Woken>,
    stage: Stage,
    /// An attempt was sent, or may have been: the entry may exist and must be ended.
    left: bool,
    /// An attempt was sent and not answered: it may arrive late, even after a later one was granted.
    doubt: bool,
    /// How many times the entry was not renewed while its grant may have been on its way: a keep-alive did not find
    /// it, or it is under a break. Its hold may then expire before the session's deadline.
    missed: u64,
    /// When its end was first requested.
    ends_since: Option<BootInstant>,
}

#[derive(Clone, PartialEq, Debug)]
enum Stage {
    /// May hold or wait: an attempt is on its way, or its answer was lost.
    Asked,
    /// Waits, by its last answer.
    Waits,
    Holds(Granted),
    /// An operator broke it, and the session was notified. It is not renewed any more.
    Revoked,
    /// A finish is on its way. No renewal is sent after it, since a late one could keep a released lock held.
    Ends {
        revoked: bool,
    },
}

/// An entry that a keep-alive renews.
struct Renewable {
    seq: Seq,
    entry: Arc<Entry>,
    /// Its grant was returned when the renewal was sent.
    holds: bool,
}

/// The meaning of an entry's renewal for its keep-alive.
enum EntryRenewal {
    Fine,
    /// A hold is lost.
    Lost,
    /// It was granted after the renewal was sent, so that the renewal's answer does not apply to the hold.
    Again(Renewable),
}

/// The next step of an acquire call.
enum Step {
    Try(Attempt, Arc<Woken>),
    /// It holds already: the caller asks whether it still does.
    Check(Arc<Entry>, Granted),
    Over(Answer),
}

/// Wakes a waiting entry before its next attempt is due.
#[derive(Default)]
struct Woken {
    notify: Notify,
    /// The pause before the next attempt that the latest wake-ups asked for, if any: the shortest counts.
    pause: Mutex<Option<Duration>>,
}

impl Woken {
    fn wake(&self, after: Duration) {
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        *pause = Some(pause.map_or(after, |earlier| earlier.min(after)));
        drop(pause);
        self.notify.notify_one();
    }

    fn take(&self) -> Option<Duration> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until the next attempt is due: after `again`, or earlier if a wake-up asks for it.
    async fn until_due(&self, again: Duration) {
        let mut left = again;
        loop {
            if let Some(pause) = self.take() {
                left = left.min(pause);
            }
            let from = tokio::time::Instant::now();
            tokio::select! {
                () = tokio::time::sleep(left) => return,
                () = self.notify.notified() => left = left.saturating_sub(from.elapsed()),
            }
        }
    }
}

impl LeasedConn {
    /// Creates a session over `store`.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        wakes: Wakes,
        spec: Spec,
        label: &str,
        pushes: UnboundedSender<Push>,
    ) -> Arc<Self> {
        Arc::new(Self(Arc::new(Inner {
            store,
            wakes,
            label: label.into(),
            ttl: spec.ttl.unwrap_or(Duration::MAX),
            lock_delay: spec.lock_delay,
            pushes,
            state: Mutex::default(),
        })))
    }

    #[cfg(test)]
    pub(super) fn session_id(&self) -> String {
        self.0.state().session.clone()
    }
}

impl Conn for LeasedConn {
    fn submit(&self, call: Call) -> Submitted {
        let inner = self.0.clone();
        match call {
            Call::Open { fresh } => Submitted::Answered(Ok(inner.open(fresh))),
            Call::KeepAlive => match inner.renewable() {
                none if none.is_empty() => Submitted::Answered(Ok(Answer::KeptAlive)),
                renewing => Submitted::under_way(async move { inner.keep_alive(renewing).await }),
            },
            Call::Acquire { seq, request, .. } => match inner.step(seq, &request) {
                Step::Try(attempt, woken) => {
                    Submitted::under_way(async move { inner.acquire(seq, attempt, &woken).await })
                }
                Step::Check(entry, granted) => {
                    Submitted::under_way(async move { inner.check(seq, entry, granted).await })
                }
                Step::Over(answer) => Submitted::Answered(Ok(answer)),
            },
            Call::Finish { target, .. } => match inner.ending(target) {
                Some((entry, doubt)) => {
                    Submitted::under_way(async move { inner.finish(target, entry, doubt).await })
                }
                None => Submitted::Answered(Ok(Answer::Finished(End::Gone))),
            },
            Call::Close => Submitted::under_way(async move { inner.close().await }),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.0.store.trouble()
    }
}

impl Drop for LeasedConn {
    fn drop(&mut self) {
        self.0.wakes.stop(&self.0.state().session);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(self: &Arc<Self>, fresh: bool) -> Answer {
        let mut state = self.state();
        if fresh || state.session.is_empty() {
            let mut random = [0; 16];
            if let Err(error) = getrandom::fill(&mut random) {
                let what = format!("the system gives no random bytes: {error}");
                return Answer::Refused(BackendError::new(BackendErrorKind::Operator, what));
            }
            self.wakes.stop(&state.session);
            state.session = format!("{:032x}", u128::from_be_bytes(random));
            state.last = None;
            let inner = Arc::downgrade(self);
            self.wakes.listen(&state.session, move |id, wake| {
                if let Some(inner) = inner.upgrade() {
                    inner.woken(id, wake);
                }
            });
        }
        Answer::Opened
    }

    /// Applies a wake-up of one entry, or of all.
    fn woken(&self, id: Option<&EntryId>, wake: Wake) {
        match (wake, id) {
            (Wake::Revoked, Some(id)) => {
                if let Some(seq) = id.seq() {
                    self.revoked(seq);
                }
            }
            (Wake::Try(after), Some(id)) => {
                let state = self.state();
                if let Some(request) = id.seq().and_then(|seq| state.requests.get(&seq)) {
                    request.woken.wake(after);
                }
            }
            (Wake::Try(after), None) => {
                self.state().requests.values().for_each(|request| request.woken.wake(after));
            }
            // A revocation always names an entry.
            (Wake::Revoked, None) => {}
        }
    }

    /// The entries that a keep-alive must renew.
    fn renewable(&self) -> Vec<Renewable> {
        let state = self.state();
        let renews = |stage: &Stage| matches!(stage, Stage::Asked | Stage::Waits | Stage::Holds(_));
        let requests = state.requests.iter().filter(|(_, request)| renews(&request.stage));
        let renewable = requests.map(|(&seq, request)| Renewable {
            seq,
            entry: request.entry.clone(),
            holds: matches!(request.stage, Stage::Holds(_)),
        });
        renewable.collect()
    }

    async fn keep_alive(&self, mut renewing: Vec<Renewable>) -> Result<Answer, CallError> {
        let mut lost = false;
        while !renewing.is_empty() {
            let entries: Vec<Arc<Entry>> = renewing.iter().map(|one| one.entry.clone()).collect();
            let renewed = self.store.renew(entries).await?;
            let mut again = Vec::new();
            for (one, renewed) in renewing.into_iter().zip(renewed) {
                match self.renewed(one, renewed) {
                    EntryRenewal::Fine => {}
                    EntryRenewal::Lost => lost = true,
                    EntryRenewal::Again(one) => again.push(one),
                }
            }
            renewing = again;
        }
        // The deadline must not be extended before the session processes the loss, which arrives as a push. The next
        // keep-alive renews the other entries soon.
        if lost { Err(CallError { sent: true }) } else { Ok(Answer::KeptAlive) }
    }

    /// Applies the answer of an entry's renewal by a keep-alive.
    fn renewed(&self, one: Renewable, renewed: Renewed) -> EntryRenewal {
        let seq = one.seq;
        if renewed == Renewed::Revoked {
            return if self.revoked(seq) { EntryRenewal::Lost } else { EntryRenewal::Fine };
        }
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(&seq) else { return EntryRenewal::Fine };
        match (renewed, &request.stage) {
            (Renewed::Gone, Stage::Holds(_)) if !one.holds => {
                EntryRenewal::Again(Renewable { holds: true, ..one })
            }
            (Renewed::Gone, Stage::Holds(_)) => {
                state.requests.remove(&seq);
                drop(state);
                self.push(Push::Ended { seq, end: End::Gone });
                EntryRenewal::Lost
            }
            (Renewed::Gone, Stage::Asked) => {
                request.missed += 1;
                EntryRenewal::Fine
            }
            (Renewed::Gone, Stage::Waits) => {
                request.missed += 1;
                // It lost its place in the queue: its next attempt takes a new one.
                request.woken.wake(Duration::ZERO);
                EntryRenewal::Fine
            }
            _ => EntryRenewal::Fine,
        }
    }

    /// Applies the break of an entry by an operator. Returns whether a hold whose grant was returned is lost by it.
    fn revoked(&self, seq: Seq) -> bool {
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(&seq) else { return false };
        match &request.stage {
            Stage::Holds(_) => {
                request.stage = Stage::Revoked;
                drop(state);
                self.push(Push::Revoked { seq });
                true
            }
            // Its grant may be on its way.
            Stage::Asked | Stage::Waits => {
                request.missed += 1;
                false
            }
            Stage::Revoked | Stage::Ends { .. } => false,
        }
    }

    /// The step that an acquire call takes in the request's present stage.
    fn step(&self, seq: Seq, acquire: &AcquireRequest) -> Step {
        let mut state = self.state();
        let State { session, requests, last } = &mut *state;
        if Some(seq) <= *last && !requests.contains_key(&seq) {
            // The caller may not have processed its loss yet; a new request under this seq would take the lock again.
            return Step::Over(OVER);
        }
        *last = Some(seq).max(*last);
        let request = requests.entry(seq).or_insert_with(|| {
            let entry = Entry {
                id: EntryId::of(session, seq),
                // A call with several names is refused earlier (`Capabilities::multi`).
                name: acquire.names[0].clone(),
                mode: acquire.mode,
                ttl: self.ttl,
                keep_closed: acquire.keep_closed,
                lock_delay: self.lock_delay,
            };
            Request {
                entry: Arc::new(entry),
                woken: Arc::default(),
                stage: Stage::Asked,
                left: false,
                doubt: false,
                missed: 0,
                ends_since: None,
            }
        });
        match &request.stage {
            Stage::Asked | Stage::Waits => {}
            Stage::Holds(granted) => return Step::Check(request.entry.clone(), granted.clone()),
            Stage::Revoked => return Step::Over(Answer::Revoked),
            Stage::Ends { .. } => return Step::Over(OVER),
        }
        let (label, meta) = (self.label.clone(), acquire.meta.clone());
        let attempt = Attempt { entry: request.entry.clone(), first: false, wait: acquire.wait, label, meta };
        Step::Try(attempt, request.woken.clone())
    }

    /// Checks whether a hold still exists. Uses a renewal, never another attempt, which would take a lost lock again.
    async fn check(&self, seq: Seq, entry: Arc<Entry>, granted: Granted) -> Result<Answer, CallError> {
        let renewed = self.store.renew(vec![entry]).await?;
        Ok(match renewed.first() {
            Some(Renewed::Kept) => Answer::Granted(granted),
            Some(Renewed::Revoked) => {
                self.advance(seq, Stage::Revoked);
                Answer::Revoked
            }
            Some(Renewed::Gone) | None => {
                self.forget(seq);
                OVER
            }
        })
    }

    async fn acquire(&self, seq: Seq, mut attempt: Attempt, woken: &Woken) -> Result<Answer, CallError> {
        let mut told = None;
        loop {
            // This attempt covers the wake-ups before it.
            woken.take();
            let left_before = self.leaves(seq);
            attempt.first = !left_before;
            let tried = self.store.attempt(attempt.clone()).await.inspect_err(|error| {
                self.unanswered(seq, error.sent, left_before);
            })?;
            match tried {
                Tried::Granted(granted) => return self.hand_out(seq, granted).await,
                Tried::Busy(busy) => {
                    self.refused(seq).await?;
                    return Ok(Answer::Busy(busy));
                }
                Tried::Refused(error) => {
                    self.refused(seq).await?;
                    return Ok(Answer::Refused(error));
                }
                Tried::Waits { ahead, again } => {
                    if !self.advance(seq, Stage::Waits) {
                        return Ok(OVER);
                    }
                    if told.replace(ahead) != Some(ahead) {
                        self.push(Push::Queued { seq, position: ahead });
                    }
                    woken.until_due(again).await;
                }
            }
        }
    }

    /// Returns a grant, after a renewal that was sent after every renewal that missed its entry.
    async fn hand_out(&self, seq: Seq, granted: Granted) -> Result<Answer, CallError> {
        let mut made_up_for = 0;
        loop {
            let (entry, missed) = {
                let mut state = self.state();
                let Some(request) = state.requests.get_mut(&seq) else { return Ok(OVER) };
                if matches!(request.stage, Stage::Ends { .. } | Stage::Revoked) {
                    return Ok(OVER);
                }
                if request.missed == made_up_for {
                    request.stage = Stage::Holds(granted.clone());
                    return Ok(Answer::Granted(granted));
                }
                (request.entry.clone(), request.missed)
            };
            // The grant was sent, so a call without an answer leaves a hold behind.
            let renewed = self.store.renew(vec![entry]).await.map_err(|_| CallError { sent: true })?;
            match renewed.first() {
                Some(Renewed::Kept) => made_up_for = missed,
                Some(Renewed::Revoked) => {
                    self.advance(seq, Stage::Revoked);
                    return Ok(Answer::Revoked);
                }
                // The hold has ended. The machine finishes this seq, in doubt, before it sends a request under
                // another.
                Some(Renewed::Gone) | None => return Ok(OVER),
            }
        }
    }

    /// Records that an attempt is sent. Returns whether one may have been sent before; true for a request that is
    /// over.
    fn leaves(&self, seq: Seq) -> bool {
        let mut state = self.state();
        state.requests.get_mut(&seq).is_none_or(|request| std::mem::replace(&mut request.left, true))
    }

    fn unanswered(&self, seq: Seq, sent: bool, left_before: bool) {
        if let Some(request) = self.state().requests.get_mut(&seq) {
            request.doubt |= sent;
            request.left = sent || left_before;
        }
    }

    /// A refused attempt ends the request. Remains of earlier attempts are ended first: a place in the queue, or a
    /// grant whose answer was lost (P7).
    async fn refused(&self, seq: Seq) -> Result<(), CallError> {
        let clean = |request: &Request| !request.doubt && request.stage == Stage::Asked;
        if !self.state().requests.get(&seq).is_none_or(clean)
            && let Some((entry, doubt)) = self.ending(seq)
        {
            self.store.finish(entry, doubt).await?;
        }
        self.forget(seq);
        Ok(())
    }

    /// Sets the stage of a request, unless its end has begun.
    fn advance(&self, seq: Seq, stage: Stage) -> bool {
        let mut state = self.state();
        match state.requests.get_mut(&seq) {
            Some(request) if !matches!(request.stage, Stage::Ends { .. } | Stage::Revoked) => {
                request.stage = stage;
                true
            }
            _ => false,
        }
    }

    /// Begins the end of an entry: it is not renewed from here on. Returns the entry, and whether an attempt of it
    /// may still arrive; `None` if no attempt was ever sent.
    fn ending(&self, target: Seq) -> Option<(Arc<Entry>, bool)> {
        let mut state = self.state();
        let request = state.requests.get_mut(&target)?;
        if !request.left {
            drop(state);
            self.forget(target);
            return None;
        }
        // A waiting entry may have its next attempt on its way.
        request.doubt |= matches!(request.stage, Stage::Asked | Stage::Waits);
        let revoked = matches!(request.stage, Stage::Revoked | Stage::Ends { revoked: true });
        request.stage = Stage::Ends { revoked };
        request.ends_since.get_or_insert_with(BootInstant::now);
        Some((request.entry.clone(), request.doubt))
    }

    async fn finish(&self, target: Seq, entry: Arc<Entry>, doubt: bool) -> Result<Answer, CallError> {
        let end = match self.store.finish(entry, doubt).await {
            Ok(end) => end,
            // After a long outage, the service must not receive thousands of ends: those entries have expired by
            // then.
            Err(_) if self.is_long_over(target) => End::Gone,
            Err(error) => return Err(error),
        };
        let revoked = self.forget(target).is_some_and(|stage| stage == Stage::Ends { revoked: true });
        Ok(Answer::Finished(if revoked { End::Broken } else { end }))
    }

    /// Whether its end was requested so long ago that it has expired: two ttls and the time for which the lock stays
    /// closed.
    fn is_long_over(&self, target: Seq) -> bool {
        let state = self.state();
        let Some(request) = state.requests.get(&target) else { return true };
        let until = request.entry.ttl * 2 + request.entry.closed_after_expiry();
        request.ends_since.is_some_and(|since| BootInstant::now() - since > until)
    }

    /// Ends all remaining entries. Those that can't be ended now expire.
    async fn close(&self) -> Result<Answer, CallError> {
        let left: Vec<Seq> = self.state().requests.keys().copied().collect();
        for target in left {
            if let Some((entry, doubt)) = self.ending(target) {
                self.finish(target, entry, doubt).await?;
            }
        }
        Ok(Answer::Closed)
    }

    fn forget(&self, seq: Seq) -> Option<Stage> {
        self.state().requests.remove(&seq).map(|request| request.stage)
    }

    fn push(&self, push: Push) {
        // The receiver is gone, and its holds with it.
        let _ = self.pushes.send(push);
    }
}

/// The answer to an acquire whose request was ended meanwhile: the answer of that end counts.
const OVER: Answer = Answer::Finished(End::Gone);
