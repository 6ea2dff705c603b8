//! Start, failure to start, and shutdown of a node.

use std::net::TcpListener;

use lockkeeper_server::{ServeError, ServerOptions, run};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};

use crate::harness::{Client, SECRET, Server, directory};

#[tokio::test]
async fn shutdown_ends_all_streams_with_its_reason() {
    let data = directory();
    let server = Server::start(data.path());
    let mut idle = Client::connect(&server).await;
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "").await;
    client.hold(session, 1, "a").await;
    server.running.stop();
    for stream in [&mut client, &mut idle] {
        let end = stream.stream_end().await;
        assert_eq!(end.reason(), StreamEndReason::Shutdown, "{end:?}");
    }
    drop((client, idle));
    server.ended().await.unwrap();
}

#[tokio::test]
async fn acknowledged_grants_survive_a_shutdown_under_load() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = Client::connect(&server).await;
    let session = client.open(SECRET, "").await;
    for seq in 1..=100 {
        client.acquire(session, seq, &format!("a/{seq}"), false);
    }
    server.running.stop();
    let mut granted = Vec::new();
    loop {
        match client.what().await {
            What::Granted(grant) => granted.push(grant.token),
            What::StreamEnd(_) => break,
            other => panic!("{other:?}"),
        }
    }
    drop(client);
    server.ended().await.unwrap();
    let server = Server::start(data.path());
    let request = v1::ListRequest { page_size: 1000, ..v1::ListRequest::default() };
    let list = server.calls().await.list(request).await.unwrap().into_inner();
    let held: Vec<u64> = list.locks.iter().flat_map(|lock| &lock.holds).map(|hold| hold.token).collect();
    assert!(granted.iter().all(|token| held.contains(token)), "{granted:?} in {held:?} (P10)");
    server.stop().await.unwrap();
}

#[test]
fn non_loopback_address_is_refused_before_anything_is_written() {
    let parent = directory();
    let data = parent.path().join("data");
    let options = ServerOptions { listen: "0.0.0.0:0".to_owned(), ..ServerOptions::new(&data) };
    let error = run(options, |_| panic!("it must not serve")).unwrap_err();
    assert!(matches!(error, ServeError::NotLoopback { .. }), "{error}");
    assert!(!data.exists());
}

#[test]
fn port_in_use_is_named_and_bootstraps_no_cluster() {
    let parent = directory();
    let data = parent.path().join("data");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let options = ServerOptions { listen: address.to_string(), ..ServerOptions::new(&data) };
    let error = run(options, |_| panic!("it must not serve")).unwrap_err();
    assert!(matches!(error, ServeError::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(!data.exists());
}

/// The reason why a node doesn't serve; runs on a thread without a runtime.
async fn not_served(options: ServerOptions) -> ServeError {
    let run = || run(options, |_| panic!("it must not serve")).unwrap_err();
    tokio::task::spawn_blocking(|| std::thread::spawn(run).join().unwrap()).await.unwrap()
}

#[tokio::test]
async fn two_nodes_do_not_share_a_directory() {
    let data = directory();
    let server = Server::start(data.path());
    let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data.path()) };
    let error = not_served(options).await;
    assert!(error.to_string().contains("in use") && !error.to_string().contains('\n'), "{error}");
    server.stop().await.unwrap();
    Server::start(data.path()).stop().await.unwrap();
}

#[test]
fn directory_with_foreign_content_is_refused() {
    let data = directory();
    std::fs::write(data.path().join("founding"), b"something else").unwrap();
    let options = ServerOptions { listen: "127.0.0.1:0".to_owned(), ..ServerOptions::new(data.path()) };
    let error = run(options, |_| panic!("it must not serve")).unwrap_err();
    assert!(matches!(error, ServeError::Open { .. }), "{error}");
    assert!(error.to_string().contains(&data.path().display().to_string()), "{error}");
}
