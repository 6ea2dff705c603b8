//! `dynamodb:` on an emulator: its items, and what a table must be like.

mod contract;
mod credentials;
mod faulty_service;
mod refusals;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lockkeeper::backends::dynamodb::init;
use lockkeeper::{AcquireError, BreakOrder, Broken, ConnectError, Locks, VerifyError, Wait};
use lockkeeper_rig::DynamoDb;
use lockkeeper_rig::Faults;

/// Used where a test waits for the end of a lease.
const TTL: Duration = Duration::from_secs(2);

fn start() -> DynamoDb {
    // The directory in which `cargo xtask test` installs packages of other registries (xtask/src/foreign.rs).
    DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"))
}

fn url(server: &DynamoDb, table: &str, more: &str) -> String {
    format!("dynamodb://{table}?region=us-east-1&credentials=none&poll_ms=20&endpoint={}{more}", server.url())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_is_made_once_and_checked() {
    let server = start();
    let error = Locks::connect(&url(&server, "locks", "")).await.expect_err("no such table");
    assert!(error.to_string().contains("lockkeeper dynamodb init"), "{error}");
    assert!(init(&url(&server, "locks", "")).await.unwrap());
    assert!(!init(&url(&server, "locks", "")).await.unwrap());
    Locks::connect(&url(&server, "locks", "")).await.unwrap();
    // The rig's table has another partition key.
    let error =
        Locks::connect(&url(&server, lockkeeper_rig::dynamodb::TABLE, "")).await.expect_err("other keys");
    assert!(error.to_string().contains("partition key `id`"), "{error}");
    Locks::connect(&url(&server, lockkeeper_rig::dynamodb::TABLE, "&key=id")).await.unwrap();
    assert!(init(&url(&server, "both", "&sort=kind:lock")).await.unwrap());
    let error = Locks::connect(&url(&server, "both", "")).await.expect_err("it has a sort key");
    assert!(error.to_string().contains("sort key `kind`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_in_both_layouts_and_tokens_rise() {
    let server = start();
    for (table, more) in [("a", ""), ("b", "&attributes=python"), ("c", "&key=pk&sort=sk:locks")] {
        let url = url(&server, table, more);
        assert!(init(&url).await.unwrap());
        let (one, two) = (Locks::connect(&url).await.unwrap(), Locks::connect_as(&url, "two").await.unwrap());
        let mut last = None;
        for _ in 0..3 {
            let held = one.mutex("orders/42").acquire().await.unwrap();
            assert!(held.token_hint() > last);
            last = held.token_hint();
            assert!(two.mutex("orders/42").try_acquire().await.unwrap().is_none());
            assert_eq!(two.list(None).await.unwrap().len(), 1);
            held.release().await.unwrap();
            assert!(two.list(None).await.unwrap().is_empty());
        }
        let held = two.mutex("orders/42").acquire().await.unwrap();
        let error = one.mutex("orders/42").wait(Wait::No).acquire().await.expect_err("held");
        assert!(error.to_string().contains("two"), "{error}");
        let waits = one.mutex("orders/42");
        let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
        held.release().await.unwrap();
        waiting.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_of_a_token_is_refused_as_a_lock() {
    let server = start();
    let url = url(&server, "locks", "");
    init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let error = locks.mutex("x#fence").acquire().await.expect_err("taken for a token");
    assert!(matches!(error, AcquireError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("#fence"), "{error}");
}

/// Readers that die, among others that live: these go on, the dead ones make room, and a writer comes after
/// the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_readers_make_room() {
    let server = start();
    for (table, more) in [("a", ""), ("b", "&attributes=python")] {
        let url = url(&server, table, more);
        assert!(init(&url).await.unwrap());
        let count = async |locks: &Locks| locks.inspect("x").await.unwrap().hold_count;
        let (lives, observes) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
        let faults = Faults::default();
        let proxy = faults.proxy("dies", SocketAddr::from(([127, 0, 0, 1], server.port())));
        let through = url.replace(&server.url(), &format!("http://{proxy}"));
        let lives_on = lives.rw("x").read().ttl(TTL).acquire().await.unwrap();
        let mut dead = Vec::new();
        for number in 0..3 {
            let dies = Locks::connect_as(&through, &format!("dies {number}")).await.unwrap();
            dead.push(dies.rw("x").read().ttl(TTL).acquire().await.unwrap());
        }
        faults.cut_off("dies");
        assert_eq!(count(&observes).await, 4);
        // An attempt begins the observation; a new reader joins once that has shown who is dead.
        assert!(observes.rw("x").write().try_acquire().await.unwrap().is_none());
        let joined = tokio::time::timeout(30 * TTL, async {
            loop {
                let joined = observes.rw("x").read().acquire().await.unwrap();
                if count(&observes).await == 2 {
                    return joined;
                }
                joined.release().await.unwrap();
                tokio::time::sleep(TTL / 10).await;
            }
        });
        let joined = joined.await.expect("the dead readers stay");
        let tokens: Vec<_> = lives.inspect("x").await.unwrap().holds.iter().map(|held| held.token).collect();
        assert!(tokens.contains(&lives_on.token_hint()) && tokens.contains(&joined.token_hint()));
        assert!(joined.token_hint() > dead.iter().filter_map(|dead| dead.token_hint()).max());
        let writes = lives.rw("x").write();
        let writing = tokio::spawn(async move { writes.acquire().await.unwrap() });
        lives_on.verify().await.unwrap();
        lives_on.release().await.unwrap();
        assert!(!writing.is_finished());
        joined.release().await.unwrap();
        writing.await.unwrap().release().await.unwrap();
        assert_eq!(count(&lives).await, 0);
    }
}

/// A crowd of readers: as many as an item has room for; a reader is broken by its token, alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_readers_is_bounded_and_each_is_broken_alone() {
    let server = start();
    let url = url(&server, "locks", "");
    init(&url).await.unwrap();
    let locks = Locks::connect(&url).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..100 {
        readers.push(locks.rw("x").read().acquire().await.unwrap());
    }
    assert!(locks.rw("x").read().try_acquire().await.unwrap().is_none());
    assert_eq!(locks.inspect("x").await.unwrap().hold_count, 100);
    for now in [false, true] {
        let broken = readers.pop().unwrap();
        let order = BreakOrder {
            name: "x".parse().unwrap(),
            token: broken.token_hint().unwrap(),
            now,
            reason: "the test tries it".into(),
            by: "operator".into(),
        };
        assert_eq!(locks.break_hold(order).await.unwrap(), Broken::Done);
        assert!(matches!(broken.verify().await, Err(VerifyError::Lost(_))));
        // Its own end must not take the lock from the others.
        drop(broken);
    }
    for reader in &readers {
        reader.verify().await.unwrap();
    }
    assert!(locks.rw("x").write().try_acquire().await.unwrap().is_none());
    for reader in readers {
        reader.release().await.unwrap();
    }
    locks.rw("x").write().acquire().await.unwrap().release().await.unwrap();
}

/// A crowd of one lock: nobody holds together with another, and everybody gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_takes_turns() {
    let server = start();
    let url = url(&server, "locks", "");
    init(&url).await.unwrap();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let locks = Locks::connect(&url).await.unwrap();
        let inside = inside.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..3 {
                let held = locks.mutex("x").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                held.verify().await.unwrap();
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_that_is_missing_is_named_with_the_reason() {
    let url = "dynamodb://locks?region=eu-central-1&credentials=none&endpoint=http://127.0.0.1:1";
    let error = Locks::connect(url).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Backend(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}
