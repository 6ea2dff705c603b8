//! Connections to the client addresses of other nodes, mostly of the leader, and the answers to the calls
//! that are forwarded on them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;
use tonic::body::Body;

use crate::front::callers::Caller;
use crate::front::calls::Calls;
use crate::front::statuses::shuts_down;
use crate::tls::NodeTls;

/// A leader that does not accept a connection within this time has most likely lost the leadership.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// The idle time after which a connection is pinged, and the time limit for the answer.
const PING_AFTER: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to other nodes. All calls with a single answer share one connection to the leader. Each
/// call that is answered by a stream has a connection of its own: a node accepts only some hundred streams
/// per connection, and streams last long.
#[derive(Default)]
pub(in crate::front) struct Links {
    open: Mutex<Option<(String, ForwardConnection)>>,
    /// The connections for session calls, which may wait long for their answers. Each carries fewer calls at
    /// once than the streams that a node accepts per connection.
    of_sessions: Mutex<Vec<SessionLink>>,
    /// Limits the connections for calls about a node, separately for each node, so that a node that hangs
    /// delays only the calls about itself.
    about_nodes: parking_lot::Mutex<BTreeMap<u64, Arc<Semaphore>>>,
    /// The last failure that was logged.
    said: parking_lot::Mutex<String>,
}

impl Links {
    /// Sends a call about a node to that node, on a connection of its own: such calls are rare, and must not
    /// wait behind the calls to the leader. `node` must be a member, which bounds the size of `about_nodes`.
    ///
    /// # Errors
    /// Why there is no answer, in words.
    pub(super) async fn ask_node(
        &self,
        node: u64,
        address: &str,
        tls: Option<&NodeTls>,
        call: Request<Body>,
    ) -> Result<Response<Incoming>, String> {
        let places = self
            .about_nodes
            .lock()
            .entry(node)
            .or_insert_with(|| Arc::new(Semaphore::new(NODE_LINKS_MAX)))
            .clone();
        let _place = places.acquire_owned().await.map_err(|error| error.to_string())?;
        let mut link = dial(node, address, tls, None).await.map_err(|error| error.to_string())?;
        link.send(call).await.map_err(|_| "it has closed the connection".to_owned())
    }

    /// Returns the open connection to this address, or opens one. Concurrent callers wait for one attempt to
    /// connect, and share the connection.
    pub(super) async fn to(
        &self,
        leader: u64,
        address: &str,
        tls: Option<&NodeTls>,
    ) -> io::Result<ForwardConnection> {
        let mut open = self.open.lock().await;
        if let Some((whose, link)) = &*open
            && whose == address
            && !link.0.is_closed()
        {
            return Ok(link.clone());
        }
        *open = None;
        let link = dial(leader, address, tls, None).await?;
        *open = Some((address.to_owned(), link.clone()));
        self.said().clear();
        Ok(link)
    }

    /// Returns a connection to this address with room for one more session call; opens one if there is none.
    /// The caller must keep the permit until the call has its answer. `None`: the limit of session calls is
    /// reached.
    pub(super) async fn for_session(
        &self,
        leader: u64,
        address: &str,
        tls: Option<&NodeTls>,
    ) -> io::Result<Option<(ForwardConnection, OwnedSemaphorePermit)>> {
        let mut open = self.of_sessions.lock().await;
        open.retain(|it| it.address == address && !it.link.0.is_closed());
        for it in &*open {
            if let Ok(permit) = it.room.clone().try_acquire_owned() {
                return Ok(Some((it.link.clone(), permit)));
            }
        }
        if open.len() >= SESSION_LINKS_MAX {
            return Ok(None);
        }
        let link = dial(leader, address, tls, None).await?;
        let room = Arc::new(Semaphore::new(CALLS_PER_LINK));
        let permit = room.clone().try_acquire_owned().map_err(io::Error::other)?;
        open.push(SessionLink { address: address.to_owned(), link: link.clone(), room });
        self.said().clear();
        Ok(Some((link, permit)))
    }

    /// Logs why no connection could be opened. The same text is logged only once, since a call is tried again
    /// every few milliseconds.
    pub(super) fn failed(&self, leader: u64, address: &str, why: &io::Error) {
        let text = format!("calls can't be passed on to node {leader} at {address}: {why}");
        let mut said = self.said();
        if *said != text {
            tracing::warn!(leader, address, "{text}");
            *said = text;
        }
    }

    fn said(&self) -> parking_lot::MutexGuard<'_, String> {
        self.said.lock()
    }
}

/// A connection for session calls.
struct SessionLink {
    address: String,
    link: ForwardConnection,
    room: Arc<Semaphore>,
}

/// Maximum number of concurrent session calls on a connection: fewer than the streams that a node accepts.
const CALLS_PER_LINK: usize = 200;
/// Maximum number of connections for session calls.
const SESSION_LINKS_MAX: usize = 64;
/// Maximum number of connections for calls about one node. Further calls wait.
const NODE_LINKS_MAX: usize = 4;

/// A client connection to a node. It closes when its last handle was dropped and its last answer is complete.
#[derive(Clone)]
pub(super) struct ForwardConnection(SendRequest<Body>);

/// The reason why a forwarded call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ForwardError {
    /// The call was not sent.
    Unsent,
    /// The call was not sent: too many calls wait for their answers.
    TooMany,
    /// The call may have been executed.
    Unanswered,
}

/// Opens a connection to the client address of the node `leader`, with a flow-control window of `window`
/// bytes, or the HTTP/2 library's default.
pub(super) async fn dial(
    leader: u64,
    address: &str,
    tls: Option<&NodeTls>,
    window: Option<u32>,
) -> io::Result<ForwardConnection> {
    let dial = async {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = tls else { return begin(socket, window).await };
        let stream = tls.connect_client(socket).await?;
        tls.check_node(stream.get_ref().1.peer_certificates(), leader).map_err(io::Error::other)?;
        begin(stream, window).await
    };
    tokio::time::timeout(CONNECT_LIMIT, dial).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn begin(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    window: Option<u32>,
) -> io::Result<ForwardConnection> {
    let mut builder = Builder::new(TokioExecutor::new());
    if let Some(window) = window {
        builder.initial_stream_window_size(window).initial_connection_window_size(window);
    }
    let (link, connection) = builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(io))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection for calls to the leader ended: {error}");
        }
    });
    Ok(ForwardConnection(link))
}

impl ForwardConnection {
    pub(super) async fn send(&mut self, call: Request<Body>) -> Result<Response<Incoming>, ForwardError> {
        self.0.ready().await.map_err(|_| ForwardError::Unsent)?;
        self.0.try_send_request(call).await.map_err(|mut failed| match failed.take_message() {
            Some(_) => ForwardError::Unsent,
            None => ForwardError::Unanswered,
        })
    }
}

/// Completes with the status with which a stream has to end.
pub(super) type StreamCut = Pin<Box<dyn Future<Output = Status> + Send>>;

/// A stream from the leader that a client reads through this node.
pub(super) struct ForwardedStream {
    calls: Arc<Calls>,
    id: u64,
    /// Receives the status with which this node ends the stream, since the leader may never end it.
    end: oneshot::Receiver<Status>,
    /// A further reason to end the stream.
    cut: Option<StreamCut>,
}

impl ForwardedStream {
    pub(super) fn new(calls: Arc<Calls>, caller: Caller) -> Self {
        let (sender, end) = oneshot::channel();
        let id = calls.replica.next_id();
        calls.forwarded().insert(id, (caller.clone(), sender));
        if let Some(refusal) = calls.callers.ended(&caller) {
            calls.end_forwarded(id, Status::permission_denied(refusal));
        }
        Self { calls, id, end, cut: None }
    }

    /// Ends the stream also when `cut` completes.
    pub(super) fn until(mut self, cut: StreamCut) -> Self {
        self.cut = Some(cut);
        self
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.calls.replica.stopping.is_cancelled() {
            return Poll::Ready(shuts_down());
        }
        if let Some(cut) = &mut self.cut
            && let Poll::Ready(status) = cut.as_mut().poll(cx)
        {
            return Poll::Ready(status);
        }
        Pin::new(&mut self.end).poll(cx).map(|end| end.unwrap_or_else(|_| shuts_down()))
    }
}

impl Drop for ForwardedStream {
    fn drop(&mut self) {
        self.calls.forwarded().remove(&self.id);
    }
}

/// Converts the leader's answer to one for the caller.
pub(super) fn passed(answer: Response<Incoming>, stream: Option<ForwardedStream>) -> Response<Body> {
    answer.map(|body| Body::new(ForwardedBody { body, stream, is_cut: false }))
}

/// The body of a forwarded answer. It ends with a status even if the leader dies in the middle of it, or this
/// node ends it.
struct ForwardedBody {
    body: Incoming,
    stream: Option<ForwardedStream>,
    is_cut: bool,
}

impl ForwardedBody {
    fn cut(&mut self, status: &Status) -> Frame<Bytes> {
        self.is_cut = true;
        let mut trailers = HeaderMap::new();
        // Never fails: the text has only characters that a header may have.
        let _ = status.add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl hyper::body::Body for ForwardedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_cut {
            return Poll::Ready(None);
        }
        if let Some(stream) = &mut self.stream
            && let Poll::Ready(status) = stream.poll_end(cx)
        {
            return Poll::Ready(Some(Ok(self.cut(&status))));
        }
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(frame)),
            None => None,
            Some(Err(error)) => {
                tracing::debug!(%error, "an answer that was passed on broke off: {error}");
                Some(Ok(self.cut(&Status::unavailable(
                    "the leader has gone in the middle of its answer; whether the call had an effect is unknown; try again",
                ))))
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
