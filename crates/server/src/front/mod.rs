//! The interfaces for clients, gRPC and HTTP/JSON: connections, streams and unary calls, on one thread.
//!
//! Responsible for: clients' requests reach the replica in order, and its answers reach the clients; the
//! drain barrier, which lets the replica expire a session only after all input that had arrived was handed to
//! it (P9). Contains no lock rule. Reading order: `stream.rs` (a client's stream), `pump.rs` (answers),
//! `drain_barrier.rs` and `connection.rs` (the drain barrier), `accept.rs`, `connection_places.rs` (who gets
//! a connection), `forward/mod.rs` (calls at a follower), `api.rs`, `arriving.rs` and `session_calls/mod.rs`
//! (sessions without a stream), `http/mod.rs`, `forming.rs` (a node whose cluster does not exist yet).

mod accept;
mod api;
mod arriving;
mod ask;
mod backup;
mod caller;
mod connection;
mod connection_places;
mod drain_barrier;
mod forming;
mod forward;
mod http;
mod join;
mod pump;
mod session_calls;
mod stream;
#[cfg(test)]
mod tests;
mod unread;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use lockkeeper_replica::storage::Snapshots;
use lockkeeper_replica::{Answer, AskId, Event, StreamId};
use lockkeeper_wire::v1::{self, StreamEndReason};
use tokio::sync::{Semaphore, oneshot, watch as shown};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::access::{Access, Identity};
use crate::audit::Audit;
use crate::disk::DataDirectory;
use crate::inbox::{Inbox, ReplicaStatus, Source};
use crate::observe;
use crate::options::ConnectionLimits;
use crate::peers::Directory;
use crate::tls::NodeTls;
use crate::traces::TraceArrivals;
use caller::Caller;
use connection::Connection;
use connection_places::{ConnectionPlace, ConnectionPlaces};
use lockkeeper_places::{NoPlace, Places, TakenPlace};
use session_calls::{SharedStream, SharedStreams};
use stream::{SessionStream, stream_end};
use unread::Unread;
use watch::Watcher;

pub(crate) use accept::{Acceptor, HttpPort};
pub use ask::LEADER_METADATA;
#[cfg(any(test, fuzzing))]
pub(crate) use ask::fuzz_deadline;
pub(crate) use forming::answer_while_forming;
pub(crate) use pump::pump;

/// Maximum number of session streams at a node; at most half of them of one identity.
const STREAMS_MAX: usize = 1 << 16;
/// Maximum number of watches at a node; at most half of them of one identity.
const WATCHES_MAX: usize = 1 << 10;

/// The idle time after which a connection is closed while the limit of connections is reached.
const IDLE_WHILE_FULL: Duration = Duration::from_secs(5);
/// The minimum time between two closings of idle connections to make room.
const ROOM_EVERY: Duration = Duration::from_secs(1);

/// Facts about this process that the replica does not have.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The id of this node.
    pub(crate) node: u64,
    pub(crate) data: PathBuf,
    /// The ids of cluster and data directory, as text.
    pub(crate) cluster: String,
    pub(crate) incarnation: String,
    /// The client address of each node, if it was known when this node started.
    pub(crate) clients: BTreeMap<u64, String>,
}

/// State that the tasks of the front share. All tasks run on one thread; the mutexes are never contended, but
/// the types must be `Sync`.
pub(crate) struct Front {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) about: About,
    /// Opens the stored snapshots for backups; set once the node has data.
    pub(crate) snapshots: OnceLock<Snapshots<DataDirectory>>,
    /// The members that this node knows, and its own hello (first handshake message); unset for a node
    /// without peers.
    pub(crate) directory: OnceLock<Arc<Directory>>,
    /// `None`: connections are plain.
    pub(crate) tls: Option<Arc<NodeTls>>,
    /// Authenticates and authorizes callers.
    pub(crate) access: Arc<Access>,
    pub(crate) audit: Arc<Audit>,
    /// `None`: acquires are not traced.
    traced: Option<Arc<TraceArrivals>>,
    /// Counts the bytes that clients have not read yet.
    unread: Unread,
    limits: ConnectionLimits,
    connection_places: ConnectionPlaces,
    /// The time at which idle connections were last closed to make room.
    room_made: Mutex<Option<Instant>>,
    /// Limits the session streams, by the identity of the client.
    stream_places: Arc<Places<Identity>>,
    watch_places: Arc<Places<Identity>>,
    /// Limits the orders of operators in progress.
    orders: Arc<Semaphore>,
    /// Limits the threads that wait for the disk to one.
    disk_looks: Arc<Semaphore>,
    /// The last measurement: its time, bytes used, bytes free.
    disk_usage: Mutex<Option<(Instant, u64, u64)>>,
    /// Cancelled when this node shuts down: from then on new connections, streams and calls are refused.
    pub(crate) stopping: CancellationToken,
    registry: Mutex<Registry>,
    /// The last id that was given to a stream, call or connection.
    last_id: AtomicU64,
    /// Whether an event was pushed and the replica was not woken since.
    is_pushed: AtomicBool,
    /// The number of the drain barrier in progress; 0: none.
    barrier: AtomicU64,
    pump: Mutex<Option<Waker>>,
    /// The state of the replica.
    state: shown::Sender<ReplicaStatus>,
    /// The client address of each node.
    clients: Mutex<BTreeMap<u64, String>>,
    /// Connections to the leader, while this node is a follower.
    links: forward::Links,
}

#[derive(Default)]
struct Registry {
    connections: BTreeMap<u64, Arc<Connection>>,
    streams: BTreeMap<StreamId, OpenStream>,
    /// The streams that session calls share; also in `streams`.
    shared_streams: SharedStreams,
    asks: BTreeMap<AskId, Ask>,
    /// The streams from the leader that clients read through this node, each with its caller and a sender to
    /// end it.
    forwarded: BTreeMap<u64, (Caller, oneshot::Sender<Status>)>,
}

/// A stream to the replica, with the requests of sessions.
#[derive(Clone)]
enum OpenStream {
    /// The stream of a client.
    Client(Arc<SessionStream>),
    /// A stream that the calls of a session share.
    Shared(Arc<SharedStream>),
}

impl OpenStream {
    fn caller(&self) -> Caller {
        match self {
            Self::Client(stream) => stream.caller().clone(),
            Self::Shared(stream) => stream.caller(),
        }
    }

    fn deliver(&self, front: &Front, items: Vec<v1::ServerItem>) {
        match self {
            Self::Client(stream) => stream.deliver(items),
            Self::Shared(stream) => stream.deliver(front, items),
        }
    }

    /// Ends the streams or calls whose callers are no longer permitted. `refusal` returns the reason, or
    /// `None` if the caller is permitted.
    fn end_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        match self {
            Self::Client(stream) => {
                if let Some(text) = refusal(stream.caller()) {
                    stream.end(stream_end(StreamEndReason::Denied, text));
                }
            }
            Self::Shared(stream) => stream.end_denied(refusal),
        }
    }

    /// The shared stream, if no call can use it again.
    fn unused(&self) -> Option<Arc<SharedStream>> {
        match self {
            Self::Shared(stream) if stream.is_unused() => Some(stream.clone()),
            _ => None,
        }
    }

    fn end(&self, end: v1::StreamEnd) {
        match self {
            Self::Client(stream) => stream.end(end),
            Self::Shared(stream) => stream.end(&end),
        }
    }
}

/// The receiver of a call's answers.
enum Ask {
    /// A call with one answer.
    Once(oneshot::Sender<Answer>),
    /// A call with many answers.
    Watch(Arc<Watcher>),
}

impl Ask {
    fn watcher(&self) -> Option<Arc<Watcher>> {
        match self {
            Self::Watch(watcher) => Some(watcher.clone()),
            Self::Once(_) => None,
        }
    }
}

impl Front {
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        about: About,
        tls: Option<Arc<NodeTls>>,
        access: Arc<Access>,
        audit: Arc<Audit>,
        traced: Option<Arc<TraceArrivals>>,
        limits: ConnectionLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            inbox,
            clients: Mutex::new(about.clients.clone()),
            about,
            snapshots: OnceLock::new(),
            directory: OnceLock::new(),
            tls,
            access,
            audit,
            traced,
            unread: Unread::default(),
            limits,
            connection_places: ConnectionPlaces::new(limits),
            room_made: Mutex::default(),
            stream_places: Places::new(STREAMS_MAX),
            watch_places: Places::new(WATCHES_MAX),
            orders: Arc::new(Semaphore::new(ask::ORDERS_MAX)),
            disk_looks: Arc::new(Semaphore::new(1)),
            disk_usage: Mutex::default(),
            stopping: CancellationToken::new(),
            registry: Mutex::default(),
            last_id: AtomicU64::new(0),
            is_pushed: AtomicBool::new(false),
            barrier: AtomicU64::new(0),
            pump: Mutex::default(),
            state: shown::Sender::new(ReplicaStatus::default()),
            links: forward::Links::default(),
        })
    }

    /// The state of the replica, with notifications of changes.
    pub(crate) fn state(&self) -> shown::Receiver<ReplicaStatus> {
        self.state.subscribe()
    }

    /// The client address of each node. The mutex guard must not be held across an await.
    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends an event of a client to the inbox. The replica is woken only after all tasks that are ready
    /// now have run, so that the requests of several streams form one batch.
    pub(crate) fn push_from(&self, source: &Source, event: Event) {
        self.inbox.push_from(source, event);
        self.pushed();
    }

    /// As [`Front::push_from`], for an event of this node.
    pub(crate) fn push(&self, event: Event) {
        self.inbox.push(event);
        self.pushed();
    }

    fn pushed(&self) {
        if !self.is_pushed.swap(true, Ordering::Relaxed) {
            self.wake_pump();
        }
    }

    /// The number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.registry().connections.len()
    }

    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn open_connection(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
        place: ConnectionPlace,
    ) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(self.next_id(), self.clone(), address, place));
        let barrier = self.barrier.load(Ordering::Relaxed);
        if barrier > 0 {
            connection.nudge(barrier);
        }
        let mut registry = self.registry();
        registry.connections.insert(connection.id, connection.clone());
        observe::connections(registry.connections.len());
        connection
    }

    /// Records that a new connection was refused.
    fn refuse_connection(&self, address: Option<SocketAddr>, why: &str) {
        observe::quota_refused("connections");
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        self.audit.refused("quota", &Identity::ANONYMOUS, &address, why);
        self.close_idle();
    }

    /// Makes room for other connections: closes those that have been idle for [`IDLE_WHILE_FULL`], unless
    /// this was done less than [`ROOM_EVERY`] ago.
    fn close_idle(&self) {
        let now = Instant::now();
        let mut made = self.room_made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_some_and(|made| now < made + ROOM_EVERY) {
            return;
        }
        *made = Some(now);
        for connection in self.registry().connections.values() {
            if connection.idle_since().is_some_and(|since| since + IDLE_WHILE_FULL <= now) {
                connection.closing.cancel();
            }
        }
    }

    fn forget_connection(&self, id: u64) {
        let mut registry = self.registry();
        registry.connections.remove(&id);
        observe::connections(registry.connections.len());
    }

    fn open_stream(
        &self,
        connection: &Arc<Connection>,
        caller: Caller,
    ) -> Result<Arc<SessionStream>, Status> {
        let place = self.stream_place(&caller)?;
        let stream = SessionStream::new(StreamId(self.next_id()), connection.clone(), caller, place);
        self.register_stream(stream.id, &stream.source, OpenStream::Client(stream.clone()));
        Ok(stream)
    }

    /// Adds a stream, and sends its opening to the replica.
    fn register_stream(&self, id: StreamId, source: &Source, stream: OpenStream) {
        let caller = stream.caller().identity;
        let (identity, quota) = (caller.as_str().into(), self.access.quota(&caller));
        let mut registry = self.registry();
        registry.streams.insert(id, stream);
        observe::streams(registry.streams.len());
        drop(registry);
        self.push_from(source, Event::StreamOpened { stream: id, identity, quota });
    }

    fn stream_place(&self, caller: &Caller) -> Result<TakenPlace<Identity>, Status> {
        self.place("streams of sessions", &self.stream_places, caller)
    }

    /// Counts a stream or watch towards the limits, in total and of its caller. Anonymous callers count
    /// towards the total only, since they can't be told apart.
    fn place(
        &self,
        what: &'static str,
        places: &Arc<Places<Identity>>,
        caller: &Caller,
    ) -> Result<TakenPlace<Identity>, Status> {
        let identity = Some(&caller.identity).filter(|identity| **identity != Identity::ANONYMOUS);
        places.take(identity.cloned()).map_err(|none| {
            let text = match none {
                NoPlace::OfHolder(most) => {
                    format!(
                        "{} has {most} {what} at this node, the most that one client may have",
                        caller.identity
                    )
                }
                NoPlace::InAll(most) => format!("this node has {most} {what}, the most that it allows"),
            };
            self.over_quota(what, caller, &text);
            Status::resource_exhausted(format!("{text}; end some"))
        })
    }

    /// Sends the quotas of the current files to the replica. Without permissions they never change.
    pub(crate) fn set_quotas(&self) {
        if self.access.digest().is_none() {
            return;
        }
        let callers: BTreeSet<Identity> =
            self.registry().streams.values().map(|stream| stream.caller().identity).collect();
        let of = |caller: &Identity| (caller.as_str().into(), self.access.quota(caller));
        let by_identity = callers.iter().map(of).collect();
        self.push(Event::Quotas { total: self.access.total_quota(), by_identity });
    }

    /// Records that a caller has reached a quota.
    fn over_quota(&self, what: &'static str, caller: &Caller, why: &str) {
        observe::quota_refused(what);
        self.refused("quota", caller, why);
    }

    fn forget_stream(&self, id: StreamId) {
        let mut registry = self.registry();
        registry.streams.remove(&id);
        observe::streams(registry.streams.len());
    }

    /// Whether a drain barrier is in progress.
    fn has_barrier(&self) -> bool {
        self.barrier.load(Ordering::Relaxed) > 0
    }

    /// To be called when a connection may have passed the drain barrier in progress.
    fn barrier_moved(&self) {
        if self.has_barrier() {
            self.wake_pump();
        }
    }

    fn wake_pump(&self) {
        let pump = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pump) = pump {
            pump.wake();
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
