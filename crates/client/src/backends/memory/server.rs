//! The service in this process: the table, its deadlines, and the waiting clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::{
    AcquireRequest, Alarm, Answer, BackendError, BootInstant, BreakNotice, BreakOrder, Broken, Busy, Call,
    CallError, Clock, Conn, Granted, HoldChange, LockInfo, LossCause, Push, Responder, Spec, random_bytes,
};
use lockkeeper_core as core;
use lockkeeper_core::{
    Command, Effect, IfBusy, LockName, Page, Reply, Seq, SessionId, Table, Token, TokenStatus, WallTime,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::deadlines::{Due, MemoryDeadlines};

/// Maximum number of waiters in an inspection.
const WAITERS_SHOWN: usize = 20;

pub(super) struct MemoryService {
    clock: Clock,
    alarm: Arc<Alarm>,
    state: Mutex<MemoryState>,
}

struct MemoryState {
    table: Table,
    book: MemoryDeadlines,
    faults: Faults,
    clients: BTreeMap<SessionId, Arc<MemoryClient>>,
    /// Pushes to sessions that are cut off; delivered before their next keep-alive is answered.
    missed: BTreeMap<SessionId, Vec<Push>>,
    waiting: BTreeMap<(SessionId, Seq), oneshot::Sender<Answer>>,
    closed_at: BTreeMap<Token, BootInstant>,
    /// Calls that arrived during a stall.
    inbox: VecDeque<(Arc<MemoryClient>, Call, oneshot::Sender<CallOutcome>)>,
}

#[derive(Default)]
pub(super) struct Faults {
    pub(super) cut_off: BTreeSet<String>,
    pub(super) lose_answers: u32,
    pub(super) lose_calls: u32,
    pub(super) stalled: bool,
}

/// An answer, immediate or later.
enum CallOutcome {
    Now(Result<Answer, CallError>),
    Later(oneshot::Receiver<Answer>),
}

const LOST: CallError = CallError::IN_DOUBT;

pub(super) struct MemoryConn {
    service: Arc<MemoryService>,
    client: Arc<MemoryClient>,
}

struct MemoryClient {
    spec: Spec,
    label: String,
    pushes: UnboundedSender<Push>,
    session: Mutex<(Option<[u8; 32]>, Option<SessionId>)>,
}

impl MemoryService {
    pub(super) fn start(clock: Clock) -> Arc<Self> {
        let service = Arc::new(Self {
            alarm: clock.alarm(),
            clock,
            state: Mutex::new(MemoryState {
                table: Table::new(0),
                book: MemoryDeadlines::default(),
                faults: Faults::default(),
                clients: BTreeMap::new(),
                missed: BTreeMap::new(),
                waiting: BTreeMap::new(),
                closed_at: BTreeMap::new(),
                inbox: VecDeque::new(),
            }),
        });
        let (weak, alarm) = (Arc::downgrade(&service), service.alarm.clone());
        match LeaseThread::start("lockkeeper-memory") {
            Ok(lease_thread) => lease_thread.run(Box::pin(keep_turning(weak, alarm))),
            Err(error) => panic!("memory: can't start its thread: {error}"),
        }
        service
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state().faults);
    }

    pub(super) fn resume(&self) {
        let mut state = self.state();
        state.faults.stalled = false;
        let now = self.clock.now();
        // Calls that arrived during the stall are executed before anything expires (P9).
        state.book.turn(now);
        while let Some((client, call, answer)) = state.inbox.pop_front() {
            let outcome = state.call(&client, call, now);
            let _ = answer.send(outcome);
        }
        state.end_due(now);
        self.alarm.set(state.book.next_turn());
    }

    pub(super) fn inspect(&self, name: LockName) -> LockInfo {
        let state = self.state();
        let description = state.table.describe(&name, Page::first(WAITERS_SHOWN));
        state.info(name, description, self.clock.now())
    }

    pub(super) fn list(&self, prefix: Option<&LockName>) -> Vec<LockInfo> {
        let state = self.state();
        let now = self.clock.now();
        let names = state.table.names_in_use(prefix).into_iter();
        names
            .map(|name| {
                state.info(name.clone(), state.table.describe(&name, Page::first(WAITERS_SHOWN)), now)
            })
            .collect()
    }

    pub(super) fn check_token(&self, name: &LockName, token: u64) -> TokenStatus {
        self.state().table.check_token(name, token)
    }

    pub(super) fn break_hold(&self, order: BreakOrder) -> Result<Broken, BackendError> {
        let order = Command::Break(core::Break {
            name: order.name,
            token: order.token,
            reason: order.reason.into(),
            by: order.by.into(),
            now: order.now,
        });
        let mut state = self.state();
        let now = self.clock.now();
        state.book.turn(now);
        let reply = state.apply(order, now);
        self.alarm.set(state.book.next_turn());
        match reply {
            Reply::NotCurrent { live } => Ok(Broken::NotCurrent { live }),
            Reply::StillClosed => Ok(Broken::StillClosed),
            Reply::Refused(rejection) => Err(rejection.into()),
            _ => Ok(Broken::Done),
        }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(
        &self,
        client: &Arc<MemoryClient>,
        call: Call,
    ) -> Result<CallOutcome, oneshot::Receiver<CallOutcome>> {
        let mut state = self.state();
        if state.faults.cut_off.contains(&client.label) {
            return Ok(CallOutcome::Now(Err(LOST)));
        }
        if state.faults.lose_calls > 0 {
            state.faults.lose_calls -= 1;
            return Ok(CallOutcome::Now(Err(LOST)));
        }
        if state.faults.stalled {
            let (answer, answered) = oneshot::channel();
            state.inbox.push_back((client.clone(), call, answer));
            return Err(answered);
        }
        let now = self.clock.now();
        state.book.turn(now);
        state.end_due(now);
        let outcome = state.call(client, call, now);
        self.alarm.set(state.book.next_turn());
        Ok(outcome)
    }
}

/// Ends everything that is due, until the service is dropped.
async fn keep_turning(service: Weak<MemoryService>, alarm: Arc<Alarm>) {
    loop {
        alarm.ring().await;
        let Some(service) = service.upgrade() else { return };
        let mut state = service.state();
        if state.faults.stalled {
            // The loop is stalled too; `resume` sets the alarm again.
            alarm.set(None);
            continue;
        }
        let now = service.clock.now();
        state.book.turn(now);
        state.end_due(now);
        alarm.set(state.book.next_turn());
    }
}

impl Drop for MemoryService {
    fn drop(&mut self) {
        // Wakes the loop, which ends because the service is gone.
        self.alarm.set(Some(BootInstant::from_nanos(0)));
    }
}

impl MemoryState {
    fn end_due(&mut self, now: BootInstant) {
        while let Some(command) = self.book.pop_due() {
            let _ = self.apply(command, now);
        }
    }

    fn apply(&mut self, command: Command, now: BootInstant) -> Reply {
        let mut effects = Vec::new();
        let _ = self.table.apply(Command::SetClock { now: SystemTime::now().into() }, &mut effects);
        let reply = self.table.apply_whole(command, &mut effects);
        effects.into_iter().for_each(|effect| self.tell(effect, now));
        reply
    }

    fn tell(&mut self, effect: Effect, now: BootInstant) {
        match effect {
            Effect::SessionEnded { session } => {
                self.book.ended(session);
                let waiting: Vec<_> = self
                    .waiting
                    .range((session, Seq(0))..=(session, Seq(u64::MAX)))
                    .map(|(&key, _)| key)
                    .collect();
                for key in waiting {
                    self.answer(key, Answer::SessionGone);
                }
                self.push(session, Push::Lost(LossCause::SessionEnded));
                self.clients.remove(&session);
                self.missed.remove(&session);
            }
            Effect::Revoked { session, seq, token } => {
                // The push below notifies the holder. The hold ends a ttl after the break at the latest (B1).
                let ttl_ms = self.table.session(session).map_or(0, |session| session.ttl_ms);
                self.book.after(Duration::from_millis(ttl_ms), Due::EndRevoked(token));
                let notice = self.table.break_order(token).map(|(by, reason)| BreakNotice::new(by, reason));
                self.push(session, Push::Revoked { seq, notice });
            }
            Effect::Recalled { session, seq } => self.push(session, Push::Recalled { seq }),
            Effect::Ended { session, seq, end } => {
                if !self.answer((session, seq), Answer::Finished(end)) {
                    self.push(session, Push::Ended { seq, end });
                }
            }
            Effect::Closed { token, ms } => {
                self.closed_at.insert(token, now);
                self.book.after(Duration::from_millis(ms), Due::EndDelay(token));
            }
            Effect::Granted { session, seq, grant } => {
                self.answer((session, seq), granted(grant));
            }
        }
    }

    fn answer(&mut self, key: (SessionId, Seq), answer: Answer) -> bool {
        if self.is_cut_off(key.0) {
            return self.waiting.remove(&key).is_some();
        }
        self.waiting.remove(&key).is_some_and(|waiting| waiting.send(answer).is_ok())
    }

    fn push(&mut self, session: SessionId, push: Push) {
        if self.is_cut_off(session) {
            self.missed.entry(session).or_default().push(push);
        } else if let Some(client) = self.clients.get(&session) {
            // The send fails only if the client is gone.
            let _ = client.pushes.send(push);
        }
    }

    fn is_cut_off(&self, session: SessionId) -> bool {
        // Searched in `clients`: a session that has just ended is no longer in the table.
        self.clients.get(&session).is_some_and(|client| self.faults.cut_off.contains(&client.label))
    }

    fn call(&mut self, client: &Arc<MemoryClient>, call: Call, now: BootInstant) -> CallOutcome {
        let outcome = self.execute(client, call, now);
        if self.faults.lose_answers > 0 {
            self.faults.lose_answers -= 1;
            return CallOutcome::Now(Err(LOST));
        }
        outcome
    }

    fn execute(&mut self, client: &Arc<MemoryClient>, call: Call, now: BootInstant) -> CallOutcome {
        let mut state = client.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Call::Open { fresh } = call {
            return CallOutcome::Now(Ok(self.open(client, &mut state, fresh, now)));
        }
        let Some(session) = state.1 else { return CallOutcome::Now(Ok(Answer::SessionGone)) };
        drop(state);
        let reply = match call {
            Call::Open { .. } => return CallOutcome::Now(Err(LOST)),
            Call::KeepAlive => {
                if self.table.session(session).is_none() {
                    return CallOutcome::Now(Ok(Answer::SessionGone));
                }
                self.book.kept_alive(session);
                // Before the answer, which extends the client's deadline: it may have missed that a hold was
                // revoked.
                for push in self.missed.remove(&session).unwrap_or_default() {
                    self.push(session, push);
                }
                return CallOutcome::Now(Ok(Answer::KeptAlive));
            }
            Call::Acquire { seq, done_through, request, wait_left } => {
                return self.acquire(session, seq, done_through, &request, wait_left, now);
            }
            Call::Finish { seq, target, done_through } => {
                // No call waits for the grant of this request any more.
                self.waiting.remove(&(session, target));
                self.apply(Command::Finish { session, seq, target, done_through }, now)
            }
            Call::Change { seq, target, done_through, change } => self.apply(
                match change {
                    HoldChange::SetValue(value) => {
                        Command::SetValue { session, seq, target, value: (&*value).into(), done_through }
                    }
                    HoldChange::Downgrade => Command::Downgrade { session, seq, target, done_through },
                    HoldChange::Settle => Command::Settle { session, seq, target, done_through },
                },
                now,
            ),
            Call::Close => {
                let _ = self.apply(Command::CloseSession { session }, now);
                return CallOutcome::Now(Ok(Answer::Closed));
            }
        };
        CallOutcome::Now(Ok(self.to_answer(reply)))
    }

    fn open(
        &mut self,
        client: &Arc<MemoryClient>,
        known: &mut (Option<[u8; 32]>, Option<SessionId>),
        fresh: bool,
        now: BootInstant,
    ) -> Answer {
        if fresh || known.0.is_none() {
            match random_bytes() {
                Ok(secret) => known.0 = Some(secret),
                Err(error) => return Answer::Refused(error),
            }
        }
        let ttl = client.spec.ttl.unwrap_or(Duration::from_secs(30));
        let reply = self.apply(
            Command::OpenSession(core::OpenSession {
                secret_hash: known.0.unwrap_or_default(),
                ttl_ms: ttl.as_millis() as u64,
                lock_delay_ms: client.spec.lock_delay.as_millis() as u64,
                linger_ms: client.spec.linger.as_millis() as u64,
                label: client.label.as_str().into(),
                identity: Box::default(),
            }),
            now,
        );
        match reply {
            Reply::Opened { session } => {
                known.1 = Some(session);
                self.book.opened(session, ttl);
                self.book.kept_alive(session);
                self.clients.insert(session, client.clone());
                Answer::Opened
            }
            other => self.to_answer(other),
        }
    }

    fn acquire(
        &mut self,
        session: SessionId,
        seq: Seq,
        done_through: Seq,
        request: &AcquireRequest,
        wait_left: Option<Duration>,
        now: BootInstant,
    ) -> CallOutcome {
        let at_most_ms = wait_left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
        let reply = self.apply(
            Command::Acquire(core::Acquire {
                session,
                seq,
                done_through,
                names: request.names.clone(),
                mode: request.mode,
                subtree: request.subtree,
                if_busy: if request.wait {
                    IfBusy::Wait { at_most_ms, waiters_max: request.waiters_max }
                } else {
                    IfBusy::Fail
                },
                keep_closed_ms: request.keep_closed.as_millis() as u64,
                value: request.value.clone(),
                meta: request.meta.clone(),
                spare_tokens: request.spare_tokens,
                holding: request.holding.clone(),
            }),
            now,
        );
        match reply {
            Reply::Queued { position, .. } => {
                // A request that doesn't wait is queued while the holders of cached holds decide (C6).
                let left = if request.wait {
                    wait_left
                } else {
                    Some(Duration::from_millis(core::limits::TRY_WAIT_MS))
                };
                if let Some(left) = left {
                    self.book.after(left, Due::TimeOut(session, seq));
                }
                let (answer, answered) = oneshot::channel();
                self.waiting.insert((session, seq), answer);
                self.push(session, Push::Queued { seq, position });
                CallOutcome::Later(answered)
            }
            other => CallOutcome::Now(Ok(self.to_answer(other))),
        }
    }

    fn to_answer(&self, reply: Reply) -> Answer {
        match reply {
            Reply::Granted(grant) => granted(grant),
            Reply::Busy { holder, queued_ahead } => {
                Answer::Busy(Busy { holder: holder.map(|holder| self.label(holder)), queued_ahead })
            }
            Reply::Finished(end) => Answer::Finished(end),
            Reply::Done => Answer::Changed,
            Reply::Revoked { .. } => Answer::Revoked,
            Reply::Refused(rejection) => Answer::Refused(rejection.into()),
            // `Reply::SessionGone`, and replies to commands that a client session does not send.
            _ => Answer::SessionGone,
        }
    }

    fn label(&self, session: SessionId) -> String {
        self.table.session(session).map(|session| session.label.into()).unwrap_or_default()
    }

    fn info(&self, name: LockName, description: core::Description, now: BootInstant) -> LockInfo {
        let wall = SystemTime::now().into();
        let age = |_, since: WallTime| since.until(wall);
        let closed_left = |token, ms| {
            let passed = self.closed_at.get(&token).map_or(Duration::ZERO, |&at| now - at);
            Duration::from_millis(ms).saturating_sub(passed)
        };
        LockInfo::from_description(name, description, |session| self.label(session), age, closed_left)
    }
}

fn granted(grant: core::Grant) -> Answer {
    let core::Grant { token, permits, spare_tokens } = grant;
    Answer::Granted(Granted { token: Some(token), permits, spare_tokens })
}

impl MemoryConn {
    pub(super) fn new(
        service: Arc<MemoryService>,
        spec: Spec,
        label: &str,
        pushes: UnboundedSender<Push>,
    ) -> Self {
        let client = MemoryClient { spec, label: label.to_owned(), pushes, session: Mutex::default() };
        Self { service, client: Arc::new(client) }
    }
}

impl Conn for MemoryConn {
    fn submit(&self, call: Call, responder: Responder) {
        match self.service.call(&self.client, call) {
            Ok(CallOutcome::Now(result)) => responder.send(result),
            Ok(CallOutcome::Later(answer)) => {
                responder.send_when(Box::pin(async move { answer.await.map_err(|_| LOST) }));
            }
            Err(later) => responder.send_when(Box::pin(async move {
                match later.await.map_err(|_| LOST)? {
                    CallOutcome::Now(result) => result,
                    CallOutcome::Later(answer) => answer.await.map_err(|_| LOST),
                }
            })),
        }
    }
}
