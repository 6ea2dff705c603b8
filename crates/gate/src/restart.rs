//! Whether the previous run of the gate ended in an orderly way.
//!
//! A gate that was killed may have left requests running at the upstream, and their ends are unknown. Such
//! requests concern only resources that have marks, since marks are durable before a request is forwarded,
//! and they have the tokens of the last writers. So for the first `settle` after such a start, a resource
//! with marks admits only requests that may run beside them (`marks.rs`). A gate that ends in an orderly way,
//! with no request in progress, leaves a file that says so; the next start removes this file, durably, before
//! it admits a request.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file that an orderly end leaves.
const NAME: &str = "ended-in-order";

/// The state of a data directory between start and end.
#[derive(Debug)]
pub(crate) struct Restart {
    path: PathBuf,
    /// The time until which requests of the previous run may be at the upstream.
    unsettled_until: Option<Instant>,
}

impl Restart {
    /// Reads and removes the file. `is_new`: the directory has no marks yet.
    pub(crate) fn begin(directory: &Path, is_new: bool, settle: Duration) -> io::Result<Self> {
        let path = directory.join(NAME);
        let ended_in_order = match fs::remove_file(&path) {
            Ok(()) => {
                File::open(directory)?.sync_all()?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => is_new,
            Err(error) => return Err(error),
        };
        let unsettled_until = (!ended_in_order).then(|| Instant::now() + settle);
        Ok(Self { path, unsettled_until })
    }

    /// How long requests of the previous run may still be at the upstream; `None` if none can be.
    pub(crate) fn unsettled_for(&self) -> Option<Duration> {
        self.unsettled_until
            .and_then(|until| until.checked_duration_since(Instant::now()))
            .filter(|left| !left.is_zero())
    }

    /// Records an orderly end: no request is in progress.
    pub(crate) fn end(&self) -> io::Result<()> {
        // This run may have been too short for the previous run's requests to have ended.
        if self.unsettled_for().is_some() {
            return Ok(());
        }
        File::create(&self.path)?.sync_all()?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(3600);

    #[test]
    fn only_an_orderly_end_or_a_new_directory_settles_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |is_new| Restart::begin(directory.path(), is_new, SETTLE).unwrap();
        assert!(begin(true).unsettled_for().is_none());
        assert!(begin(false).unsettled_for().is_some(), "killed");
        begin(true).end().unwrap();
        assert!(begin(false).unsettled_for().is_none());
        assert!(begin(false).unsettled_for().is_some(), "the file is gone after a start");
        begin(false).end().unwrap();
        assert!(
            begin(false).unsettled_for().is_some(),
            "a short run doesn't hide that the one before was killed"
        );
    }
}
