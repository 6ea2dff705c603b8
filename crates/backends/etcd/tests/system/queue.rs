//! Requests of this library among themselves, on one member.

use std::time::Duration;

use lockkeeper::{BootInstant, BreakOrder, Broken, LockName, Locks, LossCause, TokenStatus};
use lockkeeper_rig::Etcd;

use crate::{client, until, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_does_not_wait_for_a_holder_below_its_name() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let below = locks.mutex("a/b").acquire().await.unwrap();
    let above = locks.mutex("a").try_acquire().await.unwrap().expect("another lock");
    let names: Vec<String> =
        locks.list(None).await.unwrap().iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(names, ["a", "a/b"]);
    let names: Vec<_> = locks.list(Some("a/b")).await.unwrap().into_iter().map(|lock| lock.name).collect();
    assert_eq!(names, [LockName::parse("a/b").unwrap()]);
    above.release().await.unwrap();
    below.release().await.unwrap();
    assert!(locks.list(None).await.unwrap().is_empty());
}

/// A lease costs a write to disk, so the lease of an ended request serves the next one. Two requests never
/// share one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_used_again_and_not_shared() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let leases = || etcd.cli(&["lease", "list"]).lines().skip(1).count();
    let mut last = 0;
    for _ in 0..20 {
        let held = locks.mutex("x").acquire().await.unwrap();
        let token = held.token_hint().unwrap().get();
        assert!(token > last, "{token} after {last}");
        last = token;
        held.release().await.unwrap();
    }
    assert_eq!(leases(), 1);
    let held = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    assert_eq!(leases(), 2);
    drop(held);
}

/// A lease that is used again is not renewed at once, unless the session's deadline is later than its expiry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_is_used_again_outlives_the_sessions_deadline() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let mutex = |name| locks.mutex(name).ttl(Duration::from_secs(6));
    let other = mutex("other").acquire().await.unwrap();
    mutex("x").acquire().await.unwrap().release().await.unwrap();
    let before = other.valid_until().unwrap();
    until("a keep-alive", async || (other.valid_until().unwrap() > before).then_some(())).await;
    let held = mutex("x").acquire().await.unwrap();
    let leases = etcd.cli(&["lease", "list"]);
    let leases: Vec<&str> = leases.lines().skip(1).collect();
    assert_eq!(leases.len(), 2);
    let deadline = held.valid_until().unwrap().unwrap();
    for lease in leases {
        let left = etcd.cli(&["lease", "timetolive", lease]);
        let left: u64 =
            left.split("remaining(").nth(1).and_then(|left| left.split('s').next()).unwrap().parse().unwrap();
        // Whole seconds, rounded down; the answer is older than this moment.
        let until_end = deadline - BootInstant::now();
        assert!(Duration::from_secs(left + 1) > until_end, "{left} s, {until_end:?}");
    }
    held.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_in_order_and_soon() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let mut held = locks.mutex("x").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for place in 0..5 {
        let lock = locks.mutex("x");
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        until_waiting(&locks, "x", place + 1).await;
    }
    for next in waiting {
        let token = held.token_hint();
        held.release().await.unwrap();
        held = next.await.unwrap();
        assert!(held.token_hint() > token);
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waiter_leaves_the_queue() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let lock = locks.mutex("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&locks, "x", 1).await;
    waiter.abort();
    until_waiting(&locks, "x", 0).await;
    held.release().await.unwrap();
    locks.mutex("x").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_holder_is_told_at_once_and_a_break_names_its_hold() {
    let etcd = Etcd::start();
    let (locks, operator) = (client(&etcd, "").await, client(&etcd, "").await);
    let held =
        locks.mutex("x").ttl(Duration::from_secs(60)).grace(Duration::from_secs(10)).acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    let order = |now| BreakOrder {
        name: LockName::parse("x").unwrap(),
        token,
        reason: "test".to_owned(),
        by: "ana".to_owned(),
        now,
    };
    assert_eq!(operator.break_hold(order(false)).await.unwrap(), Broken::Done);
    tokio::time::timeout(Duration::from_secs(5), held.lost().cancelled())
        .await
        .expect("told before any renewal");
    assert_eq!(held.loss(), Some(LossCause::Broken));
    assert_eq!(operator.check_token("x", token).await.unwrap(), TokenStatus::NotCurrent { live: Vec::new() });
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
    let _ = held.release().await;
    let next = locks.mutex("x").acquire().await.unwrap();
    assert!(
        matches!(operator.break_hold(order(true)).await.unwrap(), Broken::NotCurrent { live } if live == [next.token_hint().unwrap()])
    );
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_dead_member_have_the_connections_error() {
    let etcd = Etcd::start();
    let held = client(&etcd, "").await.mutex("x").ttl(Duration::from_secs(12)).acquire().await.unwrap();
    etcd.kill();
    let errors = [
        held.verify().await.unwrap_err().to_string(),
        held.set_value("mine").await.unwrap_err().to_string(),
        held.release().await.unwrap_err().to_string(),
    ];
    for error in errors {
        let words = ["etcd did not answer a call", "no member of etcd answers"];
        assert!(error.contains("not confirm") && words.iter().any(|word| error.contains(word)), "{error}");
    }
}

/// A hold whose key somebody deleted is lost at the next renewal; its release deletes nothing of the next
/// holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_key_is_a_loss_and_its_release_spares_the_next_holder() {
    let etcd = Etcd::start();
    let (one, other) = (client(&etcd, "").await, client(&etcd, "").await);
    let held = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    etcd.cli(&["del", "--prefix", "lockkeeper/x/"]);
    let next = other.mutex("x").acquire().await.unwrap();
    until("the loss", async || held.loss()).await;
    let _ = held.release().await;
    assert_eq!(other.check_token("x", next.token_hint().unwrap()).await.unwrap(), TokenStatus::Current);
    next.release().await.unwrap();
}

#[tokio::test]
async fn unusable_urls_are_refused_with_a_reason() {
    for (url, words) in [
        ("etcd://", "a list of members"),
        ("etcd://a/b", "no databases"),
        ("etcd://ana@a", "a login"),
        ("etcd://a?layout=other", "layout=plain"),
        ("etcd://a?lease=7", "no parameter `lease`"),
        ("etcd://127.0.0.1:1", "no member of etcd answers (127.0.0.1:1: "),
    ] {
        let error = Locks::connect(url).await.expect_err(url);
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        assert!(text.contains(words), "{url}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_hold_together_and_a_writer_waits_for_all_of_them() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let read = || locks.rw("x").read();
    let one = read().acquire().await.unwrap();
    let other = read().try_acquire().await.unwrap().expect("shared");
    let seen = locks.inspect("x").await.unwrap();
    assert_eq!((seen.hold_count, seen.waiter_count), (2, 0));
    assert!(locks.rw("x").write().try_acquire().await.unwrap().is_none());
    let writer = locks.rw("x").write();
    let writer = tokio::spawn(async move { writer.acquire().await.unwrap() });
    until_waiting(&locks, "x", 1).await;
    // A reader behind the writer waits for it, and a try, too.
    assert!(read().try_acquire().await.unwrap().is_none());
    let behind = read();
    let behind = tokio::spawn(async move { behind.acquire().await.unwrap() });
    until_waiting(&locks, "x", 2).await;
    one.release().await.unwrap();
    assert!(!writer.is_finished());
    other.release().await.unwrap();
    let writer = writer.await.unwrap();
    assert!(!behind.is_finished());
    let token = writer.token_hint();
    writer.release().await.unwrap();
    let behind = behind.await.unwrap();
    assert!(behind.token_hint() > token);
    behind.release().await.unwrap();
}

/// More shared holders than an inspection reads: each of them is found by its token, and can be broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_readers_is_counted_and_each_is_found_by_its_token() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let mut readers = Vec::new();
    for _ in 0..130 {
        readers.push(locks.rw("x").read().ttl(Duration::from_secs(60)).acquire().await.unwrap());
    }
    let writer = locks.rw("x").write();
    let writer = tokio::spawn(async move { writer.acquire().await.unwrap() });
    until_waiting(&locks, "x", 1).await;
    let seen = locks.inspect("x").await.unwrap();
    assert_eq!((seen.hold_count, seen.holds.len()), (130, 21));
    let token = readers[129].token_hint().unwrap();
    assert_eq!(locks.check_token("x", token).await.unwrap(), TokenStatus::Current);
    let order = BreakOrder {
        name: LockName::parse("x").unwrap(),
        token,
        reason: "test".to_owned(),
        by: "ana".to_owned(),
        now: true,
    };
    assert_eq!(locks.break_hold(order).await.unwrap(), Broken::Done);
    assert_eq!(locks.inspect("x").await.unwrap().hold_count, 129);
    drop(readers);
    writer.await.unwrap().release().await.unwrap();
}

/// etcd forgets old revisions while a waiter watches: its watch goes on, or is begun anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_disturbs_no_waiter() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    for round in 0..5 {
        let held = locks.mutex("x").acquire().await.unwrap();
        let lock = locks.mutex("x");
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until_waiting(&locks, "x", 1).await;
        etcd.cli(&["put", "other", &round.to_string()]);
        let answer = etcd.cli(&["get", "other", "--write-out=json"]);
        let revision = answer.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        etcd.cli(&["compact", revision]);
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
}

/// Requests that are dropped at any moment leave no key behind, whatever was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_dropped_at_any_moment_leave_no_key() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    for step in 0..60 {
        let lock = locks.mutex("x");
        // The steps cover the time that an acquire takes here.
        let _ = tokio::time::timeout(Duration::from_micros(step * 100), lock.acquire()).await;
    }
    until("an empty queue", async || {
        let seen = locks.inspect("x").await.unwrap();
        (seen.hold_count + seen.waiter_count == 0).then_some(())
    })
    .await;
}

/// A lease for each waiter: 330 bytes were measured, with those of the holder and the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_at_rest_send_little() {
    lockkeeper_contract::traffic::waiters_rest("etcd", Etcd::start().port(), 800).await;
}
