//! A lock file that names a process, on a disk that several hosts share.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::time::Duration;

use lockkeeper_rig::Program;
use lockkeeper_rig::redis::{CLI, SERVER};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};

use crate::actor::Actor;
use crate::node::Node;
use crate::scene::Scene;
use crate::{Pitfall, Result, Verdict, account};

/// Starts a process in a PID namespace of its own, which is what another host is to a pid.
const UNSHARE: Program = Program { name: "unshare", package: "util-linux" };

pub(crate) static PITFALL: Pitfall = Pitfall {
    name: "pid-file",
    title: "A lock file on a shared disk",
    mistake: "The lock is a file with the holder's pid; who finds that no such process lives removes it. On a disk that \
              several hosts share (NFS, a volume of several containers) the pid means nothing to the others: the \
              holder lives, and its lock is removed as a dead one's.",
    remedy: "A lock service for what several hosts share. `file:` is for one host: there the kernel ends a lock with \
             its holder, without pids.",
    needs: &[SERVER, CLI, UNSHARE],
    source: include_str!("pid_file.rs"),
    script,
    wrong: |actor| Box::pin(wrong(actor)),
    right: |actor| Box::pin(right(actor)),
};

async fn wrong(actor: &mut Actor) -> Result {
    let mut redis = actor.redis("account").await?;
    let file = actor.url("file")?.to_owned();
    loop {
        match File::create_new(&file) {
            Ok(mut new) => break write!(new, "{}", Pid::this())?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let holder = Pid::from_raw(fs::read_to_string(&file)?.parse()?);
        if kill(holder, None).is_err() {
            actor.say("the lock file's process does not live: removes the file")?;
            fs::remove_file(&file)?;
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    actor.say("creates the lock file: has the lock")?;
    let balance = account::read(actor, &mut redis).await?;
    account::write(actor, &mut redis, balance).await?;
    fs::remove_file(&file).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error.into()),
    })
}

async fn right(actor: &mut Actor) -> Result {
    let locks = actor.locks("locks").await?.fenced()?;
    account::withdraw_fenced(actor, &locks).await
}

fn script(scene: &mut Scene<'_>) -> Result<Verdict> {
    let redis = account::server();
    let node = Node::start()?;
    let shared = tempfile::tempdir()?;
    scene.serve("account", redis.url());
    scene.serve("locks", node.url());
    scene.serve("file", shared.path().join("job.pid").to_string_lossy());
    scene.start("A", &["read"])?;
    let mut other_host = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !geteuid().is_root() {
        other_host.push("--map-root-user");
    }
    let other_host: Vec<&OsStr> = other_host.into_iter().map(OsStr::new).collect();
    scene.note("B is on another host, which shares the disk");
    scene.start_by(&other_host, "B", &["waits", "read"])?;
    scene.end("A")?;
    scene.end("B")?;
    account::outcome(&redis, 2)
}
