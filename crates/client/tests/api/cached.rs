//! Cached locks over the in-process service: sections without a round trip, recalls, losses (C1–C9).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use lockkeeper::backends::memory::Server;
use lockkeeper::{AcquireError, BreakOrder, Lock, Locks, LossCause, ReleaseError, Wait};

const TTL: Duration = Duration::from_secs(30);

/// One section; returns its token.
async fn section(lock: &Lock) -> u64 {
    let held = lock.acquire().await.unwrap();
    let token = held.token_hint().unwrap().get();
    held.release().await.unwrap();
    token
}

/// Acquires often enough for the hold to be cached. Returns the token of the section that began with it.
async fn cache(lock: &Lock) -> u64 {
    for _ in 0..3 {
        section(lock).await;
    }
    section(lock).await
}

async fn holds(client: &Locks, name: &str) -> usize {
    client.inspect(name).await.unwrap().hold_count
}

/// Waits until `is` is true.
async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sections_of_a_cached_lock_need_no_service_and_each_has_the_next_token() {
    let server = Server::new();
    let alice = server.client("alice");
    let lock = alice.mutex("a").cached();
    let first = cache(&lock).await;
    assert_eq!(first, 4);
    assert_eq!(holds(&alice, "a").await, 1);
    server.cut_off("alice");
    for token in first + 1..first + 15 {
        assert_eq!(section(&lock).await, token);
    }
    server.reconnect("alice");
    // The last token of the block of 16 ends the hold, which gives way to a block of 32.
    assert_eq!(section(&lock).await, first + 15);
    assert_eq!(holds(&alice, "a").await, 0);
    assert_eq!(section(&lock).await, first + 16);
    server.cut_off("alice");
    for token in first + 17..first + 47 {
        assert_eq!(section(&lock).await, token);
    }
    server.reconnect("alice");
    assert_eq!(section(&lock).await, first + 47);
    assert_eq!(holds(&alice, "a").await, 0);
}

#[tokio::test]
async fn a_dropped_guard_ends_its_section_too_and_another_lock_object_uses_the_same_hold() {
    let server = Server::new();
    let alice = server.client("alice");
    let lock = |value: &'static str| alice.mutex("a").cached().meta("job", "x").value(value);
    let first = cache(&lock("v")).await;
    server.cut_off("alice");
    let held = lock("v").acquire().await.unwrap();
    let again = held.reenter();
    drop(held);
    assert_eq!(again.token_hint().unwrap().get(), first + 1);
    drop(again);
    assert_eq!(section(&lock("v")).await, first + 2);
    server.reconnect("alice");
    // Another value needs another hold, for which the first one is recalled.
    assert!(section(&lock("w")).await > first + 15);
    assert_eq!(holds(&alice, "a").await, 0);
}

#[tokio::test]
async fn an_idle_cached_lock_is_given_to_another_client_also_to_one_that_does_not_wait() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").cached();
    let first = cache(&lock).await;
    let held = bob.mutex("a").try_acquire().await.unwrap().expect("it is idle");
    assert_eq!(held.token_hint().unwrap().get(), first + 16, "above the block");
    assert!(alice.mutex("a").cached().try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    cache(&lock).await;
    assert_eq!(holds(&alice, "a").await, 1);
    bob.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn after_a_recall_the_present_section_is_the_last_one() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").cached();
    let first = cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_none(), "busy at once, as the section goes on");
    let waiting = tokio::spawn(async move { bob.mutex("a").acquire().await.unwrap() });
    until("bob waits", async || alice.inspect("a").await.unwrap().waiter_count == 1).await;
    held.verify().await.unwrap();
    assert!(held.loss().is_none());
    held.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert_eq!(next.token_hint().unwrap().get(), first + 16);
    let blocked = lock.clone().wait(Wait::No).acquire().await;
    assert!(matches!(blocked, Err(AcquireError::Busy(_))), "{blocked:?}");
}

/// Recalls, settles, and sections that begin and end at the same time on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sections_of_many_tasks_on_few_names_never_overlap() {
    struct Place {
        inside: AtomicBool,
        highest: AtomicU64,
    }
    let server = Server::new();
    let clients = ["alice", "bob"].map(|label| server.client(label));
    let new = |_| Place { inside: AtomicBool::new(false), highest: AtomicU64::new(0) };
    let places: Arc<[Place; 8]> = Arc::new(std::array::from_fn(new));
    let tasks = (0..12).map(|task: usize| {
        let (locks, places) = (clients[usize::from(task.is_multiple_of(6))].clone(), places.clone());
        let cached: Vec<Lock> =
            (0..places.len()).map(|name| locks.mutex(name.to_string()).cached()).collect();
        tokio::spawn(async move {
            for round in 0..2_000 {
                // Mostly a name that no other task uses.
                let name = if round % 50 == 0 { (task + round / 50) % 8 } else { task % 8 };
                let lock = &cached[name];
                let held = match round % 7 {
                    6 => match lock.try_acquire().await.unwrap() {
                        Some(held) => held,
                        None => continue,
                    },
                    _ => lock.acquire().await.unwrap(),
                };
                let Place { inside, highest } = &places[name];
                assert!(!inside.swap(true, Ordering::SeqCst), "two sections of {name} at once");
                let token = held.token_hint().unwrap().get();
                let before = highest.swap(token, Ordering::SeqCst);
                assert!(token > before, "token {token} of {name} after {before} (P2)");
                if round % 11 == 0 {
                    tokio::task::yield_now().await;
                }
                inside.store(false, Ordering::SeqCst);
                match round % 3 {
                    0 => drop(held),
                    _ => held.release().await.unwrap(),
                }
            }
        })
    });
    let all = futures_util::future::join_all(tasks.collect::<Vec<_>>());
    for done in tokio::time::timeout(Duration::from_secs(60), all).await.expect("somebody waits") {
        done.unwrap();
    }
    until("all is given back", async || {
        for name in 0..8 {
            let info = clients[0].inspect(name.to_string()).await.unwrap();
            if info.waiter_count > 0 || info.hold_count > 1 {
                return false;
            }
        }
        true
    })
    .await;
    for client in clients {
        assert_eq!(client.shutdown(Duration::from_secs(30)).await.left, 0);
    }
    assert!(server.client("carol").list(None).await.unwrap().is_empty(), "nothing is left");
}

/// The other client waits for one section at most, and no two sections overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_of_two_clients_alternate_and_their_tokens_rise() {
    let server = Server::new();
    let highest = Arc::new(AtomicU64::new(0));
    let inside = Arc::new(AtomicBool::new(false));
    let enter = {
        let (highest, inside) = (highest.clone(), inside.clone());
        move |token: u64| {
            assert!(!inside.swap(true, Ordering::SeqCst), "two sections at once");
            let before = highest.swap(token, Ordering::SeqCst);
            assert!(token > before, "token {token} after {before} (P2)");
            inside.store(false, Ordering::SeqCst);
        }
    };
    let over = Arc::new(AtomicBool::new(false));
    let looping = tokio::spawn({
        let (lock, enter, over) = (server.client("alice").mutex("a").cached(), enter.clone(), over.clone());
        async move {
            let mut sections = 0;
            while !over.load(Ordering::SeqCst) {
                let held = lock.acquire().await.unwrap();
                enter(held.token_hint().unwrap().get());
                held.release().await.unwrap();
                sections += 1;
                tokio::task::yield_now().await;
            }
            sections
        }
    });
    let bob = server.client("bob");
    for _ in 0..20 {
        let before = highest.load(Ordering::SeqCst);
        until("alice goes on", async || highest.load(Ordering::SeqCst) > before + 40).await;
        let held = bob.mutex("a").acquire().await.unwrap();
        enter(held.token_hint().unwrap().get());
        held.release().await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    assert!(looping.await.unwrap() >= 20 * 20);
}

#[tokio::test]
async fn a_task_of_the_same_client_waits_for_the_section_of_another() {
    let server = Server::new();
    let alice = server.client("alice");
    let lock = alice.mutex("a").cached();
    let first = cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { section(&lock).await }
    });
    until("it waits", async || alice.inspect("a").await.unwrap().waiter_count == 1).await;
    held.release().await.unwrap();
    assert_eq!(waiting.await.unwrap(), first + 16);
}

#[tokio::test]
async fn an_idle_lock_is_released_after_cache_for() {
    let server = Server::with_virtual_time();
    let alice = server.client("alice");
    let (short, usual) =
        (alice.mutex("a").cached().cache_for(Duration::from_secs(3)), alice.mutex("b").cached());
    for lock in [&short, &usual] {
        cache(lock).await;
    }
    server.advance(Duration::from_secs(2));
    section(&short).await;
    section(&usual).await;
    server.advance(Duration::from_millis(2_900));
    assert_eq!((holds(&alice, "a").await, holds(&alice, "b").await), (1, 1));
    server.advance(Duration::from_millis(200));
    until("a is free", async || holds(&alice, "a").await == 0).await;
    server.advance(Duration::from_millis(6_800));
    assert_eq!(holds(&alice, "b").await, 1);
    server.advance(Duration::from_millis(200));
    until("b is free", async || holds(&alice, "b").await == 0).await;
}

#[tokio::test]
async fn no_section_begins_without_a_lease() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").ttl(TTL).cached().cache_for(Duration::from_secs(3_600));
    let first = cache(&lock).await;
    server.cut_off("alice");
    server.advance(TTL * 6 / 10);
    let too_short = lock.clone().min_validity(TTL * 6 / 10);
    {
        let mut asks = std::pin::pin!(too_short.try_acquire());
        let polled = asks.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it asks the service");
    }
    let held = lock.acquire().await.unwrap();
    assert_eq!(held.token_hint().unwrap().get(), first + 1);
    server.advance(TTL * 4 / 10);
    assert_eq!(held.loss(), Some(LossCause::Expired));
    let released = held.release().await;
    assert!(matches!(released, Err(ReleaseError::AlreadyLost(_))), "{released:?}");
    server.advance(TTL);
    let next = bob.mutex("a").acquire().await.unwrap();
    assert!(next.token_hint().unwrap().get() >= first + 16);
    next.release().await.unwrap();
    server.reconnect("alice");
    let again = tokio::spawn(async move { section(&lock).await });
    until("alice acquires again", async || {
        server.advance(Duration::from_millis(100));
        again.is_finished()
    })
    .await;
    assert!(again.await.unwrap() > first + 16);
}

#[tokio::test]
async fn a_break_ends_a_cached_lock_in_a_section_and_an_idle_one() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").cached();
    let first = cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    let order = |token: u64| BreakOrder {
        name: "a".parse().unwrap(),
        token: lockkeeper::Token::new(token).unwrap(),
        reason: "test".to_owned(),
        by: "bob".to_owned(),
        now: false,
    };
    bob.break_hold(order(first + 1)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), held.lost().cancelled()).await.expect("it hears of it");
    assert_eq!(held.loss(), Some(LossCause::Broken));
    assert!(matches!(held.release().await, Err(ReleaseError::AlreadyLost(_))));
    until("it is free", async || holds(&bob, "a").await == 0).await;
    let first = section(&lock).await;
    assert_eq!(holds(&bob, "a").await, 1, "a break is no recall");
    bob.break_hold(order(first + 15)).await.unwrap();
    until("the idle one is free", async || holds(&bob, "a").await == 0).await;
    assert!(section(&lock).await > first + 15);
}

#[tokio::test]
async fn a_changed_hold_ends_with_its_section() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").cached();
    cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    held.set_value(*b"mine").await.unwrap();
    held.release().await.unwrap();
    assert_eq!(holds(&alice, "a").await, 0);
    cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    held.downgrade().await.unwrap();
    let reader = bob.rw("a").read().try_acquire().await.unwrap().expect("it is shared");
    held.release().await.unwrap();
    reader.release().await.unwrap();
    assert_eq!(holds(&alice, "a").await, 0);
}

#[tokio::test]
async fn a_shutdown_releases_cached_locks_and_so_does_the_end_of_the_last_client() {
    let server = Server::new();
    let (alice, bob, carol) = (server.client("alice"), server.client("bob"), server.client("carol"));
    let (one, two) = (alice.mutex("a").cached(), bob.mutex("b").cached());
    for lock in [&one, &two] {
        cache(lock).await;
    }
    assert_eq!((holds(&carol, "a").await, holds(&carol, "b").await), (1, 1));
    assert_eq!(alice.shutdown(Duration::from_secs(30)).await.left, 0);
    assert_eq!(holds(&carol, "a").await, 0);
    assert!(matches!(one.acquire().await, Err(AcquireError::ShuttingDown)));
    drop((bob, two));
    until("b is free", async || holds(&carol, "b").await == 0).await;
}

#[tokio::test]
async fn a_recall_that_is_lost_is_told_again() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let lock = alice.mutex("a").ttl(TTL).cached();
    cache(&lock).await;
    let held = lock.acquire().await.unwrap();
    server.cut_off("alice");
    let waiting = tokio::spawn(async move { bob.mutex("a").acquire().await.unwrap() });
    until("bob waits", async || alice.inspect("a").await.unwrap().waiter_count == 1).await;
    // The recall comes with the next keep-alive.
    server.reconnect("alice");
    server.advance(TTL / 2);
    until("alice knows", async || holds(&alice, "a").await == 1 && held.verify().await.is_ok()).await;
    held.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_can_not_be_cached_is_refused_in_words() {
    let server = Server::new();
    let alice = server.client("alice");
    let second = Duration::from_secs(1);
    let refused = [
        (alice.rw("a").read().cached(), "only an exclusive hold"),
        (alice.semaphore("a", 2).cached(), "only an exclusive hold"),
        (alice.mutex("a").cached().keep_closed(second), "without keep_closed"),
        (alice.mutex("a").cached().min_hold(second), "min_hold is set, but a cached lock can't have it"),
        (alice.mutex("a").cached().max_hold(second), "max_hold is set, but a cached lock can't have it"),
        (alice.mutex("a").cached().no_renew(), "no_renew is set, but a cached lock can't have it"),
        (alice.mutex("a").cached().cache_for(Duration::ZERO), "cache_for is 0ns, 1ms to 3600s are allowed"),
    ];
    for (lock, text) in refused {
        let error = lock.acquire().await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let (all, below) = (alice.all(["b", "a"]).cached(), alice.mutex("c").subtree().cached());
    for lock in [all, below] {
        let first = cache(&lock).await;
        server.cut_off("alice");
        assert_eq!(section(&lock).await, first + 1);
        server.reconnect("alice");
    }
}
