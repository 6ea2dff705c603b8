//! A server that is killed, stopped or unreachable; answers that are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper::{LossCause, ReleaseError, Wait};

use crate::row::support::{
    SECOND, audit, audited_grants, client, holder, inspect, server, token, until, until_waiting,
};
use lockkeeper_rig::Faults;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_never_lets_two_hold() {
    let server = server();
    audit(&server);
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let locks = client(&server.url(), &format!("client {number}")).await;
        let over = over.clone();
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let lock = locks.mutex("contended").ttl(2 * SECOND).wait(Wait::For(20 * SECOND));
                if let Ok(held) = lock.acquire().await {
                    tokens.push(token(&held));
                    // The outcome of the release is checked in the database, not here.
                    let _ = held.release().await;
                }
            }
            tokens
        }));
    }
    for round in 1..=4 {
        let enough = 50 * round;
        until("they take turns", async || {
            let grants: usize = server.psql("SELECT count(*) FROM grants").parse().unwrap();
            (grants >= enough).then_some(())
        })
        .await;
        server.kill();
        server.start_again();
    }
    over.store(true, Ordering::SeqCst);
    let mut told = Vec::new();
    for task in tasks {
        told.extend(task.await.unwrap());
    }
    assert!(
        audited_grants(&server) >= told.len(),
        "nobody was told of a hold that the database does not know"
    );
    let count = told.len();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told.len(), count, "nobody was told another's token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_holds_and_places_in_the_queue() {
    let server = server();
    let (holds, waits) = (client(&server.url(), "holds").await, client(&server.url(), "waits").await);
    let held = holds.mutex("kept").acquire().await.unwrap();
    let first = waits.mutex("kept");
    let first = tokio::spawn(async move { first.acquire().await.unwrap() });
    until_waiting(&holds, "kept", 1).await;
    server.restart();
    assert!(holds.mutex("kept").try_acquire().await.unwrap().is_none());
    assert_eq!(holder(&holds, "kept").await.token, held.token_hint());
    assert_eq!(inspect(&holds, "kept").await.waiter_count, 1);
    held.verify().await.unwrap();
    held.release().await.unwrap();
    first.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_cannot_renew_loses_its_hold_before_the_next_grant() {
    let server = server();
    let (holds, next) = (client(&server.url(), "holds").await, client(&server.url(), "next").await);
    let held = holds.mutex("stalled").ttl(2 * SECOND).acquire().await.unwrap();
    server.stop();
    held.lost().cancelled().await;
    assert_eq!(held.loss(), Some(LossCause::Expired));
    server.cont();
    let later = next.mutex("stalled").wait(Wait::For(20 * SECOND)).acquire().await.unwrap();
    assert!(later.token_hint() > held.token_hint());
    let released = held.release().await;
    assert!(matches!(released, Err(ReleaseError::AlreadyLost(_))), "{released:?}");
    later.verify().await.unwrap();
    // After the stall the same client can acquire the lock again.
    later.release().await.unwrap();
    holds.mutex("stalled").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_to_a_dead_server_is_ambiguous_and_applied_later() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let held = locks.mutex("released").ttl(3600 * SECOND).acquire().await.unwrap();
    let before = token(&held);
    server.stop();
    let releasing = tokio::spawn(async move { held.release().await });
    // The release is in flight to a server that will not answer any more.
    tokio::time::timeout(Duration::from_millis(200), async {
        while !releasing.is_finished() {
            tokio::task::yield_now().await
        }
    })
    .await
    .unwrap_err();
    server.kill();
    let released = releasing.await.unwrap();
    assert!(matches!(released, Err(ReleaseError::Ambiguous { why: Some(_) })), "{released:?}");
    server.start_again();
    let next = client(&server.url(), "next").await;
    let held = next.mutex("released").wait(Wait::For(20 * SECOND)).acquire().await.unwrap();
    assert!(token(&held) > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_cause_no_second_grant_and_leave_nothing_behind() {
    let server = server();
    audit(&server);
    let faults = Faults::default();
    let proxy = faults.proxy("client", ([127, 0, 0, 1], server.port()).into());
    let locks = client(&format!("postgres://postgres@{proxy}/postgres"), "client").await;
    let operator = client(&server.url(), "operator").await;
    let mut last = 0;
    for round in 0..12 {
        faults.lose_answers(round % 4);
        let held = locks.mutex("lossy").acquire().await.unwrap();
        assert!(token(&held) > last);
        last = token(&held);
        assert_eq!(holder(&operator, "lossy").await.token, held.token_hint());
        faults.lose_answers(round % 3);
        faults.lose_calls(round % 2);
        // The release may be ambiguous, but the hold must end.
        let _ = held.release().await;
        until("it is given back", async || inspect(&operator, "lossy").await.holds.is_empty().then_some(()))
            .await;
    }
    faults.lose_answers(0);
    faults.lose_calls(0);
    assert_eq!(audited_grants(&server), 12, "one grant for each request");
    assert_eq!(server.psql("SELECT count(*) FROM lockkeeper.row_waiter"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_while_the_server_is_down_succeeds_once_it_is_up() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    server.kill();
    let lock = locks.mutex("later");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // The server is unreachable: a call that does not wait fails.
    let error = locks.inspect("later").await.unwrap_err();
    assert_eq!(error.kind, lockkeeper::BackendErrorKind::Unreachable, "{error}");
    server.start_again();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silenced_client_loses_its_hold_before_the_next_grant() {
    let server = server();
    let faults = Faults::default();
    let proxy = faults.proxy("silent", ([127, 0, 0, 1], server.port()).into());
    let silent = client(&format!("postgres://postgres@{proxy}/postgres"), "silent").await;
    let held = silent.mutex("kept").ttl(2 * SECOND).acquire().await.unwrap();
    // The client's connections stay open, so it can detect the loss only by the end of its lease.
    faults.silence("silent");
    let next = client(&server.url(), "next").await.mutex("kept").acquire().await.unwrap();
    assert_eq!(held.loss(), Some(LossCause::Expired));
    assert!(token(&next) > token(&held));
}
