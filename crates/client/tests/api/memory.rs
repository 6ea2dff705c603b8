//! The library against the in-process service, with virtual time and fault injection.

use std::time::Duration;

use lockkeeper::backends::memory::Server;
use lockkeeper::{AcquireError, BreakOrder, Broken, HoldError, LossCause, Lost, ReleaseError, Wait};

const TTL: Duration = Duration::from_secs(10);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test]
async fn a_second_holder_waits_until_the_first_has_released() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").acquire().await.unwrap();
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { bob.mutex("a").acquire().await.unwrap().token_hint() });
    held.release().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().get(), 2);
}

#[tokio::test]
async fn a_live_holder_keeps_its_lock_without_limit() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").ttl(TTL).acquire().await.unwrap();
    for _ in 0..100 {
        server.advance(secs(7));
        held.check(secs(1)).unwrap();
    }
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_none());
    held.verify().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_cut_off_holder_loses_its_hold_before_the_next_grant() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").ttl(TTL).acquire().await.unwrap();
    let next = tokio::spawn(async move { bob.mutex("a").acquire().await.unwrap() });
    while server.client("x").list(None).await.unwrap()[0].waiter_count == 0 {
        tokio::task::yield_now().await;
    }
    server.cut_off("alice");
    let mut lost_first = false;
    for _ in 0..200 {
        server.advance(Duration::from_millis(100));
        lost_first |= held.lost().is_cancelled() && !next.is_finished();
        if held.loss().is_none() {
            assert_eq!(server.client("x").list(None).await.unwrap()[0].holds[0].label, "alice");
        }
    }
    assert!(lost_first);
    assert_eq!(held.loss(), Some(LossCause::Expired));
    assert!(matches!(
        held.release().await,
        Err(ReleaseError::AlreadyLost(Lost { cause: LossCause::Expired, .. }))
    ));
    assert_eq!(next.await.unwrap().token_hint().unwrap().get(), 2);
}

#[tokio::test]
async fn a_holder_that_was_cut_off_when_its_hold_was_broken_hears_of_it_before_the_next_grant() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").ttl(TTL).acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    let next = tokio::spawn(async move { bob.mutex("a").ttl(TTL).acquire().await.unwrap() });
    while server.client("x").list(None).await.unwrap()[0].waiter_count == 0 {
        tokio::task::yield_now().await;
    }
    server.cut_off("alice");
    let order = BreakOrder {
        name: "a".parse().unwrap(),
        token,
        reason: "test".to_owned(),
        by: "test".to_owned(),
        now: false,
    };
    assert_eq!(server.client("x").break_hold(order).await.unwrap(), Broken::Done);
    server.reconnect("alice");
    // Its next keep-alive is a third of its ttl away; the hold ends a ttl after the break.
    server.advance(TTL / 2);
    let told = tokio::time::timeout(secs(10), held.lost().cancelled()).await;
    assert!(told.is_ok() && !next.is_finished());
    assert_eq!(held.loss(), Some(LossCause::Broken));
    server.advance(TTL);
    next.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_limit_ends_the_wait_and_leaves_no_waiter() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { bob.mutex("a").wait(Wait::For(secs(3))).acquire().await.map(drop) });
    while server.client("x").list(None).await.unwrap()[0].waiter_count == 0 {
        tokio::task::yield_now().await;
    }
    server.advance(secs(4));
    assert!(matches!(waiting.await.unwrap(), Err(AcquireError::TimedOut { .. })));
    assert_eq!(server.client("x").list(None).await.unwrap()[0].waiter_count, 0);
    held.release().await.unwrap();
}

#[tokio::test]
async fn lost_answers_and_lost_calls_are_retried_under_the_same_seq() {
    let server = Server::new();
    let alice = server.client("alice");
    for lost in 1..6 {
        server.lose_answers(lost);
        let held = alice.mutex("a").acquire().await.unwrap();
        server.lose_calls(lost);
        // An unanswered release is reported to its caller as ambiguous (P12); it is retried in the
        // background.
        assert!(matches!(held.release().await, Err(ReleaseError::Ambiguous { .. })));
    }
    let held = alice.mutex("a").acquire().await.unwrap();
    assert_eq!(held.token_hint().unwrap().get(), 6, "each acquire was granted once");
    held.release().await.unwrap();
    assert!(alice.list(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stall_of_the_service_ends_no_session() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let bob = bob.clone();
        async move { bob.mutex("a").ttl(TTL).acquire().await.unwrap() }
    });
    while server.client("x").list(None).await.unwrap()[0].waiter_count == 0 {
        tokio::task::yield_now().await;
    }
    server.stall();
    server.advance(secs(60));
    assert_eq!(held.loss(), Some(LossCause::Expired), "its own deadline passed: lost, for good");
    server.resume();
    let next = waiting.await.unwrap();
    next.check(secs(1)).unwrap();
    assert_eq!(held.loss(), Some(LossCause::Expired));
    alice.mutex("b").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn run_returns_the_bodys_value_and_reports_a_loss() {
    let server = Server::with_virtual_time();
    let alice = server.client("alice").fenced().unwrap();
    let value = alice.mutex("a").run(async |held| Ok::<_, HoldError>(held.token().get())).await.unwrap();
    assert_eq!(value, 1);
    let lock = alice.mutex("a").ttl(TTL);
    let result = lock
        .run(async |held| {
            server.cut_off("alice");
            server.advance(secs(11));
            assert!(held.loss().is_some());
            Ok(7)
        })
        .await;
    assert!(matches!(result, Err(HoldError::Lost(Lost { cause: LossCause::Expired, .. }))));
}
