//! `--election-timeout`: how long followers wait for a silent leader, and nodes with different values.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::nodes::{ALL, Nodes, OPTIONS, others};
use crate::faults::load::Load;
use crate::faults::server::{LONG, answer, until, within};

/// The shortest time from a leader's stop to the next election, as a fraction of the time-out: the leader
/// has sent its last heartbeat at most a sixth of the time-out before its stop, and a follower's tick count
/// is off by up to a twelfth.
const LEFT: f64 = 9.0 / 12.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_election_starts_before_the_timeout() {
    for timeout in [Duration::from_millis(300), Duration::from_secs(2)] {
        let options = format!("{OPTIONS} --election-timeout {}ms", timeout.as_millis());
        let nodes = Nodes::founded_with(&options, |_, _| {});
        let held = nodes.client("holder").await.mutex("held").ttl(LONG).acquire().await.unwrap();
        let leader = nodes.leader(&ALL).await;
        let rest = others(leader);
        let before = answer("it says its term", async || nodes.status(rest[0]).await).await.term;
        let stopped = Instant::now();
        // Unlike a kill, it breaks no connection.
        nodes.nodes[leader].signal(Signal::SIGSTOP);
        let after = answer("another leads", async || {
            let statuses = [nodes.status(rest[0]).await?, nodes.status(rest[1]).await?];
            statuses.into_iter().find(|status| status.role == lockkeeper::NodeRole::Leader)
        })
        .await;
        let took = stopped.elapsed();
        assert!(took >= timeout.mul_f64(LEFT), "{took:?} after the stop, with {timeout:?}");
        assert!(after.term > before, "{} after {before}", after.term);
        nodes.nodes[leader].signal(Signal::SIGCONT);
        within("the hold is confirmed", held.verify()).await.unwrap();
    }
}

/// A follower's time-out should fit the leader's heartbeat interval. If the values differ, the difference is
/// reported, and locks keep working.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_different_timeouts_report_the_difference() {
    let mut nodes = Nodes::founded();
    let slow = others(nodes.leader(&ALL).await)[0];
    nodes.nodes[slow].kill();
    nodes.nodes[slow].option("--election-timeout 600ms");
    nodes.nodes[slow].start();
    for (node, server) in nodes.nodes.iter().enumerate() {
        let said = |other: usize, theirs: &str, own: &str| {
            let (other, node) = (other + 1, node + 1);
            format!(
                "node {other} was started with `--election-timeout {theirs}`, this node, {node}, with {own}"
            )
        };
        let expected = match node == slow {
            true => others(slow).map(|other| said(other, "240ms", "600ms")).to_vec(),
            false => vec![said(slow, "600ms", "240ms")],
        };
        let says = |words: &str| server.log().lines().filter(|line| line.contains(words)).count();
        until("all say it", || expected.iter().all(|words| says(words) > 0));
        assert!(expected.iter().all(|words| says(words) == 1), "once is enough: {}", server.log());
        assert_eq!(says("start all nodes with the same"), expected.len(), "of nobody else: {}", server.log());
    }
    let load = Load::start(vec![nodes.client("one").await], 2, 5);
    load.goes_on(50);
    load.checked().await;
}
