//! Snapshots between two nodes, over real sockets: if one side stalls, the other gives up, and a later
//! snapshot arrives.

use std::net::{Ipv4Addr, TcpListener};

use lockkeeper_core::Table;
use lockkeeper_replica::Members;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, LogOptions};
use lockkeeper_wire::store::{Founding, Member};

use super::handshake::Greeter;
use super::*;
use crate::data::Addresses;

/// Far longer than any test here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// The time limits of the side that must give up.
const SHORT: Patience = Patience {
    stalled: Duration::from_millis(200),
    settles: Duration::from_millis(200),
    pause: Duration::ZERO,
};

/// One node.
struct End {
    disk: MemoryDisk,
    bulk: Arc<Bulk<MemoryDisk>>,
    done: mpsc::Receiver<DiskTaskResult<MemoryDisk>>,
}

impl End {
    /// One end of a cluster of nodes 1 and 2. `address` is node 2's.
    fn new(node: u64, address: &str, patience: Patience) -> Self {
        let member = |node: u64| Member {
            node,
            incarnation: vec![node as u8; 16],
            peer_address: address.to_owned(),
            client_address: format!("client:{node}"),
        };
        let founding = Founding {
            cluster: vec![1; 16],
            node,
            incarnation: vec![node as u8; 16],
            members: vec![member(1), member(2)],
            tokens_above: 1,
            rules: 1,
        };
        let disk = MemoryDisk::new();
        let options = LogOptions { segment_bytes: 4096 };
        let Existing { snapshots, .. } =
            storage::found(&disk, options, &founding).expect("an empty disk can be founded");
        let members = Members::founded(&founding);
        let addresses = Addresses { client: "client:1", peer: address };
        let directory = Directory::new(founding, addresses, members, 1, crate::ELECTION_TIMEOUT, None);
        let (told, done) = mpsc::channel();
        let bulk = Bulk {
            directory,
            snapshots,
            inbox: Arc::default(),
            done: told,
            is_receiving: AtomicBool::new(false),
            patience,
        };
        Self { disk, bulk: Arc::new(bulk), done }
    }

    /// Replaces the time limits by those of production.
    fn patient(self) -> Self {
        let Self { disk, bulk, done } = self;
        let mut bulk = Arc::into_inner(bulk).expect("nobody works with it");
        bulk.patience = PATIENCE;
        Self { disk, bulk: Arc::new(bulk), done }
    }

    /// Stores a snapshot, and returns an offer of it to node 2.
    fn offers(&self, index: u64, pieces: &[Vec<u8>], digest: u128) -> Box<SnapshotOffer> {
        let head = SnapshotHead { index, term: 1, rules: 1, members: None };
        let mut writer = self.bulk.snapshots.begin(&head).expect("a sound disk");
        pieces.iter().for_each(|piece| writer.piece(piece).expect("a sound disk"));
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        let tail = SnapshotTail { pieces: pieces.len() as u64, bytes, digest: digest.to_le_bytes().to_vec() };
        writer.finish(&tail).expect("a sound disk").run(&self.disk).expect("a sound disk");
        Box::new(SnapshotOffer { to: 2, from: 1, term: 1, head: Some(head), bytes })
    }

    /// Like [`End::offers`], for a snapshot of a table.
    fn offers_table(&self, index: u64) -> Box<SnapshotOffer> {
        let table = Table::new(7).snapshot();
        self.offers(index, &[table.encode()], table.digest())
    }

    /// The reports to the replica on snapshots that were sent.
    fn reports(&self) -> Vec<(u64, bool)> {
        let mut events = Vec::new();
        self.bulk.inbox.take(&mut events, usize::MAX);
        let reports = events.into_iter().map(|event| match event {
            Event::SnapshotSent { to, arrived } => (to, arrived),
            event => panic!("{event:?}"),
        });
        reports.collect()
    }

    /// Acts as the replica that installs the next received snapshot; returns its index.
    async fn takes(&self) -> u64 {
        let deadline = Instant::now() + LONG;
        let done = loop {
            match self.done.try_recv() {
                Ok(done) => break done,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
            assert!(Instant::now() < deadline, "none has arrived");
        };
        let DiskTaskResult::Received(received, arrived) = done else { panic!("something else was done") };
        assert_eq!(received.table.snapshot().digest(), Table::new(7).snapshot().digest());
        arrived.sealed.publish().expect("a sound disk").run(&self.disk).expect("a sound disk");
        arrived.settled.send(()).expect("it waits for that");
        arrived.head.index
    }

    /// The number of files with temporary names.
    fn unnamed(&self) -> usize {
        let names = self.disk.list().expect("a sound disk");
        names.iter().filter(|name| name.starts_with("incoming-")).count()
    }
}

#[tokio::test]
async fn stalled_receiver_is_reported_and_a_later_attempt_succeeds() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (sender, receiver) = (End::new(1, &address, SHORT), End::new(2, &address, PATIENCE));
    let connected = async || {
        let (socket, _) = listener.accept().await.expect("somebody connects");
        let answered = handshake::answer(socket, &*receiver.bulk.directory, &[Lane::Snapshot]).await;
        answered.expect("it is let in").0
    };
    // Stands for a connection of the receiver to the sender's address: it gives the sender the receiver's
    // ticket.
    let hello = receiver.bulk.directory.first_hello(1, Lane::Snapshot).expect("random numbers");
    let refusal = sender.bulk.directory.admit_guest(&hello).expect_err("it was not reached itself");
    assert!(refusal.text.contains("once it was reached at its own address"), "{}", refusal.text);
    // 64 pieces are more than the kernel buffers for a receiver that does not read. One piece fits, so that
    // only the final answer is missing.
    for (index, count) in [(5, 64), (6, 1)] {
        let offer = sender.offers(index, &vec![vec![7; PIECE_BYTES_MAX]; count], 0);
        let ((), silent) = tokio::join!(sender.bulk.clone().send(offer), connected());
        assert_eq!(sender.reports(), [(2, false)], "{count} pieces");
        drop(silent);
    }

    let sender = sender.patient();
    let offer = sender.offers_table(7);
    let taken = async {
        let socket = Transport::of(connected().await).expect("a socket");
        receiver.bulk.receive(1, socket);
        receiver.takes().await
    };
    let ((), taken) = tokio::join!(sender.bulk.clone().send(offer), taken);
    assert_eq!((taken, sender.reports(), receiver.unnamed()), (7, vec![(2, true)], 0));
}

#[tokio::test]
async fn partial_snapshot_of_a_stalled_sender_is_removed_and_a_later_one_arrives() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    // Long enough also for the sender that does not stall.
    let patience = Patience { stalled: Duration::from_millis(1500), settles: LONG, ..SHORT };
    let (sender, receiver) = (End::new(1, &address, PATIENCE), End::new(2, &address, patience));
    let connected = || {
        let theirs = TcpStream::connect(&address).expect("it listens");
        theirs.set_read_timeout(Some(LONG)).expect("a socket");
        receiver.bulk.receive(1, Transport::plain(listener.accept().expect("it has connected").0));
        Transport::plain(theirs)
    };
    let table = Table::new(7).snapshot().encode();
    let half = &table[..table.len() / 2];

    let begun = receiver.disk.count(Operation::Create);
    let mut stalling = connected();
    write(&mut stalling, &*sender.offers_table(5)).expect("it reads");
    write(&mut stalling, &SnapshotPart { what: Some(What::Piece(half.to_vec())) }).expect("it reads");
    let mut said = Vec::new();
    stalling.read_to_end(&mut said).expect("it closes the connection");
    assert_eq!(said, [0; 0], "it has no answer to a half");
    assert_eq!(receiver.disk.count(Operation::Create), begun + 1, "it had a file of it");
    assert_eq!(receiver.unnamed(), 0, "and has none any more");
    assert!(receiver.done.try_recv().is_err(), "its replica hears nothing of it");

    let socket = connected();
    let offer = *sender.offers_table(6);
    let snapshots = sender.bulk.snapshots.clone();
    let sending = std::thread::spawn(move || transmit(socket, &snapshots, offer, PATIENCE));
    assert_eq!(receiver.takes().await, 6);
    let sent = sending.join().expect("it does not panic");
    assert!(sent.is_ok(), "{sent:?}");
}
