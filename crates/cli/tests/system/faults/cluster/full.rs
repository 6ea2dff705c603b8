//! A full disk under one node of three: the others continue, and the node recovers once there is free space.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

use lockkeeper::{NodeDisk, NodeRole, ServiceStatus};
use lockkeeper_cli::exit;

use super::nodes::{ALL, Nodes, lockkeeper, others};
use crate::faults::directory::has_stopped;
use crate::faults::disks::SmallDisk;
use crate::faults::load::Load;
use crate::faults::server::{LONG, answer, within};

/// The node with the small disk.
const SMALL: usize = 0;

/// Fills the filesystem of this path.
fn fill(path: &Path) {
    let mut rest = File::create(path).unwrap();
    for size in [1 << 16, 512] {
        let full = loop {
            if let Err(error) = rest.write_all(&vec![7; size]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_stops_only_its_own_node() {
    let mut disk = None;
    let mut nodes = Nodes::founded_with("--segment-bytes 131072", |node, server| {
        if node == SMALL {
            disk = Some(SmallDisk::mounted(&server.beside("disk"), "2m"));
            server.data = server.beside("disk").join("data");
        }
    });
    let rest = nodes.nodes[SMALL].beside("disk").join("rest");
    let held = nodes.client("holder").await.mutex("held").ttl(LONG).acquire().await.unwrap();
    let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
    for leads in [false, true] {
        let to = if leads { SMALL } else { others(SMALL)[0] };
        if nodes.leader(&ALL).await != to {
            lockkeeper(&["cluster", "transfer", "--to", &(to + 1).to_string(), "--locks", &nodes.url()]);
        }
        answer("it leads", async || nodes.status(to).await.filter(is_leader)).await;
        load.goes_on(20);
        fill(&rest);
        // The load uses up the log space that is still preallocated. Then the node needs more space, and
        // stops.
        has_stopped(
            &mut nodes.nodes[SMALL],
            &[
                "the disk under",
                "disk/data",
                "is full",
                "nothing that was acknowledged is lost",
                "free space",
            ],
        );
        assert_ne!(nodes.leader(&others(SMALL)).await, SMALL);
        load.goes_on(100);
        assert_eq!(held.loss(), None, "it led: {leads}");
        within("the hold is confirmed", held.verify()).await.unwrap();

        fs::remove_file(&rest).unwrap();
        nodes.nodes[SMALL].start();
        nodes.catches_up(SMALL).await;
    }
    load.goes_on(20);
    within("it is given back", held.release()).await.unwrap();
    load.checked().await;
    drop((nodes, disk));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_with_a_full_disk_gives_the_leadership_away_and_does_not_get_it_back() {
    let mut disk = None;
    let nodes = Nodes::founded_with("--segment-bytes 131072", |node, server| {
        if node == SMALL {
            disk = Some(SmallDisk::mounted(&server.beside("disk"), "2m"));
            server.data = server.beside("disk").join("data");
        }
    });
    if nodes.leader(&ALL).await != SMALL {
        lockkeeper(&["cluster", "transfer", "--to", "1", "--locks", &nodes.url()]);
    }
    let status = async || answer("node 1 answers", async || nodes.status(SMALL).await).await;
    answer("it leads", async || nodes.status(SMALL).await.filter(is_leader)).await;

    fill(&nodes.nodes[SMALL].beside("disk").join("rest"));
    let lock = nodes.client("one").await.mutex("used").ttl(LONG);
    // Uses up the segment and the spare one, until there is no room for another.
    for _ in 0..10_000 {
        within("it is granted", lock.acquire()).await.unwrap().release().await.unwrap();
        if status().await.disk_state == Some(NodeDisk::Full) {
            break;
        }
    }
    assert_ne!(nodes.leader(&others(SMALL)).await, SMALL);
    let now = answer("node 1 follows", async || nodes.status(SMALL).await.filter(|it| !is_leader(it))).await;
    assert_eq!(now.disk_state, Some(NodeDisk::Full));
    let log = nodes.nodes[SMALL].log();
    assert!(
        log.contains("has no room for the next part of the log") && log.contains("leads no more"),
        "{log}"
    );

    // Heartbeat responses carry the state of the disk.
    answer("a transfer to it is refused", async || {
        let refused = nodes.client("operator").await.transfer_leadership(Some(1)).await.err();
        refused.filter(|error| error.to_string().contains("the disk of node 1 is full"))
    })
    .await;
    let ended = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["cluster", "status", "--locks", &nodes.url()])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(i32::from(exit::UNHEALTHY)), "{out}");
    assert!(out.contains("is full (") && out.contains("free space there"), "{out}");
    drop((nodes, disk));
}

fn is_leader(status: &ServiceStatus) -> bool {
    status.role == NodeRole::Leader
}
