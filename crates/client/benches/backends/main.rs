//! Our client against a plain loop with the same crate, on the same server, in the same run, in turns.
//!
//! `cargo bench -p lockkeeper --bench backends --features redis,redlock,postgres [-- redis redlock session …]`. Starts
//! the servers it needs on loopback and stops them. Ratios count; DESIGN section 10 says how to read them.

#![expect(clippy::print_stdout, reason = "a measurement is read by people")]

mod by_hand;
mod handover;
mod measure;

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::{Postgres, Redis};

use measure::{compare, ours};

/// How long one turn lasts, and how many there are.
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 3;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    // Cargo says `--bench`.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    println!("{} cores; median of {TURNS} turns of {TURN:?} each", std::thread::available_parallelism()?);
    if wanted("redis") {
        redis().await?;
    }
    if wanted("redlock") {
        redlock().await?;
    }
    if ["session", "transaction", "row"].into_iter().any(wanted) {
        let server = Postgres::with(&["-c", "max_connections=200"]);
        lockkeeper::backends::postgres::init(&server.url(), None).await?;
        for kind in ["session", "transaction", "row"].into_iter().filter(|kind| wanted(kind)) {
            postgres(&server, kind).await?;
        }
    }
    Ok(())
}

async fn redis() -> Outcome {
    let server = Redis::start();
    let by_hand = by_hand::redis(&server.url()).await?;
    compare("redis", &by_hand, &ours(&server.url(), 1).await?).await?;
    let counted = Redis::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let by_hand = by_hand::redis(&counted.url()).await?;
    let url = format!("{}?fencing=counter&force=true", counted.url());
    compare("redis, ?fencing=counter, appendfsync everysec", &by_hand, &ours(&url, 1).await?).await?;
    for waiters in [2, 16, 64] {
        handover::measure(&server, waiters).await?;
    }
    Ok(())
}

async fn redlock() -> Outcome {
    let servers: Vec<Redis> = (0..5).map(|_| Redis::start()).collect();
    let by_hand = by_hand::redlock(&servers).await?;
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let url = format!("redlock://{}", hosts.join(","));
    compare("redlock, 5 nodes", &by_hand, &ours(&url, 1).await?).await?;
    let slowest = by_hand::slowest_node_p50(&servers).await?;
    let locks = Locks::connect(&url).await?;
    let acquire = measure::acquire_p50(&locks).await?;
    let ratio = acquire.as_secs_f64() / slowest.as_secs_f64();
    println!("redlock: acquire p50 {acquire:?}, slowest single node {slowest:?}: {ratio:.2} × (bar 1.5)");
    Ok(())
}

async fn postgres(server: &Postgres, kind: &str) -> Outcome {
    let url = format!("{}?lock={kind}&connections=70", server.url());
    let by_hand = match kind {
        "session" => by_hand::advisory(server, by_hand::Scope::Session).await?,
        "transaction" => by_hand::advisory(server, by_hand::Scope::Transaction).await?,
        _ => by_hand::rows(server).await?,
    };
    let url = if kind == "row" {
        format!("{}?lock=row&connections={}", server.url(), by_hand::ROW_CONNECTIONS)
    } else {
        url
    };
    compare(&format!("postgres, lock={kind}"), &by_hand, &ours(&url, 1).await?).await
}
