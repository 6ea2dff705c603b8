//! Waits that would never end (K2), in one process.

use std::time::Duration;

use lockkeeper::backends::memory::Server;
use lockkeeper::{AcquireError, Token, Wait};

/// Waits until so many requests wait for a lock.
async fn wait_for_waiters(server: &Server, name: &str, count: usize) {
    let locks = server.client("observer");
    while locks.inspect(name).await.unwrap().waiter_count < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn two_locks_in_opposite_order_are_a_deadlock_of_the_last_one() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let first = alice.mutex("a").acquire().await.unwrap();
    let second = bob.mutex("b").acquire().await.unwrap();
    let waiting =
        tokio::spawn(async move { alice.mutex("b").holding(&first).acquire().await.map(|_| first) });
    wait_for_waiters(&server, "b", 1).await;

    let refused = bob.mutex("a").holding(&second).acquire().await.unwrap_err();
    assert!(!refused.may_pass());
    let AcquireError::Deadlock { cycle } = refused else { panic!("{refused}") };
    for words in ["this request waits for `a`", "(alice) holds `a`", "waits for `b`", "with token 2"] {
        assert!(cycle.contains(words), "no {words:?} in {cycle}");
    }
    // A wait with a limit ends by itself, and so does a try.
    let limited = bob.mutex("a").holding(&second).wait(Wait::For(Duration::from_millis(20))).acquire().await;
    assert!(matches!(limited, Err(AcquireError::TimedOut { .. })), "{limited:?}");
    assert!(bob.mutex("a").holding(&second).try_acquire().await.unwrap().is_none());

    second.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    bob.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn own_lock_is_not_waited_for() {
    let server = Server::new();
    let locks = server.client("alice");
    let reader = locks.rw("a").read().acquire().await.unwrap();
    let upgrade = locks.rw("a").write().holding(&reader).acquire().await;
    assert!(matches!(upgrade, Err(AcquireError::Deadlock { .. })), "{upgrade:?}");
    reader.reenter().release().await.unwrap();
    let other = locks.mutex("b").holding(&reader).acquire().await.unwrap();
    // Of several that are declared, one is in the way.
    let again = locks.mutex("b").holding(&reader).holding(&other).acquire().await;
    assert!(matches!(again, Err(AcquireError::Deadlock { .. })), "{again:?}");
}

#[tokio::test]
async fn at_most_16_holds_are_declared() {
    let server = Server::new();
    let locks = server.client("alice");
    let declare = |count| (0..count).fold(locks.mutex("a"), |lock, _| lock.holding_token(Token::MIN));
    declare(16).acquire().await.unwrap().release().await.unwrap();
    let error = declare(17).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Limit(_)) && error.to_string().contains("17"), "{error}");
}

#[test]
fn blocking_wait_for_an_own_lock_is_a_deadlock() {
    let locks = lockkeeper::blocking::Locks::connect("memory:deadlock-blocking").unwrap();
    let held = locks.mutex("a").acquire().unwrap();
    let again = locks.mutex("a").holding(&held).acquire();
    assert!(matches!(again, Err(AcquireError::Deadlock { .. })), "{again:?}");
}
