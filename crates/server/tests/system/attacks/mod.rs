//! Attacks on the clients' ports of a real node. Each runs for a while beside a witness: a client that
//! acquires and releases a lock all the time. The witness must lose nothing and must make progress, and the
//! node's memory must stay within bounds. Each test prints a row: what was sent, for how long, what the
//! witness noticed.
//!
//! `LOCKKEEPER_ATTACK_SECONDS=30 cargo nextest run -p lockkeeper-server --test system attacks --no-capture -j
//! 1` runs them for longer.

mod attacked_node;
mod frames;
mod handshakes;
mod http1;
mod http2;
mod member;
mod messages;
mod overload;
mod witness;

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_server::{ServerOptions, TlsFiles};
use tokio::time::Instant;

use crate::certified::ClientTls;
use crate::harness::{DEADLINE, Server, directory};
use attacked_node::AttackedNode;
use witness::{Observations, Witness};

/// How much the memory of this process may grow during an attack, attackers included. The most is for 16
/// connections with changes that they do not read, of 16 MiB each.
const GROWTH_MAX: u64 = 512 << 20;

/// What the attackers have done so far.
#[derive(Clone, Default)]
struct AttackCount(Arc<AtomicU64>);

impl AttackCount {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn seconds() -> Duration {
    let seconds = std::env::var("LOCKKEEPER_ATTACK_SECONDS").ok().map(|text| text.parse().expect("seconds"));
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Lets `attackers` tasks run `attack` again and again against a node, beside a witness: by plain
/// connections, then by TLS with a certificate. `attack` ends when the node has had enough of it.
async fn under_attack<F>(what: &str, attackers: usize, attack: impl Fn(AttackedNode, AttackCount) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    node_under_attack(what, None, attackers, &attack).await;
    tls_under_attack(what, attackers, attack).await;
}

/// As [`under_attack`], by TLS only.
async fn tls_under_attack<F>(what: &str, attackers: usize, attack: impl Fn(AttackedNode, AttackCount) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let folder = directory();
    let tls = ClientTls::certify(folder.path());
    node_under_attack(&format!("{what}, TLS"), Some(tls), attackers, &attack).await;
}

async fn node_under_attack<F>(
    what: &str,
    tls: Option<(TlsFiles, ClientTls)>,
    attackers: usize,
    attack: &impl Fn(AttackedNode, AttackCount) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let data = directory();
    let (files, tls) = tls.unzip();
    let server = Server::start_with(ServerOptions {
        listen: "127.0.0.1:0".to_owned(),
        tls: files,
        ..ServerOptions::new(data.path())
    });
    let target = AttackedNode::of(&server, tls);
    let mut witness = Witness::start(&target).await;
    witness.progress(100).await;
    let (sent, before) = (AttackCount::default(), resident());
    let end = Instant::now() + seconds();
    let mut tasks = tokio::task::JoinSet::new();
    (0..attackers).for_each(|_| drop(tasks.spawn(attack(target.clone(), sent.clone()))));
    let mut peak = 0;
    witness.forget_slowest();
    while Instant::now() < end {
        witness.progress(1).await;
        peak = resident().max(peak);
        while tasks.try_join_next().is_some() {
            tasks.spawn(attack(target.clone(), sent.clone()));
        }
    }
    // Progress under attack, whatever the attack has cost.
    let during = witness.progress(20).await;
    tasks.shutdown().await;
    witness.progress(100).await;
    assert!(sent.get() > 0, "there was no attack");
    report(what, sent.get(), during, peak.saturating_sub(before));
    witness.end().await;
    tokio::time::timeout(DEADLINE, server.stop()).await.expect("it stops").unwrap();
}

/// Prints the row of an attack; its memory has grown by so many bytes, which have a bound.
fn report(what: &str, sent: impl Display, during: Observations, grown: u64) {
    eprintln!(
        "| {what} | {sent} | {} s | {} pairs, slowest {} ms | {} MiB |",
        seconds().as_secs(),
        during.pairs,
        during.slowest.as_millis(),
        grown >> 20
    );
    assert!(grown < GROWTH_MAX, "{} MiB of memory for attackers", grown >> 20);
}

/// The memory of this process that is resident, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
