//! Returns a call's answer from a backend to its session.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::box_future::BoxFuture;
use crate::call::{Answer, CallError, CallId};
use crate::io::CallRuntime;

/// The answer to a call, or why there is none.
pub type CallResult = Result<Answer, CallError>;

/// A session that waits for answers to its calls.
pub trait CallOrigin: Send + Sync {
    /// May be called at any time, also by a backend's `submit`. Must not block.
    fn answered(self: Arc<Self>, call: CallId, result: CallResult);
}

/// Takes the answer to one call. If it is dropped instead, the call counts as sent and not answered.
pub struct Responder(Option<RespondTo>);

enum RespondTo {
    Session {
        session: Arc<dyn CallOrigin>,
        call: CallId,
        runtime: CallRuntime,
    },
    /// A caller that polls the call itself.
    Caller(oneshot::Sender<CallState>),
}

enum CallState {
    Answered(CallResult),
    Running(BoxFuture<'static, CallResult>),
}

impl Responder {
    /// The call runs at `runtime`, and its answer is processed there.
    pub fn to_session(session: Arc<dyn CallOrigin>, call: CallId, runtime: CallRuntime) -> Self {
        Self(Some(RespondTo::Session { session, call, runtime }))
    }

    /// For a caller that polls the call itself: the future runs the call and returns its answer.
    pub fn to_caller() -> (Self, BoxFuture<'static, CallResult>) {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::pin(async move {
            match receiver.await {
                Ok(CallState::Answered(result)) => result,
                Ok(CallState::Running(call)) => call.await,
                Err(_) => Err(CallError::IN_DOUBT),
            }
        });
        (Self(Some(RespondTo::Caller(sender))), answer)
    }

    /// Sends the answer.
    pub fn send(mut self, result: CallResult) {
        match self.0.take() {
            Some(RespondTo::Session { session, call, .. }) => session.answered(call, result),
            // The send fails only if the caller is gone.
            Some(RespondTo::Caller(caller)) => drop(caller.send(CallState::Answered(result))),
            None => {}
        }
    }

    /// Runs the rest of the call, and then sends its answer.
    pub fn send_when(mut self, mut call: BoxFuture<'static, CallResult>) {
        let runtime = match self.0.take() {
            Some(RespondTo::Caller(caller)) => return drop(caller.send(CallState::Running(call))),
            Some(RespondTo::Session { session, call, runtime }) => {
                self.0 = Some(RespondTo::Session { session, call, runtime: runtime.clone() });
                runtime
            }
            None => return,
        };
        if let CallRuntime::LeaseThread(thread) = &runtime {
            // Polls once here, so that a call that is ready at the first poll is complete on return. The
            // future must not depend on the current runtime, not even in this poll: a guard may be dropped
            // outside of a runtime, or in one that is no longer driven.
            let _entered = thread.enter();
            if let Poll::Ready(result) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return self.send(result);
            }
        }
        runtime.spawn(async move { self.send(call.await) });
    }

    /// The runtime on which the answer should be processed; `None` if any thread may do so.
    pub fn runtime(&self) -> Option<&Handle> {
        match &self.0 {
            Some(RespondTo::Session { runtime: CallRuntime::Runtime(runtime), .. }) => Some(runtime),
            _ => None,
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(RespondTo::Session { session, call, .. }) = self.0.take() {
            session.answered(call, Err(CallError::IN_DOUBT));
        }
    }
}
