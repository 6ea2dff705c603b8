//! Locks of a connection: names, other programs, lost connections, proxies.

use std::net::SocketAddr;

use lockkeeper::{AcquireError, Locks, LossCause, Wait};
use lockkeeper_contract::until;
use lockkeeper_rig::{Faults, MariaDb};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::contract::SESSION_SCHEMA_SQL;
use crate::{SECOND, client, refused};

async fn other(server: &MariaDb) -> Conn {
    Conn::from_url(server.url()).await.unwrap()
}

async fn get_lock(conn: &mut Conn, name: &str) -> bool {
    let got: Option<i64> = conn.exec_first("SELECT GET_LOCK(?, 0)", (name,)).await.unwrap();
    got == Some(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_that_take_the_same_name_exclude_ours_and_are_excluded() {
    let server = MariaDb::start();
    server.sql(SESSION_SCHEMA_SQL);
    let mut theirs = other(&server).await;
    for (rule, name, key) in [
        ("raw", "nightly", "nightly"),
        ("ruby:staging-", "job", "staging-job"),
        ("lockkeeper", "job/1", "lockkeeper/job/1"),
        ("madelson", "Orders", "orders7col6v7a2vpxbxbpw2bcg5rzsgfwgenc"),
    ] {
        let ours = client(&server, &format!("lock=session&key={rule}")).await;
        let held = ours.mutex(name).acquire().await.unwrap();
        assert!(!get_lock(&mut theirs, key).await, "{rule}");
        held.release().await.unwrap();
        assert!(get_lock(&mut theirs, key).await, "{rule}");
        let Err(AcquireError::Busy(busy)) = ours.mutex(name).wait(Wait::No).acquire().await else {
            panic!("{rule}: it is held");
        };
        assert_eq!(busy.holder, Some(format!("connection {}", theirs.id())));
        assert_eq!(ours.inspect(name).await.unwrap().holds[0].label, format!("connection {}", theirs.id()));
        theirs.exec_drop("DO RELEASE_ALL_LOCKS()", ()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_table_there_are_no_tokens_and_that_is_said() {
    let server = MariaDb::start();
    let locks = client(&server, "lock=session").await;
    let error = locks.clone().fenced().map(|_| ()).expect_err("there are no tokens").to_string();
    assert!(error.contains("lockkeeper_session") && error.contains("mysql-session.md"), "{error}");
    assert!(locks.inspect("a").await.unwrap_err().to_string().contains("lockkeeper_session"));
    let held = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(held.token_hint(), None);
    assert!(client(&server, "lock=session").await.mutex("a").try_acquire().await.unwrap().is_none());
    let says = locks.findings().await.unwrap();
    assert!(says.iter().any(|it| it.says.contains("`lockkeeper_session` is not there")), "{says:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_an_operator_ends_is_a_lost_hold() {
    let server = MariaDb::start();
    let locks = client(&server, "lock=session&probe=200ms").await;
    let held = locks.mutex("killed").acquire().await.unwrap();
    let id = server.sql("SELECT IS_USED_LOCK('lockkeeper/killed')");
    server.sql(&format!("KILL {id}"));
    until("the loss", async || held.loss()).await;
    assert_eq!(held.loss(), Some(LossCause::Disconnected));
    // On a connection that an operator has ended while it was idle, too.
    let again = locks.mutex("killed").acquire().await.unwrap();
    again.release().await.unwrap();
    for id in server
        .sql("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = 'app' AND ID <> CONNECTION_ID()")
        .lines()
    {
        let _ = server.try_sql(&format!("KILL {id}"));
    }
    let _held =
        until("granted anew", async || locks.mutex("killed").try_acquire().await.ok().flatten()).await;
}

/// A machine that has vanished: neither its probes nor the end of its connections reach the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_frees_the_lock_of_a_connection_without_probes() {
    let (server, faults) = (MariaDb::start(), Faults::default());
    let address = faults.proxy("vanishes", SocketAddr::from(([127, 0, 0, 1], server.port())));
    let url = format!("{}?lock=session&probe=200ms&timeout=1s", MariaDb::url_at(&address.to_string()));
    let held = Locks::connect(&url).await.unwrap().mutex("vanishes").acquire().await.unwrap();
    faults.silence("vanishes");
    until("the loss", async || held.loss()).await;
    let next = client(&server, "lock=session").await;
    assert!(next.mutex("vanishes").try_acquire().await.unwrap().is_none(), "the server does not know yet");
    let _next = next.mutex("vanishes").wait(Wait::For(60 * SECOND)).acquire().await.unwrap();
}

/// As `ProxySQL` and `MaxScale` do: a client's connection has a number of the proxy's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_shares_connections_is_refused() {
    let server = MariaDb::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let target = SocketAddr::from(([127, 0, 0, 1], server.port()));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move {
                // The greeting: a head of four bytes, the protocol, the version with a zero byte, the number.
                let mut greeting = [0; 1024];
                let length = server.read(&mut greeting).await.unwrap();
                let version = greeting[5..length].iter().position(|byte| *byte == 0).unwrap();
                greeting[5 + version + 1 + 3] ^= 0x40;
                client.write_all(&greeting[..length]).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let url = MariaDb::url_at(&proxy.to_string());
    let error = refused(&format!("{url}?lock=session&ssl-mode=disabled")).await;
    for part in ["ProxySQL", "MaxScale", "use `lock=row`"] {
        assert!(error.contains(part), "{error}");
    }
    // Rows need no connection of their own.
    let rows = Locks::connect(&format!("{url}?ssl-mode=disabled")).await.unwrap();
    rows.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_given_up_leaves_nothing_at_the_server() {
    let server = MariaDb::start();
    server.sql(SESSION_SCHEMA_SQL);
    let locks = client(&server, "lock=session&connections=2").await;
    let held = locks.mutex("given-up").acquire().await.unwrap();
    let error = locks.mutex("given-up").wait(Wait::For(SECOND)).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    held.release().await.unwrap();
    let waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%GET_LOCK(CONV%' AND ID <> CONNECTION_ID()";
    until("the server has noticed", async || (server.sql(waits) == "0").then_some(())).await;
    let _first = locks.mutex("first").acquire().await.unwrap();
    let _second = locks.mutex("second").acquire().await.unwrap();
    let error = locks.mutex("third").acquire().await.unwrap_err().to_string();
    assert!(error.contains("all 2 connections"), "{error}");
}
