//! The queue: its order, dead waiters, and wake-ups.

use std::time::Instant;

use lockkeeper::{AcquireError, Wait};

use crate::row::support::{
    SECOND, audit, audited_grants, client, inspect, order, rows, server, until, until_waiting,
};
use lockkeeper_rig::Faults;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_is_skipped_once_its_ttl_is_over() {
    let server = server();
    let faults = Faults::default();
    let address = ([127, 0, 0, 1], server.port()).into();
    let proxied = format!("postgres://postgres@{}/postgres", faults.proxy("dies", address));
    let (holds, dies) = (client(&server.url(), "holds").await, client(&proxied, "dies").await);
    let held = holds.mutex("queue").acquire().await.unwrap();
    let dead = dies.mutex("queue").ttl(2 * SECOND);
    let dead = tokio::spawn(async move { dead.acquire().await.map(drop) });
    until_waiting(&holds, "queue", 1).await;
    let next = holds.mutex("queue");
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_waiting(&holds, "queue", 2).await;
    faults.cut_off("dies");
    held.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
    dead.abort();
    assert_eq!(inspect(&holds, "queue").await.waiter_count, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_leaves_the_queue_and_wakes_the_next() {
    let server = server();
    let (holds, waits) = (client(&server.url(), "holds").await, client(&server.url(), "waits").await);
    // One of two permits is held. An exclusive waiter keeps the later request from taking the other one.
    let held = holds.semaphore("queue", 2).acquire().await.unwrap();
    let alone = waits.mutex("queue").wait(Wait::For(SECOND));
    let alone = tokio::spawn(async move { alone.acquire().await.map(drop) });
    until_waiting(&holds, "queue", 1).await;
    let behind = waits.semaphore("queue", 2);
    let behind = tokio::spawn(async move { behind.acquire().await.unwrap() });
    until_waiting(&holds, "queue", 2).await;
    assert!(matches!(alone.await.unwrap(), Err(AcquireError::TimedOut { .. })));
    assert_eq!(behind.await.unwrap().slot(), Some(1));
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_and_do_not_poll_the_server() {
    const WAITERS: usize = 20;
    let server = server();
    audit(&server);
    let holds = client(&server.url(), "holds").await;
    let waits = client(&server.url(), "waits").await;
    assert!(waits.findings().await.unwrap().iter().all(|finding| !finding.says.contains("pooler")));
    let held = holds.mutex("queue").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for turn in 1..=WAITERS {
        let lock = waits.mutex("queue");
        tasks.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() }));
        until_waiting(&holds, "queue", turn).await;
    }
    // Each attempt of a waiter writes its row in `row_waiter` once: it inserts the row, or extends it by a
    // ttl.
    let writes = || -> usize {
        server.psql("SELECT pg_stat_force_next_flush()");
        let count = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'row_waiter'";
        server.psql(count).parse().unwrap()
    };
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(audited_grants(&server), WAITERS + 1);
    let writes = writes();
    assert!(writes < WAITERS * 5, "{writes} for {WAITERS} waiters");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_wake_up_delays_the_grant_by_about_a_second() {
    let server = server();
    let (holds, waits) = (client(&server.url(), "holds").await, client(&server.url(), "waits").await);
    waits.findings().await.unwrap();
    let held = holds.mutex("queue").acquire().await.unwrap();
    let next = waits.mutex("queue");
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_waiting(&holds, "queue", 1).await;
    // The hold is ended by hand, without a wake-up.
    server.psql(
        "UPDATE lockkeeper.row_lease SET held_until = clock_timestamp(), shut_until = clock_timestamp()",
    );
    next.await.unwrap().release().await.unwrap();
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listening_connection_is_reopened_and_delivers_wake_ups() {
    let server = server();
    let (holds, waits) = (client(&server.url(), "holds").await, client(&server.url(), "waits").await);
    waits.findings().await.unwrap();
    let listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN lockkeeper_%'";
    let first: Vec<String> = server.psql(listening).lines().map(str::to_owned).collect();
    assert!(!first.is_empty());
    for pid in &first {
        server.psql(&format!("SELECT pg_terminate_backend({pid})"));
    }
    let second = until("it listens again", async || {
        let now = server.psql(listening);
        (!now.is_empty() && now.lines().all(|pid| !first.contains(&pid.to_owned()))).then_some(now)
    })
    .await;
    assert!(!second.is_empty());
    let held = holds.mutex("queue").acquire().await.unwrap();
    let next = waits.mutex("queue");
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_waiting(&holds, "queue", 1).await;
    held.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_reaches_its_holder_long_before_a_keep_alive_would() {
    let server = server();
    let (holds, breaks) = (client(&server.url(), "holds").await, client(&server.url(), "breaks").await);
    // Renewed every twenty minutes.
    let held = holds.mutex("broken").ttl(3600 * SECOND).acquire().await.unwrap();
    // The grant may be older than the client's check for poolers, which `findings` waits for. The break must
    // reach the holder all the same.
    holds.findings().await.unwrap();
    breaks.break_hold(order("broken", &held, false)).await.unwrap();
    let began = Instant::now();
    until("the holder hears of it", async || held.loss()).await;
    assert!(began.elapsed() < 60 * SECOND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locked_by_hand_blocks_no_other_lock() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let kept = locks.mutex("kept").ttl(2 * SECOND).acquire().await.unwrap();
    let stuck = locks.mutex("stuck").acquire().await.unwrap();
    let (hand, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    hand.batch_execute("BEGIN; SELECT FROM lockkeeper.row_lease WHERE name = 'stuck' FOR UPDATE")
        .await
        .unwrap();
    let stuck = tokio::spawn(async move { stuck.release().await });
    let until_kept = kept.valid_until().unwrap().unwrap();
    until("it is renewed meanwhile, several times", async || {
        (kept.valid_until().unwrap().unwrap() > until_kept + 4 * SECOND).then_some(())
    })
    .await;
    assert!(locks.mutex("other").try_acquire().await.unwrap().is_some());
    hand.batch_execute("COMMIT").await.unwrap();
    let _ = stuck.await.unwrap();
    until("the release arrives after all", async || {
        inspect(&locks, "stuck").await.holds.is_empty().then_some(())
    })
    .await;
    kept.release().await.unwrap();
}

#[tokio::test]
async fn the_url_sets_the_number_of_connections() {
    let server = server();
    for (connections, right) in [("0", false), ("1001", false), ("x", false), ("1", true)] {
        let url = format!("{}?lock=row&connections={connections}", server.url());
        match lockkeeper::Locks::connect(&url).await {
            Ok(locks) => {
                assert!(right, "{connections}");
                let held = locks.mutex("one").acquire().await.unwrap();
                held.release().await.unwrap();
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!right && error.contains("from 1 to 1000"), "{connections}: {error}");
            }
        }
    }
    let error =
        lockkeeper::Locks::connect(&format!("{}&connection=3", rows(&server.url()))).await.err().unwrap();
    assert!(error.to_string().contains("did you mean `connections`"), "{error}");
}
