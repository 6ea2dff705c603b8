//! The audit trail: who has broken a hold, set a limit, changed the cluster, and who was refused. One JSON
//! object per line in a file, and the same in the log.
//!
//! Responsible for: the record of an operator's command is on disk before the command is answered; records
//! are in the order of their events; the files' size is bounded; refusals, which anybody can cause, are
//! limited in rate, and those left out are counted. A disk that does not answer delays only callers that wait
//! for their records.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use lockkeeper_core::LockName;
use lockkeeper_wire::v1;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::access::Identity;
use crate::error::FileError;
use crate::observe;
use crate::refusals::{self, Refusals};

/// The size in bytes at which a file is renamed to `FILE.1`, and a new one begins.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// How many renamed files are kept, as `FILE.1` to `FILE.4`.
const KEPT: u32 = 4;
/// Most records that wait for the disk; further refusals are left out and counted.
const QUEUE_MAX: usize = 256;
/// How many of the newest records are kept in memory, to be shown; half of them at most are refusals, which
/// anybody can cause.
const RECENT_MAX: usize = 1_000;
/// How many bytes of the end of the file are read at the start, to fill that memory.
const TAIL_BYTES: u64 = 256 << 10;

/// A line of the trail. Fields that do not apply are left out.
#[derive(Clone, Default, Debug, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct AuditRecord {
    pub(crate) what: Cow<'static, str>,
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

/// A record and its time, as a line of the file.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Line {
    time: String,
    #[serde(flatten)]
    record: AuditRecord,
}

/// The trail of a node.
pub(crate) struct Audit {
    /// To the thread that writes the file. `None`: records are in the log only.
    queue: Option<mpsc::Sender<PendingRecord>>,
    refusals: Mutex<HashMap<&'static str, Refusals>>,
    recent: Mutex<Recent>,
    /// Why the last record could not be written.
    error: Arc<Mutex<Option<String>>>,
}

/// The newest records.
#[derive(Default)]
struct Recent {
    /// The oldest first, with their numbers.
    lines: VecDeque<(u64, Line)>,
    /// The number of the last one.
    last: u64,
    refusals: usize,
}

impl Recent {
    /// No records. Numbers begin at the time in milliseconds, so those of a later process are higher.
    fn new(now: SystemTime) -> Self {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { last: u64::try_from(since.as_millis()).unwrap_or(0), ..Self::default() }
    }

    fn push(&mut self, line: Line) {
        self.last += 1;
        self.refusals += usize::from(line.record.is_refusal());
        self.lines.push_back((self.last, line));
        let refusal = |(_, line): &(u64, Line)| line.record.is_refusal();
        let oldest =
            if self.refusals > RECENT_MAX / 2 { self.lines.iter().position(refusal) } else { Some(0) };
        if self.refusals > RECENT_MAX / 2 || self.lines.len() > RECENT_MAX {
            let gone = oldest.and_then(|oldest| self.lines.remove(oldest));
            self.refusals -= usize::from(gone.is_some_and(|(_, line)| line.record.is_refusal()));
        }
    }
}

/// A record on its way to the file.
struct PendingRecord {
    line: Line,
    /// Whether it must be on disk before the next one is written.
    sync: bool,
    /// The sender to the task that waits until the record is written.
    written: Option<oneshot::Sender<io::Result<()>>>,
}

/// The file of a trail, and how long it is.
pub(crate) struct AuditFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Audit {
    /// Opens the file to append to it; created if it does not exist, for its owner only.
    ///
    /// # Errors
    /// The file can't be written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Arc<Self>, FileError> {
        let mut recent = Recent::new(SystemTime::now());
        let error = Arc::<Mutex<Option<String>>>::default();
        let queue = path.map(|path| {
            let failed = |source| FileError::Write { file: path.to_owned(), source };
            let mut file = AuditFile::open(path).map_err(failed)?;
            file.tail().map_err(failed)?.into_iter().for_each(|line| recent.push(line));
            let (queue, records) = mpsc::channel(QUEUE_MAX);
            let writer = thread::Builder::new().name("audit".to_owned());
            let error = error.clone();
            writer.spawn(move || write_records(file, records, &error)).map_err(failed)?;
            Ok(queue)
        });
        Ok(Arc::new(Self {
            queue: queue.transpose()?,
            refusals: Mutex::default(),
            recent: Mutex::new(recent),
            error,
        }))
    }

    /// Why the last record could not be written to the file; `None`: it was written, or there is no file.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// The newest of the records that are kept in memory, of names at and below `prefix`: at most `max`, with
    /// numbers below `before`.
    pub(crate) fn recent(
        &self,
        prefix: Option<&LockName>,
        max: usize,
        before: Option<u64>,
    ) -> v1::AuditResponse {
        let recent = self.recent.lock();
        let is_below =
            |name: &str| prefix.is_none_or(|prefix| name == prefix.as_str() || prefix.is_above(name));
        let wanted = recent.lines.iter().rev().filter(|(number, line)| {
            before.is_none_or(|before| *number < before) && is_below(&line.record.name)
        });
        let mut records: Vec<v1::AuditRecord> =
            wanted.take(max + 1).map(|(number, line)| line.shown(*number)).collect();
        let has_more = records.len() > max;
        records.truncate(max);
        let next_before = if has_more { records.last().map_or(0, |last| last.number) } else { 0 };
        v1::AuditResponse { records, next_before, node: 0 }
    }

    /// The line of a record, of which a copy is kept in memory.
    fn line(&self, record: AuditRecord) -> Line {
        let mut recent = self.recent.lock();
        let line = Line::new(SystemTime::now(), record);
        recent.push(line.clone());
        line
    }

    /// Appends a record; returns once it is on disk.
    ///
    /// # Errors
    /// The file can't be written. The record is in the log all the same.
    pub(crate) async fn done(&self, record: AuditRecord) -> io::Result<()> {
        record.log();
        let line = self.line(record);
        let Some(queue) = &self.queue else { return Ok(()) };
        let (written, result) = oneshot::channel();
        let gone = || io::Error::other("the thread that writes it has ended");
        queue.send(PendingRecord { line, sync: true, written: Some(written) }).await.map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }

    /// Adds a record, without waiting for the disk.
    pub(crate) fn note(&self, record: AuditRecord) {
        record.log();
        let line = self.line(record);
        self.enqueue(PendingRecord { line, sync: true, written: None });
    }

    /// Records that a caller was refused, unless too many were, by [`Refusals`].
    pub(crate) fn refused(&self, what: &'static str, identity: &Identity, address: &str, why: &str) {
        observe::refused(what);
        let (mut kinds, now) = (self.refusals.lock(), Instant::now());
        let refusals = kinds.entry(what).or_insert_with(|| Refusals::new(now));
        if !refusals.is_recorded(&refusals::caller(identity, address), now) {
            return;
        }
        let left_out = std::mem::take(&mut refusals.left_out);
        let detail =
            if left_out > 0 { format!("and {left_out} of any callers before it") } else { String::new() };
        tracing::warn!(?address, left_out, "refused: {why:?}");
        let record = AuditRecord {
            what: what.into(),
            identity: identity.to_string(),
            address: address.to_owned(),
            detail,
            reason: why.to_owned(),
            result: "refused".to_owned(),
            ..AuditRecord::default()
        };
        let line = self.line(record);
        if !self.enqueue(PendingRecord { line, sync: false, written: None }) {
            refusals.left_out = left_out + 1;
        }
    }

    /// Whether there was room in the queue.
    fn enqueue(&self, pending: PendingRecord) -> bool {
        let Some(queue) = &self.queue else { return true };
        let result = queue.try_send(pending);
        if let Err(mpsc::error::TrySendError::Full(pending)) = &result {
            tracing::error!(
                what = &*pending.line.record.what,
                "a record is missing in the audit trail: its disk does not answer"
            );
            *self.error.lock() = Some("its disk does not answer".to_owned());
            observe::audit_failed();
        }
        result.is_ok()
    }
}

impl AuditRecord {
    /// Whether a caller was refused before anything was ordered.
    fn is_refusal(&self) -> bool {
        matches!(&*self.what, "denied" | "unauthenticated" | "quota")
    }

    fn log(&self) {
        let Self { what, identity, address, name, token, detail, reason, result } = self;
        // Quoted: a text from a client must not look like another line of the log.
        let of = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
        let token = token.map_or_else(String::new, |token| format!(", token {token}"));
        let by = if identity.is_empty() { String::new() } else { format!(", by {identity:?}") };
        let texts = [detail, reason].into_iter().filter(|text| !text.is_empty());
        let texts: String = texts.map(|text| format!("{text:?}: ")).collect();
        tracing::info!(address, "{what}{of}{token}{by}: {texts}{result}");
    }
}

impl Line {
    pub(crate) fn new(time: SystemTime, record: AuditRecord) -> Self {
        Self { time: humantime::format_rfc3339_millis(time).to_string(), record }
    }

    fn shown(&self, number: u64) -> v1::AuditRecord {
        let Self { time, record } = self.clone();
        let AuditRecord { what, identity, address, name, token, detail, reason, result } = record;
        let what = what.into_owned();
        v1::AuditRecord { number, time, what, identity, address, name, token, detail, reason, result }
    }
}

/// Writes records until the trail is dropped.
fn write_records(
    mut file: AuditFile,
    mut queue: mpsc::Receiver<PendingRecord>,
    last_error: &Mutex<Option<String>>,
) {
    while let Some(pending) = queue.blocking_recv() {
        let result = file.append(&pending.line, pending.sync);
        if let Err(error) = &result {
            tracing::error!(%error, "the audit trail can't be written: {error}");
            observe::audit_failed();
        }
        *last_error.lock() = result.as_ref().err().map(ToString::to_string);
        if let Some(written) = pending.written {
            // Fails if the caller has stopped waiting.
            let _ = written.send(result);
        }
    }
}

impl AuditFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = append_to(path)?;
        let mut bytes = file.metadata()?.len();
        // A record that a crash has cut off must not spoil the next one.
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                bytes += 1;
            }
        }
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    /// The last records.
    fn tail(&mut self) -> io::Result<Vec<Line>> {
        if self.bytes == 0 {
            // A device or a pipe can't be read again.
            return Ok(Vec::new());
        }
        let start = self.bytes.saturating_sub(TAIL_BYTES);
        let mut tail = Vec::new();
        self.file.seek(SeekFrom::Start(start))?;
        (&self.file).take(TAIL_BYTES).read_to_end(&mut tail)?;
        // The first line may have been cut, and the last of a process that crashed: neither is JSON then.
        let lines = tail.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    pub(crate) fn append(&mut self, line: &Line, sync: bool) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        if self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(&line) {
            // Part of the line may be there, if the disk is full.
            self.file.set_len(self.bytes)?;
            return Err(error);
        }
        self.bytes += line.len() as u64;
        if sync { self.file.sync_data() } else { Ok(()) }
    }

    /// Renames the files, and begins a new one. May be repeated after a failure.
    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        // Otherwise an earlier call has renamed it, and could not begin a new one.
        if self.path.try_exists()? {
            for number in (1..KEPT).rev() {
                match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            fs::rename(&self.path, numbered(&self.path, 1))?;
        }
        self.file = append_to(&self.path)?;
        self.bytes = self.file.metadata()?.len();
        Ok(())
    }
}

/// Opens a file to append to it; a new one is in its directory, on disk, when this returns.
fn append_to(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()?;
    Ok(file)
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
        let record = AuditRecord {
            what: "break".into(),
            reason: reason.clone(),
            token: Some(7),
            ..AuditRecord::default()
        };
        audit.done(record).await.unwrap();
        let lines = lines(&path);
        assert_eq!(lines.len(), 1);
        assert_eq!((&lines[0]["what"], &lines[0]["token"]), (&"break".into(), &7.into()));
        assert_eq!(lines[0]["reason"], reason);
        assert!(lines[0]["time"].as_str().is_some_and(|time| time.ends_with('Z')));
    }

    #[tokio::test]
    async fn refusals_are_limited_by_kind_and_those_left_out_are_counted() {
        let audit = Audit::open(None).unwrap();
        let refuse = |what| audit.refused(what, &Identity::ANONYMOUS, "", "no");
        (0..refusals::OF_CALLER_MAX + 500).for_each(|_| refuse("denied"));
        refuse("unauthenticated");
        // As if it had begun a period ago.
        audit.refusals.lock().get_mut("denied").unwrap().since -= refusals::PERIOD;
        refuse("denied");
        let records = audit.recent(None, RECENT_MAX, None).records;
        assert_eq!(records.len(), refusals::OF_CALLER_MAX as usize + 2);
        assert_eq!(
            (&*records[1].what, &*records[0].detail),
            ("unauthenticated", "and 500 of any callers before it")
        );
    }

    fn numbered_record(number: u64) -> AuditRecord {
        AuditRecord { token: Some(number), ..AuditRecord::default() }
    }

    #[tokio::test]
    async fn newest_records_are_kept_and_numbered_in_order() {
        let audit = Audit::open(None).unwrap();
        for number in 0..RECENT_MAX as u64 + 5 {
            audit.done(AuditRecord { name: "a/b".to_owned(), ..numbered_record(number) }).await.unwrap();
        }
        let newest = audit.recent(None, 2, None);
        let [last, before_it] = &newest.records[..] else { panic!("{newest:?}") };
        assert_eq!((last.token, before_it.token), (Some(1_004), Some(1_003)));
        assert_eq!(newest.next_before, before_it.number);
        let mut all = Vec::new();
        let mut before = None;
        loop {
            let page = audit.recent(Some(&LockName::parse("a").unwrap()), 300, before);
            all.extend(page.records.into_iter().map(|record| record.token.unwrap()));
            if page.next_before == 0 {
                break;
            }
            before = Some(page.next_before);
        }
        assert!(all.into_iter().eq((5..1_005).rev()));
        assert!(audit.recent(Some(&LockName::parse("a/bc").unwrap()), 10, None).records.is_empty());
    }

    #[tokio::test]
    async fn refusals_push_no_orders_out_of_memory() {
        let audit = Audit::open(None).unwrap();
        audit.done(AuditRecord { what: "break".into(), ..numbered_record(1) }).await.unwrap();
        for number in 0..3 * RECENT_MAX as u64 {
            audit.note(AuditRecord { what: "denied".into(), ..numbered_record(number) });
        }
        let kept = audit.recent(None, 2 * RECENT_MAX, None).records;
        assert_eq!(kept.len(), RECENT_MAX / 2 + 1);
        assert_eq!((&*kept[0].what, kept[0].token), ("denied", Some(2_999)));
        assert_eq!((&*kept.last().unwrap().what, kept.last().unwrap().token), ("break", Some(1)));
    }

    #[test]
    fn record_that_a_crash_has_cut_off_does_not_spoil_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, "{\"what\":\"bre").unwrap();
        AuditFile::open(&path)
            .unwrap()
            .append(&Line::new(SystemTime::now(), numbered_record(7)), true)
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(last["token"], 7);
    }

    /// `/dev/full` takes no byte.
    #[tokio::test]
    async fn record_that_is_not_written_is_an_error() {
        let audit = Audit::open(Some(Path::new("/dev/full"))).unwrap();
        assert!(audit.done(numbered_record(1)).await.is_err());
    }

    #[test]
    fn rotation_that_failed_half_way_loses_no_file_when_it_is_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::open(&path).unwrap();
        file.append(&Line::new(SystemTime::now(), numbered_record(1)), true).unwrap();
        // The state after a rotation that could not open the new file.
        fs::rename(&path, numbered(&path, 1)).unwrap();
        file.bytes = FILE_BYTES_MAX;
        file.append(&Line::new(SystemTime::now(), numbered_record(2)), true).unwrap();
        assert_eq!(lines(&path)[0]["token"], 2);
        assert_eq!(lines(&numbered(&path, 1))[0]["token"], 1);
        assert!(!numbered(&path, 2).exists());
    }

    #[test]
    fn files_are_renamed_at_their_limit_and_only_some_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut file = AuditFile::open(&path).unwrap();
        for number in 0..u64::from(KEPT) + 3 {
            file.bytes = FILE_BYTES_MAX;
            file.append(&Line::new(SystemTime::now(), numbered_record(number)), true).unwrap();
        }
        assert_eq!(lines(&path)[0]["token"], 6);
        assert_eq!(lines(&numbered(&path, 1))[0]["token"], 5);
        assert_eq!(lines(&numbered(&path, KEPT))[0]["token"], 2);
        assert!(!numbered(&path, KEPT + 1).exists());
    }
}
