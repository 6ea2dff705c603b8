//! Session calls whose bodies are still arriving.
//!
//! Responsible for: a drain barrier passes only after every call whose body had arrived completely when the
//! barrier began was passed to the replica (P9), and it does not wait for bodies that had not. So the barrier
//! treats a body as a reader, like a stream. A body has passed the barrier once the socket was found empty
//! and the HTTP layer between socket and body holds no part of the body:
//! - With HTTP/1, a read of the socket must find it empty *after* the body was polled: the HTTP layer returns
//!   one part at a time, and reads the socket only if it has no part left.
//! - With HTTP/2, the body must be polled after that read.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Frame, SizeHint};
use lockkeeper_replica::StreamId;

use super::connection::Connection;

/// A call that was not passed to the replica yet.
pub(in crate::front) struct Arriving {
    connection: Arc<Connection>,
    id: StreamId,
}

impl Arriving {
    /// Registers the call. To be called on the connection's task as soon as the request is read.
    pub(in crate::front) fn new(connection: &Arc<Connection>) -> Arc<Self> {
        let id = StreamId(connection.transport().replica.next_id());
        connection.arriving(id);
        Arc::new(Self { connection: connection.clone(), id })
    }

    /// To be called when the call was passed to the replica, or needs no barrier: it is forwarded to another
    /// node, or belongs to no session.
    pub(in crate::front) fn handed_on(&self) {
        self.connection.arrived(self.id);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.handed_on();
    }
}

/// The body of a call.
pub(in crate::front) struct ArrivingBody<B> {
    pub(in crate::front) body: B,
    pub(in crate::front) call: Arc<Arriving>,
}

impl<B: Body + Unpin> Body for ArrivingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = pin!(&mut self.body).poll_frame(cx);
        let Arriving { connection, id } = &*self.call;
        connection.body_polled(*id, frame.is_pending().then(|| cx.waker()));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The state of a body for the drain barrier.
#[derive(Default)]
pub(super) struct BodyProgress {
    waker: Option<Waker>,
    /// The last poll of the body returned no part.
    is_asked: bool,
    /// After that poll, a read of the socket would have blocked.
    has_read: bool,
}

impl BodyProgress {
    /// To be called when a poll of the body has returned a part.
    pub(super) fn part(&mut self) {
        *self = Self::default();
    }

    /// To be called when a poll of the body has returned no part. Returns whether no part can be in the HTTP
    /// layer either.
    pub(super) fn nothing(&mut self, waker: &Waker) -> bool {
        self.waker = Some(waker.clone());
        self.is_asked = true;
        self.has_read
    }

    /// To be called when a read of the socket would have blocked.
    pub(super) fn would_block(&mut self) {
        self.has_read |= self.is_asked;
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_waits_for_a_read_of_the_socket_after_it_was_asked() {
        let mut body = BodyProgress::default();
        let waker = Waker::noop();
        body.would_block();
        assert!(!body.nothing(waker), "the read was before the body was asked");
        body.would_block();
        assert!(body.nothing(waker));
        body.part();
        assert!(!body.nothing(waker), "another part may be behind that one");
    }
}
