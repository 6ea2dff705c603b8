//! The other nodes of the cluster: their addresses, connections to them, messages from and to them.
//!
//! Responsible for: messages of one link (a connection after its handshake) arrive in order, each complete or
//! not at all; and every loss is reported to the replica. Does not interpret messages. Two nodes have two
//! connections, one for each direction, each opened by its sender: so simultaneous connections need no
//! tie-break.
//!
//! | file | runs on | does |
//! | --- | --- | --- |
//! | `poll.rs` | the replica's thread | waits for sockets and inbox |
//! | `link.rs` | the replica's thread | frames of one connection |
//! | `handshake.rs` | the front's thread | the handshake of a connection, both sides |
//! | `listen.rs`, `dial.rs` | the front's thread | accept and open connections, and hand them over |
//! | `bulk.rs` | threads of its own | snapshots |
//! | `ask.rs` | the front's thread | identifies a node that is to be added |
//! | `form.rs` | the front's thread | a node without data bootstraps or joins its cluster |
//! | `directory.rs` | both | the members that this node knows, and its own hello |
//! | `tickets.rs` | the front's thread | proof that an incoming connection comes from a member's address |
//!
//! The replica's own thread reads and writes the sockets: passing a message to another thread would take
//! longer than sending it.

mod ask;
mod bulk;
mod dial;
mod directory;
mod form;
mod handshake;
mod link;
mod listen;
mod poll;
#[cfg(test)]
mod tests;
mod tickets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::{Event, Members};
use lockkeeper_wire::peer::{Hello, Lane, PeerKind, PeerMessage, Refusal, SnapshotOffer};
use mio::net::TcpStream;
use parking_lot::Mutex;
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::inbox::Inbox;
use crate::tls::{PeerStream, Transport};
pub(crate) use ask::who_waits;
pub(crate) use bulk::{Arrived, Bulk, PATIENCE};
use dial::Dialler;
pub(crate) use directory::Directory;
pub(crate) use form::{Others, form};
use link::{Incoming, PeerOutbox, ReadOutcome};
use listen::listen;
pub(crate) use poll::Bell;
use poll::Poller;

/// Most bytes that one [`Peers::read`] takes from the sockets: all entries of a turn become one record of the
/// log.
const READ_BYTES_MAX: usize = 8 << 20;
/// The limit of the time without TCP acknowledgement, in election time-outs. After that, a new connection is
/// faster than the kernel's next retransmission.
const UNACKNOWLEDGED: u32 = 4;

/// The direction of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    /// From the peer.
    In,
    /// To the peer.
    Out,
}

/// A connection after its handshake: each side knows and accepts the other.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    /// See [`Handover::number`].
    pub(crate) number: u64,
    pub(crate) node: u64,
    pub(crate) way: Way,
    pub(crate) transport: Transport<net::TcpStream>,
    /// From the peer's hello, as is `client_address`.
    pub(crate) rules_max: u32,
    pub(crate) client_address: String,
    /// Dropped with the link, which wakes the task that opened the connection.
    pub(crate) alive: Option<oneshot::Sender<()>>,
}

/// New links from the front, for the replica's thread.
#[derive(Debug)]
pub(crate) struct Handover {
    arrived: Mutex<Vec<PeerConnection>>,
    last: AtomicU64,
    /// `TCP_USER_TIMEOUT`: a link ends if the peer's system does not acknowledge data for this long.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "the system has no such setting"))]
    unacknowledged: Duration,
}

impl Handover {
    pub(crate) fn new(election_timeout: Duration) -> Self {
        let unacknowledged = election_timeout * UNACKNOWLEDGED;
        Self { arrived: Mutex::default(), last: AtomicU64::new(0), unacknowledged }
    }

    /// A number for a connection, greater than those of all older ones. Must be drawn when the connection is
    /// accepted, or before it is opened: of two connections with a peer in the same direction the one with
    /// the higher number is kept, even if its handshake ends first.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Hands a link over; the replica's thread takes it at its next turn.
    pub(crate) fn give(&self, link: PeerConnection, inbox: &Inbox) {
        #[cfg(target_os = "linux")]
        if let Err(error) =
            SockRef::from(link.transport.socket()).set_tcp_user_timeout(Some(self.unacknowledged))
        {
            tracing::warn!(%error, "a connection with node {} keeps the system's patience: {error}", link.node);
        }
        self.arrived.lock().push(link);
        inbox.ring();
    }

    fn take(&self) -> Vec<PeerConnection> {
        std::mem::take(&mut self.arrived.lock())
    }
}

/// Accepts connections of other nodes, and keeps connections to them, in tasks of the front. If the cluster
/// no longer accepts this node, the refusal is sent to `stop`.
pub(crate) fn talk<D: Disk + Sync>(
    listener: TcpListener,
    directory: Arc<Directory>,
    handover: Arc<Handover>,
    inbox: Arc<Inbox>,
    bulk: Arc<Bulk<D>>,
    offers: mpsc::UnboundedReceiver<Box<SnapshotOffer>>,
    stop: mpsc::UnboundedSender<Refusal>,
) {
    tokio::spawn(bulk.clone().run(offers));
    let dialler = Dialler::new(directory.clone(), handover.clone(), inbox.clone(), stop);
    tokio::spawn(dialler.run());
    tokio::spawn(async move {
        let numbers = handover.clone();
        let take = move |number, stream: PeerStream, hello: Hello| match Transport::of(stream) {
            Ok(transport) if hello.lane() == Lane::Messages => {
                let Hello { node, rules_max, client_address, .. } = hello;
                let link = PeerConnection {
                    number,
                    node,
                    way: Way::In,
                    transport,
                    rules_max,
                    client_address,
                    alive: None,
                };
                handover.give(link, &inbox);
            }
            Ok(transport) if hello.lane() == Lane::Snapshot => bulk.receive(hello.node, transport),
            // Nothing follows the handshake: the connection was opened only to identify this node.
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a peer's connection can't be handed over: {error}"),
        };
        let lanes = &[Lane::Messages, Lane::Snapshot, Lane::Greeting];
        listen(&listener, directory, lanes, || numbers.number(), take).await;
    });
}

/// The links of this node; the replica's thread waits for them here.
pub(crate) struct Peers {
    inbox: Arc<Inbox>,
    /// `None`: this node has no peers.
    links: Option<Links>,
}

impl Peers {
    /// For a node without peers.
    pub(crate) fn none(inbox: Arc<Inbox>) -> Self {
        Self { inbox, links: None }
    }

    /// For a member. From here on [`Inbox::ring`] wakes [`Peers::wait`] only.
    ///
    /// # Errors
    /// The system's error if it can't create the poller.
    pub(crate) fn new(
        directory: Arc<Directory>,
        inbox: Arc<Inbox>,
        handover: Arc<Handover>,
    ) -> io::Result<Self> {
        let links = Links {
            directory,
            poller: Poller::new()?,
            handover,
            incoming: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            lost: Vec::new(),
            missed: BTreeSet::new(),
            has_polled: false,
        };
        inbox.rings(links.poller.bell());
        Ok(Self { inbox, links: Some(links) })
    }

    /// Appends all input from peers to `out`: new links, messages, lost links, and reports of dropped
    /// messages. Reads at most 8 MiB a call; [`Peers::wait`] does not sleep while there is more.
    pub(crate) fn read(&mut self, out: &mut Vec<Event>) {
        if let Some(links) = &mut self.links {
            links.read(out);
        }
    }

    /// Queues messages for `node`, as one frame unless they are huge. The next [`Peers::flush`] sends them.
    /// Dropped messages are reported by [`Event::PeerMissed`]; without a link to the node, only dropped
    /// appends are.
    pub(crate) fn send(&mut self, node: u64, messages: Vec<PeerMessage>) {
        if let Some(links) = &mut self.links {
            links.send(node, messages);
        }
    }

    /// Writes queued messages to the sockets, without blocking.
    pub(crate) fn flush(&mut self) {
        if let Some(links) = &mut self.links {
            links.flush();
        }
    }

    /// To be called when the replica has applied a change of the members, or of the table's rules.
    pub(crate) fn applied(&mut self, members: &Members, rules: u32) {
        if let Some(links) = &mut self.links {
            links.directory.applied(members, rules);
            for node in members.removed.keys() {
                links.drop_incoming(*node);
                links.drop_outgoing(*node);
            }
        }
    }

    /// The nodes with connections in both directions.
    pub(crate) fn connected(&self) -> BTreeSet<u64> {
        let Some(links) = &self.links else { return BTreeSet::new() };
        links.incoming.keys().filter(|node| links.outgoing.contains_key(node)).copied().collect()
    }

    /// Sleeps until something arrives, in the inbox or from a peer, at most for `at_most`; returns at once if
    /// something has arrived.
    pub(crate) fn wait(&mut self, at_most: Option<Duration>) {
        let inbox = &self.inbox;
        match (&mut self.links, at_most) {
            (Some(links), at_most) => links.wait(at_most, || inbox.is_empty()),
            (None, Some(at_most)) if inbox.is_empty() => std::thread::park_timeout(at_most),
            (None, None) if inbox.is_empty() => std::thread::park(),
            (None, _) => {}
        }
    }

    /// Sleeps until something arrives from a peer, at most for `at_most`. A ring of the inbox does not end
    /// the sleep; the inbox's events are read afterwards. Without peers, returns at once.
    pub(crate) fn wait_for_peers(&mut self, at_most: Duration) {
        if let Some(links) = &mut self.links {
            links.wait_for_peers(at_most);
        }
    }
}

struct Links {
    directory: Arc<Directory>,
    poller: Poller,
    handover: Arc<Handover>,
    incoming: BTreeMap<u64, In>,
    outgoing: BTreeMap<u64, Out>,
    /// Peers whose connection broke, not reported yet.
    lost: Vec<u64>,
    /// Peers for which messages were dropped, not reported yet.
    missed: BTreeSet<u64>,
    /// The sockets were polled, and their input was not read since then.
    has_polled: bool,
}

struct In {
    number: u64,
    bytes: Incoming,
    /// The socket may have unread bytes.
    is_ready: bool,
    /// The other side has closed the connection.
    is_ending: bool,
    _alive: Option<oneshot::Sender<()>>,
}

struct Out {
    number: u64,
    bytes: PeerOutbox,
    _alive: Option<oneshot::Sender<()>>,
}

impl Links {
    fn wait(&mut self, at_most: Option<Duration>, is_idle: impl FnOnce() -> bool) {
        if !self.has_news() && self.poller.sleep(at_most, is_idle) {
            self.note_found();
            self.has_polled = true;
        }
    }

    fn wait_for_peers(&mut self, at_most: Duration) {
        if !self.has_news() {
            self.poller.poll(Some(at_most));
            self.note_found();
            self.has_polled = true;
        }
    }

    /// Whether there may be unread bytes, or there are unreported losses.
    fn has_news(&self) -> bool {
        !self.lost.is_empty() || !self.missed.is_empty() || self.incoming.values().any(|link| link.is_ready)
    }

    fn read(&mut self, out: &mut Vec<Event>) {
        if !std::mem::take(&mut self.has_polled) {
            self.poller.poll(Some(Duration::ZERO));
            self.note_found();
        }
        for link in self.handover.take() {
            self.welcome(link, out);
        }
        let mut room = READ_BYTES_MAX;
        let mut ended = Vec::new();
        for (&node, link) in self.incoming.iter_mut().filter(|(_, link)| link.is_ready) {
            let mut messages = Vec::new();
            let outcome = link.bytes.read(&mut room, link.is_ending, &mut messages);
            link.is_ready = matches!(outcome, Ok(ReadOutcome::More));
            if !messages.is_empty() {
                out.push(Event::Peer(messages));
            }
            match outcome {
                Ok(ReadOutcome::Empty | ReadOutcome::More) => {}
                Ok(ReadOutcome::Closed) => ended.push(node),
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        tracing::error!(node, %error, "node {node} is cut off: it sent {error}");
                    }
                    ended.push(node);
                }
            }
        }
        for node in ended {
            self.drop_incoming(node);
        }
        out.extend(self.lost.drain(..).map(Event::PeerDown));
        out.extend(std::mem::take(&mut self.missed).into_iter().map(Event::PeerMissed));
    }

    /// Records the events of the last poll.
    fn note_found(&mut self) {
        let mut broken = Vec::new();
        for (number, event) in self.poller.found() {
            let number = number as u64;
            if let Some(link) = self.incoming.values_mut().find(|link| link.number == number) {
                link.is_ready = true;
                link.is_ending |= event.is_read_closed() || event.is_error();
            } else if event.is_read_closed() || event.is_write_closed() || event.is_error() {
                // The peer sends nothing on this connection after the handshake, so these events mean that
                // the connection has ended.
                broken.extend(
                    self.outgoing.iter().find(|(_, link)| link.number == number).map(|(node, _)| *node),
                );
            }
        }
        for node in broken {
            self.drop_outgoing(node);
        }
    }

    fn welcome(&mut self, link: PeerConnection, out: &mut Vec<Event>) {
        let PeerConnection { number, node, way, transport, rules_max, client_address, alive } = link;
        let present = match way {
            Way::In => self.incoming.get(&node).map(|link| link.number),
            Way::Out => self.outgoing.get(&node).map(|link| link.number),
        };
        // The node may have been removed since its handshake.
        if present.is_some_and(|present| present > number) || self.directory.has_removed(node) {
            return;
        }
        let mut transport = transport.map(TcpStream::from_std);
        if let Err(error) = self.poller.add(transport.socket_mut(), number as usize) {
            tracing::warn!(node, %error, "the connection with node {node} can't be waited for: {error}");
            return;
        }
        match way {
            Way::In => {
                self.drop_incoming(node);
                let bytes = Incoming::new(transport, node, self.directory.node());
                self.incoming
                    .insert(node, In { number, bytes, is_ready: true, is_ending: false, _alive: alive });
            }
            Way::Out => {
                self.drop_outgoing(node);
                self.outgoing.insert(node, Out { number, bytes: PeerOutbox::new(transport), _alive: alive });
            }
        }
        // Earlier losses are reported before the new link.
        out.extend(self.lost.drain(..).map(Event::PeerDown));
        out.push(Event::PeerUp { node, rules_max, client_address });
    }

    fn send(&mut self, node: u64, messages: Vec<PeerMessage>) {
        // Without a link, only the loss of an append must be reported; the consensus tolerates the loss of
        // all other messages.
        let has_entries = messages.iter().any(|message| message.kind() == PeerKind::Append);
        match self.outgoing.get_mut(&node) {
            Some(link) => {
                let kept = link.bytes.put(messages);
                if !kept {
                    tracing::warn!(node, "node {node} does not keep up: what waits for it is dropped");
                    self.missed.insert(node);
                }
            }
            None if has_entries => drop(self.missed.insert(node)),
            None => {}
        }
    }

    fn flush(&mut self) {
        let mut broken = Vec::new();
        for (&node, link) in &mut self.outgoing {
            if let Err(error) = link.bytes.flush() {
                tracing::debug!(node, %error, "the connection to node {node} is broken: {error}");
                broken.push(node);
            }
        }
        for node in broken {
            self.drop_outgoing(node);
        }
    }

    fn drop_incoming(&mut self, node: u64) {
        if let Some(mut link) = self.incoming.remove(&node) {
            self.poller.remove(link.bytes.socket());
            self.lose(node);
        }
    }

    fn drop_outgoing(&mut self, node: u64) {
        if let Some(mut link) = self.outgoing.remove(&node) {
            self.poller.remove(link.bytes.socket());
            self.lose(node);
        }
    }

    fn lose(&mut self, node: u64) {
        if !self.lost.contains(&node) {
            self.lost.push(node);
        }
    }
}
