//! The audit trail: who has broken a hold, set a limit, changed the cluster, and who was refused. One JSON object per
//! line in a file, and the same in the log.
//!
//! Responsible for: a break is on disk before its caller gets the answer; the file's size is bounded; refusals, which
//! anybody can cause, are limited in rate, and those left out are counted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::access::Identity;
use crate::files::FileError;

/// The size in bytes at which a file is renamed to `FILE.1`, and a new one begins.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// How many renamed files are kept, as `FILE.1` to `FILE.4`.
const KEPT: u32 = 4;
/// Most refusals that are recorded in [`PERIOD`]. At this rate it takes them more than a week to fill the files, so that
/// nobody can push other records out of them unseen.
const REFUSALS_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// A line of the trail. Fields that do not apply are left out.
#[derive(Clone, Default, Debug, Serialize)]
pub(crate) struct AuditRecord {
    pub(crate) what: &'static str,
    pub(crate) identity: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    /// What exactly was done, or refused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    pub(crate) result: String,
}

#[derive(Serialize)]
struct Line<'record> {
    time: String,
    #[serde(flatten)]
    record: &'record AuditRecord,
}

/// The trail of a node.
pub(crate) struct Audit {
    /// `None`: records are in the log only.
    file: Option<Arc<Mutex<AuditFile>>>,
    refusals: Mutex<Refusals>,
}

struct AuditFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

struct Refusals {
    since: Instant,
    recorded: u32,
    left_out: u64,
}

impl Audit {
    /// Opens the file to append to it; created if it does not exist, for its owner only.
    ///
    /// # Errors
    /// The file can't be written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Arc<Self>, FileError> {
        let file = path.map(AuditFile::open).transpose()?;
        Ok(Arc::new(Self {
            file: file.map(|file| Arc::new(Mutex::new(file))),
            refusals: Mutex::new(Refusals { since: Instant::now(), recorded: 0, left_out: 0 }),
        }))
    }

    /// Records what was done; returns once it is on disk.
    pub(crate) async fn done(&self, record: AuditRecord) {
        let AuditRecord { what, identity, address, name, token, detail, reason, result } = &record;
        // Quoted: a text from a client must not look like another line of the log.
        let of = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
        let token = token.map_or_else(String::new, |token| format!(", token {token}"));
        let texts = [detail, reason].into_iter().filter(|text| !text.is_empty());
        let texts: String = texts.map(|text| format!("{text:?}: ")).collect();
        tracing::info!(address, "{what}{of}{token}, by {identity:?}: {texts}{result}");
        self.write(record, true).await;
    }

    /// Records that a caller was refused, unless too many were within [`PERIOD`].
    pub(crate) fn refused(
        self: &Arc<Self>,
        what: &'static str,
        identity: &Identity,
        address: String,
        why: &str,
    ) {
        let left_out = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            if refusals.since.elapsed() >= PERIOD {
                (refusals.since, refusals.recorded) = (Instant::now(), 0);
            }
            if refusals.recorded >= REFUSALS_MAX {
                refusals.left_out += 1;
                return;
            }
            refusals.recorded += 1;
            std::mem::take(&mut refusals.left_out)
        };
        let detail = if left_out > 0 { format!("and {left_out} before it") } else { String::new() };
        tracing::warn!(?address, left_out, "refused: {why:?}");
        let record = AuditRecord {
            what,
            identity: identity.to_string(),
            address,
            detail,
            reason: why.to_owned(),
            result: "refused".to_owned(),
            ..AuditRecord::default()
        };
        let audit = self.clone();
        tokio::spawn(async move { audit.write(record, false).await });
    }

    async fn write(&self, record: AuditRecord, sync: bool) {
        let Some(file) = self.file.clone() else { return };
        // On a thread of its own: a disk may take long.
        let written = tokio::task::spawn_blocking(move || {
            file.lock().unwrap_or_else(PoisonError::into_inner).append(&record, sync)
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the audit trail can't be written: {error}"),
            // The runtime ends.
            Err(_) => {}
        }
    }
}

impl AuditFile {
    fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { file: path.to_owned(), source };
        let file = append_to(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    fn append(&mut self, record: &AuditRecord, sync: bool) -> io::Result<()> {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut line = serde_json::to_vec(&Line { time, record })?;
        line.push(b'\n');
        if self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            self.rotate()?;
        }
        self.file.write_all(&line)?;
        self.bytes += line.len() as u64;
        if sync { self.file.sync_data() } else { Ok(()) }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        for number in (1..KEPT).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, numbered(&self.path, 1))?;
        self.file = append_to(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn what_was_done_is_in_the_file_and_texts_of_clients_are_no_lines_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(Some(&path)).unwrap();
        let reason = "hangs\n{\"what\":\"break\"}".to_owned();
        audit
            .done(AuditRecord {
                what: "break",
                reason: reason.clone(),
                token: Some(7),
                ..AuditRecord::default()
            })
            .await;
        let lines = lines(&path);
        assert_eq!(lines.len(), 1);
        assert_eq!((&lines[0]["what"], &lines[0]["token"]), (&"break".into(), &7.into()));
        assert_eq!(lines[0]["reason"], reason);
        assert!(lines[0]["time"].as_str().is_some_and(|time| time.ends_with('Z')));
    }

    #[tokio::test]
    async fn refusals_are_limited_and_those_left_out_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = Audit::open(Some(&path)).unwrap();
        let refuse = || audit.refused("denied", &Identity::ANONYMOUS, String::new(), "no");
        (0..REFUSALS_MAX + 500).for_each(|_| refuse());
        audit.refusals.lock().unwrap().since -= PERIOD;
        refuse();
        let deadline = Instant::now() + Duration::from_secs(20);
        while lines(&path).len() <= REFUSALS_MAX as usize {
            assert!(Instant::now() < deadline, "the refusals were to be written");
            tokio::task::yield_now().await;
        }
        let lines = lines(&path);
        assert_eq!(lines.len(), REFUSALS_MAX as usize + 1);
        assert!(lines.iter().any(|line| line["detail"] == "and 500 before it"), "{lines:?}");
    }

    #[test]
    fn files_are_renamed_at_their_limit_and_only_some_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::open(&path).unwrap();
        for number in 0..u64::from(KEPT) + 3 {
            file.bytes = FILE_BYTES_MAX;
            file.append(&AuditRecord { token: Some(number), ..AuditRecord::default() }, true).unwrap();
        }
        assert_eq!(lines(&path)[0]["token"], 6);
        assert_eq!(lines(&numbered(&path, 1))[0]["token"], 5);
        assert_eq!(lines(&numbered(&path, KEPT))[0]["token"], 2);
        assert!(!numbered(&path, KEPT + 1).exists());
    }
}
