//! Cached locks at a real node: what people see of them, and others that want them.

use std::process::Command;
use std::time::Duration;

use lockkeeper::{Lock, Locks};
use lockkeeper_cli::exit;
use serde_json::{Value, json};

use crate::node::Node;
use crate::support::{CommandExt, Ended, TestDir};

/// A node, and a client that caches the lock `tenants/7`.
async fn cached(test: &TestDir) -> (Node, TestDir, Locks, Lock) {
    let node = test.begin("data", &["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]).ready();
    let url = format!("lockkeeper://{}", node.listening());
    let locks = Locks::connect(&url).await.unwrap();
    let lock = locks.mutex("tenants/7").cached();
    for _ in 0..5 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    (node, TestDir::new().over(&url), locks, lock)
}

fn shown(others: &TestDir) -> Value {
    let ended = others.ran("show tenants/7 --json");
    serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"))
}

/// An acquire over HTTP that doesn't wait.
fn tried_over_http(node: &Node, request: u64) -> (Ended, Value) {
    let url = node.http();
    let curl = |path: &str, body: Value| {
        let words = ["-sS", "-H", "Lockkeeper-Secret: 0123456789abcdef0123456789abcdef", "--json"];
        let ended =
            Command::new("curl").args(words).arg(body.to_string()).arg(format!("{url}{path}")).ended();
        let answer: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
        (ended, answer)
    };
    let (_, opened) = curl("/v1/sessions", json!({ "ttl_ms": 30_000 }));
    curl("/v1/locks/tenants/7", json!({ "session": opened["session"], "request": request }))
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_cached_lock_is_shown_and_given_back_to_whoever_asks() {
    let test = TestDir::new();
    let (node, others, _locks, lock) = cached(&test).await;
    let hold = shown(&others)["holds"][0].clone();
    let (token, last) = (hold["token"].as_u64().unwrap(), hold["last_token"].as_u64().unwrap());
    assert_eq!((&hold["cached"], last - token), (&json!(true), 15), "{hold}");
    let listed = others.ran("ls");
    assert!(listed.out.contains("cached"), "{listed:?}");
    for current in [token, last] {
        assert_eq!(others.ran(&format!("check-token tenants/7 {current}")).code, i32::from(exit::OK));
    }
    others.ran("run --try tenants/7 -- true").is_silent_success();
    // The next one is above the whole block.
    let guard = lock.acquire().await.unwrap();
    assert!(guard.token_hint().unwrap().get() > last + 1);
    guard.release().await.unwrap();
    for _ in 0..3 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(shown(&others)["holds"][0]["cached"], json!(true));
    let (_, granted) = tried_over_http(&node, 1);
    assert_eq!(granted["state"], json!("held"), "{granted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_lock_in_use_is_busy_and_ends_with_its_section() {
    let test = TestDir::new();
    let (node, others, _locks, lock) = cached(&test).await;
    let guard = lock.acquire().await.unwrap();
    let (_, busy) = tried_over_http(&node, 1);
    assert_eq!((&busy["code"], &busy["status"]), (&json!("busy"), &json!(409)), "{busy}");
    // Its holder has answered the recall: an ordinary hold from now on, with the section's token.
    let hold = shown(&others)["holds"][0].clone();
    assert_eq!(hold["cached"], Value::Null, "{hold}");
    let token = guard.token_hint().unwrap();
    assert_eq!(others.ran(&format!("check-token tenants/7 {token}")).code, i32::from(exit::OK));
    let waiting = others.lockkeeper(["run", "tenants/7", "--", "true"]).started();
    others.wait_for_waiters("tenants/7", 1);
    guard.check(Duration::from_secs(1)).expect("others wait, the section goes on");
    guard.release().await.unwrap();
    waiting.ended().is_silent_success();
}
