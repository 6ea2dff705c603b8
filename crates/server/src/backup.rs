//! Backups as files: inspection, and restore into the data directory of a new cluster.
//!
//! Responsible for: a file is read to its end and verified before anything is written; a backup is restored
//! only into a directory that is empty or has an unfinished restore; the new cluster's tokens are above all
//! that the old cluster issued, also after the backup was taken (P2, T1).

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{Restorer, Table, limits};
use lockkeeper_replica::restore::{Dropped, end_old_life, write};
use lockkeeper_replica::storage::{self, BackupError, BackupReader, OpenError};
use lockkeeper_wire::store::{Founding, Member};

use crate::audit::{AuditFile, AuditRecord, Line};
use crate::data::{first_tokens, id, random};
use crate::disk::{DataDirectory, DataFile, names_in};
use crate::error::ServeError;
use crate::hex::hex;

/// A summary of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// The id of the cluster whose table the backup contains, as text.
    pub cluster: String,
    /// The node that sent the backup.
    pub node: u64,
    /// The last entry of that cluster's log that the backup includes.
    pub index: u64,
    /// The last token that was issued.
    pub last_token: u64,
    /// When the backup was taken, by that node's wall clock.
    pub taken: SystemTime,
    /// Live sessions.
    pub sessions: usize,
    /// Holds, waiters and closed holds.
    pub requests: usize,
}

/// The source and the target of a restore.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The backup.
    pub file: PathBuf,
    /// A directory that is empty, missing, or has an unfinished restore.
    pub data: PathBuf,
    /// The id of the new cluster's only node.
    pub node: u64,
    /// An additional lower bound: the new cluster's tokens are also above this number.
    pub tokens_above: Option<u64>,
    /// A file of an audit trail, which gets a record.
    pub audit: Option<PathBuf>,
    /// The author of the restore, for the audit record. The command must supply it: no node is running that
    /// would have authenticated the caller.
    pub by: String,
    /// The present time.
    pub now: SystemTime,
}

/// The result of a restore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// The summary of the backup.
    pub contents: Contents,
    /// The id of the new cluster, as text.
    pub cluster: String,
    /// The new cluster's tokens are above this number.
    pub tokens_above: u64,
    /// The parts of the backup's table that were dropped, and those that were kept.
    pub dropped: Dropped,
}

/// The reason why a restore failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The file can't be read as a backup.
    #[error("{}", with_cause(_0))]
    File(#[from] BackupError),
    /// The file's checksums are right, but its content is not a valid table.
    #[error(
        "`{}` can't be restored, though its checksums are right: {why}. This is a bug of ours, or of the program that \
         wrote it: keep the file, and use the version that wrote it",
        file.display()
    )]
    Table {
        /// The backup.
        file: PathBuf,
        /// The fault of the file.
        why: String,
    },
    /// The directory is not empty.
    #[error(
        "`{}` is not empty: `{found}` is there. A backup is restored into an empty directory only: give another, or \
         empty this one if nothing in it is needed",
        data.display()
    )]
    NotEmpty {
        /// The directory.
        data: PathBuf,
        /// The name of an entry of the directory.
        found: String,
    },
    /// The wall clock is behind the backup.
    #[error(
        "this machine's clock is {behind:?} behind the backup, which was taken in its future: tokens could be issued \
         again. Set the clock, or say `--tokens-above N` with the highest token that was ever issued"
    )]
    ClockBehind {
        /// The difference between the two clocks.
        behind: Duration,
    },
    /// The directory can't be written.
    #[error(
        "the restore into `{}` is not finished, and no node starts with it: {}. Run it again with the same directory",
        data.display(), with_cause(source)
    )]
    Storage {
        /// The directory.
        data: PathBuf,
        /// What failed.
        source: OpenError,
    },
    /// The file of the audit trail can't be written.
    #[error("`{}` can't be written: {source}; {}", file.display(), match is_done {
        true => "the backup is restored all the same, without a record",
        false => "nothing was restored",
    })]
    Audit {
        /// The file.
        file: PathBuf,
        /// What failed.
        source: io::Error,
        /// Whether the backup is restored.
        is_done: bool,
    },
    /// The directory can't be read or owned, there is no valid first token, or the system's random number
    /// generator failed.
    #[error(transparent)]
    Node(#[from] ServeError),
}

/// Reads a backup to its end, as a restore would, and summarizes it.
///
/// # Errors
/// [`RestoreError::File`], [`RestoreError::Table`].
pub fn inspect(file: &Path) -> Result<Contents, RestoreError> {
    read(file).map(|(contents, _)| contents)
}

/// Reads a backup to its end: it is complete, and all its checksums are right. Unlike [`inspect`], this needs
/// no memory for a second table.
pub(crate) fn check(file: &Path) -> Result<(), BackupError> {
    let name = file.display().to_string();
    let failed = |source| BackupError::Io { doing: "open", file: name.clone(), source };
    let mut backup = BackupReader::open(DataFile::elsewhere(file).map_err(failed)?, &name)?;
    while backup.next_piece()?.is_some() {}
    Ok(())
}

/// Makes a cluster of one node from a backup.
///
/// # Errors
/// [`RestoreError`]. Either no data were written, or nodes refuse to start with the directory until another
/// restore finishes.
pub fn restore(what: &Restore) -> Result<Restored, RestoreError> {
    let (contents, mut table) = read(&what.file)?;
    let above = tokens_above(&contents, what.tokens_above, what.now)?;
    let refused = |why: String| RestoreError::Table { file: what.file.clone(), why };
    let dropped = end_old_life(&mut table, above).map_err(refused)?;

    check_empty(&what.data)?;
    let unwritten = |source, is_done| {
        let file = what.audit.clone().unwrap_or_default();
        RestoreError::Audit { file, source, is_done }
    };
    let audit = what.audit.as_deref().map(AuditFile::open).transpose();
    let audit = audit.map_err(|source| unwritten(source, false))?;
    let disk = DataDirectory::own(&what.data).map_err(ServeError::Directory)?;
    let founding = founding(what.node, table.last_token(), table.rules())?;
    write(&disk, storage::LogOptions::default(), &founding, &mut table).map_err(|source| match source {
        OpenError::Founded { file } => RestoreError::NotEmpty { data: what.data.clone(), found: file },
        source => RestoreError::Storage { data: what.data.clone(), source },
    })?;
    let restored =
        Restored { contents, cluster: hex(&founding.cluster), tokens_above: table.last_token(), dropped };
    if let Some(mut audit) = audit {
        audit
            .append(&Line::new(what.now, record(what, &restored)), true)
            .map_err(|source| unwritten(source, true))?;
    }
    Ok(restored)
}

/// The record of a restore.
fn record(what: &Restore, restored: &Restored) -> AuditRecord {
    let detail = format!(
        "cluster {} in `{}` from `{}`, a backup of cluster {}",
        restored.cluster,
        what.data.display(),
        what.file.display(),
        restored.contents.cluster
    );
    AuditRecord {
        what: "restore".into(),
        identity: what.by.clone(),
        detail,
        result: "done".to_owned(),
        ..AuditRecord::default()
    }
}

fn founding(node: u64, tokens_above: u64, rules: u32) -> Result<Founding, ServeError> {
    let incarnation = id()?;
    // The node's addresses are set when it is started.
    let member = Member { node, incarnation: incarnation.clone(), ..Member::default() };
    Ok(Founding { cluster: id()?, node, incarnation, members: vec![member], tokens_above, rules })
}

/// The number above which the new cluster's tokens start: the highest token that the old cluster can have
/// issued by now, if it issued at most one each microsecond since the backup was taken; at least `asked`, and
/// at least the microseconds since 2026. A second restore of the same file is later, so by the same rule its
/// tokens are above those of the first. If the clock is behind the backup, only `asked` and the backup's last
/// token count.
fn tokens_above(contents: &Contents, asked: Option<u64>, now: SystemTime) -> Result<u64, RestoreError> {
    let max = limits::RAISE_TOKENS_MAX;
    let above = match (now.duration_since(contents.taken), asked) {
        (Ok(since), _) => {
            let issued = u64::try_from(since.as_micros()).unwrap_or(max);
            first_tokens(asked, now)?.max(contents.last_token.saturating_add(issued))
        }
        (Err(_), Some(above)) => above.max(contents.last_token),
        (Err(behind), None) => return Err(RestoreError::ClockBehind { behind: behind.duration() }),
    };
    if above > max { Err(ServeError::TokensAbove { above, max }.into()) } else { Ok(above) }
}

fn read(file: &Path) -> Result<(Contents, Table), RestoreError> {
    let name = file.display().to_string();
    let failed = |source| BackupError::Io { doing: "open", file: name.clone(), source };
    let mut backup = BackupReader::open(DataFile::elsewhere(file).map_err(failed)?, &name)?;
    let refused = |why: String| RestoreError::Table { file: file.to_owned(), why };
    let mut restorer = Restorer::new(u64::from_le_bytes(random()?));
    while let Some(piece) = backup.next_piece()? {
        restorer.push(&piece).map_err(|error| refused(error.to_string()))?;
    }
    if restorer.digest().map(u128::to_le_bytes).as_ref().map(<[u8; 16]>::as_slice) != backup.digest() {
        return Err(refused("its digest is another than the one it was written with".to_owned()));
    }
    let table = restorer.finish().map_err(|error| refused(error.to_string()))?;
    let head = backup.head();
    let contents = Contents {
        cluster: hex(&backup.cluster()),
        node: head.node,
        index: head.index,
        last_token: table.last_token(),
        taken: UNIX_EPOCH + Duration::from_micros(head.taken_us),
        sessions: table.sessions().count(),
        requests: table.request_count(),
    };
    Ok((contents, table))
}

/// Called before the directory is owned, since owning creates a file, perhaps in an unrelated directory. A
/// directory with an unfinished restore is accepted here; the storage checks it, since only the storage
/// recognizes that restore's files.
fn check_empty(data: &Path) -> Result<(), RestoreError> {
    let names = names_in(data).map_err(|error| RestoreError::Node(ServeError::Directory(error)))?;
    if names.iter().any(|name| name == storage::RESTORE_MARKER) {
        return Ok(());
    }
    match names.into_iter().next() {
        Some(found) => Err(RestoreError::NotEmpty { data: data.to_owned(), found }),
        None => Ok(()),
    }
}

/// Formats the error, with its cause if it has one.
fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken_at(seconds: u64, last_token: u64) -> Contents {
        Contents {
            cluster: String::new(),
            node: 1,
            index: 1,
            last_token,
            taken: UNIX_EPOCH + Duration::from_secs(seconds),
            sessions: 0,
            requests: 0,
        }
    }

    /// A day after the tokens' epoch, in seconds.
    const DAY: u64 = 1_767_225_600 + 86_400;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn restored_tokens_start_above_the_clock_and_above_all_that_may_have_been_issued_since_the_backup() {
        // The usual case: the counter is far below the microseconds since 2026.
        assert_eq!(tokens_above(&taken_at(DAY, 7), None, at(DAY + 1)).unwrap(), 86_401_000_000);
        // A table that was started with higher tokens: a second later it may have issued a million more.
        let high = 1 << 50;
        assert_eq!(tokens_above(&taken_at(DAY, high), None, at(DAY + 1)).unwrap(), high + 1_000_000);
        assert_eq!(tokens_above(&taken_at(DAY, 7), Some(high), at(DAY + 1)).unwrap(), high);
    }

    #[test]
    fn tokens_of_a_second_restore_are_above_all_that_the_first_can_have_issued() {
        for last_token in [7, 1 << 50] {
            let backup = taken_at(DAY, last_token);
            let first = tokens_above(&backup, None, at(DAY + 10)).unwrap();
            let second = tokens_above(&backup, None, at(DAY + 11)).unwrap();
            assert!(second >= first + 1_000_000, "{first}, {second}");
        }
    }

    #[test]
    fn clock_behind_the_backup_is_refused_without_tokens_above() {
        let backup = taken_at(DAY, 500);
        let text = tokens_above(&backup, None, at(DAY - 3)).unwrap_err().to_string();
        assert!(text.contains("3s behind") && text.contains("--tokens-above"), "{text}");
        assert_eq!(tokens_above(&backup, Some(900), at(DAY - 3)).unwrap(), 900);
        assert_eq!(tokens_above(&backup, Some(9), at(DAY - 3)).unwrap(), 500);
    }

    #[test]
    fn restore_with_tokens_above_the_maximum_is_refused() {
        let text = tokens_above(&taken_at(DAY, 7), Some(u64::MAX), at(DAY)).unwrap_err().to_string();
        assert!(text.contains(&u64::MAX.to_string()), "{text}");
        assert!(tokens_above(&taken_at(DAY, u64::MAX), None, at(DAY)).is_err());
    }
}
