//! Detects the end of a request at the upstream. If the end of a guarded request stays unknown, its resource
//! admits only the same token for the settling time. Responses that the client does not read are cut off.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use lockkeeper_fence::http::Pass;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::InProgress;
use crate::observe;
use crate::reader::ReaderWait;

/// A guarded request that may be at the upstream. If this value is dropped without [`Inside::ended`], the
/// request's end is unknown: the upstream may still work on it, so its resource admits only the same token
/// for the settling time.
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

    /// To be called when the upstream has ended the request, or has never received it.
    pub(crate) fn ended(mut self) {
        self.pass = None;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        observe::unknown_end();
        // Without a runtime the process is ending; the next run of the gate waits for the settling time.
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

/// The upstream's body. A guarded write ends when its response's body ends. If a client does not read its
/// response, the body is not polled, so a separate task ends a response that takes too long.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    transfer: Arc<Mutex<Transfer>>,
    /// `None`: the response had ended with its headers.
    timer: Option<AbortHandle>,
}

#[derive(Debug)]
struct Transfer {
    /// `None` once it has ended, has failed, or was cut off.
    body: Option<Incoming>,
    /// For a guarded write: the request, and its deadline.
    inside: Option<(Inside, Instant)>,
    in_progress: Option<InProgress>,
    reader: ReaderWait,
    /// The reason if the response was cut off; the next poll returns it.
    failure: Option<BodyError>,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the upstream's response failed")]
    Upstream(#[from] hyper::Error),
    #[error("the upstream's response took too long")]
    Timeout,
    #[error("the client did not read the response")]
    Reader,
}

impl GateBody {
    pub(crate) fn own(bytes: Bytes) -> Self {
        Self::Own(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// `inside`: the request, if it ends with this body, and its deadline. `reader`: how long the body may
    /// wait for its reader.
    pub(crate) fn of_upstream(
        body: Incoming,
        inside: Option<(Inside, Instant)>,
        in_progress: InProgress,
        reader: Duration,
    ) -> Self {
        let has_ended = body.is_end_stream();
        let reader = ReaderWait::new(reader, Instant::now());
        let mut transfer =
            Transfer { body: Some(body), inside, in_progress: Some(in_progress), reader, failure: None };
        if has_ended {
            transfer.end();
        }
        let transfer = Arc::new(Mutex::new(transfer));
        let timer =
            (!has_ended).then(|| tokio::spawn(cut_off_when_late(Arc::clone(&transfer))).abort_handle());
        Self::Upstream(UpstreamBody { transfer, timer })
    }
}

async fn cut_off_when_late(transfer: Arc<Mutex<Transfer>>) {
    loop {
        // A separate statement, so that the mutex guard is not held across the await.
        let next = lock(&transfer).cut_off_if_late(Instant::now());
        let Some(next) = next else { return };
        sleep_until(next).await;
    }
}

fn lock(transfer: &Mutex<Transfer>) -> MutexGuard<'_, Transfer> {
    transfer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transfer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        self.reader.ready(Instant::now());
        let frame = ready!(Pin::new(&mut *body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                self.reader.taken(frame.data_ref().map_or(0, Bytes::len), Instant::now());
                // The HTTP server need not poll again after the last frame.
                if body.is_end_stream() {
                    self.end();
                }
            }
            None => self.end(),
            Some(Err(_)) => (self.body, self.inside, self.in_progress) = (None, None, None),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    /// To be called when the upstream has ended the response. The request stays in progress until the HTTP
    /// server has dropped the body, which may hold the last frame until the client reads it.
    fn end(&mut self) {
        self.body = None;
        if let Some((inside, _)) = self.inside.take() {
            inside.ended();
        }
    }

    /// Cuts the response off if it is late; otherwise returns the time of the next check. `None`: the
    /// response is over.
    fn cut_off_if_late(&mut self, now: Instant) -> Option<Instant> {
        self.in_progress.as_ref()?;
        let reader = self.reader.until(now);
        let deadline = self.inside.as_ref().map(|(_, deadline)| *deadline);
        if deadline.is_some_and(|deadline| deadline <= now) {
            (self.body, self.inside, self.in_progress) = (None, None, None);
            self.failure = Some(BodyError::Timeout);
            return None;
        }
        if reader <= now {
            self.failure = self.body.as_ref().map(|_| BodyError::Reader);
            self.abandon();
            return None;
        }
        Some(deadline.map_or(reader, |deadline| deadline.min(reader)))
    }

    /// To be called when no client reads the response any more. Reads the rest of the response to a guarded
    /// request, so that the request's end is known.
    fn abandon(&mut self) {
        let (body, inside, in_progress) = (self.body.take(), self.inside.take(), self.in_progress.take());
        let (Some(mut body), Some((inside, deadline))) = (body, inside) else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let rest = async {
                while let Some(frame) = body.frame().await {
                    frame?;
                }
                Ok::<_, hyper::Error>(())
            };
            if let Ok(Ok(())) = timeout_at(deadline, rest).await {
                inside.ended();
            }
            drop(in_progress);
        });
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
        lock(&self.transfer).abandon();
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
            Self::Upstream(upstream) => lock(&upstream.transfer).poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(upstream) => {
                let transfer = lock(&upstream.transfer);
                transfer.failure.is_none() && transfer.body.as_ref().is_none_or(Body::is_end_stream)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Upstream(upstream) => {
                let transfer = lock(&upstream.transfer);
                let ended =
                    || if transfer.failure.is_none() { SizeHint::with_exact(0) } else { SizeHint::default() };
                transfer.body.as_ref().map_or_else(ended, Body::size_hint)
            }
        }
    }
}
