//! Holds, permits, breaks, and conflicts between them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper::{Broken, Guard, HolderState, Lock, LossCause, ReleaseError, TokenStatus, Unfenced};

use crate::row::support::{
    SECOND, audit, audited_grants, client, holder, inspect, order, server, token, until, until_waiting,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_contend_for_one_name_without_a_double_hold() {
    const ROUNDS: usize = 25;
    let server = server();
    audit(&server);
    let mut tasks = Vec::new();
    for number in 0..8 {
        let locks = client(&server.url(), &format!("client {number}")).await;
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for round in 0..ROUNDS {
                let lock = locks.mutex("hammered");
                // Some attempts wait, others poll: both paths to a hold are used.
                let held = if (number + round) % 4 == 0 {
                    looking_again(&lock).await
                } else {
                    lock.acquire().await.unwrap()
                };
                tokens.push(token(&held));
                held.release().await.unwrap();
            }
            tokens
        }));
    }
    let mut tokens = BTreeSet::new();
    for task in tasks {
        tokens.extend(task.await.unwrap());
    }
    assert_eq!(tokens.len(), 8 * ROUNDS, "each grant has a token of its own");
    assert_eq!(audited_grants(&server), 8 * ROUNDS, "each grant was told to somebody");
    // The audit itself works: it records an update that gives a held row to another request.
    let held = client(&server.url(), "victim").await.mutex("hammered").acquire().await.unwrap();
    server.psql("UPDATE lockkeeper.row_lease SET id = 'thief', token = token + 1 WHERE name = 'hammered'");
    assert_eq!(server.psql("SELECT count(*) FROM double_holds"), "1");
    drop(held);
}

async fn looking_again(lock: &Lock<Unfenced>) -> Guard<Unfenced> {
    loop {
        match lock.try_acquire().await.unwrap() {
            Some(held) => return held,
            None => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_have_slots_of_their_own_and_never_more_than_the_limit() {
    let server = server();
    audit(&server);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let locks = client(&server.url(), &format!("client {number}")).await;
        let (inside, most) = (inside.clone(), most.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let held = locks.semaphore("pool", 3).acquire().await.unwrap();
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                assert!(held.slot().unwrap() < 3 && held.permits()[0].limit == 3);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 3);
    assert_eq!(audited_grants(&server), 80);

    let locks = client(&server.url(), "counts").await;
    let (one, two, three) = (
        locks.semaphore("pool", 3).acquire().await.unwrap(),
        locks.semaphore("pool", 3).acquire().await.unwrap(),
        locks.semaphore("pool", 3).acquire().await.unwrap(),
    );
    let slots: Vec<_> = [&one, &two, &three].iter().map(|held| held.slot().unwrap()).collect();
    assert_eq!(slots, [0, 1, 2]);
    assert!(locks.semaphore("pool", 3).try_acquire().await.unwrap().is_none());
    assert!(
        locks.mutex("pool").try_acquire().await.unwrap().is_none(),
        "a permit excludes whoever wants it alone"
    );
    two.release().await.unwrap();
    let again = locks.semaphore_in_force("pool").acquire().await.unwrap();
    assert_eq!(again.slot(), Some(1), "the lowest that is free");
    assert_eq!(inspect(&locks, "pool").await.permits, Some(3));
}

#[tokio::test]
async fn a_number_of_permits_is_in_force_while_one_is_held_and_no_longer() {
    let server = server();
    let locks = client(&server.url(), "counts").await;
    let none = locks.semaphore_in_force("pool").acquire().await.unwrap_err().to_string();
    assert!(none.contains("no permit limit in force"), "{none}");
    let held = locks.semaphore("pool", 3).acquire().await.unwrap();
    let other = locks.semaphore("pool", 4).acquire().await.unwrap_err().to_string();
    assert!(other.contains("has 3 permits, 4 were asked for"), "{other}");
    held.release().await.unwrap();
    let held = locks.semaphore("pool", 4).acquire().await.unwrap();
    assert_eq!(held.permits()[0].limit, 4);
}

#[tokio::test]
async fn an_exclusive_waiter_and_permits_take_turns_by_their_arrival() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let permit = locks.semaphore("mixed", 2).acquire().await.unwrap();
    let alone = locks.mutex("mixed");
    let alone = tokio::spawn(async move { alone.acquire().await.unwrap() });
    until_waiting(&locks, "mixed", 1).await;
    // One permit is left, but the earlier waiter wants the lock exclusively.
    let behind = locks.semaphore("mixed", 2);
    assert!(behind.try_acquire().await.unwrap().is_none());
    let behind = tokio::spawn(async move { behind.acquire().await.unwrap() });
    until_waiting(&locks, "mixed", 2).await;
    permit.release().await.unwrap();
    let alone = alone.await.unwrap();
    assert_eq!(holder(&locks, "mixed").await.slot, None);
    alone.release().await.unwrap();
    assert_eq!(behind.await.unwrap().slot(), Some(0));
}

#[tokio::test]
async fn a_break_notifies_the_holder_and_shows_its_reason() {
    let server = server();
    let (one, two) = (client(&server.url(), "one").await, client(&server.url(), "two").await);
    let held = one.mutex("broken").grace(3600 * SECOND).acquire().await.unwrap();
    assert_eq!(two.break_hold(order("broken", &held, false)).await.unwrap(), Broken::Done);
    let shown = holder(&two, "broken").await.state;
    let HolderState::Revoked { reason, by } = shown else { panic!("{shown:?}") };
    assert_eq!((reason.as_str(), by.as_str()), ("the disk is full", "operator"));
    held.lost().cancelled().await;
    assert_eq!(held.loss(), Some(LossCause::Broken));
    let worth = two.check_token("broken", held.token_hint().unwrap()).await.unwrap();
    assert_eq!(worth, TokenStatus::NotCurrent { live: vec![] });
    assert!(two.mutex("broken").try_acquire().await.unwrap().is_none(), "it is still held");
    let released = held.release().await;
    assert!(
        matches!(released, Err(ReleaseError::AlreadyLost(lockkeeper::Lost { cause: LossCause::Broken, .. }))),
        "{released:?}"
    );
    drop(until("it is given back", async || two.mutex("broken").try_acquire().await.unwrap()).await);
}

#[tokio::test]
async fn a_break_now_opens_the_lock_at_once_and_never_hits_a_later_hold() {
    let server = server();
    let (one, two) = (client(&server.url(), "one").await, client(&server.url(), "two").await);
    let held = one.mutex("broken").acquire().await.unwrap();
    let first = order("broken", &held, true);
    assert_eq!(two.break_hold(first.clone()).await.unwrap(), Broken::Done);
    let next = two.mutex("broken").try_acquire().await.unwrap().unwrap();
    assert!(next.token_hint() > held.token_hint());
    held.lost().cancelled().await;
    let late = two.break_hold(first).await.unwrap();
    assert_eq!(late, Broken::NotCurrent { live: vec![next.token_hint().unwrap()] });
    next.verify().await.unwrap();
    assert!(held.release().await.is_err());
    assert_eq!(holder(&one, "broken").await.label, "two");
}

#[tokio::test]
async fn a_hold_that_stays_closed_is_opened_by_a_break_now_only() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let held = locks.mutex("closed").keep_closed(3600 * SECOND).acquire().await.unwrap();
    let (waits, now) = (order("closed", &held, false), order("closed", &held, true));
    held.release().await.unwrap();
    let shown = holder(&locks, "closed").await;
    assert!(matches!(shown.state, HolderState::Closed { left } if left > 3000 * SECOND), "{shown:?}");
    assert_eq!(shown.label, "");
    assert_eq!(locks.break_hold(waits).await.unwrap(), Broken::StillClosed);
    assert!(locks.mutex("closed").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.break_hold(now).await.unwrap(), Broken::Done);
    assert!(locks.mutex("closed").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_listing_contains_the_name_and_the_names_below_it() {
    let server = server();
    let locks = client(&server.url(), "client").await;
    let names = ["a", "a/b", "a/b/c", "ab", "a0", "b/ü"];
    let mut held = Vec::new();
    for name in names {
        held.push(locks.mutex(name).meta("job", name).acquire().await.unwrap());
    }
    let listed = async |prefix: &str| -> Vec<String> {
        let found = locks.list(Some(prefix)).await.unwrap();
        found.into_iter().map(|info| info.name.to_string()).collect()
    };
    assert_eq!(listed("a").await, ["a", "a/b", "a/b/c"]);
    assert_eq!(listed("b").await, ["b/ü"]);
    assert_eq!(locks.list(None).await.unwrap().len(), names.len());
    let shown = holder(&locks, "a/b").await;
    assert_eq!((shown.label.as_str(), shown.meta), ("client", vec![("job".to_owned(), "a/b".to_owned())]));
    assert_eq!(shown.token, held[1].token_hint());
    drop(held);
    until("all are given back", async || locks.list(None).await.unwrap().is_empty().then_some(())).await;
}

#[tokio::test]
async fn locks_in_two_databases_of_one_server_are_independent() {
    let server = server();
    server.psql("CREATE DATABASE third TEMPLATE postgres");
    let third = format!("postgres://postgres@127.0.0.1:{}/third", server.port());
    let held = client(&server.url(), "one").await.mutex("same").acquire().await.unwrap();
    let other = client(&third, "two").await.mutex("same").try_acquire().await.unwrap();
    assert!(other.is_some());
    held.verify().await.unwrap();
}
