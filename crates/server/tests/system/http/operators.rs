//! What operators do by HTTP, and the description of it all.

use std::collections::BTreeMap;

use http_body_util::{BodyExt, Full};
use hyper::Method;
use lockkeeper_rig::Port;
use lockkeeper_server::ServerOptions;
use lockkeeper_wire::v1;
use serde_json::{Value, json};

use super::client::HttpClient;
use crate::harness::{Server, directory, start_cluster};

#[tokio::test]
async fn holds_are_checked_and_broken() {
    let data = directory();
    let server = Server::start(data.path());
    let mut holder = HttpClient::open(&server, 7, 30_000).await;
    let mut operator = HttpClient::connect(&server, 9).await;
    let token = holder.hold(1, "a").await;
    let check = async |operator: &mut HttpClient, token: u64| {
        operator.get(&format!("/v1/check-token?name=a&token={token}")).await.1
    };
    assert_eq!(check(&mut operator, token).await, json!({ "status": "current", "live_tokens": [] }));
    assert_eq!(check(&mut operator, token - 1).await["live_tokens"], json!([token]));
    assert_eq!(check(&mut operator, token + 1).await["status"], "never-issued");

    let order = |token: u64, now: bool| json!({ "name": "a", "token": token, "reason": "stuck", "by": "ann", "now": now });
    let (status, broken) = operator.post("/v1/break", order(token, false)).await;
    assert_eq!((status, &broken["result"]), (200, &json!("done")), "{broken}");
    let (_, lock) = operator.get("/v1/locks/a").await;
    let hold = &lock["holds"][0];
    assert_eq!(
        (&hold["state"], &hold["break_by"], &hold["break_reason"]),
        (&json!("revoked"), &json!("ann"), &json!("stuck"))
    );
    // The holder is told by every answer.
    assert_eq!(holder.keep_alive().await.1, json!({ "revoked": [1], "ended": [] }));
    let (status, revoked) = holder.acquire(1, "a", json!({})).await;
    assert_eq!(
        (status, &revoked["state"], &revoked["token"]),
        (200, &json!("revoked"), &json!(token)),
        "{revoked}"
    );
    assert_eq!(operator.post("/v1/break", order(token, true)).await.1["result"], "done");
    let over = json!({ "revoked": [], "ended": [{ "request": 1, "end": "broken" }] });
    assert_eq!(holder.keep_alive().await.1, over);
    let (status, ended) = holder.acquire(1, "a", json!({})).await;
    assert_eq!((status, &ended["code"], &ended["end"]), (410, &json!("ended"), &json!("broken")), "{ended}");
    assert_eq!(holder.keep_alive().await.1, over, "until the client says that it knows");
    assert_eq!(holder.release(1).await, "broken");
    assert_eq!(holder.keep_alive().await.1, json!({ "revoked": [], "ended": [] }));
    assert_eq!(check(&mut operator, token).await, json!({ "status": "not-current", "live_tokens": [] }));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn audit_trail_is_shown_in_pages_and_survives_the_process() {
    let data = directory();
    let options = || ServerOptions {
        listen: "127.0.0.1:0".to_owned(),
        audit: Some(data.path().join("audit")),
        ..ServerOptions::new(data.path().join("node"))
    };
    let server = Server::start_with(options());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    let tokens = [client.hold(1, "a").await, client.hold(2, "a/b").await, client.hold(3, "ab").await];
    for (name, token) in ["a", "a/b", "ab"].into_iter().zip(tokens) {
        let order = json!({ "name": name, "token": token, "reason": format!("stuck: {name}"), "by": "ann", "now": true });
        assert_eq!(client.post("/v1/break", order).await.1["result"], "done");
    }
    server.stop().await.unwrap();
    // A new process knows the end of its file.
    let server = Server::start_with(options());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    assert_eq!(client.post("/v1/set-limit", json!({ "name": "a", "permits": 3 })).await.0, 200);
    let (_, all) = client.get("/v1/audit").await;
    let whats: Vec<&str> =
        all["records"].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["set-limit", "break", "break", "break"], "{all}");
    let (_, of_a) = client.get("/v1/audit?prefix=a&page_size=2").await;
    let names = |page: &Value| {
        page["records"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&of_a), [json!("a"), json!("a/b")], "{of_a}");
    let broken = &of_a["records"][1];
    assert_eq!((&broken["token"], &broken["reason"]), (&json!(tokens[1]), &json!("stuck: a/b")), "{broken}");
    let (_, rest) =
        client.get(&format!("/v1/audit?prefix=a&page_size=2&before={}", of_a["next_before"])).await;
    assert_eq!((names(&rest), rest.get("next_before")), (vec![json!("a")], None), "{rest}");
    server.stop().await.unwrap();
}

/// Any node is asked about any other.
#[tokio::test]
async fn state_and_audit_trail_of_every_node_are_told_by_each() {
    let ports = [1, 2, 3].map(|node| (node, Port::free()));
    let addresses: BTreeMap<u64, String> =
        ports.iter().map(|(node, port)| (*node, format!("127.0.0.1:{}", port.number()))).collect();
    let nodes = start_cluster(ports, &addresses).await;
    let leader = nodes[&1].calls().await.members(v1::MembersRequest {}).await.unwrap().into_inner().leader;
    let mut client = HttpClient::open(&nodes[&1], 7, 30_000).await;
    assert_eq!(client.post("/v1/set-limit", json!({ "name": "a", "permits": 3 })).await.0, 200);
    for server in nodes.values() {
        let mut client = HttpClient::connect(server, 7).await;
        for node in nodes.keys() {
            let (status, state) = client.get(&format!("/v1/status?node={node}")).await;
            let role = if *node == leader { "leader" } else { "follower" };
            assert_eq!(
                (status, &state["node"], &state["role"]),
                (200, &json!(node), &json!(role)),
                "{state}"
            );
            assert!(state["disk_used_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{state}");
            let (_, trail) = client.get(&format!("/v1/audit?node={node}")).await;
            let records = trail["records"].as_array().unwrap().len();
            assert_eq!((&trail["node"], records), (&json!(node), usize::from(*node == leader)), "{trail}");
        }
        let (status, problem) = client.get("/v1/status?node=9").await;
        assert_eq!((status, &problem["code"]), (404, &json!("not-found")), "{problem}");
    }
    for server in nodes.into_values() {
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn limits_lists_and_nodes_are_there() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    assert_eq!(client.post("/v1/set-limit", json!({ "name": "pool", "permits": 3 })).await, (200, json!({})));
    let (_, permit) = client.acquire(1, "pool", json!({ "mode": "permit" })).await;
    assert_eq!(permit["slots"][0]["permits"], 3, "{permit}");
    let (_, lock) = client.get("/v1/locks/pool").await;
    assert_eq!((&lock["permits"], &lock["permits_stored"]), (&json!(3), &json!(true)), "{lock}");
    assert_eq!(client.post("/v1/set-limit", json!({ "name": "pool", "permits": null })).await.0, 200);
    for number in 2..=6 {
        client.hold(number, &format!("orders/{number}")).await;
    }

    let (mut names, mut path) = (Vec::new(), "/v1/locks?prefix=orders&page_size=2".to_owned());
    loop {
        let (status, page) = client.get(&path).await;
        assert_eq!(status, 200, "{page}");
        names.extend(page["locks"].as_array().unwrap().iter().map(|lock| lock["name"].clone()));
        let Some(after) = page.get("next_after") else { break };
        path = format!("/v1/locks?prefix=orders&page_size=2&after={after}");
    }
    names.sort_by_key(Value::to_string);
    assert_eq!(names, (2..=6).map(|it| json!(format!("orders/{it}"))).collect::<Vec<_>>());

    let (_, page) = client.get("/v1/sessions").await;
    let session = &page["sessions"][0];
    assert_eq!((&session["session"], &session["requests"]), (&json!(client.session), &json!(6)), "{page}");
    assert_eq!((&session["label"], &session["ttl_ms"]), (&json!("worker"), &json!(30_000)), "{page}");

    let (_, status) = client.get("/v1/status").await;
    assert_eq!(
        (&status["node"], &status["role"], &status["leader"]),
        (&json!(1), &json!("leader"), &json!(1)),
        "{status}"
    );
    assert_eq!(status["sessions"], 1, "{status}");
    let (_, members) = client.get("/v1/members").await;
    assert_eq!((&members["nodes"][0]["part"], &members["leader"]), (&json!("voter"), &json!(1)), "{members}");
    let (status, problem) = client.post("/v1/transfer", json!({ "reason": "drill" })).await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("failed-precondition")),
        "there is no other node: {problem}"
    );
    let (_, trail) = client.get("/v1/audit").await;
    let last = &trail["records"][0];
    assert_eq!((&last["what"], &last["reason"]), (&json!("transfer"), &json!("drill")), "{trail}");
    let (status, problem) = client.post("/v1/transfer", json!({ "reason": "x".repeat(257) })).await;
    assert!(status == 400 && problem["detail"].as_str().unwrap().contains("257 bytes"), "{problem}");
    let (status, problem) = client.post("/v1/members", json!({ "node": 2, "peer_address": "nowhere" })).await;
    assert_eq!(status, 400, "{problem}");

    let request = client.request(Method::GET, "/v1/backup").body(Full::default()).unwrap();
    let answer = client.send(request).await;
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    let file = answer.into_body().collect().await.unwrap().to_bytes();
    let path = data.path().join("backup");
    std::fs::write(&path, &file).unwrap();
    let restored = lockkeeper_server::backup::inspect(&path);
    assert!(restored.is_ok(), "{:?}", restored.err());
    server.stop().await.unwrap();
}

/// Every operation of the document is one of the service, and the other way round.
#[tokio::test]
async fn document_describes_what_is_there() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::connect(&server, 7).await;
    let (status, document) = client.get("/v1/openapi.json").await;
    assert_eq!((status, &document["info"]["title"]), (200, &json!("Lockkeeper")));
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let called = path
            .replace("{name}", "a/b")
            .replace("{session}", "1")
            .replace("{request}", "1")
            .replace("{node}", "7");
        for method in ["get", "put", "post", "delete", "patch", "head", "options"] {
            if path == "/v1/watch" && method == "get" {
                continue;
            }
            let request = client.request(method.to_uppercase().parse().unwrap(), &called);
            let status = client.send(request.body(Full::default()).unwrap()).await;
            let is_there = status.status() != 405;
            let body = status.into_body().collect().await.unwrap().to_bytes();
            // A `head` is answered as the `get` would be.
            let is_described = item.get(method).is_some() || (method == "head" && item.get("get").is_some());
            assert_eq!(is_there, is_described, "{method} {path}: {body:?}");
        }
        for (method, operation) in item.as_object().unwrap() {
            operations += 1;
            assert!(operation["summary"].is_string(), "{method} {path}");
            let problem =
                &operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(problem, "#/components/schemas/Problem", "{method} {path}");
        }
    }
    assert_eq!(operations, 26);
    server.stop().await.unwrap();
}
