use std::sync::atomic::Ordering::SeqCst;
use std::task::{Poll, Waker};

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(60);

/// A lock service that counts its connections.
#[derive(Default)]
struct Fake {
    /// When each attempt to connect began.
    attempts: Mutex<Vec<Instant>>,
    open: AtomicUsize,
    refuses: AtomicBool,
    /// Attempts wait while it is set.
    stalls: AtomicBool,
}

#[derive(Clone)]
struct FakeConnector(Arc<Fake>);

struct FakeConnection {
    fake: Arc<Fake>,
    /// In the order of the attempts, from 1.
    number: usize,
    runtime: Id,
    broken: AtomicBool,
}

impl Drop for FakeConnection {
    fn drop(&mut self) {
        self.fake.open.fetch_sub(1, SeqCst);
    }
}

impl Connect for FakeConnector {
    type Connection = FakeConnection;

    fn connect(&self) -> BoxFuture<'static, Result<FakeConnection, BackendError>> {
        let fake = self.0.clone();
        Box::pin(async move {
            fake.attempts.lock().unwrap().push(Instant::now());
            let number = fake.attempts();
            while fake.stalls.load(SeqCst) {
                yield_now().await;
            }
            if fake.refuses.load(SeqCst) {
                return Err(BackendError::new(BackendErrorKind::Unreachable, "refused by the fake"));
            }
            fake.open.fetch_add(1, SeqCst);
            let runtime = Handle::current().id();
            Ok(FakeConnection { fake, number, runtime, broken: AtomicBool::new(false) })
        })
    }

    fn is_usable(&self, connection: &FakeConnection) -> bool {
        !connection.broken.load(SeqCst)
    }
}

impl Fake {
    fn attempts(&self) -> usize {
        self.attempts.lock().unwrap().len()
    }

    fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

fn pool(shared_each: usize, total: usize, lease_thread: &LeaseThread) -> (Pool<FakeConnector>, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let limits = PoolLimits { shared_each, total, idle: IDLE };
    (Pool::new(FakeConnector(fake.clone()), limits, lease_thread), fake)
}

/// A pool for several runtimes, and two of them.
fn pool_and_runtimes(shared_each: usize, total: usize) -> (Pool<FakeConnector>, Arc<Fake>, Runtime, Runtime) {
    let (pool, fake) = pool(shared_each, total, &LeaseThread::start("test").unwrap());
    (pool, fake, runtime(), runtime())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs the other tasks of this runtime until `is_so` returns true.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + 10 * SECOND;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        yield_now().await;
    }
}

/// Runs the other tasks of this runtime for a while.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[test]
fn each_runtime_has_connections_of_its_own() {
    let (pool, fake, one, two) = pool_and_runtimes(1, 4);
    let first = one.block_on(pool.shared());
    let second = two.block_on(pool.shared());
    assert_eq!((first.number, first.runtime), (1, one.handle().id()));
    assert_eq!((second.number, second.runtime), (2, two.handle().id()));
    assert_eq!(one.block_on(pool.shared()).number, 1);
    assert_eq!(two.block_on(pool.shared()).number, 2);
    assert_eq!(fake.attempts(), 2);
}

#[test]
fn alone_uses_the_idle_connection_of_its_own_runtime() {
    let (pool, _, one, two) = pool_and_runtimes(0, 4);
    drop(one.block_on(pool.alone()).unwrap());
    drop(two.block_on(pool.alone()).unwrap());
    assert_eq!(one.block_on(pool.alone()).unwrap().number, 1);
    assert_eq!(two.block_on(pool.alone()).unwrap().number, 2);
}

#[test]
fn connections_of_an_ended_runtime_are_never_handed_out_and_free_their_places() {
    let (pool, fake, one, two) = pool_and_runtimes(1, 1);
    // The connection still has a user when its runtime ends.
    let first = one.block_on(pool.shared());
    drop(one);
    let second = two.block_on(async { timeout(10 * SECOND, pool.shared()).await.unwrap() });
    assert_eq!(second.number, 2);
    drop(first);
    assert_eq!(fake.open(), 1);

    let (pool, fake, one, two) = pool_and_runtimes(0, 1);
    drop(one.block_on(pool.alone()).unwrap());
    drop(one);
    assert_eq!(two.block_on(pool.alone()).unwrap().number, 2);
    assert_eq!(fake.open(), 1);

    let (pool, fake, one, two) = pool_and_runtimes(0, 1);
    let first = one.block_on(pool.alone()).unwrap();
    drop(one);
    drop(first);
    assert_eq!(two.block_on(pool.alone()).unwrap().number, 2);
    assert_eq!(fake.open(), 1);
}

#[test]
fn an_attempt_that_ends_with_its_runtime_frees_its_place() {
    let (pool, fake, one, two) = pool_and_runtimes(1, 1);
    fake.stalls.store(true, SeqCst);
    one.block_on(async {
        tokio::select! {
            _ = pool.shared() => panic!("no connection was opened"),
            () = until("an attempt", || fake.attempts() == 1) => {}
        }
    });
    drop(one);
    fake.stalls.store(false, SeqCst);
    let second = two.block_on(async { timeout(10 * SECOND, pool.shared()).await.unwrap() });
    assert_eq!(second.number, 2);
}

#[tokio::test]
async fn shared_connections_grow_to_their_limit_and_the_one_with_fewest_users_is_taken() {
    let (pool, fake) = pool(3, 8, &LeaseThread::of_this_test());
    let mut users = vec![pool.shared().await];
    for open in 2..=3 {
        // All have users: one of them is used once more, and another one opened.
        let before = pool.shared().await;
        until("another connection", || fake.open() == open).await;
        settle().await;
        users.push(pool.shared().await);
        assert_eq!(users.last().unwrap().number, open, "it has no users");
        drop(before);
    }
    for _ in 0..3 {
        users.push(pool.shared().await);
    }
    settle().await;
    assert_eq!(fake.attempts(), 3, "the limit");
    let mut numbers: Vec<usize> = users.iter().map(|used| used.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 1, 2, 2, 3, 3]);
    users.retain(|used| used.number != 2);
    assert_eq!(pool.shared().await.number, 2);
}

#[tokio::test]
async fn a_runtime_opens_one_shared_connection_at_a_time() {
    let (pool, fake) = pool(3, 8, &LeaseThread::of_this_test());
    let _used = pool.shared().await;
    fake.stalls.store(true, SeqCst);
    for _ in 0..3 {
        assert_eq!(pool.shared().await.number, 1);
        settle().await;
    }
    assert_eq!(fake.attempts(), 2);
}

#[tokio::test]
async fn an_idle_shared_connection_is_used_again() {
    let (pool, fake) = pool(3, 8, &LeaseThread::of_this_test());
    for _ in 0..5 {
        assert_eq!(pool.shared().await.number, 1);
        settle().await;
    }
    assert_eq!(fake.attempts(), 1);
}

#[test]
fn a_runtime_that_can_have_no_shared_connection_uses_one_of_another() {
    let (pool, fake, one, two) = pool_and_runtimes(2, 1);
    let first = one.block_on(pool.shared());
    assert_eq!(two.block_on(pool.shared()).number, 1);
    // The connection is idle now, so it is closed to make room for one of the other runtime.
    drop(first);
    assert_eq!(two.block_on(async { timeout(10 * SECOND, pool.shared()).await.unwrap() }).number, 2);
    assert_eq!(fake.open(), 1);

    let (pool, fake, one, two) = pool_and_runtimes(2, 8);
    let used = one.block_on(pool.shared());
    fake.refuses.store(true, SeqCst);
    assert_eq!(two.block_on(async { timeout(10 * SECOND, pool.shared()).await.unwrap() }).number, 1);
    used.broken.store(true, SeqCst);
    assert!(two.block_on(async { timeout(SECOND / 10, pool.shared()).await.is_err() }));
}

#[test]
fn a_runtime_with_a_shared_connection_takes_none_from_another() {
    let (pool, fake, one, two) = pool_and_runtimes(2, 2);
    drop(one.block_on(pool.shared()));
    two.block_on(async {
        let _used = pool.shared().await;
        assert_eq!(pool.shared().await.number, 2);
        settle().await;
    });
    assert_eq!((fake.attempts(), one.block_on(pool.shared()).number), (2, 1));
    assert!(pool.trouble().is_none());
}

#[tokio::test]
async fn alone_is_exclusive_and_its_limit_is_an_error() {
    let (pool, fake) = pool(0, 2, &LeaseThread::of_this_test());
    let (first, second) = (pool.alone().await.unwrap(), pool.alone().await.unwrap());
    assert_eq!((first.number, second.number), (1, 2));
    let error = pool.alone().await.map(drop).unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::LimitReached);
    assert!(error.to_string().contains("all 2 connections of this client are in use"), "{error}");
    drop(first);
    assert_eq!(pool.alone().await.unwrap().number, 1);
    assert_eq!(fake.attempts(), 2);
}

#[test]
fn an_idle_connection_of_another_runtime_makes_room() {
    let (pool, fake, one, two) = pool_and_runtimes(0, 2);
    let first = one.block_on(pool.alone()).unwrap();
    drop(one.block_on(pool.alone()).unwrap());
    let third = two.block_on(pool.alone()).unwrap();
    assert_eq!((first.number, third.number, fake.open()), (1, 3, 2));
    assert!(two.block_on(pool.alone()).is_err(), "the other one is in use");
}

#[tokio::test]
async fn the_error_of_opening_is_returned_and_remembered_until_one_is_opened() {
    let (pool, fake) = pool(1, 2, &LeaseThread::of_this_test());
    fake.refuses.store(true, SeqCst);
    let error = pool.alone().await.map(drop).unwrap_err().to_string();
    assert!(error.contains("refused by the fake"), "{error}");
    assert!(pool.trouble().unwrap().to_string().contains("refused by the fake"));
    fake.refuses.store(false, SeqCst);
    drop(pool.alone().await.unwrap());
    assert!(pool.trouble().is_none());
    // A failed attempt frees its permit.
    fake.refuses.store(true, SeqCst);
    let _used = pool.alone().await.unwrap();
    for _ in 0..3 {
        let error = pool.alone().await.map(drop).unwrap_err().to_string();
        assert!(error.contains("refused by the fake"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_attempts_pause_from_20_ms_to_1_s() {
    let (pool, fake) = pool(1, 1, &LeaseThread::of_this_test());
    fake.refuses.store(true, SeqCst);
    assert!(timeout(5 * SECOND, pool.shared()).await.is_err());
    let attempts = fake.attempts.lock().unwrap().clone();
    let pauses: Vec<u128> = attempts.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    let expected = [20, 40, 80, 160, 320, 640, 1000, 1000, 1000];
    assert_eq!(pauses.len(), expected.len(), "{pauses:?}");
    for (pause, expected) in pauses.iter().zip(expected) {
        // Tokio's timers have a resolution of a millisecond.
        assert!((expected..=expected + 2).contains(pause), "{pauses:?}");
    }
    assert!(pool.trouble().unwrap().to_string().contains("refused by the fake"));
    fake.refuses.store(false, SeqCst);
    timeout(2 * SECOND, pool.shared()).await.unwrap().discard();
    assert!(pool.trouble().is_none());
    // After a success the pauses start at 20 ms again.
    fake.refuses.store(true, SeqCst);
    let before = fake.attempts();
    assert!(timeout(Duration::from_millis(70), pool.shared()).await.is_err());
    assert_eq!(fake.attempts(), before + 3);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_and_used_ones_are_kept() {
    let (pool, fake) = pool(2, 4, &LeaseThread::of_this_test());
    let used = pool.shared().await;
    let other = pool.shared().await;
    until("another connection", || fake.open() == 2).await;
    drop(other);
    sleep(IDLE / 2).await;
    assert_eq!(fake.open(), 2);
    sleep(IDLE).await;
    settle().await;
    assert_eq!(fake.open(), 1, "one is in use");
    drop(used);
    sleep(IDLE / 2).await;
    assert_eq!(fake.open(), 1, "it was used just now");
    sleep(IDLE).await;
    settle().await;
    assert_eq!(fake.open(), 0);
    assert_eq!(pool.shared().await.number, 3);
}

#[tokio::test(start_paused = true)]
async fn unusable_connections_are_closed_also_without_calls() {
    let (pool, fake) = pool(1, 1, &LeaseThread::of_this_test());
    pool.shared().await.broken.store(true, SeqCst);
    sleep(IDLE / 4 + SECOND).await;
    assert_eq!(fake.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_idle_connections_ends_with_the_pool() {
    let (pool, fake) = pool(1, 1, &LeaseThread::of_this_test());
    drop(pool.shared().await);
    let alive = Arc::downgrade(&pool.0);
    drop(pool);
    sleep(IDLE / 2).await;
    settle().await;
    assert_eq!((alive.strong_count(), fake.open()), (0, 0));
}

#[tokio::test]
async fn a_caller_of_alone_that_stops_waiting_leaves_an_idle_connection() {
    let (pool, fake) = pool(0, 1, &LeaseThread::of_this_test());
    fake.stalls.store(true, SeqCst);
    let mut waiting = Box::pin(pool.alone());
    assert!(matches!(
        waiting.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())),
        Poll::Pending
    ));
    until("an attempt", || fake.attempts() == 1).await;
    drop(waiting);
    fake.stalls.store(false, SeqCst);
    until("the connection", || fake.open() == 1).await;
    settle().await;
    assert_eq!((pool.alone().await.unwrap().number, fake.attempts()), (1, 1));
}

#[tokio::test]
async fn discarded_connections_are_never_handed_out_again() {
    let (pool, fake) = pool(1, 1, &LeaseThread::of_this_test());
    pool.alone().await.unwrap().discard();
    let second = pool.alone().await.unwrap();
    assert_eq!((second.number, fake.open()), (2, 1));
    drop(second);
    // A discarded connection frees its permit even while it has a user.
    let second = pool.shared().await;
    second.discard();
    let third = timeout(10 * SECOND, pool.shared()).await.unwrap();
    assert_eq!((second.number, third.number), (2, 3));
    drop(second);
    assert_eq!((pool.shared().await.number, fake.open()), (3, 1));
    // A connection that `is_usable` rejects is not handed out again either.
    third.broken.store(true, SeqCst);
    drop(third);
    assert_eq!(timeout(10 * SECOND, pool.shared()).await.unwrap().number, 4);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_on_which_nothing_can_be_opened_is_an_error_and_not_a_panic() {
    struct Panics(AtomicUsize);
    impl Connect for Panics {
        type Connection = ();
        fn connect(&self) -> BoxFuture<'static, Result<(), BackendError>> {
            self.0.fetch_add(1, SeqCst);
            Box::pin(async { panic!("the runtime has no I/O") })
        }
        fn is_usable(&self, (): &()) -> bool {
            true
        }
    }
    let limits = PoolLimits { shared_each: 1, total: 1, idle: IDLE };
    let pool = Pool::new(Panics(AtomicUsize::new(0)), limits, &LeaseThread::of_this_test());
    for _ in 0..2 {
        let error = pool.alone().await.map(drop).unwrap_err().to_string();
        assert!(error.contains("`enable_all()`"), "{error}");
    }
    assert!(timeout(Duration::from_millis(70), pool.shared()).await.is_err());
    assert!(pool.trouble().unwrap().to_string().contains("`enable_all()`"));
    assert_eq!(pool.0.connector.0.load(SeqCst), 2 + 3, "with pauses");
}
