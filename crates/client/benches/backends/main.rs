//! The library's client against a plain loop with the same driver crate, on the same server and in the same
//! run. The two are measured alternately; one measurement of one of them is a *turn*.
//!
//! `cargo bench -p lockkeeper --bench backends --features
//! dynamodb,mysql,object-store,postgres,redis,redlock [-- redis redlock session mysql …]`. Starts the
//! servers that it needs on loopback, and stops them. The results are the ratios; rates depend on the
//! machine.

#![expect(clippy::print_stdout, reason = "a measurement is read by people")]

mod by_hand;
mod dynamodb;
mod handover;
mod measure;
mod object_store;

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::{MariaDb, Postgres, Redis};

use measure::{compare, median, ours};

/// Length of a turn, and number of turns that count. One more turn before them warms up.
const TURN: Duration = Duration::from_secs(2);
const TURNS: usize = 3;

/// A database without the library's sequence of tokens.
const WITHOUT_TOKENS: &str = "without_tokens";

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome {
    // Cargo passes `--bench`.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    println!("{} cores; median of {TURNS} turns of {TURN:?} each", std::thread::available_parallelism()?);
    if wanted("redis") {
        redis().await?;
    }
    if wanted("redlock") {
        redlock().await?;
    }
    if ["session", "row"].into_iter().any(wanted) {
        let server = Postgres::with(&["-c", "max_connections=200"]);
        lockkeeper::backends::postgres::init(&server.url(), None).await?;
        server.psql(&format!("create database {WITHOUT_TOKENS}"));
        for kind in ["session", "row"].into_iter().filter(|kind| wanted(kind)) {
            match kind {
                "session" => advisory(&server).await?,
                _ => rows(&server).await?,
            }
        }
    }
    if wanted("mysql") {
        mysql().await?;
    }
    if wanted("dynamodb") {
        dynamodb::measure().await?;
    }
    if wanted("s3") {
        object_store::measure().await?;
    }
    Ok(())
}

async fn redis() -> Outcome {
    let server = Redis::start();
    let by_hand = by_hand::redis(&server.url(), false).await?;
    compare("redis", &by_hand, &ours(&server.url(), 1).await?).await?;
    let counted = Redis::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let by_hand = by_hand::redis(&counted.url(), true).await?;
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
    let locks = Locks::connect(&url).await?;
    let mut ratios = Vec::new();
    for _ in 0..=TURNS {
        let slowest = by_hand::slowest_node_p50(&servers).await?;
        let acquire = measure::acquire_p50(&locks).await?;
        println!("redlock: acquire p50 {acquire:?}, slowest single node {slowest:?}");
        ratios.push(acquire.as_secs_f64() / slowest.as_secs_f64());
    }
    // The first turn warms up.
    println!(
        "redlock: acquire p50 beside the slowest single node: {:.2} × (bar 2)",
        median(ratios.split_off(1))
    );
    Ok(())
}

/// Compares twice: once without tokens and once with tokens, each time on both sides.
async fn advisory(server: &Postgres) -> Outcome {
    let bare = format!("{}{WITHOUT_TOKENS}", server.url().trim_end_matches("postgres"));
    for (url, tokens) in [(bare, false), (server.url(), true)] {
        let by_hand = by_hand::advisory(&url, tokens).await?;
        let ours = ours(&format!("{url}?lock=session&connections=70"), 1).await?;
        let with = if tokens { "tokens" } else { "no tokens" };
        compare(&format!("postgres, lock=session, {with}"), &by_hand, &ours).await?;
    }
    Ok(())
}

async fn rows(server: &Postgres) -> Outcome {
    let by_hand = by_hand::rows(server).await?;
    let url = format!("{}?lock=row&connections={}", server.url(), by_hand::ROW_CONNECTIONS);
    compare("postgres, lock=row", &by_hand, &ours(&url, 1).await?).await
}

async fn mysql() -> Outcome {
    let server = MariaDb::start();
    let by_hand = by_hand::mysql_rows(&server).await?;
    let url = format!("{}?lock=row&connections={}", server.url(), by_hand::ROW_CONNECTIONS);
    compare("mysql, lock=row", &by_hand, &ours(&url, 1).await?).await
}
