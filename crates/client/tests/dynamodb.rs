//! `dynamodb:` on an emulator: its items, and what a table must be like.

use std::path::Path;
use std::time::Duration;

use lockkeeper::backends::dynamodb::init;
use lockkeeper::{AcquireError, ConnectError, Locks, Wait};
use lockkeeper_rig::DynamoDb;

fn start() -> DynamoDb {
    // The directory in which `cargo xtask test` installs packages of other registries (xtask/src/foreign.rs).
    DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"))
}

fn url(server: &DynamoDb, table: &str, more: &str) -> String {
    format!("dynamodb://{table}?region=us-east-1&credentials=none&poll_ms=20&endpoint={}{more}", server.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_is_made_once_and_checked() {
    let server = start();
    let error = Locks::connect(&url(&server, "locks", "")).await.expect_err("no such table");
    assert!(error.to_string().contains("lockkeeper dynamodb init"), "{error}");
    assert!(init(&url(&server, "locks", "")).await.unwrap());
    assert!(!init(&url(&server, "locks", "")).await.unwrap());
    Locks::connect(&url(&server, "locks", "")).await.unwrap();
    // The rig's table has another partition key.
    let error =
        Locks::connect(&url(&server, lockkeeper_rig::dynamodb::TABLE, "")).await.expect_err("other keys");
    assert!(error.to_string().contains("partition key `id`"), "{error}");
    Locks::connect(&url(&server, lockkeeper_rig::dynamodb::TABLE, "&key=id")).await.unwrap();
    assert!(init(&url(&server, "both", "&sort=kind:lock")).await.unwrap());
    let error = Locks::connect(&url(&server, "both", "")).await.expect_err("it has a sort key");
    assert!(error.to_string().contains("sort key `kind`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_in_both_layouts_and_tokens_rise() {
    let server = start();
    for (table, more) in [("a", ""), ("b", "&attributes=python"), ("c", "&key=pk&sort=sk:locks")] {
        let url = url(&server, table, more);
        assert!(init(&url).await.unwrap());
        let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect_as(&url, "two").await.unwrap());
        let mut last = None;
        for _ in 0..3 {
            let held = one.mutex("orders/42").acquire().await.unwrap();
            assert!(held.token_hint() > last);
            last = held.token_hint();
            assert!(two.mutex("orders/42").try_acquire().await.unwrap().is_none());
            assert_eq!(two.list(None).await.unwrap().len(), 1);
            held.release().await.unwrap();
            assert!(two.list(None).await.unwrap().is_empty());
        }
        let held = two.mutex("orders/42").acquire().await.unwrap();
        let error = one.mutex("orders/42").wait(Wait::No).acquire().await.expect_err("held");
        assert!(error.to_string().contains("two"), "{error}");
        let waits = one.mutex("orders/42");
        let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_of_a_token_is_refused_as_a_lock() {
    let server = start();
    let url = url(&server, "locks", "");
    init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.mutex("x#fence").acquire().await.expect_err("taken for a token");
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("#fence"), "{error}");
}

/// A crowd of one lock: nobody holds together with another, and everybody gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_takes_turns() {
    let server = start();
    let url = url(&server, "locks", "");
    init(&url).await.unwrap();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let locks = Locks::connect(&url).await.unwrap();
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let held = locks.mutex("x").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_that_is_missing_is_named_with_the_reason() {
    let url = "dynamodb://locks?region=eu-central-1&credentials=none&endpoint=http://127.0.0.1:1";
    let error = Locks::connect(url).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}
