//! What operators do by HTTP, and the description of it all.

use http_body_util::{BodyExt, Full};
use hyper::Method;
use serde_json::{Value, json};

use super::client::HttpClient;
use crate::harness::{Server, directory};

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
    assert_eq!(check(&mut operator, token).await, json!({ "status": "current", "live": [] }));
    assert_eq!(check(&mut operator, token - 1).await["live"], json!([token]));
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
    assert_eq!(check(&mut operator, token).await, json!({ "status": "not-current", "live": [] }));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn limits_lists_and_nodes_are_there() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    assert_eq!(client.post("/v1/set-limit", json!({ "name": "pool", "permits": 3 })).await, (200, json!({})));
    let (_, permit) = client.acquire(1, "pool", json!({ "mode": "permit" })).await;
    assert_eq!(permit["permits"][0]["limit"], 3, "{permit}");
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
    let (status, problem) = client.post("/v1/transfer", json!({})).await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("failed-precondition")),
        "there is no other node: {problem}"
    );
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
    assert_eq!(operations, 22);
    server.stop().await.unwrap();
}
