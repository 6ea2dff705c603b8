//! The ends of requests: seen, late, and unknown.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::rig::{Running, SOON, Upstream, raw_upstream, read_headers, until};

const NEXT: &str = "PUT /hold/a|Fencing-Token: 6";

#[tokio::test]
async fn end_of_a_request_is_seen_also_if_its_client_has_gone() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.settle = Duration::from_secs(3600)).await;
    let gone = gate.begin("PUT /hold/a|Fencing-Token: 5");
    upstream.until("begun PUT /hold/a 5").await;
    gone.abort();
    assert_eq!(gate.ask(NEXT).await.status, 503, "the upstream is still at work");
    upstream.go_on.add_permits(2);
    gate.until_status(NEXT, 200).await;
    assert_eq!(upstream.log()[..2], ["begun PUT /hold/a 5", "ended PUT /hold/a 5"]);
}

/// Whether `next` gets 503 first, and 200 after the settling time.
async fn settles(gate: &Running, first: &str, status: u16) {
    let begun = tokio::time::Instant::now();
    let unknown = gate.metric("lockkeeper_gate_unknown_ends_total").await;
    assert_eq!(gate.ask(first).await.status, status);
    let ended = tokio::time::Instant::now();
    let busy = gate.ask("PUT /a|Fencing-Token: 6").await;
    // Slow machines may have settled meanwhile.
    if ended.elapsed() < Duration::from_secs(1) {
        assert_eq!(busy.status, 503, "{busy:?}");
        assert!(busy.headers.contains("retry-after:"), "{busy:?}");
    }
    assert_eq!(
        gate.ask("PUT /b|Fencing-Token: 6").await.status,
        status,
        "another resource is not in the way"
    );
    gate.until_status("POST /a|Fencing-Token: 6|Fencing-Action: enter", 204).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "after {:?}", begun.elapsed());
    assert!(gate.metric("lockkeeper_gate_unknown_ends_total").await > unknown);
}

#[tokio::test]
async fn resource_settles_after_an_upstream_that_broke_off_or_answered_garbage() {
    let settles_after = async |answer: &'static str| {
        let upstream = raw_upstream(async |mut stream| {
            read_headers(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let gate = Running::before(&upstream.await).await;
        settles(&gate, "PUT /a|Fencing-Token: 5", 502).await;
    };
    let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
    let length = "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n";
    tokio::join!(
        settles_after(""),
        settles_after("HTTP/1.1 2"),
        settles_after("garbage\r\n\r\n"),
        settles_after(length),
        settles_after(switch),
    );
}

#[tokio::test]
async fn resource_settles_after_a_proxy_that_does_not_know_the_end() {
    for (line, status) in [("502 Bad Gateway", 502), ("504 Gateway Timeout", 504)] {
        let upstream = raw_upstream(move |mut stream| async move {
            read_headers(&mut stream).await;
            let answer = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let gate = Running::before(&upstream.await).await;
        assert_eq!(gate.ask("PUT /a|Fencing-Token: 5").await.status, status);
        assert_eq!(gate.ask("PUT /a|Fencing-Token: 6").await.status, 503);
    }
}

#[tokio::test]
async fn client_that_does_not_read_its_response_keeps_nobody_out_for_longer_than_the_timeout() {
    static PART: [u8; 65_536] = [7; 65_536];
    let upstream = raw_upstream(async |mut stream| {
        let head = read_headers(&mut stream).await;
        let length = if head.contains("fencing-token: 5") { 64 << 20 } else { 0_usize };
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        for _ in 0..length / PART.len() {
            if stream.write_all(&PART).await.is_err() {
                return;
            }
        }
    })
    .await;
    let gate = Running::with(&upstream, |options| options.timeout = Duration::from_secs(1)).await;
    let mut stalled = TcpStream::connect(gate.address).await.unwrap();
    let request = "PUT /a HTTP/1.1\r\nHost: gate\r\nFencing-Token: 5\r\nContent-Length: 0\r\n\r\n";
    stalled.write_all(request.as_bytes()).await.unwrap();
    gate.until_status("POST /a|Fencing-Token: 6|Fencing-Action: enter", 503).await;
    gate.until_status("POST /a|Fencing-Token: 6|Fencing-Action: enter", 204).await;
    drop(stalled);
}

#[tokio::test]
async fn resource_settles_after_a_response_that_broke_off() {
    let upstream = raw_upstream(async |mut stream| {
        read_headers(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await.unwrap();
    })
    .await;
    let gate = Running::before(&upstream).await;
    settles(&gate, "PUT /a|Fencing-Token: 5", 200).await;
}

#[tokio::test]
async fn resource_settles_after_an_upstream_that_takes_too_long() {
    let upstream = raw_upstream(async |mut stream| {
        read_headers(&mut stream).await;
        std::future::pending().await
    })
    .await;
    let gate = Running::with(&upstream, |options| options.timeout = Duration::from_millis(200)).await;
    settles(&gate, "PUT /a|Fencing-Token: 5", 504).await;
}

#[tokio::test]
async fn upstream_that_is_not_there_shuts_nothing() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gate =
        Running::with(&format!("http://{dead}"), |options| options.settle = Duration::from_secs(3600)).await;
    for token in 5..8 {
        let answer = gate.ask(&format!("PUT /a|Fencing-Token: {token}")).await;
        assert_eq!(answer.status, 502);
        assert!(answer.body.contains("Nothing was done"), "{}", answer.body);
    }
}

#[tokio::test]
async fn request_that_never_ends_is_cut_off_and_the_next_holder_goes_on() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.timeout = Duration::from_secs(1)).await;
    let mut endless = TcpStream::connect(gate.address).await.unwrap();
    let head = "PUT /a HTTP/1.1\r\nHost: gate\r\nFencing-Token: 5\r\nContent-Length: 1000000\r\n\r\n";
    endless.write_all(head.as_bytes()).await.unwrap();
    upstream.until("begun PUT /a 5").await;
    let next = "PUT /a|Fencing-Token: 6";
    assert_eq!(gate.ask(next).await.status, 503);
    upstream.until("cut PUT /a 5").await;
    gate.until_status(next, 200).await;
    drop(endless);
}

#[tokio::test]
async fn gate_that_ends_without_knowing_settles_at_its_next_start() {
    let upstream = Upstream::start().await;
    let gate = Running::with(&upstream.url(), |options| options.drain = Duration::from_millis(50)).await;
    let stuck = gate.begin("PUT /hold/a|Fencing-Token: 5");
    upstream.until("begun PUT /hold/a 5").await;
    let (data, all_ended) = gate.end().await;
    assert!(!all_ended);
    // The test's process still has the first gate's request; its marks can be opened once that has ended.
    upstream.go_on.add_permits(1);
    drop(stuck.await);
    until("the marks are closed", async || {
        let marks = data.path().join("marks.redb");
        lockkeeper_fence::DurableMarks::open(marks).is_ok()
    })
    .await;
    let gate = Running::on(data, &upstream.url(), |options| options.settle = SOON).await;
    let next = gate.ask(NEXT).await;
    assert_eq!(next.status, 503);
    assert!(next.body.contains("gate:settling"), "{}", next.body);
    upstream.go_on.add_permits(2);
    assert_eq!(gate.ask("PUT /hold/a|Fencing-Token: 5").await.status, 200, "the same holder goes on");
    assert_eq!(
        gate.ask("PUT /hold/new|Fencing-Token: 6").await.status,
        200,
        "a resource without marks is free"
    );
}
