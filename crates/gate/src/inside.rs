//! The end of a guarded request at the upstream: seen, or unknown.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use lockkeeper_fence::http::Pass;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::observe;

/// A guarded request that may be at the upstream. Dropped before [`Inside::ended`], its end is unknown: the upstream may
/// still be working on it, so its resource stays as it is for the settling time.
#[derive(Debug)]
pub(crate) struct Inside {
    pass: Option<Pass>,
    settle: Duration,
}

impl Inside {
    pub(crate) fn new(pass: Pass, settle: Duration) -> Self {
        Self { pass: Some(pass), settle }
    }

    /// The upstream has ended the request, or has never seen it.
    pub(crate) fn ended(mut self) {
        self.pass = None;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        observe::unknown_end();
        let settled = tokio::time::sleep(self.settle);
        tokio::spawn(async move {
            settled.await;
            drop(pass);
        });
    }
}

/// The body of a response: the upstream's, or the gate's own.
#[derive(Debug)]
pub(crate) enum GateBody {
    Own(Option<Bytes>),
    Upstream(UpstreamBody),
}

/// The upstream's body. A guarded write ends with it.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    /// `None` once it has ended, or has failed.
    body: Option<Incoming>,
    guarded: Option<GuardedBody>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct GuardedBody {
    inside: Inside,
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream's response failed")]
    Upstream(#[from] hyper::Error),
    #[error("the upstream's response took too long")]
    Timeout,
}

impl GateBody {
    pub(crate) fn own(bytes: Bytes) -> Self {
        Self::Own(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// `inside`: the request, if it ends with this body, and when that takes too long.
    pub(crate) fn of_upstream(
        body: Incoming,
        inside: Option<(Inside, Instant)>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let guarded = match inside {
            Some((inside, _)) if body.is_end_stream() => {
                inside.ended();
                None
            }
            Some((inside, deadline)) => {
                Some(GuardedBody { inside, deadline, timer: Box::pin(sleep_until(deadline)) })
            }
            None => None,
        };
        Self::Upstream(UpstreamBody { body: Some(body), guarded, _permit: permit })
    }
}

impl UpstreamBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Some(guarded) = &mut self.guarded
            && guarded.timer.as_mut().poll(context).is_ready()
        {
            (self.body, self.guarded) = (None, None);
            return Poll::Ready(Some(Err(BodyError::Timeout)));
        }
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        match &frame {
            // A server need not poll again after the last frame.
            Some(Ok(_)) if body.is_end_stream() => self.end(),
            Some(Ok(_)) => {}
            None => self.end(),
            Some(Err(_)) => (self.body, self.guarded) = (None, None),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn end(&mut self) {
        self.body = None;
        if let Some(guarded) = self.guarded.take() {
            guarded.inside.ended();
        }
    }
}

impl Drop for UpstreamBody {
    /// The client has gone. Reads the rest of a guarded response, so that its end is known.
    fn drop(&mut self) {
        let (Some(mut body), Some(guarded)) = (self.body.take(), self.guarded.take()) else { return };
        tokio::spawn(async move {
            let rest = async {
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok::<_, hyper::Error>(())
            };
            if let Ok(Ok(())) = timeout_at(guarded.deadline, rest).await {
                guarded.inside.ended();
            }
        });
    }
}

impl Body for GateBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(upstream) => upstream.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(upstream) => upstream.body.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upstream(upstream) => {
                upstream.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
            }
        }
    }
}
