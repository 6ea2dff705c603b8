//! Backups of Lockkeeper's own service.

use tokio::sync::mpsc::Receiver;

use crate::error::BackendError;

/// A backup file in parts. Dropping it ends the backup.
#[derive(Debug)]
#[must_use = "a backup ends when it is dropped"]
pub struct Backup {
    parts: Receiver<Result<Vec<u8>, BackendError>>,
}

impl Backup {
    /// A backup whose parts arrive by this channel, which ends after the last one or an error.
    pub fn new(parts: Receiver<Result<Vec<u8>, BackendError>>) -> Self {
        Self { parts }
    }

    /// The next bytes of the file; `None` after the last part. The end of the file shows whether it is
    /// complete: check it before you rely on the backup, as `lockkeeper backup` does.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, BackendError>> {
        self.parts.recv().await
    }
}
