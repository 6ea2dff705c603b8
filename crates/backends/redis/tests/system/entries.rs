//! A lock's key from its creation to its end: renewed and deleted only by its value, and never recreated.

use lockkeeper::{AcquireError, LossCause, ReleaseError};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, calls, client, keys, loss, name, until};

/// A renewal that sets the key would take a lost lock again (RedLock.net, issue 48).
#[tokio::test]
async fn a_renewal_never_recreates_a_key() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let held = locks.mutex("jobs").ttl(2 * SECOND).acquire().await.unwrap();
    assert_eq!(redis.cli(&["DEL", "jobs"]), "1");
    assert_eq!(loss(&held).await, LossCause::Forgotten);
    assert!(held.verify().await.is_err());
    assert_eq!(keys(&redis), [""; 0]);
}

/// A key is renewed and released only if it has the holder's value: a later holder's key keeps its value and
/// its expiry.
#[tokio::test]
async fn another_holders_key_is_neither_renewed_nor_released() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let held = locks.mutex("jobs").ttl(2 * SECOND).acquire().await.unwrap();
    redis.cli(&["SET", "jobs", "theirs", "PX", "600000"]);
    assert_eq!(loss(&held).await, LossCause::Forgotten);
    assert!(matches!(
        held.release().await,
        Err(ReleaseError::AlreadyLost(lockkeeper::Lost { cause: LossCause::Forgotten, .. }))
    ));
    assert_eq!(redis.cli(&["GET", "jobs"]), "theirs");
    let left: u64 = redis.cli(&["PTTL", "jobs"]).parse().unwrap();
    assert!(left > 300_000, "{left}");
}

/// A key without an expiry would outlive its holder for ever.
#[tokio::test]
async fn a_key_always_has_an_expiry() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let one = locks.mutex("one").ttl(60 * SECOND).acquire().await.unwrap();
    let two = locks.semaphore("two", 3).ttl(60 * SECOND).acquire().await.unwrap();
    let shut = locks.mutex("three").keep_closed(30 * SECOND).acquire().await.unwrap();
    shut.release().await.unwrap();
    assert_eq!(keys(&redis).len(), 6, "{:?}", keys(&redis));
    for key in keys(&redis) {
        let left: i64 = redis.cli(&["PTTL", &key]).parse().unwrap();
        assert!((1..=60_000).contains(&left), "{key}: {left}");
    }
    drop((one, two));
    for wrong in [SECOND / 1000, std::time::Duration::ZERO, 7200 * SECOND] {
        let refused = locks.mutex("four").ttl(wrong).acquire().await;
        assert!(matches!(refused, Err(AcquireError::Limit(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_release_leaves_no_keys() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    for _ in 0..3 {
        locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
        locks.semaphore("slots", 2).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(keys(&redis), [""; 0]);
}

/// Scripts that a server lost by a restart or a `SCRIPT FLUSH` are sent again.
#[tokio::test]
async fn a_server_that_lost_the_scripts_is_sent_them_again() {
    let redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = client(&redis, "holder").await;
    let held: Vec<_> = {
        let mut held = Vec::new();
        for lock in ["a", "b", "c"] {
            held.push(locks.mutex(lock).ttl(3 * SECOND).acquire().await.unwrap());
        }
        held
    };
    redis.cli(&["SCRIPT", "FLUSH"]);
    // Each of these finds its script missing: the renewals of several holds in one batch, then an inspection,
    // then verifications and releases.
    let before = held[0].valid_until().unwrap();
    until("they are renewed", async || (held[0].valid_until().unwrap() > before).then_some(())).await;
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(locks.inspect("b").await.unwrap().holds.len(), 1);
    redis.kill();
    redis.start_again();
    let more = locks.mutex("d").acquire().await.unwrap();
    for held in held {
        held.verify().await.unwrap();
        held.release().await.unwrap();
    }
    redis.cli(&["SCRIPT", "FLUSH"]);
    more.release().await.unwrap();
    assert!(calls(&redis, "eval") > 0);
}

/// One atomic step: a holder that crashes right after its SET leaves a key with an expiry and its owner's
/// name.
#[tokio::test]
async fn a_hold_is_one_command() {
    let redis = Redis::start();
    let locks = client(&redis, "alice").await;
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let held = locks.mutex("jobs").meta("job", "reindex").acquire().await.unwrap();
    assert_eq!((calls(&redis, "set"), calls(&redis, "evalsha"), calls(&redis, "eval")), (1, 0, 0));
    let value = redis.cli(&["GET", "jobs"]);
    let mut lines = value.lines();
    let header: Vec<&str> = lines.next().unwrap().split(':').collect();
    assert_eq!((header[0], header[2], header[3], header[4]), ("lockkeeper", "1", "held", "0"), "{value}");
    assert_eq!(lines.collect::<Vec<_>>(), ["alice", "", "", "job=reindex"]);
    held.release().await.unwrap();
    assert_eq!((calls(&redis, "set"), calls(&redis, "evalsha"), calls(&redis, "eval")), (1, 1, 0));
}

/// Two programs with different prefixes or databases on one server have separate locks.
#[tokio::test]
async fn a_prefix_and_a_database_keep_locks_apart() {
    let redis = Redis::start();
    let plain = client(&redis, "plain").await;
    let held = plain.mutex("jobs").acquire().await.unwrap();
    for query in ["?prefix=app:", "/3"] {
        let other = lockkeeper::Locks::connect(&format!("{}{query}", redis.url())).await.unwrap();
        let too = other.mutex("jobs").try_acquire().await.unwrap().expect("another lock");
        let all = other.list(None).await.unwrap();
        assert_eq!(all.len(), 1, "{query}: {all:?}");
        assert_eq!(all[0].name, name("jobs"));
        too.release().await.unwrap();
    }
    assert_eq!(plain.list(None).await.unwrap().len(), 1);
    held.release().await.unwrap();
}

/// A lock's own key must not be equal to a key that belongs to another lock, such as its queue.
#[tokio::test]
async fn a_name_that_looks_like_a_key_beside_a_lock_is_refused() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    for lock in ["{jobs}:lockkeeper:queue", "a:lockkeeper:tagged:b"] {
        let refused = locks.mutex(lock).acquire().await;
        let Err(AcquireError::Backend(error)) = refused else { panic!("{refused:?}") };
        assert!(error.message.contains("`:lockkeeper:`"), "{error}");
    }
    assert_eq!(keys(&redis), [""; 0]);
}

#[tokio::test]
async fn a_listing_contains_held_and_waited_for_locks() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    redis.cli(&["SET", "jobs/foreign", "theirs"]);
    redis.cli(&["SET", "no/lock", "text"]);
    let held = locks.mutex("jobs/{a}/1").acquire().await.unwrap();
    let slot = locks.semaphore("jobs/slots", 2).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.mutex("jobs/foreign").acquire().await.map(drop) }
    });
    crate::support::until_waiting(&locks, "jobs/foreign", 1).await;
    let all = locks.list(Some("jobs")).await.unwrap();
    let seen: Vec<_> =
        all.iter().map(|info| (info.name.as_str(), info.holds.len(), info.waiter_count)).collect();
    assert_eq!(seen, [("jobs/foreign", 1, 1), ("jobs/slots", 1, 0), ("jobs/{a}/1", 1, 0)]);
    assert!(locks.list(Some("no")).await.unwrap().is_empty());
    assert!(all[0].holds[0].label.contains("theirs"), "{:?}", all[0]);
    waiting.abort();
    drop((held, slot));
}

/// Each runtime has its own connection, which is closed when the runtime ends.
#[test]
fn ended_runtimes_free_their_connections() {
    let redis = Redis::start();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = runtime().block_on(client(&redis, "holder"));
    for _ in 0..20 {
        let runtime = runtime();
        runtime.block_on(until("a connection of its own", async || {
            locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
            // Pushes arrive on the main connection, whose subscription makes its type `pubsub`. Of the two
            // normal ones, one is that of `redis-cli` itself.
            (redis.cli(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() == 2).then_some(())
        }));
    }
}
