//! What the locks protect: files behind the file fence, each with one version at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::BootInstant;
use lockkeeper_fence::Section;
use lockkeeper_fence::file::{FileError, FileFence};
use lockkeeper_history::{
    EnteredEvent, FenceVerdict, HistoryEvent, HistoryWriter, ReadEvent, WriteOutcome, WroteEvent,
};

use super::SERVICE;

/// The files of all workers.
#[derive(Clone)]
pub(crate) struct Ledger(Arc<Inner>);

struct Inner {
    history: HistoryWriter,
    folder: PathBuf,
    by: String,
    versions: AtomicU64,
    is_unfenced: bool,
}

fn now() -> u64 {
    BootInstant::now().as_nanos()
}

impl Ledger {
    /// `by`: unique for this process. Without a fence, whoever has lost its hold writes all the same.
    pub(crate) fn new(history: HistoryWriter, folder: &Path, by: String, is_unfenced: bool) -> Self {
        let folder = folder.to_owned();
        Self(Arc::new(Inner { history, folder, by, versions: AtomicU64::new(0), is_unfenced }))
    }

    /// A section: enters, reads the version, takes its time, and writes a new version.
    pub(crate) async fn section(&self, lock: &str, section: Section, takes: Duration) {
        let (inner, lock) = (Arc::clone(&self.0), lock.to_owned());
        // The fence waits for files and other processes.
        let _ = tokio::task::spawn_blocking(move || inner.section(&lock, section, takes)).await;
    }

    /// A shared section: enters and reads.
    pub(crate) async fn reads(&self, lock: &str, section: Section) {
        let (inner, lock) = (Arc::clone(&self.0), lock.to_owned());
        let _ = tokio::task::spawn_blocking(move || {
            let (resource, fence) = inner.resource(&lock, section)?;
            fence.enter(section)?;
            inner.read(&resource, &fence).map(drop)
        })
        .await;
    }
}

impl Inner {
    /// Permits of different slots may write at once, each to a file of its own.
    fn resource(&self, lock: &str, section: Section) -> Result<(String, FileFence), FileError> {
        let slot = section.slot().map_or_else(String::new, |slot| format!("#{slot}"));
        let resource = format!("{}{slot}", lock.replace('/', "_"));
        let fence = FileFence::new(self.folder.join(&resource))?.wait_at_most(Duration::from_secs(5));
        Ok((resource, fence))
    }

    fn section(&self, lock: &str, section: Section, takes: Duration) -> Result<(), FileError> {
        let (resource, fence) = self.resource(lock, section)?;
        if !self.is_unfenced && !self.enter(lock, &resource, &fence, section)? {
            return Ok(());
        }
        let saw = self.read(&resource, &fence)?;
        thread::sleep(takes);
        let made = format!("{}-{}", self.by, self.versions.fetch_add(1, Ordering::Relaxed));
        let asked = now();
        let outcome = if self.is_unfenced {
            let new = self.folder.join(format!("{made}.new"));
            let wrote = fs::write(&new, &made).and_then(|()| fs::rename(&new, fence.path()));
            wrote.map_or(WriteOutcome::Unknown, |()| WriteOutcome::Done)
        } else {
            match fence.write(section, made.as_bytes()) {
                Ok(()) => WriteOutcome::Done,
                Err(FileError::Refused(_)) => WriteOutcome::Stale,
                Err(_) => WriteOutcome::Unknown,
            }
        };
        let event = WroteEvent {
            resource,
            service: SERVICE.into(),
            lock: lock.into(),
            token: (!self.is_unfenced).then_some(section.token().get()),
            asked,
            saw,
            made,
            outcome,
        };
        self.history.write(now(), HistoryEvent::Wrote(event));
        Ok(())
    }

    fn enter(
        &self,
        lock: &str,
        resource: &str,
        fence: &FileFence,
        section: Section,
    ) -> Result<bool, FileError> {
        let asked = now();
        let entered = fence.enter(section);
        let verdict = match &entered {
            Ok(()) => FenceVerdict::Accepted,
            Err(FileError::Refused(_)) => FenceVerdict::Stale,
            Err(_) => FenceVerdict::Unknown,
        };
        let (resource, token) = (resource.to_owned(), section.token().get());
        let (service, lock) = (SERVICE.into(), lock.into());
        self.history.write(
            now(),
            HistoryEvent::Entered(EnteredEvent { resource, service, lock, token, asked, verdict }),
        );
        Ok(verdict == FenceVerdict::Accepted)
    }

    fn read(&self, resource: &str, fence: &FileFence) -> Result<String, FileError> {
        let asked = now();
        let bytes = fence.read()?.unwrap_or_default();
        let version = String::from_utf8_lossy(&bytes).into_owned();
        let event = ReadEvent { resource: resource.into(), asked, version: version.clone() };
        self.history.write(now(), HistoryEvent::Read(event));
        Ok(version)
    }
}
