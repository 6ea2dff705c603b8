//! `zookeeper:` on real servers: its queue, its nodes, other clients' nodes beside them, and ensembles that
//! lose members.

mod access;
mod contract;
mod ensemble;
mod foreign;
mod queue;

use std::time::{Duration, Instant};

use lockkeeper::Locks;
use lockkeeper_contract::{until, until_waiting};
use lockkeeper_rig::ZooKeeper;
use zookeeper_client::Client;

async fn client(server: &ZooKeeper, query: &str) -> Locks {
    Locks::connect_as(&format!("{}{query}", server.url()), "ours").await.unwrap()
}

/// A client of ZooKeeper itself.
async fn raw(server: &ZooKeeper) -> Client {
    Client::connect(&format!("127.0.0.1:{}", server.port())).await.unwrap()
}

/// As [`until`], with this deadline.
async fn until_within<T>(limit: Duration, what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
