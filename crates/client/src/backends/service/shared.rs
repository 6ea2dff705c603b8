//! What the sessions, the stream and the clock share: the carrier, under one short lock.
//!
//! A caller's task hands its call over here and wakes the stream, which takes everything that waits as one frame; a
//! frame that comes back resolves all of its calls at once. No task per call, nothing is awaited under the lock.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_wire::v1;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, oneshot};
use tonic::codegen::tokio_stream::Stream;

use super::addresses::{Address, Addresses};
use super::carrier::{Carrier, Ending, Outcome, SessionKey, StreamId};
use crate::backend::{BoxFuture, Call, CallError};
use crate::error::{BackendError, BackendErrorKind};
use crate::machine::{Answer, Push, Spec};
use crate::time::{Alarm, Clock};
use crate::worker::{self, Worker};

type Handle = oneshot::Sender<Result<Answer, CallError>>;

/// See the module.
pub(super) struct Shared {
    clock: Clock,
    /// Rings when the carrier wants to look after its calls.
    alarm: Arc<Alarm>,
    /// Rings for the driver: a stream is needed, or the client leaves.
    wanted: Notify,
    /// Rings for the driver: the stream is to be dropped, or the client leaves.
    cut: Notify,
    state: Mutex<State>,
    /// Where to look for the leader; the driver's and the questions' alike.
    addresses: Mutex<Addresses>,
}

struct State {
    carrier: Carrier<Handle>,
    pushes: BTreeMap<SessionKey, UnboundedSender<Push>>,
    /// Whoever sends on the stream, while there is nothing to send.
    sender: Option<Waker>,
    /// Why the stream is to be dropped.
    ending: Option<Ending>,
    leaving: bool,
    /// What the latest stream to each node ended with, since any brought an answer.
    troubles: BTreeMap<Address, String>,
    scratch: Vec<Outcome<Handle>>,
}

/// Why a driver has to let go of a stream.
pub(super) enum Cut {
    /// The carrier is through with it.
    Ended(Ending),
    /// Nobody uses this client any more.
    Leaving,
}

impl Shared {
    pub(super) fn new(addresses: Addresses) -> Self {
        let clock = Clock::Boot;
        Self {
            alarm: clock.alarm(),
            clock,
            wanted: Notify::new(),
            cut: Notify::new(),
            state: Mutex::new(State {
                carrier: Carrier::new(),
                pushes: BTreeMap::new(),
                sender: None,
                ending: None,
                leaving: false,
                troubles: BTreeMap::new(),
                scratch: Vec::new(),
            }),
            addresses: Mutex::new(addresses),
        }
    }

    /// For a moment: never held across an await.
    pub(super) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the carrier, and then what it wants done.
    fn with<T>(&self, act: impl FnOnce(&mut Carrier<Handle>, &mut Vec<Outcome<Handle>>) -> T) -> T {
        let mut state = self.state();
        let mut out = std::mem::take(&mut state.scratch);
        let result = act(&mut state.carrier, &mut out);
        // Pushes leave in their order, so under the lock; they wake the worker at most.
        out.retain_mut(|outcome| match outcome {
            Outcome::Resolved(..) => true,
            Outcome::Push(key, push) => {
                if let Some(pushes) = state.pushes.get(key) {
                    // A session that is over listens no more.
                    let _ = pushes.send(push.clone());
                }
                false
            }
            Outcome::EndStream(ending) => {
                state.ending = Some(ending.clone());
                self.cut.notify_one();
                false
            }
            Outcome::Nodes(nodes) => {
                self.addresses().learn(nodes.iter().map(String::as_str));
                false
            }
        });
        let sender = if state.carrier.has_items() { state.sender.take() } else { None };
        let wants = state.carrier.stream().is_none() && state.carrier.wants_stream();
        self.alarm.set(state.carrier.next_wake());
        if out.is_empty() {
            state.scratch = out;
            drop(state);
        } else {
            // Callers are woken without the lock: they come back with their next call at once.
            drop(state);
            for outcome in out {
                if let Outcome::Resolved(handle, result) = outcome {
                    // A caller that is gone needs no answer.
                    let _ = handle.send(result);
                }
            }
        }
        if let Some(sender) = sender {
            sender.wake();
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
        secret: [u8; 16],
        pushes: UnboundedSender<Push>,
    ) -> SessionKey {
        let mut state = self.state();
        let key = state.carrier.add(spec, label, secret);
        state.pushes.insert(key, pushes);
        key
    }

    pub(super) fn remove(&self, key: SessionKey) {
        self.with(|carrier, _| carrier.remove(key));
        self.state().pushes.remove(&key);
    }

    pub(super) fn submit(&self, key: SessionKey, call: Call) -> BoxFuture<Result<Answer, CallError>> {
        let (handle, answer) = oneshot::channel();
        let now = self.clock.now();
        self.with(|carrier, out| carrier.submit(now, key, call, handle, out));
        Box::pin(async move { answer.await.unwrap_or(Err(CallError { sent: true })) })
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

    /// A stream, or the attempt at one, has ended so.
    pub(super) fn troubled(&self, node: &Address, why: String) {
        self.state().troubles.insert(node.clone(), why);
    }

    /// The service answers.
    pub(super) fn untroubled(&self) {
        self.state().troubles.clear();
    }

    /// Why there is no answer, as far as that can be told.
    pub(super) fn trouble(&self) -> Option<String> {
        let state = self.state();
        let said: Vec<_> = state.troubles.iter().map(|(node, why)| format!("{node}: {why}")).collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Waits until a stream is needed. `false`: the client leaves.
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

    /// Waits until the present stream is to be dropped.
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

    /// Looks after what is overdue, for as long as the client is in use.
    pub(super) async fn keep_time(self: Arc<Self>) {
        loop {
            self.alarm.ring().await;
            if self.state().leaving {
                return;
            }
            let now = self.clock.now();
            self.with(|carrier, out| carrier.wake(now, out));
        }
    }
}

/// All streams of a process are carried by one thread: what it wakes has time to answer before it comes round again, so
/// that one frame takes it all. Two such threads would wake each other for single items.
static IO: worker::Shared = worker::Shared::new();

/// Whoever uses the service. When the last one is gone, stream and thread end.
pub(super) struct Owner {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: Worker,
}

impl Owner {
    pub(super) fn start(addresses: Addresses) -> Result<Self, BackendError> {
        let worker = IO.get("lockkeeper-service").map_err(|error| {
            let what =
                "the thread that talks to the lock service could not be started; raise the limit on threads";
            BackendError::caused(BackendErrorKind::Operator, what, error)
        })?;
        let shared = Arc::new(Shared::new(addresses));
        worker.run(Box::pin(shared.clone().keep_time()));
        Ok(Self { shared, worker })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

/// The sending side of a stream.
pub(super) struct Outgoing {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: StreamId,
    /// Whether it has let everybody else have a turn since there was something to send.
    pub(super) waited: bool,
}

impl Stream for Outgoing {
    type Item = v1::ClientFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::ClientFrame>> {
        let shared = self.shared.clone();
        let mut state = shared.state();
        if state.carrier.has_items() && !self.waited {
            // Whoever is ready to answer or to ask goes first: one frame for many is cheaper than many, on both sides.
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
