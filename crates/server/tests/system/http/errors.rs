//! Calls that are refused, in words and with a code.

use http_body_util::{BodyExt, Full};
use hyper::Method;
use serde_json::{Value, json};

use super::client::HttpClient;
use crate::harness::{Server, directory};

#[tokio::test]
async fn bad_calls_are_refused_in_words() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    let session = client.session;
    let lock = |more: Value| {
        let mut body = json!({ "session": session, "request": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/locks/a".to_owned(), body)
    };
    let at = |path: &str, body: Value| (path.to_owned(), body);
    let keep_alive = format!("/v1/sessions/{session}/keep-alive");
    // What is posted, and the status, the code and a word of the answer.
    let posts = [
        (lock(json!({ "wait": true, "poll_ms": 60_001 })), 400, "invalid-argument", "60001"),
        (lock(json!({ "poll_ms": 5 })), 400, "invalid-argument", "wait"),
        (lock(json!({ "mode": "sometimes" })), 400, "invalid-argument", "sometimes"),
        (lock(json!({ "time": 5 })), 400, "invalid-argument", "time"),
        (lock(json!({ "value": "a", "value_base64": "YQ==" })), 400, "invalid-argument", "value_base64"),
        (lock(json!({ "meta_base64": "?" })), 400, "invalid-argument", "base64"),
        (lock(json!({ "value": "a".repeat(4_097) })), 400, "invalid-argument", "4096"),
        (lock(json!({ "mode": "permit" })), 409, "failed-precondition", "permits"),
        (
            at("/v1/locks/a//b", json!({ "session": session, "request": 9 })),
            400,
            "invalid-argument",
            "empty segment",
        ),
        (at("/v1/locks/%FF", json!({ "session": session, "request": 9 })), 400, "invalid-argument", "UTF-8"),
        (at("/v1/locks/a", json!({ "request": 1 })), 400, "invalid-argument", "session"),
        (at("/v1/sessions", json!({ "ttl_ms": 5 })), 400, "invalid-argument", "1000"),
        (at("/v1/sessions/none/keep-alive", json!({})), 400, "invalid-argument", "none"),
        (at(&keep_alive, json!({ "poll_ms": 60_001 })), 400, "invalid-argument", "60001"),
        (at(&keep_alive, json!({ "waiting": vec![1; 4_097] })), 400, "invalid-argument", "4096"),
        (at(&keep_alive, json!({ "wait": true })), 400, "invalid-argument", "wait"),
        (at("/v1/set-limit", json!({ "name": "a" })), 400, "invalid-argument", "permits"),
        (
            at("/v1/break", json!({ "name": "a", "token": 0, "reason": "x" })),
            400,
            "invalid-argument",
            "token",
        ),
        (at("/v1/nothing", json!({})), 404, "not-found", "openapi"),
        (at("/v1/status", json!({})), 405, "method-not-allowed", "POST"),
    ];
    for ((path, body), status, code, word) in posts {
        let (found, problem) = client.post(&path, body).await;
        assert_eq!(
            (found, &problem["code"], &problem["status"]),
            (status, &json!(code), &json!(status)),
            "{path}: {problem}"
        );
        assert!(problem["detail"].as_str().unwrap().contains(word), "{path}, {word}: {problem}");
    }
    for path in
        ["/v1/locks?page_size=1001", "/v1/locks?size=1", "/v1/sessions?after=x", "/v1/locks/a?holds_after=-1"]
    {
        let (status, problem) = client.get(path).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid-argument")), "{path}: {problem}");
    }
    // The texts name no types of Rust, and none of its deserializer's.
    for (path, body, text) in [
        (
            "/v1/locks/a",
            json!([1]),
            "the body does not fit this call: invalid length 1, expected an object at line 1",
        ),
        (
            "/v1/locks/a",
            json!({ "session": "x" }),
            "session: invalid type: string \"x\", expected a whole number from 0",
        ),
        (
            "/v1/locks/a",
            json!({ "session": 1, "request": 1, "permits": -1 }),
            "expected a whole number from 0 to 4294967295",
        ),
        (
            "/v1/sessions/none/keep-alive",
            json!({}),
            "the path does not fit this call: can't read `none`: it is no whole number from 0",
        ),
    ] {
        let (_, problem) = client.post(path, body).await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(text), "{path}: {detail}");
        assert!(
            !["struct", "u64", "u32", "deserialize", "target type"].iter().any(|it| detail.contains(it)),
            "{detail}"
        );
    }
    client.hold(20, "a").await;
    // The number of a hold of another lock, and the secret of a session with another ttl: the client would
    // believe what is not so (P5).
    let (status, problem) = client.acquire(20, "b", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("failed-precondition")), "{problem}");
    let (status, again) = client.acquire(20, "a", json!({})).await;
    assert_eq!((status, &again["locks"]), (200, &json!(["a"])), "{again}");
    let (status, problem) = client.post("/v1/sessions", json!({ "ttl_ms": 600_000 })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("failed-precondition")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("a ttl of 30000 ms"), "{problem}");
    // Numbers of other requests, and the rest of a name with a `?`.
    let changes = format!("/v1/sessions/{session}/requests/20");
    let (status, problem) =
        client.with_body(Method::PUT, &format!("{changes}/value"), json!({ "number": 20 })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("failed-precondition")), "{problem}");
    assert_eq!(client.post(&format!("{changes}/downgrade"), json!({ "number": 21 })).await.0, 200);
    let (status, problem) = client.acquire(21, "b", json!({})).await;
    assert_eq!((status, &problem["code"]), (409, &json!("failed-precondition")), "{problem}");
    let (status, problem) = client.acquire(22, "job?eu", json!({})).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid-argument")), "{problem}");
    let from_elsewhere = client.request(Method::GET, "/v1/backup").header("sec-fetch-site", "cross-site");
    let (status, problem) = client.answer(from_elsewhere.body(Full::default()).unwrap()).await;
    assert_eq!((status, &problem["code"]), (403, &json!("permission-denied")), "{problem}");
    // The service does not read what is left of the body, so the connection ends.
    let (status, problem) = client.acquire(23, "b", json!({ "value": "a".repeat(300_000) })).await;
    assert_eq!((status, &problem["code"]), (413, &json!("payload-too-large")), "{problem}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn session_is_its_secrets_owners() {
    let data = directory();
    let server = Server::start(data.path());
    let mut owner = HttpClient::open(&server, 7, 30_000).await;
    owner.hold(1, "a").await;
    let path = format!("/v1/sessions/{}", owner.session);
    for (secret, status, word) in
        [("08".repeat(16), 400, "secret"), ("0".repeat(31), 400, "32"), ("x".repeat(32), 400, "32")]
    {
        let mut thief = HttpClient::connect(&server, 9).await;
        thief.secret.clone_from(&secret);
        let (found, problem) = thief.delete(&path).await;
        assert_eq!(found, status, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{problem}");
        assert!(!problem.to_string().contains(&secret), "{problem}");
    }
    let request = hyper::Request::delete(&path).body(Full::default()).unwrap();
    let (status, problem) = owner.answer(request).await;
    assert_eq!(status, 400, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("openssl rand"), "{problem}");
    assert_eq!(owner.release(1).await, "released");
    server.stop().await.unwrap();
}

/// A web site that the user of a browser visits can send requests to this machine. It can't declare a body as
/// JSON without asking the server first, and a name of its own that stands for this machine is seen in
/// `Host`.
#[tokio::test]
async fn requests_of_web_sites_are_refused() {
    let data = directory();
    let server = Server::start(data.path());
    let mut client = HttpClient::open(&server, 7, 30_000).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let request = client.request(Method::POST, "/v1/set-limit").header("content-type", kind);
        let body = json!({ "name": "a", "permits": 3 }).to_string();
        let (status, problem) = client.answer(request.body(Full::from(body)).unwrap()).await;
        assert_eq!((status, &problem["code"]), (415, &json!("unsupported-media-type")), "{problem}");
    }
    for method in [Method::GET, Method::POST, Method::OPTIONS] {
        let request =
            hyper::Request::builder().method(method).uri("/v1/status").header("host", "evil.example:5627");
        let (status, problem) = client.answer(request.body(Full::default()).unwrap()).await;
        assert_eq!((status, &problem["code"]), (421, &json!("misdirected")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("evil.example"), "{problem}");
    }
    let request = client.request(Method::GET, "/v1/status").header("origin", "https://evil.example");
    let answer = client.send(request.body(Full::default()).unwrap()).await;
    assert!(!answer.headers().contains_key("access-control-allow-origin"), "{answer:?}");
    answer.into_body().collect().await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn permissions_and_tokens_are_those_of_the_other_port() {
    const PERMISSIONS: &str =
        "[[allow]]\nwho = [\"shop\"]\nactions = [\"acquire\", \"read\"]\nnames = [\"orders\"]\n";
    let (data, files) = (directory(), directory());
    let (server, [shop]) = Server::start_for(data.path(), files.path(), ["shop"], Some(PERMISSIONS));
    let mut client = HttpClient::connect(&server, 7).await;
    let (status, problem) = client.post("/v1/sessions", json!({ "ttl_ms": 30_000 })).await;
    assert_eq!((status, &problem["code"]), (403, &json!("permission-denied")), "{problem}");
    client.token = Some("made-up".to_owned());
    let request = client.request(Method::GET, "/v1/locks/orders/1").body(Full::default()).unwrap();
    let refused = client.send(request).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["www-authenticate"]),
        (401, &"Bearer".parse().unwrap())
    );
    refused.into_body().collect().await.unwrap();

    client.token = Some(shop);
    client.open_session(30_000).await;
    client.hold(1, "orders/1").await;
    let (_, lock) = client.get("/v1/locks/orders/1").await;
    assert_eq!(lock["holds"][0]["identity"], "shop", "{lock}");
    let others = [
        client.acquire(2, "payments/1", json!({})).await,
        client.get("/v1/locks/payments/1").await,
        client.get("/v1/locks").await,
        client.get("/v1/sessions").await,
        client.get("/v1/watch").await,
        client.get("/v1/backup").await,
        client.get("/v1/audit?prefix=orders").await,
        client.get("/metrics").await,
        client.post("/v1/break", json!({ "name": "orders/1", "token": 1, "reason": "x" })).await,
        client.post("/v1/set-limit", json!({ "name": "orders/1", "permits": 3 })).await,
        client.post("/v1/transfer", json!({})).await,
        client.delete("/v1/members/1").await,
    ];
    for (status, problem) in others {
        assert_eq!((status, &problem["code"]), (403, &json!("permission-denied")), "{problem}");
    }
    assert_eq!(client.release(1).await, "released");
    server.stop().await.unwrap();
}
