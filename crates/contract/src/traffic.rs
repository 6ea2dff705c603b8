//! The traffic of waiters at rest, counted from one keep-alive of their session to the next.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::{Faults, Traffic};

use crate::subject::until;

const WAITERS: u64 = 8;

/// Several waiters of one session, which sends one renewal for all. In one round of keep-alives, each of them
/// may take so many bytes in both directions; the client may send two pieces for each.
pub async fn waiters_rest(scheme: &str, port: u16, bytes_max: u64) {
    let server = SocketAddr::from(([127, 0, 0, 1], port));
    let faults = Faults::default();
    let proxy = faults.proxy("waits", server);
    let holds = Locks::connect_as(&format!("{scheme}://{server}"), "holds").await.unwrap();
    let waits = Locks::connect_as(&format!("{scheme}://{proxy}"), "waits").await.unwrap();
    let lock = |locks: &Locks, name: &str| locks.mutex(name).ttl(Duration::from_secs(6));
    let own = lock(&waits, "own").acquire().await.unwrap();
    let mut held = Vec::new();
    for number in 0..WAITERS {
        let name = format!("lock{number}");
        held.push(lock(&holds, &name).acquire().await.unwrap());
        let waiting = lock(&waits, &name);
        tokio::spawn(async move { waiting.acquire().await.map(drop) });
        until("it waits", async || (holds.inspect(&name).await.unwrap().waiter_count == 1).then_some(()))
            .await;
    }
    let round = async || {
        let before = own.valid_until().unwrap();
        until("a keep-alive", async || (own.valid_until().unwrap() > before).then_some(())).await;
        let traffic = faults.traffic("waits");
        let sum = |of: fn(&Traffic) -> u64| traffic.iter().map(of).sum::<u64>();
        (sum(|traffic| traffic.calls), sum(|traffic| traffic.bytes))
    };
    let (before, after) = (round().await, round().await);
    let (calls, bytes) = (after.0 - before.0, after.1 - before.1);
    assert!(calls <= 2 * WAITERS && bytes <= bytes_max * WAITERS, "{calls} calls, {bytes} bytes");
}
