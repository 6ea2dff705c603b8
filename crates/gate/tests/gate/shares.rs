//! What one client can take from the others: connections, requests, and time.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::{Running, Upstream, answers_on, ask_from, connect_from, until};

/// A connection of HTTP/2 by which no response may send any of its body: its window is 0 bytes.
async fn unread_h2(gate: &Running, client: &str, path: &str, requests: u32) -> TcpStream {
    let mut stream = connect_from(client, gate.address).await;
    let frame = |kind: u8, flags: u8, id: u32, content: &[u8]| {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &id.to_be_bytes(), content].concat()
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])); // SETTINGS_INITIAL_WINDOW_SIZE = 0
    for request in 0..requests {
        // GET, http, the path and the authority as literals (RFC 7541, 6.2.2).
        let length = u8::try_from(path.len()).unwrap();
        let headers = [&[0x82, 0x86, 0x04, length][..], path.as_bytes(), &[0x01, 1], b"g"].concat();
        bytes.extend(frame(1, 5, request * 2 + 1, &headers)); // END_HEADERS and END_STREAM
    }
    stream.write_all(&bytes).await.unwrap();
    stream
}

/// 64 connections × 256 requests whose responses nobody read once held every request of the gate.
#[tokio::test]
async fn client_that_reads_no_response_leaves_half_of_all_to_others_and_is_cut_off() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| {
        options.requests_max = 16;
        options.client_timeout = Duration::from_secs(1);
    })
    .await;
    let mut held = Vec::new();
    for path in ["/b", "/large", "/b", "/large"] {
        held.push(unread_h2(&gate, "127.0.0.2", path, 8).await);
    }
    // Three eighths of all: one network's half, without the quarter for guarded writes.
    let refused = "lockkeeper_gate_requests_total{outcome=\"overloaded\"}";
    until("the rest is refused", async || gate.metric(refused).await >= 1.0).await;
    until("six have a place", async || gate.metric("lockkeeper_gate_requests_in_progress").await <= 6.0)
        .await;
    assert_eq!(ask_from("127.0.0.1", gate.address, "GET /b").await.status, 200);
    assert_eq!(ask_from("127.0.0.1", gate.address, "PUT /a|Fencing-Token: 5").await.status, 200);
    let own = ask_from("127.0.0.2", gate.address, "PUT /a|Fencing-Token: 5").await;
    assert_eq!(own.status, 200, "guarded writes come first");
    let all_free = async || gate.metric("lockkeeper_gate_requests_in_progress").await == 0.0;
    until("the responses are cut off", all_free).await;
    // Its streams are still open.
    until("the connections are closed", async || gate.metric("lockkeeper_gate_connections").await == 0.0)
        .await;
}

#[tokio::test]
async fn guarded_writes_are_served_while_other_requests_have_their_share() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.requests_max = 8).await;
    let held = [gate.begin("GET /hold/a"), gate.begin("GET /hold/a"), gate.begin("GET /hold/a")];
    until("they have begun", async || upstream.log().len() == 3).await;
    let refused = gate.ask("GET /b").await;
    assert!(refused.status == 503 && refused.headers.contains("retry-after: 1"), "{refused:?}");
    assert!(refused.body.contains("your network have 3 requests"), "{}", refused.body);
    assert_eq!(gate.ask("PUT /b|Fencing-Token: 5").await.status, 200);
    assert_eq!(ask_from("127.0.0.2", gate.address, "GET /b").await.status, 200, "another network's share");
    upstream.go_on.add_permits(3);
    for one in held {
        assert_eq!(one.await.unwrap().status, 200);
    }
    gate.until_status("GET /b", 200).await;
}

#[tokio::test]
async fn half_of_all_connections_are_left_to_other_networks() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.connections_max = 4).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(connect_from("127.0.0.2", gate.address).await);
    }
    until("they are there", async || gate.metric("lockkeeper_gate_connections").await == 2.0).await;
    let third =
        answers_on(connect_from("127.0.0.2", gate.address).await, b"GET / HTTP/1.1\r\nHost: g\r\n\r\n").await;
    assert!(third.is_empty(), "{third:?}");
    assert!(gate.metric("lockkeeper_gate_connections_refused_total").await >= 1.0);
    assert_eq!(ask_from("127.0.0.1", gate.address, "PUT /a|Fencing-Token: 5").await.status, 200);
}

#[tokio::test]
async fn connections_without_requests_are_closed() {
    let upstream = Upstream::start().await;
    let gate =
        Running::with(&upstream.url(), |options| options.client_timeout = Duration::from_secs(1)).await;
    let mut idle = Vec::new();
    // Nothing, the beginning of a request, one that is answered, the beginning of HTTP/2, and HTTP/2 without
    // a request.
    for begin in [
        "",
        "GET / HTTP/1.1\r\nHost",
        "GET / HTTP/1.1\r\nHost: g\r\n\r\n",
        "PRI * HTTP/2",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(gate.address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        idle.push(stream);
    }
    for mut stream in idle {
        let mut rest = Vec::new();
        let closed = stream.read_to_end(&mut rest);
        tokio::time::timeout(crate::rig::SOON, closed).await.expect("closed").ok();
    }
    until("they are gone", async || gate.metric("lockkeeper_gate_connections").await == 0.0).await;
}

#[tokio::test]
async fn connection_above_the_limit_waits_for_a_free_one() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.connections_max = 2).await;
    let first = connect_from("127.0.0.2", gate.address).await;
    let second = connect_from("127.0.0.3", gate.address).await;
    until("both are there", async || gate.metric("lockkeeper_gate_connections").await == 2.0).await;
    let address = gate.address;
    let waits = tokio::spawn(async move { ask_from("127.0.0.4", address, "GET /x").await });
    assert!(!waits.is_finished());
    drop((first, second));
    assert_eq!(waits.await.unwrap().status, 200);
}

#[tokio::test]
async fn gate_that_keeps_as_many_marks_as_it_may_refuses_new_resources() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.marks_max = 2).await;
    for path in ["/a", "/b"] {
        assert_eq!(gate.ask(&format!("PUT {path}|Fencing-Token: 5")).await.status, 200);
    }
    let refused = gate.ask("PUT /c|Fencing-Token: 5").await;
    assert_eq!(refused.status, 507);
    assert!(
        refused.body.contains("fence:full") && refused.body.contains("2 marks are kept"),
        "{}",
        refused.body
    );
    assert_eq!(gate.ask("PUT /a|Fencing-Token: 6").await.status, 200, "those that have marks go on");
    assert_eq!(gate.ask("GET /c").await.status, 200);
    // The gates of one process share the page of metrics.
    until("both are counted", async || gate.metric("lockkeeper_gate_marks").await == 2.0).await;
}
