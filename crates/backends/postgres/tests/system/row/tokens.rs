//! Tokens rise even if rows are deleted (P2), and a retry returns the first grant (P7).

use lockkeeper::{Locks, Token, TokenStatus};
use lockkeeper_rig::Postgres;

use crate::row::support::{SECOND, client, server, token, until};

async fn grant(locks: &Locks) -> u64 {
    let held = locks.mutex("counted").acquire().await.unwrap();
    let token = token(&held);
    held.release().await.unwrap();
    token
}

#[tokio::test]
async fn tokens_rise_after_a_release_an_expiry_and_deletion_by_hand() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let mut last = grant(&locks).await;
    let mut rises = async |after: &str| {
        let next = grant(&locks).await;
        assert!(next > last, "after {after}: {next} is not above {last}");
        last = next;
    };
    rises("a release").await;
    let expired = locks.mutex("counted").ttl(SECOND).no_renew().acquire().await.unwrap();
    expired.lost().cancelled().await;
    rises("an expiry").await;
    server.psql("DELETE FROM lockkeeper.row_lease");
    rises("DELETE").await;
    server.psql("TRUNCATE lockkeeper.row_lease, lockkeeper.row_waiter, lockkeeper.row_gone");
    rises("TRUNCATE").await;
    server.psql("DROP SCHEMA lockkeeper CASCADE");
    crate::row::support::init(&server);
    rises("a schema made anew").await;
    // Running the same SQL again deletes nothing.
    crate::row::support::init(&server);
    rises("the same schema again").await;
}

#[tokio::test]
async fn tokens_rise_while_the_row_exists_even_if_the_clock_is_set_back() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    grant(&locks).await;
    // As if the clock had been a month ahead until now.
    let ahead = server.psql(
        "UPDATE lockkeeper.row_lease SET token = token + 2592000000000 WHERE name = 'counted' RETURNING token",
    );
    let ahead: u64 = ahead.lines().next().unwrap().parse().unwrap();
    assert_eq!(grant(&locks).await, ahead + 1);
    assert_eq!(grant(&locks).await, ahead + 2);
}

#[tokio::test]
async fn a_token_is_current_while_it_is_held_and_never_issued_above_the_last() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let worth = async |token| locks.check_token("counted", Token::new(token).unwrap()).await.unwrap();
    assert_eq!(worth(1 << 52).await, TokenStatus::NeverIssued, "above the clock, and there is no row");
    let held = locks.mutex("counted").acquire().await.unwrap();
    let current = token(&held);
    assert_eq!(worth(current).await, TokenStatus::Current);
    assert_eq!(worth(current + 1).await, TokenStatus::NeverIssued);
    assert_eq!(worth(current - 1).await, TokenStatus::NotCurrent { live: vec![held.token_hint().unwrap()] });
    held.release().await.unwrap();
    assert_eq!(worth(current).await, TokenStatus::NotCurrent { live: vec![] });
}

/// Calls the SQL function directly, as a program without this library may.
fn acquire(server: &Postgres, id: &str, permit: bool) -> (String, Option<u64>) {
    let of = if permit { "2" } else { "NULL" };
    let said = server.psql(&format!(
        "SELECT outcome, token FROM lockkeeper.row_acquire('repeated', '{id}', {permit}, {of}, 30000, 0, false, '', '', NULL)"
    ));
    let (outcome, token) = said.split_once('|').unwrap();
    (outcome.to_owned(), token.parse().ok())
}

fn finish(server: &Postgres, id: &str, doubt: bool) -> String {
    server.psql(&format!("SELECT lockkeeper.row_finish('repeated', '{id}', 0, 30000, {doubt})"))
}

#[test]
fn a_repeated_call_returns_the_first_result() {
    let server = server();
    for permit in [false, true] {
        let first = acquire(&server, "a-1", permit);
        assert_eq!(first.0, "granted");
        assert_eq!(acquire(&server, "a-1", permit), first);
        assert_eq!(finish(&server, "a-1", false), "released");
        assert_eq!(finish(&server, "a-1", false), "released", "nobody held it since");
        let next = acquire(&server, "a-2", permit);
        assert!(next.0 == "granted" && next.1 > first.1);
        assert_eq!(finish(&server, "a-1", false), "gone", "a late one ends nobody's hold");
        assert_eq!(acquire(&server, "a-2", permit), next);
        assert_eq!(finish(&server, "a-2", false), "released");
    }
}

#[test]
fn an_attempt_that_arrives_after_its_end_holds_nothing() {
    let server = server();
    assert_eq!(finish(&server, "a-1", true), "gone");
    assert_eq!(acquire(&server, "a-1", false), ("over".to_owned(), None));
    assert_eq!(acquire(&server, "a-2", false).0, "granted", "it stands in nobody else's way");
    assert_eq!(finish(&server, "a-2", false), "released");
    // Nor may an attempt that arrives after the hold of its request was broken acquire the lock.
    let (_, broken) = acquire(&server, "a-3", false);
    server.psql(&format!("SELECT lockkeeper.row_break('repeated', {}, '', '', true)", broken.unwrap()));
    assert_eq!(finish(&server, "a-3", true), "broken");
    assert_eq!(acquire(&server, "a-3", false), ("over".to_owned(), None));
    // The row in `row_gone` expires once no attempt of its request can still be in flight.
    server.psql("UPDATE lockkeeper.row_gone SET expires = clock_timestamp()");
    assert_eq!(acquire(&server, "a-1", false).0, "granted");
}

#[test]
fn a_renewal_does_not_restore_an_ended_hold() {
    let server = server();
    let renew = || {
        server.psql(
            "SELECT lockkeeper.row_renew('{repeated,repeated,x}', '{a-1,a-2,a-1}', '{1000,60000,1000}')",
        )
    };
    assert_eq!(renew(), "ggg");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.row_lease"), "0", "nor does it make a row");
    acquire(&server, "a-1", false);
    assert_eq!(renew(), "kgg");
    server.psql(
        "UPDATE lockkeeper.row_lease SET held_until = clock_timestamp(), shut_until = clock_timestamp()",
    );
    assert_eq!(renew(), "ggg");
    acquire(&server, "a-2", false);
    assert_eq!(renew(), "gkg", "by its id, not by its name");
}

#[test]
fn the_sizes_of_arguments_are_limited() {
    let server = server();
    // `used` has a row, so that the first statement of row_acquire could grant it; `new` has none.
    server.psql("SELECT lockkeeper.row_acquire('used', 'a-0', false, NULL, 1000, 0, false, '', '', NULL)");
    server.psql("SELECT lockkeeper.row_finish('used', 'a-0', 0, 1000, false)");
    let said = |bytes: usize| format!("'{}'", "x".repeat(bytes));
    let (id, none) = (said(3), said(0));
    for name in ["used", "new"] {
        for (ttl, id, label, meta, wake, says) in [
            (30_000, &said(101), &none, &none, &none, "at most 100, 40, 256, 1024"),
            (30_000, &id, &said(257), &none, &none, "at most 100, 40, 256, 1024"),
            (30_000, &id, &none, &said(1025), &none, "at most 100, 40, 256, 1024"),
            (30_000, &id, &none, &none, &said(41), "at most 100, 40, 256, 1024"),
            (3_600_001, &id, &none, &none, &none, "at most 1 h"),
            (0, &id, &none, &none, &none, "at most 1 h"),
        ] {
            for permit in ["false, NULL", "true, 2"] {
                let call = format!(
                    "SELECT lockkeeper.row_acquire('{name}', {id}, {permit}, {ttl}, 0, false, {label}, {meta}, {wake})"
                );
                let error = server.try_psql(&call).unwrap_err();
                assert!(error.contains(says), "{error}");
            }
        }
    }
    let long = "x".repeat(513);
    for call in [
        format!("row_acquire('{long}', 'a-1', false, NULL, 1000, 0, false, '', '', NULL)"),
        format!("row_finish('{long}', 'a-1', 0, 1000, true)"),
        format!("row_break('{long}', 1, '', '', false)"),
    ] {
        let error = server.try_psql(&format!("SELECT lockkeeper.{call}")).unwrap_err();
        assert!(error.contains("a name of 513 bytes"), "{error}");
    }
    let left = "SELECT string_agg(name, ' ') FROM lockkeeper.row_lease WHERE held_until > clock_timestamp() OR name <> 'used'";
    assert_eq!(server.psql(left), "");
}

#[tokio::test]
async fn waiting_for_the_row_does_not_shorten_a_grant() {
    let server = server();
    server.psql("SELECT lockkeeper.row_acquire('slow', 'a-1', false, NULL, 1000, 0, false, '', '', NULL)");
    server.psql("SELECT lockkeeper.row_finish('slow', 'a-1', 0, 1000, false)");
    let (hand, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    hand.batch_execute("BEGIN; SELECT FROM lockkeeper.row_lease WHERE name = 'slow' FOR UPDATE")
        .await
        .unwrap();
    let (caller, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let call = "SELECT lockkeeper.row_acquire('slow', 'a-2', false, NULL, 60000, 0, false, '', '', NULL)";
    let granted = tokio::spawn(async move { caller.batch_execute(call).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    until("it waits for the row", async || (server.psql(waits) == "1").then_some(())).await;
    let before: f64 = server.psql("SELECT date_part('epoch', clock_timestamp())").parse().unwrap();
    hand.batch_execute("COMMIT").await.unwrap();
    granted.await.unwrap().unwrap();
    let held: f64 =
        server.psql("SELECT date_part('epoch', held_until) FROM lockkeeper.row_lease").parse().unwrap();
    assert!(held >= before + 60.0, "{held} is a ttl after {before} at least");
}
