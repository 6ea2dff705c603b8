//! HTTP/JSON, as a program without gRPC uses it.

mod client;
mod errors;
mod operators;
mod polls;
mod secured;

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use lockkeeper_rig::Port;
use lockkeeper_wire::v1;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::harness::{DEADLINE, Server, directory, start_cluster};
use client::HttpClient;

/// Waits until `name` has so many waiters.
async fn until_waiting(client: &mut HttpClient, name: &str, waiters: u64) {
    let until = Instant::now() + DEADLINE;
    loop {
        let (_, lock) = client.get(&format!("/v1/locks/{name}")).await;
        if lock["waiter_count"] == waiters {
            return;
        }
        assert!(Instant::now() < until, "{lock}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn lock_is_acquired_waited_for_and_released() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = HttpClient::open(&server, 7, 30_000).await;
    let mut waiter = HttpClient::open(&server, 8, 30_000).await;
    let first = holder.hold(1, "orders/42").await;

    let (status, busy) = waiter.acquire(1, "orders/42", json!({})).await;
    assert_eq!((status, &busy["code"]), (409, &json!("busy")), "{busy}");
    assert_eq!((&busy["holder"], &busy["holder_label"]), (&json!(holder.session), &json!("worker")));

    let wait = json!({ "wait": true, "poll_ms": 200 });
    let begun = Instant::now();
    let (status, queued) = waiter.acquire(2, "orders/42", wait).await;
    assert_eq!(
        (status, &queued["state"], &queued["position"]),
        (202, &json!("queued"), &json!(0)),
        "{queued}"
    );
    assert!(begun.elapsed() >= Duration::from_millis(200));

    let polls = tokio::spawn(async move {
        let answer = waiter.acquire(2, "orders/42", json!({ "wait": true })).await;
        (waiter, answer)
    });
    assert_eq!(holder.release(1).await, "released");
    let (mut waiter, (status, held)) = polls.await.unwrap();
    assert_eq!((status, &held["state"]), (200, &json!("held")), "{held}");
    assert!(held["token"].as_u64().unwrap() > first);
    assert_eq!(waiter.release(2).await, "released");

    let (status, _) = waiter.delete(&format!("/v1/sessions/{}", waiter.session)).await;
    assert_eq!(status, 204);
    let (status, gone) = waiter.keep_alive().await;
    assert_eq!((status, &gone["code"]), (410, &json!("session-gone")), "{gone}");
    server.stop().await.unwrap();
}

/// Two locks in opposite order: the wait that would never end is refused (K2).
#[tokio::test]
async fn wait_for_oneself_is_a_deadlock() {
    let data = directory();
    let server = Server::start(data.path());
    let mut one = HttpClient::open(&server, 7, 30_000).await;
    let mut two = HttpClient::open(&server, 8, 30_000).await;
    let (first, second) = (one.hold(1, "a").await, two.hold(1, "b").await);
    let wait = |token| json!({ "wait": true, "poll_ms": 0, "holding": [token] });
    assert_eq!(one.acquire(2, "b", wait(first)).await.0, 202);
    let (status, refused) = two.acquire(2, "a", wait(second)).await;
    assert_eq!((status, &refused["code"]), (409, &json!("deadlock")), "{refused}");
    let detail = refused["detail"].as_str().unwrap();
    for words in ["waits for `a`", "(worker) holds `a`", "waits for `b`", &format!("with token {second}")] {
        assert!(detail.contains(words), "no {words:?} in {detail}");
    }
    let (status, wrong) = two.acquire(3, "a", json!({ "holding": [0] })).await;
    assert_eq!((status, &wrong["code"]), (400, &json!("invalid-argument")), "{wrong}");
    assert_eq!(two.release(1).await, "released");
    assert_eq!(one.acquire(2, "b", wait(first)).await.0, 200);
    server.stop().await.unwrap();
}

/// P7: whatever answer is lost, the same call again gets it, and nothing is left behind.
#[tokio::test]
async fn lost_answers_lose_no_grant_and_leave_no_orphan() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    let session = client.session;
    client.open_session(30_000).await;
    assert_eq!(client.session, session, "the same secret finds the same session");
    let mut holder = HttpClient::open(&server, 8, 30_000).await;
    holder.hold(1, "a").await;

    // The connection is cut while the request waits, and the lock is granted meanwhile.
    let mut cut = HttpClient::open(&server, 7, 30_000).await;
    let lost = tokio::spawn(async move { cut.acquire(1, "a", json!({ "wait": true })).await });
    until_waiting(&mut client, "a", 1).await;
    lost.abort();
    assert!(lost.await.unwrap_err().is_cancelled());
    assert_eq!(holder.release(1).await, "released");
    let (status, held) = client.acquire(1, "a", json!({ "wait": true })).await;
    assert_eq!(status, 200, "{held}");
    for _ in 0..2 {
        assert_eq!(client.acquire(1, "a", json!({ "wait": true })).await, (200, held.clone()));
    }
    let (_, lock) = client.get("/v1/locks/a").await;
    assert_eq!((&lock["hold_count"], &lock["waiter_count"]), (&json!(1), &json!(0)), "{lock}");

    // So with a release, a change of the value and one of the mode.
    let changes = format!("/v1/sessions/{session}/requests/1");
    for _ in 0..2 {
        let value = json!({ "number": 2, "value": "at work" });
        assert_eq!(client.with_body(Method::PUT, &format!("{changes}/value"), value).await.0, 200);
    }
    for _ in 0..2 {
        assert_eq!(client.post(&format!("{changes}/downgrade"), json!({ "number": 3 })).await.0, 200);
    }
    let (_, lock) = client.get("/v1/locks/a").await;
    assert_eq!(lock["holds"][0]["value"], "at work", "{lock}");
    assert_eq!(lock["holds"][0]["mode"], "shared", "{lock}");
    for _ in 0..2 {
        assert_eq!(client.release(1).await, "released");
    }
    let (status, ended) = client.acquire(1, "a", json!({ "wait": true })).await;
    assert_eq!(
        (status, &ended["code"], &ended["end"]),
        (410, &json!("ended"), &json!("released")),
        "{ended}"
    );
    for _ in 0..2 {
        assert_eq!(client.delete(&format!("/v1/sessions/{session}")).await.0, 204);
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn waiting_request_leaves_the_queue_at_its_end_and_when_it_is_deleted() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = HttpClient::open(&server, 7, 30_000).await;
    let mut waiter = HttpClient::open(&server, 8, 30_000).await;
    holder.hold(1, "a").await;
    let (status, late) = waiter.acquire(1, "a", json!({ "wait": true, "at_most_ms": 100 })).await;
    assert_eq!((status, &late["code"]), (409, &json!("timed-out")), "{late}");
    assert_eq!(waiter.release(1).await, "timed-out");
    assert_eq!(waiter.acquire(2, "a", json!({ "wait": true, "poll_ms": 0 })).await.0, 202);
    assert_eq!(waiter.release(2).await, "left");
    until_waiting(&mut holder, "a", 0).await;
    // A number that was not used: its acquire may be under way, and must not be granted when it arrives.
    assert_eq!(waiter.release(9).await, "gone");
    for request in [8, 9] {
        let (status, ended) = waiter.acquire(request, "b", json!({})).await;
        assert_eq!((status, &ended["end"]), (410, &json!("gone")), "{ended}");
    }
    waiter.hold(10, "b").await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn every_way_to_hold_is_there() {
    let data = directory();
    let server = Server::start(data.path());
    let mut one = HttpClient::open(&server, 7, 30_000).await;
    let mut two = HttpClient::open(&server, 8, 30_000).await;

    let reads = json!({ "mode": "shared" });
    assert_eq!(one.acquire(1, "report", reads.clone()).await.0, 200);
    assert_eq!(two.acquire(1, "report", reads).await.0, 200);

    let permit = json!({ "mode": "permit", "permits": 2 });
    let (_, first) = one.acquire(2, "pool", permit.clone()).await;
    let (_, second) = two.acquire(2, "pool", permit).await;
    assert_eq!(first["slots"], json!([{ "slot": 0, "permits": 2 }]), "{first}");
    assert_eq!(second["slots"], json!([{ "slot": 1, "permits": 2 }]), "{second}");

    assert_eq!(one.acquire(3, "tree", json!({ "subtree": true, "also": ["other"] })).await.0, 200);
    for name in ["tree/leaf", "other/leaf"] {
        let request = if name == "other/leaf" { 4 } else { 3 };
        assert_eq!(two.acquire(request, name, json!({})).await.1["code"], "busy", "{name}");
    }

    let shown = json!({ "value": "10.0.0.7:80", "meta_base64": "/wA=", "keep_closed_ms": 60_000 });
    assert_eq!(one.acquire(5, "a%20b%2Fc/d", shown).await.0, 200);
    let (_, lock) = two.get("/v1/locks/a%20b/c/d").await;
    let hold = &lock["holds"][0];
    assert_eq!((&lock["name"], &hold["value"]), (&json!("a b/c/d"), &json!("10.0.0.7:80")), "{lock}");
    assert_eq!((&hold["meta_base64"], &hold["session"]), (&json!("/wA="), &json!(one.session)), "{lock}");
    assert_eq!(one.release(5).await, "released");
    let (_, lock) = two.get("/v1/locks/a%20b/c/d").await;
    assert_eq!(lock["holds"][0]["state"], "closed", "{lock}");
    assert!(lock["holds"][0]["closed_for_ms"].as_u64().unwrap() > 0, "{lock}");
    server.stop().await.unwrap();
}

/// P5: each answer keeps the session alive; without calls it ends after its ttl.
#[tokio::test]
async fn session_lives_as_long_as_it_is_called() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 1_000).await;
    client.hold(1, "a").await;
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(client.keep_alive().await, (200, json!({ "revoked": [], "ended": [] })));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut next = HttpClient::open(&server, 8, 30_000).await;
    assert_eq!(next.acquire(1, "a", json!({ "wait": true, "poll_ms": 20_000 })).await.0, 200);
    assert_eq!(client.keep_alive().await.0, 410);
    server.stop().await.unwrap();
}

/// The events of a watch until there are so many.
async fn events(body: &mut hyper::body::Incoming, text: &mut String, count: usize) -> Vec<(String, Value)> {
    loop {
        let whole: Vec<&str> = text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n")).collect();
        let named: Vec<_> = whole.iter().filter(|event| event.starts_with("event: ")).collect();
        if named.len() >= count {
            let parse = |event: &&&str| {
                let (name, data) = event.trim_end().split_once('\n').unwrap();
                let data = data.strip_prefix("data: ").unwrap();
                (name["event: ".len()..].to_owned(), serde_json::from_str(data).unwrap())
            };
            return named.iter().map(parse).collect();
        }
        let frame = timeout(DEADLINE, body.frame()).await.unwrap().expect("more events").unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
}

#[tokio::test]
async fn watch_tells_the_state_and_then_every_change() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    let token = client.hold(1, "orders/1").await;
    client.hold(2, "payments/1").await;
    let mut watcher = HttpClient::connect(&server, 9).await;
    let request = watcher.request(Method::GET, "/v1/watch?prefix=orders").body(Default::default()).unwrap();
    let answer = watcher.send(request).await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let (mut body, mut text) = (answer.into_body(), String::new());
    let state = events(&mut body, &mut text, 2).await;
    assert_eq!((&state[0].0[..], &state[0].1["name"]), ("state", &json!("orders/1")), "{state:?}");
    assert_eq!(state[0].1["holds"][0]["token"], token, "{state:?}");
    assert_eq!(state[1].0, "synced");
    assert_eq!(client.release(1).await, "released");
    let changed = events(&mut body, &mut text, 3).await.pop().unwrap();
    assert_eq!((&changed.0[..], &changed.1["holds"]), ("changed", &json!([])), "{changed:?}");
    let limit = json!({ "name": "orders/1", "permits": 3 });
    assert_eq!(client.post("/v1/set-limit", limit).await.0, 200);
    let changed = events(&mut body, &mut text, 4).await.pop().unwrap();
    assert_eq!((&changed.0[..], &changed.1["permits"]), ("changed", &json!(3)), "{changed:?}");
    // A node that stops says so, and ends the watch.
    server.running.stop();
    let end = events(&mut body, &mut text, 5).await.pop().unwrap();
    assert_eq!((&end.0[..], &end.1["code"]), ("error", &json!("unavailable")), "{end:?}");
    assert!(timeout(DEADLINE, body.frame()).await.unwrap().is_none_or(|frame| frame.is_err()));
    server.ended().await.unwrap();
}

/// Any node answers, and a request that waits goes on at the next leader.
#[tokio::test]
async fn every_node_answers() {
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let cluster: BTreeMap<u64, String> =
        ports.iter().map(|(node, port)| (*node, format!("127.0.0.1:{}", port.number()))).collect();
    let nodes = start_cluster(ports, &cluster).await;
    let mut holder = HttpClient::open(&nodes[&1], 7, 30_000).await;
    let held = holder.hold(1, "a").await;
    for server in nodes.values() {
        let mut client = HttpClient::open(server, 7, 30_000).await;
        assert_eq!(client.session, holder.session);
        assert_eq!(client.acquire(1, "a", json!({})).await.1["token"], held);
        assert_eq!(client.keep_alive().await.0, 200);
    }
    let mut polls = Vec::new();
    for server in nodes.values() {
        let mut waiter = HttpClient::open(server, 8, 30_000).await;
        polls.push(tokio::spawn(async move { waiter.acquire(1, "a", json!({ "wait": true })).await }));
    }
    until_waiting(&mut holder, "a", 1).await;
    nodes[&3].calls().await.transfer(v1::TransferRequest::default()).await.unwrap();
    assert_eq!(holder.release(1).await, "released");
    let mut tokens = Vec::new();
    for poll in polls {
        let (status, granted) = poll.await.unwrap();
        assert_eq!(status, 200, "{granted}");
        tokens.push(granted["token"].as_u64().unwrap());
    }
    assert!(tokens[0] > held && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}
