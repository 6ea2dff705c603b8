//! A lock that a child process inherits.

use std::process::Command;

use lockkeeper_rig::Program;

use crate::account::TTL;
use crate::role::Role;
use crate::stage::{Reached, Stage};
use crate::{Outcome, Pitfall, Result};

/// `flock`, as in cron tables.
const FLOCK: Program = Program { name: "flock", package: "util-linux" };

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "fork",
    title: "A lock that is held across a fork",
    mistake: "`flock FILE COMMAND` locks an open file, and all processes that inherit the descriptor share the lock. \
              If the command starts a daemon, the lock is held until that daemon ends: the job never runs again, and \
              cron says nothing.",
    remedy: "No child inherits the library's descriptors, so the lock ends with its holder. `lockkeeper run` also ends \
             all processes that the command has left before it releases the lock.",
    needs: &[FLOCK],
    source: include_str!("fork.rs"),
    script,
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    // The line of a cron table. Its daemon lives for a minute here.
    let file = role.url("file")?;
    let line = format!("flock --nonblock {file} sh -c 'sleep 60 >/dev/null 2>&1 &'");
    if Command::new("sh").args(["-c", &line]).status()?.success() {
        role.say("flock FILE job: the job starts a daemon, and has ended")
    } else {
        role.at("busy", "flock FILE job: another has the lock, the job does not run").await
    }
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?;
    let Some(guard) = locks.mutex("job").ttl(TTL).try_acquire().await? else {
        return role.at("busy", "another has the lock, the job does not run").await;
    };
    Command::new("sh").args(["-c", "sleep 60 >/dev/null 2>&1 &"]).status()?;
    guard.release().await?;
    role.say("has the lock: the job starts a daemon, and has ended")
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    stage.serve("file", folder.path().join("job.lock").to_string_lossy());
    stage.serve("locks", format!("file://{}", folder.path().join("locks").display()));
    stage.start("A", &[])?;
    stage.note("A has ended; the next time has come");
    Ok(match stage.start("B", &["busy"])? {
        Reached::End => Outcome::Kept("the job runs each time".to_owned()),
        Reached::At(_) => {
            Outcome::Lost("the job does not run again: a daemon has inherited the lock".to_owned())
        }
    })
}
