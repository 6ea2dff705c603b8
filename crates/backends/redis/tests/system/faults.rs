//! A server that is paused, crashes, or is cut off at a critical moment; callers that are dropped.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper::{AcquireError, Lock, Locks, LossCause, ReleaseError, Unfenced, Wait};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, address, calls, client, durable, keys, loss, until, until_waiting};
use crate::switch::Switch;
use lockkeeper_rig::Faults;

/// Waits until there is neither a hold nor a waiter: only records of ends and counters of tokens may be left.
async fn until_nothing_is_left(redis: &Redis, what: &str) {
    until(&format!("nothing is left after {what}"), async || {
        keys(redis).iter().all(|key| key.contains(":gone:") || key.ends_with(":token")).then_some(())
    })
    .await;
}

/// The holds expire while the server is paused. Each holder detects the loss by its own lease deadline,
/// without an answer (P5). After the pause the next waiter is granted the lock.
#[tokio::test]
async fn a_pause_longer_than_the_ttl_expires_holds_and_grants_the_next_waiter() {
    let redis = Redis::start();
    let (alice, bob) = (client(&redis, "alice").await, client(&redis, "bob").await);
    let held = alice.mutex("jobs").ttl(2 * SECOND).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { bob.mutex("jobs").ttl(30 * SECOND).acquire().await });
    until_waiting(&alice, "jobs", 1).await;
    redis.stop();
    let until_then = held.valid_until().unwrap().unwrap();
    assert_eq!(loss(&held).await, LossCause::Expired);
    assert!(lockkeeper::BootInstant::now() < until_then + SECOND, "and it knew in time, without an answer");
    redis.cont();
    let next = tokio::time::timeout(20 * SECOND, waiting).await.unwrap().unwrap().unwrap();
    assert!(matches!(
        held.release().await,
        Err(ReleaseError::AlreadyLost(lockkeeper::Lost { cause: LossCause::Expired, .. }))
    ));
    next.verify().await.expect("the late end of the former holder ends nothing of the next one");
}

/// Shorter pauses are harmless: a call without an answer is repeated.
#[tokio::test]
async fn a_short_pause_of_the_server_loses_no_hold() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let held = locks.mutex("jobs").ttl(6 * SECOND).acquire().await.unwrap();
    let before = held.valid_until().unwrap();
    redis.stop();
    // As long as the time until the first renewal is sent (ttl/3, 2 s) plus its time limit (ttl/6, 1 s).
    tokio::time::sleep(3 * SECOND).await;
    redis.cont();
    until("it is renewed", async || (held.valid_until().unwrap() > before).then_some(())).await;
    held.verify().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_release_during_a_crash_is_ambiguous_and_completed_after_the_restart() {
    let redis = durable();
    let locks = client(&redis, "holder").await;
    let held = locks.mutex("jobs").ttl(10 * SECOND).acquire().await.unwrap();
    redis.kill();
    let release = held.release().await;
    assert!(matches!(release, Err(ReleaseError::Ambiguous { why: Some(_) })), "{release:?}");
    redis.start_again();
    until_nothing_is_left(&redis, "a release that was in doubt").await;
    locks.mutex("jobs").acquire().await.unwrap().release().await.unwrap();
}

/// The client retries during the outage, and is granted the lock after it.
#[tokio::test]
async fn an_acquire_during_an_outage_is_granted_after_the_restart() {
    let redis = durable();
    let locks = client(&redis, "holder").await;
    locks.mutex("warm").acquire().await.unwrap().release().await.unwrap();
    redis.kill();
    let acquiring = tokio::spawn({
        let lock = locks.mutex("jobs");
        async move { lock.acquire().await }
    });
    let short = locks.mutex("jobs").wait(Wait::For(SECOND)).acquire().await;
    assert!(
        matches!(short, Err(AcquireError::TimedOut { .. } | AcquireError::Ambiguous { .. })),
        "{short:?}"
    );
    redis.start_again();
    acquiring.await.unwrap().unwrap().release().await.unwrap();
    until_nothing_is_left(&redis, "waits that were given up").await;
}

/// Repeated crashes under load: never two holders at once, and no entries are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_crashes_never_allow_two_holders() {
    let redis = durable();
    let inside = Arc::new(AtomicI64::new(0));
    let rounds = Arc::new(AtomicI64::new(0));
    let mut tasks = Vec::new();
    for worker in 0..4 {
        let locks = client(&redis, &format!("worker {worker}")).await;
        let (inside, rounds) = (inside.clone(), rounds.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let Ok(held) = locks.mutex("jobs").ttl(20 * SECOND).acquire().await else { continue };
                // The server is never down for longer than the ttl, so no hold may be lost.
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                rounds.fetch_add(1, Ordering::SeqCst);
                // The result may be ambiguous: the release is completed all the same.
                let _ = held.release().await;
            }
        }));
    }
    for kill in 1..=4 {
        until("they work", async || (rounds.load(Ordering::SeqCst) >= kill * 30).then_some(())).await;
        redis.kill();
        redis.start_again();
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    for task in tasks {
        assert!(task.await.unwrap_err().is_cancelled(), "it met nobody");
    }
    until_nothing_is_left(&redis, "all of them").await;
}

/// A lost answer grants nothing twice and leaves no entries (P7).
async fn answers_are_lost(query: &str) {
    let redis = durable();
    let faults = Faults::default();
    let url = format!("redis://{}{query}", faults.proxy("unlucky", address(&redis)));
    let locks = Locks::connect_as(&url, "unlucky").await.unwrap();
    let mut last = None;
    for round in 0..6 {
        for lock in [locks.mutex("jobs"), locks.semaphore("slots", 1)] {
            faults.lose_answers(round % 3);
            faults.lose_calls(round / 3);
            let held = lock.ttl(30 * SECOND).acquire().await.unwrap();
            let token = held.token_hint();
            assert_eq!(token.is_some(), !query.is_empty());
            assert!(token.is_none() || token > last, "a new grant");
            last = token;
            held.verify().await.unwrap();
            faults.lose_answers(1);
            // Ambiguous or not, the release is completed.
            let _ = held.release().await;
            until_nothing_is_left(&redis, "a release without an answer").await;
            faults.lose_answers(0);
        }
    }
}

#[tokio::test]
async fn lost_answers_grant_nothing_twice() {
    answers_are_lost("").await;
}

#[tokio::test]
async fn lost_answers_grant_nothing_twice_with_tokens() {
    answers_are_lost("?fencing=counter").await;
}

/// An acquire command that arrives after the command that ended its request must not take the lock, which
/// would not be released again.
#[tokio::test]
async fn an_acquire_that_arrives_after_its_end_holds_nothing() {
    let redis = durable();
    let switch = Switch::to(address(&redis));
    let locks = Locks::connect_as(&switch.url(), "late").await.unwrap();
    let next = client(&redis, "next").await;
    for (lock, asks_by) in [(locks.mutex("jobs"), "set"), (locks.semaphore("jobs", 2), "evalsha")] {
        let lock = lock.ttl(40 * SECOND);
        lock.acquire().await.unwrap().release().await.unwrap();
        // The next bytes of the client are the acquire: without a hold the client sends no renewals.
        switch.keep_next_back();
        let abandoned = tokio::spawn(async move { lock.acquire().await.map(drop) });
        until("it is kept back", async || switch.has_kept().then_some(())).await;
        abandoned.abort();
        until("its end is remembered", async || {
            keys(&redis).iter().any(|key| key.contains(":gone:")).then_some(())
        })
        .await;
        redis.cli(&["CONFIG", "RESETSTAT"]);
        switch.deliver_late();
        until("it arrived", async || (calls(&redis, asks_by) > 0).then_some(())).await;
        assert!(next.inspect("jobs").await.unwrap().holds.is_empty(), "{asks_by}");
        let taken = next.mutex("jobs").try_acquire().await.unwrap().expect("nobody holds it");
        taken.release().await.unwrap();
        until_nothing_is_left(&redis, "an acquire that came late").await;
        redis.cli(&["FLUSHALL"]);
    }
}

/// Polls the future at most `polls` times, with a pause after each; `None` if it is not ready by then.
async fn poll_times<T>(polls: usize, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
    None
}

/// Drops an acquire after 1 to 14 polls, with and without a conflicting holder.
async fn cancel_everywhere(make: impl Fn(&Locks) -> Lock<Unfenced>) {
    let redis = Redis::start();
    let (alice, bob) = (client(&redis, "alice").await, client(&redis, "bob").await);
    let lock = make(&alice);
    let mut completed = 0;
    for busy in [false, true] {
        for polls in 1..15 {
            let in_the_way = if busy { Some(make(&bob).acquire().await.unwrap()) } else { None };
            {
                let mut acquire = pin!(lock.acquire());
                if let Some(guard) = poll_times(polls, acquire.as_mut()).await {
                    completed += 1;
                    drop(guard);
                }
            }
            drop(in_the_way);
            until_nothing_is_left(&redis, &format!("{polls} polls")).await;
            let next = tokio::time::timeout(20 * SECOND, lock.acquire()).await.expect("it is free");
            next.unwrap().release().await.unwrap();
        }
    }
    assert!(completed > 0, "the last polls see the end of the acquire");
}

#[tokio::test]
async fn an_acquire_that_is_dropped_at_any_await_leaves_nothing() {
    cancel_everywhere(|locks| locks.mutex("jobs")).await;
}

#[tokio::test]
async fn a_permit_whose_acquire_is_dropped_at_any_await_is_free() {
    cancel_everywhere(|locks| locks.semaphore("jobs", 1).wait(Wait::For(60 * SECOND))).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_at_any_await_is_completed() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    for polls in 0..10 {
        let held = locks.mutex("jobs").acquire().await.unwrap();
        {
            let mut release = pin!(held.release());
            let _ = poll_times(polls, release.as_mut()).await;
        }
        until_nothing_is_left(&redis, &format!("{polls} polls")).await;
    }
}

/// After its release was sent, a hold is never renewed: a late renewal could keep or restore the key.
#[tokio::test]
async fn no_renewal_follows_a_release() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    // A second hold, so that the session goes on sending renewals.
    let other = locks.mutex("other").ttl(SECOND).acquire().await.unwrap();
    for _ in 0..60 {
        let held = locks.mutex("jobs").ttl(SECOND).acquire().await.unwrap();
        held.release().await.unwrap();
        assert_eq!(redis.cli(&["EXISTS", "jobs"]), "0");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.verify().await.unwrap();
}

/// The lease deadline is computed from the moment before a renewal is sent, not from its answer, and takes
/// effect also while a renewal is unanswered.
#[tokio::test]
async fn a_holder_that_is_cut_off_detects_its_loss_before_its_key_expires() {
    let redis = Redis::start();
    let faults = Faults::default();
    let url = format!("redis://{}", faults.proxy("cut off", address(&redis)));
    let locks = Locks::connect_as(&url, "cut off").await.unwrap();
    let held = locks.mutex("jobs").ttl(3 * SECOND).acquire().await.unwrap();
    faults.cut_off("cut off");
    loop {
        // Reads the key first and the hold second: the hold must not be valid without a key.
        let left: i64 = redis.cli(&["PTTL", "jobs"]).parse().unwrap();
        let believed = held.check(Duration::ZERO).is_ok();
        assert!(left > 0 || !believed, "the key has ended, and the holder does not know");
        if left <= 0 {
            break;
        }
    }
    assert_eq!(held.loss(), Some(LossCause::Expired));
    assert!(client(&redis, "next").await.mutex("jobs").try_acquire().await.unwrap().is_some());
}

/// The wall clocks of client and server differ by an hour. The age of a hold is measured by the server's
/// clock alone, and renewal and exclusion work as usual.
#[tokio::test]
async fn a_holds_age_is_measured_by_the_servers_clock() {
    let redis = Redis::with_clock();
    let locks = client(&redis, "holder").await;
    redis.clock().step(3600);
    let held = locks.mutex("jobs").ttl(5 * SECOND).acquire().await.unwrap();
    let info = locks.inspect("jobs").await.unwrap();
    assert!(info.holds[0].held_for.unwrap() < 60 * SECOND, "{info:?}");
    let before = held.valid_until().unwrap();
    until("it is renewed", async || (held.valid_until().unwrap() > before).then_some(())).await;
    assert!(locks.mutex("jobs").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
}
