//! State shared by the sessions, the stream and the timer: the carrier, under one lock held only briefly.
//!
//! A caller's task submits its call here and wakes the stream, which sends everything pending as one frame; a
//! received frame resolves all of its calls at once. The stream needs no task per call, and nothing is
//! awaited under the lock.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_backend::io::{LeaseThread, SharedLeaseThread};
use lockkeeper_backend::{Alarm, BackendError, Call, CallError, Clock, Push, Responder, Spec};
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tonic::codegen::tokio_stream::Stream;

use super::addresses::{Address, Addresses};
use super::caller_runtimes::{Batch, CallerRuntimes};
use super::carrier::{Carrier, CarrierOutput, SessionKey, StreamEnding, StreamId};
use super::credentials::Credentials;
use super::failures::{self, NodeFailure, Why};

/// Turns of the runtime from a frame in the socket to [`ServiceShared::received`]: the socket is polled, the
/// connection's task reads the frame, the stream's task takes it.
const READ_STEPS: usize = 3;

/// See the module documentation.
pub(super) struct ServiceShared {
    clock: Clock,
    /// Rings when the carrier's next deadline is due.
    alarm: Arc<Alarm>,
    /// Notifies the driver: a stream is needed, or the client shuts down.
    wanted: Notify,
    /// Notifies the driver: the stream must be dropped, or the client shuts down.
    cut: Notify,
    state: Mutex<SharedState>,
    /// The addresses of the nodes, shared by the driver and unary calls.
    addresses: Mutex<Addresses>,
    /// For connections to all nodes.
    pub(super) credentials: Credentials,
    runtimes: CallerRuntimes,
}

struct SharedState {
    carrier: Carrier<Responder>,
    pushes: BTreeMap<SessionKey, UnboundedSender<Push>>,
    /// The waker of the stream's sending side, while there is nothing to send.
    sender: Option<Waker>,
    /// Why the stream must be dropped.
    ending: Option<StreamEnding>,
    leaving: bool,
    /// The last error of each node's stream. All are cleared when any node answers.
    troubles: BTreeMap<Address, Why>,
    scratch: Vec<CarrierOutput<Responder>>,
}

/// Why the driver must drop a stream.
pub(super) enum Cut {
    /// The carrier has ended it.
    Ended(StreamEnding),
    /// The client shuts down.
    Leaving,
}

impl ServiceShared {
    pub(super) fn new(addresses: Addresses, credentials: Credentials) -> Arc<Self> {
        let clock = Clock::Boot;
        Arc::new_cyclic(|shared| Self {
            alarm: clock.alarm(),
            clock,
            wanted: Notify::new(),
            cut: Notify::new(),
            state: Mutex::new(SharedState {
                carrier: Carrier::new(),
                pushes: BTreeMap::new(),
                sender: None,
                ending: None,
                leaving: false,
                troubles: BTreeMap::new(),
                scratch: Vec::new(),
            }),
            addresses: Mutex::new(addresses),
            credentials,
            runtimes: CallerRuntimes::new(shared.clone()),
        })
    }

    /// Locked only briefly: never held across an await.
    pub(super) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` on the carrier and performs its outputs.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut Carrier<Responder>, &mut Vec<CarrierOutput<Responder>>) -> T,
    ) -> T {
        self.with_caller(None, act)
    }

    /// As [`Self::with`], on a caller's runtime: pending items are sent once the other ready tasks of that
    /// runtime have run.
    fn with_caller<T>(
        &self,
        caller: Option<&Handle>,
        act: impl FnOnce(&mut Carrier<Responder>, &mut Vec<CarrierOutput<Responder>>) -> T,
    ) -> T {
        let mut state = self.state();
        let mut out = std::mem::take(&mut state.scratch);
        let result = act(&mut state.carrier, &mut out);
        let mut answers = Batch::new();
        for outcome in out.drain(..) {
            match outcome {
                CarrierOutput::Resolved(responder, result) => answers.push((responder, result)),
                CarrierOutput::Dropped(responder) => answers.push((responder, Err(CallError::IN_DOUBT))),
                // Sent under the lock, so that pushes keep their order. This only queues the push and wakes
                // its session.
                CarrierOutput::Push(key, push) => {
                    if let Some(pushes) = state.pushes.get(&key) {
                        // The send fails only if the session has ended.
                        let _ = pushes.send(push);
                    }
                }
                CarrierOutput::EndStream(ending) => {
                    state.ending = Some(ending);
                    self.cut.notify_one();
                }
                CarrierOutput::Nodes(nodes) => self.addresses().learn(nodes.iter().map(String::as_str)),
            }
        }
        state.scratch = out;
        let has_to_send = state.sender.is_some() && state.carrier.has_items();
        let flushing = caller.filter(|caller| has_to_send && is_current(caller));
        let sender = if has_to_send && flushing.is_none() { state.sender.take() } else { None };
        let wants = state.carrier.stream().is_none() && state.carrier.wants_stream();
        self.alarm.set(state.carrier.next_wake());
        drop(state);
        // Processed after the lock is released: callers may submit further calls at once, which take it.
        if !answers.is_empty() {
            self.runtimes.answer(answers);
        }
        if let Some(sender) = sender {
            sender.wake();
        }
        if let Some(caller) = flushing {
            self.runtimes.flush_after_ready_tasks(caller);
        }
        if wants {
            self.wanted.notify_one();
        }
        result
    }

    pub(super) fn add(
        &self,
        spec: Spec,
        label: &str,
        secret: Secret,
        pushes: UnboundedSender<Push>,
    ) -> SessionKey {
        let mut state = self.state();
        let key = state.carrier.add(spec, label, secret);
        state.pushes.insert(key, pushes);
        key
    }

    pub(super) fn remove(&self, key: SessionKey) {
        self.with(|carrier, out| carrier.remove(key, out));
        self.state().pushes.remove(&key);
    }

    pub(super) fn submit(&self, key: SessionKey, call: Call, responder: Responder) {
        let now = self.clock.now();
        let caller = responder.runtime().cloned();
        self.with_caller(caller.as_ref(), |carrier, out| carrier.submit(now, key, call, responder, out));
    }

    /// Wakes the stream's sending side if there is something to send.
    pub(super) fn flush(&self) {
        self.with(|_, _| ());
    }

    pub(super) fn begin_stream(&self) -> StreamId {
        self.state().ending = None;
        let now = self.clock.now();
        self.with(|carrier, _| carrier.begin_stream(now))
    }

    pub(super) fn received(&self, stream: StreamId, items: Vec<v1::ServerItem>) {
        let now = self.clock.now();
        self.with(|carrier, out| carrier.received(now, stream, items, out));
    }

    pub(super) fn stream_lost(&self, stream: StreamId) {
        let now = self.clock.now();
        self.with(|carrier, out| carrier.stream_lost(now, stream, out));
    }

    /// The shortest ttl of the sessions that need a stream.
    pub(super) fn least_ttl(&self) -> Option<Duration> {
        self.state().carrier.least_ttl()
    }

    /// Records why a stream, or the attempt to open one, has ended.
    pub(super) fn troubled(&self, node: &Address, why: Why) {
        self.state().troubles.insert(node.clone(), why);
    }

    /// Clears the recorded errors: the service answers.
    pub(super) fn untroubled(&self) {
        self.state().troubles.clear();
    }

    /// The recorded errors of the nodes, if there are any.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.state();
        let failure =
            |(node, why): (&Address, &Why)| NodeFailure { node: node.to_string(), why: why.clone() };
        let failures: Vec<_> = state.troubles.iter().map(failure).collect();
        (!failures.is_empty()).then(|| failures::summary(&failures))
    }

    /// Waits until a stream is needed. `false`: the client shuts down.
    pub(super) async fn until_wanted(&self) -> bool {
        loop {
            {
                let state = self.state();
                if state.leaving {
                    return false;
                }
                if state.carrier.wants_stream() {
                    return true;
                }
            }
            self.wanted.notified().await;
        }
    }

    /// Waits until the present stream must be dropped.
    pub(super) async fn until_cut(&self) -> Cut {
        loop {
            {
                let mut state = self.state();
                if let Some(ending) = state.ending.take() {
                    return Cut::Ended(ending);
                }
                if state.leaving {
                    return Cut::Leaving;
                }
            }
            self.cut.notified().await;
        }
    }

    fn leave(&self) {
        let mut state = self.state();
        state.leaving = true;
        let sender = state.sender.take();
        drop(state);
        self.wanted.notify_one();
        self.cut.notify_one();
        self.alarm.set(Some(self.clock.now()));
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Wakes the carrier at its deadlines until the client shuts down.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            self.alarm.ring().await;
            if self.state().leaving {
                return;
            }
            // If this process is overloaded, the service's answer may be in the socket's buffer. It is read
            // before the check for silence; otherwise the client would reconnect, which adds to its load.
            for _ in 0..READ_STEPS {
                tokio::task::yield_now().await;
            }
            let now = self.clock.now();
            self.with(|carrier, out| carrier.wake(now, out));
        }
    }
}

fn is_current(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|here| here.id() == runtime.id())
}

/// One thread runs all streams and sessions of a process. Tasks that a received frame wakes can submit their
/// next calls before the stream is polled again, so that one frame carries all of these calls. With a thread
/// for each client, these threads would wake each other for single items.
static IO: SharedLeaseThread = SharedLeaseThread::new();

/// Owned jointly by a client and its sessions. When the last of them is dropped, the stream ends, and the
/// thread too if no other client of the process uses it.
pub(super) struct Owner {
    pub(super) shared: Arc<ServiceShared>,
    pub(super) lease_thread: LeaseThread,
}

impl Owner {
    pub(super) fn start(addresses: Addresses, credentials: Credentials) -> Result<Self, BackendError> {
        let lease_thread = IO.get("lockkeeper-service")?;
        let shared = ServiceShared::new(addresses, credentials);
        lease_thread.run(Box::pin(shared.clone().keep_time()));
        Ok(Self { shared, lease_thread })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

/// The sending side of a stream.
pub(super) struct StreamRequests {
    pub(super) shared: Arc<ServiceShared>,
    pub(super) stream: StreamId,
    /// Whether the stream has yielded to other ready tasks since it had something to send.
    pub(super) waited: bool,
}

impl Stream for StreamRequests {
    type Item = v1::ClientFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::ClientFrame>> {
        let shared = self.shared.clone();
        let mut state = shared.state();
        if state.carrier.has_items() && !self.waited {
            // Other ready tasks run first and may add items: one frame for many items is cheaper on both
            // sides.
            self.waited = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        let items = state.carrier.take_frame(self.stream);
        if !items.is_empty() {
            return Poll::Ready(Some(v1::ClientFrame { items }));
        }
        if state.leaving || state.carrier.stream() != Some(self.stream) {
            return Poll::Ready(None);
        }
        if !state.sender.as_ref().is_some_and(|sender| sender.will_wake(context.waker())) {
            state.sender = Some(context.waker().clone());
        }
        Poll::Pending
    }
}
