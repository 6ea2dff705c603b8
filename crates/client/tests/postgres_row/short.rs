//! The fast path: the views `row_take` and `row_give`, and the cases that they leave to the functions.

use lockkeeper_rig::Postgres;

use crate::support::{client, holder, server, token};

fn call(server: &Postgres, call: &str) -> String {
    server.psql(&format!("SELECT lockkeeper.{call}"))
}

fn acquire(server: &Postgres, id: &str, wait: bool) -> String {
    call(server, &format!("row_acquire('a', '{id}', false, NULL, 30000, 0, {wait}, '', '', NULL)"))
}

fn finish(server: &Postgres, id: &str) -> String {
    call(server, &format!("row_finish('a', '{id}', 0, 30000, false)"))
}

fn take(server: &Postgres, id: &str) -> Option<u64> {
    let said = server.psql(&format!(
        "UPDATE lockkeeper.row_take SET name = 'a', id = '{id}', ttl = '30 s', shut = '30 s', label = '', meta = '',
         wake = NULL RETURNING token"
    ));
    said.lines().next().and_then(|line| line.parse().ok())
}

fn give(server: &Postgres, id: &str) -> bool {
    let sql = format!("UPDATE lockkeeper.row_give SET name = 'a', id = '{id}' RETURNING true");
    server.psql(&sql).lines().next() == Some("t")
}

#[test]
fn a_free_lock_is_taken_with_a_higher_token_and_released_by_its_holder_only() {
    let server = server();
    assert_eq!(take(&server, "a-1"), None, "there is no such row yet");
    assert!(acquire(&server, "a-1", false).starts_with("(granted,"));
    assert_eq!(take(&server, "a-2"), None, "it is held");
    assert!(!give(&server, "a-2"), "by somebody else");
    assert_eq!(finish(&server, "a-1"), "released");
    let first = take(&server, "a-2").expect("it is free");
    let floor: u64 = server.psql("SELECT lockkeeper.row_floor(clock_timestamp())").parse().unwrap();
    assert!(first <= floor && floor - first < 600_000_000, "{first} is by the clock, {floor}");
    assert!(acquire(&server, "a-2", false).starts_with(&format!("(granted,{first},")), "a repeat (P7)");
    assert_eq!(take(&server, "a-2"), None, "it can't tell a repeat");
    assert!(give(&server, "a-2"));
    assert!(!give(&server, "a-2"), "it is over");
    assert_eq!(finish(&server, "a-2"), "released", "a repeat (P7)");
    server.psql("UPDATE lockkeeper.row_lease SET last_token = 9000000000000000");
    assert_eq!(take(&server, "a-3"), Some(9_000_000_000_000_001), "above that of any slot");
}

#[test]
fn cases_beyond_an_uncontended_hold_are_left_to_the_functions() {
    let server = server();
    acquire(&server, "a-1", false);
    finish(&server, "a-1");
    take(&server, "a-2").expect("it is free");
    assert!(acquire(&server, "a-3", true).starts_with("(waits,"));
    assert!(!give(&server, "a-2"), "who waits must be woken");
    assert_eq!(finish(&server, "a-2"), "released");
    assert_eq!(take(&server, "a-4"), None, "who waits comes first");
    assert!(acquire(&server, "a-3", true).starts_with("(granted,"));
    finish(&server, "a-3");

    let broken = take(&server, "a-4").expect("nobody waits");
    assert!(call(&server, &format!("row_break('a', {broken}, '', '', false)")).starts_with("(done,"));
    assert!(!give(&server, "a-4"), "it was revoked");
    assert_eq!(finish(&server, "a-4"), "broken");
    assert_eq!(take(&server, "a-5"), None, "and says so until somebody else has held it");
    acquire(&server, "a-5", false);
    finish(&server, "a-5");

    assert_eq!(call(&server, "row_finish('a', 'a-6', 0, 30000, true)"), "gone");
    assert_eq!(take(&server, "a-6"), None, "an attempt that arrives after its end");
    server.psql("UPDATE lockkeeper.row_gone SET expires = clock_timestamp()");
    acquire(&server, "a-7", false);
    assert_eq!(call(&server, "row_finish('a', 'a-7', 60000, 30000, false)"), "released");
    assert_eq!(take(&server, "a-8"), None, "it is closed");
    server.psql("UPDATE lockkeeper.row_lease SET shut_until = clock_timestamp()");
    take(&server, "a-8").expect("it is open");
    finish(&server, "a-8");

    call(&server, "row_acquire('a', 'a-9', true, 2, 30000, 0, false, '', '', NULL)");
    assert_eq!(take(&server, "a-10"), None, "a permit is held");
    finish(&server, "a-9");
    assert_eq!(take(&server, "a-10"), None, "it was a permit last");
    acquire(&server, "a-10", false);
    finish(&server, "a-10");
    take(&server, "a-11").expect("it is as before");
}

#[test]
fn oversized_columns_are_cut() {
    let server = server();
    acquire(&server, "a-1", false);
    finish(&server, "a-1");
    server.psql(
        "UPDATE lockkeeper.row_take SET name = 'a', id = repeat('i', 101), ttl = '2 h', shut = '26 h',
             label = repeat('l', 257), meta = convert_to(repeat('m', 1025), 'UTF8'), wake = repeat('w', 41)",
    );
    let said = server.psql(
        "SELECT length(id), length(label), length(meta), length(wake), held_until - since < '61 min',
             shut_until - since < '25 h 1 min' FROM lockkeeper.row_lease",
    );
    assert_eq!(said, "100|256|1024|40|t|t");
}

#[tokio::test]
async fn an_uncontended_lock_needs_no_function() {
    let server = Postgres::start();
    server.psql("CREATE ROLE app LOGIN");
    server.psql(&lockkeeper::backends::postgres::schema_sql(Some("app")));
    let locks = client(&server.url_as("app"), "client").await;
    // Waits until the client has found that there is no pooler.
    locks.findings().await.unwrap();
    // The first grant of a name needs a function.
    let held = locks.mutex("a").acquire().await.unwrap();
    let mut last = token(&held);
    held.release().await.unwrap();
    let functions = "row_acquire, lockkeeper.row_finish";
    server.psql(&format!("REVOKE EXECUTE ON FUNCTION lockkeeper.{functions} FROM app"));
    for _ in 0..3 {
        let held = locks.mutex("a").acquire().await.unwrap();
        assert!(token(&held) > last);
        last = token(&held);
        assert_eq!(holder(&locks, "a").await.token, held.token_hint());
        held.release().await.unwrap();
    }
    let held = locks.mutex("a").acquire().await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err().to_string();
    assert!(error.contains("permission denied for function row_acquire"), "{error}");
    server.psql(&format!("GRANT EXECUTE ON FUNCTION lockkeeper.{functions} TO app"));
    let waiter = locks.mutex("a");
    let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    crate::support::until_waiting(&locks, "a", 1).await;
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}
