//! The caller's side of a request: its progress, and the state behind a guard.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::CallRuntime;
use lockkeeper_backend::{
    AcquireRequest, Answer, BackendError, BootInstant, BoxFuture, BreakNotice, Call, CallError, CallResult,
    Capabilities, Granted, HoldChange, LossCause, Push, Responder,
};
use lockkeeper_core::{LockName, ModeKind, Seq};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Callbacks, Input, RequestProgress, Session, SessionInner};
use crate::error::{ChangeError, Lost, ReleaseError, VerifyError};
use crate::machine::cache::{AfterSection, CachedSection};
use crate::machine::{AcquireLimits, Key, NotAcquired, Releasing};
use crate::observe;
use crate::recorder::{RecordedGrant, RecordedHold, Recorder};

/// The state of a request and its hold. Guards read it without a lock and without I/O.
pub(crate) struct HoldStatus {
    request: Arc<AcquireRequest>,
    lost: CancellationToken,
    cause: OnceLock<LossCause>,
    /// The last moment before the loss at which a guard counted on the hold, in nanoseconds.
    claimed_until: AtomicU64,
    /// Set before the loss is signalled, if the service reports who broke the hold.
    broken: OnceLock<Arc<BreakNotice>>,
    /// The reason of the loss, if there is one: why the lease was not renewed, or the connection has ended.
    /// Set before the loss is signalled.
    trouble: OnceLock<Arc<str>>,
    lease_trouble: LeaseTrouble,
    /// The hold's own deadline (`max_hold`), in nanoseconds.
    ends_at: AtomicU64,
    reports: Mutex<Reports>,
    /// Notified when `reports` changes. Only the handle waits.
    reported: Notify,
}

/// The session's reports about a request.
#[derive(Default)]
struct Reports {
    /// The latest report, unless the handle has taken it.
    latest: Option<RequestProgress>,
    /// No further report will come.
    over: bool,
    /// The last refusal of an attempt, or of the release.
    refusal: Option<Arc<BackendError>>,
}

/// Why a request is not held.
pub(crate) struct NotHeld {
    pub(crate) why: NotAcquired,
    /// The last refusal of the service, after which the request was repeated.
    pub(crate) refusal: Option<Arc<BackendError>>,
}

/// Why renewals of a session's lease fail at present: the latest error of the service or the connection.
#[derive(Clone, Default)]
pub(super) struct LeaseTrouble(Arc<Mutex<Option<Arc<str>>>>);

impl LeaseTrouble {
    fn latest(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the reason has changed.
    pub(super) fn replace(&self, trouble: Option<String>) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = known.as_deref() != trouble.as_deref();
        if changes {
            *known = trouble.map(Into::into);
        }
        changes
    }
}

/// A request and, once granted, its hold. Dropping the handle abandons or releases it.
pub(crate) struct HoldHandle {
    session: Arc<Session>,
    key: Key,
    pub(crate) hold: Arc<HoldStatus>,
    pub(crate) granted: Granted,
    pub(crate) since: BootInstant,
    /// The hold is not released before this time.
    held_until: BootInstant,
    /// The section of a cached hold. The other fields are the section's, but for `key` and `hold`.
    section: Option<CachedSection>,
    over: bool,
    /// Where the hold is written down, if the client writes a history.
    recorded: Option<RecordedHold>,
}

impl HoldStatus {
    pub(super) fn new(request: Arc<AcquireRequest>, lease_trouble: LeaseTrouble) -> Self {
        Self {
            request,
            lost: CancellationToken::new(),
            cause: OnceLock::new(),
            claimed_until: AtomicU64::new(u64::MAX),
            broken: OnceLock::new(),
            trouble: OnceLock::new(),
            lease_trouble,
            ends_at: AtomicU64::new(u64::MAX),
            reports: Mutex::default(),
            reported: Notify::new(),
        }
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn report(&self, progress: RequestProgress) {
        self.reports().latest = Some(progress);
        self.reported.notify_one();
    }

    /// A call of the request was refused, and is repeated. Only refusals of attempts (`is_acquire`) are
    /// reported.
    pub(super) fn refused(&self, refusal: &Arc<BackendError>, is_acquire: bool) {
        self.reports().refusal = Some(refusal.clone());
        if is_acquire {
            self.report(RequestProgress::Refused(refusal.clone()));
        }
    }

    pub(super) fn refusal(&self) -> Option<Arc<BackendError>> {
        self.reports().refusal.clone()
    }

    /// The session forgets the request.
    pub(super) fn end_reports(&self) {
        self.reports().over = true;
        self.reported.notify_one();
    }

    pub(super) async fn next_report(&self) -> RequestProgress {
        loop {
            {
                let mut reports = self.reports();
                if let Some(progress) = reports.latest.take() {
                    return progress;
                }
                if reports.over {
                    // No end was reported, as when the session is shut down.
                    return RequestProgress::NotAcquired(NotAcquired::ShuttingDown);
                }
            }
            self.reported.notified().await;
        }
    }

    pub(super) fn break_ordered(&self, notice: BreakNotice) {
        // The first order counts (B3).
        let _ = self.broken.set(Arc::new(notice));
    }

    /// The loss; `cause` if none is recorded.
    fn loss(&self, cause: LossCause) -> Lost {
        let cause = self.cause.get().copied().unwrap_or(cause);
        let broken = self.broken.get().filter(|_| cause == LossCause::Broken).cloned();
        Lost { cause, broken, trouble: self.trouble.get().cloned() }
    }

    /// The reason of a loss that is about to be signalled.
    pub(super) fn lost_because(&self, why: Arc<str>) {
        let _ = self.trouble.set(why);
    }

    /// Signals the loss. `at`: no guard has counted on the hold since then.
    pub(super) fn lose(&self, cause: LossCause, backend: &'static str, at: BootInstant) {
        self.claimed_until.fetch_min(at.as_nanos(), Ordering::SeqCst);
        if cause == LossCause::Expired
            && let Some(why) = self.lease_trouble.latest()
        {
            self.lost_because(why);
        }
        if self.cause.set(cause).is_ok() {
            observe::lost(backend, &self.request.names, cause);
        }
        self.lost.cancel();
    }

    /// The hold's deadline; `None` if it has none. `deadline` reads the session's deadline in nanoseconds,
    /// `u64::MAX` if it has none; `now` reads the clock.
    fn valid_until(
        &self,
        deadline: impl FnOnce() -> u64,
        now: impl FnOnce() -> BootInstant,
        backend: &'static str,
    ) -> Result<Option<BootInstant>, Lost> {
        let own = self.ends_at.load(Ordering::SeqCst);
        let deadline = deadline();
        // Read after the deadline: a loss is signalled before a later deadline is stored, so a thread that
        // reads the later deadline also sees the loss.
        if let Some(&cause) = self.cause.get() {
            return Err(self.loss(cause));
        }
        let until = BootInstant::from_nanos(own.min(deadline));
        if now() < until {
            return Ok((until != BootInstant::MAX).then_some(until));
        }
        let cause = if own < deadline { LossCause::MaxHold } else { LossCause::Expired };
        self.lose(cause, backend, until);
        // The cell holds the first cause, which the machine may have set concurrently.
        Err(self.loss(cause))
    }
}

impl HoldHandle {
    pub(super) fn new(session: Arc<Session>, key: Key, hold: Arc<HoldStatus>) -> Self {
        let since = session.now();
        let granted = Granted::default();
        Self {
            session,
            key,
            hold,
            granted,
            since,
            held_until: since,
            section: None,
            over: false,
            recorded: None,
        }
    }

    pub(super) fn of_section(
        session: Arc<Session>,
        section: CachedSection,
        hold: Arc<HoldStatus>,
        now: BootInstant,
    ) -> Self {
        let granted = Granted { token: Some(section.token), ..Granted::default() };
        let (key, section) = (section.key, Some(section));
        Self {
            session,
            key,
            hold,
            granted,
            since: now,
            held_until: now,
            section,
            over: false,
            recorded: None,
        }
    }

    /// Waits until the request is granted.
    pub(super) async fn until_held(
        &mut self,
        limits: &AcquireLimits,
        on: Callbacks<'_>,
    ) -> Result<(), NotAcquired> {
        loop {
            match self.hold.next_report().await {
                RequestProgress::Queued(position) => {
                    on.queued.inspect(|on_queued| on_queued(position));
                }
                RequestProgress::Refused(refusal) => {
                    on.refused.inspect(|on_refused| on_refused(&refusal));
                }
                RequestProgress::Granted(granted, section) => {
                    self.section = section;
                    self.since = self.now();
                    if let Some(max) = limits.max_hold {
                        self.hold.ends_at.store((self.since + max).as_nanos(), Ordering::SeqCst);
                    }
                    self.granted = granted;
                    // From here on, refusals are of the release.
                    self.hold.reports().refusal = None;
                    return Ok(());
                }
                RequestProgress::NotAcquired(why) => {
                    self.over = true;
                    return Err(why);
                }
                RequestProgress::Released(_) => {}
            }
        }
    }

    /// Fires when the hold is lost, no later than its deadline (P5).
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.hold.lost
    }

    /// The hold's deadline; `None` if it has none. `Err` if the hold is lost, at the latest when the deadline
    /// has passed (P5).
    pub(crate) fn valid_until(&self) -> Result<Option<BootInstant>, Lost> {
        self.valid_until_by(|| self.now())
    }

    /// The loss, if the hold was lost at `now` or earlier.
    pub(crate) fn loss_at(&self, now: BootInstant) -> Option<Lost> {
        self.valid_until_by(|| now).err()
    }

    fn valid_until_by(&self, now: impl FnOnce() -> BootInstant) -> Result<Option<BootInstant>, Lost> {
        let inner = &self.session.0;
        let deadline = || if inner.has_ttl { inner.lease_deadline.load(Ordering::SeqCst) } else { u64::MAX };
        self.hold.valid_until(deadline, now, inner.name())
    }

    /// Waits until [`Self::valid_until`] differs from `known`, and returns it.
    pub(crate) async fn valid_until_changes(
        &self,
        known: Option<BootInstant>,
    ) -> Result<Option<BootInstant>, Lost> {
        loop {
            let changed = self.session.0.lease_changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            let until = self.valid_until()?;
            if until != known {
                return Ok(until);
            }
            tokio::select! {
                () = changed => {}
                () = self.hold.lost.cancelled() => {}
            }
        }
    }

    /// Why the lease is not renewed at present.
    pub(crate) fn trouble(&self) -> Option<Arc<str>> {
        self.session.0.trouble.latest()
    }

    /// Waits until [`Self::trouble`] differs from `known`, and returns it.
    pub(crate) async fn trouble_changes(&self, known: Option<&str>) -> Option<Arc<str>> {
        loop {
            let changed = self.session.0.lease_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let trouble = self.trouble();
            if trouble.as_deref() != known {
                return trouble;
            }
            changed.await;
        }
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.session.0.clock.now()
    }

    /// Delays the release until the hold has lasted for this long.
    pub(crate) fn hold_at_least(&mut self, min: Duration) {
        self.held_until = self.since + min;
    }

    /// Waits on the lease thread until the hold may be released, then runs `then` there. `None`: it may be
    /// released now.
    fn min_hold(&self, then: impl FnOnce() + Send + 'static) -> Option<BoxFuture<'static, ()>> {
        let until = self.held_until;
        if self.now() >= until || self.hold.lost.is_cancelled() {
            return None;
        }
        let lost = self.hold.lost.clone();
        let alarm = self.session.0.clock.alarm();
        Some(Box::pin(async move {
            alarm.set(Some(until));
            tokio::select! {
                () = alarm.ring() => {}
                () = lost.cancelled() => {}
            }
            then();
        }))
    }

    /// Releases the hold, not before its least duration, and waits for the answer. A cached hold stays for
    /// the next section, if it may.
    pub(crate) async fn release(mut self, now: BootInstant) -> Result<(), ReleaseError> {
        let until = self.claimed_until(now);
        let recorded = self.recorded.take();
        let released = self.release_from(now).await;
        if let Some(recorded) = recorded {
            recorded.ended(until, released.is_err());
        }
        released
    }

    async fn release_from(mut self, now: BootInstant) -> Result<(), ReleaseError> {
        let (inner, held) = (&self.session.0, now - self.since);
        match self.section {
            Some(_) => inner.section_metrics().ended(held),
            None => observe::released(inner.name(), held),
        }
        if self.keeps(now) {
            self.over = true;
            return Ok(());
        }
        let (over, is_over) = tokio::sync::oneshot::channel::<()>();
        if let Some(wait) = self.min_hold(move || drop(over)) {
            self.session.0.lease_thread.run(wait);
            let _ = is_over.await;
        }
        self.session.0.input(Input::Release(self.key, CallRuntime::here(&self.session.0.lease_thread)));
        loop {
            match self.hold.next_report().await {
                RequestProgress::Released(how) => {
                    self.over = true;
                    return match how {
                        Releasing::Released => Ok(()),
                        Releasing::AlreadyLost(cause) => {
                            Err(ReleaseError::AlreadyLost(self.hold.loss(cause)))
                        }
                        Releasing::Ambiguous => Err(self.unconfirmed_release()),
                    };
                }
                // The session has ended without an answer.
                RequestProgress::NotAcquired(_) => return Err(self.unconfirmed_release()),
                RequestProgress::Queued(_) | RequestProgress::Refused(_) | RequestProgress::Granted(..) => {}
            }
        }
    }

    /// Ends the section of a cached hold; returns whether the hold stays.
    fn keeps(&mut self, now: BootInstant) -> bool {
        let section = self.section.take();
        section.is_some_and(|section| self.session.0.end_section(now, &section) == AfterSection::Keep)
    }

    fn unconfirmed_release(&self) -> ReleaseError {
        ReleaseError::Ambiguous { why: self.session.reason(self.hold.refusal().as_deref()) }
    }

    /// The last moment up to `now` at which a guard counted on the hold.
    fn claimed_until(&self, now: BootInstant) -> BootInstant {
        match self.loss_at(now) {
            Some(_) => BootInstant::from_nanos(self.hold.claimed_until.load(Ordering::SeqCst)).min(now),
            None => now,
        }
    }

    /// Writes the grant to the client's history; `false` if the hold is lost already.
    pub(crate) fn record(
        &mut self,
        recorder: &Recorder,
        names: &[LockName],
        (mode, subtree): (ModeKind, bool),
        asked: BootInstant,
    ) -> bool {
        let at = BootInstant::now();
        if self.loss_at(at).is_some() {
            return false;
        }
        let (permits, token, cached) =
            (&self.granted.permits[..], self.granted.token, self.section.is_some());
        let grant = RecordedGrant { names, mode, subtree, permits, token, cached, asked };
        self.recorded = Some(recorder.granted(at, grant));
        true
    }

    /// Writes to the client's history that others may share the hold.
    pub(crate) fn record_downgrade(&self) {
        self.recorded.as_ref().inspect(|recorded| recorded.downgrades());
    }

    /// Checks with the backend that the hold is live. One round trip.
    pub(crate) async fn verify(&self) -> Result<(), VerifyError> {
        self.valid_until()?;
        // The service names a cached hold by its first token.
        let token = self.section.map_or(self.granted.token, |section| Some(section.first));
        let inner = &self.session.0;
        let asked = inner.with_state(|state| {
            let seq = state.machine.seq_of(self.key)?;
            let request = state.callers.get(&self.key)?.request.clone();
            // A retry of the acquire returns the request's present state (P7-a). Submitted under the lock: in
            // a session opened a moment later this seq would be a new request.
            let call = Call::Acquire { seq, done_through: Seq(0), request, wait_left: Some(Duration::ZERO) };
            let (responder, answer) = Responder::to_caller();
            state.conn.submit(call, responder);
            Some((seq, state.generation, answer))
        });
        let Some((seq, generation, asked)) = asked else {
            return Err(self.lost_now(LossCause::SessionEnded).into());
        };
        let says = match asked.await {
            Ok(Answer::Granted(granted)) if granted.token == token => None,
            Ok(Answer::Granted(_)) => return Err(self.lost_now(LossCause::SessionEnded).into()),
            Ok(Answer::Revoked) => Some(Push::Revoked { seq, notice: None }),
            Ok(Answer::SessionGone) => Some(Push::Lost(LossCause::SessionEnded)),
            Ok(Answer::Finished(end)) => Some(Push::Ended { seq, end }),
            none => return Err(VerifyError::NoAnswer { why: self.session.reason(refusal_of(&none)) }),
        };
        if let Some(says) = says {
            inner.input_now(Input::Pushed(generation, says));
        }
        self.valid_until().map(drop).map_err(VerifyError::from)
    }

    /// Changes the hold at the backend. One round trip. If the future is dropped, the change may or may not
    /// be made.
    pub(crate) async fn change(&self, change: HoldChange) -> Result<(), ChangeError> {
        self.valid_until()?;
        let inner = &self.session.0;
        if self.section.is_some() {
            // The next section must not find another hold than the one that it asked for.
            inner.cache().remove_key(self.key);
        }
        let begun = inner.with_state(|state| {
            let (seq, target, done_through) = state.machine.begin_change(self.key)?;
            let (responder, answer) = Responder::to_caller();
            // Submitted under the lock, so that commands arrive in the order of their seqs (R5).
            state.conn.submit(Call::Change { seq, target, done_through, change }, responder);
            let unanswered = UnansweredChange { session: inner, generation: state.generation, seq };
            Some((unanswered, target, answer))
        });
        let Some((unanswered, seq, answer)) = begun else {
            return Err(self.lost_now(LossCause::SessionEnded).into());
        };
        let says = match answer.await {
            Ok(Answer::Changed) => return Ok(()),
            Ok(Answer::Refused(error)) => return Err(ChangeError::Backend(error)),
            Ok(Answer::Revoked) => Push::Revoked { seq, notice: None },
            Ok(Answer::Finished(end)) => Push::Ended { seq, end },
            Ok(Answer::SessionGone) => Push::Lost(LossCause::SessionEnded),
            none => return Err(ChangeError::NoAnswer { why: self.session.reason(refusal_of(&none)) }),
        };
        inner.input_now(Input::Pushed(unanswered.generation, says));
        self.valid_until()?;
        Err(ChangeError::NoAnswer { why: None })
    }

    fn lost_now(&self, cause: LossCause) -> Lost {
        self.hold.lose(cause, self.session.0.name(), self.session.0.until_deadline(self.now()));
        self.hold.loss(cause)
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.session.0.backend.capabilities()
    }

    /// Descriptors that keep the hold alive in any process that has them; empty where no descriptor holds it.
    pub(crate) fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        let found = self
            .session
            .0
            .with_state(|state| state.machine.seq_of(self.key).map(|seq| (state.conn.clone(), seq)));
        found.map_or_else(Vec::new, |(conn, seq)| conn.descriptors(seq))
    }
}

/// The service's refusal, if it gave one.
fn refusal_of(result: &CallResult) -> Option<&BackendError> {
    match result {
        Ok(Answer::Refused(refusal)) => Some(refusal),
        Err(CallError { refusal, .. }) => refusal.as_deref(),
        Ok(_) => None,
    }
}

/// A change that was sent. Until it is dropped, the service keeps the change's answer for a retry.
struct UnansweredChange<'a> {
    session: &'a Arc<SessionInner>,
    generation: u64,
    seq: Seq,
}

impl Drop for UnansweredChange<'_> {
    fn drop(&mut self) {
        self.session.with_state(|state| {
            // In a later session, this seq is another command's.
            if state.generation == self.generation {
                state.machine.end_change(self.seq);
            }
        });
    }
}

impl Drop for HoldHandle {
    fn drop(&mut self) {
        if let Some(recorded) = self.recorded.take() {
            let now = self.now();
            recorded.ended(self.claimed_until(now), self.loss_at(now).is_some());
        }
        if self.over || (self.section.is_some() && self.keeps(self.now())) {
            return;
        }
        // Keeps the session open until the release.
        let (session, key) = (self.session.clone(), self.key);
        match self.min_hold(move || session.0.input(Input::Abandon(key))) {
            Some(wait) => self.session.0.lease_thread.run(wait),
            None => self.session.0.input(Input::Abandon(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::request_of_a_test;

    /// The machine signals a loss before it moves the deadline; a caller may read between the two.
    #[test]
    fn a_loss_is_visible_to_a_reader_of_the_later_deadline() {
        let hold = HoldStatus::new(request_of_a_test(), LeaseTrouble::default());
        let deadline = || {
            hold.lose(LossCause::Broken, "memory", BootInstant::from_nanos(0));
            2_000
        };
        let read = hold.valid_until(deadline, || BootInstant::from_nanos(1_000), "memory");
        assert_eq!(read, Err(Lost::new(LossCause::Broken)));
    }
}
