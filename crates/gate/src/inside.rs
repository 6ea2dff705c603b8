//! The end of a guarded request at the upstream: seen, or unknown.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use lockkeeper_fence::http::Pass;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::observe;

/// A guarded request that may be at the upstream. Dropped before [`Inside::ended`], its end is unknown: the upstream may
/// still be working on it, so its resource stays as it is for the settling time.
#[derive(Debug)]
pub(crate) struct Inside {
    pass: Option<Pass>,
    settle: Duration,
    /// Number of requests whose end is unknown.
    unsettled: Arc<AtomicUsize>,
}

impl Inside {
    pub(crate) fn new(pass: Pass, settle: Duration, unsettled: Arc<AtomicUsize>) -> Self {
        Self { pass: Some(pass), settle, unsettled }
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
        // Without a runtime the process ends; the next run settles.
        let Ok(runtime) = Handle::try_current() else { return };
        let (settle, unsettled) = (self.settle, Arc::clone(&self.unsettled));
        unsettled.fetch_add(1, Ordering::Relaxed);
        runtime.spawn(async move {
            tokio::time::sleep(settle).await;
            drop(pass);
            unsettled.fetch_sub(1, Ordering::Relaxed);
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
    permit: Option<OwnedSemaphorePermit>,
}

/// A guarded request until its response has ended, or takes too long. The timer runs in a task of its own: a client that
/// does not read its response keeps the body from being polled.
#[derive(Debug)]
struct GuardedBody {
    /// `None` after the deadline.
    inside: Arc<Mutex<Option<Inside>>>,
    deadline: Instant,
    timer: AbortHandle,
}

impl GuardedBody {
    fn new(inside: Inside, deadline: Instant) -> Self {
        let inside = Arc::new(Mutex::new(Some(inside)));
        let late = Arc::clone(&inside);
        let timer = tokio::spawn(async move {
            sleep_until(deadline).await;
            drop(take(&late));
        });
        Self { inside, deadline, timer: timer.abort_handle() }
    }

    fn is_late(&self) -> bool {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

fn take(inside: &Mutex<Option<Inside>>) -> Option<Inside> {
    inside.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Drop for GuardedBody {
    fn drop(&mut self) {
        self.timer.abort();
        drop(take(&self.inside));
    }
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
            Some((inside, deadline)) => Some(GuardedBody::new(inside, deadline)),
            None => None,
        };
        Self::Upstream(UpstreamBody { body: Some(body), guarded, permit: Some(permit) })
    }
}

impl UpstreamBody {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if self.guarded.as_ref().is_some_and(GuardedBody::is_late) {
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
        if let Some(inside) = self.guarded.take().and_then(|guarded| take(&guarded.inside)) {
            inside.ended();
        }
    }
}

impl Drop for UpstreamBody {
    /// The client has gone. Reads the rest of a guarded response, so that its end is known.
    fn drop(&mut self) {
        let (Some(mut body), Some(guarded)) = (self.body.take(), self.guarded.take()) else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let permit = self.permit.take();
        runtime.spawn(async move {
            let rest = async {
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok::<_, hyper::Error>(())
            };
            if let Ok(Ok(())) = timeout_at(guarded.deadline, rest).await
                && let Some(inside) = take(&guarded.inside)
            {
                inside.ended();
            }
            drop(permit);
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
