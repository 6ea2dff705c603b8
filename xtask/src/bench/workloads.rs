//! The workloads: the same measurements for every system.
//!
//! Responsible for the clients (tasks of this process), the clock (that of this process), and for an error if
//! two clients hold one lock at once: a service that does not exclude gets no figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::TaskResult;
use crate::bench::figures::{CACHED_CLIENTS, PAIRS_CLIENTS, WAITERS};
use crate::bench::maths::percentile;
use crate::bench::server::ServerProcesses;
use crate::bench::systems::{Peer, Setup, TTL};

/// The number of locks held in `memory`.
const HELD: usize = 100_000;
/// The number of clients that acquire the locks of `memory`: enough to keep a server busy that syncs each
/// write.
const HOLDERS: usize = 64;
/// Number of locks that the client of `single` uses in rotation.
const SINGLE_NAMES: usize = 16;
/// How often `cached` takes a lock from the client that had it to itself.
const TAKEN: usize = 50;
/// The results of this first part of each measurement are discarded.
const WARM_UP: Duration = Duration::from_millis(200);

/// Figures by id.
pub(crate) type Measured = Vec<(String, f64)>;

/// One client acquires and releases free locks, 16 names in rotation.
pub(crate) async fn single<P: Peer>(at: &str, duration: Duration) -> TaskResult<Measured> {
    let peer = P::connect(Setup { at, clients: 1, contended: false, ttl: TTL }).await?;
    let names: Vec<String> =
        (0..SINGLE_NAMES).map(|number| format!("lockkeeper-bench/single/{number}")).collect();
    // Runs as a task, because the main thread, which only waits for it, is no worker of the runtime.
    let client = tokio::spawn(async move {
        let from = Instant::now() + WARM_UP;
        let mut acquires = Vec::new();
        for name in names.iter().cycle() {
            let asked = Instant::now();
            if asked >= from + duration {
                break;
            }
            let held = peer.acquire(0, name).await?;
            let took = asked.elapsed();
            peer.release(held).await?;
            if asked >= from {
                acquires.push(nanos(took));
            }
        }
        peer.close().await?;
        TaskResult::Ok(acquires)
    });
    let mut acquires = client.await.map_err(|error| error.to_string())??;
    Ok(vec![
        ("single.acquire.p50".to_owned(), micros(&mut acquires, 50)?),
        ("single.acquire.p99".to_owned(), micros(&mut acquires, 99)?),
    ])
}

/// Many clients, each of which acquires and releases a lock of its own.
pub(crate) async fn pairs<P: Peer>(at: &str, duration: Duration) -> TaskResult<Measured> {
    let mut measured = Measured::new();
    for clients in PAIRS_CLIENTS {
        let peer = Arc::new(P::connect(Setup { at, clients, contended: false, ttl: TTL }).await?);
        let from = Instant::now() + WARM_UP;
        let until = from + duration;
        let mut running = JoinSet::new();
        for client in 0..clients {
            let peer = peer.clone();
            running.spawn(async move {
                let name = format!("lockkeeper-bench/pairs/{client}");
                let mut acquires = Vec::new();
                loop {
                    let asked = Instant::now();
                    if asked >= until {
                        return TaskResult::Ok(acquires);
                    }
                    let held = peer.acquire(client, &name).await?;
                    let took = asked.elapsed();
                    peer.release(held).await?;
                    if asked >= from && Instant::now() <= until {
                        acquires.push(nanos(took));
                    }
                }
            });
        }
        let mut acquires = Vec::new();
        while let Some(ended) = running.join_next().await {
            acquires.extend(ended.map_err(|error| error.to_string())??);
        }
        close(peer).await?;
        let id = |what: &str| format!("pairs.{clients}.{what}");
        measured.push((id("rate"), acquires.len() as f64 / duration.as_secs_f64()));
        measured.push((id("acquire.p50"), micros(&mut acquires, 50)?));
        measured.push((id("acquire.p99"), micros(&mut acquires, 99)?));
    }
    Ok(measured)
}

/// One client, then many, take a lock of their own again and again; then another client takes one.
pub(crate) async fn cached<P: Peer>(at: &str, duration: Duration) -> TaskResult<Measured> {
    let mut measured = Measured::new();
    for clients in [1, CACHED_CLIENTS] {
        let peer = Arc::new(P::connect(Setup { at, clients, contended: false, ttl: TTL }).await?);
        let mut running = JoinSet::new();
        for client in 0..clients {
            let peer = peer.clone();
            running.spawn(async move {
                let name = format!("lockkeeper-bench/again/{client}");
                peer.pairs_alone(client, &name, Instant::now() + WARM_UP).await?;
                peer.pairs_alone(client, &name, Instant::now() + duration).await
            });
        }
        let mut took = Vec::new();
        while let Some(ended) = running.join_next().await {
            took.extend(ended.map_err(|error| error.to_string())??);
        }
        close(peer).await?;
        if clients == 1 {
            measured.push(("cached.pair.p50".to_owned(), micros(&mut took, 50)?));
            measured.push(("cached.pair.p99".to_owned(), micros(&mut took, 99)?));
        } else {
            measured.push(("cached.64.rate".to_owned(), took.len() as f64 / duration.as_secs_f64()));
        }
    }
    let peer = P::connect(Setup { at, clients: 2, contended: true, ttl: TTL }).await?;
    let mut took = Vec::new();
    for number in 0..TAKEN {
        // A name of its own: a lock that was recalled twice is not cached for a while.
        let name = format!("lockkeeper-bench/taken/{number}");
        peer.pairs_alone(0, &name, Instant::now() + Duration::from_millis(20)).await?;
        let asked = Instant::now();
        let held = peer.acquire(1, &name).await?;
        took.push(nanos(asked.elapsed()));
        peer.release(held).await?;
    }
    peer.close().await?;
    measured.push(("cached.taken.p50".to_owned(), micros(&mut took, 50)?));
    Ok(measured)
}

/// One lock passes from holder to waiter. A hand-over is timed from the holder's call of release to the
/// completion of the next holder's acquire, if that acquire was called before the release.
pub(crate) async fn handover<P: Peer>(at: &str, duration: Duration) -> TaskResult<Measured> {
    let mut measured = Measured::new();
    for waiters in WAITERS {
        let peer = Arc::new(P::connect(Setup { at, clients: waiters + 1, contended: true, ttl: TTL }).await?);
        let began = Instant::now();
        let mut times = Vec::new();
        while began.elapsed() < duration {
            times.extend(each_waits_once(&peer, waiters).await?);
        }
        let id = |what: &str| format!("handover.once.{waiters}.{what}");
        measured.push((id("p50"), micros(&mut times, 50)?));
        measured.push((id("p99"), micros(&mut times, 99)?));

        let mut times = holders_queue_again(&peer, waiters, duration).await?;
        let id = |what: &str| format!("handover.again.{waiters}.{what}");
        measured.push((id("p50"), micros(&mut times, 50)?));
        measured.push((id("p99"), micros(&mut times, 99)?));
        measured.push((id("rate"), times.len() as f64 / duration.as_secs_f64()));
        close(peer).await?;
    }
    Ok(measured)
}

/// The contended lock, as seen by its clients.
struct ContentionStage {
    since: Instant,
    /// Time of the last call of release, in nanoseconds after `since`; 0 before the first.
    released: AtomicU64,
    is_held: AtomicBool,
    asking: AtomicUsize,
    stop: AtomicBool,
}

const CONTENDED: &str = "lockkeeper-bench/contended";

impl ContentionStage {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            released: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            asking: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        }
    }

    fn now(&self) -> u64 {
        nanos(self.since.elapsed())
    }

    /// Acquires the lock. Also returns the duration of the hand-over, if the client called acquire before the
    /// release.
    async fn acquire<P: Peer>(&self, peer: &P, client: usize) -> TaskResult<(P::Held, Option<u64>)> {
        let asked = self.now();
        self.asking.fetch_add(1, Ordering::SeqCst);
        let held = peer.acquire(client, CONTENDED).await?;
        let granted = self.now();
        if self.is_held.swap(true, Ordering::SeqCst) {
            return Err("two clients held one lock at once: this run has no figures".to_owned());
        }
        let released = self.released.load(Ordering::SeqCst);
        Ok((held, (asked < released).then(|| granted.saturating_sub(released))))
    }

    async fn release<P: Peer>(&self, peer: &P, held: P::Held) -> TaskResult {
        self.is_held.store(false, Ordering::SeqCst);
        self.released.store(self.now(), Ordering::SeqCst);
        peer.release(held).await
    }
}

/// One client holds the lock and releases it once `waiters` clients wait. Then each of them holds the lock
/// once.
async fn each_waits_once<P: Peer>(peer: &Arc<P>, waiters: usize) -> TaskResult<Vec<u64>> {
    let stage = Arc::new(ContentionStage::new());
    let (held, _) = stage.acquire(peer.as_ref(), waiters).await?;
    let mut waiting = JoinSet::new();
    for client in 0..waiters {
        let (peer, stage) = (peer.clone(), stage.clone());
        waiting.spawn(async move {
            let (held, took) = stage.acquire(peer.as_ref(), client).await?;
            stage.release(peer.as_ref(), held).await?;
            TaskResult::Ok(took)
        });
    }
    while stage.asking.load(Ordering::SeqCst) <= waiters {
        sleep(Duration::from_millis(1)).await;
    }
    // All clients have called acquire. Within this time every one of these systems registers a waiter. A
    // request that arrives later still counts: its time is measured from the release.
    sleep(Duration::from_millis(20) + Duration::from_micros(200) * waiters as u32).await;
    stage.release(peer.as_ref(), held).await?;
    let mut times = Vec::new();
    while let Some(ended) = waiting.join_next().await {
        times.extend(ended.map_err(|error| error.to_string())??);
    }
    Ok(times)
}

/// One client holds the lock while `waiters` clients wait; each acquires again right after its release.
async fn holders_queue_again<P: Peer>(
    peer: &Arc<P>,
    waiters: usize,
    duration: Duration,
) -> TaskResult<Vec<u64>> {
    let stage = Arc::new(ContentionStage::new());
    let mut running = JoinSet::new();
    for client in 0..=waiters {
        let (peer, stage) = (peer.clone(), stage.clone());
        running.spawn(async move {
            let mut times = Vec::new();
            while !stage.stop.load(Ordering::Relaxed) {
                let (held, took) = stage.acquire(peer.as_ref(), client).await?;
                stage.release(peer.as_ref(), held).await?;
                times.extend(took.filter(|_| !stage.stop.load(Ordering::Relaxed)));
            }
            TaskResult::Ok(times)
        });
    }
    sleep(duration).await;
    stage.stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    while let Some(ended) = running.join_next().await {
        times.extend(ended.map_err(|error| error.to_string())??);
    }
    Ok(times)
}

/// The growth of the server's memory for 100,000 held locks with names of 32 bytes, divided by the number of
/// locks.
pub(crate) async fn memory<P: Peer>(at: &str, server: &ServerProcesses) -> TaskResult<Measured> {
    let peer = Arc::new(P::connect(Setup { at, clients: HOLDERS, contended: false, ttl: TTL }).await?);
    let warm = hold(&peer, "warm", HOLDERS).await?;
    let before = server.resident_bytes()?;
    let held = hold(&peer, "memory", HELD).await?;
    let grown = server.resident_bytes()?.saturating_sub(before);
    drop((warm, held));
    close(peer).await?;
    Ok(vec![("memory.bytes".to_owned(), grown as f64 / HELD as f64)])
}

async fn hold<P: Peer>(peer: &Arc<P>, what: &'static str, count: usize) -> TaskResult<Vec<P::Held>> {
    let mut holding = JoinSet::new();
    for client in 0..HOLDERS {
        let peer = peer.clone();
        holding.spawn(async move {
            let mut held = Vec::new();
            for number in (client..count).step_by(HOLDERS) {
                // All names have 32 bytes.
                let name = format!("lockkeeper-bench/{what:0>6}/{number:08}");
                held.push(peer.acquire(client, &name).await?);
            }
            TaskResult::Ok(held)
        });
    }
    let mut held = Vec::with_capacity(count);
    while let Some(ended) = holding.join_next().await {
        held.extend(ended.map_err(|error| error.to_string())??);
    }
    Ok(held)
}

async fn close<P: Peer>(peer: Arc<P>) -> TaskResult {
    Arc::into_inner(peer).ok_or("a client of the workload did not end")?.close().await
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A percentile of durations in nanoseconds, converted to microseconds.
fn micros(nanos: &mut [u64], percent: usize) -> TaskResult<f64> {
    nanos.sort_unstable();
    let value = percentile(nanos, percent).ok_or("nothing was measured: not one came to its end in time")?;
    Ok(value as f64 / 1e3)
}
