//! A backup of our own service, for whoever keeps it.

use tokio::sync::mpsc::Receiver;

use crate::error::BackendError;

/// The file of a backup, part by part ([`Locks::backup`](crate::Locks::backup)). Ends when it is dropped.
#[derive(Debug)]
#[must_use = "a backup ends when it is dropped"]
pub struct Backup {
    parts: Receiver<Result<Vec<u8>, BackendError>>,
}

impl Backup {
    #[cfg_attr(not(feature = "service"), allow(dead_code, reason = "only our own service makes backups"))]
    pub(crate) fn new(parts: Receiver<Result<Vec<u8>, BackendError>>) -> Self {
        Self { parts }
    }

    /// The next bytes of the file; `None` after the last. Whether the file is whole, its own end says: look at it before
    /// you rely on it, as `lockkeeper backup` does.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, BackendError>> {
        self.parts.recv().await
    }
}
