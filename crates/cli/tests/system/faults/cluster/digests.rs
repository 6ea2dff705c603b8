//! Nodes compare digests of their tables at snapshots: all nodes must snapshot after the same entries, and a
//! node with a diverging table is detected.

use std::fs;
use std::path::Path;

use lockkeeper_cli::exit;
use lockkeeper_core::snapshot::{LimitState, Snapshot};
use lockkeeper_replica::disk::memory::MemoryDisk;
use lockkeeper_replica::storage::{self, Opened};
use lockkeeper_wire::store::SnapshotTail;

use super::nodes::{ALL, Nodes, OPTIONS, lockkeeper, others};
use crate::faults::load::Load;
use crate::faults::server::{LONG, Server, answer, within};

/// A cluster that takes a snapshot after some hundred grants.
fn founded() -> Nodes {
    Nodes::founded_with(&format!("{OPTIONS} --snapshot-after 65536"), |_, _| {})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_take_snapshots_after_the_same_entries() {
    let mut nodes = founded();
    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    let mut last = 0;
    for round in 0..3 {
        last = answer("all have a newer snapshot of the same entry", async || {
            let mut stored = Vec::new();
            for node in ALL {
                stored.push(nodes.status(node).await?.snapshot);
            }
            (stored[0] > last && stored == [stored[0]; ALL.len()]).then_some(stored[0])
        })
        .await;
        if round == 0 {
            // From now on, another leader decides after which entries snapshots are taken.
            let leader = nodes.leader(&ALL).await;
            nodes.nodes[leader].kill();
            load.goes_on(20);
            nodes.leader(&others(leader)).await;
            nodes.nodes[leader].start();
        }
    }
    load.checked().await;
    for node in ALL {
        let log = nodes.nodes[node].log();
        assert!(!log.contains("is another than this node's"), "{log}");
    }
}

/// Replaces the table in a node's snapshot by one that the log does not produce, with correct checksums: as
/// if the node's memory had been corrupted before the snapshot was written.
fn tamper(data: &Path) {
    let disk = MemoryDisk::new();
    for entry in fs::read_dir(data).unwrap() {
        let entry = entry.unwrap();
        disk.set_bytes(&entry.file_name().to_string_lossy(), fs::read(entry.path()).unwrap());
    }
    let Opened::Existing(existing) = storage::open(&disk, storage::LogOptions::default()).unwrap() else {
        panic!("it has no data")
    };
    let mut reader = existing.snapshot.expect("it has a snapshot");
    let head = reader.head().clone();
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        bytes.extend(piece);
    }
    let mut table = Snapshot::decode(&bytes).unwrap();
    table.limits.push(LimitState { name: "stored/by/nobody".parse().unwrap(), limit: 7, stored: true });
    let bytes = table.encode();
    let mut writer = existing.snapshots.begin(&head).unwrap();
    let pieces = bytes.chunks(storage::PIECE_BYTES_MAX).map(|piece| writer.piece(piece).unwrap()).count();
    let digest = table.digest().to_le_bytes().to_vec();
    let tail = SnapshotTail { pieces: pieces as u64, bytes: bytes.len() as u64, digest };
    writer.finish(&tail).unwrap().run(&disk).unwrap();
    let name = format!("snapshot-{:020}", head.index);
    fs::write(data.join(&name), disk.bytes(&name).unwrap()).unwrap();
}

/// Asserts that the node has ended, with all these words in its error message.
#[track_caller]
fn has_said(server: &mut Server, words: &[&str]) {
    let status = server.ended();
    let log = server.log();
    assert_eq!(status.code(), Some(i32::from(exit::CONFIG)), "{status}: {log}");
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    assert!(words.iter().all(|word| line.contains(word)), "no {words:?} in {log}");
}

/// Restarts the node `wrong` with a diverging table; afterwards `leader` leads.
async fn give_another_table(nodes: &mut Nodes, wrong: usize, leader: usize) {
    let load = Load::start(vec![nodes.client("one").await], 2, 5);
    answer("it has a snapshot", async || nodes.status(wrong).await.filter(|status| status.snapshot > 0))
        .await;
    load.checked().await;
    nodes.nodes[wrong].kill();
    tamper(&nodes.nodes[wrong].data);
    nodes.nodes[wrong].start();
    nodes.catches_up(wrong).await;
    if nodes.leader(&ALL).await != leader {
        lockkeeper(&["cluster", "transfer", "--to", &(leader + 1).to_string(), "--locks", &nodes.url()]);
    }
}

/// One node of three has a diverging table, as a follower or as the leader. It is detected, stops, and is
/// replaced.
async fn is_found(leads: bool) {
    let mut nodes = founded();
    let held = nodes.client("holder").await.mutex("held").ttl(LONG).acquire().await.unwrap();
    // Index 2: `Nodes::add` lets the new node join through the node with index 1, which must run.
    let wrong = 2;
    give_another_table(&mut nodes, wrong, if leads { wrong } else { others(wrong)[0] }).await;

    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    let removes = "`lockkeeper cluster remove 3`";
    has_said(&mut nodes.nodes[wrong], &["node 3 stops: after entry", "is right", removes]);
    load.goes_on(50);
    nodes.nodes[wrong].begin();
    has_said(&mut nodes.nodes[wrong], &["must not be used again", removes, "wrong-table"]);

    lockkeeper(&["cluster", "remove", "3", "--locks", &nodes.url()]);
    nodes.add();
    load.goes_on(50);
    assert_eq!(held.loss(), None);
    within("the hold is confirmed", held.verify()).await.unwrap();
    load.checked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_with_a_diverging_table_stops_and_is_replaced() {
    is_found(false).await;
}

/// The tables of the other two agree with each other and differ from the leader's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_with_a_diverging_table_stops_and_is_replaced() {
    is_found(true).await;
}

/// With two nodes it is undecidable which table is right, so both serve and report the difference. The third
/// node decides once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diverging_node_stops_only_once_a_third_node_is_up() {
    let mut nodes = founded();
    let wrong = 2;
    let [leader, third] = others(wrong);
    give_another_table(&mut nodes, wrong, leader).await;
    nodes.nodes[third].kill();

    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    let found = "of node 3 is another than this node's: after entry";
    answer("it is found", async || nodes.nodes[leader].log().contains(found).then_some(())).await;
    load.goes_on(50);
    assert!(nodes.status(wrong).await.is_some(), "it goes on");
    nodes.nodes[third].start();
    has_said(&mut nodes.nodes[wrong], &["node 3 stops: after entry", "is right"]);
    load.goes_on(50);
    load.checked().await;
}
