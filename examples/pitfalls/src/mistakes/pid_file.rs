//! A lock file that names a process, on a disk that several hosts share.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::time::Duration;

use lockkeeper_rig::Program;
use lockkeeper_rig::redis::{CLI, SERVER};
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};

use crate::node::Node;
use crate::role::Role;
use crate::stage::Stage;
use crate::{Outcome, Pitfall, Result, account};

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
    wrong: |role| Box::pin(wrong(role)),
    right: |role| Box::pin(right(role)),
};

async fn wrong(role: &mut Role) -> Result {
    let mut redis = role.redis("account").await?;
    let file = role.url("file")?.to_owned();
    loop {
        match File::create_new(&file) {
            Ok(mut new) => break write!(new, "{}", Pid::this())?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        let holder = Pid::from_raw(fs::read_to_string(&file)?.parse()?);
        if kill(holder, None).is_err() {
            role.say("the lock file's process does not live: removes the file")?;
            fs::remove_file(&file)?;
        } else {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    role.say("creates the lock file: has the lock")?;
    let balance = account::read(role, &mut redis).await?;
    account::write(role, &mut redis, balance).await?;
    fs::remove_file(&file).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error.into()),
    })
}

async fn right(role: &mut Role) -> Result {
    let locks = role.locks("locks").await?.fenced()?;
    account::withdraw_fenced(role, &locks).await
}

fn script(stage: &mut Stage<'_>) -> Result<Outcome> {
    let redis = account::server();
    let node = Node::start()?;
    let shared = tempfile::tempdir()?;
    stage.serve("account", redis.url());
    stage.serve("locks", node.url());
    stage.serve("file", shared.path().join("job.pid").to_string_lossy());
    stage.start("A", &["read"])?;
    let mut other_host = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !geteuid().is_root() {
        other_host.push("--map-root-user");
    }
    let other_host: Vec<&OsStr> = other_host.into_iter().map(OsStr::new).collect();
    stage.note("B is on another host, which shares the disk");
    stage.start_by(&other_host, "B", &["waits", "read"])?;
    stage.end("A")?;
    stage.end("B")?;
    account::outcome(&redis, 2)
}
