//! Requests of this library among themselves, on one server.

use std::time::Duration;

use lockkeeper::{
    AcquireError, BreakOrder, Broken, ConnectError, LockName, Locks, LossCause, TokenStatus, Wait,
};
use lockkeeper_rig::ZooKeeper;

use crate::{client, raw, until, until_waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_does_not_wait_for_a_holder_below_its_name() {
    let server = ZooKeeper::start();
    for query in ["", "/some/where", "/plain?layout=plain"] {
        let locks = client(&server, query).await;
        let below = locks.mutex("a/b").acquire().await.unwrap();
        let above = locks.mutex("a").try_acquire().await.unwrap().expect("another lock");
        let names: Vec<String> =
            locks.list(None).await.unwrap().iter().map(|lock| lock.name.to_string()).collect();
        assert_eq!(names, ["a", "a/b"], "{query}");
        let names: Vec<_> =
            locks.list(Some("a/b")).await.unwrap().into_iter().map(|lock| lock.name).collect();
        assert_eq!(names, [LockName::parse("a/b").unwrap()]);
        above.release().await.unwrap();
        below.release().await.unwrap();
        assert!(locks.list(None).await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_in_order_and_their_tokens_rise() {
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
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
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let lock = locks.mutex("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&locks, "x", 1).await;
    waiter.abort();
    until_waiting(&locks, "x", 0).await;
    held.release().await.unwrap();
    locks.mutex("x").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

/// Requests that are dropped at any moment leave nothing behind, whatever was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_dropped_at_any_moment_leave_no_node() {
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_hold_together_and_a_writer_waits_for_all_of_them() {
    let server = ZooKeeper::start();
    for query in ["", "?recipe=readwrite"] {
        let locks = client(&server, query).await;
        let readers =
            [locks.rw("x").read().acquire().await.unwrap(), locks.rw("x").read().acquire().await.unwrap()];
        let seen = locks.inspect("x").await.unwrap();
        assert_eq!((seen.hold_count, seen.waiter_count), (2, 0));
        assert!(locks.rw("x").write().try_acquire().await.unwrap().is_none());
        let writer = locks.rw("x").write();
        let writer = tokio::spawn(async move { writer.acquire().await.unwrap() });
        until_waiting(&locks, "x", 1).await;
        // A reader behind the writer waits for it.
        assert!(locks.rw("x").read().try_acquire().await.unwrap().is_none());
        let [one, other] = readers;
        one.release().await.unwrap();
        assert!(!writer.is_finished());
        other.release().await.unwrap();
        let writer = writer.await.unwrap();
        assert!(locks.rw("x").read().try_acquire().await.unwrap().is_none());
        writer.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_holder_is_told_at_once_and_a_break_names_its_hold() {
    let server = ZooKeeper::start();
    let (locks, operator) = (client(&server, "").await, client(&server, "").await);
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

/// More shared holders than an inspection shows: each of them is found by its token, and can be broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_readers_is_counted_and_each_is_found_by_its_token() {
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
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

/// A hold whose node somebody deleted is lost at once; its release deletes nothing of the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_node_is_a_loss_at_once_and_its_release_spares_the_next_holder() {
    let server = ZooKeeper::start();
    let (one, other) = (client(&server, "").await, client(&server, "").await);
    let held = one.mutex("x").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let raw = raw(&server).await;
    let [node] = &raw.list_children("/lockkeeper/x").await.unwrap()[..] else { panic!("one node") };
    raw.delete(&format!("/lockkeeper/x/{node}"), None).await.unwrap();
    let next = other.mutex("x").acquire().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), held.lost().cancelled())
        .await
        .expect("told before any renewal");
    let _ = held.release().await;
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

/// ZooKeeper removes empty containers, here after 100 ms: the lock's node may vanish at any moment of an
/// acquire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_containers_disturb_no_acquire() {
    let server = ZooKeeper::start();
    let locks = client(&server, "").await;
    let raw = raw(&server).await;
    for round in 0..20 {
        let held = locks.mutex("x").acquire().await.unwrap();
        held.release().await.unwrap();
        if round == 0 {
            until("the removal", async || {
                raw.check_stat("/lockkeeper/x").await.unwrap().is_none().then_some(())
            })
            .await;
        } else {
            // Around the time of the removal.
            tokio::time::sleep(Duration::from_millis(90 + round)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_beyond_the_servers_longest_session_is_refused() {
    let server = ZooKeeper::start();
    // With this tick, a session for a ttl of an hour would be longer than the servers grant.
    let locks = client(&server, "?tick_ms=60000").await;
    let error = locks.mutex("x").ttl(Duration::from_secs(3660)).acquire().await.expect_err("too long");
    assert!(error.to_string().contains("3600"), "{error}");
    let locks = client(&server, "?tick_ms=60000").await;
    assert!(locks.mutex("x").ttl(Duration::from_secs(3600)).acquire().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_users_locks_are_denied() {
    let server = ZooKeeper::start();
    let as_user = |login: &str| format!("zookeeper://{login}@127.0.0.1:{}", server.port());
    let ana = Locks::connect(&as_user("ana:secret")).await.unwrap();
    ana.mutex("x").acquire().await.unwrap().release().await.unwrap();
    let held = ana.mutex("x").acquire().await.unwrap();
    for login in ["ana:wrong", "bob:secret"] {
        let other = Locks::connect(&as_user(login)).await.unwrap();
        let error = other.mutex("x").wait(Wait::No).acquire().await.expect_err("no permission");
        assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
        assert!(error.to_string().contains("not authorized"), "{error}");
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_missing_is_named_with_the_reason() {
    let error = Locks::connect("zookeeper://127.0.0.1:1").await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Backend(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1: Connection refused"), "{text}");
}

/// Inspection takes what it gets; a ttl that is too long is refused with the longest one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_sessions_are_reported_and_hinder_no_inspection() {
    let server = ZooKeeper::with("minSessionTimeout=3000\nmaxSessionTimeout=6000\n");
    let locks = client(&server, "?tick_ms=500").await;
    assert!(locks.list(None).await.unwrap().is_empty());
    let found = locks.findings().await.unwrap();
    let says = &found[0].says;
    for part in ["3s to 6s", "above 5.5s is refused", "below 2.5s", "stay taken for 3s"] {
        assert!(says.contains(part), "{part}: {says}");
    }
    let error = locks.mutex("x").ttl(Duration::from_secs(30)).acquire().await.unwrap_err().to_string();
    assert!(error.contains("at most 5.5s"), "{error}");
    locks.mutex("x").ttl(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
}

/// A check of each waiter's node: 120 bytes were measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_at_rest_send_little() {
    lockkeeper_contract::traffic::waiters_rest("zookeeper", ZooKeeper::start().port(), 300).await;
}
