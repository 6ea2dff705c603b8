//! One call of a session that keeps it alive and waits for a change of any of its requests.

use std::collections::BTreeMap;

use lockkeeper_rig::Port;
use lockkeeper_wire::v1;
use serde_json::{Value, json};

use super::client::HttpClient;
use super::until_waiting;
use crate::harness::{Server, directory, start_cluster};

/// A keep-alive on a connection of its own.
async fn poll(server: &Server, client: &HttpClient, body: Value) -> tokio::task::JoinHandle<(u16, Value)> {
    let mut poller = HttpClient::open(server, 8, 30_000).await;
    assert_eq!(poller.session, client.session);
    let path = format!("/v1/sessions/{}/keep-alive", client.session);
    tokio::spawn(async move { poller.post(&path, body).await })
}

async fn queue(client: &mut HttpClient, request: u64, name: &str) {
    let (status, queued) = client.acquire(request, name, json!({ "wait": true, "poll_ms": 0 })).await;
    assert_eq!(status, 202, "{queued}");
}

#[tokio::test]
async fn keep_alive_waits_for_a_grant_or_break_of_any_request() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = HttpClient::open(&server, 7, 30_000).await;
    let first = holder.hold(1, "a").await;
    let permit = json!({ "mode": "permit", "permits": 1 });
    assert_eq!(holder.acquire(2, "pool", permit).await.0, 200);
    let mut waiter = HttpClient::open(&server, 8, 30_000).await;
    queue(&mut waiter, 1, "a").await;
    let more = json!({ "mode": "permit", "permits": 1, "wait": true, "poll_ms": 0 });
    assert_eq!(waiter.acquire(2, "pool", more).await.0, 202);

    let both = json!({ "poll_ms": 20_000, "waiting": [1, 2] });
    let granted = poll(&server, &waiter, both.clone()).await;
    assert_eq!(holder.release(1).await, "released");
    let (status, answer) = granted.await.unwrap();
    let token = answer["granted"][0]["token"].as_u64().unwrap();
    let one = json!({ "granted": [{ "request": 1, "token": token }], "revoked": [], "ended": [] });
    assert_eq!((status, &answer), (200, &one));
    assert!(token > first);
    // An answer that was lost; and the next one, of a permit.
    assert_eq!(poll(&server, &waiter, both).await.await.unwrap(), (200, one));
    let next = poll(&server, &waiter, json!({ "poll_ms": 20_000, "waiting": [2] })).await;
    assert_eq!(holder.release(2).await, "released");
    let (_, answer) = next.await.unwrap();
    assert_eq!(answer["granted"][0]["slots"], json!([{ "slot": 0, "permits": 1 }]), "{answer}");

    // A later call makes an earlier one answer, and an operator's break makes that one answer.
    let nothing = json!({ "revoked": [], "ended": [] });
    let earlier = poll(&server, &waiter, json!({ "poll_ms": 60_000 })).await;
    let later = poll(&server, &waiter, json!({ "poll_ms": 60_000 })).await;
    assert_eq!(earlier.await.unwrap(), (200, nothing.clone()));
    let broken = json!({ "name": "a", "token": token, "reason": "test" });
    assert_eq!(holder.post("/v1/break", broken).await.0, 200);
    assert_eq!(later.await.unwrap(), (200, json!({ "revoked": [1], "ended": [] })));
    let known = json!({ "poll_ms": 50, "known": [1] });
    assert_eq!(poll(&server, &waiter, known).await.await.unwrap(), (200, nothing));
    let (_, told) = waiter.keep_alive().await;
    assert_eq!(told, json!({ "revoked": [1], "ended": [] }), "as without a body");
    server.stop().await.unwrap();
}

/// The leader is moved while calls wait at each node; then it ends. The session's client calls again.
#[tokio::test]
async fn waiting_keep_alives_go_on_at_the_next_leader() {
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let cluster: BTreeMap<u64, String> =
        ports.iter().map(|(node, port)| (*node, format!("127.0.0.1:{}", port.number()))).collect();
    let mut nodes = start_cluster(ports, &cluster).await;
    let mut holder = HttpClient::open(&nodes[&1], 7, 30_000).await;
    holder.hold(1, "a").await;
    let mut waiter = HttpClient::open(&nodes[&2], 8, 30_000).await;
    queue(&mut waiter, 1, "a").await;
    let body = json!({ "poll_ms": 20_000, "waiting": [1] });
    let mut polls = Vec::new();
    for server in nodes.values() {
        polls.push(poll(server, &waiter, body.clone()).await);
    }
    until_waiting(&mut holder, "a", 1).await;
    nodes[&3].calls().await.transfer(v1::TransferRequest::default()).await.unwrap();
    assert_eq!(holder.release(1).await, "released");
    let mut answers = Vec::new();
    for poll in polls {
        answers.push(poll.await.unwrap());
    }
    // Of the three, which were sent at once, the last one that arrived has waited.
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let told = answers.iter().filter(|(_, answer)| answer["granted"][0]["request"] == 1).count();
    assert!(told >= 1, "{answers:?}");

    let (_, status) = waiter.get("/v1/status").await;
    let leader = status["leader"].as_u64().unwrap();
    let other = *nodes.keys().find(|node| **node != leader).unwrap();
    queue(&mut HttpClient::open(&nodes[&other], 7, 30_000).await, 2, "a").await;
    let mut holder = HttpClient::open(&nodes[&other], 8, 30_000).await;
    let mut next = HttpClient::open(&nodes[&other], 7, 30_000).await;
    let path = format!("/v1/sessions/{}/keep-alive", next.session);
    let waits = json!({ "poll_ms": 20_000, "waiting": [2] });
    let waiting = tokio::spawn(async move { next.post(&path, waits).await });
    nodes.remove(&leader).unwrap().stop().await.unwrap();
    assert_eq!(holder.release(1).await, "released");
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status, &answer["granted"][0]["request"]), (200, &json!(2)), "{answer}");
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}
