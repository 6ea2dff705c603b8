//! The trait of one session at a lock service.

use lockkeeper_core::Seq;

use crate::call::Call;
use crate::responder::Responder;
#[cfg(any(test, feature = "test-util"))]
use crate::{box_future::BoxFuture, responder::CallResult};

/// The transport of one session: a connection, a stream, a directory.
pub trait Conn: Send + Sync + 'static {
    /// Submits a call. The service must see a session's calls in the order of `submit` (R5), so the step that
    /// fixes the order happens here; [`Responder::send_when`] takes the rest. `submit` itself must not block.
    ///
    /// A call that does not wait in a queue is answered or fails within the backend's own time limit. A
    /// waiting acquire is answered when the request is granted or has ended.
    fn submit(&self, call: Call, responder: Responder);

    /// Why there is no connection, or the latest call on it has no answer, for users: the node and its
    /// message.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Descriptors that keep the hold of request `seq` alive in any process that has them.
    fn descriptors(&self, _seq: Seq) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }
}

/// Submits a call for a test, which polls it.
#[cfg(any(test, feature = "test-util"))]
pub fn answer_to(conn: &dyn Conn, call: Call) -> BoxFuture<'static, CallResult> {
    let (responder, answer) = Responder::to_caller();
    conn.submit(call, responder);
    answer
}
