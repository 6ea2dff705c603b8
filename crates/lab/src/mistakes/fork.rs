//! A lock that a child process inherits.

use std::process::Command;

use lockkeeper_rig::Program;

use crate::account::TTL;
use crate::actor::Actor;
use crate::scene::{Reached, Scene};
use crate::{Pitfall, Result, Verdict};

/// `flock`, as in cron tables.
const FLOCK: Program = Program { name: "flock", package: "util-linux" };

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "fork",
    title: "A lock that is held across a fork",
    mistake: "`flock FILE COMMAND` locks an open file, and all processes that inherit the descriptor share the lock. \
              If the command starts a daemon, the lock is held until that daemon ends: the job never runs again, and \
              cron says nothing.",
    remedy: "No child inherits the library's descriptors, so the lock ends with its holder. `lockkeeper run` holds \
             the lock until the last process that the command has left has ended, and says so; `--left end` ends them.",
    needs: &[FLOCK],
    source: include_str!("fork.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    // The line of a cron table. Its daemon lives for a minute here.
    let file = actor.url("file")?;
    let line = format!("flock --nonblock {file} sh -c 'sleep 60 >/dev/null 2>&1 &'");
    if Command::new("sh").args(["-c", &line]).status()?.success() {
        actor.say("flock FILE job: the job starts a daemon, and has ended")
    } else {
        actor.at("busy", "flock FILE job: another has the lock, the job does not run").await
    }
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?;
    let Some(guard) = locks.mutex("job").ttl(TTL).try_acquire().await? else {
        return actor.at("busy", "another has the lock, the job does not run").await;
    };
    Command::new("sh").args(["-c", "sleep 60 >/dev/null 2>&1 &"]).status()?;
    guard.release().await?;
    actor.say("has the lock: the job starts a daemon, and has ended")
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let folder = tempfile::tempdir()?;
    scene.serve("file", folder.path().join("job.lock").to_string_lossy());
    scene.serve("locks", format!("file://{}", folder.path().join("locks").display()));
    scene.start("A", &[])?;
    scene.note("A has ended; the next time has come");
    Ok(match scene.start("B", &["busy"])? {
        Reached::End => Verdict::Kept("the job runs each time".to_owned()),
        Reached::At(_) => {
            Verdict::Lost("the job does not run again: a daemon has inherited the lock".to_owned())
        }
    })
}
