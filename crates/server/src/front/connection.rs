//! One client's connection: its state in the drain barrier, how it ended (which decides the cause with which
//! its streams end), and its unsent bytes.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use lockkeeper_replica::StreamId;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Front;
use super::accept::{OPEN_CALLS_MAX, UNREAD_MAX};
use super::arriving::BodyProgress;
use super::caller::{Caller, Certified};
use super::connection_places::{ConnectionPlace, Standing};
use super::drain_barrier::DrainBarrier;
use super::stream::SessionStream;

/// Maximum number of calls per connection with unsent answers of up to about 400 KiB each. Further calls wait
/// before they are passed to the replica, so a client that does not read its answers costs a few MiB at most.
const ANSWERS_MAX: usize = 16;
/// Most unsent bytes of all watches of a connection.
pub(super) const WATCHED_BYTES_MAX: usize = 16 << 20;

/// A connection, from its accept until its last stream has ended.
pub(super) struct Connection {
    pub(super) id: u64,
    front: Arc<Front>,
    state: Mutex<ConnectionState>,
    /// Limits the calls with unsent answers.
    pub(super) answers: Arc<Semaphore>,
    /// Limits the calls that need no authentication.
    pub(super) open_calls: Arc<Semaphore>,
    /// Unsent bytes of all watches of this connection.
    watched_bytes: AtomicUsize,
    /// What the client's certificate says, if it has shown one.
    pub(super) certified: OnceLock<Certified>,
    /// The address at the other end, for people; empty if it is unknown.
    address: Arc<str>,
    /// The limits that the connection counts towards; empty once the connection has ended.
    place: Mutex<ConnectionPlace>,
    /// Cancelled to close the connection once the calls in progress have ended.
    pub(super) closing: CancellationToken,
    /// Cancelled to close the connection at once.
    pub(super) kill: CancellationToken,
}

struct ConnectionState {
    gate: DrainBarrier,
    /// The task that reads the socket.
    reader: Option<Waker>,
    streams: BTreeMap<StreamId, Arc<SessionStream>>,
    /// The bodies of session calls that have not been passed to the replica yet.
    bodies: BTreeMap<StreamId, BodyProgress>,
    /// FIN or RST was read from the socket. Streams can't distinguish this from other ends of the connection,
    /// and only this starts `linger`.
    closed_by_peer: bool,
    /// Number of calls in progress; a call ends when its answer has been sent.
    calls: usize,
    /// Since when there is no call in progress.
    idle_since: Instant,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        front: Arc<Front>,
        address: Option<SocketAddr>,
        place: ConnectionPlace,
    ) -> Self {
        Self {
            id,
            front,
            state: Mutex::new(ConnectionState {
                gate: DrainBarrier::default(),
                reader: None,
                streams: BTreeMap::new(),
                bodies: BTreeMap::new(),
                closed_by_peer: false,
                calls: 0,
                idle_since: Instant::now(),
            }),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
            open_calls: Arc::new(Semaphore::new(OPEN_CALLS_MAX)),
            watched_bytes: AtomicUsize::new(0),
            certified: OnceLock::new(),
            address: address.map(|address| address.to_string()).unwrap_or_default().into(),
            place: Mutex::new(place),
            closing: CancellationToken::new(),
            kill: CancellationToken::new(),
        }
    }

    /// The address at the other end, for people; empty if it is unknown.
    pub(super) fn address(&self) -> Arc<str> {
        self.address.clone()
    }

    /// To be called when the client has authenticated. Counts the connection towards the limits of the first
    /// caller that uses it; `None`: of a node of the cluster.
    ///
    /// # Errors
    /// The connection must be closed: the caller's access was revoked, or the caller has too many
    /// connections.
    pub(super) fn admit(&self, caller: Option<&Caller>) -> Result<(), Status> {
        let mut place = self.place();
        if place.is_admitted() {
            return Ok(());
        }
        let access = &self.front.access;
        let standing = match caller {
            None => Standing::Node,
            Some(Caller { identity, token, .. }) => {
                if let Some(refusal) = access.ended(identity, token.as_ref()) {
                    return Err(Status::permission_denied(refusal));
                }
                let is_operators = access.rights(identity).is_some_and(|rights| rights.is_operators());
                if is_operators { Standing::Operator } else { Standing::Client }
            }
        };
        self.front.connection_places.admit(&mut place, caller, standing).map_err(Status::resource_exhausted)
    }

    /// Closes the connection, once its calls have ended, if its caller is no longer permitted. `refusal`
    /// returns the reason, or `None` if the caller is permitted.
    pub(super) fn close_if_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        if self.place().caller().and_then(refusal).is_some() {
            self.closing.cancel();
        }
    }

    /// Whether the connection is closed unless its client authenticates soon.
    pub(super) fn is_provisional(&self) -> bool {
        self.place().is_provisional()
    }

    fn place(&self) -> MutexGuard<'_, ConnectionPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call. The call is in progress until the returned value is dropped, together with the
    /// answer.
    pub(super) fn call(self: &Arc<Self>) -> OpenCall {
        self.lock().calls += 1;
        OpenCall(self.clone())
    }

    /// The time at which the last call ended; `None` while a call is in progress.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.calls == 0).then_some(state.idle_since)
    }

    /// Adds unsent bytes of a watch; returns whether all watches of the connection are within their limit.
    pub(super) fn watch_waits(&self, bytes: usize) -> bool {
        self.front.unread.add(bytes);
        let waiting = self.watched_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        waiting <= WATCHED_BYTES_MAX.min(self.front.unread.share())
    }

    pub(super) fn watch_sent(&self, bytes: usize) {
        self.watched_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.front.unread.subtract(bytes);
    }

    pub(super) fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// To be called when a barrier begins, and repeatedly until it has passed: wakes the tasks that read the
    /// socket and the streams.
    pub(super) fn nudge(&self, barrier: u64) {
        let mut state = self.lock();
        state.gate.want(barrier);
        state.wake();
    }

    pub(super) fn has_passed(&self, barrier: u64) -> bool {
        self.lock().gate.has_passed(barrier)
    }

    /// Registers an accepted call. No barrier passes before the returned value is dropped.
    pub(super) fn starting(self: &Arc<Self>) -> Starting {
        let mut state = self.lock();
        state.gate.starting();
        Starting(self.clone())
    }

    pub(super) fn opened(&self, stream: &Arc<SessionStream>) {
        let mut state = self.lock();
        state.gate.opened(stream.id);
        state.streams.insert(stream.id, stream.clone());
    }

    /// To be called when the reader of a stream has passed all its input to the replica.
    pub(super) fn idle(&self, stream: StreamId) {
        self.lock().gate.idle(stream);
        self.front.barrier_moved();
    }

    /// To be called during a barrier when the reader of a stream has passed a frame of `bytes` bytes to the
    /// replica.
    pub(super) fn handed_on(&self, stream: StreamId, bytes: usize) {
        if self.lock().gate.handed_on(stream, bytes, UNREAD_MAX) {
            self.front.barrier_moved();
        }
    }

    /// Whether a reader has passed on input that a barrier waits for, since the last call of this function.
    pub(super) fn take_moved(&self) -> bool {
        self.lock().gate.take_moved()
    }

    /// Registers a session call whose body is arriving. If the body has arrived completely when a barrier
    /// begins, the barrier passes only after the call was passed to the replica.
    pub(super) fn arriving(&self, call: StreamId) {
        let mut state = self.lock();
        state.gate.opened(call);
        state.bodies.insert(call, BodyProgress::default());
    }

    /// To be called when the body of a call was polled. `nothing`: the waker of the poll if the body had no
    /// data.
    pub(super) fn body_polled(&self, call: StreamId, nothing: Option<&Waker>) {
        let mut state = self.lock();
        let Some(body) = state.bodies.get_mut(&call) else { return };
        let Some(waker) = nothing else { return body.part() };
        if body.nothing(waker) {
            state.gate.idle(call);
            drop(state);
            self.front.barrier_moved();
        } else if self.front.has_barrier()
            && let Some(reader) = &state.reader
        {
            reader.wake_by_ref();
        }
    }

    /// To be called when a session call was passed to the replica, or has ended without.
    pub(super) fn arrived(&self, call: StreamId) {
        let mut state = self.lock();
        if state.bodies.remove(&call).is_some() {
            state.gate.closed(call);
            self.settle(state);
        }
    }

    pub(super) fn closed(&self, stream: StreamId) {
        let mut state = self.lock();
        state.gate.closed(stream);
        state.streams.remove(&stream);
        self.settle(state);
    }

    pub(super) fn is_closed_by_peer(&self) -> bool {
        self.lock().closed_by_peer
    }

    /// To be called when the task that served the connection has ended.
    pub(super) fn over(&self) {
        *self.place() = ConnectionPlace::default();
        let mut state = self.lock();
        state.gate.over();
        // Readers that wait for room in the inbox would not be woken otherwise.
        state.streams.values().for_each(|stream| stream.wake_reader());
        self.settle(state);
    }

    fn settle(&self, state: MutexGuard<'_, ConnectionState>) {
        let is_empty = state.gate.is_empty();
        drop(state);
        if is_empty {
            self.front.forget_connection(self.id);
        }
        self.front.barrier_moved();
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_closed(&self) {
        let mut state = self.lock();
        state.closed_by_peer = true;
        state.gate.over();
        drop(state);
        self.front.barrier_moved();
    }

    /// To be called when a read would have blocked. `proven`: by the result of a system call, not by the
    /// runtime's readiness flag.
    fn would_block(&self, cx: &Context<'_>, proven: bool) {
        let mut state = self.lock();
        match &mut state.reader {
            Some(reader) if reader.will_wake(cx.waker()) => {}
            reader => *reader = Some(cx.waker().clone()),
        }
        state.bodies.values_mut().for_each(BodyProgress::would_block);
        if proven {
            state.gate.seen_empty();
            state.streams.values().for_each(|stream| stream.wake_reader());
        }
        if self.front.has_barrier() {
            state.bodies.values().for_each(BodyProgress::wake);
        }
        drop(state);
        if proven {
            self.front.barrier_moved();
        }
    }

    fn wants_proof(&self) -> bool {
        self.lock().gate.wants_proof()
    }
}

impl ConnectionState {
    /// Wakes the tasks that read the socket, the streams and the bodies.
    fn wake(&self) {
        if let Some(reader) = &self.reader {
            reader.wake_by_ref();
        }
        self.streams.values().for_each(|stream| stream.wake_reader());
        self.bodies.values().for_each(BodyProgress::wake);
    }
}

/// A call in progress.
pub(super) struct OpenCall(Arc<Connection>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        state.idle_since = Instant::now();
    }
}

/// A call that was accepted and has no registered reader yet.
pub(super) struct Starting(Arc<Connection>);

impl Starting {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gate.started();
        self.0.settle(state);
    }
}

/// The socket under HTTP/2, or under its TLS; records events, such as FIN, that HTTP/2 streams can't see.
pub(super) struct Socket {
    socket: TcpStream,
    connection: Arc<Connection>,
    above: Above,
    /// The last read was proven to find the socket empty.
    found_empty: bool,
    /// FIN or RST was read.
    has_ended: bool,
}

/// The layer above a [`Socket`]. A TLS layer may hold input that it has read, so then [`TlsSocket`] records
/// the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Above {
    Http,
    /// No request was read yet, but the last read of the handshake may be followed by requests and by FIN at
    /// once.
    Handshake,
    Tls,
}

impl Socket {
    pub(super) fn new(socket: TcpStream, connection: Arc<Connection>, above: Above) -> Self {
        Self { socket, connection, above, found_empty: false, has_ended: false }
    }

    /// Reads by a direct system call, regardless of the runtime's readiness flag. Returns `None` if the read
    /// would block.
    fn read_now(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        loop {
            match (&*SockRef::from(&self.socket)).read(buf.initialize_unfilled()) {
                Ok(bytes) => {
                    buf.advance(bytes);
                    return Some(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let must_prove = self.connection.wants_proof() && buf.remaining() > 0;
        let read = match must_prove.then(|| self.read_now(buf)).flatten() {
            Some(read) => Poll::Ready(read),
            None => Pin::new(&mut self.socket).poll_read(cx, buf),
        };
        self.found_empty = read.is_pending() && must_prove;
        match &read {
            Poll::Pending if self.above == Above::Tls => {}
            Poll::Pending => self.connection.would_block(cx, must_prove),
            Poll::Ready(Ok(())) => self.has_ended |= buf.filled().len() == before && buf.remaining() > 0,
            Poll::Ready(Err(error)) => self.has_ended |= error.kind() == io::ErrorKind::ConnectionReset,
        }
        if self.has_ended && self.above == Above::Http {
            self.connection.peer_closed();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The TLS layer under HTTP/2. All input that had arrived was passed on once this layer has no more *and* the
/// socket below was found empty in the same read.
///
/// The client counts as having closed the stream if TLS ended properly (`close_notify`), and also after a
/// bare FIN or RST: a killed process leaves nothing else, and `linger` is for killed processes.
pub(super) struct TlsSocket {
    stream: TlsStream<Socket>,
    connection: Arc<Connection>,
}

impl TlsSocket {
    /// A connection whose TLS handshake is over.
    pub(super) fn new(mut stream: TlsStream<Socket>) -> Self {
        let socket = stream.get_mut().0;
        socket.above = Above::Tls;
        let connection = socket.connection.clone();
        Self { stream, connection }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.stream.get_mut().0.found_empty = false;
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Pending => self.connection.would_block(cx, self.stream.get_ref().0.found_empty),
            Poll::Ready(Ok(())) if buf.filled().len() == before && buf.remaining() > 0 => {
                self.connection.peer_closed();
            }
            // Only after an error: the read that reached the end of the socket may have returned earlier
            // input.
            Poll::Ready(Err(_)) if self.stream.get_ref().0.has_ended => self.connection.peer_closed(),
            Poll::Ready(_) => {}
        }
        read
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
