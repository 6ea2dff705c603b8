//! Waiters: woken one at a time, in order, and removed when dead.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Lock, Locks, Unfenced, Wait};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, address, calls, client, keys, until, until_waiting};
use lockkeeper_rig::Faults;

/// Returns the number of script calls per hand-over of a lock through a queue of `waiters` clients.
async fn commands_for_each_hand_over(waiters: usize) -> f64 {
    let redis = Redis::start();
    let locks = client(&redis, "first").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let (order_in, order) = (Arc::new(Mutex::new(Vec::new())), 0..waiters);
    let mut waiting = Vec::new();
    for waiter in order.clone() {
        let (locks, order_in) = (client(&redis, "waits").await, order_in.clone());
        waiting.push(tokio::spawn(async move {
            // A ttl so long that no waiter polls during the test.
            let held = locks.mutex("jobs").ttl(600 * SECOND).acquire().await.unwrap();
            order_in.lock().unwrap().push(waiter);
            held.release().await.unwrap();
        }));
        until_waiting(&client(&redis, "looks").await, "jobs", waiter + 1).await;
    }
    redis.cli(&["CONFIG", "RESETSTAT"]);
    held.release().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    let (asked, told) = (calls(&redis, "evalsha") + calls(&redis, "eval"), calls(&redis, "publish"));
    assert_eq!(*order_in.lock().unwrap(), order.collect::<Vec<_>>(), "first come, first served");
    assert!(told as usize >= waiters, "each was told: {told}");
    asked as f64 / waiters as f64
}

/// No thundering herd: a release wakes one waiter, for any length of the queue.
#[tokio::test]
async fn the_commands_for_a_hand_over_do_not_grow_with_the_queue() {
    let (few, many) = (commands_for_each_hand_over(2).await, commands_for_each_hand_over(48).await);
    // Expected per hand-over: the release, the attempt that is granted, and a few early attempts of the next
    // waiters. If each release woke every waiter, each of the 48 would try 24 times on average.
    assert!(few <= 5.0 && many <= 5.0, "2 waiters: {few} commands each, 48: {many}");
}

#[tokio::test]
async fn a_dead_waiter_is_skipped_after_its_ttl() {
    let redis = Redis::start();
    let faults = Faults::default();
    let held = client(&redis, "holds").await.mutex("jobs").acquire().await.unwrap();
    let url = format!("redis://{}", faults.proxy("dies", address(&redis)));
    let dies = Locks::connect_as(&url, "dies").await.unwrap();
    let stays = client(&redis, "stays").await;
    let dead = tokio::spawn(async move { dies.mutex("jobs").ttl(2 * SECOND).acquire().await.map(drop) });
    until_waiting(&stays, "jobs", 1).await;
    let next = tokio::spawn({
        let lock = stays.mutex("jobs").wait(Wait::For(25 * SECOND));
        async move { lock.acquire().await }
    });
    until_waiting(&stays, "jobs", 2).await;
    faults.cut_off("dies");
    held.release().await.unwrap();
    next.await.unwrap().expect("the dead one is passed over").release().await.unwrap();
    until("nothing is left", async || keys(&redis).is_empty().then_some(())).await;
    dead.abort();
}

/// The removal of a cancelled waiter is sent again if it was lost with its connection.
#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_although_its_removal_was_lost() {
    let redis = Redis::start();
    let locks = client(&redis, "holds").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let faults = Faults::default();
    let url = format!("redis://{}", faults.proxy("leaves", address(&redis)));
    let leaves = Locks::connect_as(&url, "leaves").await.unwrap();
    let lock = leaves.mutex("jobs").ttl(600 * SECOND);
    let first = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until_waiting(&locks, "jobs", 1).await;
    let stays = client(&redis, "stays").await;
    let next = tokio::spawn(async move {
        stays.mutex("jobs").ttl(600 * SECOND).acquire().await.unwrap().release().await
    });
    until_waiting(&locks, "jobs", 2).await;
    faults.lose_calls(1);
    first.abort();
    // Far below the ttl, after which a dead waiter would be removed.
    until_waiting(&locks, "jobs", 1).await;
    held.release().await.unwrap();
    tokio::time::timeout(20 * SECOND, next).await.expect("it is the first in the queue").unwrap().unwrap();
}

/// A request that arrives just after a release does not overtake the waiters: the release reserves the lock
/// for the queue.
#[tokio::test]
async fn no_request_overtakes_the_queue_at_a_release() {
    let redis = Redis::start();
    let (locks, late) = (client(&redis, "holds").await, client(&redis, "late").await);
    let faults = Faults::default();
    let url = format!("redis://{}", faults.proxy("waits", address(&redis)));
    let waits = Locks::connect_as(&url, "waits").await.unwrap();
    let makes: [fn(&Locks) -> Lock<Unfenced>; 2] =
        [|locks| locks.mutex("jobs"), |locks| locks.semaphore("jobs", 1)];
    for make in makes {
        let held = make(&locks).acquire().await.unwrap();
        let lock = make(&waits).ttl(600 * SECOND);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until_waiting(&locks, "jobs", 1).await;
        // The waiter receives the wake-up, but its attempts are lost.
        faults.lose_calls(u32::MAX);
        held.release().await.unwrap();
        assert_eq!(redis.cli(&["GET", "jobs"]), "lockkeeper:reserved:1");
        assert_eq!(redis.cli(&["SET", "jobs", "theirs", "NX", "PX", "60000"]), "");
        assert!(late.mutex("jobs").try_acquire().await.unwrap().is_none(), "it is the other's turn");
        assert!(late.inspect("jobs").await.unwrap().holds.is_empty(), "nobody holds it");
        faults.lose_calls(0);
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(redis.cli(&["EXISTS", "jobs"]), "0");
    }
}

/// A reservation for a waiter that does not come expires soon; then any request may be granted.
#[tokio::test]
async fn a_reservation_for_a_dead_waiter_expires_soon() {
    let redis = Redis::start();
    let locks = client(&redis, "holds").await;
    let faults = Faults::default();
    let url = format!("redis://{}", faults.proxy("dies", address(&redis)));
    let dies = Locks::connect_as(&url, "dies").await.unwrap();
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let dead = tokio::spawn(async move { dies.mutex("jobs").ttl(600 * SECOND).acquire().await.map(drop) });
    until_waiting(&locks, "jobs", 1).await;
    faults.cut_off("dies");
    held.release().await.unwrap();
    let left: i64 = redis.cli(&["PTTL", "jobs"]).parse().unwrap();
    assert!((1..=2000).contains(&left), "{left}");
    // The entry of the dead waiter stays the first in the queue for its ttl, ten minutes.
    until("it is free", async || locks.mutex("jobs").try_acquire().await.unwrap())
        .await
        .release()
        .await
        .unwrap();
    dead.abort();
}

/// A lost message costs time, not the lock: the first waiter polls.
#[tokio::test]
async fn a_lost_wake_up_only_delays_the_grant() {
    let redis = Redis::start();
    let locks = client(&redis, "holds").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let waits = client(&redis, "waits").await;
    let waiting = tokio::spawn(async move { waits.mutex("jobs").acquire().await.unwrap().release().await });
    until_waiting(&locks, "jobs", 1).await;
    // The hold ends without a message, as if the message had been lost with the waiter's connection.
    redis.cli(&["DEL", "jobs"]);
    tokio::time::timeout(20 * SECOND, waiting).await.expect("it looks by itself").unwrap().unwrap();
    assert!(held.release().await.is_err());
}

/// After a reconnect all waiters try again and keep their positions in the queue.
#[tokio::test]
async fn places_in_the_queue_survive_reconnects() {
    let redis = Redis::start();
    let locks = client(&redis, "holds").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let mut waiting = Vec::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    for waiter in 0..4 {
        let (waits, order) = (client(&redis, "waits").await, order.clone());
        waiting.push(tokio::spawn(async move {
            let held = waits.mutex("jobs").acquire().await.unwrap();
            order.lock().unwrap().push(waiter);
            held.release().await.unwrap();
        }));
        until_waiting(&locks, "jobs", waiter + 1).await;
    }
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    until_waiting(&locks, "jobs", 4).await;
    held.release().await.unwrap();
    for waiting in waiting {
        tokio::time::timeout(20 * SECOND, waiting).await.expect("woken").unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

/// A waiter that gives up leaves the queue at once, and its successor is woken.
#[tokio::test]
async fn a_waiter_that_gives_up_is_succeeded_by_the_next() {
    let redis = Redis::start();
    let locks = client(&redis, "holds").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for waiter in 0..3 {
        let waits = client(&redis, "waits").await;
        waiting.push(tokio::spawn(async move {
            waits.mutex("jobs").ttl(600 * SECOND).acquire().await?.release().await.unwrap();
            Ok::<_, lockkeeper::AcquireError>(())
        }));
        until_waiting(&locks, "jobs", waiter + 1).await;
    }
    let last = waiting.pop().unwrap();
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiting(&locks, "jobs", 1).await;
    held.release().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), last).await.expect("told").unwrap().unwrap();
}

/// Many tasks of few clients compete for one lock: every release is confirmed, and all tasks finish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_lock_and_every_release_is_confirmed() {
    let redis = Redis::start();
    let mut clients = Vec::new();
    for label in ["one", "two", "three", "four"] {
        clients.push(client(&redis, label).await);
    }
    let mut tasks = Vec::new();
    for task in 0..64 {
        let lock = clients[task % clients.len()].mutex("jobs");
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    until("nothing is left", async || keys(&redis).is_empty().then_some(())).await;
}
