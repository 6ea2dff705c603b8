//! Interoperation with other Redis clients, by the commands that those send.

use std::time::Duration;

use lockkeeper::{AcquireError, BackendErrorKind, Wait};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, client, until_waiting};

/// The command by which redis-py, redsync, rslock and others take a lock.
fn take(redis: &Redis, key: &str, value: &str) -> bool {
    redis.cli(&["SET", key, value, "NX", "PX", "600000"]) == "OK"
}

#[tokio::test]
async fn a_foreign_holder_excludes_us_and_is_waited_for() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    assert!(take(&redis, "jobs", "b3c1"));
    let busy = locks.mutex("jobs").wait(Wait::No).acquire().await;
    let Err(AcquireError::Busy(busy)) = busy else { panic!("{busy:?}") };
    assert!(busy.holder.as_deref().unwrap().contains("b3c1"), "{busy}");
    let slot = locks.semaphore("jobs", 5).wait(Wait::No).acquire().await;
    assert!(matches!(slot, Err(AcquireError::Busy(_))), "{slot:?}");
    let waiting = tokio::spawn({
        let lock = locks.mutex("jobs");
        async move { lock.acquire().await }
    });
    until_waiting(&locks, "jobs", 1).await;
    // A foreign client publishes no message on its release.
    redis.cli(&["DEL", "jobs"]);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn our_holds_exclude_foreign_clients() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    let held = locks.mutex("jobs").acquire().await.unwrap();
    assert!(!take(&redis, "jobs", "theirs"));
    held.release().await.unwrap();
    assert!(take(&redis, "jobs", "theirs"));
    // Permits exclude foreign clients too, until the last one is released.
    let first = locks.semaphore("slots", 2).acquire().await.unwrap();
    let second = locks.semaphore("slots", 2).acquire().await.unwrap();
    assert!(!take(&redis, "slots", "theirs"));
    first.release().await.unwrap();
    assert!(!take(&redis, "slots", "theirs"));
    second.release().await.unwrap();
    assert!(take(&redis, "slots", "theirs"));
    // A closed hold excludes foreign clients too.
    locks.mutex("shut").keep_closed(60 * SECOND).acquire().await.unwrap().release().await.unwrap();
    assert!(!take(&redis, "shut", "theirs"));
}

/// The lock of a crashed foreign client becomes free when its key expires.
#[tokio::test]
async fn a_foreign_key_that_expires_is_followed_by_a_grant() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    redis.cli(&["SET", "jobs", "theirs", "NX", "PX", "700"]);
    let held = locks.mutex("jobs").wait(Wait::For(20 * SECOND)).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// Redisson keeps a hash under the same name: the error names the type.
#[tokio::test]
async fn a_key_of_another_type_is_refused_by_its_type() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    redis.cli(&["HSET", "jobs", "uuid:1", "1"]);
    redis.cli(&["RPUSH", "list", "x"]);
    for (lock, words) in [("jobs", ["hash", "Redisson"]), ("list", ["list", "?prefix="])] {
        for lock in [locks.mutex(lock), locks.semaphore(lock, 2)] {
            let Err(AcquireError::Backend(error)) = lock.acquire().await else { panic!("not refused") };
            assert_eq!(error.kind, BackendErrorKind::Refused);
            assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
        }
        let error = locks.inspect(&crate::support::name(lock)).await.unwrap_err();
        assert!(error.message.contains(words[0]), "{error}");
    }
    assert_eq!(redis.cli(&["HGET", "jobs", "uuid:1"]), "1");
}

/// If the key of a lock's queue has a wrong type, an acquire fails; it does not go on without the queue.
#[tokio::test]
async fn a_queue_of_another_type_is_refused() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    assert!(take(&redis, "jobs", "theirs"));
    redis.cli(&["SET", "{jobs}:lockkeeper:queue", "x"]);
    let refused = tokio::time::timeout(20 * SECOND, locks.mutex("jobs").acquire()).await.unwrap();
    let Err(AcquireError::Backend(error)) = refused else { panic!("{refused:?}") };
    assert!(error.message.contains("WRONGTYPE") && error.message.contains("?prefix="), "{error}");
}

/// A hold whose key becomes another type is lost, and that key is left alone.
#[tokio::test]
async fn a_hold_whose_key_becomes_another_type_is_lost() {
    let redis = Redis::start();
    let locks = client(&redis, "ours").await;
    let held = locks.mutex("jobs").ttl(2 * SECOND).acquire().await.unwrap();
    redis.cli(&["DEL", "jobs"]);
    redis.cli(&["HSET", "jobs", "uuid:1", "1"]);
    crate::support::loss(&held).await;
    assert!(held.release().await.is_err());
    assert_eq!(redis.cli(&["TYPE", "jobs"]), "hash");
}

/// Of the waiters for a foreign holder only the first polls often.
#[tokio::test]
async fn a_foreign_holder_is_polled_by_the_first_in_the_queue_only() {
    let redis = Redis::start();
    assert!(take(&redis, "jobs", "theirs"));
    let mut waiting = Vec::new();
    for waiter in 0..8 {
        let locks = client(&redis, "waits").await;
        waiting.push(tokio::spawn({
            let locks = locks.clone();
            async move { locks.mutex("jobs").ttl(60 * SECOND).acquire().await.map(drop) }
        }));
        until_waiting(&locks, "jobs", waiter + 1).await;
    }
    redis.cli(&["CONFIG", "RESETSTAT"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = crate::support::calls(&redis, "evalsha");
    // One check every 50 ms at most. If all eight polled, every 150 ms each, there would be 106 or more.
    assert!((5..=45).contains(&asked), "{asked} commands in 2 s");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
