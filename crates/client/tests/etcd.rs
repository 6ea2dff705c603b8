//! `etcd:` on a real server: its queue, its keys, and `etcdctl lock` beside it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::{AcquireError, BreakOrder, Broken, LockName, Locks, LossCause, TokenStatus, Wait};
use lockkeeper_rig::Etcd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

async fn client(etcd: &Etcd, query: &str) -> Locks {
    Locks::connect_as(&format!("{}{query}", etcd.url()), "ours").await.unwrap()
}

/// Waits for a condition; the deadline only makes a failure visible.
async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_waiting(locks: &Locks, name: &str, count: usize) {
    until("the waiters", async || (locks.inspect(name).await.unwrap().waiter_count == count).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_does_not_wait_for_a_holder_below_its_name() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let below = locks.mutex("a/b").acquire().await.unwrap();
    let above = locks.mutex("a").try_acquire().await.unwrap().expect("another lock");
    let names: Vec<String> =
        locks.list(None).await.unwrap().iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(names, ["a", "a/b"]);
    let names: Vec<_> = locks.list(Some("a/b")).await.unwrap().into_iter().map(|lock| lock.name).collect();
    assert_eq!(names, [LockName::parse("a/b").unwrap()]);
    above.release().await.unwrap();
    below.release().await.unwrap();
    assert!(locks.list(None).await.unwrap().is_empty());
}

/// A lease costs a write to disk, so the lease of an ended request serves the next one. Two requests never share one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_used_again_and_not_shared() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let leases = || etcd.cli(&["lease", "list"]).lines().skip(1).count();
    let mut last = 0;
    for _ in 0..20 {
        let held = locks.mutex("x").acquire().await.unwrap();
        let token = held.token_hint().unwrap().get();
        assert!(token > last, "{token} after {last}");
        last = token;
        held.release().await.unwrap();
    }
    assert_eq!(leases(), 1);
    let held = (locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    assert_eq!(leases(), 2);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_in_order_and_soon() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let mut held = locks.mutex("x").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for place in 0..5 {
        let lock = locks.mutex("x");
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap() }));
        until_waiting(&locks, "x", place + 1).await;
    }
    for next in waiting {
        let token = held.token_hint();
        held.release().await.unwrap();
        held = next.await.unwrap();
        assert!(held.token_hint() > token);
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waiter_leaves_the_queue() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "").await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let lock = locks.mutex("x");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&locks, "x", 1).await;
    waiter.abort();
    until_waiting(&locks, "x", 0).await;
    held.release().await.unwrap();
    locks.mutex("x").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_holder_is_told_at_once_and_a_break_names_its_hold() {
    let etcd = Etcd::start();
    let (locks, operator) = (client(&etcd, "").await, client(&etcd, "").await);
    let held =
        locks.mutex("x").ttl(Duration::from_secs(60)).grace(Duration::from_secs(10)).acquire().await.unwrap();
    let token = held.token_hint().unwrap();
    let order = |now| BreakOrder {
        name: LockName::parse("x").unwrap(),
        token,
        reason: "test".to_owned(),
        by: "ana".to_owned(),
        now,
    };
    assert_eq!(operator.break_hold(order(false)).await.unwrap(), Broken::Done);
    tokio::time::timeout(Duration::from_secs(5), held.lost().cancelled())
        .await
        .expect("told before any renewal");
    assert_eq!(held.loss(), Some(LossCause::Broken));
    assert_eq!(operator.check_token("x", token).await.unwrap(), TokenStatus::NotCurrent { live: Vec::new() });
    assert!(locks.mutex("x").try_acquire().await.unwrap().is_none());
    let _ = held.release().await;
    let next = locks.mutex("x").acquire().await.unwrap();
    assert!(
        matches!(operator.break_hold(order(true)).await.unwrap(), Broken::NotCurrent { live } if live == [next.token_hint().unwrap()])
    );
    next.release().await.unwrap();
}

/// A hold whose key somebody deleted is lost at the next renewal; its release deletes nothing of the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_key_is_a_loss_and_its_release_spares_the_next_holder() {
    let etcd = Etcd::start();
    let (one, other) = (client(&etcd, "").await, client(&etcd, "").await);
    let held = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    etcd.cli(&["del", "--prefix", "lockkeeper/x/"]);
    let next = other.mutex("x").acquire().await.unwrap();
    until("the loss", async || held.loss()).await;
    let _ = held.release().await;
    assert_eq!(other.check_token("x", next.token_hint().unwrap()).await.unwrap(), TokenStatus::Current);
    next.release().await.unwrap();
}

#[tokio::test]
async fn unusable_urls_are_refused_with_a_reason() {
    for (url, words) in [
        ("etcd://", "a list of members"),
        ("etcd://a/b", "no databases"),
        ("etcd://ana@a", "a login"),
        ("etcd://a?layout=other", "layout=plain"),
        ("etcd://a?lease=7", "no parameter `lease`"),
        ("etcd://127.0.0.1:1", "no member of etcd answers (127.0.0.1:1: "),
    ] {
        let error = Locks::connect(url).await.expect_err(url);
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        assert!(text.contains(words), "{url}: {text}");
    }
}

/// `etcdctl lock NAME`: prints its key once it holds the lock, and releases it when it is interrupted.
struct Etcdctl(Child);

impl Etcdctl {
    fn start(etcd: &Etcd, name: &str) -> Self {
        let child = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&format!("--endpoints=127.0.0.1:{}", etcd.port()), "lock", "--ttl=3", name])
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("etcdctl of Debian's package etcd-client"))
    }

    /// Blocks until it holds the lock.
    fn until_held(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("jobs/"), "{line}");
    }

    fn release(mut self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGINT).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_and_ours_exclude_each_other_in_one_queue() {
    let etcd = Etcd::start();
    let locks = client(&etcd, "?layout=plain").await;
    let mut theirs = Etcdctl::start(&etcd, "jobs");
    tokio::task::block_in_place(|| theirs.until_held());
    match locks.mutex("jobs").wait(Wait::No).acquire().await {
        Err(AcquireError::Busy(busy)) => {
            assert!(
                busy.holder.as_deref().is_some_and(|holder| holder.contains("another client of etcd")),
                "{busy}"
            );
        }
        other => panic!("{other:?}"),
    }
    let lock = locks.mutex("jobs");
    let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    let mut after = Etcdctl::start(&etcd, "jobs");
    until_waiting(&locks, "jobs", 2).await;
    theirs.release();
    let held = ours.await.unwrap();
    assert_eq!(locks.inspect("jobs").await.unwrap().waiter_count, 1, "theirs waits behind ours");
    held.release().await.unwrap();
    tokio::task::block_in_place(|| after.until_held());
    // Killed, it holds until its lease is over.
    let lock = locks.mutex("jobs");
    let ours = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_waiting(&locks, "jobs", 1).await;
    after.0.kill().unwrap();
    ours.await.unwrap().release().await.unwrap();
}
