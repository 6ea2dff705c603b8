//! What the locks protect: files behind the file fence, each with one version at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::once::{FileRecords, OnceError};
use lockkeeper::{AcquireError, HoldError, Lock, Token};
use lockkeeper_fence::Section;
use lockkeeper_fence::file::{FileError, FileFence};
use lockkeeper_history::{
    EnteredEvent, FenceVerdict, HistoryEvent, HistoryWriter, ReadEvent, WriteOutcome, WroteEvent,
};

use tokio::time::sleep;

use super::answers;
use super::claims::WorkerClock;
use crate::mutant::ChaosMutant;

/// The files of all workers.
#[derive(Clone)]
pub(crate) struct Ledger(pub(super) Arc<LedgerInner>);

pub(super) struct LedgerInner {
    pub(super) history: HistoryWriter,
    pub(super) clock: WorkerClock,
    pub(super) service: String,
    folder: PathBuf,
    by: String,
    versions: AtomicU64,
    pub(super) mutant: Option<ChaosMutant>,
}

impl Ledger {
    /// `by`: unique for this process.
    pub(crate) fn new(
        (history, clock): (HistoryWriter, WorkerClock),
        service: String,
        folder: &Path,
        by: String,
        mutant: Option<ChaosMutant>,
    ) -> Self {
        let folder = folder.to_owned();
        Self(Arc::new(LedgerInner {
            history,
            clock,
            service,
            folder,
            by,
            versions: AtomicU64::new(0),
            mutant,
        }))
    }

    /// A section: enters, reads the version, takes its time, and writes a new version.
    pub(crate) async fn section(&self, lock: &str, section: Section, takes: Duration) {
        let (inner, lock) = (Arc::clone(&self.0), lock.to_owned());
        // The fence waits for files and other processes.
        let _ = tokio::task::spawn_blocking(move || inner.section(&lock, section, takes)).await;
    }

    /// Runs [`Lock::once`], and writes it to the history as a resource: the work is a write of the first
    /// version, a record that is there already is a read. Work that was recorded twice is a lost update.
    pub(crate) async fn once(&self, name: &str, lock: &Lock, takes: Duration) -> Result<(), AcquireError> {
        let inner = &self.0;
        let records = FileRecords::new(inner.folder.join("once"));
        let (mut attempted, asked) = (None, inner.clock.now());
        let once = lock.once::<_, OnceError>(name, &records, async |attempt| {
            attempted = Some(attempt.id().to_owned());
            sleep(takes).await;
            Ok(attempt.id().as_bytes().to_vec())
        });
        let once = once.await;
        let resource = name.replace('/', "_");
        let (outcome, failed) = match once {
            Ok(once) if !once.is_new => {
                inner.has_read(&resource, asked, &String::from_utf8_lossy(&once.outcome));
                return Ok(());
            }
            Ok(_) => (WriteOutcome::Done, None),
            // Another one was first: this work is recorded nowhere.
            Err(OnceError::Twice { .. }) => (WriteOutcome::Stale, None),
            Err(OnceError::Hold(HoldError::NotAcquired(error))) => (WriteOutcome::Unknown, Some(error)),
            Err(_) => (WriteOutcome::Unknown, None),
        };
        if let Some(made) = attempted {
            let (service, lock, saw) = (inner.service.clone(), name.into(), String::new());
            // No fence has seen the token.
            let wrote = WroteEvent { resource, service, lock, token: None, asked, saw, made, outcome };
            inner.history.write(inner.clock.now(), HistoryEvent::Wrote(wrote));
        }
        failed.map_or(Ok(()), Err)
    }

    /// A shared section: enters and reads.
    pub(crate) async fn reads(&self, lock: &str, section: Section) {
        let (inner, lock) = (Arc::clone(&self.0), lock.to_owned());
        let _ = tokio::task::spawn_blocking(move || {
            let (resource, fence) = inner.resource(&lock, section)?;
            inner.mark_goes_back(&fence)?;
            fence.enter(section)?;
            inner.read(&resource, &fence).map(drop)
        })
        .await;
    }
}

impl LedgerInner {
    /// Permits of different slots may write at once, each to a file of its own.
    fn resource(&self, lock: &str, section: Section) -> Result<(String, FileFence), FileError> {
        let slot = section.slot().map_or_else(String::new, |slot| format!("#{slot}"));
        let resource = format!("{}{slot}", lock.replace('/', "_"));
        let fence = FileFence::new(self.folder.join(&resource))?.wait_at_most(Duration::from_secs(5));
        Ok((resource, fence))
    }

    fn section(&self, lock: &str, section: Section, takes: Duration) -> Result<(), FileError> {
        let (resource, fence) = self.resource(lock, section)?;
        let is_unfenced = self.mutant == Some(ChaosMutant::NoFence);
        let is_late = self.mutant == Some(ChaosMutant::LateEnter);
        if !is_unfenced && !is_late && !self.enter(lock, &resource, &fence, section)? {
            return Ok(());
        }
        let saw = self.read(&resource, &fence)?;
        thread::sleep(takes);
        if is_late && !self.enter(lock, &resource, &fence, section)? {
            return Ok(());
        }
        self.mark_goes_back(&fence)?;
        let made = self.new_version();
        let asked = self.clock.now();
        let outcome = if is_unfenced {
            let new = self.folder.join(format!("{made}.new"));
            let wrote = answers::replace(fence.path(), &new, &made);
            wrote.map_or(WriteOutcome::Unknown, |()| WriteOutcome::Done)
        } else {
            answers::outcome(&fence.write(section, made.as_bytes()))
        };
        let event = WroteEvent {
            resource,
            service: self.service.clone(),
            lock: lock.into(),
            token: (!is_unfenced).then_some(section.token().get()),
            asked,
            saw,
            made,
            outcome,
        };
        self.history.write(self.clock.now(), HistoryEvent::Wrote(event));
        Ok(())
    }

    /// Planted: before each call, the marks of the fence are old ones.
    fn mark_goes_back(&self, fence: &FileFence) -> Result<(), FileError> {
        let oldest = Token::new(1).filter(|_| self.mutant == Some(ChaosMutant::OldMarks));
        oldest.map_or(Ok(()), |oldest| fence.reset(oldest))
    }

    fn enter(
        &self,
        lock: &str,
        resource: &str,
        fence: &FileFence,
        section: Section,
    ) -> Result<bool, FileError> {
        self.mark_goes_back(fence)?;
        let asked = self.clock.now();
        let verdict = answers::verdict(&fence.enter(section));
        let (resource, token) = (resource.to_owned(), section.token().get());
        let (service, lock) = (self.service.clone(), lock.into());
        self.history.write(
            self.clock.now(),
            HistoryEvent::Entered(EnteredEvent { resource, service, lock, token, asked, verdict }),
        );
        Ok(verdict == FenceVerdict::Accepted)
    }

    fn read(&self, resource: &str, fence: &FileFence) -> Result<String, FileError> {
        let asked = self.clock.now();
        let bytes = fence.read()?.unwrap_or_default();
        let version = String::from_utf8_lossy(&bytes).into_owned();
        self.has_read(resource, asked, &version);
        Ok(version)
    }

    /// A version that no other section makes.
    pub(super) fn new_version(&self) -> String {
        format!("{}-{}", self.by, self.versions.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes to the history that a section has read this version.
    pub(super) fn has_read(&self, resource: &str, asked: u64, version: &str) {
        let read = ReadEvent { resource: resource.into(), asked, version: version.into() };
        self.history.write(self.clock.now(), HistoryEvent::Read(read));
    }
}
