//! Nodes that are added and removed under load, by the operator's commands.

use std::fs;

use lockkeeper_cli::exit;

use super::data::is_refused;
use super::nodes::{ALL, Nodes, lockkeeper, others};
use crate::faults::load::Load;
use crate::faults::server::{LONG, Server, answer, within};

/// Asserts that the node has ended because it was removed.
#[track_caller]
fn is_out(server: &mut Server, node: usize) {
    let status = server.ended();
    let log = server.log();
    assert_eq!(status.code(), Some(i32::from(exit::CONFIG)), "{log}");
    let line = log.lines().rfind(|line| line.starts_with("lockkeeper: ")).unwrap_or_default();
    assert!(line.contains(&format!("node {} was removed from the cluster", node + 1)), "{log}");
}

/// The procedure of docs/operating.md for a node that has lost its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_node_is_replaced_under_load() {
    let mut nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let held = locks.mutex("held").ttl(LONG).acquire().await.unwrap();
    let load = Load::start(vec![locks.clone(), nodes.client("two").await], 2, 5);
    load.goes_on(20);
    // The first node can be the lost one, since `Nodes::add` lets the new node join through the second node.
    let lost = 0;
    nodes.nodes[lost].kill();
    fs::remove_dir_all(&nodes.nodes[lost].data).unwrap();
    nodes.nodes[lost].begin();
    is_refused(&mut nodes.nodes[lost], lost);
    load.goes_on(20);

    let id = (lost + 1).to_string();
    lockkeeper(&["cluster", "remove", &id, "--locks", &nodes.url()]);
    nodes.add();
    load.goes_on(20);
    // The cluster has three nodes again, so it tolerates the loss of another one.
    let leader = nodes.leader(&[1, 2, 3]).await;
    nodes.nodes[leader].kill();
    load.goes_on(20);
    nodes.nodes[leader].start();
    within("the hold is confirmed", held.verify()).await.unwrap();
    within("the hold is given back", held.release()).await.unwrap();
    load.checked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_node_ends_and_cannot_rejoin() {
    let mut nodes = Nodes::founded();
    let load = Load::start(vec![nodes.client("one").await], 2, 5);
    load.goes_on(20);
    // Removes the leader, which transfers the leadership first.
    let removed = nodes.leader(&ALL).await;
    let id = (removed + 1).to_string();
    lockkeeper(&["cluster", "remove", &id, "--locks", &nodes.url()]);
    is_out(&mut nodes.nodes[removed], removed);
    load.goes_on(20);
    nodes.nodes[removed].begin();
    is_out(&mut nodes.nodes[removed], removed);
    load.goes_on(20);
    let left = nodes.leader(&others(removed)).await;
    let said = lockkeeper(&["cluster", "status", "--json", "--locks", &nodes.nodes[left].url()]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let listed = said["nodes"].as_array().map_or(0, Vec::len);
    assert_eq!((listed, said["leader"].as_u64()), (2, Some(left as u64 + 1)), "{said}");
    load.checked().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfer_under_load_makes_the_named_node_leader() {
    let nodes = Nodes::founded();
    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    for _ in 0..4 {
        load.goes_on(20);
        let next = others(nodes.leader(&ALL).await)[0];
        let id = (next + 1).to_string();
        lockkeeper(&["cluster", "transfer", "--to", &id, "--locks", &nodes.url()]);
        answer("it leads", async || {
            let status = nodes.status(next).await?;
            (status.role == lockkeeper::NodeRole::Leader).then_some(())
        })
        .await;
    }
    load.goes_on(20);
    load.checked().await;
}
