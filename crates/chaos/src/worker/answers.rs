//! The answers of a fence as histories have them, and a write without a fence.

use std::path::Path;
use std::{fs, io};

use lockkeeper_fence::file::FileError;
use lockkeeper_history::{FenceVerdict, WriteOutcome};

/// The answer to `enter`.
pub(crate) fn verdict(entered: &Result<(), FileError>) -> FenceVerdict {
    match entered {
        Ok(()) => FenceVerdict::Accepted,
        Err(FileError::Refused(_)) => FenceVerdict::Stale,
        Err(_) => FenceVerdict::Unknown,
    }
}

/// The answer to a write.
pub(crate) fn outcome(written: &Result<(), FileError>) -> WriteOutcome {
    match written {
        Ok(()) => WriteOutcome::Done,
        Err(FileError::Refused(_)) => WriteOutcome::Stale,
        Err(_) => WriteOutcome::Unknown,
    }
}

/// Writes without a fence, as a careful program does: a reader sees the old or the new content. `new`: the
/// temporary file, on the same filesystem.
pub(crate) fn replace(path: &Path, new: &Path, content: &str) -> io::Result<()> {
    fs::write(new, content)?;
    fs::rename(new, path)
}
