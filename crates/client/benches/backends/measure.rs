//! Turns, rates, medians.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::Locks;

use crate::{Outcome, TURN, TURNS};

/// One acquire and release of a client's own lock.
pub(crate) type Pair = Arc<dyn Fn(usize) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// How many clients, and what of the plain loop's rate ours must reach.
const BARS: [(usize, f64); 2] = [(1, 0.75), (64, 0.9)];
/// As long as it gets: nothing is renewed meanwhile.
const TTL: Duration = Duration::from_secs(30);

/// Pairs through the library, on so many clients of it.
pub(crate) async fn ours(url: &str, clients: usize) -> Outcome<Pair> {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(Locks::connect(url).await?);
    }
    Ok(Arc::new(move |client| {
        let lock = all[client % all.len()].mutex(format!("bench/ours/{client}")).ttl(TTL);
        Box::pin(async move {
            lock.acquire().await?.release().await?;
            Ok(())
        })
    }))
}

/// Both in turns, and the ratio of the medians.
pub(crate) async fn compare(what: &str, by_hand: &Pair, ours: &Pair) -> Outcome {
    for (clients, bar) in BARS {
        let (mut hand_rates, mut our_rates) = (Vec::new(), Vec::new());
        for turn in 0..=TURNS {
            let (hand, our) = (rate(by_hand, clients).await?, rate(ours, clients).await?);
            // The first turn warms up.
            if turn > 0 {
                hand_rates.push(hand);
                our_rates.push(our);
            }
        }
        let (hand, our) = (median(hand_rates), median(our_rates));
        println!(
            "{what}: {clients} clients: {our:.0} pairs/s, by hand {hand:.0}: {:.2} (bar {bar})",
            our / hand
        );
    }
    Ok(())
}

async fn rate(pair: &Pair, clients: usize) -> Outcome<f64> {
    let began = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let pair = pair.clone();
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while began.elapsed() < TURN {
                    pair(client).await?;
                    pairs += 1;
                }
                Outcome::Ok(pairs)
            })
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await??;
    }
    Ok(pairs as f64 / began.elapsed().as_secs_f64())
}

/// How long a free lock takes.
pub(crate) async fn acquire_p50(locks: &Locks) -> Outcome<Duration> {
    let mut took = Vec::new();
    for _ in 0..2000 {
        let lock = locks.mutex("bench/acquire").ttl(TTL);
        let began = Instant::now();
        let held = lock.acquire().await?;
        took.push(began.elapsed());
        held.release().await?;
    }
    Ok(p50(took))
}

pub(crate) fn p50(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}
