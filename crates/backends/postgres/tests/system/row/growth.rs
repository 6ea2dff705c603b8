//! The tables do not grow without limit: rows that are no longer needed are removed, others are kept.

use lockkeeper_rig::Postgres;

use crate::row::support::{client, server, token, until};

fn clean(server: &Postgres) -> usize {
    // Resets the time of the last cleanup, which would suppress this one. One transaction, so that no client
    // cleans up in between.
    server
        .psql("UPDATE lockkeeper.row_sweep SET swept = '-infinity'; SELECT lockkeeper.row_clean(500, false)")
        .parse()
        .unwrap()
}

fn rows(server: &Postgres, table: &str) -> usize {
    server.psql(&format!("SELECT count(*) FROM lockkeeper.{table}")).parse().unwrap()
}

#[tokio::test]
async fn an_unused_lock_is_removed_after_a_day_and_not_before() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    for name in ["held", "old", "fresh"] {
        let held = locks.mutex(name).acquire().await.unwrap();
        if name == "held" {
            std::mem::forget(held);
        } else {
            held.release().await.unwrap();
        }
    }
    until("the client has cleaned, as each does when it begins", async || {
        (server.psql("SELECT swept > '-infinity' FROM lockkeeper.row_sweep") == "t").then_some(())
    })
    .await;
    assert_eq!(clean(&server), 0);
    let age = |hours: u32| {
        server.psql(&format!(
            "UPDATE lockkeeper.row_lease SET since = clock_timestamp() - interval '{hours} hours', \
             used = clock_timestamp() - interval '{hours} hours' WHERE name <> 'fresh'"
        ))
    };
    age(23);
    assert_eq!(clean(&server), 0);
    age(25);
    let before: u64 =
        server.psql("SELECT token FROM lockkeeper.row_lease WHERE name = 'old'").parse().unwrap();
    assert_eq!(clean(&server), 1, "the one that nobody holds");
    assert_eq!(server.psql("SELECT name FROM lockkeeper.row_lease ORDER BY name"), "fresh\nheld");
    let held = locks.mutex("old").acquire().await.unwrap();
    assert!(token(&held) > before, "the clock is the floor");
}

#[test]
fn expired_waiters_permits_and_marks_are_removed() {
    let server = server();
    let call = |call: &str| server.psql(&format!("SELECT lockkeeper.{call}"));
    for id in 1..=3 {
        call(&format!("row_acquire('a', 'p-{id}', true, 3, 30000, 0, false, '', '', NULL)"));
    }
    call("row_acquire('a', 'w-1', false, NULL, 30000, 0, true, '', '', NULL)");
    call("row_finish('b', 'g-1', 0, 30000, true)");
    assert_eq!(
        (rows(&server, "row_lease"), rows(&server, "row_waiter"), rows(&server, "row_gone")),
        (4, 1, 1)
    );
    assert_eq!(clean(&server), 0, "all are alive");
    server.psql(
        "UPDATE lockkeeper.row_lease SET held_until = held_until - interval '2 h', shut_until = shut_until - interval '2 h';
         UPDATE lockkeeper.row_waiter SET expires = expires - interval '2 h';
         UPDATE lockkeeper.row_gone SET expires = expires - interval '2 h'",
    );
    assert_eq!(clean(&server), 5, "two permits, a waiter, a mark, and a lock that never had a holder");
    assert_eq!(
        (rows(&server, "row_lease"), rows(&server, "row_waiter"), rows(&server, "row_gone")),
        (1, 0, 0)
    );
    assert_eq!(server.psql("SELECT bool_or(crowded) FROM lockkeeper.row_lease"), "f");
    // Waiters whose lock was deleted by hand are removed too.
    call("row_acquire('c', 'x-1', false, NULL, 30000, 0, true, '', '', NULL)");
    call("row_acquire('c', 'x-2', false, NULL, 30000, 0, true, '', '', NULL)");
    server.psql("DELETE FROM lockkeeper.row_lease; UPDATE lockkeeper.row_waiter SET expires = expires - interval '2 h'");
    assert_eq!(clean(&server), 1);
}

#[test]
fn many_locks_are_removed_in_several_calls_with_pauses() {
    let server = server();
    server.psql(
        "INSERT INTO lockkeeper.row_lease (name, slot, since)
         SELECT to_char(n, '00000'), 0, clock_timestamp() - interval '31 days' FROM generate_series(1, 1200) n",
    );
    let turns: Vec<usize> = (0..4).map(|_| clean(&server)).collect();
    assert_eq!(turns.iter().sum::<usize>(), 1200, "{turns:?}");
    assert!(turns[0] <= 501, "{turns:?}");
    let at_once = "SELECT lockkeeper.row_clean(500, false)";
    server.psql("INSERT INTO lockkeeper.row_lease (name, slot, since) VALUES ('z', 0, '2020-01-01')");
    assert_eq!(server.psql(at_once), "0", "ten seconds have not passed");
    assert_eq!(
        server.psql("SELECT lockkeeper.row_clean(500, true)"),
        "1",
        "who has just found something goes on"
    );
}

#[tokio::test]
async fn clients_clean_up_in_the_background() {
    let server = server();
    server.psql("INSERT INTO lockkeeper.row_lease (name, slot, since) VALUES ('old', 0, '2020-01-01')");
    let locks = client(&server.url(), "client").await;
    let held = locks.mutex("any").acquire().await.unwrap();
    until("the old one is gone", async || (rows(&server, "row_lease") == 1).then_some(())).await;
    held.release().await.unwrap();
}
