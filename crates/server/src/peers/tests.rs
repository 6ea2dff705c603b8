//! Links over real sockets: delivery of messages, reports of losses, and links that are closed for invalid
//! input.

use std::io::{Read, Write};
use std::net::{self, Ipv4Addr, TcpListener};
use std::time::Instant;

use lockkeeper_replica::Members;
use lockkeeper_rig::Authority;
use lockkeeper_wire::peer::PeerFrame;
use lockkeeper_wire::store::{Entry, Founding};
use lockkeeper_wire::{PEER_FRAME_MESSAGES_MAX, decode_peer_frame};
use prost::Message;
use tokio_rustls::TlsStream;

use super::*;
use crate::data::Addresses;
use crate::tls::{NodeName, NodeTls, PeerStream, TlsFiles};

/// Far longer than any test here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Fixture {
    peers: Peers,
    handover: Arc<Handover>,
    inbox: Arc<Inbox>,
}

impl Fixture {
    /// The peers of node 1.
    fn new() -> Self {
        let (inbox, handover) =
            (Arc::new(Inbox::default()), Arc::new(Handover::new(crate::ELECTION_TIMEOUT)));
        let addresses = Addresses { client: "client:1", peer: "peer:1" };
        let founding = Founding { node: 1, ..Founding::default() };
        let directory =
            Directory::new(founding, addresses, Members::default(), 1, crate::ELECTION_TIMEOUT, None);
        let peers = Peers::new(directory, inbox.clone(), handover.clone()).expect("a poller");
        Self { peers, handover, inbox }
    }

    /// Adds a link with node 2; returns node 2's end of it.
    fn link(&self, way: Way) -> net::TcpStream {
        self.numbered(way, self.handover.number())
    }

    fn numbered(&self, way: Way, number: u64) -> net::TcpStream {
        let (ours, theirs) = sockets();
        self.give(way, number, Transport::plain(ours));
        theirs
    }

    fn link_over_tls(&self, way: Way) -> Transport<net::TcpStream> {
        let (ours, theirs) = tls_pair();
        self.give(way, self.handover.number(), ours);
        theirs.socket().set_nonblocking(false).expect("a socket");
        theirs
    }

    fn give(&self, way: Way, number: u64, transport: Transport<net::TcpStream>) {
        transport.socket().set_nonblocking(true).expect("a socket");
        let client_address = "client:2".to_owned();
        self.handover.give(
            PeerConnection { number, node: 2, way, transport, rules_max: 7, client_address, alive: None },
            &self.inbox,
        );
    }

    /// The next events, as the replica's thread receives them.
    fn events(&mut self) -> Vec<Event> {
        let deadline = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while events.is_empty() {
            assert!(Instant::now() < deadline, "nothing has arrived");
            self.peers.flush();
            self.peers.read(&mut events);
            if events.is_empty() {
                self.peers.wait(Some(Duration::from_secs(1)));
            }
        }
        events
    }

    fn is_up(&mut self) {
        assert!(matches!(&self.events()[..], [Event::PeerUp { node: 2, rules_max: 7, .. }]));
    }
}

/// Both ends of a connection.
fn sockets() -> (net::TcpStream, net::TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let theirs = net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (ours, _) = listener.accept().expect("it has connected");
    (ours, theirs)
}

/// Both ends of a connection between the nodes 1 and 2, after their TLS handshake.
fn tls_pair() -> (Transport<net::TcpStream>, Transport<net::TcpStream>) {
    let authority = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    let tls = |node: u64| {
        let issued = authority.issue(&[], &[&NodeName { cluster: "c".to_owned(), node: Some(node) }.uri()]);
        let [certificate, key] = issued.write(folder.path(), &node.to_string());
        let ca = authority.write(folder.path(), "ca");
        NodeTls::load(&TlsFiles { certificate, key, ca }).expect("usable files")
    };
    let (first, second) = (tls(1), tls(2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let [ours, theirs] = <[net::TcpStream; 2]>::from(sockets()).map(|socket| {
            socket.set_nonblocking(true).expect("a socket");
            tokio::net::TcpStream::from_std(socket).expect("a socket")
        });
        let (ours, theirs) = tokio::join!(first.connect_peer(ours), second.accept_peer(theirs));
        let ours = TlsStream::Client(ours.expect("the handshake"));
        let theirs = TlsStream::Server(theirs.expect("the handshake"));
        let [ours, theirs] = [ours, theirs].map(|stream| Transport::of(PeerStream::Right(Box::new(stream))));
        (ours.expect("a socket"), theirs.expect("a socket"))
    })
}

fn message(index: u64, bytes: usize) -> PeerMessage {
    let entry = Entry { index: index + 1, term: 3, kind: 1, data: vec![7; bytes].into() };
    PeerMessage {
        kind: PeerKind::Append.into(),
        from: 2,
        to: 1,
        term: 3,
        index,
        entries: vec![entry],
        ..PeerMessage::default()
    }
}

fn frame(messages: Vec<PeerMessage>) -> Vec<u8> {
    let frame = PeerFrame { messages }.encode_to_vec();
    [(frame.len() as u32).to_le_bytes().to_vec(), frame].concat()
}

/// Node 2 writes in portions that do not match the frames. The frames arrive complete and in order, and then
/// the end of the connection.
fn frames_arrive(mut node: Fixture, mut theirs: impl Write + Send + 'static) {
    node.is_up();
    let sent: Vec<PeerMessage> = (0..40).map(|index| message(index, 1 << (index % 19))).collect();
    let bytes: Vec<u8> = sent.chunks(3).flat_map(|messages| frame(messages.to_vec())).collect();
    let writer = std::thread::spawn(move || {
        for part in bytes.chunks(7_919) {
            theirs.write_all(part).and_then(|()| theirs.flush()).expect("it is read");
        }
        theirs
    });
    let mut read = Vec::new();
    while read.len() < sent.len() {
        for event in node.events() {
            let Event::Peer(messages) = event else { panic!("{event:?}") };
            read.extend(messages);
        }
    }
    assert!(read == sent);
    drop(writer.join().expect("it has written"));
    assert!(matches!(&node.events()[..], [Event::PeerDown(2)]), "its end is told");
}

#[test]
fn frames_arrive_complete_and_in_order_for_any_segmentation() {
    let node = Fixture::new();
    let theirs = node.link(Way::In);
    frames_arrive(node, theirs);
}

/// One frame is many TLS records, and one record many frames.
#[test]
fn frames_arrive_over_tls_for_any_segmentation() {
    let node = Fixture::new();
    let theirs = node.link_over_tls(Way::In);
    frames_arrive(node, theirs);
}

#[test]
fn last_message_arrives_before_the_link_is_reported_down() {
    let mut node = Fixture::new();
    let mut theirs = node.link(Way::In);
    node.is_up();
    theirs.write_all(&frame(vec![message(1, 10)])).expect("it is read");
    drop(theirs);
    let mut events = node.events();
    if events.len() == 1 {
        events.extend(node.events());
    }
    assert!(
        matches!(&events[..], [Event::Peer(messages), Event::PeerDown(2)] if messages.len() == 1),
        "{events:?}"
    );
}

#[test]
fn invalid_frame_ends_the_link_and_earlier_messages_remain_valid() {
    let wrong: [fn(&mut PeerMessage); 6] = [
        |message| message.term = 0,
        |message| message.from = 3,
        |message| message.to = 3,
        |message| message.kind = 99,
        |message| message.context = vec![0; 33],
        |message| message.entries[0].index += 1,
    ];
    let mut bad: Vec<Vec<u8>> = wrong
        .iter()
        .map(|change| {
            let mut message = message(5, 10);
            change(&mut message);
            frame(vec![message])
        })
        .collect();
    bad.push(u32::MAX.to_le_bytes().to_vec());
    bad.push([&3_u32.to_le_bytes()[..], &[0xFF; 3]].concat());
    // Two bytes for each message.
    bad.push(frame(vec![PeerMessage::default(); PEER_FRAME_MESSAGES_MAX + 1]));
    for bytes in bad {
        let mut node = Fixture::new();
        let mut theirs = node.link(Way::In);
        node.is_up();
        theirs.write_all(&[frame(vec![message(1, 10)]), bytes].concat()).expect("it is read");
        let mut events = node.events();
        if events.len() == 1 {
            events.extend(node.events());
        }
        assert!(
            matches!(&events[..], [Event::Peer(messages), Event::PeerDown(2)] if messages.len() == 1),
            "{events:?}"
        );
        let mut rest = Vec::new();
        // Reading may fail with a reset, since the node closes the link with unread input.
        let _ = theirs.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
}

#[test]
fn younger_of_two_links_wins_in_either_order() {
    let mut node = Fixture::new();
    let mut younger = node.numbered(Way::In, 8);
    let older = node.numbered(Way::In, 7);
    node.is_up();
    younger.write_all(&frame(vec![message(1, 10)])).expect("it is read");
    assert!(matches!(&node.events()[..], [Event::Peer(_)]));
    drop(older);
    let mut youngest = node.numbered(Way::In, 9);
    assert!(matches!(&node.events()[..], [Event::PeerDown(2), Event::PeerUp { .. }]));
    youngest.write_all(&frame(vec![message(2, 10)])).expect("it is read");
    assert!(matches!(&node.events()[..], [Event::Peer(_)]));
}

#[test]
fn peer_that_does_not_read_is_reported_missed_and_continues_with_complete_frames() {
    let mut node = Fixture::new();
    let mut theirs = node.link(Way::Out);
    node.is_up();
    let mut sent = 0;
    let lost = loop {
        node.peers.send(2, vec![message(sent, 1 << 20)]);
        node.peers.flush();
        sent += 1;
        let mut events = Vec::new();
        node.peers.read(&mut events);
        if !events.is_empty() {
            break events;
        }
        assert!(sent < 1_000, "a gigabyte fits into no socket");
    };
    assert!(matches!(&lost[..], [Event::PeerMissed(2)]), "{lost:?}: the connection lives");
    node.peers.send(2, vec![message(5_000, 10)]);
    let reader = std::thread::spawn(move || {
        let mut last = 0;
        while last != 5_000 {
            let mut length = [0; 4];
            theirs.read_exact(&mut length).expect("it goes on");
            let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
            theirs.read_exact(&mut bytes).expect("whole frames");
            for message in PeerFrame::decode(&bytes[..]).expect("a frame").messages {
                assert!(message.index >= last, "in their order");
                last = message.index;
            }
        }
    });
    let deadline = Instant::now() + PATIENCE;
    while !reader.is_finished() {
        assert!(Instant::now() < deadline, "it does not go on");
        node.peers.flush();
        node.peers.wait(Some(Duration::from_millis(10)));
    }
    reader.join().expect("all was in order");
}

#[test]
fn entries_for_an_unlinked_node_are_reported_missed() {
    let mut node = Fixture::new();
    let heartbeat = PeerMessage { kind: PeerKind::Heartbeat.into(), ..message(1, 1) };
    node.peers.send(2, vec![heartbeat]);
    let mut events = Vec::new();
    node.peers.read(&mut events);
    assert!(events.is_empty(), "{events:?}");
    node.peers.send(2, vec![message(1, 1)]);
    assert!(matches!(&node.events()[..], [Event::PeerMissed(2)]));
}

#[test]
fn ring_wakes_the_wait_also_just_before_it_sleeps() {
    let mut node = Fixture::new();
    for before in [true, false] {
        let inbox = node.inbox.clone();
        if before {
            inbox.ring();
        }
        let ringer = std::thread::spawn(move || {
            if !before {
                inbox.ring();
            }
        });
        // Without the ring, `wait` would sleep forever.
        node.peers.wait(None);
        ringer.join().expect("it has rung");
    }
}

/// Sends `messages` to node 2, which reads all of them; none may be reported missed.
fn send_all(mut node: Fixture, mut theirs: impl Read + Send + 'static, messages: Vec<PeerMessage>) {
    node.is_up();
    let count = messages.len();
    node.peers.send(2, messages);
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < count {
            let mut length = [0; 4];
            theirs.read_exact(&mut length).expect("it goes on");
            let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
            theirs.read_exact(&mut bytes).expect("whole frames");
            seen += decode_peer_frame(&bytes).expect("a frame").messages.len();
        }
    });
    let deadline = Instant::now() + PATIENCE;
    while !reader.is_finished() {
        assert!(Instant::now() < deadline, "it does not go on");
        node.peers.flush();
        node.peers.wait(Some(Duration::from_millis(10)));
        let mut events = Vec::new();
        node.peers.read(&mut events);
        assert!(!events.iter().any(|event| matches!(event, Event::PeerMissed(_))), "{events:?}");
    }
    reader.join().expect("all of it came");
}

fn messages_in_flight() -> Vec<PeerMessage> {
    (1..=32).map(|index| message(index, 1 << 20)).collect()
}

#[test]
fn queue_has_room_for_all_entries_in_flight_to_a_lagging_follower() {
    let node = Fixture::new();
    let theirs = node.link(Way::Out);
    send_all(node, theirs, messages_in_flight());
}

/// Bytes that the socket does not accept wait in the TLS layer too, and must be sent when the socket has room
/// again.
#[test]
fn queue_has_room_over_tls_as_well() {
    let node = Fixture::new();
    let theirs = node.link_over_tls(Way::Out);
    send_all(node, theirs, messages_in_flight());
}

#[test]
fn very_many_messages_are_split_into_frames_that_are_accepted() {
    let node = Fixture::new();
    let theirs = node.link(Way::Out);
    send_all(node, theirs, vec![message(1, 0); 2 * PEER_FRAME_MESSAGES_MAX + 1]);
}
