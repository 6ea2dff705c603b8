//! A scheduler that runs on several hosts, of which one starts the jobs.
//!
//! The problem: job number n is to be started once, after job n - 1. If two schedulers believe that they
//! lead, a job is started twice; if none does, no job is started at all.
//!
//! Why an election: the leader works for as long as it lives, and the next one continues where it ended. The
//! others see its address, to which they can send requests.
//!
//! Why a fence: a leader that stalls, and wakes up when another one leads, would start its next job from an
//! old number. It enters the journal's fence with the token of its leadership before it reads the last
//! number; once a later leader has done so, writes of the earlier one are refused. `Guard::lost` alone can't
//! stop a process that does not run.
//!
//! `scheduler lockkeeper://locks.example /srv/journal.txt 10.0.0.7:80 3` starts three jobs and resigns.

use std::error::Error;

use lockkeeper::{Fenced, Guard, Locks};
use lockkeeper_fence::{FileFence, Section};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, journal, address, jobs] =
        arguments().ok_or("usage: scheduler LOCKS_URL JOURNAL ADDRESS JOBS")?;
    let (locks, jobs) = (Locks::connect(&locks).await?.fenced()?, jobs.parse()?);
    let election = locks.election("scheduler");
    if let Some(leader) = election.leader().await? {
        println!("{} leads", String::from_utf8_lossy(&leader.value));
    }
    let leadership = election.campaign(address).await?;
    println!("elected with token {}", leadership.token());
    lead(&leadership, &FileFence::new(&journal)?, jobs)?;
    leadership.release().await?;
    Ok(())
}

fn lead(leadership: &Guard<Fenced>, journal: &FileFence, jobs: u32) -> Result<(), Box<dyn Error>> {
    let section = Section::exclusive(leadership.token());
    journal.enter(section)?; // from here on writes of earlier leaders are refused
    for _ in 0..jobs {
        if let Some(why) = leadership.loss() {
            return Err(format!("another one may lead: {why}").into());
        }
        let mut lines = journal.read()?.unwrap_or_default();
        let number = lines.iter().filter(|byte| **byte == b'\n').count() + 1;
        lines.extend_from_slice(format!("job {number}, token {}\n", leadership.token()).as_bytes());
        journal.write(section, &lines)?;
        println!("job {number}");
    }
    Ok(())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
