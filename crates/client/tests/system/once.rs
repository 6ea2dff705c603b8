//! `Lock::once` with each store of records, on real servers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::backends::dynamodb::init;
use lockkeeper::backends::memory::Server;
use lockkeeper::once::{
    DynamoDbRecords, FileRecords, KEY_BYTES_MAX, MemoryRecords, OUTCOME_BYTES_MAX, Once, OnceError,
    OnceRecord, OnceStore, PostgresRecords, RedisRecords, SqliteRecords,
};
use lockkeeper::{HoldError, Lock, Locks};
use lockkeeper_rig::{DynamoDb, Postgres, Redis};
use tokio_postgres::NoTls;

/// What every store must do.
async fn check<S: OnceStore + 'static>(store: Arc<S>) {
    records_are_never_replaced(&*store).await;
    crowd_works_once(store.clone()).await;
    failed_work_is_tried_again(&*store).await;
    work_done_by_another_meanwhile_is_reported(&*store).await;
}

async fn records_are_never_replaced(store: &impl OnceStore) {
    // All bytes, and a key that paths, SQL and Redis could mistake for something else.
    let key = "a/../b'; -- {x}\n%00 é";
    let outcome: Vec<u8> = (0..=255).cycle().take(OUTCOME_BYTES_MAX).collect();
    let (first, second) = (OnceRecord::new(outcome), OnceRecord::new(Vec::new()));
    assert_eq!(store.get(key).await.ok().unwrap(), None);
    assert_eq!(store.put(key, &first).await.ok().unwrap(), first);
    assert_eq!(store.put(key, &first).await.ok().unwrap(), first, "a retry finds itself");
    assert_eq!(store.put(key, &second).await.ok().unwrap(), first);
    assert_eq!(store.get(key).await.ok().unwrap(), Some(first));
}

/// Locks of clients of their own, over one table.
fn clients(count: usize) -> Vec<Lock> {
    let server = Server::new();
    (0..count).map(|index| server.client(&index.to_string()).mutex("work")).collect()
}

async fn crowd_works_once<S: OnceStore + 'static>(store: Arc<S>) {
    let ran = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for (index, lock) in clients(16).into_iter().enumerate() {
        let (store, ran) = (store.clone(), ran.clone());
        tasks.push(tokio::spawn(async move {
            lock.once("crowd", &*store, async |_| {
                ran.fetch_add(1, Ordering::SeqCst);
                Ok::<_, OnceError>(vec![index as u8])
            })
            .await
            .unwrap()
        }));
    }
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await.unwrap());
    }
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert_eq!(done.iter().filter(|once| once.is_new).count(), 1);
    assert!(done.iter().all(|once| once.outcome == done[0].outcome), "{done:?}");
}

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("the work failed")]
    Failed,
    #[error(transparent)]
    Once(#[from] OnceError),
}

async fn failed_work_is_tried_again(store: &impl OnceStore) {
    let lock = clients(1).remove(0);
    let failed = lock.once("failing", store, async |_| Err(WorkError::Failed)).await;
    assert!(matches!(failed, Err(WorkError::Failed)), "{failed:?}");
    let once = lock.once("failing", store, async |_| Ok::<_, OnceError>(b"2nd".to_vec())).await.unwrap();
    assert_eq!((once.outcome.as_slice(), once.is_new), (&b"2nd"[..], true));
}

async fn work_done_by_another_meanwhile_is_reported(store: &impl OnceStore) {
    let lock = clients(1).remove(0);
    let twice = lock.once("twice", store, async |_| {
        // As another holder does after this one has lost the lock.
        store.put("twice", &OnceRecord::new(b"theirs".to_vec())).await.ok().unwrap();
        Ok::<_, OnceError>(b"mine".to_vec())
    });
    match twice.await {
        Err(OnceError::Twice { outcome }) => assert_eq!(outcome, b"theirs"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn memory() {
    check(Arc::new(MemoryRecords::default())).await;
}

#[tokio::test]
async fn files() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("not/there/yet");
    check(Arc::new(FileRecords::new(&records))).await;
    let names = std::fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.collect();
    assert!(names.iter().all(|name| name.len() == 64), "unfinished ones are left: {names:?}");
    std::fs::write(records.join(&names[0]), "garbage").unwrap();
    let mut errors = 0;
    for key in ["crowd", "failing", "twice", "a/../b'; -- {x}\n%00 é"] {
        errors += u32::from(FileRecords::new(&records).get(key).await.is_err());
    }
    assert_eq!(errors, 1, "a damaged record counts neither as absent nor as done");
}

#[tokio::test]
async fn sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("database");
    check(Arc::new(SqliteRecords::new(rusqlite::Connection::open(&path).unwrap()).unwrap())).await;

    let records = SqliteRecords::new(rusqlite::Connection::open(&path).unwrap()).unwrap();
    let mut work = rusqlite::Connection::open(&path).unwrap();
    work.execute_batch("CREATE TABLE effect (id INTEGER)").unwrap();
    let lock = clients(1).remove(0);
    let once = lock.once("in a transaction", &records, async |attempt| {
        let transaction = work.transaction().unwrap();
        transaction.execute("INSERT INTO effect VALUES (1)", []).unwrap();
        assert!(SqliteRecords::put_in(&transaction, "in a transaction", &attempt.record(vec![1])).unwrap());
        transaction.commit().unwrap();
        Ok::<_, OnceError>(vec![1])
    });
    assert!(once.await.unwrap().is_new, "the record of its own transaction is this attempt's");
    let late = OnceRecord::new(vec![2]);
    assert!(!SqliteRecords::put_in(&work, "in a transaction", &late).unwrap());
}

#[tokio::test]
async fn postgres() {
    let server = Postgres::start();
    let connect = async || {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let records = PostgresRecords::new(Arc::new(connect().await));
    records.install().await.unwrap();
    records.install().await.unwrap();
    check(Arc::new(records.clone())).await;

    // Two holders work at the same time, as after a lost lock: the effect takes place once.
    let (mut one, mut two) = (connect().await, connect().await);
    one.batch_execute("CREATE TABLE effect (id bigint)").await.unwrap();
    let lock = clients(1).remove(0);
    let once = lock.once("in a transaction", &records, async |attempt| {
        let first = one.transaction().await.unwrap();
        first.execute("INSERT INTO effect VALUES (1)", &[]).await.unwrap();
        let mine = attempt.record(b"first".to_vec());
        assert!(PostgresRecords::put_in(&first, "in a transaction", &mine).await.unwrap());
        let theirs = OnceRecord::new(b"second".to_vec());
        let second = two.transaction().await.unwrap();
        second.execute("INSERT INTO effect VALUES (2)", &[]).await.unwrap();
        {
            // It waits for the first one's end.
            let mut waits = std::pin::pin!(PostgresRecords::put_in(&second, "in a transaction", &theirs));
            assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err());
            first.commit().await.unwrap();
            assert!(!waits.await.unwrap());
        }
        second.rollback().await.unwrap();
        Ok::<_, OnceError>(b"first".to_vec())
    });
    assert!(once.await.unwrap().is_new);
    assert_eq!(server.psql("SELECT count(*) FROM effect").trim(), "1");
}

#[tokio::test]
async fn redis() {
    let server = Redis::start();
    let url = server.url().parse().unwrap();
    let connection =
        lockkeeper::backends::RedisConnection::connect(&url, Duration::from_secs(5)).await.unwrap();
    check(Arc::new(RedisRecords::new(connection.clone()))).await;

    let short = RedisRecords::new(connection).keep_for(Duration::from_millis(1));
    short.put("short", &OnceRecord::new(vec![1])).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while short.get("short").await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline, "the record does not expire");
    }
    assert_eq!(server.cli(&["PTTL", "lockkeeper:once:crowd"]).trim(), "-1", "kept for ever by default");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb() {
    let server = DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"));
    let url = format!("dynamodb://once?region=us-east-1&credentials=none&endpoint={}", server.url());
    assert!(init(&url).await.unwrap());
    let records = DynamoDbRecords::connect(&url).await.unwrap();
    check(Arc::new(records.clone())).await;
    let kept = records.clone().keep_for(Duration::from_secs(3600));
    let record = OnceRecord::new(vec![1]);
    assert_eq!(kept.put("kept for a time", &record).await.unwrap(), record);
    assert_eq!(records.get("kept for a time").await.unwrap(), Some(record));
}

#[tokio::test]
async fn unusable_keys_and_outcomes_are_refused() {
    let (lock, store) = (clients(1).remove(0), MemoryRecords::default());
    for key in [String::new(), "x".repeat(KEY_BYTES_MAX + 1)] {
        let refused = lock.once(&key, &store, async |_| Ok::<_, OnceError>(Vec::new())).await;
        assert!(matches!(refused, Err(OnceError::Key { bytes }) if bytes == key.len()), "{refused:?}");
    }
    let key = "x".repeat(KEY_BYTES_MAX);
    let refused = lock.once(&key, &store, async |_| Ok::<_, OnceError>(vec![0; OUTCOME_BYTES_MAX + 1])).await;
    assert!(
        matches!(refused, Err(OnceError::Outcome { bytes }) if bytes == OUTCOME_BYTES_MAX + 1),
        "{refused:?}"
    );
    assert_eq!(store.get(&key).await.unwrap(), None);
}

/// A lock that is lost after the record was written, and one that is lost before.
#[tokio::test]
async fn loss_is_reported_only_if_nothing_is_recorded() {
    let server = Server::with_virtual_time();
    let locks: Locks = server.client("one");
    let (lock, store) = (locks.mutex("work").no_renew(), MemoryRecords::default());
    let once: Once = lock
        .once("a", &store, async |_| {
            server.advance(Duration::from_secs(60));
            Ok::<_, OnceError>(vec![7])
        })
        .await
        .unwrap();
    assert!(once.is_new);
    let lock = lock.on_lost(lockkeeper::OnLost::DropBody);
    let lost = lock.once("b", &store, async |_| {
        server.advance(Duration::from_secs(60));
        std::future::pending().await
    });
    let lost: Result<Once, OnceError> = lost.await;
    assert!(matches!(lost, Err(OnceError::Hold(HoldError::Lost(_)))), "{lost:?}");
    assert_eq!(store.get("b").await.unwrap(), None);
}
