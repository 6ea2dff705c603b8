//! Clients' connections: who gets one, what has arrived on it, and how it ends.
//!
//! Knows nothing of the calls on a connection: an [`Interface`] serves them. Responsible for the drain
//! barrier, which lets the replica expire a session only after all input that had arrived was handed to it
//! (P9). Reading order: `accept.rs`, `connection_places.rs`, `connection.rs`, `drain_barrier.rs`,
//! `socket.rs`, `arriving.rs`; `forming.rs` answers while the node's cluster does not exist yet.

mod accept;
mod arriving;
mod connection;
mod connection_places;
mod drain_barrier;
mod forming;
mod socket;
mod unread;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::callers::Callers;
use super::replica_handle::ReplicaHandle;
use crate::access::Identity;
use crate::observe;
use crate::options::ConnectionLimits;
use crate::tls::NodeTls;
pub(crate) use accept::Acceptor;
pub(super) use accept::{
    FOREIGN_MESSAGE_BYTES_MAX, HEADER_BYTES_MAX, Interface, Port, STREAM_WINDOW, STREAMS_MAX, until_end,
};
pub(super) use arriving::{Arriving, ArrivingBody};
pub(super) use connection::{Connection, OPEN_CALLS_MAX, Starting, WATCHED_BYTES_MAX, WakeReader, holding};
use connection_places::{ConnectionPlace, ConnectionPlaces};
pub(crate) use forming::answer_while_forming;
pub(super) use socket::ClientIo;
use unread::Unread;

/// The idle time after which a connection is closed while the limit of connections is reached.
const IDLE_WHILE_FULL: Duration = Duration::from_secs(5);
/// The minimum time between two closings of idle connections to make room.
const ROOM_EVERY: Duration = Duration::from_secs(1);

/// What all connections share.
pub(super) struct Transport {
    pub(super) replica: Arc<ReplicaHandle>,
    pub(super) callers: Arc<Callers>,
    /// `None`: connections are plain.
    tls: Option<Arc<NodeTls>>,
    pub(super) limits: ConnectionLimits,
    places: ConnectionPlaces,
    /// The time at which idle connections were last closed to make room.
    room_made: Mutex<Option<Instant>>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// The open connections whose clients must show who they are and have not; the oldest has the lowest id.
    strangers: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Counts the bytes that clients have not read yet.
    pub(super) unread: Unread,
}

impl Transport {
    pub(super) fn new(
        replica: Arc<ReplicaHandle>,
        callers: Arc<Callers>,
        tls: Option<Arc<NodeTls>>,
        limits: ConnectionLimits,
    ) -> Arc<Self> {
        Arc::new(Self {
            replica,
            callers,
            tls,
            limits,
            places: ConnectionPlaces::new(limits),
            room_made: Mutex::default(),
            connections: Mutex::default(),
            strangers: Mutex::default(),
            unread: Unread::default(),
        })
    }

    /// The open connections, by id.
    pub(super) fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Connection>>> {
        self.connections.lock()
    }

    fn open_connection(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
        place: ConnectionPlace,
    ) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(self.replica.next_id(), self.clone(), address, place));
        if connection.is_provisional() {
            self.strangers.lock().insert(connection.id, connection.clone());
        }
        let barrier = self.replica.barrier();
        if barrier > 0 {
            connection.nudge(barrier);
        }
        let mut connections = self.connections();
        connections.insert(connection.id, connection.clone());
        observe::connections(connections.len());
        connection
    }

    /// Ends the oldest connection whose client has not shown who it is: one of the same network if there is
    /// one, else of any. So those who connect and then say nothing keep out nobody who says it at once.
    /// Returns whether there was one. `why`: why the other connection, `but` if it has a number already, has
    /// no place.
    fn make_way(&self, network: Option<IpAddr>, but: Option<u64>, why: &str) -> bool {
        let strangers = self.strangers.lock();
        let others = || strangers.values().filter(|it| Some(it.id) != but);
        let of_network = others().find(|it| it.give_way(|of| of == network));
        let gone = of_network.or_else(|| others().find(|it| it.give_way(|_| true))).cloned();
        drop(strangers);
        if let Some(gone) = &gone {
            self.refuse_connection(gone.address(), &format!("{why}: it has given way to another one"));
        }
        gone.is_some()
    }

    /// Records that a connection was refused.
    fn refuse_connection(&self, address: &str, why: &str) {
        observe::quota_refused("connections");
        self.callers.audit.refused("quota", &Identity::ANONYMOUS, address, why);
        self.close_idle();
    }

    /// Makes room for other connections: closes those that have been idle for [`IDLE_WHILE_FULL`], unless
    /// this was done less than [`ROOM_EVERY`] ago.
    fn close_idle(&self) {
        let now = Instant::now();
        let mut made = self.room_made.lock();
        if made.is_some_and(|made| now < made + ROOM_EVERY) {
            return;
        }
        *made = Some(now);
        for connection in self.connections().values() {
            if connection.idle_since().is_some_and(|since| since + IDLE_WHILE_FULL <= now) {
                connection.closing.cancel();
            }
        }
    }

    /// Closes the connections of callers that are no longer permitted by the current files, once their calls
    /// have ended.
    pub(super) fn end_denied(&self) {
        let connections: Vec<_> = self.connections().values().cloned().collect();
        let access = &self.callers.access;
        for connection in connections {
            connection.close_if_denied(|caller| access.ended(&caller.identity, caller.token.as_ref()));
        }
    }

    /// To be called when the client of a connection has shown who it is.
    fn is_known(&self, id: u64) {
        self.strangers.lock().remove(&id);
    }

    fn forget_connection(&self, id: u64) {
        self.is_known(id);
        let mut connections = self.connections();
        connections.remove(&id);
        observe::connections(connections.len());
    }
}
