//! Connections that end, addresses that swallow packets, and passwords that are changed: the hold goes on.

use std::fs;
use std::net::{SocketAddr, TcpListener};

use lockkeeper::{BootInstant, Guard, Locks, Unfenced};
use lockkeeper_rig::Postgres;

use crate::row::support::{SECOND, init, server, until};
use lockkeeper_rig::Faults;

/// Waits until the hold was renewed after `since`.
async fn until_renewed(held: &Guard<Unfenced>, since: BootInstant) {
    let ttl = 9 * SECOND;
    until("it is renewed", async || {
        (held.valid_until().expect("it is held").unwrap() > since + ttl).then_some(())
    })
    .await;
}

/// With one host after the other, the first one alone would take the time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_swallows_packets_costs_no_hold() {
    let server = server();
    let direct = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let faults = Faults::default();
    let hosts = [silent.local_addr().unwrap(), faults.proxy("second", direct), direct];
    let hosts = hosts.map(|host| host.to_string()).join(",");
    let url = format!("postgres://postgres@{hosts}/postgres?lock=row&timeout=60s");
    let connecting = tokio::time::timeout(30 * SECOND, Locks::connect(&url));
    let locks = connecting.await.expect("not one time limit after the other").unwrap();
    let held = locks.mutex("any").ttl(9 * SECOND).acquire().await.unwrap();
    // The host in use: what is sent there is lost from now on.
    faults.silence("second");
    until_renewed(&held, BootInstant::now()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_read_again_for_each_connection() {
    let server = Postgres::with_password("one");
    init(&server);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "one\n").unwrap();
    let at = format!("127.0.0.1:{}/postgres", server.port());
    let url = format!("postgres://postgres@{at}?lock=row&password-file={}", file.display());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("any").ttl(9 * SECOND).acquire().await.unwrap();
    fs::write(&file, "two\n").unwrap();
    server.psql(
        "ALTER ROLE postgres PASSWORD 'two';
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    until_renewed(&held, BootInstant::now()).await;
    held.release().await.unwrap();
}
