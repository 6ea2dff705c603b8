//! A cron job that every host starts and one shall run.
//!
//! The problem: the crontab is the same on all hosts, so that the job also runs when one of them is down. At 02:00 all
//! of them start it, within a second or so of each other, and the report shall go out once.
//!
//! Why a lock: whoever gets it runs the job. Why `keep_closed`: a plain lock is free again when the job is done, and the
//! host whose clock is three seconds late would find it free and send the report again. The lock stays shut for most of
//! the period, also if the host that had it dies.
//!
//! Why a fence: a host that is paused between "I have the lock" and "send" (a live migration takes seconds, a laptop's
//! lid hours) wakes up in the next period and sends then, beside the one whose turn it is. `check_once` lets a token
//! through once and no lower one after it.
//!
//! Run it on each host: `cron_singleton lockkeeper://locks.example /var/spool/report`

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_fence::{FileFence, Section};

/// The job runs every hour. Shut for less than that: a lock that is taken a little late must be free in time.
const SHUT: Duration = Duration::from_secs(50 * 60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, outbox] = arguments().ok_or("usage: cron_singleton LOCKS_URL OUTBOX_FILE")?;
    let locks = Locks::connect(&locks).await?.fenced()?;
    let lock = locks.mutex("cron/hourly-report").keep_closed(SHUT).meta("job", "hourly report");

    // No waiting: who comes second has nothing to do.
    let Some(guard) = lock.try_acquire().await? else {
        println!("skipped: another host runs it, or has run it in this period");
        return Ok(());
    };
    let token = guard.token();
    let report = format!("report, by token {token}\n");

    // The outbox stands for whatever a report is handed to. The check and the effect are one step.
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
