//! `etcd:` on real servers: its queue, other clients' keys beside ours, clusters that lose members, and
//! access.

mod access;
mod beside;
mod cluster;
mod contract;
mod queue;

use std::time::{Duration, Instant};

use lockkeeper::Locks;
use lockkeeper_rig::Etcd;

async fn client(etcd: &Etcd, query: &str) -> Locks {
    Locks::connect_as(&format!("{}{query}", etcd.url()), "ours").await.unwrap()
}

/// Waits for a condition; the deadline only makes a failure visible.
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    until("the waiters", async || (locks.inspect(name).await.unwrap().waiter_count == count).then_some(()))
        .await;
}
