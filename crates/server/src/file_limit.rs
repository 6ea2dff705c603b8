//! The limit on open files.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// File descriptors that are kept free for other uses than client connections: the log, peer connections,
/// standard streams, the runtime's own.
const FILES_RESERVED: u64 = 64;

/// Raises this process's limit on open files to the most that it may have. Returns `wanted`, or fewer
/// connections if that limit does not allow as many of `files_each`.
#[must_use]
pub fn raise_file_limit(wanted: usize, files_each: u64) -> usize {
    let raise = || -> nix::Result<u64> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    };
    match raise() {
        Ok(files) => {
            let most = files.saturating_sub(FILES_RESERVED) / files_each;
            let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
            if most < wanted {
                tracing::warn!(
                    limit = most,
                    "only {most} connections are possible: {files} files may be open (`ulimit -n`)"
                );
            }
            most.min(wanted)
        }
        Err(error) => {
            tracing::warn!(%error, "the limit on open files could not be raised: {error}");
            wanted
        }
    }
}
