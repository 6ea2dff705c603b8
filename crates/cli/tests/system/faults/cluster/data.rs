//! Deleted data: the loss is detected and reported, and the node is not treated as a new one (P1, P2, P10).

use std::fs;

use lockkeeper_cli::exit;

use super::nodes::{ALL, Nodes, lockkeeper, others};
use crate::faults::directory::has_stopped;
use crate::faults::load::Load;
use crate::faults::server::{LONG, Server, answer, until, within};

/// Asserts that the node was refused by the others and has printed the remedy.
#[track_caller]
pub(crate) fn is_refused(server: &mut Server, node: usize) {
    let status = server.ended();
    let log = server.log();
    assert_eq!(status.code(), Some(i32::from(exit::CONFIG)), "{log}");
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    let gone = format!("node {}'s data are gone: start it with `--rejoin`", node + 1);
    assert!(line.contains(&gone) && line.contains("under a new id"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_deleted_data_is_refused_with_the_remedy() {
    let mut nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let held = locks.mutex("a").ttl(LONG).acquire().await.unwrap();
    let wiped = nodes.leader(&ALL).await;
    let server = &mut nodes.nodes[wiped];
    fs::remove_dir_all(&server.data).unwrap();
    has_stopped(server, &["was deleted, moved or replaced"]);
    server.begin();
    is_refused(server, wiped);
    nodes.leader(&others(wiped)).await;
    within("the hold is confirmed", held.verify()).await.unwrap();
    let next = within("a new acquire works", locks.mutex("b").ttl(LONG).acquire()).await.unwrap();
    assert!(next.token() > held.token());
}

/// The nodes are started with the original bootstrap list: two empty nodes of three would be a majority of a
/// second cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_emptied_nodes_do_not_bootstrap_a_second_cluster() {
    let mut nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let held = locks.mutex("a").ttl(LONG).acquire().await.unwrap();
    let whole = nodes.leader(&ALL).await;
    let cluster = nodes.status(whole).await.unwrap().cluster;
    for wiped in others(whole) {
        nodes.nodes[wiped].kill();
        fs::remove_dir_all(&nodes.nodes[wiped].data).unwrap();
    }
    others(whole).into_iter().for_each(|wiped| nodes.nodes[wiped].begin());
    others(whole).into_iter().for_each(|wiped| is_refused(&mut nodes.nodes[wiped], wiped));
    // One node of the old cluster is left. It is no majority, and reports that it does not lead.
    let status = answer("it leads no more", async || {
        nodes.status(whole).await.filter(|status| status.role != lockkeeper::NodeRole::Leader)
    })
    .await;
    assert_eq!(status.cluster, cluster);
    let log = || nodes.nodes[whole].log();
    until("it says whom it misses", || {
        let log = log();
        log.contains("no leader known for ") && log.contains("; connected to: none; not connected to: node ")
    });
    assert!(log().contains(&format!("node {} leads no more, term ", whole + 1)), "{}", log());
    assert_eq!(held.loss(), None);
    let free = locks.mutex("b").ttl(LONG).wait(lockkeeper::Wait::For(std::time::Duration::from_millis(300)));
    assert!(free.acquire().await.is_err(), "one of three grants nothing");
}

/// P2: a backup is taken under load through a follower, and restored twice. Each restore creates a new
/// cluster, whose tokens are above all earlier ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restores_of_a_cluster_backup_issue_higher_tokens() {
    let nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let load = Load::start(vec![locks.clone()], 2, 5);
    load.goes_on(50);
    let leader = nodes.leader(&ALL).await;
    let file = nodes.nodes[leader].beside("backup");
    let path = file.to_str().unwrap();
    lockkeeper(&["backup", path, "--locks", &nodes.nodes[others(leader)[0]].url()]);
    load.goes_on(50);
    load.checked().await;
    let last = nodes.client("last").await.mutex("load/0").ttl(LONG).acquire().await.unwrap();
    let before = nodes.status(leader).await.unwrap();
    let (mut highest, mut clusters) = (last.token(), vec![before.cluster]);
    for _ in 0..2 {
        let mut restored = Server::new("--segment-bytes 1048576");
        lockkeeper(&["restore", path, "--data", restored.data.to_str().unwrap()]);
        restored.start();
        let locks = restored.client("restored").await;
        let lock = locks.mutex("load/0").ttl(LONG);
        let held = within("the lock is free: old sessions are gone", lock.acquire()).await.unwrap();
        assert!(held.token() > highest, "{} after {highest}", held.token());
        highest = held.token();
        let cluster = locks.status().await.unwrap().cluster;
        assert!(!clusters.contains(&cluster), "a new cluster each time");
        clusters.push(cluster);
    }
}
