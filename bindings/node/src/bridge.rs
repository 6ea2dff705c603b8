//! How calls run, and how their results reach an event loop.
//!
//! A call is a task of the library's runtime. JavaScript gives it a number, and has a promise for it. The
//! task appends its result to a queue, and the first result in the queue wakes the event loop, which takes
//! all of them at once: many results cost one wake-up.
//!
//! Holds stay here until they are released; JavaScript has their numbers. An environment (the main thread, or
//! a worker) has one bridge. When the environment ends, its calls are dropped, and its holds are released in
//! the background.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lockkeeper_bindings::{AnyHold, CallError, SharedHold};
use napi::Status;
use napi::bindgen_prelude::{Buffer, Function, Null, ToNapiValue, Undefined, sys};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode, UnknownReturnValue};
use napi_derive::napi;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::errors::{ErrorJson, to_json};
use crate::holds::HoldFacts;

/// The result of a call.
pub(crate) enum CallAnswer {
    Nothing,
    Null,
    Json(serde_json::Value),
    /// An object of a native class, which is created in the event loop.
    Object(MakeObject),
}

type MakeObject = Box<dyn FnOnce(sys::napi_env) -> napi::Result<sys::napi_value> + Send>;

impl CallAnswer {
    pub(crate) fn object<T: ToNapiValue + Send + 'static>(value: T) -> Self {
        // SAFETY: called by `to_napi_value` with the environment that it was given.
        Self::Object(Box::new(|env| unsafe { T::to_napi_value(env, value) }))
    }
}

/// A message to an event loop. `lib/bridge.cjs` has the same list of kinds.
pub(crate) enum Completion {
    Ended {
        call: u32,
        answer: CallAnswer,
    },
    Failed {
        call: u32,
        failure: ErrorJson,
    },
    Held {
        call: u32,
        hold: u32,
        facts: HoldFacts,
    },
    Lost {
        hold: u32,
        failure: ErrorJson,
    },
    /// A command of a fence, for the connection of this number.
    Command {
        command: u32,
        connection: u32,
        words: Vec<Vec<u8>>,
    },
}

impl ToNapiValue for CallAnswer {
    unsafe fn to_napi_value(env: sys::napi_env, answer: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: the environment is the caller's.
        unsafe {
            match answer {
                Self::Nothing => Undefined::to_napi_value(env, ()),
                Self::Null => Null::to_napi_value(env, Null),
                Self::Json(json) => String::to_napi_value(env, json.to_string()),
                Self::Object(make) => make(env),
            }
        }
    }
}

impl ToNapiValue for Completion {
    unsafe fn to_napi_value(env: sys::napi_env, completion: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: the environment is the caller's.
        unsafe {
            match completion {
                Self::Ended { call, answer } => ToNapiValue::to_napi_value(env, (0, call, answer)),
                Self::Failed { call, failure } => {
                    ToNapiValue::to_napi_value(env, (1, call, failure.to_string()))
                }
                Self::Held { call, hold, facts } => {
                    let HoldFacts { token, slot, index } = facts;
                    ToNapiValue::to_napi_value(env, (2, call, hold, token, slot, index))
                }
                Self::Lost { hold, failure } => {
                    ToNapiValue::to_napi_value(env, (3, hold, failure.to_string()))
                }
                Self::Command { command, connection, words } => {
                    let words: Vec<Buffer> = words.into_iter().map(Buffer::from).collect();
                    ToNapiValue::to_napi_value(env, (4, command, connection, words))
                }
            }
        }
    }
}

/// The completions that an event loop takes at once.
pub struct CompletionBatch(Vec<Completion>);

impl ToNapiValue for CompletionBatch {
    unsafe fn to_napi_value(env: sys::napi_env, batch: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: the environment is the caller's.
        unsafe { Vec::to_napi_value(env, batch.0) }
    }
}

/// Weak: it does not keep the event loop alive. `lib/bridge.cjs` decides that.
type Wake = ThreadsafeFunction<(), UnknownReturnValue, CompletionBatch, Status, false, true>;

/// What the tasks of a bridge share.
pub(crate) struct Shared {
    runtime: &'static Runtime,
    queue: Arc<Mutex<Vec<Completion>>>,
    wake: Wake,
    state: Mutex<BridgeState>,
}

#[derive(Default)]
struct BridgeState {
    calls: HashMap<u32, AbortHandle>,
    holds: HashMap<u32, KeptHold>,
    commands: HashMap<u32, oneshot::Sender<CommandResult>>,
    /// The number of the next hold or command.
    next: u32,
}

/// The reply to a command: the error's text, if it failed.
type CommandResult = Result<redis::Value, String>;

struct KeptHold {
    hold: SharedHold,
    /// Ends the task that waits for its loss.
    watch: AbortHandle,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BridgeState {
    fn number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.holds.contains_key(&self.next) && !self.commands.contains_key(&self.next) {
                return self.next;
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, BridgeState> {
        lock(&self.state)
    }

    fn push(&self, completion: Completion) {
        let mut queue = lock(&self.queue);
        queue.push(completion);
        if queue.len() == 1 {
            // Fails only if the environment is ending.
            let _ = self.wake.call((), ThreadsafeFunctionCallMode::NonBlocking);
        }
    }

    /// Takes a call off the list. `None`: it was cancelled.
    fn ended(&self, call: u32) -> Option<AbortHandle> {
        self.state().calls.remove(&call)
    }

    /// Runs a command on a connection of JavaScript.
    pub(crate) async fn command(&self, connection: u32, words: Vec<Vec<u8>>) -> CommandResult {
        let (sender, reply) = oneshot::channel();
        let command = {
            let mut state = self.state();
            let command = state.number();
            state.commands.insert(command, sender);
            command
        };
        self.push(Completion::Command { command, connection, words });
        reply.await.unwrap_or_else(|_| Err("the thread of this connection has ended".to_owned()))
    }
}

/// The calls and holds of an environment.
#[napi]
pub struct Bridge {
    pub(crate) shared: Arc<Shared>,
}

/// The runtime of the process, which drives the calls of all environments; `None` if no thread can be
/// started.
fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let made = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("lockkeeper-calls").enable_all().build().ok()
    };
    RUNTIME.get_or_init(made).as_ref()
}

/// Enters the runtime, which the library's handles need where they are dropped or created.
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> T {
    let _entered = runtime().map(Runtime::enter);
    work()
}

#[napi]
impl Bridge {
    /// `complete` is called with lists of completions.
    #[napi(constructor)]
    pub fn new(complete: Function<'_, CompletionBatch, UnknownReturnValue>) -> napi::Result<Self> {
        let queue = Arc::new(Mutex::new(Vec::new()));
        let ready = queue.clone();
        let wake = complete
            .build_threadsafe_function::<()>()
            .weak::<true>()
            .build_callback(move |_| Ok(CompletionBatch(std::mem::take(&mut *lock(&ready)))))?;
        let runtime = runtime().ok_or_else(|| {
            napi::Error::from_reason("no thread can be started for calls; raise the limit on threads")
        })?;
        let shared = Shared { runtime, queue, wake, state: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Drops a call, which abandons its request.
    #[napi]
    pub fn cancel(&self, call: u32) {
        if let Some(task) = self.shared.ended(call) {
            task.abort();
        }
    }

    /// Ends a command: with the text of its error, or with its reply.
    #[napi]
    pub fn reply(&self, command: u32, error: Option<String>, reply: crate::fences::redis::CommandReply) {
        let waiting = self.shared.state().commands.remove(&command);
        if let Some(waiting) = waiting {
            // Fails only if the call was cancelled.
            let _ = waiting.send(error.map_or(Ok(reply.0), Err));
        }
    }
}

impl Bridge {
    /// Runs a call.
    pub(crate) fn begin(
        &self,
        call: u32,
        work: impl Future<Output = Result<CallAnswer, CallError>> + Send + 'static,
    ) {
        let shared = self.shared.clone();
        // The task can't end before it is on the list: it needs this lock for that.
        let mut state = self.shared.state();
        let task = self.shared.runtime.spawn(async move {
            let result = work.await;
            if shared.ended(call).is_some() {
                shared.push(match result {
                    Ok(answer) => Completion::Ended { call, answer },
                    Err(error) => Completion::Failed { call, failure: to_json(error) },
                });
            }
        });
        state.calls.insert(call, task.abort_handle());
    }

    /// Runs a call that acquires a lock, and waits for the loss of that after it.
    pub(crate) fn begin_hold(
        &self,
        call: u32,
        work: impl Future<Output = Result<Option<AnyHold>, CallError>> + Send + 'static,
    ) {
        let shared = self.shared.clone();
        let mut state = self.shared.state();
        let task = self.shared.runtime.spawn(async move {
            let acquired = work.await;
            // A hold whose call was cancelled is dropped, which releases it.
            let Some(watch) = shared.ended(call) else { return };
            let hold = match acquired {
                Ok(Some(hold)) => hold,
                Ok(None) => return shared.push(Completion::Ended { call, answer: CallAnswer::Null }),
                Err(error) => return shared.push(Completion::Failed { call, failure: to_json(error) }),
            };
            let (lost, facts) = (hold.lost(), HoldFacts::from(&hold));
            let kept = SharedHold::new(hold);
            let hold = {
                let mut state = shared.state();
                let hold = state.number();
                state.holds.insert(hold, KeptHold { hold: kept.clone(), watch });
                hold
            };
            shared.push(Completion::Held { call, hold, facts });
            lost.cancelled().await;
            if let Some(why) = kept.loss().await {
                shared.push(Completion::Lost { hold, failure: to_json(why.into()) });
            }
        });
        state.calls.insert(call, task.abort_handle());
    }

    /// A hold; `None` if it was released before.
    pub(crate) fn hold(&self, hold: u32) -> Option<SharedHold> {
        self.shared.state().holds.get(&hold).map(|held| held.hold.clone())
    }

    /// Removes a hold, for its release. From then on JavaScript gets no message about its loss.
    pub(crate) fn take_hold(&self, hold: u32) -> Option<SharedHold> {
        let held = self.shared.state().holds.remove(&hold)?;
        held.watch.abort();
        Some(held.hold)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let BridgeState { calls, holds, commands, .. } = std::mem::take(&mut *self.shared.state());
        calls.into_values().for_each(|task| task.abort());
        holds.values().for_each(|held| held.watch.abort());
        within(|| drop((holds, commands)));
    }
}
