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

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, SizeHint};
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

/// Why a body can't be used.
#[derive(Debug)]
pub(in crate::front) enum BodyError {
    TooLarge,
    Broken,
}

/// Reads a body of at most `most` bytes into one buffer: the parts that arrive may be small, and each keeps a
/// larger buffer alive.
///
/// # Errors
/// [`BodyError`].
pub(in crate::front) async fn whole(body: impl Body<Data = Bytes>, most: usize) -> Result<Bytes, BodyError> {
    let mut body = pin!(body);
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if data.len() > most - whole.len() {
            return Err(BodyError::TooLarge);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::StreamBody;

    use super::*;

    /// A part of a body; counts the parts that are alive.
    struct Part(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Part {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn parts_of_a_body_are_not_kept() {
        const PARTS: usize = 1_000;
        let (kept, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let body = || {
            let (kept, most) = (kept.clone(), most.clone());
            let parts = (0..PARTS).map(move |_| {
                most.fetch_max(kept.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                Ok::<_, std::io::Error>(Frame::data(Bytes::from_owner(Part(kept.clone()))))
            });
            StreamBody::new(tokio_stream::iter(parts))
        };
        assert_eq!(whole(body(), PARTS).await.unwrap().len(), PARTS);
        assert!(most.load(Ordering::Relaxed) <= 1, "{most:?} parts were kept while the next one was read");
        assert!(matches!(whole(body(), PARTS - 1).await, Err(BodyError::TooLarge)));
    }

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
