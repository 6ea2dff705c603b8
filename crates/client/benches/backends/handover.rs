//! One Redis lock with many waiters of this library: the latency of a hand-over, and the number of script
//! calls per hand-over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use lockkeeper_rig::Redis;

use crate::measure::p50;
use crate::{Outcome, TURN};

/// The number of the library's clients, which the waiters share.
const CLIENTS: usize = 4;

pub(crate) async fn measure(server: &Redis, waiters: usize) -> Outcome {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Locks::connect(&server.url()).await?);
    }
    let began = Instant::now();
    let released_at = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let before = commands(server);
    let tasks: Vec<_> = (0..=waiters)
        .map(|waiter| {
            let lock = clients[waiter % CLIENTS].mutex("bench/handover");
            let (released_at, over) = (released_at.clone(), over.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let held = lock.acquire().await?;
                    let now = began.elapsed().as_nanos() as u64;
                    let released = released_at.load(Ordering::SeqCst);
                    took.push(Duration::from_nanos(now.saturating_sub(released)));
                    released_at.store(began.elapsed().as_nanos() as u64, Ordering::SeqCst);
                    held.release().await?;
                }
                Outcome::Ok(took)
            })
        })
        .collect();
    tokio::time::sleep(TURN).await;
    over.store(true, Ordering::Relaxed);
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    let each = (commands(server) - before) as f64 / took.len() as f64;
    let count = took.len();
    println!("redis: hand-over among {waiters} waiters: p50 {:?}, {each:.2} calls each ({count})", p50(took));
    Ok(())
}

/// Number of script calls by clients; the commands inside a script are not counted.
fn commands(server: &Redis) -> u64 {
    let calls = |line: &str| -> Option<u64> {
        let (_, rest) = line.split_once("calls=")?;
        rest.split(',').next()?.parse().ok()
    };
    let stats = server.cli(&["INFO", "commandstats"]);
    stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}
