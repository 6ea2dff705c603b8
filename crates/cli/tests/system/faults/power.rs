//! Power cuts: what was not synced is gone. Nothing that was acknowledged is lost, and tokens rise (P2, P10),
//! for a node, for a cluster whose machines share a power line, and for a directory of `file:`.
//!
//! `LOCKKEEPER_POWER_CUTS=100` cuts the power as often in each test.

use std::process::Command;

use lockkeeper_rig::{Number, PowerDisk};
use nix::sys::signal::Signal;

use crate::faults::cluster::nodes::Nodes;
use crate::faults::kept::Kept;
use crate::faults::load::Load;
use crate::faults::server::Server;

/// How often the power is cut.
fn cuts() -> u64 {
    std::env::var("LOCKKEEPER_POWER_CUTS").ok().map_or(4, |cuts| cuts.parse().unwrap())
}

/// Cuts the power of these nodes at once, and starts them again.
fn cut<'a>(nodes: impl IntoIterator<Item = (&'a mut Server, &'a PowerDisk)>) {
    let mut nodes: Vec<_> = nodes.into_iter().collect();
    for (server, disk) in &mut nodes {
        disk.cut();
        // It may have ended by itself: its disk fails.
        server.signal(Signal::SIGKILL);
    }
    for (server, disk) in &mut nodes {
        server.ended();
        disk.restore();
    }
    nodes.iter_mut().for_each(|(server, _)| server.begin());
    nodes.iter_mut().for_each(|(server, _)| server.serves());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_power_under_load_keeps_every_hold_and_waiter() {
    let disk = PowerDisk::new();
    let mut server = Server::new("");
    server.data = disk.path().join("data");
    server.start();
    let (one, two) = (server.client("one").await, server.client("two").await);
    let watcher = server.client("watcher").await;
    let kept = Kept::begin(&one, &two, &watcher).await;
    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for number in 0..cuts() {
        load.goes_on(20 + number % 7 * 7);
        cut([(&mut server, &disk)]);
        kept.is_kept(&format!("after cut {number}")).await;
    }
    load.goes_on(20);
    kept.end().await;
    assert!(load.checked().await.granted > 20 * cuts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_without_power_under_load_keeps_every_hold_and_waiter() {
    let disks = [(); 3].map(|()| PowerDisk::new());
    let mut nodes = Nodes::founded_with("", |node, server| server.data = disks[node].path().join("data"));
    let (one, two) = (nodes.client("one").await, nodes.client("two").await);
    let watcher = nodes.client("watcher").await;
    let kept = Kept::begin(&one, &two, &watcher).await;
    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for number in 0..cuts() {
        load.goes_on(20 + number % 7 * 7);
        cut(nodes.nodes.iter_mut().zip(&disks));
        kept.is_kept(&format!("after cut {number}")).await;
    }
    load.goes_on(20);
    kept.end().await;
    assert!(load.checked().await.granted > 20 * cuts());
}

/// The cut bites: a disk that lies about its syncs loses a hold that was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lying_disk_loses_acknowledged_holds_at_a_power_cut() {
    let disk = PowerDisk::new();
    let mut server = Server::new("");
    let shim = server.shim();
    server.data = disk.path().join("data");
    server.start();
    shim.set(Number::Lie, 1);
    let client = server.client("one").await;
    let held = client.mutex("lied").ttl(crate::faults::server::LONG).acquire().await.unwrap();
    cut([(&mut server, &disk)]);
    held.lost().cancelled().await;
    let info = server.client("watcher").await.inspect("lied").await.unwrap();
    assert_eq!(info.hold_count, 0, "{info:?}");
}

/// The output of `lockkeeper`, on a directory of `file:`.
fn run(locks: &std::path::Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.env("LOCKKEEPER_URL", format!("file://{}", locks.display())).args(words);
    command.output().unwrap()
}

#[test]
fn directory_of_locks_without_power_keeps_closed_locks_and_its_counter() {
    let disk = PowerDisk::new();
    let locks = disk.path().join("locks");
    let token = |words: &[&str]| -> u64 {
        let out = run(&locks, words);
        let said = String::from_utf8(out.stdout).unwrap();
        said.trim().parse().unwrap_or_else(|_| panic!("{said:?} {}", String::from_utf8_lossy(&out.stderr)))
    };
    let mut highest = 0;
    for number in 0..cuts() {
        let show = ["--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"];
        let closed = format!("closed/{number}");
        for words in [["run", "x"].as_slice(), &["run", "--keep-closed", "1h", &closed]] {
            let next = token(&[words, &show].concat());
            assert!(next > highest, "{next} after {highest}, before cut {number}");
            highest = next;
        }
        disk.cut();
        assert_ne!(
            run(&locks, &["run", "--try", "y", "--", "true"]).status.code(),
            Some(0),
            "the disk is off"
        );
        disk.restore();
        let busy = run(&locks, &["run", "--try", &closed, "--", "true"]);
        assert_eq!(busy.status.code(), Some(75), "{}", String::from_utf8_lossy(&busy.stderr));
    }
}
