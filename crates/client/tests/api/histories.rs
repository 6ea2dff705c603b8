//! What clients write into a history: all of it is read by the checker, and is right.

use std::path::Path;
use std::time::Duration;

use lockkeeper::{AcquireError, BreakOrder, Locks, TokenStatus, Wait};
use lockkeeper_verify::{Checker, Counts, HistoryEvent, HistoryLine, Merged};

/// The lines of a history, checked.
fn checked(path: &Path) -> (Vec<HistoryLine>, Counts) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let lines: Vec<HistoryLine> = Merged::new(vec![file]).map(Result::unwrap).collect();
    let mut checker = Checker::default();
    for line in &lines {
        checker.push(line.clone());
    }
    assert_eq!(checker.take_violations(), []);
    (lines, checker.counts())
}

/// The names of the events that `by` wrote, in order.
fn names<'a>(lines: &'a [HistoryLine], by: &str) -> Vec<&'a str> {
    lines.iter().filter(|line| line.by == by).map(|line| line.event.name()).collect()
}

#[tokio::test]
async fn each_way_in_and_out_of_a_lock_is_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    let url = format!("memory:each-way?history={}", path.display());
    let locks = Locks::connect_as(&url, "a").await.unwrap();
    let lock = locks.mutex("x");
    lock.acquire().await.unwrap().release().await.unwrap();
    let held = lock.acquire().await.unwrap();
    assert!(matches!(lock.clone().wait(Wait::No).acquire().await, Err(AcquireError::Busy(_))));
    let token = held.token_hint().unwrap();
    assert_eq!(locks.check_token("x", token).await.unwrap(), TokenStatus::Current);
    locks.inspect("x").await.unwrap();
    drop(held);
    let write = locks.rw("y").write().acquire().await.unwrap();
    write.downgrade().await.unwrap();
    drop(write);
    let broken = lock.acquire().await.unwrap();
    let order = BreakOrder {
        name: "x".parse().unwrap(),
        token: broken.token_hint().unwrap(),
        reason: "test".to_owned(),
        by: "test".to_owned(),
        now: true,
    };
    locks.break_hold(order).await.unwrap();
    broken.lost().cancelled().await;
    // Nobody counts on a hold that is lost, so this is not written down.
    broken.downgrade().await.unwrap_err();
    drop(broken);

    let (lines, counts) = checked(&path);
    let by = &lines[0].by;
    let expected = [
        "writer",
        "granted",
        "ended",
        "granted",
        "denied",
        "status",
        "listed",
        "ended",
        "granted",
        "downgraded",
        "ended",
        "granted",
        "ended",
    ];
    assert_eq!(names(&lines, by), expected);
    assert_eq!((counts.grants, counts.denials, counts.questions), (4, 1, 2));
    let HistoryEvent::Ended(last) = &lines.last().unwrap().event else { panic!("{lines:?}") };
    assert_eq!(last.how, lockkeeper_verify::HoldEnd::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_of_contending_clients_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    let url = format!("memory:contending?history={}", path.display());
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..4_u64 {
        let url = url.clone();
        tasks.spawn(async move {
            let locks = Locks::connect(&url).await.unwrap();
            let mut random = fastrand::Rng::with_seed(client);
            let cached = locks.mutex(format!("own/{client}")).cached();
            for _ in 0..200 {
                let of_all = locks.mutex("shared").cached();
                let lock = match random.u8(0..7) {
                    0 => locks.mutex("x"),
                    1 => locks.rw("x").read(),
                    2 => locks.semaphore("permits", 2),
                    3 => locks.all(["x", "y/1"]),
                    4 => locks.mutex("y").subtree(),
                    5 => cached.clone(),
                    _ => of_all,
                };
                let Ok(guard) = lock.wait(Wait::For(Duration::from_secs(20))).acquire().await else {
                    continue;
                };
                if random.bool() {
                    tokio::task::yield_now().await;
                }
                if random.bool() {
                    guard.release().await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let (lines, counts) = checked(&path);
    assert_eq!((counts.grants, counts.writers), (800, 4));
    let waited =
        |line: &&HistoryLine| matches!(&line.event, HistoryEvent::Granted(it) if it.queued.is_some());
    assert!(lines.iter().filter(waited).count() > 20, "places in the queue are written down");
}

#[tokio::test]
async fn history_that_can_not_be_written_is_refused() {
    let error = Locks::connect("memory:?history=/no/such/folder/h").await.unwrap_err().to_string();
    assert!(error.contains("the history `/no/such/folder/h` can't be written"), "{error}");
}
