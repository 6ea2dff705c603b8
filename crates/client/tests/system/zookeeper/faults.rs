//! Servers that swallow packets, passwords that change, and the traffic of waiters.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::{Faults, ZooKeeper};
use zookeeper_client::{Acls, AuthUser, Client, CreateMode};

use crate::zookeeper::{until, until_waiting};

fn through(faults: &Faults, label: &str, server: &ZooKeeper) -> SocketAddr {
    faults.proxy(label, SocketAddr::from(([127, 0, 0, 1], server.port())))
}

/// All servers but one swallow packets. The client library tries them in any order, each for a part of the session timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_swallow_packets_cost_no_session() {
    let server = ZooKeeper::start();
    let faults = Faults::default();
    faults.silence("swallows");
    let mut hosts = vec![through(&faults, "answers", &server).to_string()];
    hosts.extend((0..2).map(|_| through(&faults, "swallows", &server).to_string()));
    hosts.reverse();
    let url = format!("zookeeper://{}", hosts.join(","));
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("x").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let swallowed = || faults.traffic("swallows").len();
    let before = swallowed();
    // The session outlives its connection, whichever server is tried next.
    until("another server is tried before", async || {
        faults.close_connections("answers");
        until("it is confirmed", async || held.verify().await.ok()).await;
        (swallowed() > before).then_some(())
    })
    .await;
    assert_eq!(held.loss(), None);
    held.release().await.unwrap();
}
