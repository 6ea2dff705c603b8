//! The token sequence: its requirements, harmful settings, and that it only rises.

use std::collections::BTreeSet;

use lockkeeper::backends::postgres::init;
use lockkeeper::backends::postgres::tokio_postgres::{self, NoTls};
use lockkeeper::{AcquireError, ConnectError, Locks, Token, TokenStatus};
use lockkeeper_rig::Postgres;

use crate::session::world::{World, for_session, until};

fn why_not(locks: Locks) -> String {
    locks.fenced().expect_err("it gives no tokens").to_string()
}

#[tokio::test]
async fn without_the_schema_there_are_locks_without_tokens() {
    let server = Postgres::start();
    let url = for_session(&server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(held.token_hint(), None);
    let shown = locks.inspect("a").await.unwrap();
    assert_eq!((shown.holds.len(), shown.holds[0].token), (1, None));
    held.verify().await.unwrap();
    held.release().await.unwrap();
    let why = why_not(locks);
    assert!(why.contains("no sequence `lockkeeper.token`") && why.contains("postgres init"), "{why}");

    // A client opened after `init` has tokens.
    init(&server.url(), None).await.unwrap();
    let fenced = Locks::connect(&url).await.unwrap().fenced().unwrap();
    fenced.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

/// A connection acquires by a statement that it prepared once. A repeated hold must show its current owner,
/// token and metadata, and exclude others, like the first.
#[tokio::test]
async fn repeated_locks_show_their_current_owner() {
    for tokens in [false, true] {
        let server = Postgres::start();
        if tokens {
            init(&server.url(), None).await.unwrap();
        }
        let client = async |label| Locks::connect_as(&for_session(&server.url()), label).await.unwrap();
        repeats(client("alice").await, client("bob").await, tokens).await;
    }
}

async fn repeats(alice: Locks, bob: Locks, tokens: bool) {
    let mut last = None;
    for (name, job) in
        [("a", "1"), ("a", "1"), ("a", "1"), ("b", "1"), ("b", "1"), ("b", "2"), ("b", "2"), ("a", "2")]
    {
        let held = alice.mutex(name).meta("job", job).acquire().await.unwrap();
        let shown = alice.inspect(name).await.unwrap();
        assert_eq!((shown.holds.len(), shown.holds[0].token), (1, held.token_hint()), "{name}");
        assert!(if tokens { held.token_hint() > last } else { held.token_hint().is_none() }, "{last:?}");
        last = held.token_hint();
        assert!(shown.holds[0].label.contains("alice"), "{:?}", shown.holds[0]);
        assert_eq!(shown.holds[0].meta, [("job".to_owned(), job.to_owned())]);
        for _ in 0..3 {
            assert!(bob.mutex(name).try_acquire().await.unwrap().is_none(), "{name}");
        }
        held.release().await.unwrap();
        bob.mutex(name).try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
    }
}

#[tokio::test]
async fn documented_grants_suffice_and_missing_ones_are_reported() {
    let server = Postgres::start();
    server.psql("create role app login; create role stranger login");
    let as_app = init(&server.url_as("app"), None).await;
    let Err(ConnectError::Backend(error)) = as_app else { panic!("{as_app:?}") };
    assert!(error.to_string().contains("may create schemas"), "{error}");

    init(&server.url(), Some("app")).await.unwrap();
    let app = Locks::connect(&for_session(&server.url_as("app"))).await.unwrap();
    let fenced = app.clone().fenced().unwrap();
    let held = fenced.mutex("a").acquire().await.unwrap();
    let status = app.check_token("a", held.token()).await.unwrap();
    assert_eq!(status, TokenStatus::Current);
    held.release().await.unwrap();

    let stranger = Locks::connect(&for_session(&server.url_as("stranger"))).await.unwrap();
    stranger.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let why = why_not(stranger);
    assert!(why.contains("may not use the sequence") && why.contains("--role"), "{why}");

    // If the privilege is revoked later, an acquire fails: the lock is not granted without a token.
    server.psql("revoke all on sequence lockkeeper.token from app");
    let refused = app.mutex("a").acquire().await.unwrap_err();
    assert!(
        matches!(&refused, AcquireError::Backend(error) if error.to_string().contains("permission denied")),
        "{refused}"
    );
    server.psql("grant usage, select on sequence lockkeeper.token to app");
    app.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn sequence_that_is_not_monotonic_is_refused() {
    for (change, says) in [
        ("cache 10", "a cache above 1"),
        ("increment by -1", "does not rise by 1"),
        ("cycle", "begins again at its end"),
    ] {
        let world = World::start();
        world.server.psql(&format!("alter sequence lockkeeper.token {change}"));
        let why = why_not(world.client("asks").await);
        assert!(why.contains(says) && why.contains("alter sequence"), "{change}: {why}");
    }
}

#[tokio::test]
async fn init_starts_at_the_clock_and_never_lowers_tokens() {
    let server = Postgres::start();
    let last = || -> u64 { server.psql("select last_value from lockkeeper.token").trim().parse().unwrap() };
    init(&server.url(), None).await.unwrap();
    let first = last();
    let year = 365 * 24 * 3600 * 1_000_000_u64;
    assert!((year / 2..1 << 53).contains(&first), "{first} is not about the microseconds since 2026");
    server.psql("select setval('lockkeeper.token', 9007199254740000)");
    init(&server.url(), None).await.unwrap();
    assert_eq!(last(), 9_007_199_254_740_000);
    // As after the restore of a backup.
    server.psql("select setval('lockkeeper.token', 7)");
    init(&server.url(), None).await.unwrap();
    assert!(last() >= first, "{} after {first}", last());
}

/// `create … if not exists` would keep an object of another role, which could then run its own code with the
/// privileges of everybody who uses the object.
#[tokio::test]
async fn init_refuses_objects_of_another_role() {
    for trap in [
        "create schema lockkeeper authorization other",
        "create schema lockkeeper; create table lockkeeper.row_lease (); alter table lockkeeper.row_lease owner to other",
        "create schema lockkeeper; create sequence lockkeeper.token; alter sequence lockkeeper.token owner to other",
        "create schema lockkeeper; create function lockkeeper.f() returns int language sql as 'select 1'; \
         alter function lockkeeper.f() owner to other",
    ] {
        let server = Postgres::start();
        server.psql("create role other login; grant create on database postgres to other");
        server.psql(trap);
        let error = init(&server.url(), None).await.expect_err(trap).to_string();
        assert!(error.contains("belongs to the role other and not to postgres"), "{error}");
        // The owner of all objects may run `init` repeatedly.
        server.psql("drop schema lockkeeper cascade");
        for _ in 0..2 {
            init(&server.url_as("other"), None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn tokens_rise_and_their_status_is_reported() {
    let world = World::start();
    let (one, two) = (world.client("one").await, world.client("two").await);
    let name = "a";
    let mut last = None;
    for round in 0..10 {
        let locks = if round % 2 == 0 { &one } else { &two };
        let held = locks.mutex(name).acquire().await.unwrap();
        assert!(held.token_hint() > last);
        last = held.token_hint();
        held.release().await.unwrap();
    }
    let reader = one.rw(name).read().acquire().await.unwrap();
    let another = two.rw(name).read().acquire().await.unwrap();
    let (old, live) = (last.unwrap(), vec![reader.token_hint().unwrap(), another.token_hint().unwrap()]);
    assert_eq!(one.check_token(name, live[0]).await.unwrap(), TokenStatus::Current);
    assert_eq!(one.check_token(name, old).await.unwrap(), TokenStatus::NotCurrent { live: live.clone() });
    let above = Token::new(live[1].get() + 1).unwrap();
    assert_eq!(one.check_token(name, above).await.unwrap(), TokenStatus::NeverIssued);
}

/// WAL positions: inserted and flushed.
fn log(server: &Postgres) -> (u64, u64) {
    let position = |which: &str| -> u64 {
        server.psql(&format!("select pg_wal_lsn_diff(pg_current_wal_{which}_lsn(), '0/0')")).parse().unwrap()
    };
    (position("insert"), position("flush"))
}

#[tokio::test]
async fn token_is_synced_before_the_grant_unless_the_wal_is_synced() {
    // Neither the WAL writer nor autovacuum flushes the WAL during the test.
    let world = World::with(&["-c", "wal_writer_delay=10s", "-c", "autovacuum=off"]);
    world.server.psql("create table noise (a int)");
    let locks = world.client("draws").await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();

    let (mut hand, connection) = tokio_postgres::connect(&world.server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = hand.transaction().await.unwrap();
    transaction.batch_execute("insert into noise values (1)").await.unwrap();
    let (logged, synced) = log(&world.server);
    assert!(synced < logged, "the fault did not bite");
    let held = locks.mutex("a").acquire().await.unwrap();
    assert!(log(&world.server).1 >= logged, "what covers the token is not synced");
    held.release().await.unwrap();
    transaction.rollback().await.unwrap();

    // Repeated until one acquire writes no WAL: every 32nd value of a sequence is logged, and the server
    // writes other records now and then.
    until("a token costs nothing", async || {
        let before = log(&world.server).0;
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        (log(&world.server).0 == before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn token_waits_for_synchronous_standbys() {
    let world = World::start();
    let locks = Locks::connect(&format!("{}?lock=session&timeout=30s", world.server.url())).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let wait_for = |standby: &str| {
        world.server.psql(&format!("alter system set synchronous_standby_names = '{standby}'"));
        world.server.psql("select pg_reload_conf()");
    };
    wait_for("nobody");
    let shown = || world.server.psql("show synchronous_standby_names");
    until("it is in force", async || (shown() == "nobody").then_some(())).await;
    let acquiring = tokio::spawn(async move { locks.mutex("a").acquire().await });
    let waits = || world.server.psql("select count(*) from pg_stat_activity where wait_event = 'SyncRep'");
    until("it waits for the standby", async || (waits() == "1").then_some(())).await;
    assert!(!acquiring.is_finished());
    wait_for("");
    acquiring.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn concurrent_tokens_are_distinct_and_below_later_ones() {
    let world = World::start();
    let locks = world.client("many").await;
    let mut highest = 0;
    for _ in 0..3 {
        let mutexes: Vec<_> = (0..20).map(|number| locks.mutex(format!("a/{number}"))).collect();
        let held = futures_util::future::join_all(mutexes.iter().map(|mutex| mutex.acquire())).await;
        let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
        let tokens: BTreeSet<u64> = held.iter().map(|held| held.token_hint().unwrap().get()).collect();
        assert_eq!(tokens.len(), 20, "{tokens:?}");
        assert!(*tokens.first().unwrap() > highest, "{tokens:?} after {highest}");
        highest = *tokens.last().unwrap();
        for held in held {
            held.release().await.unwrap();
        }
    }
}
