//! The body of a response, and how long it keeps its request admitted: see [`FencedBody`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::passage::Pass;

pin_project! {
  /// The body that the handler returned, or one of the fence's own.
  ///
  /// A write ends when its body does: a handler may do work while it streams the body, and a later section
  /// must not overtake that work. So a write stays admitted until the last frame, or until the body is
  /// dropped because the client disconnected. A read (a request that enters) changes nothing, so it leaves
  /// when the handler returns; otherwise a slow client could block the next holder indefinitely.
  pub struct FencedBody<B> {
    #[pin]
    inner: BodyInner<B>,
    pass: Option<Pass>,
  }
}

pin_project! {
  #[project = InnerProjection]
  enum BodyInner<B> {
    Handler { #[pin] body: B },
    Own { bytes: Option<Bytes> },
  }
}

impl<B: Body> FencedBody<B> {
    pub(super) fn of_handler(body: B, pass: Option<Pass>) -> Self {
        let pass = pass.filter(|_| !body.is_end_stream());
        Self { inner: BodyInner::Handler { body }, pass }
    }

    pub(super) fn own(bytes: Bytes) -> Self {
        Self { inner: BodyInner::Own { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) }, pass: None }
    }
}

impl<B> Body for FencedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = match this.inner.project() {
            InnerProjection::Handler { body } => body,
            InnerProjection::Own { bytes } => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes.into()))));
            }
        };
        let frame = ready!(body.as_mut().poll_frame(context));
        // The request leaves with the last frame or an error, since a server need not poll again after these.
        if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
            *this.pass = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            BodyInner::Handler { body } => body.is_end_stream(),
            BodyInner::Own { bytes } => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            BodyInner::Handler { body } => body.size_hint(),
            BodyInner::Own { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}
