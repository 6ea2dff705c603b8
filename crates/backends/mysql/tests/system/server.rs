//! Servers as they are found: low limits, few rights, TLS, replicas.

use lockkeeper::Locks;
use lockkeeper_contract::{start_waiting, until};
use lockkeeper_rig::MariaDb;

use crate::contract::SESSION_SCHEMA_SQL;
use crate::{SECOND, client, refused};

/// Limits that would end each wait and each idle connection.
const LOW: &[&str] = &[
    "--wait-timeout=1",
    "--interactive-timeout=1",
    "--max-statement-time=0.5",
    "--sql-mode=ANSI,PAD_CHAR_TO_FULL_LENGTH",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_limits_of_the_server_end_no_hold_and_no_wait() {
    let server = MariaDb::with(LOW);
    for parameters in ["lock=row", "lock=session&probe=500ms"] {
        let (holds, waits) = (client(&server, parameters).await, client(&server, parameters).await);
        let held = holds.mutex("low").ttl(2 * SECOND).acquire().await.unwrap();
        let waiting = start_waiting(waits.mutex("low").ttl(2 * SECOND)).await;
        // Several times the limits: that nothing happens can't be waited for otherwise.
        tokio::time::sleep(4 * SECOND).await;
        held.verify().await.unwrap();
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
    let findings = format!("{:?}", client(&server, "lock=session").await.findings().await.unwrap());
    assert!(findings.contains("max_statement_time=0.5") && findings.contains("wait_timeout=1"), "{findings}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_run_again_if_the_server_has_closed_its_connection() {
    let server = MariaDb::start();
    server.sql(SESSION_SCHEMA_SQL);
    for parameters in ["lock=row", "lock=session"] {
        let locks = client(&server, parameters).await;
        // Two connections.
        let (a, b) = tokio::join!(locks.inspect("a"), locks.inspect("b"));
        assert!(a.is_ok() && b.is_ok(), "{parameters}");
        let idle = "SELECT id FROM information_schema.PROCESSLIST WHERE COMMAND = 'Sleep'";
        for id in server.sql(idle).lines() {
            // It may have ended by itself.
            let _ = server.try_sql(&format!("KILL {id}"));
        }
        for name in ["a", "b", "c"] {
            assert_eq!(locks.inspect(name).await.unwrap().hold_count, 0, "{parameters}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_right_to_make_tables_is_told_the_statements() {
    let server = MariaDb::start();
    server.sql("CREATE USER worker@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO worker@'%'");
    let url = server.url_as("worker");
    let error = refused(&url).await;
    for part in ["CREATE command denied", "CREATE TABLE IF NOT EXISTS lockkeeper_lease", "lockkeeper_gone"] {
        assert!(error.contains(part), "{error}");
    }
    server.sql(lockkeeper::backends::mysql::SCHEMA_SQL);
    let locks = Locks::connect(&url).await.unwrap();
    locks.mutex("rights").acquire().await.unwrap().release().await.unwrap();
    for (url, part) in [
        (server.url_as("root:wrong"), "check user and password of `root`"),
        (server.url_as("nobody"), "check user and password of `nobody`"),
        (server.url().replace("/app", "/absent"), "create the database `absent`"),
        (MariaDb::url_at("127.0.0.1:1"), "check host and port"),
    ] {
        let error = refused(&url).await;
        assert!(error.contains(part), "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_as_the_address_says() {
    let server = MariaDb::with_tls();
    let url = |parameters: &str| format!("{}?{parameters}", server.url_as("encrypted"));
    let (ca, stranger) = (server.ca().display(), server.stranger_ca().display());
    for parameters in [
        String::new(),
        "ssl-mode=required".to_owned(),
        format!("tls-ca={ca}"),
        format!("ssl-mode=verify-ca&tls-ca={ca}"),
        format!("lock=session&tls-ca={ca}"),
    ] {
        let locks =
            Locks::connect(&url(&parameters)).await.unwrap_or_else(|error| panic!("{parameters}: {error}"));
        locks.mutex("encrypted").acquire().await.unwrap().release().await.unwrap();
    }
    for (parameters, part) in [
        ("ssl-mode=disabled".to_owned(), "check user and password"),
        (format!("tls-ca={stranger}"), "names whom to trust"),
        ("ssl-mode=verify-identity".to_owned(), "names whom to trust"),
    ] {
        let error = refused(&url(&parameters)).await;
        assert!(error.contains(part), "{parameters}: {error}");
    }
    let plain = MariaDb::start();
    let error = refused(&format!("{}?ssl-mode=required", plain.url())).await;
    assert!(error.contains("offers none"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_refused_and_the_next_host_is_used() {
    let (replica, primary) = (MariaDb::with(&["--read-only"]), MariaDb::start());
    let error = refused(&replica.url()).await;
    assert!(error.contains("read-only, probably a replica"), "{error}");
    let both = MariaDb::url_at(&format!("127.0.0.1:{},127.0.0.1:{}", replica.port(), primary.port()));
    let locks = Locks::connect(&both).await.unwrap();
    // As a replica has them.
    replica.sql(lockkeeper::backends::mysql::SCHEMA_SQL);
    let held = locks.mutex("moves").ttl(3 * SECOND).acquire().await.unwrap();
    assert_eq!(primary.sql("SELECT COUNT(*) FROM lockkeeper_lease"), "1");
    // A fail-over to a server that knows nothing: the hold is lost, and new ones are made there.
    replica.sql("SET GLOBAL read_only = 0");
    primary.kill();
    until("the hold is lost", async || held.lost().is_cancelled().then_some(())).await;
    drop(held);
    let _held = until("a grant of the other server", async || {
        locks.mutex("moves").try_acquire().await.ok().flatten()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_what_the_settings_lose() {
    let server = MariaDb::with(&["--log-bin", "--server-id=7", "--sync-binlog=0", "--innodb-doublewrite=0"]);
    let findings = client(&server, "").await.findings().await.unwrap();
    let spoils: Vec<&str> = findings.iter().filter(|it| it.spoils).map(|it| it.says.as_str()).collect();
    for part in ["innodb_flush_log_at_trx_commit=2", "sync_binlog=0", "innodb_doublewrite=OFF"] {
        assert!(spoils.iter().any(|says| says.contains(part)), "{part}: {spoils:?}");
    }
    let replica = MariaDb::with(&["--server-id=8"]);
    replica.sql(&format!(
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root'; START SLAVE",
        server.port()
    ));
    until("the replica is seen", async || {
        let findings = client(&server, "").await.findings().await.unwrap();
        findings
            .iter()
            .any(|it| it.spoils && it.says.contains("1 replicas follow asynchronously"))
            .then_some(())
    })
    .await;
}
