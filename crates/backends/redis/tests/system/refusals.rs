//! Refusals of the server that may pass: what they end, and that their reason is reported.

use std::fs;
use std::sync::Arc;

use lockkeeper::{AcquireError, BackendErrorKind, Locks, LossCause, Wait};
use lockkeeper_rig::Redis;
use tokio::sync::Notify;

use crate::support::{SECOND, client, loss, until, until_waiting};

fn set(redis: &Redis, setting: &str, value: &str) {
    redis.cli(&["CONFIG", "SET", setting, value]);
}

#[tokio::test]
async fn the_refusal_of_a_whole_wait_is_its_error() {
    let redis = Redis::start();
    let locks = client(&redis, "waiter").await;
    let waits = locks.mutex("jobs").wait(Wait::For(SECOND / 4));
    // It passes by itself, without an answer.
    set(&redis, "min-replicas-to-write", "1");
    let error = waits.acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("refused: NOREPLICAS"), "{error}");
    set(&redis, "min-replicas-to-write", "0");
    // An operator must act.
    set(&redis, "maxmemory", "1");
    match waits.acquire().await.unwrap_err() {
        AcquireError::Backend(error) => {
            assert!(error.kind == BackendErrorKind::Operator && error.kind.may_pass(), "{error:?}");
            assert!(error.message.contains("refused: OOM"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_refusal_of_renewals_is_the_reason_of_the_loss() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"]);
    let locks = Locks::connect(&redis.url_as("app", "secret")).await.unwrap();
    let held = locks.mutex("jobs").ttl(SECOND).acquire().await.unwrap();
    assert_eq!(held.trouble(), None);
    redis.cli(&["ACL", "SETUSER", "app", "-evalsha", "-eval"]);
    let trouble = held.trouble_changes(None).await.unwrap();
    assert!(trouble.contains("refused: NOPERM"), "{trouble}");
    assert_eq!(loss(&held).await, LossCause::Expired);
    let lost = held.valid_until().unwrap_err();
    assert!(lost.to_string().contains("refused: NOPERM"), "{lost}");
}

#[tokio::test]
async fn the_refusal_of_a_check_or_a_release_is_in_its_error() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"]);
    let locks = Locks::connect(&redis.url_as("app", "secret")).await.unwrap();
    let held = locks.mutex("jobs").acquire().await.unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "-evalsha", "-eval"]);
    let errors =
        [held.verify().await.unwrap_err().to_string(), held.release().await.unwrap_err().to_string()];
    for error in errors {
        assert!(error.contains("not confirm") && error.contains("refused: NOPERM"), "{error}");
    }
}

#[tokio::test]
async fn a_waiter_keeps_its_place_while_the_server_is_out_of_memory() {
    let redis = Redis::start();
    let (alice, bob, carol) =
        (client(&redis, "alice").await, client(&redis, "bob").await, client(&redis, "carol").await);
    // Bob looks again when this ttl is over, at the latest.
    let held = alice.mutex("jobs").ttl(SECOND).acquire().await.unwrap();
    let refused = Arc::new(Notify::new());
    let tell = refused.clone();
    let first = tokio::spawn(async move {
        let lock = bob.mutex("jobs").on_refused(move |refusal| {
            assert!(refusal.message.contains("OOM"), "{refusal}");
            tell.notify_one();
        });
        lock.acquire().await
    });
    until_waiting(&alice, "jobs", 1).await;
    let second = tokio::spawn(async move { carol.mutex("jobs").acquire().await });
    until_waiting(&alice, "jobs", 2).await;
    set(&redis, "maxmemory", "1");
    refused.notified().await;
    set(&redis, "maxmemory", "0");
    held.release().await.unwrap();
    let first = first.await.unwrap().expect("it has waited on");
    assert!(!second.is_finished(), "its place is behind");
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_password_is_read_again_for_each_connection() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "one\n").unwrap();
    let url = format!("redis://app@127.0.0.1:{}?password-file={}", redis.port(), file.display());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.mutex("jobs").ttl(6 * SECOND).acquire().await.unwrap();
    let before = held.valid_until().unwrap();
    fs::write(&file, "two\n").unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "<one", ">two"]);
    redis.cli(&["CLIENT", "KILL", "USER", "app"]);
    until("it is renewed", async || (held.valid_until().unwrap() > before).then_some(())).await;
    held.release().await.unwrap();
}
