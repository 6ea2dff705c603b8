//! One session over a [`Store`]: its calls, and which entries a keep-alive renews.
//!
//! Why an acknowledged keep-alive may extend the session's deadline (P5): it renews all entries that hold,
//! wait, or may hold by an attempt without an answer yet, and no others. So the expiry of each hold at the
//! service is later than the session's deadline: this keep-alive or a later call set it, or a later attempt
//! made sure that it is late enough ([`Attempt::ttl_from`]). There are two exceptions: an entry that a
//! keep-alive did not find, whose expiry may have been set before and become visible after (a transaction
//! that commits slowly); and an entry that an operator has broken, which is not renewed. Such an entry is
//! renewed once more before its grant is returned. If the grant is returned while the keep-alive is under
//! way, the entry is renewed once more, or its loss is reported, before the keep-alive is acknowledged. A
//! session without entries has nothing that can expire: its keep-alives are acknowledged without a call.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{End, Seq, validate};
use tokio::sync::mpsc::UnboundedSender;

use super::requests::{EntryRenewal, Found, Grant, LeasedRequests, Renewable, Stage};
use super::store::{Attempt, Entry, EntryId, Renewed, Store, Tried};
use super::wakes::{WakeUp, Wakes};
use crate::call::{AcquireRequest, Call, CallError, HoldChange};
use crate::call::{Answer, Granted, Push};
use crate::conn::Conn;
use crate::random::{hex, random_bytes};
use crate::responder::Responder;
use crate::spec::Spec;
use crate::time::BootInstant;

/// A session of leased entries. Once it is dropped, its waiting acquires stop.
pub struct LeasedConn(Arc<LeasedInner>);

struct LeasedInner {
    store: Arc<dyn Store>,
    wakes: Wakes,
    label: Arc<str>,
    ttl: Duration,
    lock_delay: Duration,
    /// 128 random bits in hex: no entry of another session has the same id.
    session: OnceLock<String>,
    requests: LeasedRequests,
}

impl LeasedConn {
    /// Creates a session over `store`.
    pub fn new(
        store: Arc<dyn Store>,
        wakes: Wakes,
        spec: Spec,
        label: &str,
        pushes: UnboundedSender<Push>,
    ) -> Arc<Self> {
        Arc::new(Self(Arc::new(LeasedInner {
            store,
            wakes,
            label: label.into(),
            ttl: spec.ttl.unwrap_or(Duration::MAX),
            lock_delay: spec.lock_delay,
            session: OnceLock::new(),
            requests: LeasedRequests::new(pushes),
        })))
    }

    #[cfg(test)]
    pub(super) fn session_id(&self) -> String {
        self.0.session().to_owned()
    }
}

impl Conn for LeasedConn {
    fn submit(&self, call: Call, responder: Responder) {
        let inner = self.0.clone();
        match call {
            Call::Open { .. } => responder.send(Ok(inner.open())),
            Call::KeepAlive => match inner.requests.renewable() {
                none if none.is_empty() => responder.send(Ok(Answer::KeptAlive)),
                renewing => responder.send_when(Box::pin(async move { inner.keep_alive(renewing).await })),
            },
            Call::Acquire { seq, request, .. } => {
                match inner.requests.find(seq, || inner.entry(seq, &request)) {
                    Found::Asked(entry, wake_up) => {
                        let attempt = Attempt {
                            entry,
                            first: false,
                            wait: request.wait,
                            ttl_from: BootInstant::now(),
                            value: request.value.clone(),
                            label: inner.label.clone(),
                            meta: request.meta.clone(),
                        };
                        responder
                            .send_when(Box::pin(async move { inner.acquire(seq, attempt, &wake_up).await }))
                    }
                    Found::Holds(entry, granted) => {
                        responder.send_when(Box::pin(async move { inner.check(seq, entry, granted).await }))
                    }
                    Found::Revoked => responder.send(Ok(Answer::Revoked)),
                    Found::Over => responder.send(Ok(OVER)),
                }
            }
            Call::Finish { target, .. } => match inner.requests.begin_end(target) {
                Some((entry, doubt)) => {
                    responder.send_when(Box::pin(async move { inner.finish(target, entry, doubt).await }))
                }
                None => responder.send(Ok(Answer::Finished(End::Gone))),
            },
            Call::Change { target, change: HoldChange::SetValue(value), .. } => {
                match (validate::value(value.len()), inner.requests.holding(target)) {
                    (Err(rejection), _) => responder.send(Ok(Answer::Refused(rejection.into()))),
                    (Ok(()), Some(entry)) => responder
                        .send_when(Box::pin(async move { inner.set_value(target, entry, value).await })),
                    (Ok(()), None) => responder.send(Ok(OVER)),
                }
            }
            // Refused before: the capability is missing.
            Call::Change { change: HoldChange::Downgrade | HoldChange::Settle, .. } => {
                responder.send(Err(CallError::NOT_SENT))
            }
            Call::Close => responder.send_when(Box::pin(async move { inner.close().await })),
        }
    }

    fn trouble(&self) -> Option<String> {
        self.0.store.trouble()
    }
}

impl Drop for LeasedConn {
    fn drop(&mut self) {
        self.0.wakes.stop(self.0.session());
        self.0.requests.let_expire();
    }
}

impl LeasedInner {
    /// The session's id; empty before it is opened.
    fn session(&self) -> &str {
        self.session.get().map_or("", String::as_str)
    }

    /// Opens the session: draws its id, and registers its listener for wake-ups.
    fn open(self: &Arc<Self>) -> Answer {
        let random: [u8; 16] = match random_bytes() {
            Ok(random) => random,
            Err(error) => return Answer::Refused(error),
        };
        self.requests.open();
        let session = self.session.get_or_init(|| hex(&random));
        let inner = Arc::downgrade(self);
        self.wakes.listen(session, move |id, wake| {
            if let Some(inner) = inner.upgrade() {
                inner.requests.woken(id, wake);
            }
        });
        Answer::Opened
    }

    fn entry(&self, seq: Seq, request: &AcquireRequest) -> Entry {
        Entry {
            id: EntryId::of(self.session(), seq),
            // A call with several names is refused earlier (`Capabilities::multi`).
            name: request.names[0].clone(),
            mode: request.mode,
            ttl: self.ttl,
            keep_closed: request.keep_closed,
            lock_delay: self.lock_delay,
        }
    }

    async fn keep_alive(&self, mut renewing: Vec<Renewable>) -> Result<Answer, CallError> {
        let mut lost = false;
        while !renewing.is_empty() {
            let entries: Vec<Arc<Entry>> = renewing.iter().map(|one| one.entry.clone()).collect();
            let renewed = self.store.renew(entries).await?;
            let mut again = Vec::new();
            for (one, renewed) in renewing.into_iter().zip(renewed) {
                match self.requests.renewed(one, renewed) {
                    EntryRenewal::Fine => {}
                    EntryRenewal::Lost => lost = true,
                    EntryRenewal::Again(one) => again.push(one),
                }
            }
            renewing = again;
        }
        // The deadline must not be extended before the session processes the loss, which arrives as a push.
        // The next keep-alive renews the other entries soon.
        if lost { Err(CallError::IN_DOUBT) } else { Ok(Answer::KeptAlive) }
    }

    async fn renew_one(&self, entry: &Arc<Entry>) -> Result<Renewed, CallError> {
        Ok(self.store.renew(vec![entry.clone()]).await?.first().copied().unwrap_or(Renewed::Gone))
    }

    /// Checks whether a hold still exists. Uses a renewal, never another attempt, which would take a lost
    /// lock again.
    async fn check(&self, seq: Seq, entry: Arc<Entry>, granted: Granted) -> Result<Answer, CallError> {
        let renewed = self.renew_one(&entry).await?;
        Ok(self.answer(seq, renewed, Answer::Granted(granted)))
    }

    async fn set_value(&self, seq: Seq, entry: Arc<Entry>, value: Arc<[u8]>) -> Result<Answer, CallError> {
        let renewed = self.store.set_value(entry, value).await?;
        Ok(self.answer(seq, renewed, Answer::Changed))
    }

    /// The answer to a call about a hold: `if_kept`, unless the hold is broken or gone.
    fn answer(&self, seq: Seq, renewed: Renewed, if_kept: Answer) -> Answer {
        match renewed {
            Renewed::Kept => if_kept,
            Renewed::Revoked => {
                self.requests.advance(seq, Stage::Revoked);
                Answer::Revoked
            }
            Renewed::Gone => {
                self.requests.forget(seq);
                OVER
            }
        }
    }

    async fn acquire(&self, seq: Seq, mut attempt: Attempt, wake_up: &WakeUp) -> Result<Answer, CallError> {
        let mut position = None;
        loop {
            // Wake-ups that came before this attempt need no further one.
            wake_up.clear();
            let Some((before, waits, ttl_from)) = self.requests.begin_attempt(seq) else { return Ok(OVER) };
            (attempt.first, attempt.ttl_from) = (!before.sent, ttl_from);
            let tried = self.store.attempt(attempt.clone()).await;
            self.requests.end_attempt(seq, before, tried.as_ref().err().map(|error| error.sent));
            match tried? {
                Tried::Granted(granted) => return self.hand_out(seq, &attempt.entry, granted).await,
                Tried::Busy(busy) => {
                    self.refused(seq).await?;
                    return Ok(Answer::Busy(busy));
                }
                // It keeps its place in the queue.
                Tried::Refused(error) if waits && error.kind.may_pass() => {
                    return Err(CallError::refused(error));
                }
                Tried::Refused(error) => {
                    self.refused(seq).await?;
                    return Ok(Answer::Refused(error));
                }
                Tried::Waits { ahead, again } => {
                    if !self.requests.advance(seq, Stage::Waits) {
                        return Ok(OVER);
                    }
                    if position.replace(ahead) != Some(ahead) {
                        self.requests.push(Push::Queued { seq, position: ahead });
                    }
                    wake_up.until_due(again).await;
                }
            }
        }
    }

    /// Returns a grant. If a keep-alive missed its entry, the entry is renewed first, so that it expires
    /// after the deadline to which that keep-alive extended the session.
    async fn hand_out(&self, seq: Seq, entry: &Arc<Entry>, granted: Granted) -> Result<Answer, CallError> {
        let mut made_up_for = 0;
        loop {
            let missed = match self.requests.grant(seq, &granted, made_up_for) {
                Grant::Returned => return Ok(Answer::Granted(granted)),
                Grant::Missed(missed) => missed,
                Grant::Revoked => return Ok(OVER),
                Grant::Over => {
                    // The request was ended, or the session dropped, before this grant arrived. The finish
                    // may have reached the service before the attempt, so another one is sent. If it gets no
                    // answer, the hold expires.
                    let _ = self.store.finish(entry.clone(), false).await;
                    return Ok(OVER);
                }
            };
            // The entry was granted, so even a renewal that was not sent leaves a hold behind: `sent` is
            // always true.
            match self.renew_one(entry).await.map_err(|_| CallError::IN_DOUBT)? {
                Renewed::Kept => made_up_for = missed,
                Renewed::Revoked => {
                    self.requests.advance(seq, Stage::Revoked);
                    return Ok(Answer::Revoked);
                }
                // The hold has ended. The request stays recorded until the machine finishes this seq, before
                // it uses another one.
                Renewed::Gone => return Ok(OVER),
            }
        }
    }

    /// Ends a request whose attempt was refused. First removes what its earlier attempts may have left at the
    /// service.
    async fn refused(&self, seq: Seq) -> Result<(), CallError> {
        if let Some((entry, doubt)) = self.requests.begin_end_of_refused(seq) {
            self.store.finish(entry, doubt).await?;
        }
        self.requests.forget(seq);
        Ok(())
    }

    async fn finish(&self, target: Seq, entry: Arc<Entry>, doubt: bool) -> Result<Answer, CallError> {
        let end = match self.store.finish(entry, doubt).await {
            Ok(end) => end,
            // The entry has expired by now. After a long outage, the service must not receive thousands of
            // such finishes.
            Err(_) if self.requests.is_long_over(target) => End::Gone,
            Err(error) => return Err(error),
        };
        let revoked = self.requests.forget(target) == Some(Stage::Ends { revoked: true });
        Ok(Answer::Finished(if revoked { End::Broken } else { end }))
    }

    /// Ends the remaining entries one after the other, up to the first that fails. The rest expires.
    async fn close(&self) -> Result<Answer, CallError> {
        for target in self.requests.seqs() {
            if let Some((entry, doubt)) = self.requests.begin_end(target) {
                self.finish(target, entry, doubt).await?;
            }
        }
        Ok(Answer::Closed)
    }
}

/// The answer to an acquire whose request has ended. The machine decides by the answer to the `Finish`.
const OVER: Answer = Answer::Finished(End::Gone);
