//! A cron job that is started on every host and must run on one of them.
//!
//! The problem: the crontab is the same on all hosts, so that the job also runs while one of them is down. At
//! 02:00 all hosts start it within about a second of each other, and the report must be sent once.
//!
//! Why a lock: the host that gets it runs the job. Why `keep_closed`: a plain lock is free again after the
//! job, and a host whose clock is three seconds late would acquire it and send the report again. With
//! `keep_closed` the lock stays closed for most of the period, even if its holder dies.
//!
//! Why a fence: a host that is paused between the acquire and the send (seconds for a live migration, hours
//! for a laptop with a closed lid) resumes in a later period and sends the report then, in addition to that
//! period's holder. `check_once` accepts a token once, and no lower token after it.
//!
//! Run it on each host: `cron_singleton lockkeeper://locks.example /var/spool/report`

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_fence::{FileFence, Section};

/// The job runs every hour. Shorter than the period: the lock must be free again for the next run, even if
/// the last acquire was a little late.
const SHUT: Duration = Duration::from_secs(50 * 60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, outbox] = arguments().ok_or("usage: cron_singleton LOCKS_URL OUTBOX_FILE")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let lock = locks.mutex("cron/hourly-report").keep_closed(SHUT).meta("job", "hourly report");

    // No waiting: if another host has the lock, this one has nothing to do.
    let Some(guard) = lock.try_acquire().await? else {
        println!("skipped: another host runs it, or has run it in this period");
        return Ok(());
    };
    let token = guard.token();
    let report = format!("report, by token {token}\n");

    // The outbox stands for the report's real destination. The check and the effect are one step.
    let fence = FileFence::new(&outbox)?;
    fence.check_once(Section::exclusive(token), || send(&outbox, &report))??;
    println!("ran with token {token}");

    guard.release().await?;
    Ok(())
}

fn send(outbox: &str, report: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(outbox)?.write_all(report.as_bytes())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
