//! A connection to the leader's client address, and what comes back over it.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tonic::Status;
use tonic::body::Body;

/// A leader that does not accept within this time is most likely none any more.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A connection on which nothing came for so long is asked whether it is alive, and has so long to say so.
const PING_AFTER: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The one connection for all calls with one answer. Streams have their own: a node takes some hundred streams over a
/// connection, and those last.
#[derive(Default)]
pub(in crate::front) struct Links(Mutex<Option<(String, Link)>>);

impl Links {
    /// The connection that is open, or a new one. Whoever comes meanwhile waits for that one too.
    pub(super) async fn to(&self, address: &str) -> io::Result<Link> {
        let mut open = self.0.lock().await;
        if let Some((whose, link)) = &*open
            && whose == address
            && !link.0.is_closed()
        {
            return Ok(link.clone());
        }
        *open = None;
        let link = dial(address).await?;
        *open = Some((address.to_owned(), link.clone()));
        Ok(link)
    }
}

/// A connection to a node, as its client. It ends when its last handle has gone and its last answer is whole.
#[derive(Clone)]
pub(super) struct Link(SendRequest<Full<Bytes>>);

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// The call has not left this node.
    Unsent,
    /// It may have been heard.
    Unanswered,
}

pub(super) async fn dial(address: &str) -> io::Result<Link> {
    let dial = async {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (link, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection for calls to the leader ended: {error}");
            }
        });
        Ok(Link(link))
    };
    tokio::time::timeout(CONNECT_LIMIT, dial).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Link {
    pub(super) async fn send(&mut self, call: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failed> {
        self.0.ready().await.map_err(|_| Failed::Unsent)?;
        self.0.try_send_request(call).await.map_err(|mut failed| match failed.take_message() {
            Some(_) => Failed::Unsent,
            None => Failed::Unanswered,
        })
    }
}

/// The leader's answer for its caller.
pub(super) fn passed(answer: Response<Incoming>) -> Response<Body> {
    answer.map(|body| Body::new(Passed { body, is_cut: false }))
}

/// A body that ends with a status also where its sender dies in the middle of it.
struct Passed {
    body: Incoming,
    is_cut: bool,
}

impl hyper::body::Body for Passed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_cut {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            None => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer that was passed on broke off: {error}");
                self.is_cut = true;
                let mut trailers = HeaderMap::new();
                let status = Status::unavailable(
                    "the leader has gone in the middle of its answer; whether the call had an effect is unknown; try again",
                );
                // Its text has no character that a header could not have.
                let _ = status.add_header(&mut trailers);
                Some(Ok(Frame::trailers(trailers)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_cut || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_cut { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}
