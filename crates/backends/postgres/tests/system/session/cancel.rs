//! Requests that are abandoned at any moment: nothing is held or queued for them.

use std::time::Duration;

use lockkeeper::{AcquireError, Wait};

use crate::session::world::{World, until_waiting};

/// Moments after the start of an acquire, from before its first statement to after its grant.
fn moments() -> impl Iterator<Item = Duration> {
    (0..40).map(|step| Duration::from_micros(100 * step))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_at_any_moment_leaves_nothing() {
    let world = World::start();
    let locks = world.client("drops").await;
    for moment in moments() {
        // Drops the guard or the pending acquire.
        drop(tokio::time::timeout(moment, locks.mutex("a").acquire()).await);
    }
    world.until_nothing_is_left().await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_dropped_at_any_moment_leaves_nothing() {
    let world = World::start();
    let (holds, waits) = (world.client("holds").await, world.client("waits").await);
    let held = holds.mutex("a").acquire().await.unwrap();
    for moment in moments() {
        drop(tokio::time::timeout(moment, waits.mutex("a").acquire()).await);
    }
    until_waiting(&holds, "a", 0).await;
    held.release().await.unwrap();
    world.until_nothing_is_left().await;
}

/// The server may grant a wait while the cancel request is under way (DistributedLock by madelson, issue
/// 147).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grant_during_a_cancel_is_released() {
    let world = World::start();
    let (holds, waits) = (world.client("holds").await, world.client("waits").await);
    for moment in moments() {
        let held = holds.mutex("a").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let waits = waits.clone();
            async move { waits.mutex("a").acquire().await.map(drop) }
        });
        until_waiting(&holds, "a", 1).await;
        let releasing = tokio::spawn(held.release());
        tokio::time::sleep(moment / 4).await;
        waiting.abort();
        releasing.await.unwrap().unwrap();
    }
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn timed_out_wait_leaves_the_queue() {
    let world = World::start();
    let (holds, waits) = (world.client("holds").await, world.client("waits").await);
    let held = holds.mutex("a").acquire().await.unwrap();
    let short = waits.mutex("a").wait(Wait::For(Duration::from_millis(300)));
    assert!(matches!(short.acquire().await, Err(AcquireError::TimedOut { .. })));
    let shown = holds.inspect("a").await.unwrap();
    assert_eq!(shown.waiter_count, 0);
    held.release().await.unwrap();
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn client_shutdown_releases_everything() {
    let world = World::start();
    let (locks, other) = (world.client("leaves").await, world.client("stays").await);
    let held = locks.mutex("a").acquire().await.unwrap();
    let theirs = other.mutex("b").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("b").acquire().await.map(drop) }
    });
    until_waiting(&other, "b", 1).await;
    let report = locks.shutdown(Duration::from_secs(10)).await;
    assert_eq!(report.left, 0);
    assert!(waiting.await.unwrap().is_err());
    assert!(held.loss().is_some());
    theirs.release().await.unwrap();
    world.until_nothing_is_left().await;
}
