//! Driver of one session's [`Machine`]: feeds it events and the time, executes its calls, and notifies its
//! callers.
//!
//! All decisions are made by the machine. A caller's calls run on the caller's runtime, all others on the
//! lease thread ([`io`](lockkeeper_backend::io)).
//!
//! Calls leave in the order of their seqs, under one mutex (R5). It is held for a few hundred nanoseconds
//! with every backend but `file:`, and an acquire or a release does not wait for it: input that arrives while
//! another thread holds it is processed by that thread.

mod cached;
mod hold;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

pub(crate) use cached::Caching;
pub(crate) use hold::{HoldHandle, NotHeld};
use hold::{HoldStatus, LeaseTrouble};
use lockkeeper_backend::io::{CallRuntime, LeaseThread};
use lockkeeper_backend::{
    AcquireRequest, Alarm, Answer, Backend, BackendError, BootInstant, Call, CallError, CallId, CallOrigin,
    CallResult, Clock, Conn, Granted, HoldChange, Push, Responder, Spec,
};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::machine::cache::{Cache, CachedSection};
use crate::machine::{AcquireLimits, CallKind, Event, Key, Machine, NotAcquired, Output, Releasing, RunsOn};
use crate::observe::SectionMetrics;

/// A session in use. Dropping the last reference releases everything and closes the session.
pub(crate) struct Session(Arc<SessionInner>);

struct SessionInner {
    backend: Arc<dyn Backend>,
    spec: Spec,
    label: String,
    /// Passes the loop the push channel of each session opened at the service after the first.
    streams: UnboundedSender<PushStream>,
    clock: Clock,
    lease_thread: LeaseThread,
    alarm: Arc<Alarm>,
    has_ttl: bool,
    /// The session's lease deadline in nanoseconds; 0 before there is one.
    lease_deadline: AtomicU64,
    /// Why the lease is not renewed at present.
    trouble: LeaseTrouble,
    /// Notified when `lease_deadline` or `trouble` changes.
    lease_changed: Notify,
    /// Cancelled when the session has closed for good, after a shutdown.
    closed: CancellationToken,
    /// Counter for the keys of callers.
    last_key: AtomicU64,
    state: Mutex<SessionState>,
    inbox: Inbox,
    /// Locked after `state`, if both are.
    cache: Mutex<Cache<Arc<HoldStatus>>>,
    section_metrics: OnceLock<SectionMetrics>,
}

/// Inputs that arrived while another thread held the state's lock; that thread processes them. Blocking on
/// the lock would give up the processor for a critical section of a few hundred nanoseconds.
#[derive(Default)]
struct Inbox {
    inputs: Mutex<VecDeque<Input>>,
    /// The length of `inputs`, readable without its lock.
    count: AtomicUsize,
}

/// An input of the session.
enum Input {
    /// A caller requests a hold.
    Acquire(Key, Caller, AcquireLimits),
    /// A caller releases its hold. The runtime is where the release runs, which may differ from where the
    /// acquire ran.
    Release(Key, CallRuntime),
    /// A caller's future or guard was dropped.
    Abandon(Key),
    /// A push of the backend for the session of this generation, which may have ended since.
    Pushed(u64, Push),
    Answered(CallId, CallResult),
    Event(Event),
}

struct SessionState {
    machine: Machine,
    /// The connection of the present session. Each session has its own, so that a late answer or push of an
    /// earlier session is never applied to this one.
    conn: Arc<dyn Conn>,
    generation: u64,
    /// Whether a session was opened before. Each further one gets a new connection.
    opened: bool,
    callers: BTreeMap<Key, Caller>,
    /// When cached holds may be idle for too long.
    cache_due: Option<BootInstant>,
    /// Events that follow from the machine's outputs.
    follow_ups: VecDeque<Event>,
    /// Buffers of `feed`, kept to avoid allocations.
    outputs: Vec<Output>,
}

/// The pushes of one session.
struct PushStream {
    generation: u64,
    pushes: UnboundedReceiver<Push>,
}

struct Caller {
    request: Arc<AcquireRequest>,
    hold: Arc<HoldStatus>,
    /// Where its calls run.
    runtime: CallRuntime,
    /// `None`: the hold is not to be cached.
    caching: Option<Caching>,
    /// The request was queued. Recorded only if the hold is to be cached.
    met_others: bool,
}

/// A step of a caller's request. A caller that is late sees only the latest one.
enum RequestProgress {
    Queued(u64),
    /// An attempt was refused, and is repeated.
    Refused(Arc<BackendError>),
    /// With the first section of the hold, if it is cached.
    Granted(Granted, Option<CachedSection>),
    NotAcquired(NotAcquired),
    Released(Releasing),
}

/// Callbacks to a caller that waits for a hold.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks<'a> {
    /// Its position in the queue.
    pub(crate) queued: Option<&'a (dyn Fn(u64) + Send + Sync)>,
    /// The refusal of an attempt, which is repeated.
    pub(crate) refused: Option<&'a (dyn Fn(&BackendError) + Send + Sync)>,
}

impl Session {
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        spec: Spec,
        label: &str,
        lease_thread: LeaseThread,
    ) -> Arc<Self> {
        let (pushes_in, pushes) = unbounded_channel();
        let (streams, next_streams) = unbounded_channel();
        let clock = backend.clock();
        let conn = backend.session(spec, label, pushes_in);
        let state = SessionState {
            machine: Machine::new(spec),
            conn,
            generation: 0,
            opened: false,
            callers: BTreeMap::new(),
            cache_due: None,
            follow_ups: VecDeque::new(),
            outputs: Vec::new(),
        };
        let inner = Arc::new(SessionInner {
            backend,
            spec,
            label: label.to_owned(),
            streams,
            alarm: clock.alarm(),
            clock,
            lease_thread,
            has_ttl: spec.ttl.is_some(),
            lease_deadline: AtomicU64::new(0),
            trouble: LeaseTrouble::default(),
            lease_changed: Notify::new(),
            closed: CancellationToken::new(),
            last_key: AtomicU64::new(0),
            state: Mutex::new(state),
            inbox: Inbox::default(),
            cache: Mutex::default(),
            section_metrics: OnceLock::new(),
        });
        inner.lease_thread.run(Box::pin(session_loop(
            inner.clone(),
            PushStream { generation: 0, pushes },
            next_streams,
        )));
        Arc::new(Self(inner))
    }

    /// Requests a hold and waits for it. Cancel-safe: dropped at any await point, it leaves nothing held or
    /// queued.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: Arc<AcquireRequest>,
        limits: AcquireLimits,
        caching: Option<Caching>,
        on: Callbacks<'_>,
    ) -> Result<HoldHandle, NotHeld> {
        let hold = Arc::new(HoldStatus::new(request.clone(), self.0.trouble.clone()));
        let key = Key(self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1);
        let runtime = CallRuntime::here(&self.0.lease_thread);
        let caller = Caller { request, hold: hold.clone(), runtime, caching, met_others: false };
        // From here on, dropping `handle` abandons the request.
        let mut handle = HoldHandle::new(self.clone(), key, hold);
        self.0.input(Input::Acquire(key, caller, limits));
        match handle.until_held(&limits, on).await {
            Ok(()) => Ok(handle),
            Err(why) => Err(NotHeld { why, refusal: handle.hold.refusal() }),
        }
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.0.clock.now()
    }

    /// Why a call was not served: its refusal, or else why there is no connection or the latest call has no
    /// answer.
    pub(crate) fn reason(&self, refusal: Option<&BackendError>) -> Option<Arc<str>> {
        let trouble = || self.0.with_state(|state| state.conn.clone()).trouble();
        refusal.map(BackendError::to_string).or_else(trouble).map(Into::into)
    }

    /// Releases everything and closes the session, in the background.
    pub(crate) fn shut_down(&self) {
        self.0.input(Input::Event(Event::Shutdown));
    }

    /// Whether everything has been released and the session is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.with_state(|state| state.machine.is_closed())
    }

    /// Returns once the session is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The session's loop on the lease thread: its alarm and the backend's pushes.
async fn session_loop(
    inner: Arc<SessionInner>,
    mut stream: PushStream,
    mut streams: UnboundedReceiver<PushStream>,
) {
    loop {
        tokio::select! {
            () = inner.closed.cancelled() => return,
            () = inner.alarm.ring() => inner.input_now(Input::Event(Event::Wake)),
            Some(next) = streams.recv() => stream = next,
            Some(push) = stream.pushes.recv() => inner.input(Input::Pushed(stream.generation, push)),
        }
    }
}

impl SessionInner {
    /// Feeds the machine and performs its outputs: on this thread, or on the thread that holds the state's
    /// lock. Calls are submitted in the machine's order, because they are submitted under that lock (R5).
    fn input(self: &Arc<Self>, input: Input) {
        match self.try_state() {
            Some(mut state) => self.work_off(&mut state, Some(input)),
            None => self.inbox.put(input),
        }
        self.catch_up();
    }

    /// As [`Self::input`], but the input has been processed on return.
    fn input_now(self: &Arc<Self>, input: Input) {
        self.with_state(|state| self.work_off(state, Some(input)));
    }

    /// Runs `run` on the state; blocks while another thread holds the lock.
    fn with_state<T>(self: &Arc<Self>, run: impl FnOnce(&mut SessionState) -> T) -> T {
        let result = run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.catch_up();
        result
    }

    fn try_state(&self) -> Option<MutexGuard<'_, SessionState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Drains the inbox if the lock is free; otherwise the lock's holder drains it after unlocking.
    fn catch_up(self: &Arc<Self>) {
        loop {
            // With this fence, either the thread that filled the inbox sees the lock free, or the thread that
            // freed the lock sees the inbox filled.
            fence(Ordering::SeqCst);
            if self.inbox.is_empty() {
                return;
            }
            let Some(mut state) = self.try_state() else { return };
            self.work_off(&mut state, None);
        }
    }

    /// Processes the queued inputs, then the new one: each thread's inputs keep their order.
    fn work_off(self: &Arc<Self>, state: &mut SessionState, new: Option<Input>) {
        while let Some(waiting) = self.inbox.take() {
            self.take_in(state, waiting);
        }
        if let Some(new) = new {
            self.take_in(state, new);
        }
    }

    fn take_in(self: &Arc<Self>, state: &mut SessionState, input: Input) {
        let event = match input {
            Input::Acquire(key, caller, limits) => {
                state.callers.insert(key, caller);
                Event::Acquire { key, limits }
            }
            Input::Release(key, runtime) => {
                if let Some(caller) = state.callers.get_mut(&key) {
                    caller.runtime = runtime;
                }
                Event::Release { key }
            }
            Input::Abandon(key) => {
                if state.callers.remove(&key).is_some_and(|caller| caller.caching.is_some()) {
                    self.cache().remove_key(key);
                }
                Event::Abandon { key }
            }
            Input::Pushed(generation, _) if generation != state.generation => return,
            Input::Pushed(_, mut push) => {
                let holder =
                    |seq| state.machine.key_of(seq).and_then(|key| Some(&*state.callers.get(&key)?.hold));
                match &mut push {
                    Push::Revoked { seq, notice: notice @ Some(_) } => {
                        if let Some((hold, notice)) = holder(*seq).zip(notice.take()) {
                            hold.break_ordered(notice);
                        }
                    }
                    Push::HoldLost { seq, why: why @ Some(_), .. } => {
                        if let Some((hold, why)) = holder(*seq).zip(why.take()) {
                            hold.lost_because(why);
                        }
                    }
                    _ => {}
                }
                Event::Pushed(push)
            }
            Input::Answered(call, result) => {
                self.note(state, call, &result);
                match result {
                    Ok(answer) => Event::Answered { call, answer },
                    Err(error) => Event::Failed { call, sent: error.sent },
                }
            }
            Input::Event(event) => {
                match event {
                    Event::Wake => self.release_idle(state),
                    Event::Shutdown => self.stop_caching(state),
                    _ => {}
                }
                event
            }
        };
        self.feed(state, event);
    }

    /// Records why a renewal or a caller's call failed. The machine is given no reasons, only the failures.
    fn note(&self, state: &SessionState, call: CallId, result: &CallResult) {
        match (state.machine.kind_of(call), result) {
            (Some(CallKind::Open { .. } | CallKind::KeepAlive), result) => {
                let trouble = match result {
                    Ok(Answer::Refused(error)) => Some(error.to_string()),
                    Ok(_) => None,
                    Err(CallError { refusal: Some(refusal), .. }) => Some(refusal.to_string()),
                    // Without a reason, the last one stays.
                    Err(_) => match state.conn.trouble() {
                        None => return,
                        trouble => trouble,
                    },
                };
                if self.trouble.replace(trouble) {
                    self.lease_changed.notify_waiters();
                }
            }
            (Some(kind), Err(CallError { refusal: Some(refusal), .. })) => {
                let caller = state.machine.caller_of(call).and_then(|key| state.callers.get(&key));
                let is_acquire = matches!(kind, CallKind::Acquire { .. });
                caller.inspect(|caller| caller.hold.refused(refusal, is_acquire));
            }
            _ => {}
        }
    }

    fn name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// Gives a newly opened session a connection of its own.
    fn renew_conn(&self, state: &mut SessionState) {
        let (pushes_in, pushes) = unbounded_channel();
        state.conn = self.backend.session(self.spec, &self.label, pushes_in);
        state.generation += 1;
        // The send fails only if the loop has ended with the session; the pushes are not needed then.
        let _ = self.streams.send(PushStream { generation: state.generation, pushes });
    }

    fn feed(self: &Arc<Self>, state: &mut SessionState, event: Event) {
        let mut outputs = std::mem::take(&mut state.outputs);
        state.follow_ups.push_back(event);
        while let Some(event) = state.follow_ups.pop_front() {
            state.machine.handle(self.clock.now(), event, &mut outputs);
            for output in outputs.drain(..) {
                self.perform(state, output);
            }
        }
        state.outputs = outputs;
        if state.machine.is_closed() {
            self.closed.cancel();
        } else {
            self.alarm.set(state.machine.next_wake().into_iter().chain(state.cache_due).min());
        }
    }

    fn perform(self: &Arc<Self>, state: &mut SessionState, output: Output) {
        match output {
            Output::Call { call, kind, runs_on } => {
                if kind == (CallKind::Open { fresh: true }) && std::mem::replace(&mut state.opened, true) {
                    self.renew_conn(state);
                }
                let Some(content) = to_call(state, kind) else { return };
                let caller = match runs_on {
                    RunsOn::Caller(key) => state.callers.get(&key),
                    RunsOn::LeaseThread => None,
                };
                let runtime = caller.map_or_else(
                    || CallRuntime::LeaseThread(self.lease_thread.clone()),
                    |caller| caller.runtime.clone(),
                );
                state.conn.submit(content, Responder::to_session(self.clone(), call, runtime));
            }
            Output::LeaseDeadline(until) => {
                self.lease_deadline.store(until.map_or(0, BootInstant::as_nanos), Ordering::SeqCst);
                self.cache().lease_until(until);
                self.lease_changed.notify_waiters();
            }
            Output::Attached(attached) => self.cache().attached(attached),
            Output::Queued { key, position } => {
                self.met_others(state, key);
                if let Some(caller) = state.callers.get(&key) {
                    caller.hold.report(RequestProgress::Queued(position));
                }
            }
            Output::Granted { key, grant } => self.granted(state, key, grant),
            Output::NotAcquired { key, why } => {
                if matches!(why, NotAcquired::Busy(_) | NotAcquired::TimedOut) {
                    self.met_others(state, key);
                }
                state.report_last(key, RequestProgress::NotAcquired(why));
            }
            Output::Released { key, how } => state.report_last(key, RequestProgress::Released(how)),
            Output::Recalled { key } => self.recalled(state, key),
            // An idle hold has no section that could notice.
            Output::Lost { key, .. } if self.cache().remove_key(key) => state.abandon(key),
            Output::Lost { key, cause } => {
                if let Some(caller) = state.callers.get(&key) {
                    caller.hold.lose(cause, self.name(), self.until_deadline(self.clock.now()));
                }
            }
        }
    }
}

impl SessionInner {
    /// `now`, or the lease deadline if it has passed.
    fn until_deadline(&self, now: BootInstant) -> BootInstant {
        let has_ended =
            self.has_ttl.then(|| BootInstant::from_nanos(self.lease_deadline.load(Ordering::SeqCst)));
        has_ended.map_or(now, |deadline| deadline.min(now))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.hold.end_reports();
    }
}

impl CallOrigin for SessionInner {
    fn answered(self: Arc<Self>, call: CallId, result: CallResult) {
        self.input(Input::Answered(call, result));
    }
}

impl Inbox {
    fn inputs(&self) -> MutexGuard<'_, VecDeque<Input>> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, input: Input) {
        let mut inputs = self.inputs();
        inputs.push_back(input);
        self.count.store(inputs.len(), Ordering::SeqCst);
    }

    fn take(&self) -> Option<Input> {
        if self.is_empty() {
            return None;
        }
        let mut inputs = self.inputs();
        let input = inputs.pop_front();
        self.count.store(inputs.len(), Ordering::SeqCst);
        input
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

impl SessionState {
    /// Reports the end of a request to its caller.
    fn report_last(&mut self, key: Key, progress: RequestProgress) {
        if let Some(caller) = self.callers.remove(&key) {
            caller.hold.report(progress);
        }
    }
}

fn to_call(state: &SessionState, kind: CallKind) -> Option<Call> {
    Some(match kind {
        CallKind::Open { fresh } => Call::Open { fresh },
        CallKind::KeepAlive => Call::KeepAlive,
        CallKind::Acquire { key, seq, done_through, wait_left } => {
            let request = state.callers.get(&key)?.request.clone();
            Call::Acquire { seq, done_through, request, wait_left }
        }
        CallKind::Finish { seq, target, done_through } => Call::Finish { seq, target, done_through },
        CallKind::Settle { seq, target, done_through } => {
            Call::Change { seq, target, done_through, change: HoldChange::Settle }
        }
        CallKind::Close => Call::Close,
    })
}
