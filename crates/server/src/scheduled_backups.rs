//! Backups on a schedule: files in a directory, each named by its time, the newest of which are kept.
//!
//! Responsible for: the leader writes what is due, by the call that `lockkeeper backup` uses, so a backup
//! includes every change that was answered before it began. A follower may lack the last grants: tokens of a
//! restore could repeat theirs. A file has its name only once it is complete, synced and read back. Reading
//! and writing happen on a thread for blocking work; a failure is logged and tried again, and stops nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_replica::storage::{BackupError, BackupParts, OpenError};
use tokio_util::sync::CancellationToken;

use crate::backup::check;
use crate::disk::DataDirectory;
use crate::front::Front;
use crate::inbox::ReplicaStatus;
use crate::observe;

/// Interval at which the leader reads the directory, into which another node may have written, and at which a
/// failed backup is tried again.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// The names: `lockkeeper-2026-11-29T01-13-51Z-node1.backup`.
const PREFIX: &str = "lockkeeper-";
const SUFFIX: &str = ".backup";
/// The length of a time as in the names.
const TIME_CHARS: usize = "2026-11-29T01-13-51Z".len();
/// Where colons of a time in RFC 3339 stand: they are awkward in names of files.
const COLONS: [usize; 2] = [13, 16];

/// When backups are made, and where they are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupSchedule {
    /// The time from one backup to the next.
    pub every: Duration,
    /// The directory, which must exist. Several nodes may share it.
    pub directory: PathBuf,
    /// How many backups are kept: the newest.
    pub keep: usize,
}

/// Why a backup was not made.
#[derive(Debug, thiserror::Error)]
enum BackupFailure {
    #[error("{doing} `{}`: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("the node can't read the snapshot that it has stored: {0}")]
    Snapshot(#[from] OpenError),
    #[error("what was written can't be read back: {0}")]
    Check(#[from] BackupError),
    #[error("{0}")]
    Service(String),
    #[error("the node stops")]
    Stopping,
}

/// Makes backups whenever they are due and this node leads. Returns when the node has ended.
pub(crate) async fn keep_schedule(schedule: BackupSchedule, front: Arc<Front>) {
    let mut state = front.state();
    observe::backups_are_scheduled();
    loop {
        let leads = |state: &ReplicaStatus| matches!(state, ReplicaStatus::Ready | ReplicaStatus::Ended);
        if *state.borrow() != ReplicaStatus::Ready {
            front.set_backup_error(String::new());
        }
        match state.wait_for(leads).await.map(|state| *state) {
            Ok(ReplicaStatus::Ready) => {}
            _ => return,
        }
        let wait = match back_up_if_due(&schedule, &front).await {
            Ok(wait) => {
                front.set_backup_error(String::new());
                wait
            }
            Err(BackupFailure::Stopping) => return,
            // Another node leads, and makes it.
            Err(BackupFailure::Service(_)) if *state.borrow() != ReplicaStatus::Ready => continue,
            Err(failure) => {
                observe::backup_failed();
                let text = failure.to_string();
                // Once for each reason: the metric counts the attempts.
                if front.set_backup_error(text.clone()) != text {
                    let directory = schedule.directory.display();
                    tracing::error!("no backup in `{directory}`, it is tried again: {text}");
                }
                CHECK_EVERY.min(schedule.every)
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Makes a backup if one is due; returns when to check again.
async fn back_up_if_due(schedule: &BackupSchedule, front: &Arc<Front>) -> Result<Duration, BackupFailure> {
    let listed = schedule.clone();
    let now = SystemTime::now();
    let newest = blocking(move || Ok(listed.until(now)?.pop().map(|(time, _)| time))).await?;
    let left = newest.map_or(Duration::ZERO, |newest| schedule.left(newest, now));
    if let Some(newest) = newest {
        observe::last_backup(newest);
    }
    if !left.is_zero() {
        return Ok(left.min(CHECK_EVERY));
    }
    let (node, stopping) = (front.node(), front.stopping());
    let parts = front.own_backup().await.map_err(|status| match stopping.is_cancelled() {
        true => BackupFailure::Stopping,
        false => BackupFailure::Service(status.message().to_owned()),
    })?;
    let written = schedule.clone();
    let (path, bytes) = blocking(move || written.write(parts, node, now, &stopping)).await?;
    observe::backup_done(now);
    tracing::info!(bytes, "backup `{}` is written and read back", path.display());
    let pruned = schedule.clone();
    blocking(move || pruned.prune(now)).await?;
    Ok(schedule.every.min(CHECK_EVERY))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupFailure> + Send + 'static,
) -> Result<T, BackupFailure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(BackupFailure::Service(format!("a bug: {error}"))))
}

impl BackupSchedule {
    /// The time until the next backup.
    fn left(&self, newest: SystemTime, now: SystemTime) -> Duration {
        now.duration_since(newest).map_or(Duration::ZERO, |age| self.every.saturating_sub(age))
    }

    /// The backups in the directory, the oldest first. Those of the future are of a clock that was wrong:
    /// they say nothing about when the next one is due, and take no other's place.
    fn until(&self, now: SystemTime) -> Result<Vec<(SystemTime, PathBuf)>, BackupFailure> {
        let mut stored = self.stored()?;
        stored.retain(|(time, _)| *time <= now);
        Ok(stored)
    }

    /// All backups in the directory, the oldest first.
    fn stored(&self) -> Result<Vec<(SystemTime, PathBuf)>, BackupFailure> {
        let failed = io_failure("cannot list", &self.directory);
        let mut stored = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            if let Some(time) = entry.file_name().to_str().and_then(time_of) {
                stored.push((time, entry.path()));
            }
        }
        stored.sort_unstable();
        Ok(stored)
    }

    /// Writes a backup; returns its path and its size in bytes.
    fn write(
        &self,
        mut parts: BackupParts<DataDirectory>,
        node: u64,
        now: SystemTime,
        stopping: &CancellationToken,
    ) -> Result<(PathBuf, u64), BackupFailure> {
        // A node has one such file at most, also after a crash.
        let partial = self.directory.join(format!(".{PREFIX}node{node}.partial"));
        let failed = io_failure("cannot write", &partial);
        let mut options = OpenOptions::new();
        // It has labels and values of holders.
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial).map_err(&failed)?;
        let mut bytes = 0;
        while let Some(part) = parts.next_part()? {
            if stopping.is_cancelled() {
                return Err(BackupFailure::Stopping);
            }
            file.write_all(&part).map_err(&failed)?;
            bytes += part.len() as u64;
        }
        file.sync_all().map_err(&failed)?;
        drop(file);
        check(&partial)?;
        let path = self.directory.join(name(now, node));
        fs::rename(&partial, &path).map_err(&failed)?;
        let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
        synced.map_err(io_failure("cannot sync", &self.directory))?;
        Ok((path, bytes))
    }

    /// Removes the oldest backups, but for [`BackupSchedule::keep`].
    fn prune(&self, now: SystemTime) -> Result<(), BackupFailure> {
        let mut stored = self.until(now)?;
        stored.truncate(stored.len().saturating_sub(self.keep));
        for (_, path) in stored {
            match fs::remove_file(&path) {
                // Another node has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(io_failure("cannot remove the old backup", &path))?,
            }
        }
        Ok(())
    }
}

fn io_failure<'path>(doing: &'static str, path: &'path Path) -> impl Fn(io::Error) -> BackupFailure + 'path {
    move |source| BackupFailure::Io { doing, path: path.to_owned(), source }
}

fn name(time: SystemTime, node: u64) -> String {
    let time = humantime::format_rfc3339_seconds(time).to_string().replace(':', "-");
    format!("{PREFIX}{time}-node{node}{SUFFIX}")
}

/// The time in the name of a backup; `None` for other files, which are never removed.
fn time_of(name: &str) -> Option<SystemTime> {
    let rest = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (time, node) = rest.split_at_checked(TIME_CHARS)?;
    node.strip_prefix("-node")?.parse::<u64>().ok()?;
    let character = |(at, byte)| if COLONS.contains(&at) { ':' } else { char::from(byte) };
    humantime::parse_rfc3339(&time.bytes().enumerate().map(character).collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    #[test]
    fn names_of_backups_give_their_times_and_no_other_names_do() {
        assert_eq!(name(at(0), 3), "lockkeeper-2027-01-15T08-00-00Z-node3.backup");
        assert_eq!(time_of(&name(at(0), 3)), Some(at(0)));
        for other in [
            "lockkeeper-2027-01-15T08-00-00Z-node3.backup.old",
            "lockkeeper-2027-01-15T08-00-00Z.backup",
            "lockkeeper-2027-01-15-node3.backup",
            "lockkeeper-2027-01-15Tää-00-00-node3.backup",
            "lockkeeper-2027-01-15T08ä00-00Z-node3.backup",
            ".lockkeeper-node3.partial",
            "locks",
        ] {
            assert_eq!(time_of(other), None, "{other}");
        }
    }

    #[test]
    fn oldest_backups_are_removed_and_no_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let schedule = BackupSchedule {
            every: Duration::from_secs(60),
            directory: directory.path().to_owned(),
            keep: 2,
        };
        for file in
            [&*name(at(1), 1), &name(at(2), 2), &name(at(3), 1), &name(at(4), 10), &name(at(90), 1), "locks"]
        {
            fs::write(directory.path().join(file), "").unwrap();
        }
        schedule.prune(at(5)).unwrap();
        let kept: Vec<_> = schedule.stored().unwrap().into_iter().map(|(time, _)| time).collect();
        assert_eq!(kept, [at(3), at(4), at(90)], "that of a wrong clock takes no place");
        assert_eq!(schedule.until(at(5)).unwrap().pop().unwrap().0, at(4));
        assert!(directory.path().join("locks").exists());
    }

    #[test]
    fn next_backup_is_due_an_interval_after_the_newest() {
        let schedule = BackupSchedule { every: Duration::from_secs(60), directory: PathBuf::new(), keep: 1 };
        assert_eq!(schedule.left(at(0), at(20)), Duration::from_secs(40));
        assert_eq!(schedule.left(at(0), at(90)), Duration::ZERO);
    }
}
