//! `PgBouncer` between client and server.

use lockkeeper::backends::postgres::tokio_postgres::{NoTls, connect};
use lockkeeper::{AcquireError, ConnectError, Locks};
use lockkeeper_rig::{PgBouncer, Postgres};

use crate::world::{KINDS, World, until_lost, until_waiting, with_kind};

#[tokio::test]
async fn session_locks_are_refused_through_a_transaction_pooler() {
    let world = World::start();
    for settings in [&[][..], &["default_pool_size=1"], &["server_round_robin=1"]] {
        let pooler = PgBouncer::with(&world.server, settings);
        let refused = Locks::connect(&with_kind(&pooler.url(), "session")).await;
        let Err(ConnectError::Unsupported(error)) = refused else {
            panic!("{settings:?}: it must be refused")
        };
        assert!(error.why.contains("transaction pooler"), "{error}");
        assert!(error.instead.contains("lock=transaction"), "{error}");
    }
}

#[tokio::test]
async fn session_locks_work_through_a_session_pooler() {
    let world = World::start();
    let pooler = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let locks = Locks::connect(&with_kind(&pooler.url(), "session")).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    held.verify().await.unwrap();
    held.release().await.unwrap();
    world.until_nothing_is_left().await;
}

/// A pooler that can't be detected at startup is detected when two connections have one server process.
#[tokio::test]
async fn transaction_pooler_is_detected_after_a_fail_over() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::start(&world.server);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = with_kind(&format!("postgres://postgres@{hosts}/postgres"), "session");
    let locks = Locks::connect(&url).await.unwrap();
    by_session.kill();
    let _first = locks.mutex("a").acquire().await.unwrap();
    // To the server both are one session, which may take its own lock again.
    let second = locks.mutex("a").try_acquire().await;
    let Err(AcquireError::Backend(error)) = second else { panic!("it must be refused: {second:?}") };
    assert!(error.to_string().contains("transaction pooler"), "{error}");
}

/// Two clients can't compare their server processes; the lock itself shows that they share one.
#[tokio::test]
async fn lock_of_a_shared_server_process_is_not_granted_twice() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::with(&world.server, &["default_pool_size=1"]);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = with_kind(&format!("postgres://postgres@{hosts}/postgres"), "session");
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    by_session.kill();
    let first = one.mutex("a").acquire().await.unwrap();
    let second = two.mutex("a").try_acquire().await;
    let Err(AcquireError::Backend(error)) = second else { panic!("it must be refused: {second:?}") };
    assert!(error.to_string().contains("transaction pooler"), "{error}");
    // There is no exclusion there: the first holder is notified too, and the process does not keep its lock.
    until_lost(&first).await;
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn lock_granted_to_a_foreign_server_process_is_removed() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::with(&world.server, &["server_round_robin=1"]);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = with_kind(&format!("postgres://postgres@{hosts}/postgres"), "session");
    let locks = Locks::connect(&url).await.unwrap();
    by_session.kill();
    // Five processes serve in turn.
    let mut clients = Vec::new();
    for _ in 0..5 {
        let at = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", by_transaction.port());
        let (client, connection) = connect(&at, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("begin").await.unwrap();
        clients.push(client);
    }
    for client in &clients {
        client.batch_execute("rollback").await.unwrap();
    }
    let refused = locks.mutex("a").try_acquire().await;
    let Err(AcquireError::Backend(error)) = refused else { panic!("it must be refused: {refused:?}") };
    assert!(error.to_string().contains("transaction pooler"), "{error}");
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn statement_pooler_is_refused() {
    let world = World::start();
    let pooler = PgBouncer::with(&world.server, &["pool_mode=statement"]);
    let error = Locks::connect(&with_kind(&pooler.url(), "transaction")).await.err().expect("it is refused");
    assert!(error.to_string().contains("statement pooling mode"), "{error}");
}

#[tokio::test]
async fn transaction_locks_work_through_a_transaction_pooler() {
    let world = World::start();
    let pooler = PgBouncer::start(&world.server);
    let locks = Locks::connect(&with_kind(&pooler.url(), "transaction")).await.unwrap();
    let waits = Locks::connect(&with_kind(&pooler.url(), "transaction")).await.unwrap();
    let direct = world.client("session", "direct").await;
    let held = locks.mutex("a").meta("job", "reindex").acquire().await.unwrap();
    held.verify().await.unwrap();
    assert!(direct.mutex("a").try_acquire().await.unwrap().is_none(), "both kinds are one lock");
    let shown = direct.inspect(&"a".parse().unwrap()).await.unwrap();
    assert_eq!(shown.holders[0].meta, [("job".to_owned(), "reindex".to_owned())]);
    assert_eq!(shown.holders[0].token, held.token_hint());

    let waiting = tokio::spawn(async move { waits.mutex("a").acquire().await });
    until_waiting(&direct, "a", 1).await;
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());

    // An abandoned wait is cancelled through the pooler too.
    let gives_up = locks.mutex("a").wait(lockkeeper::Wait::For(std::time::Duration::from_millis(200)));
    assert!(matches!(gives_up.acquire().await, Err(AcquireError::TimedOut { .. })));
    until_waiting(&direct, "a", 0).await;
    next.release().await.unwrap();
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn holds_end_with_their_pooler() {
    let world = World::start();
    let pooler = PgBouncer::start(&world.server);
    let locks = Locks::connect(&with_kind(&pooler.url(), "transaction")).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    pooler.kill();
    until_lost(&held).await;
    world.until_nothing_is_left().await;
    pooler.start_again();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

/// Whether the client treats its connection as direct: then the try is prepared, and a transaction with a token gets
/// its badge without a check whether it is still the same transaction.
async fn is_direct(server: &Postgres, url: &str, kind: &str) -> bool {
    // Without a probe, whose statement would replace the one shown.
    let locks = Locks::connect(&format!("{url}?lock={kind}&probe=10min")).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let said = server.psql(
        "select count(*) from pg_locks join pg_stat_activity using (pid) \
         where locktype = 'advisory' and query ~ 'execute lockkeeper_|set local application_name'",
    );
    held.release().await.unwrap();
    said == "1"
}

/// A pooler would pass prepared statements to other clients; and only without a pooler can a server process not have
/// another client's lock.
#[tokio::test]
async fn only_unpooled_connections_count_as_direct() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    for kind in KINDS {
        assert!(is_direct(&world.server, &world.server.url(), kind).await, "{kind}");
        assert!(!is_direct(&world.server, &by_session.url(), kind).await, "{kind}");
    }
}

#[cfg(feature = "postgres-tls")]
#[tokio::test]
async fn encrypted_connections_count_as_direct() {
    let server = Postgres::with_tls();
    server.psql(&lockkeeper::backends::postgres::schema_sql(None));
    for kind in KINDS {
        assert!(is_direct(&server, &server.url(), kind).await, "{kind}");
    }
}
