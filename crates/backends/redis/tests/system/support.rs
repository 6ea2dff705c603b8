//! Shared helpers.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::{Guard, LockName, Locks, LossCause, Unfenced};
pub(crate) use lockkeeper_contract::{until, until_waiting};
use lockkeeper_rig::Redis;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A server that loses no acknowledged writes, as tokens require.
pub(crate) fn durable() -> Redis {
    Redis::with(&["--appendonly", "yes", "--appendfsync", "always"])
}

pub(crate) async fn client(redis: &Redis, label: &str) -> Locks {
    Locks::connect_as(&redis.url(), label).await.unwrap()
}

pub(crate) async fn with_tokens(redis: &Redis, label: &str) -> Locks {
    Locks::connect_as(&format!("{}?fencing=counter", redis.url()), label).await.unwrap()
}

pub(crate) fn address(redis: &Redis) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], redis.port()))
}

pub(crate) fn name(name: &str) -> LockName {
    name.parse().unwrap()
}

/// Waits until a holder detects its loss, and returns the cause.
pub(crate) async fn loss(held: &Guard<Unfenced>) -> LossCause {
    until("the holder knows", async || held.loss()).await
}

/// All keys of the database.
pub(crate) fn keys(redis: &Redis) -> Vec<String> {
    let keys = redis.cli(&["KEYS", "*"]);
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Number of executions of a command since the statistics were reset.
pub(crate) fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}
