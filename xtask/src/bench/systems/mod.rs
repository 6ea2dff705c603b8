//! The systems under test, each driven by the usual client of its ecosystem with the usual recipe.
//!
//! Responsible for one small interface, [`Peer`], so that every system runs the same workloads. Choices that
//! a recipe leaves open are made in the other system's favour.

mod etcd;
mod ours;
mod redis;
mod sessions;
mod zookeeper;

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

pub(crate) use etcd::Etcd;
pub(crate) use ours::{CLUSTER as CLUSTER_OF_OURS, Ours, SERVICE as SERVICE_OF_OURS};
pub(crate) use redis::RedisSystem;
pub(crate) use zookeeper::Zookeeper;

use tokio::task::JoinSet;

use crate::TaskResult;
use crate::bench::server::ServerProcesses;

/// Number of connections that all clients of a run share.
pub(crate) const CONNECTIONS: usize = 4;
/// The ttl of all measurements except `keepalive` and `failover`. It is longer than any measurement, so that
/// none includes a renewal: systems renew at different intervals.
pub(crate) const TTL: Duration = Duration::from_secs(120);
/// The ttl of the sessions of `keepalive`; each is renewed every third of it.
pub(crate) const KEEPALIVE_TTL: Duration = Duration::from_secs(10);
/// Number of sessions of `keepalive`.
pub(crate) const KEEPALIVE_SESSIONS: usize = 10_000;

/// The parameters of a workload's run.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// `127.0.0.1:PORT` of each node, separated by commas; for ours a URL.
    pub(crate) at: &'a str,
    /// The number of clients. Each can hold a lock or wait for one independently of the others.
    pub(crate) clients: usize,
    /// Whether clients will wait for locks. If not, a recipe may omit waking the next waiter.
    pub(crate) contended: bool,
    /// How long a hold outlives its holder's last renewal.
    pub(crate) ttl: Duration,
}

/// A connected system.
pub(crate) trait Peer: Sized + Send + Sync + 'static {
    /// A client's state while it holds a lock.
    type Held: Send + 'static;

    /// Connects with at most [`CONNECTIONS`] connections.
    fn connect(setup: Setup<'_>) -> impl Future<Output = TaskResult<Self>> + Send;

    /// Acquires the lock `name` for client number `client`; waits without limit.
    fn acquire(&self, client: usize, name: &str) -> impl Future<Output = TaskResult<Self::Held>> + Send;

    /// Releases the lock; returns when the system has acknowledged it.
    fn release(&self, held: Self::Held) -> impl Future<Output = TaskResult> + Send;

    /// Acquires and releases the lock `name` again and again until then, by the recipe for a lock that nobody
    /// else takes. Returns how long each pair took, in nanoseconds.
    fn pairs_alone(
        &self,
        client: usize,
        name: &str,
        until: Instant,
    ) -> impl Future<Output = TaskResult<Vec<u64>>> + Send {
        async move {
            let mut took = Vec::new();
            loop {
                let asked = Instant::now();
                if asked >= until {
                    return Ok(took);
                }
                self.release(self.acquire(client, name).await?).await?;
                took.push(asked.elapsed().as_nanos() as u64);
            }
        }
    }

    /// Ends all sessions and everything that they hold.
    fn close(self) -> impl Future<Output = TaskResult> + Send;
}

/// The CPU use of `server` during `duration`, as a share of one core, while tasks of the caller keep sessions
/// alive.
async fn watch_cpu(server: &ServerProcesses, duration: Duration) -> TaskResult<f64> {
    // The first third of the ttl is not measured, as the renewals begin during it.
    tokio::time::sleep(KEEPALIVE_TTL / 3).await;
    let before = server.cpu_seconds()?;
    let began = std::time::Instant::now();
    tokio::time::sleep(duration).await;
    Ok((server.cpu_seconds()? - before) / began.elapsed().as_secs_f64())
}

/// The renewal times of session `number` of `sessions`: every third of the ttl. The sessions are evenly
/// spread over that interval, like sessions opened at different times.
fn renewals(number: usize, sessions: usize) -> tokio::time::Interval {
    let every = KEEPALIVE_TTL / 3;
    let offset = every.mul_f64(number as f64 / sessions as f64);
    tokio::time::interval_at(tokio::time::Instant::now() + offset, every)
}

/// Runs `make` for each number below `count`, at most 256 at a time. One after another, each call would wait
/// for its own sync at the server; all at once, a server would refuse some.
async fn many<T: Send + 'static, F>(count: usize, make: impl Fn(usize) -> F) -> TaskResult<Vec<T>>
where
    F: Future<Output = TaskResult<T>> + Send + 'static,
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

/// Formats an error of `system`: the failed operation and its cause.
fn failed<E: Display>(system: &'static str, what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{system} cannot {what}: {error}")
}
