//! Hostile peers: strangers, impostors that know a member's identity, and nodes whose disks lost acknowledged
//! entries.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_cli::exit;
use lockkeeper_wire::peer::hello_answer::What;
use lockkeeper_wire::peer::{
    Hello, HelloAnswer, Lane, PeerFrame, PeerMessage, Refusal, RefusalCode, SnapshotOffer, TableDigest,
};
use lockkeeper_wire::store::{Configuration, Entry, Founding, Member, Members, SnapshotHead};
use prost::Message;

use super::nodes::{ALL, Nodes, others};
use crate::faults::server::{LONG, Server, answer, until, within};

/// The version of the peer protocol.
const PROTOCOL: u32 = 1;

#[track_caller]
fn has_lost_entries(server: &mut Server, node: usize) {
    let status = server.ended();
    let log = server.log();
    assert_eq!(status.code(), Some(i32::from(exit::IO)), "{status}: {log}");
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    let remove = format!("`lockkeeper cluster remove {}`, then add it", node + 1);
    for words in ["the log in the data directory", "acknowledged are gone", &remove, "under a new id"] {
        assert!(line.contains(words), "no {words:?} in {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_an_older_copy_of_its_data_refuses_every_start() {
    let mut nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let mut held = vec![within("it is granted", locks.mutex("a/0").ttl(LONG).acquire()).await.unwrap()];
    let leader = nodes.leader(&ALL).await;
    let node = others(leader)[0];
    nodes.catches_up(node).await;
    let (data, copy) = (nodes.nodes[node].data.clone(), nodes.nodes[node].beside("copy"));
    nodes.nodes[node].kill();
    copied(&data, &copy);
    nodes.nodes[node].start();
    for number in 1..20 {
        let lock = locks.mutex(format!("a/{number}")).ttl(LONG);
        held.push(within("it is granted", lock.acquire()).await.unwrap());
    }
    nodes.catches_up(node).await;
    nodes.nodes[node].kill();
    fs::remove_dir_all(&data).unwrap();
    copied(&copy, &data);
    nodes.nodes[node].begin();
    has_lost_entries(&mut nodes.nodes[node], node);
    nodes.nodes[node].begin();
    has_lost_entries(&mut nodes.nodes[node], node);
    for guard in &held {
        within("the hold is confirmed", guard.verify()).await.unwrap();
    }
    let _next = within("a new acquire works", locks.mutex("b").ttl(LONG).acquire()).await.unwrap();
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A cluster's identity, as an impostor may have learned it: the cluster's id, and each member's incarnation
/// and address.
struct LearnedIdentity {
    cluster: Vec<u8>,
    members: Vec<Member>,
}

impl LearnedIdentity {
    fn of(nodes: &Nodes) -> Self {
        let mut cluster = Vec::new();
        let mut members = Vec::new();
        for (node, peer_address) in (1..).zip(&nodes.peers) {
            // Cluster id and incarnation are in the header of every file.
            let header = fs::read(nodes.nodes[node as usize - 1].data.join("founding")).unwrap();
            cluster = header[16..32].to_vec();
            let (incarnation, peer_address) = (header[32..48].to_vec(), peer_address.clone());
            members.push(Member { node, incarnation, peer_address, client_address: String::new() });
        }
        Self { cluster, members }
    }

    /// The hello that node `from` would send to node `to`; both are indices, from 0.
    fn hello(&self, from: usize, to: usize, lane: Lane) -> Hello {
        let member = &self.members[from];
        let founding = Founding {
            cluster: self.cluster.clone(),
            node: member.node,
            incarnation: member.incarnation.clone(),
            members: self.members.clone(),
            tokens_above: 1,
            rules: 1,
        };
        let configuration = Configuration { voters: vec![1, 2, 3], ..Configuration::default() };
        Hello {
            protocol: PROTOCOL,
            cluster: self.cluster.clone(),
            node: member.node,
            incarnation: member.incarnation.clone(),
            to: self.members[to].node,
            members: Some(Members {
                at: 0,
                nodes: self.members.clone(),
                configuration: Some(configuration),
                removed: Vec::new(),
            }),
            founding: Some(founding),
            rules_max: u32::MAX,
            lane: lane.into(),
            ..Hello::default()
        }
    }

    /// Whether a text contains an id that would let an outsider pose as a member.
    fn is_told(&self, text: &str) -> bool {
        let ids = self.members.iter().map(|member| &member.incarnation).chain([&self.cluster]);
        ids.map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            .any(|id| text.contains(&id))
    }
}

fn write(socket: &mut TcpStream, message: &impl Message) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    socket.write_all(&[(bytes.len() as u32).to_le_bytes().to_vec(), bytes].concat())
}

fn read<M: Message + Default>(socket: &mut TcpStream) -> io::Result<M> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut bytes)?;
    M::decode(&*bytes).map_err(io::Error::other)
}

fn greeted(address: &str, hello: &Hello) -> (TcpStream, What) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write(&mut socket, hello).unwrap();
    let answer: HelloAnswer = read(&mut socket).unwrap();
    (socket, answer.what.unwrap())
}

#[track_caller]
fn refused(address: &str, hello: &Hello) -> (TcpStream, Refusal) {
    match greeted(address, hello) {
        (socket, What::Refused(refusal)) => (socket, refusal),
        (_, What::Welcome(welcome)) => panic!("{hello:?} is let in, and told {welcome:?}"),
    }
}

/// Random numbers and peer messages, from a seed (SplitMix64).
struct HostileMessages(u64);

impl HostileMessages {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A small number, one near a power of two, one near the maximum, or any number.
    fn number(&mut self) -> u64 {
        match self.next() % 4 {
            0 => self.next() % 40,
            1 => (1_u64 << (self.next() % 64)).wrapping_sub(self.next() % 2),
            2 => u64::MAX - self.next() % 3,
            _ => self.next(),
        }
    }

    fn message(&mut self, from: u64, to: u64) -> PeerMessage {
        let index = self.number();
        let entry =
            Entry { index: index.wrapping_add(1), term: self.number(), kind: 1, data: Vec::new().into() };
        PeerMessage {
            kind: 1 + (self.next() % 9) as i32,
            from,
            to,
            term: self.number().max(1),
            log_term: self.number(),
            index,
            entries: vec![entry; (self.next() % 2) as usize],
            commit: self.number(),
            commit_term: self.number(),
            reject: self.next().is_multiple_of(2),
            reject_hint: self.number(),
            context: vec![1; (self.next() % 33) as usize],
            request_snapshot: self.number(),
            snapshot_at: self.number(),
            digest: Some(TableDigest { index: self.number(), high: 1, low: 2, format: self.number() }),
            disk_full: self.next().is_multiple_of(2),
        }
    }

    fn offer(&mut self, from: u64, to: u64, members: &Members) -> SnapshotOffer {
        let head = SnapshotHead {
            index: self.number(),
            term: self.number(),
            rules: 1,
            members: Some(members.clone()),
        };
        SnapshotOffer { from, to, term: self.number(), head: Some(head), bytes: self.number() }
    }
}

/// Asserts that the cluster grants a lock, and that all nodes answer and have logged no error.
async fn serve_all_the_same(nodes: &Nodes, name: &str) {
    let locks = nodes.client(name).await;
    let _held = within("it is granted", locks.mutex(name).ttl(LONG).acquire()).await.unwrap();
    for node in ALL {
        answer("each node answers", async || nodes.status(node).await).await;
        let log = nodes.nodes[node].log();
        assert!(!log.contains("panicked") && !log.contains("lockkeeper: "), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stranger_is_refused_for_every_claim_and_learns_no_ids() {
    let nodes = Nodes::founded();
    let known = LearnedIdentity::of(&nodes);
    let mut rng = HostileMessages(1);
    for (target, address) in nodes.peers.iter().enumerate() {
        let from = others(target)[0];
        for lane in [Lane::Unspecified, Lane::Messages, Lane::Snapshot, Lane::Greeting] {
            let sound = known.hello(from, target, lane);
            let mut claims = vec![
                Hello { incarnation: vec![9; 16], ..sound.clone() },
                Hello { cluster: vec![9; 16], ..sound.clone() },
                Hello { node: 4, incarnation: vec![9; 16], ..sound.clone() },
                Hello { node: 4, incarnation: vec![9; 16], cluster: Vec::new(), ..sound.clone() },
                Hello { protocol: u32::MAX, ..sound.clone() },
                Hello { to: rng.number().max(4), ..sound.clone() },
                Hello { node: 0, ..sound.clone() },
                Hello { node: target as u64 + 1, ..sound.clone() },
            ];
            // An outsider that has learned the cluster's id claims to be a member that was added later.
            let stranger = Member { node: 4, incarnation: vec![9; 16], ..Member::default() };
            for at in [1, 1 << 40, u64::MAX] {
                let nodes = vec![stranger.clone()];
                let members = Members { at, nodes, ..Members::default() };
                let hello = Hello { node: 4, incarnation: vec![9; 16], ..sound.clone() };
                claims.push(Hello { members: Some(members), ..hello });
            }
            for claim in claims {
                let (_, refusal) = refused(address, &claim);
                assert!(!known.is_told(&refusal.text), "{}", refusal.text);
            }
        }
    }
    serve_all_the_same(&nodes, "after strangers").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_an_impostor_have_no_effect() {
    let nodes = Nodes::founded();
    let known = LearnedIdentity::of(&nodes);
    let mut rng = HostileMessages(2);
    for round in 0..40 {
        for (target, address) in nodes.peers.iter().enumerate() {
            let from = others(target)[round % 2];
            let (me, to) = (from as u64 + 1, target as u64 + 1);
            let mut hello = known.hello(from, target, Lane::Messages);
            hello.ticket = vec![round as u8; 16];
            hello.presented = vec![vec![0; 16], Vec::new(), rng.next().to_le_bytes().repeat(2)];
            hello.election_timeout_ms = rng.number();
            let (mut socket, refusal) = refused(address, &hello);
            assert_eq!(refusal.code(), RefusalCode::Later);
            // The impostor sends its messages in spite of the refusal; the writes fail once the node has
            // closed the connection.
            let frames = (0..20).map(|_| PeerFrame { messages: vec![rng.message(me, to)] });
            let _ = frames.into_iter().try_for_each(|frame| write(&mut socket, &frame));

            hello.set_lane(Lane::Snapshot);
            let (mut socket, _) = refused(address, &hello);
            let _ = write(&mut socket, &rng.offer(me, to, &hello.members.clone().unwrap()));
        }
    }
    serve_all_the_same(&nodes, "after impostors").await;
}

/// The impostor announces another address for the member whose identity it has learned. To nodes that connect
/// there, the impostor answers that they were removed, or have lost their data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_by_a_single_peer_stops_no_node() {
    let mut nodes = Nodes::founded();
    let known = LearnedIdentity::of(&nodes);
    let (gone, target) = (0, 1);
    nodes.nodes[gone].kill();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (refusals, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let impostor = std::thread::spawn({
        let (refusals, is_over) = (refusals.clone(), is_over.clone());
        move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let mut socket = socket;
                let Ok(hello) = read::<Hello>(&mut socket) else { continue };
                let codes = [RefusalCode::Removed, RefusalCode::Wiped];
                let code = codes[refusals.load(Ordering::Relaxed) % 2];
                let text = "you have no place".to_owned();
                let refusal = Refusal { code: code.into(), text, node: hello.node };
                let _ = write(&mut socket, &HelloAnswer { what: Some(What::Refused(refusal)) });
                refusals.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let mut hello = known.hello(gone, target, Lane::Greeting);
    hello.members.as_mut().unwrap().nodes[gone].peer_address.clone_from(&address);
    let (_, answered) = greeted(&nodes.peers[target], &hello);
    assert!(matches!(answered, What::Welcome(_)), "it knows everything: {answered:?}");
    until("it was refused again and again", || refusals.load(Ordering::Relaxed) >= 5);
    nodes.nodes[gone].start();
    serve_all_the_same(&nodes, "after refusals").await;
    is_over.store(true, Ordering::Relaxed);
    drop(TcpStream::connect(address));
    impostor.join().unwrap();
}
