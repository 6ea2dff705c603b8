//! Drives one session's machine: gives it the time, carries its calls, tells its callers.
//!
//! All decisions are the machine's. Calls of a caller are carried on the caller's task, all else on the worker.

mod hold;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use hold::Hold;
pub(crate) use hold::HoldHandle;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BoxFuture, Call, CallError, Conn, Submitted, Wanted};
use crate::machine::{
    Answer, By, CallId, Event, Granted, Key, Machine, NotAcquired, Output, Push, Releasing, Spec, Want, What,
};
use crate::mailbox::{Writer, mailbox};
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
    /// `belief` has changed.
    deadline_moved: Notify,
    /// The session is over for good, after a shutdown.
    closed: CancellationToken,
    /// Names callers.
    last_key: AtomicU64,
    state: Mutex<State>,
    inbox: Inbox,
}

/// What came while another thread had the state: that one works it off. A thread that waited for it instead would lose
/// its processor to a few hundred nanoseconds of another's work.
#[derive(Default)]
struct Inbox {
    inputs: Mutex<VecDeque<Input>>,
    /// How many there are.
    count: AtomicUsize,
}

/// Whatever happens to a session.
enum Input {
    /// A caller wants a hold.
    Acquire(Key, Caller, Want),
    /// A caller gives its hold back; whether it can carry calls itself.
    Release(Key, bool),
    /// A caller is gone.
    Abandon(Key),
    /// A word of the backend on the session of that generation, which may be over by now.
    Pushed(u64, Push),
    Event(Event),
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
    /// Whether it runs on a tokio runtime: outside of one it can't carry I/O itself.
    carries: bool,
}

enum Letter {
    Carry(CallId, BoxFuture<Result<Answer, CallError>>),
    Queued(u64),
    Granted(Granted),
    NotAcquired(NotAcquired),
    Released(Releasing),
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
            deadline_moved: Notify::new(),
            closed: CancellationToken::new(),
            last_key: AtomicU64::new(0),
            state: Mutex::new(state),
            inbox: Inbox::default(),
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
        let hold = Arc::new(Hold::new());
        let key = Key(self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1);
        let caller = Caller { wanted, letters: letters_in, hold: hold.clone(), carries: can_carry() };
        // From here on dropping this abandons the request.
        let mut handle = HoldHandle::new(self.clone(), key, letters, hold);
        self.0.input(Input::Acquire(key, caller, want));
        handle.until_held(&want, on_queued).await?;
        Ok(handle)
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.0.clock.now()
    }

    /// What the latest call without an answer failed of, if the backend knows.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.with_state(|state| state.conn.clone()).trouble()
    }

    /// Gives everything back and closes, in the background.
    pub(crate) fn shut_down(&self) {
        self.0.input(Input::Event(Event::Shutdown));
    }

    /// Whether everything was given back and the session is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.with_state(|state| state.machine.is_closed())
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
            () = inner.alarm.ring() => inner.input_now(Input::Event(Event::Wake)),
            Some(next) = streams.recv() => stream = next,
            Some(push) = stream.pushes.recv() => inner.input(Input::Pushed(stream.generation, push)),
        }
    }
}

impl Inner {
    /// Feeds the machine and does what it says: here and now, or on the thread that is at it. Calls leave in the machine's
    /// order, under one lock (R5).
    fn input(self: &Arc<Self>, input: Input) {
        match self.try_state() {
            Some(mut state) => self.work_off(&mut state, Some(input)),
            None => self.inbox.put(input),
        }
        self.catch_up();
    }

    /// As [`Self::input`], and it is done when this returns.
    fn input_now(self: &Arc<Self>, input: Input) {
        self.with_state(|state| self.work_off(state, Some(input)));
    }

    /// Looks at the state, or changes it, as soon as no other thread has it.
    fn with_state<T>(self: &Arc<Self>, look: impl FnOnce(&mut State) -> T) -> T {
        let looked = look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.catch_up();
        looked
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whoever had the state sees to what came meanwhile; whoever has it now does so later.
    fn catch_up(self: &Arc<Self>) {
        loop {
            // Either who put something in sees that the state is free, or who has just freed it sees what was put in.
            fence(Ordering::SeqCst);
            if self.inbox.is_empty() {
                return;
            }
            let Some(mut state) = self.try_state() else { return };
            self.work_off(&mut state, None);
        }
    }

    /// What waits, and then what is new: each thread's in its order.
    fn work_off(self: &Arc<Self>, state: &mut State, new: Option<Input>) {
        while let Some(waiting) = self.inbox.take() {
            self.take_in(state, waiting);
        }
        if let Some(new) = new {
            self.take_in(state, new);
        }
    }

    fn take_in(self: &Arc<Self>, state: &mut State, input: Input) {
        let event = match input {
            Input::Acquire(key, caller, want) => {
                state.callers.insert(key, caller);
                Event::Acquire { key, want }
            }
            Input::Release(key, carries) => {
                if let Some(caller) = state.callers.get_mut(&key) {
                    caller.carries = carries;
                }
                Event::Release { key }
            }
            Input::Abandon(key) => {
                state.callers.remove(&key);
                Event::Abandon { key }
            }
            Input::Pushed(generation, _) if generation != state.generation => return,
            Input::Pushed(_, push) => Event::Pushed(push),
            Input::Event(event) => event,
        };
        self.feed(state, event);
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

    /// Has the worker carry a call. Its first step is done here, so that all is done when this returns where a backend
    /// needs no more of them.
    fn carry(
        self: &Arc<Self>,
        call: CallId,
        mut future: BoxFuture<Result<Answer, CallError>>,
    ) -> Option<Event> {
        // It must not depend on another's runtime, from the first step on: whoever drops a guard may be in none, or in one
        // that nobody drives any more.
        let entered = self.worker.enter();
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(to_event(call, result));
        }
        drop(entered);
        let inner = self.clone();
        self.worker.run(Box::pin(async move {
            let result = future.await;
            inner.input(Input::Event(to_event(call, result)));
        }));
        None
    }

    fn perform(self: &Arc<Self>, state: &mut State, output: Output) -> Option<Event> {
        match output {
            Output::Call { call, what, by } => {
                if what == (What::Open { fresh: true }) && std::mem::replace(&mut state.opened, true) {
                    self.renew_conn(state);
                }
                let carrier = match by {
                    By::Caller(key) => state.callers.get(&key).filter(|caller| caller.carries),
                    By::Worker => None,
                };
                let future = match state.conn.submit(to_call(state, what)?) {
                    Submitted::Answered(result) => return Some(to_event(call, result)),
                    Submitted::UnderWay(future) => future,
                };
                let future = match carrier {
                    Some(caller) => match caller.letters.send(Letter::Carry(call, future)) {
                        Err(Letter::Carry(_, future)) => future,
                        _ => return None,
                    },
                    None => future,
                };
                return self.carry(call, future);
            }
            Output::Belief(until) => {
                self.belief.store(until.map_or(0, BootInstant::as_nanos), Ordering::SeqCst);
                self.deadline_moved.notify_waiters();
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

/// Whether whoever runs here can carry a call.
fn can_carry() -> bool {
    Handle::try_current().is_ok()
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
