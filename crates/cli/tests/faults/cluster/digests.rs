//! Nodes compare their tables where they take snapshots: so all must take them after the same entries.

use super::nodes::{ALL, Nodes, OPTIONS, others};
use crate::load::Load;
use crate::server::answer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_all_nodes_take_their_snapshots_after_the_same_entries() {
    let mut nodes = Nodes::founded_with(&format!("{OPTIONS} --snapshot-after 65536"), |_, _| {});
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
            // Whoever leads names them.
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
