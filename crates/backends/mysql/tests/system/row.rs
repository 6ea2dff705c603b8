//! Lease rows: late attempts, locked rows, breaks, and a server that is killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockkeeper::{AcquireError, BreakOrder, Locks, Wait};
use lockkeeper_contract::until;
use lockkeeper_rig::{Faults, MariaDb};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};

use crate::{SECOND, client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_attempt_that_arrives_late_does_not_hold() {
    let (server, faults) = (MariaDb::start(), Faults::default());
    let address = faults.proxy("slow", SocketAddr::from(([127, 0, 0, 1], server.port())));
    let locks = Locks::connect(&MariaDb::url_at(&address.to_string())).await.unwrap();
    // The row is there, so that the attempt is one statement.
    locks.mutex("late").acquire().await.unwrap().release().await.unwrap();
    faults.hold_back("late", 1);
    let acquiring = tokio::spawn({
        let lock = locks.mutex("late").ttl(60 * SECOND);
        async move { lock.acquire().await.map(drop) }
    });
    until("the attempt is on its way", async || (faults.held_back() == 1).then_some(())).await;
    acquiring.abort();
    let marks = "SELECT COUNT(*) FROM lockkeeper_gone";
    until("it is cancelled", async || (server.sql(marks) == "1").then_some(())).await;
    let before = server.sql("SHOW GLOBAL STATUS LIKE 'Handler_update'");
    faults.let_go();
    until("the server has seen the attempt", async || {
        let waits =
            "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'UPDATE lockkeeper_lease%'";
        (server.sql(waits) == "0" && before == server.sql("SHOW GLOBAL STATUS LIKE 'Handler_update'"))
            .then_some(())
    })
    .await;
    let other = client(&server, "").await;
    assert!(other.mutex("late").try_acquire().await.unwrap().is_some(), "{:?}", other.inspect("late").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_has_locked_is_waited_for() {
    let server = MariaDb::start();
    let locks = client(&server, "").await;
    locks.mutex("busy").acquire().await.unwrap().release().await.unwrap();
    let mut operator = Conn::from_url(server.url()).await.unwrap();
    let mut locked = operator.start_transaction(TxOpts::default()).await.unwrap();
    locked.query_drop("SELECT id FROM lockkeeper_lease WHERE name = 'busy' FOR UPDATE").await.unwrap();
    let acquiring = tokio::spawn({
        let lock = locks.mutex("busy");
        async move { lock.acquire().await }
    });
    // A statement ends with error 1205 after 2 s, and is repeated.
    until("two statements have waited", async || {
        let waits = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'");
        let (_, waits) = waits.split_once('\t').unwrap();
        (waits.parse::<u64>().unwrap() >= 2).then_some(())
    })
    .await;
    locked.commit().await.unwrap();
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_reaches_its_holder_by_the_next_renewal_and_is_shown() {
    let server = MariaDb::start();
    let (holds, operates) = (client(&server, "").await, client(&server, "").await);
    let held = holds.mutex("broken").ttl(3 * SECOND).grace(SECOND).acquire().await.unwrap();
    let order = |now| BreakOrder {
        name: "broken".parse().unwrap(),
        token: held.token_hint().unwrap(),
        reason: "maintenance".into(),
        by: "ann".into(),
        now,
    };
    operates.break_hold(order(false)).await.unwrap();
    let shown = format!("{:?}", operates.inspect("broken").await.unwrap().holds[0].state);
    assert!(shown.contains("maintenance") && shown.contains("ann"), "{shown}");
    let lost = held.lost();
    until("the holder hears of it", async || lost.is_cancelled().then_some(())).await;
    operates.break_hold(order(true)).await.unwrap();
    assert!(operates.mutex("broken").try_acquire().await.unwrap().is_some());
}

/// Tokens of all grants rise, no two sections overlap, and all clients go on after each kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_no_grant_under_64_clients() {
    const CLIENTS: usize = 64;
    let server = MariaDb::start();
    let locks = client(&server, "connections=16").await;
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (sections, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (inside, last, sections, stop) =
                (inside.clone(), last.clone(), sections.clone(), stop.clone());
            // Short: a grant whose answer is lost with the server keeps the others waiting.
            let lock = locks.mutex("one").ttl(5 * SECOND);
            let own = locks.mutex(&*format!("own/{number}")).ttl(5 * SECOND);
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match own.acquire().await {
                        Ok(held) => drop(held),
                        Err(AcquireError::Ambiguous { .. } | AcquireError::Backend(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    // Long enough for the whole queue: waiters poll, and where all of them give up and come
                    // again the first one sleeps for as long as it did at its end.
                    let waiting = lock.clone().wait(Wait::For(10 * SECOND));
                    let Ok(held) = waiting.acquire().await else { continue };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two sections at the same time");
                    let token = held.token_hint().unwrap().get();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens rise");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    sections.fetch_add(1, Ordering::SeqCst);
                    drop(held);
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let before = sections.load(Ordering::SeqCst);
        until("they work", async || (sections.load(Ordering::SeqCst) > before + 5).then_some(())).await;
        tokio::task::block_in_place(|| {
            server.kill();
            server.start_again();
        });
    }
    let before = sections.load(Ordering::SeqCst);
    until("they work again", async || (sections.load(Ordering::SeqCst) > before + 5).then_some(())).await;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
}
