//! The systems, each driven by its ecosystem's own client with the recipe that is usual there.
//!
//! Responsible for one small interface, [`Peer`], so that every system goes through the same workloads. Whatever a
//! recipe leaves open is decided in the peer's favour.

mod etcd;
mod ours;
mod redis;
mod sessions;
mod zookeeper;

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

pub(crate) use etcd::Etcd;
pub(crate) use ours::{CLUSTER as CLUSTER_OF_OURS, Ours, SERVICE as SERVICE_OF_OURS};
pub(crate) use redis::Redis;
pub(crate) use zookeeper::Zookeeper;

use tokio::task::JoinSet;

use crate::Outcome;
use crate::bench::server::Server;

/// How many connections all clients of a run share.
pub(crate) const CONNECTIONS: usize = 4;
/// The ttl of all measurements but two. Longer than any of them, so that renewals, which differ in how often they come,
/// don't fall into one.
pub(crate) const TTL: Duration = Duration::from_secs(120);
/// The ttl of the sessions of `keepalive`, each renewed every third of it.
pub(crate) const KEEPALIVE_TTL: Duration = Duration::from_secs(10);
/// How many sessions `keepalive` has.
pub(crate) const KEEPALIVE_SESSIONS: usize = 10_000;

/// What a run of a workload is about to do.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// `127.0.0.1:PORT` of each node, with commas between; for ours a URL.
    pub(crate) at: &'a str,
    /// How many clients there will be: each one thing that can hold and wait on its own.
    pub(crate) clients: usize,
    /// Whether locks will be waited for. A recipe in which the holder has to wake the next one may leave it out else.
    pub(crate) contended: bool,
    /// How long a hold outlives its holder's last sign of life.
    pub(crate) ttl: Duration,
}

/// A connected system.
pub(crate) trait Peer: Sized + Send + Sync + 'static {
    /// What a client has while it holds a lock.
    type Held: Send + 'static;

    /// Connects, with [`CONNECTIONS`] connections at most.
    fn connect(setup: Setup<'_>) -> impl Future<Output = Outcome<Self>> + Send;

    /// Takes the lock `name` for client number `client`, however long it has to wait.
    fn acquire(&self, client: usize, name: &str) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Gives it back; returns when the system has said that it is free.
    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome> + Send;

    /// Ends the sessions, and everything that they still hold.
    fn close(self) -> impl Future<Output = Outcome> + Send;
}

/// Watches the CPU of `server` for `duration`, while tasks that run already keep sessions alive. Parts of one core.
async fn watch_cpu(server: &Server, duration: Duration) -> Outcome<f64> {
    // The first renewals come within a third of the ttl; the start is none of ours.
    tokio::time::sleep(KEEPALIVE_TTL / 3).await;
    let before = server.cpu_seconds()?;
    let began = std::time::Instant::now();
    tokio::time::sleep(duration).await;
    Ok((server.cpu_seconds()? - before) / began.elapsed().as_secs_f64())
}

/// When session `number` of `sessions` is renewed first, and then every third of the ttl: evenly spread, as sessions
/// that were opened at different times are.
fn renewals(number: usize, sessions: usize) -> tokio::time::Interval {
    let every = KEEPALIVE_TTL / 3;
    let offset = every.mul_f64(number as f64 / sessions as f64);
    tokio::time::interval_at(tokio::time::Instant::now() + offset, every)
}

/// Does `make` for each number below `count`, some at a time: one after the other, each waits for a sync of its own;
/// all at once, and a server refuses some.
async fn many<T: Send + 'static, F>(count: usize, make: impl Fn(usize) -> F) -> Outcome<Vec<T>>
where
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    const AT_ONCE: usize = 256;
    let mut running = JoinSet::new();
    let mut made = Vec::with_capacity(count);
    for number in 0..count {
        if running.len() == AT_ONCE {
            made.extend(
                running.join_next().await.transpose().map_err(|error| error.to_string())?.transpose()?,
            );
        }
        running.spawn(make(number));
    }
    while let Some(ended) = running.join_next().await {
        made.push(ended.map_err(|error| error.to_string())??);
    }
    Ok(made)
}

/// The text of an error of `system`: what it was about to do, and why that failed.
fn failed<E: Display>(system: &'static str, what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{system} cannot {what}: {error}")
}
