//! A member of a cluster that sends garbage to the others, on connections that it has opened as what it is.
//!
//! Its node is a real one. What a broken machine, or somebody who has taken it over, would do to its bytes is
//! done by a relay before each node's peer port: it passes on the handshake, then writes garbage instead of
//! the member's frames.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lockkeeper_rig::Port;
use lockkeeper_wire::peer::{Hello, HelloAnswer, Lane, PeerFrame, PeerKind, PeerMessage, SnapshotOffer};
use lockkeeper_wire::store::{Entry, SnapshotHead};
use lockkeeper_wire::v1;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::attacked_node::AttackedNode;
use super::witness::Witness;
use super::{AttackCount, report, resident, seconds};
use crate::harness::{DEADLINE, Server, start_cluster};

/// A length, then as many bytes: what nodes send each other.
fn record(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes].concat()
}

/// Bytes that look random: the upper ones of products with a large odd number.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    (0..16_u64 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
});

/// What is written on a connection of this lane, from node `from` to node `to`. Each number gives other
/// bytes.
fn garbage(number: u64, lane: Lane, from: u64, to: u64) -> Vec<u8> {
    let noise = |bytes: usize| NOISE[number as usize % (8 << 20)..][..bytes].to_vec();
    if lane == Lane::Snapshot {
        let head = SnapshotHead { index: u64::MAX >> 1, term: 1, rules: 1, members: None };
        let bytes = if number.is_multiple_of(2) { u64::MAX } else { 1 };
        let offer = SnapshotOffer { to, from, term: 1, head: Some(head), bytes };
        return [record(&offer.encode_to_vec()), noise(1 << 16), u32::MAX.to_le_bytes().to_vec()].concat();
    }
    // Of a term that is over, so that none of it can be true. What a member says in the present term the
    // others must believe: a lie about it is not defended against.
    let message = |kind: PeerKind, index: u64| PeerMessage {
        kind: kind.into(),
        from,
        to,
        term: 1,
        log_term: 1,
        index,
        commit: u64::MAX,
        commit_term: 1,
        entries: vec![Entry { index: index.wrapping_add(1), term: 1, kind: 99, data: noise(100).into() }],
        reject_hint: u64::MAX,
        request_snapshot: u64::MAX,
        snapshot_at: u64::MAX,
        ..PeerMessage::default()
    };
    let kinds = (1..=9).map(|kind| PeerKind::try_from(kind).unwrap());
    match number % 8 {
        0 => noise(1 << 16),
        1 => u32::MAX.to_le_bytes().to_vec(),
        2 => record(&noise(1 << 20)),
        // Messages of two bytes, as many as fit into a frame.
        3 => record(&[0x0a, 0].repeat((16 << 20) / 2)),
        // A frame without an end.
        4 => [(16_u32 << 20).to_le_bytes().to_vec(), noise(8 << 20)].concat(),
        5 => kinds.map(|kind| PeerFrame { messages: vec![message(kind, u64::MAX)] }.encode_to_vec()).fold(
            Vec::new(),
            |mut all, frame| {
                all.extend(record(&frame));
                all
            },
        ),
        _ => {
            let messages = kinds.map(|kind| message(kind, number)).collect();
            record(&PeerFrame { messages }.encode_to_vec())
        }
    }
}

/// The relay before one node's peer port.
struct Relay {
    /// The node behind it, and where it listens.
    node: u64,
    behind: u16,
    /// The node whose frames are replaced; 0: nobody's.
    culprit: Arc<AtomicU64>,
    sent: AttackCount,
}

async fn read_record(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

impl Relay {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (opener, _) = listener.accept().await.unwrap();
            let relay = self.clone();
            tokio::spawn(async move {
                // Fails whenever one of the nodes ends the connection.
                let _ = relay.connection(opener).await;
            });
        }
    }

    async fn connection(&self, mut opener: TcpStream) -> std::io::Result<()> {
        let mut node = TcpStream::connect(("127.0.0.1", self.behind)).await?;
        let mut hello = Hello::decode(&read_record(&mut opener).await?[..])?;
        let from = hello.node;
        let is_garbage = || from != 0 && from == self.culprit.load(Ordering::Relaxed);
        let number = self.sent.get();
        let is_spoilt = is_garbage();
        if is_spoilt && number % 8 == 7 && hello.lane() == Lane::Messages {
            hello.set_lane(Lane::Snapshot);
        }
        node.write_all(&record(&hello.encode_to_vec())).await?;
        let answer = read_record(&mut node).await?;
        opener.write_all(&record(&answer)).await?;
        let is_welcome = matches!(
            HelloAnswer::decode(&answer[..])?.what,
            Some(lockkeeper_wire::peer::hello_answer::What::Welcome(_))
        );
        if is_spoilt && is_welcome && hello.lane() != Lane::Greeting {
            self.sent.add(1);
            node.write_all(&garbage(number, hello.lane(), from, self.node)).await?;
            // Until the node has had enough, or finds nothing wrong.
            let _ = tokio::time::timeout(Duration::from_millis(100), node.read(&mut [0])).await;
            return Ok(());
        }
        let (mut buffer, mut answers) = (vec![0; 1 << 16], vec![0; 1 << 10]);
        loop {
            tokio::select! {
                read = opener.read(&mut buffer) => match read? {
                    // A connection that was open when the attack began: the member comes back.
                    count if count > 0 && !is_garbage() => node.write_all(&buffer[..count]).await?,
                    _ => return Ok(()),
                },
                read = node.read(&mut answers) => match read? {
                    0 => return Ok(()),
                    count => opener.write_all(&answers[..count]).await?,
                },
            }
        }
    }
}

/// Three nodes behind relays, and which of them leads.
async fn cluster(culprit: &Arc<AtomicU64>, sent: &AttackCount) -> (BTreeMap<u64, Server>, u64) {
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let mut addresses = BTreeMap::new();
    for (node, port) in &ports {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.insert(*node, listener.local_addr().unwrap().to_string());
        let (culprit, sent) = (culprit.clone(), sent.clone());
        let relay = Relay { node: *node, behind: port.number(), culprit, sent };
        tokio::spawn(Arc::new(relay).run(listener));
    }
    let nodes = start_cluster(ports, &addresses).await;
    // So that the first term is over.
    let first = leader_of(&nodes, 3).await;
    let transferred = nodes[&first].calls().await.transfer(v1::TransferRequest::default()).await.unwrap();
    assert_ne!(transferred.into_inner().leader, first);
    let leader = leader_of(&nodes, 3).await;
    (nodes, leader)
}

/// The leader, once so many nodes know it.
async fn leader_of(nodes: &BTreeMap<u64, Server>, agree: usize) -> u64 {
    let until = Instant::now() + DEADLINE;
    loop {
        let mut named = BTreeMap::new();
        for server in nodes.values() {
            let status = server.calls().await.status(v1::StatusRequest { node: 0 }).await;
            let leader = status.map_or(0, |status| status.into_inner().leader);
            *named.entry(leader).or_insert(0) += 1;
        }
        if let Some((leader, _)) = named.iter().find(|(leader, count)| **leader != 0 && **count >= agree) {
            return *leader;
        }
        assert!(Instant::now() < until, "the nodes agree on no leader: {named:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The others go on with their leader, and the member is one of them again once its bytes are its own.
#[tokio::test]
async fn member_that_sends_garbage() {
    let (culprit, sent) = (Arc::new(AtomicU64::new(0)), AttackCount::default());
    let (nodes, leader) = cluster(&culprit, &sent).await;
    let target = AttackedNode::of(&nodes[&leader], None);
    let mut witness = Witness::start(&target).await;
    witness.progress(100).await;
    let before = resident();
    culprit.store(nodes.keys().copied().find(|node| *node != leader).unwrap(), Ordering::Relaxed);
    let (end, until, mut peak) = (Instant::now() + seconds(), Instant::now() + DEADLINE, 0);
    witness.forget_slowest();
    // Long enough for each kind of garbage.
    while Instant::now() < end || sent.get() < 21 {
        assert!(Instant::now() < until, "{} connections with garbage only", sent.get());
        witness.progress(1).await;
        peak = resident().max(peak);
    }
    let during = witness.progress(20).await;
    culprit.store(0, Ordering::Relaxed);
    witness.progress(100).await;
    witness.end().await;
    assert_eq!(leader_of(&nodes, 3).await, leader, "the member follows again");
    let connections = format!("{} connections", sent.get());
    report("a member's garbage", connections, during, peak.saturating_sub(before));
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}
