//! Connection failures: each error names the cause and the remedy.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use lockkeeper::{AcquireError, BackendErrorKind, ConnectError, Locks};
use lockkeeper_rig::Postgres;

use crate::session::world::{World, for_session};

async fn error(url: &str) -> String {
    match Locks::connect(url).await {
        Ok(_) => panic!("{url} must be refused"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

#[tokio::test]
async fn absent_server_is_reported_with_host_and_port() {
    let server = Postgres::start();
    let url = for_session(&server.url());
    server.kill();
    let found = error(&url).await;
    says(
        &found,
        &["no PostgreSQL server answers", &format!("127.0.0.1:{}", server.port()), "check host and port"],
    );
}

#[tokio::test]
async fn connecting_to_a_stalled_server_times_out() {
    let server = Postgres::start();
    server.stop();
    let found = error(&format!("{}?lock=session&timeout=200ms", server.url())).await;
    server.cont();
    says(&found, &["did not answer within 200ms"]);
}

#[tokio::test]
async fn missing_database_is_reported() {
    let server = Postgres::start();
    let url = format!("postgres://postgres@127.0.0.1:{}/nowhere?lock=session", server.port());
    says(&error(&url).await, &["has no database `nowhere`", "create it"]);
}

#[tokio::test]
async fn refused_passwords_and_users_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let access = folder.path().join("access");
    let lines = "host all postgres 127.0.0.1/32 trust\nhost all app 127.0.0.1/32 scram-sha-256\n";
    fs::write(&access, lines).unwrap();
    fs::set_permissions(&access, fs::Permissions::from_mode(0o644)).unwrap();
    let server = Postgres::with(&["-c", &format!("hba_file={}", access.display())]);
    server.psql("create role app login password 'right'; create role stranger login");
    let at = format!("127.0.0.1:{}/postgres?lock=session", server.port());

    let wrong = error(&format!("postgres://app:wr0ng@{at}")).await;
    says(&wrong, &["refuses the password of the user `app`"]);
    assert!(!wrong.contains("wr0ng"), "{wrong}");
    says(&error(&format!("postgres://app@{at}")).await, &["wants a password for the user `app`"]);
    says(
        &error(&format!("postgres://stranger@{at}")).await,
        &["does not let the user `stranger`", "pg_hba.conf"],
    );
    Locks::connect(&format!("postgres://app:right@{at}"))
        .await
        .unwrap()
        .mutex("a")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn server_that_requires_tls_is_reported() {
    let server = Postgres::with_tls();
    let found = error(&format!("{}?lock=session&sslmode=disable", server.url())).await;
    says(&found, &["asks for TLS: add `sslmode=require`"]);
}

#[tokio::test]
async fn required_tls_is_never_skipped() {
    let server = Postgres::start();
    let found = error(&format!("{}?lock=session&sslmode=require", server.url())).await;
    says(&found, &["offers none"]);
}

#[tokio::test]
async fn tls_works_with_and_without_certificate_verification() {
    let server = Postgres::with_tls();
    let url = |more: &str| format!("{}?lock=session&{more}", server.url());
    for more in [
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        format!("tls-ca={}", server.ca().display()),
        format!("sslmode=verify-ca&sslrootcert={}&channel_binding=prefer", server.ca().display()),
    ] {
        let locks = Locks::connect(&url(&more)).await.unwrap();
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        // A cancel request uses TLS too.
        let held = locks.mutex("a").acquire().await.unwrap();
        let waiting = locks.mutex("a").wait(lockkeeper::Wait::For(std::time::Duration::from_millis(100)));
        assert!(matches!(waiting.acquire().await, Err(AcquireError::TimedOut { .. })));
        held.release().await.unwrap();
    }
    for mode in ["verify-full", "verify-ca"] {
        let stranger = format!("sslmode={mode}&tls-ca={}", server.stranger_ca().display());
        says(&error(&url(&stranger)).await, &["no TLS with the server", "`tls-ca=FILE`"]);
    }
    server.psql("create role certified login");
    let certified = format!("{}?lock=session&sslmode=require", server.url_as("certified"));
    says(&error(&certified).await, &["certificate"]);
    let [certificate, key] = server.certificate().map(|file| file.display().to_string());
    let locks = Locks::connect(&format!("{certified}&sslcert={certificate}&sslkey={key}")).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    says(&error(&url("tls-ca=/nowhere")).await, &["`tls-ca=/nowhere` can't be read"]);
}

#[tokio::test]
async fn a_standby_or_read_only_server_is_refused() {
    let server = Postgres::with(&["-c", "default_transaction_read_only=on"]);
    says(&error(&for_session(&server.url())).await, &["is read-only", "name the primary"]);
}

/// A load balancer that forwards connections to two servers alternately.
#[tokio::test]
async fn an_address_that_leads_to_two_servers_is_refused() {
    let servers = [Postgres::start(), Postgres::start()];
    let ports = servers.each_ref().map(Postgres::port);
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = balancer.local_addr().unwrap();
    std::thread::spawn(move || {
        for (client, port) in balancer.incoming().map_while(Result::ok).zip(ports.into_iter().cycle()) {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let url = for_session(&format!("postgres://postgres@{address}/postgres"));
    says(&error(&url).await, &["held the same lock at once", "more than one server", "lock=row"]);
}

#[tokio::test]
async fn hosts_are_tried_in_order() {
    let (gone, server) = (Postgres::start(), World::start());
    gone.kill();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", gone.port(), server.server.port());
    let locks = Locks::connect(&format!("postgres://postgres@{hosts}/postgres?lock=session")).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn exhausted_server_connections_are_reported() {
    let small = ["-c", "max_connections=4", "-c", "superuser_reserved_connections=0"];
    let world = World::with(&small);
    let locks = world.client("greedy").await;
    let mut held = Vec::new();
    let refused = loop {
        match locks.mutex(format!("{}", held.len())).try_acquire().await {
            Ok(Some(guard)) => held.push(guard),
            Ok(None) => panic!("nobody else is here"),
            Err(error) => break error,
        }
        assert!(held.len() < 4, "the server has four connections, one of which asks questions");
    };
    let AcquireError::Backend(error) = refused else { panic!("{refused}") };
    assert_eq!(error.kind, BackendErrorKind::LimitReached, "{error}");
    says(&error.to_string(), &["no connection left", "max_connections", "`connections=`"]);
    // A connection that becomes free is used again.
    held.pop().unwrap().release().await.unwrap();
    locks.mutex("again").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn connection_limit_of_a_client_is_enforced() {
    let world = World::start();
    let locks = Locks::connect(&format!("{}&connections=1", world.url())).await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let error = locks.mutex("b").acquire().await.unwrap_err();
    says(&error.to_string(), &["all 1 connections", "`connections=`"]);
    held.release().await.unwrap();
    locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn invalid_addresses_are_refused() {
    let server = Postgres::start();
    for (more, part) in [
        ("", "lock=row"),
        ("?lock=transaction", "`lock_in_transaction`"),
        ("?lock=session&key=md5", "`sqlx`"),
        ("?lock=session&connections=0", "1 to 10000"),
        ("?lock=session&probe=1ms", "100ms"),
        ("?lock=session&prob=2s", "did you mean `probe`"),
    ] {
        let url = format!("{}{more}", server.url());
        let Err(ConnectError::Url(error)) = Locks::connect(&url).await else { panic!("{url}") };
        says(&error.to_string(), &[part]);
    }
}

/// A connection's `application_name` contains the client's label. The database's encoding has no code for
/// these characters.
#[tokio::test]
async fn label_outside_the_database_encoding_is_accepted() {
    let server = Postgres::start();
    server.psql("create database latin encoding 'LATIN1' locale 'C' template template0");
    let at = format!("postgres://postgres@127.0.0.1:{}/latin", server.port());
    let locks = Locks::connect_as(&for_session(&at), "Łódź 😀").await.unwrap();
    let held = locks.mutex("a").acquire().await.unwrap();
    let shown = locks.inspect("a").await.unwrap();
    assert!(shown.holds[0].label.contains("Łódź 😀"), "{:?}", shown.holds[0]);
    held.release().await.unwrap();
}

#[tokio::test]
async fn pool_keeps_as_many_connections_as_were_in_use_at_once() {
    let world = World::start();
    let locks = world.client("many").await;
    let holders = "select string_agg(pid::text, ' ' order by pid) from pg_locks where locktype = 'advisory'";
    let mut seen = BTreeSet::new();
    for _ in 0..2 {
        let mutexes: Vec<_> = (0..20).map(|number| locks.mutex(format!("a/{number}"))).collect();
        let held = futures_util::future::join_all(mutexes.iter().map(|mutex| mutex.acquire())).await;
        let held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
        seen.insert(world.server.psql(holders));
        for held in held {
            held.release().await.unwrap();
        }
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}
