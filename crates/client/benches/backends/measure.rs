//! Measures turns of a [`Pair`], and compares the medians of two pairs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use nix::time::ClockId;

use crate::{Outcome, TURN, TURNS};

/// One acquire and release of a client's own lock.
pub(crate) type Pair = Arc<dyn Fn(usize) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;

/// Number of clients, and the fraction of the plain loop's rate that the library should reach. Only printed.
const BARS: [(usize, f64); 2] = [(1, 0.75), (64, 0.5)];
/// Long enough that no renewal is due during the measurement.
const TTL: Duration = Duration::from_secs(30);

/// Acquires and releases through the library. `clients` instances of [`Locks`] are shared by the measured
/// loop's clients.
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

/// Measures both alternately, and prints the ratio of their median rates for each number of clients.
pub(crate) async fn compare(what: &str, by_hand: &Pair, ours: &Pair) -> Outcome {
    for (clients, bar) in BARS {
        let (mut hand_turns, mut our_turns) = (Vec::new(), Vec::new());
        for turn in 0..=TURNS {
            let (hand, our) = (turn_of(by_hand, clients).await?, turn_of(ours, clients).await?);
            // The first turn warms up.
            if turn > 0 {
                hand_turns.push(hand);
                our_turns.push(our);
            }
        }
        let (hand, our) = (Turn::median(&hand_turns), Turn::median(&our_turns));
        println!(
            "{what}: {clients} clients: {:.0} pairs/s, by hand {:.0}: {:.2} (bar {bar}); CPU of a pair in this process \
             {:.1} µs, by hand {:.1} µs",
            our.rate,
            hand.rate,
            our.rate / hand.rate,
            our.cpu * 1e6,
            hand.cpu * 1e6,
        );
    }
    Ok(())
}

/// Measurements of one turn.
struct Turn {
    /// Pairs a second.
    rate: f64,
    /// CPU seconds of this process for a pair.
    cpu: f64,
}

impl Turn {
    fn median(turns: &[Self]) -> Self {
        let of = |what: fn(&Self) -> f64| median(turns.iter().map(what).collect());
        Self { rate: of(|turn| turn.rate), cpu: of(|turn| turn.cpu) }
    }
}

/// CPU time that this process has used so far.
fn cpu() -> Outcome<Duration> {
    Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?.into())
}

async fn turn_of(pair: &Pair, clients: usize) -> Outcome<Turn> {
    let (began, cpu_before) = (Instant::now(), cpu()?);
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
    let pairs = pairs as f64;
    Ok(Turn { rate: pairs / began.elapsed().as_secs_f64(), cpu: (cpu()? - cpu_before).as_secs_f64() / pairs })
}

/// Median time to acquire a free lock.
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

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}
