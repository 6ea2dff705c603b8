//! A leader that is killed repeatedly under load: clients observe only a delay (P7), and nothing that was
//! acknowledged is lost (P10).

use super::nodes::{ALL, Nodes, others};
use crate::faults::kept::Kept;
use crate::faults::load::Load;
use crate::faults::server::Server;

const KILLS: u64 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_killed_under_load_loses_no_hold_and_no_waiter() {
    let mut nodes = Nodes::founded();
    let (one, two) = (nodes.client("one").await, nodes.client("two").await);
    let kept = Kept::begin(&one, &two, &nodes.client("watcher").await).await;
    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for kill in 0..KILLS {
        // Each kill is at a different point of the load.
        load.goes_on(20 + kill * 7);
        let leader = nodes.leader(&ALL).await;
        nodes.nodes[leader].kill();
        // Two of three nodes are enough.
        load.goes_on(20);
        assert_ne!(nodes.leader(&others(leader)).await, leader);
        kept.is_kept(&format!("after kill {kill}")).await;
        nodes.nodes[leader].start();
        nodes.catches_up(leader).await;
    }
    kept.end().await;
    let done = load.checked().await;
    assert!(done.granted > 40 * KILLS, "{} granted", done.granted);
}

/// P10: all nodes are killed at once, repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_killed_as_a_whole_keeps_every_hold_and_waiter() {
    let mut nodes = Nodes::founded();
    let (one, two) = (nodes.client("one").await, nodes.client("two").await);
    let kept = Kept::begin(&one, &two, &nodes.client("watcher").await).await;
    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for kill in 0..3 {
        load.goes_on(30);
        nodes.nodes.iter_mut().for_each(Server::kill);
        nodes.nodes.iter_mut().for_each(Server::begin);
        nodes.nodes.iter_mut().for_each(Server::serves);
        load.goes_on(30);
        kept.is_kept(&format!("after kill {kill}")).await;
    }
    kept.end().await;
    load.checked().await;
}
