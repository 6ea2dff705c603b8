//! `PgBouncer` between client and server.

use lockkeeper::backends::postgres::tokio_postgres::{NoTls, connect};
use lockkeeper::{AcquireError, ConnectError, Locks};
use lockkeeper_rig::{PgBouncer, Postgres};

use crate::session::world::{World, for_session, until, until_lost, until_waiting};

#[tokio::test]
async fn session_locks_are_refused_through_a_transaction_pooler() {
    let world = World::start();
    for settings in [&[][..], &["default_pool_size=1"], &["server_round_robin=1"], &["pool_mode=statement"]] {
        let pooler = PgBouncer::with(&world.server, settings);
        let refused = Locks::connect(&for_session(&pooler.url())).await;
        let Err(ConnectError::Unsupported(error)) = refused else {
            panic!("{settings:?}: it must be refused")
        };
        assert!(error.why.contains("transaction pooler"), "{error}");
        assert!(
            error.instead.contains("lock=row") && error.instead.contains("`lock_in_transaction`"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn session_locks_work_through_a_session_pooler() {
    let world = World::start();
    let pooler = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let url = format!("{}&keepalive=100ms", for_session(&pooler.url()));
    let locks = Locks::connect(&url).await.unwrap();
    let found = locks.findings().await.unwrap();
    assert!(found.iter().any(|finding| finding.says.starts_with("a pooler lies between")), "{found:?}");
    let held = locks.mutex("a").acquire().await.unwrap();
    held.verify().await.unwrap();
    held.release().await.unwrap();
    world.until_nothing_is_left().await;
}

/// A transaction pooler that the client did not meet at startup is detected when two of its connections share
/// a server process. Until then each has its own process, and they exclude each other.
#[tokio::test]
async fn transaction_pooler_is_detected_after_a_fail_over() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::start(&world.server);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = for_session(&format!("postgres://postgres@{hosts}/postgres"));
    let locks = Locks::connect(&url).await.unwrap();
    by_session.kill();
    let _first = locks.mutex("a").acquire().await.unwrap();
    // To the server both are one session, which may take its own lock again.
    let error = until("the pooler is detected", async || match locks.mutex("a").try_acquire().await {
        Ok(None) => None,
        Ok(Some(second)) => panic!("it was granted twice: {second:?}"),
        Err(AcquireError::Backend(error)) => Some(error),
        Err(error) => panic!("{error}"),
    })
    .await;
    assert!(error.to_string().contains("transaction pooler"), "{error}");
}

/// Two clients can't compare the ids of their server processes. The statement that tries the lock finds that
/// its own server process holds the lock already.
#[tokio::test]
async fn lock_of_a_shared_server_process_is_not_granted_twice() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::with(&world.server, &["default_pool_size=1"]);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = for_session(&format!("postgres://postgres@{hosts}/postgres"));
    let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    by_session.kill();
    let first = one.mutex("a").acquire().await.unwrap();
    let second = two.mutex("a").try_acquire().await;
    let Err(AcquireError::Backend(error)) = second else { panic!("it must be refused: {second:?}") };
    assert!(error.to_string().contains("transaction pooler"), "{error}");
    // Behind this pooler the first hold does not exclude other clients. So it is lost too, and the server
    // process does not keep the lock.
    until_lost(&first).await;
    world.until_nothing_is_left().await;
}

#[tokio::test]
async fn lock_granted_to_a_foreign_server_process_is_removed() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let by_transaction = PgBouncer::with(&world.server, &["server_round_robin=1"]);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", by_session.port(), by_transaction.port());
    let url = for_session(&format!("postgres://postgres@{hosts}/postgres"));
    let locks = Locks::connect(&url).await.unwrap();
    by_session.kill();
    // Makes the pooler open five server processes, which it then uses in rotation.
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
async fn holds_end_with_their_pooler() {
    let world = World::start();
    let pooler = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let locks = Locks::connect(&for_session(&pooler.url())).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    pooler.kill();
    until_lost(&held).await;
    world.until_nothing_is_left().await;
    pooler.start_again();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn abandoned_wait_is_cancelled_through_a_session_pooler() {
    let world = World::start();
    let pooler = PgBouncer::with(&world.server, &["pool_mode=session"]);
    let (locks, waits) =
        (world.client("direct").await, Locks::connect(&for_session(&pooler.url())).await.unwrap());
    let held = locks.mutex("a").acquire().await.unwrap();
    let waiting = waits.mutex("a");
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    until_waiting(&locks, "a", 1).await;
    waiting.abort();
    until_waiting(&locks, "a", 0).await;
    held.release().await.unwrap();
    world.until_nothing_is_left().await;
}

/// Whether the client treats its connection as direct, without a pooler: then it acquires by a prepared
/// statement.
async fn is_direct(server: &Postgres, url: &str) -> bool {
    let locks = Locks::connect(&for_session(url)).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let said = server.psql(
        "select count(*) from pg_locks join pg_stat_activity using (pid) \
         where locktype = 'advisory' and query ~ 'execute lockkeeper_'",
    );
    held.release().await.unwrap();
    said == "1"
}

/// A direct connection acquires by a prepared statement that does not check whether its server process holds
/// the lock already. Through a pooler the process may lack that statement, or hold another client's lock.
#[tokio::test]
async fn only_unpooled_connections_count_as_direct() {
    let world = World::start();
    let by_session = PgBouncer::with(&world.server, &["pool_mode=session"]);
    assert!(is_direct(&world.server, &world.server.url()).await);
    assert!(!is_direct(&world.server, &by_session.url()).await);
}

#[tokio::test]
async fn encrypted_connections_count_as_direct() {
    let server = Postgres::with_tls();
    server.psql(&lockkeeper::backends::postgres::schema_sql(None));
    assert!(is_direct(&server, &server.url()).await);
}
