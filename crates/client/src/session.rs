//! Drives one session's machine: gives it the time, carries its calls, tells its callers.
//!
//! All decisions are the machine's. Calls of a caller are carried on the caller's task, all else on the worker.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_core::Seq;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BoxFuture, Call, CallError, Conn, Wanted};
use crate::error::{LossCause, Lost, VerifyError};
use crate::machine::{
    Answer, By, CallId, Event, Granted, Key, Machine, NotAcquired, Output, Push, Releasing, Spec, Want, What,
};
use crate::mailbox::{Reader, Writer, mailbox};
use crate::observe;
use crate::time::{Alarm, BootInstant, Clock};
use crate::worker::Worker;

/// A session in use. When the last reference goes, everything is released and the session is closed.
pub(crate) struct Session(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    spec: Spec,
    label: String,
    /// Where the loop hears of a new session's pushes.
    streams: UnboundedSender<Stream>,
    clock: Clock,
    worker: Worker,
    alarm: Arc<Alarm>,
    has_ttl: bool,
    /// The session's deadline in nanoseconds; 0 before there is one.
    belief: AtomicU64,
    /// The session is over for good, after a shutdown.
    closed: CancellationToken,
    /// Names callers.
    last_key: AtomicU64,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    /// What carries the present session. Each session has its own, so that what a late call or push of an earlier
    /// one says can't be taken for a word on this one.
    conn: Arc<dyn Conn>,
    generation: u64,
    /// Whether a session was ever opened on `conn`.
    opened: bool,
    callers: BTreeMap<Key, Caller>,
    /// Room for a turn, kept from one to the next.
    events: VecDeque<Event>,
    outputs: Vec<Output>,
}

/// The pushes of one session.
struct Stream {
    generation: u64,
    pushes: UnboundedReceiver<Push>,
}

struct Caller {
    wanted: Arc<Wanted>,
    letters: Writer<Letter>,
    hold: Arc<Hold>,
}

/// The backend call that a caller's task carries at the moment.
type Carried = Option<(CallId, BoxFuture<Result<Answer, CallError>>)>;

enum Letter {
    Carry(CallId, BoxFuture<Result<Answer, CallError>>),
    Queued(u64),
    Granted(Granted),
    NotAcquired(NotAcquired),
    Released(Releasing),
}

/// What a guard asks without any lock or I/O.
pub(crate) struct Hold {
    lost: CancellationToken,
    cause: OnceLock<LossCause>,
    /// The hold's own deadline (`max_hold`), in nanoseconds.
    ends_at: AtomicU64,
}

/// A granted request: releases when dropped.
pub(crate) struct HoldHandle {
    session: Arc<Session>,
    key: Key,
    letters: Reader<Letter>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) granted: Granted,
    pub(crate) since: BootInstant,
    over: bool,
}

impl Session {
    pub(crate) fn start(backend: Arc<dyn Backend>, spec: Spec, label: &str, worker: Worker) -> Arc<Self> {
        let (pushes_in, pushes) = unbounded_channel();
        let (streams, next_streams) = unbounded_channel();
        let clock = backend.clock();
        let conn = backend.session(spec, label, pushes_in);
        let state = State {
            machine: Machine::new(spec),
            conn,
            generation: 0,
            opened: false,
            callers: BTreeMap::new(),
            events: VecDeque::new(),
            outputs: Vec::new(),
        };
        let inner = Arc::new(Inner {
            backend,
            spec,
            label: label.to_owned(),
            streams,
            alarm: clock.alarm(),
            clock,
            worker,
            has_ttl: spec.ttl.is_some(),
            belief: AtomicU64::new(0),
            closed: CancellationToken::new(),
            last_key: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        inner.worker.run(Box::pin(tend(inner.clone(), Stream { generation: 0, pushes }, next_streams)));
        Arc::new(Self(inner))
    }

    /// Asks for a hold and waits for it. Cancel-safe: dropped at any await, it leaves nothing held or queued.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wanted: Arc<Wanted>,
        want: Want,
        on_queued: Option<&(dyn Fn(u64) + Send + Sync)>,
    ) -> Result<HoldHandle, NotAcquired> {
        let (letters_in, letters) = mailbox();
        let hold = Arc::new(Hold {
            lost: CancellationToken::new(),
            cause: OnceLock::new(),
            ends_at: AtomicU64::new(u64::MAX),
        });
        let key = Key(self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1);
        let caller = Caller { wanted, letters: letters_in, hold: hold.clone() };
        // From here on dropping this abandons the request.
        let mut handle = HoldHandle {
            session: self.clone(),
            key,
            letters,
            hold,
            granted: Granted::default(),
            since: self.0.clock.now(),
            over: false,
        };
        {
            let mut state = self.0.state();
            state.callers.insert(key, caller);
            self.0.feed(&mut state, Event::Acquire { key, want });
        }
        let mut carried = None;
        loop {
            match handle.next_letter(&mut carried).await {
                Letter::Queued(position) => {
                    if let Some(on_queued) = on_queued {
                        on_queued(position);
                    }
                }
                Letter::Granted(granted) => {
                    handle.since = self.0.clock.now();
                    if let Some(max) = want.max_hold {
                        let ends_at = (handle.since + max).as_nanos();
                        handle.hold.ends_at.store(ends_at, Ordering::SeqCst);
                    }
                    handle.granted = granted;
                    return Ok(handle);
                }
                Letter::NotAcquired(why) => {
                    handle.over = true;
                    return Err(why);
                }
                Letter::Carry(..) | Letter::Released(_) => {}
            }
        }
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.0.clock.now()
    }

    /// What the latest call without an answer failed of, if the backend knows.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.state().conn.clone().trouble()
    }

    /// Gives everything back and closes, in the background.
    pub(crate) fn shut_down(&self) {
        self.0.input(Event::Shutdown);
    }

    /// Whether everything was given back and the session is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.state().machine.is_closed()
    }

    /// Returns once it is.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The session's loop on the worker: its alarm, and what the backend says unasked.
async fn tend(inner: Arc<Inner>, mut stream: Stream, mut streams: UnboundedReceiver<Stream>) {
    loop {
        tokio::select! {
            () = inner.closed.cancelled() => return,
            () = inner.alarm.ring() => inner.input(Event::Wake),
            Some(next) = streams.recv() => stream = next,
            Some(push) = stream.pushes.recv() => inner.pushed(stream.generation, push),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds the machine and does what it says. Calls leave in the machine's order, under one lock (R5).
    fn input(self: &Arc<Self>, event: Event) {
        self.feed(&mut self.state(), event);
    }

    /// As [`Self::input`], for what was said in a session that may be over by now.
    fn pushed(self: &Arc<Self>, generation: u64, push: Push) {
        let mut state = self.state();
        if state.generation == generation {
            self.feed(&mut state, Event::Pushed(push));
        }
    }

    fn name(&self) -> &'static str {
        self.backend.capabilities().backend
    }

    /// A session that is opened anew gets a carrier of its own.
    fn renew_conn(&self, state: &mut State) {
        let (pushes_in, pushes) = unbounded_channel();
        state.conn = self.backend.session(self.spec, &self.label, pushes_in);
        state.generation += 1;
        // The loop ends with the session, and then nobody needs its pushes.
        let _ = self.streams.send(Stream { generation: state.generation, pushes });
    }

    fn feed(self: &Arc<Self>, state: &mut State, event: Event) {
        let mut events = std::mem::take(&mut state.events);
        let mut outputs = std::mem::take(&mut state.outputs);
        events.push_back(event);
        while let Some(event) = events.pop_front() {
            state.machine.handle(self.clock.now(), event, &mut outputs);
            for output in outputs.drain(..) {
                // Backends that answer at once are heard at once, without a task or a thread in between.
                events.extend(self.perform(state, output));
            }
        }
        state.events = events;
        state.outputs = outputs;
        if state.machine.is_closed() {
            self.closed.cancel();
        } else {
            self.alarm.set(state.machine.next_wake());
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, output: Output) -> Option<Event> {
        match output {
            Output::Call { call, what, by } => {
                if what == (What::Open { fresh: true }) && std::mem::replace(&mut state.opened, true) {
                    self.renew_conn(state);
                }
                let letters = match by {
                    // A caller outside of a tokio runtime can't carry I/O itself.
                    By::Caller(key) if Handle::try_current().is_ok() => {
                        state.callers.get(&key).map(|caller| &caller.letters)
                    }
                    _ => None,
                };
                // Whoever carries a call must not depend on another's runtime, from the first step on: whoever drops a
                // guard may be in none, or in one that nobody drives any more.
                let entered = letters.is_none().then(|| self.worker.enter());
                let mut future = state.conn.submit(to_call(state, what)?);
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                    return Some(to_event(call, result));
                }
                drop(entered);
                let carried = match letters {
                    Some(letters) => match letters.send(Letter::Carry(call, future)) {
                        Ok(()) => None,
                        Err(Letter::Carry(_, future)) => Some(future),
                        Err(_) => None,
                    },
                    None => Some(future),
                };
                if let Some(future) = carried {
                    let inner = self.clone();
                    self.worker.run(Box::pin(async move {
                        let result = future.await;
                        inner.input(to_event(call, result));
                    }));
                }
            }
            Output::Belief(until) => {
                self.belief.store(until.map_or(0, BootInstant::as_nanos), Ordering::SeqCst);
            }
            Output::Queued { key, position } => state.tell(key, Letter::Queued(position)),
            Output::Granted { key, grant } => state.tell(key, Letter::Granted(grant)),
            Output::NotAcquired { key, why } => state.tell_last(key, Letter::NotAcquired(why)),
            Output::Released { key, how } => state.tell_last(key, Letter::Released(how)),
            Output::Lost { key, cause } => {
                if let Some(caller) = state.callers.get(&key) {
                    caller.hold.lose(cause, self.name());
                }
            }
        }
        None
    }
}

impl State {
    fn tell(&self, key: Key, letter: Letter) {
        if let Some(caller) = self.callers.get(&key) {
            // A caller that is gone has abandoned its request: the machine knows.
            let _ = caller.letters.send(letter);
        }
    }

    /// As [`Self::tell`], for what ends a request.
    fn tell_last(&mut self, key: Key, letter: Letter) {
        if let Some(caller) = self.callers.remove(&key) {
            let _ = caller.letters.send(letter);
        }
    }
}

fn to_call(state: &State, what: What) -> Option<Call> {
    Some(match what {
        What::Open { fresh } => Call::Open { fresh },
        What::KeepAlive => Call::KeepAlive,
        What::Acquire { key, seq, done_through, wait_left } => {
            let want = state.callers.get(&key)?.wanted.clone();
            Call::Acquire { seq, done_through, want, wait_left }
        }
        What::Finish { seq, target, done_through } => Call::Finish { seq, target, done_through },
        What::Close => Call::Close,
    })
}

fn to_event(call: CallId, result: Result<Answer, CallError>) -> Event {
    match result {
        Ok(answer) => Event::Answered { call, answer },
        Err(error) => Event::Failed { call, sent: error.sent },
    }
}

impl Hold {
    fn lose(&self, cause: LossCause, backend: &'static str) {
        if self.cause.set(cause).is_ok() {
            observe::lost(backend, cause);
        }
        self.lost.cancel();
    }
}

impl HoldHandle {
    /// Fires when the hold is lost, at its deadline at the latest (P5).
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.hold.lost
    }

    /// Until when the hold may be relied on; `None` if it has no deadline. `Err` if that moment has come (P5).
    pub(crate) fn valid_until(&self) -> Result<Option<BootInstant>, Lost> {
        if let Some(&cause) = self.hold.cause.get() {
            return Err(Lost { cause });
        }
        let inner = &self.session.0;
        let own = self.hold.ends_at.load(Ordering::SeqCst);
        let belief = if inner.has_ttl { inner.belief.load(Ordering::SeqCst) } else { u64::MAX };
        let now = inner.clock.now();
        let until = BootInstant::from_nanos(own.min(belief));
        if now < until {
            return Ok((until != BootInstant::MAX).then_some(until));
        }
        self.hold.lose(if own < belief { LossCause::MaxHold } else { LossCause::Expired }, inner.name());
        // Again from the cell: the machine may have known a better cause first.
        Err(Lost { cause: self.hold.cause.get().copied().unwrap_or(LossCause::Expired) })
    }

    /// Gives the hold back and waits for the answer.
    pub(crate) fn now(&self) -> BootInstant {
        self.session.0.clock.now()
    }

    pub(crate) async fn release(mut self) -> Releasing {
        self.session.0.input(Event::Release { key: self.key });
        let mut carried = None;
        loop {
            if let Letter::Released(how) = self.next_letter(&mut carried).await {
                self.over = true;
                return how;
            }
        }
    }

    /// The next letter for this caller; meanwhile carries the call it was given last.
    async fn next_letter(&mut self, carried: &mut Carried) -> Letter {
        loop {
            let work = poll_fn(|context| match carried {
                Some((call, future)) => future.as_mut().poll(context).map(|result| (*call, result)),
                None => Poll::Pending,
            });
            let (call, result) = tokio::select! {
                biased;
                letter = self.letters.recv() => match letter {
                    Some(Letter::Carry(call, future)) => {
                        *carried = Some((call, future));
                        continue;
                    }
                    Some(letter) => return letter,
                    None => return Letter::NotAcquired(NotAcquired::ShuttingDown),
                },
                done = work => done,
            };
            *carried = None;
            // What comes of it is read right away: a task that wakes itself is run once more, and wakes a thread for it.
            self.letters.look_up();
            self.session.0.input(to_event(call, result));
        }
    }

    /// Asks the backend whether it still holds. One round trip.
    pub(crate) async fn verify(&self) -> Result<(), VerifyError> {
        self.valid_until()?;
        let inner = &self.session.0;
        let (seq, generation, asked) = {
            let state = inner.state();
            let seq = state.machine.seq_of(self.key);
            let wanted = state.callers.get(&self.key).map(|caller| caller.wanted.clone());
            let (Some(seq), Some(want)) = (seq, wanted) else {
                return Err(self.lost_now(LossCause::SessionEnded).into());
            };
            // A retry of the acquire is answered by the request's present state (P7-a). Under the lock: in a session
            // that is opened a moment later this number would be a new request.
            let call = Call::Acquire { seq, done_through: Seq(0), want, wait_left: Some(Duration::ZERO) };
            (seq, state.generation, state.conn.submit(call))
        };
        let answer = asked.await.map_err(|_| VerifyError::NoAnswer)?;
        match answer {
            Answer::Granted(granted) if granted.token == self.granted.token => {}
            Answer::Revoked => inner.pushed(generation, Push::Revoked { seq }),
            Answer::SessionGone => inner.pushed(generation, Push::Lost(LossCause::SessionEnded)),
            Answer::Finished(end) => inner.pushed(generation, Push::Ended { seq, end }),
            Answer::Granted(_) => drop(self.lost_now(LossCause::SessionEnded)),
            _ => return Err(VerifyError::NoAnswer),
        }
        self.valid_until().map(drop).map_err(VerifyError::from)
    }

    fn lost_now(&self, cause: LossCause) -> Lost {
        self.hold.lose(cause, self.session.0.name());
        Lost { cause: self.hold.cause.get().copied().unwrap_or(cause) }
    }

    /// Descriptors that keep the hold alive in whatever process has them; none where no descriptor holds.
    pub(crate) fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        let state = self.session.0.state();
        let conn = state.conn.clone();
        state.machine.seq_of(self.key).map_or_else(Vec::new, |seq| conn.descriptors(seq))
    }
}

impl Drop for HoldHandle {
    fn drop(&mut self) {
        if !self.over {
            let inner = &self.session.0;
            let mut state = inner.state();
            state.callers.remove(&self.key);
            inner.feed(&mut state, Event::Abandon { key: self.key });
        }
    }
}

#[cfg(test)]
mod tests;
