//! `layout=shedlock` beside the statements of `ShedLock`'s provider for MySQL that uses the database's time
//! (version 5 and 6, `MySqlServerTimeStatementsSource`), with its parameters filled in.

use std::time::Duration;

use lockkeeper::{AcquireError, Wait};
use lockkeeper_contract::until;
use lockkeeper_rig::MariaDb;

use crate::contract::SHEDLOCK;
use crate::{SECOND, client};

/// `ShedLock`, on one host.
struct ShedLock<'a> {
    server: &'a MariaDb,
    locked_by: &'static str,
}

impl ShedLock<'_> {
    /// As its `StorageBasedLockProvider`: inserts a name that it has not seen, then updates.
    fn lock(&self, name: &str, at_most: Duration) -> bool {
        let (by, us) = (self.locked_by, at_most.as_micros());
        let until = format!("TIMESTAMPADD(MICROSECOND, {us}, UTC_TIMESTAMP(3))");
        self.changed(&format!(
            "INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by) \
             VALUES('{name}', {until}, UTC_TIMESTAMP(3), '{by}')"
        )) || self.changed(&format!(
            "UPDATE shedlock SET lock_until = {until}, locked_at = UTC_TIMESTAMP(3), locked_by = '{by}' \
             WHERE name = '{name}' AND lock_until <= UTC_TIMESTAMP(3)"
        ))
    }

    fn extend(&self, name: &str, at_most: Duration) -> bool {
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, {}, UTC_TIMESTAMP(3)) \
             WHERE name = '{name}' AND locked_by = '{}' AND lock_until > UTC_TIMESTAMP(3)",
            at_most.as_micros(),
            self.locked_by
        ))
    }

    fn unlock(&self, name: &str, at_least: Duration) -> bool {
        let at_least = format!("TIMESTAMPADD(MICROSECOND, {}, locked_at)", at_least.as_micros());
        self.changed(&format!(
            "UPDATE shedlock SET lock_until = IF ({at_least} > UTC_TIMESTAMP(3) , {at_least}, UTC_TIMESTAMP(3)) \
             WHERE name = '{name}' AND locked_by = '{}'",
            self.locked_by
        ))
    }

    fn changed(&self, sql: &str) -> bool {
        self.server.sql(&format!("{sql}; SELECT ROW_COUNT()")) == "1"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedlock_and_ours_exclude_each_other() {
    let server = MariaDb::start();
    server.sql(SHEDLOCK);
    let theirs = ShedLock { server: &server, locked_by: "web-1" };
    let ours = client(&server, "layout=shedlock").await;
    let mutex = || ours.mutex("report");

    assert!(theirs.lock("report", 60 * SECOND));
    let Err(AcquireError::Busy(busy)) = mutex().wait(Wait::No).acquire().await else { panic!("it is held") };
    assert_eq!(busy.holder.as_deref(), Some("web-1"));
    assert_eq!(ours.inspect("report").await.unwrap().holds[0].label, "web-1");
    assert!(theirs.extend("report", 60 * SECOND));
    assert!(theirs.unlock("report", Duration::ZERO));

    let held = mutex().ttl(2 * SECOND).acquire().await.unwrap();
    assert!(!theirs.lock("report", SECOND));
    assert!(!theirs.extend("report", SECOND) && !theirs.unlock("report", Duration::ZERO), "it is not theirs");
    // Longer than the ttl: our renewals extend it.
    let began = held.valid_until().unwrap();
    until("two renewals", async || {
        (held.valid_until().unwrap() > began.map(|at| at + 2 * SECOND)).then_some(())
    })
    .await;
    assert!(!theirs.lock("report", SECOND));
    held.release().await.unwrap();
    assert!(theirs.lock("report", 60 * SECOND));

    // `lockAtLeastFor`: its release lets nobody in before.
    assert!(theirs.unlock("report", 3 * SECOND));
    assert!(mutex().try_acquire().await.unwrap().is_none());
    mutex().wait(Wait::For(30 * SECOND)).acquire().await.unwrap().release().await.unwrap();
    let error = ours.mutex(&*"x".repeat(65)).acquire().await.unwrap_err().to_string();
    assert!(error.contains("at most 64 characters"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_shedlock_that_dies_is_followed_after_its_lock_until() {
    let server = MariaDb::start();
    server.sql(SHEDLOCK);
    let theirs = ShedLock { server: &server, locked_by: "web-1" };
    assert!(theirs.lock("report", 2 * SECOND));
    let ours = client(&server, "layout=shedlock").await;
    let held = ours.mutex("report").wait(Wait::For(30 * SECOND)).acquire().await.unwrap();
    assert!(!theirs.extend("report", SECOND));
    drop(held);
}
