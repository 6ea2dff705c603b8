//! A node that is killed while it writes snapshots starts from the last complete one and the log after it.

use std::collections::BTreeMap;
use std::path::Path;

use lockkeeper::{Fenced, LockName, Locks, Token};

use crate::faults::load::Load;
use crate::faults::server::{LONG, Server, answer, until, within};

/// The number of held locks: enough for a snapshot of several pieces.
const HELD: usize = 12_000;
const KILLS: usize = 5;

/// True if a snapshot is being written at the moment.
fn is_writing(data: &Path) -> bool {
    std::fs::read_dir(data).unwrap().any(|entry| {
        let name = entry.unwrap().file_name();
        name.to_string_lossy().starts_with("incoming-")
    })
}

/// Names and tokens of the held locks, and the ids of all sessions.
async fn table(locks: &Locks<Fenced>) -> (BTreeMap<String, Vec<Option<Token>>>, Vec<u64>) {
    let prefix: LockName = "held".parse().unwrap();
    let listed = answer("the service answers", async || locks.list(Some(prefix.as_str())).await.ok()).await;
    let sessions = answer("the service answers", async || locks.sessions().await.ok()).await;
    let tokens = |lock: &lockkeeper::LockInfo| lock.holds.iter().map(|holder| holder.token).collect();
    let holds = listed.iter().map(|lock| (lock.name.to_string(), tokens(lock))).collect();
    (holds, sessions.iter().map(|session| session.id).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_killed_during_a_snapshot_starts_from_the_last_complete_one() {
    // Small log segments: if the log were truncated too far, entries that the last snapshot lacks would be
    // missing.
    let mut server = Server::started("--snapshot-after 65536 --segment-bytes 8192");
    let holder = server.client("holder").await;
    let tasks: Vec<_> = (0..HELD)
        .map(|number| {
            let lock = holder.mutex(format!("held/{number:06}")).ttl(LONG);
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    let mut held = Vec::new();
    for task in tasks {
        held.push(within("it is granted", task).await.unwrap().unwrap());
    }
    let load = Load::start(vec![server.client("one").await, server.client("two").await], 3, 8);
    load.goes_on(50);
    let before = table(&holder).await;
    assert_eq!((before.0.len(), before.1.len()), (HELD, 3));
    let (mut in_the_middle, mut started_from) = (0, 0);
    for kill in 0..KILLS {
        // Each start removes the unfinished snapshot that a kill has left, so a file found here belongs to a
        // new snapshot.
        until("a snapshot is being written", || is_writing(&server.data));
        server.kill();
        in_the_middle += usize::from(is_writing(&server.data));
        server.start();
        let status = answer("the service answers", async || holder.status().await.ok()).await;
        assert!(status.snapshot >= started_from, "after kill {kill}");
        started_from = status.snapshot;
        assert_eq!(table(&holder).await, before, "after kill {kill}");
        load.goes_on(50);
    }
    assert!(in_the_middle > 0, "no kill hit the middle of a snapshot");
    assert!(started_from > 0, "no start was from a snapshot");
    // After the last kill, the node must complete one more snapshot.
    answer("a snapshot is whole", async || {
        let status = holder.status().await.ok()?;
        (status.snapshot > started_from).then_some(())
    })
    .await;
    for guard in [&held[0], &held[HELD - 1]] {
        assert_eq!(guard.loss(), None);
        within("the hold is confirmed", guard.verify()).await.unwrap();
    }
    let done = load.checked().await;
    assert!(done.granted > 50 * KILLS as u64);
}
