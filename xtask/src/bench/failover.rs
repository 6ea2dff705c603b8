//! The effect of a leader's death on one client.
//!
//! Responsible for the gap: the longest time between the completion of two consecutive acquire/release pairs,
//! of which the later one completes after the kill. No system gets help to recover: the client knows the
//! addresses of all nodes from the start, and retries after each error or time-out.

use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::TaskResult;
use crate::bench::figures::KILLS;
use crate::bench::maths::median;
use crate::bench::systems::{Peer, Setup};
use crate::bench::workloads::Measured;
use crate::services::catalogue::ServiceSpec;
use crate::services::clusters::ThreeNodes;
use crate::services::{self, ServiceLocation};

/// A usual ttl, which is longer than any gap.
const TTL: Duration = Duration::from_secs(10);
/// The time-out of a call. It is short in favour of etcd: its followers forward calls to a dead leader until
/// they detect the death, and such calls are never answered.
const CALL_ENDS_WITHIN: Duration = Duration::from_millis(100);
/// The pause after an error, so that a client whose calls fail at once leaves CPU to the servers.
const PAUSE: Duration = Duration::from_millis(2);
/// Number of locks that the client uses in rotation, as in `single`.
const NAMES: usize = 16;
/// For how long pairs run before the kill.
const BEFORE: Duration = Duration::from_millis(500);
/// For how long the client is observed after the kill. The longest gap in this time counts: there may be a
/// second one, for example if the client reaches a node that is not ready yet.
const AFTER: Duration = Duration::from_secs(3);
/// A system that completes no pair within this time has no figures.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// The time limit for a cluster to elect a leader.
const LEADS_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Kills the leader of `cluster` [`KILLS`] times, and restarts it each time.
pub(crate) async fn failover<P: Peer>(at: &str, cluster: &'static ThreeNodes) -> TaskResult<Measured> {
    let mut gaps = Vec::new();
    for kill in 0..KILLS {
        gaps.push(gap::<P>(at, cluster, kill).await?.as_secs_f64() * 1e3);
    }
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    let median = median(&gaps).ok_or("no leader was killed")?;
    Ok(vec![("failover.gap.p50".to_owned(), median), ("failover.gap.max".to_owned(), longest)])
}

/// Measures one kill of the leader; returns once its node is ready again.
async fn gap<P: Peer>(at: &str, cluster: &'static ThreeNodes, kill: usize) -> TaskResult<Duration> {
    let peer = P::connect(Setup { at, clients: 1, contended: false, ttl: TTL }).await?;
    let killed = Arc::new(OnceLock::new());
    let client = tokio::spawn(pairs(peer, kill, killed.clone()));
    tokio::time::sleep(BEFORE).await;
    let leader = blocking(move || {
        let leader = leader(cluster)?;
        let _ = killed.set(Instant::now());
        services::end(leader, Signal::SIGKILL)?;
        Ok(leader)
    })
    .await?;
    let (peer, gap) = client.await.map_err(|error| error.to_string())??;
    blocking(move || services::revive(leader)).await?;
    // Locks of abandoned calls expire by their ttl. Until then nothing is measured that they could disturb.
    let _ = timeout(SERVES_WITHIN, peer.close()).await;
    Ok(gap)
}

/// Acquires and releases free locks until [`AFTER`] the kill, and returns the gap.
async fn pairs<P: Peer>(peer: P, kill: usize, killed: Arc<OnceLock<Instant>>) -> TaskResult<(P, Duration)> {
    let mut ended = Instant::now();
    let mut gap = Duration::ZERO;
    // A call that was abandoned may leave a lock held, so later calls use other names.
    let mut abandoned = 0;
    for number in 0.. {
        let name = format!("lockkeeper-bench/failover/{kill}-{abandoned}/{}", number % NAMES);
        match pair(&peer, &name).await {
            Ok(()) => {
                let now = Instant::now();
                if let Some(killed) = killed.get().filter(|killed| **killed < now) {
                    gap = gap.max(now - ended);
                    if now >= *killed + AFTER {
                        break;
                    }
                }
                ended = now;
            }
            Err(why) if ended.elapsed() > SERVES_WITHIN => {
                return Err(format!(
                    "no pair came to its end for {} s around a kill: {why}",
                    SERVES_WITHIN.as_secs()
                ));
            }
            Err(_) => {
                abandoned += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Ok((peer, gap))
}

async fn pair<P: Peer>(peer: &P, name: &str) -> TaskResult {
    let late = |_| format!("a call took more than {} ms", CALL_ENDS_WITHIN.as_millis());
    let held = timeout(CALL_ENDS_WITHIN, peer.acquire(0, name)).await.map_err(late)??;
    timeout(CALL_ENDS_WITHIN, peer.release(held)).await.map_err(late)?
}

/// Returns the leader, once there is one. Must not be called in async tasks, because it blocks the thread.
pub(crate) fn leader(cluster: &'static ThreeNodes) -> TaskResult<&'static ServiceSpec> {
    let until = Instant::now() + LEADS_WITHIN;
    let places: Vec<ServiceLocation> =
        cluster.nodes.iter().map(services::place_of).collect::<TaskResult<_>>()?;
    loop {
        let mut why_not = Vec::new();
        for (node, place) in cluster.nodes.iter().zip(&places) {
            match (cluster.leads)(place) {
                Ok(()) => return Ok(node),
                Err(why) => why_not.push(format!("{}: {why}", node.name)),
            }
        }
        if Instant::now() >= until {
            let seconds = LEADS_WITHIN.as_secs();
            return Err(format!("no node leads after {seconds} s: {}", why_not.join("; ")));
        }
        sleep(LOOK_EVERY);
    }
}

/// Runs blocking work on Tokio's thread pool for such work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> TaskResult<T> + Send + 'static,
) -> TaskResult<T> {
    spawn_blocking(work).await.map_err(|error| error.to_string())?
}
