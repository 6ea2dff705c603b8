//! Futures dropped at each await point, guards dropped outside of their runtime, blocked runtimes, and the
//! ends of holds by `max_hold`, shutdown and loss.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockkeeper::backends::memory::Server;
use lockkeeper::{Guard, HoldError, Lock, Locks, LossCause, Lost, OnLost, ReleaseError, Unfenced, Wait};

const DEADLINE: Duration = Duration::from_secs(20);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Polls at most `polls` times and lets other tasks run in between; `None` if the future is not ready by
/// then.
async fn poll_times<T>(polls: usize, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Waits until there are no holders and no waiters.
async fn becomes_empty(server: &Server) {
    let observer = server.client("observer");
    let until = Instant::now() + DEADLINE;
    loop {
        let list = observer.list(None).await.unwrap();
        if list.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "still in use: {list:?}");
        tokio::task::yield_now().await;
    }
}

async fn waits_for_waiters(server: &Server, count: usize) {
    let observer = server.client("observer");
    let until = Instant::now() + DEADLINE;
    while observer.list(None).await.unwrap().first().is_none_or(|lock| lock.waiter_count < count) {
        assert!(Instant::now() < until, "nobody queues");
        tokio::task::yield_now().await;
    }
}

/// A fault that is injected into the service before the call under test.
type Trouble = fn(&Server);

const TROUBLES: [(&str, Trouble); 6] = [
    ("none", |_| {}),
    ("a lost call", |server| server.lose_calls(1)),
    ("three lost calls", |server| server.lose_calls(3)),
    ("a lost answer", |server| server.lose_answers(1)),
    ("three lost answers", |server| server.lose_answers(3)),
    ("a stall", Server::stall),
];

/// For each fault: drops an acquire after 1 to 11 polls (1, 4, 7, 10 in a plain `cargo test`), without a
/// session, with an open session, and with an open session while another client holds the lock. Each time the
/// lock must become free, and the next acquire succeed.
async fn cancel_everywhere(make: impl Fn(&Locks) -> Lock<Unfenced>) {
    let mut completed = 0;
    for (trouble, begin) in TROUBLES {
        for (warm, busy) in [(false, false), (true, false), (true, true)] {
            for polls in (1..12).step_by(lockkeeper_corpus::size(3, 1, 1)) {
                let server = Server::new();
                let (alice, bob) = (server.client("alice"), server.client("bob"));
                let lock = make(&alice);
                if warm {
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
                let in_the_way = if busy { Some(make(&bob).acquire().await.unwrap()) } else { None };
                begin(&server);
                {
                    let mut acquire = pin!(lock.acquire());
                    if let Some(guard) = poll_times(polls, acquire.as_mut()).await {
                        completed += 1;
                        drop(guard);
                    }
                }
                if let Some(guard) = in_the_way {
                    drop(guard);
                }
                if trouble == "a stall" {
                    server.resume();
                }
                becomes_empty(&server).await;
                let next = tokio::time::timeout(DEADLINE, lock.acquire()).await;
                let next = next.unwrap_or_else(|_| panic!("no next acquire after {trouble}, {polls} polls"));
                next.unwrap().release().await.unwrap_or_else(|error| panic!("{trouble}: {error}"));
            }
        }
    }
    assert!(completed > 0, "the last polls see the end of the acquire");
}

#[tokio::test]
async fn a_mutex_whose_acquire_is_dropped_at_any_await_is_free() {
    cancel_everywhere(|locks| locks.mutex("a")).await;
}

#[tokio::test]
async fn a_limited_wait_dropped_at_any_await_leaves_no_waiter() {
    cancel_everywhere(|locks| locks.mutex("a").wait(Wait::For(secs(60))).min_validity(secs(5))).await;
}

#[tokio::test]
async fn several_names_and_subtrees_dropped_at_any_await_are_free() {
    cancel_everywhere(|locks| locks.all(["b", "a", "c/d"]).subtree()).await;
}

#[tokio::test]
async fn a_writer_and_a_permit_dropped_at_any_await_are_free() {
    cancel_everywhere(|locks| locks.rw("a").write()).await;
    cancel_everywhere(|locks| locks.semaphore("a", 1)).await;
}

#[tokio::test]
async fn a_session_without_renewal_dropped_at_any_await_leaves_nothing() {
    cancel_everywhere(|locks| locks.mutex("a").no_renew()).await;
}

#[tokio::test]
async fn a_release_dropped_at_any_await_continues() {
    for (_, begin) in TROUBLES {
        for polls in 0..8 {
            let server = Server::new();
            let alice = server.client("alice");
            let guard = alice.mutex("a").acquire().await.unwrap();
            begin(&server);
            {
                let mut release = pin!(guard.release());
                let _ = poll_times(polls, release.as_mut()).await;
            }
            server.resume();
            becomes_empty(&server).await;
        }
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_at_any_await_releases() {
    for (_, begin) in TROUBLES {
        for polls in 0..10 {
            let server = Server::new();
            let lock = server.client("alice").mutex("a");
            begin(&server);
            {
                let mut run = pin!(lock.run(async |_| {
                    tokio::task::yield_now().await;
                    tokio::task::yield_now().await;
                    Ok::<_, HoldError>(())
                }));
                let _ = poll_times(polls, run.as_mut()).await;
            }
            server.resume();
            becomes_empty(&server).await;
        }
    }
}

#[test]
fn guards_may_be_dropped_outside_of_any_runtime() {
    let server = Server::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let take = |name: &str| -> Guard<Unfenced> {
        runtime.block_on(server.client("alice").mutex(name).acquire()).unwrap()
    };
    let (a, b, c) = (take("a"), take("b"), take("c"));
    std::thread::spawn(move || drop(a)).join().unwrap();
    drop(b);
    drop(runtime);
    drop(c);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(becomes_empty(&server));
}

#[test]
fn a_guard_inside_of_a_task_is_released_with_its_runtime() {
    let server = Server::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lock = server.client("alice").mutex("a");
    let (tell, told) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _held = lock.acquire().await.unwrap();
        tell.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    told.recv_timeout(DEADLINE).unwrap();
    drop(runtime);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(becomes_empty(&server));
}

#[test]
fn a_starved_runtime_does_not_lose_its_lock() {
    let server = Server::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let held = server.client("alice").mutex("a").ttl(secs(1)).acquire().await.unwrap();
        // Three times the ttl, during which this runtime polls nothing.
        std::thread::sleep(secs(3));
        held.check(Duration::ZERO).unwrap();
        assert!(server.client("bob").mutex("a").try_acquire().await.unwrap().is_none());
        held.release().await.unwrap();
    });
}

#[tokio::test]
async fn the_last_of_several_reentered_guards_releases() {
    let server = Server::new();
    let held = server.client("alice").mutex("a").acquire().await.unwrap();
    let inner = held.reenter();
    assert_eq!(inner.token_hint(), held.token_hint());
    held.release().await.unwrap();
    assert!(server.client("bob").mutex("a").try_acquire().await.unwrap().is_none());
    inner.release().await.unwrap();
    becomes_empty(&server).await;
}

#[tokio::test]
async fn keep_closed_applies_after_a_dropped_guard_too() {
    let server = Server::with_virtual_time();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    drop(alice.mutex("a").keep_closed(secs(60)).acquire().await.unwrap());
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_none());
    server.advance(secs(61));
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn max_hold_signals_then_ends_that_hold_only() {
    let server = Server::with_virtual_time();
    let alice = server.client("alice");
    let short = alice.mutex("a").max_hold(secs(5)).grace(secs(3)).acquire().await.unwrap();
    let long = alice.mutex("b").acquire().await.unwrap();
    server.advance(secs(5));
    assert_eq!(short.loss(), Some(LossCause::MaxHold));
    let bob = server.client("bob");
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_none(), "the grace runs");
    server.advance(secs(4));
    assert!(bob.mutex("a").try_acquire().await.unwrap().is_some());
    long.verify().await.unwrap();
    assert!(matches!(
        short.release().await,
        Err(ReleaseError::AlreadyLost(Lost { cause: LossCause::MaxHold, .. }))
    ));
}

#[tokio::test]
async fn a_hold_without_renewal_ends_with_its_ttl() {
    let server = Server::with_virtual_time();
    let held = server.client("alice").mutex("a").ttl(secs(10)).no_renew().acquire().await.unwrap();
    server.advance(secs(9));
    held.check(Duration::ZERO).unwrap();
    server.advance(secs(2));
    assert_eq!(held.loss(), Some(LossCause::Expired));
    assert!(server.client("bob").mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_shutdown_releases_all_holds_including_those_without_renewal() {
    let server = Server::new();
    let alice = server.client("alice");
    let held = alice.mutex("a").acquire().await.unwrap();
    let fixed = alice.mutex("b").no_renew().acquire().await.unwrap();
    let report = alice.clone().shutdown(DEADLINE).await;
    assert_eq!((report.closed, report.left), (2, 0));
    assert_eq!(held.loss(), Some(LossCause::ShutDown));
    assert_eq!(fixed.loss(), Some(LossCause::ShutDown));
    becomes_empty(&server).await;
    assert!(alice.mutex("c").acquire().await.is_err());
}

#[tokio::test]
async fn a_shutdown_ends_a_wait_with_an_error() {
    let server = Server::new();
    let (alice, bob) = (server.client("alice"), server.client("bob"));
    let held = alice.mutex("a").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = bob.mutex("a");
        async move { lock.acquire().await.map(drop) }
    });
    waits_for_waiters(&server, 1).await;
    let report = bob.shutdown(DEADLINE).await;
    assert_eq!(report.left, 0);
    assert!(matches!(waiting.await.unwrap(), Err(lockkeeper::AcquireError::ShuttingDown)));
    held.release().await.unwrap();
    becomes_empty(&server).await;
}

#[tokio::test]
async fn with_drop_body_the_body_is_dropped_at_the_loss() {
    let server = Server::with_virtual_time();
    let lock = server.client("alice").mutex("a").ttl(secs(10)).on_lost(OnLost::DropBody);
    let result = lock
        .run(async |_| {
            server.cut_off("alice");
            server.advance(secs(11));
            std::future::pending::<Result<(), HoldError>>().await
        })
        .await;
    assert!(matches!(result, Err(HoldError::Lost(Lost { cause: LossCause::Expired, .. }))));
}

#[tokio::test]
async fn an_acquire_of_a_cut_off_client_fails_and_succeeds_after_reconnecting() {
    let server = Server::with_virtual_time();
    let alice = server.client("alice");
    let held = alice.mutex("a").ttl(secs(10)).acquire().await.unwrap();
    server.cut_off("alice");
    server.advance(secs(11));
    assert!(held.loss().is_some());
    let asking = tokio::spawn({
        let lock = alice.mutex("b").ttl(secs(10));
        async move { lock.acquire().await.map(drop) }
    });
    let until = Instant::now() + DEADLINE;
    while !asking.is_finished() {
        assert!(Instant::now() < until, "it is never told");
        tokio::task::yield_now().await;
        server.advance(secs(1));
    }
    assert!(asking.await.unwrap().is_err());
    server.reconnect("alice");
    server.advance(secs(12));
    alice.mutex("b").ttl(secs(10)).acquire().await.unwrap().release().await.unwrap();
}

#[test]
fn blocking_guards_are_dropped_and_released_without_a_runtime() {
    let locks = lockkeeper::blocking::Locks::connect("memory:cancel-blocking").unwrap();
    drop(locks.mutex("a").acquire().unwrap());
    let until = Instant::now() + DEADLINE;
    while !locks.inspect("a").unwrap().holds.is_empty() {
        assert!(Instant::now() < until, "still held");
    }
    let held = locks.mutex("a").acquire().unwrap();
    drop(locks.clone());
    std::thread::spawn(move || held.release().unwrap()).join().unwrap();
    assert!(locks.mutex("a").try_acquire().unwrap().is_some());
}
