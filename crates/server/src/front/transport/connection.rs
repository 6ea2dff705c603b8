//! One client's connection: its state in the drain barrier, how it ended (which decides the cause with which
//! its streams end), and its unsent bytes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use http::HeaderMap;
use http_body_util::BodyExt;
use lockkeeper_replica::StreamId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};

use super::Transport;
use super::accept::STREAM_WINDOW;
use super::arriving::BodyProgress;
use super::connection_places::{ConnectionPlace, Standing};
use super::drain_barrier::DrainBarrier;
use crate::access::Identity;
use crate::front::callers::{Caller, Certified};

/// Maximum number of bytes that have been read from the socket for a stream and not handed to its reader,
/// beyond the frame that is still incomplete: the stream's flow-control window, and the HTTP/2 frame in which
/// the incomplete frame ends.
const UNREAD_MAX: usize = STREAM_WINDOW as usize + (16 << 10);
/// Maximum number of concurrent calls without authentication (health checks) per connection.
pub(in crate::front) const OPEN_CALLS_MAX: usize = 4;
/// Maximum number of calls per connection with unsent answers of up to about 400 KiB each. Further calls wait
/// before they are passed to the replica, so a client that does not read its answers costs a few MiB at most.
const ANSWERS_MAX: usize = 16;
/// Most unsent bytes of all watches of a connection.
pub(in crate::front) const WATCHED_BYTES_MAX: usize = 16 << 20;

/// The task that reads a session's stream.
pub(in crate::front) trait WakeReader: Send + Sync {
    /// Wakes the task.
    fn wake_reader(&self);
}

/// A connection, from its accept until its last stream has ended.
pub(in crate::front) struct Connection {
    pub(in crate::front) id: u64,
    transport: Arc<Transport>,
    state: Mutex<ConnectionState>,
    /// Limits the calls with unsent answers.
    pub(in crate::front) answers: Arc<Semaphore>,
    /// Limits the calls that need no authentication.
    pub(in crate::front) open_calls: Arc<Semaphore>,
    /// Unsent bytes of all watches of this connection.
    watched_bytes: AtomicUsize,
    /// What the client's certificate says, if it has shown one.
    certified: OnceLock<Certified>,
    /// The address at the other end, for people; empty if it is unknown.
    address: Arc<str>,
    /// The limits that the connection counts towards; empty once the connection has ended.
    place: Mutex<ConnectionPlace>,
    /// Cancelled to close the connection once the calls in progress have ended.
    pub(in crate::front) closing: CancellationToken,
    /// Cancelled to close the connection at once.
    pub(in crate::front) kill: CancellationToken,
}

struct ConnectionState {
    gate: DrainBarrier,
    /// The task that reads the socket.
    reader: Option<Waker>,
    streams: BTreeMap<StreamId, Arc<dyn WakeReader>>,
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
        transport: Arc<Transport>,
        address: Option<SocketAddr>,
        place: ConnectionPlace,
    ) -> Self {
        Self {
            id,
            transport,
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

    /// To be called when the client has authenticated. Counts the connection towards the limits of the first
    /// caller that uses it; `None`: of a node of the cluster.
    ///
    /// # Errors
    /// The connection must be closed: the caller's access was revoked, or the caller has too many
    /// connections.
    fn admit(&self, caller: Option<&Caller>) -> Result<(), Status> {
        let mut place = self.place();
        if place.is_admitted() {
            return Ok(());
        }
        let access = &self.transport.callers.access;
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
        let places = &self.transport.places;
        let mut admitted = places.admit(&mut place, caller, standing);
        if let Err(why) = &admitted
            && place.is_waiting()
        {
            let network = place.network();
            drop(place);
            self.transport.make_way(network, Some(self.id), why);
            place = self.place();
            admitted = places.admit(&mut place, caller, standing);
        }
        drop(place);
        admitted.map_err(Status::resource_exhausted)?;
        self.transport.is_known(self.id);
        Ok(())
    }

    /// Ends the connection at once, and frees its places, if its client has not shown who it is, and is of
    /// this network. Returns whether it has.
    pub(super) fn give_way(&self, is_wanted: impl Fn(Option<IpAddr>) -> bool) -> bool {
        let mut place = self.place();
        let gives_way = place.is_provisional() && is_wanted(place.network());
        if gives_way {
            *place = ConnectionPlace::default();
            self.kill.cancel();
        }
        gives_way
    }

    /// The address at the other end, for people; empty if it is unknown.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Identifies the caller of a call, and counts the connection towards the limits of its first caller.
    ///
    /// # Errors
    /// The refusal of a caller that can't be identified, whose access was revoked, or that has too many
    /// connections; recorded in the audit trail.
    pub(in crate::front) fn identify(&self, headers: &HeaderMap) -> Result<Caller, Status> {
        let (callers, certified) = (&self.transport.callers, self.certified.get());
        let caller = callers.identify(certified, &self.address, headers)?;
        let is_node = matches!(certified, Some(Certified::Node(_)));
        self.admit(if is_node { None } else { Some(&caller) }).inspect_err(|refusal| {
            self.closing.cancel();
            match refusal.code() {
                Code::PermissionDenied => callers.refused("denied", &caller, refusal.message()),
                _ => callers.over_quota("connections", &caller, refusal.message()),
            }
        })?;
        Ok(caller)
    }

    /// To be called when the client has shown its certificate: counts the connection towards the client's
    /// limits. A refusal is ignored here: the first call is refused with the same reason, in words.
    pub(super) fn show_certificate(&self, certificate: &[u8]) {
        let certified = self.certified.get_or_init(|| Certified::of(certificate));
        if let Certified::Client(identity) = certified {
            let (identity, address) = (identity.clone(), self.address.clone());
            let _ = self.admit(Some(&Caller { identity, token: None, address, is_checked: false }));
        }
    }

    /// Records that the client's certificate was not accepted, in the log and in the audit trail. Whether the
    /// client learns the reason depends on the order of packets.
    pub(super) fn certificate_refused(&self, why: &str) {
        self.transport.callers.audit.refused("unauthenticated", &Identity::ANONYMOUS, &self.address, why);
    }

    /// Closes the connection, once its calls have ended, if its caller is no longer permitted. `refusal`
    /// returns the reason, or `None` if the caller is permitted.
    pub(in crate::front) fn close_if_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        if self.place().caller().and_then(refusal).is_some() {
            self.closing.cancel();
        }
    }

    /// Whether the connection is closed unless its client authenticates soon.
    pub(super) fn is_provisional(&self) -> bool {
        self.place().is_provisional()
    }

    fn place(&self) -> MutexGuard<'_, ConnectionPlace> {
        self.place.lock()
    }

    /// Registers a call. The call is in progress until the returned value is dropped, together with the
    /// answer.
    pub(in crate::front) fn call(self: &Arc<Self>) -> OpenCall {
        self.lock().calls += 1;
        OpenCall(self.clone())
    }

    /// The time at which the last call ended; `None` while a call is in progress.
    pub(in crate::front) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.calls == 0).then_some(state.idle_since)
    }

    /// Adds unsent bytes of a watch; returns whether all watches of the connection are within their limit.
    pub(in crate::front) fn watch_waits(&self, bytes: usize) -> bool {
        self.transport.unread.add(bytes);
        let waiting = self.watched_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        waiting <= WATCHED_BYTES_MAX.min(self.transport.unread.share())
    }

    pub(in crate::front) fn watch_sent(&self, bytes: usize) {
        self.watched_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.transport.unread.subtract(bytes);
    }

    pub(in crate::front) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// To be called when a barrier begins, and repeatedly until it has passed: wakes the tasks that read the
    /// socket and the streams.
    pub(in crate::front) fn nudge(&self, barrier: u64) {
        let mut state = self.lock();
        state.gate.want(barrier);
        state.wake();
    }

    pub(in crate::front) fn has_passed(&self, barrier: u64) -> bool {
        self.lock().gate.has_passed(barrier)
    }

    /// Registers an accepted call. No barrier passes before the returned value is dropped.
    pub(in crate::front) fn starting(self: &Arc<Self>) -> Starting {
        let mut state = self.lock();
        state.gate.starting();
        Starting(self.clone())
    }

    pub(in crate::front) fn opened(&self, stream: StreamId, reader: Arc<dyn WakeReader>) {
        let mut state = self.lock();
        state.gate.opened(stream);
        state.streams.insert(stream, reader);
    }

    /// To be called when the reader of a stream has passed all its input to the replica.
    pub(in crate::front) fn idle(&self, stream: StreamId) {
        self.lock().gate.idle(stream);
        self.transport.replica.barrier_moved();
    }

    /// To be called during a barrier when the reader of a stream has passed a frame of `bytes` bytes to the
    /// replica.
    pub(in crate::front) fn handed_on(&self, stream: StreamId, bytes: usize) {
        if self.lock().gate.handed_on(stream, bytes, UNREAD_MAX) {
            self.transport.replica.barrier_moved();
        }
    }

    /// Whether a reader has passed on input that a barrier waits for, since the last call of this function.
    pub(in crate::front) fn take_moved(&self) -> bool {
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
            self.transport.replica.barrier_moved();
        } else if self.transport.replica.has_barrier()
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

    pub(in crate::front) fn closed(&self, stream: StreamId) {
        let mut state = self.lock();
        state.gate.closed(stream);
        state.streams.remove(&stream);
        self.settle(state);
    }

    pub(in crate::front) fn is_closed_by_peer(&self) -> bool {
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
            self.transport.forget_connection(self.id);
        }
        self.transport.replica.barrier_moved();
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    pub(super) fn peer_closed(&self) {
        let mut state = self.lock();
        state.closed_by_peer = true;
        state.gate.over();
        drop(state);
        self.transport.replica.barrier_moved();
    }

    /// To be called when a read would have blocked. `proven`: by the result of a system call, not by the
    /// runtime's readiness flag.
    pub(super) fn would_block(&self, cx: &Context<'_>, proven: bool) {
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
        if self.transport.replica.has_barrier() {
            state.bodies.values().for_each(BodyProgress::wake);
        }
        drop(state);
        if proven {
            self.transport.replica.barrier_moved();
        }
    }

    pub(super) fn wants_proof(&self) -> bool {
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
pub(in crate::front) struct OpenCall(Arc<Connection>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.calls -= 1;
        state.idle_since = Instant::now();
    }
}

/// A call that was accepted and has no registered reader yet.
pub(in crate::front) struct Starting(Arc<Connection>);

impl Starting {
    pub(in crate::front) fn connection(&self) -> &Arc<Connection> {
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

/// Attaches `held` to the body of the response: dropped once the body was sent, or the connection has dropped
/// it.
pub(in crate::front) fn holding(
    held: impl Send + 'static,
    response: http::Response<Body>,
) -> http::Response<Body> {
    let hold = move |frame| {
        let _held = &held;
        frame
    };
    response.map(|body| Body::new(body.map_frame(hold)))
}
