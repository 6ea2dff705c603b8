//! Errors of a data directory, with instructions for the user.

use std::io;

use super::FORMAT_VERSION;

/// Advice for a node whose data can't be trusted.
const NEXT: &str = "Nothing was changed. A node of a cluster: remove it (`lockkeeper cluster remove`), then add it anew \
                    with an empty directory; a node that is alone: restore a backup";

/// Why a data directory was not opened, or a snapshot not read. File names are relative to the data
/// directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A newer program wrote the file.
    #[error(
        "`{file}` has format {found}, this program reads formats up to {FORMAT_VERSION}; nothing was changed. \
         Use the newer program that wrote it"
    )]
    NewerFormat {
        /// The file.
        file: String,
        /// The version of the file's format.
        found: u32,
    },
    /// Synced bytes were changed or are missing. They are never read as data (P10).
    #[error("`{file}` is damaged at byte {offset}: {what}. {NEXT}")]
    Corrupt {
        /// The file.
        file: String,
        /// The position in the file, in bytes.
        offset: u64,
        /// The actual and the expected content.
        what: String,
    },
    /// A file of another cluster, or of another data directory of this one.
    #[error(
        "`{file}` belongs to {found}, this data directory to {expected}: files of two directories were mixed. {NEXT}"
    )]
    AnotherCluster {
        /// The file.
        file: String,
        /// The cluster and incarnation in the file's header.
        found: String,
        /// The cluster and incarnation in the bootstrap record.
        expected: String,
    },
    /// A bootstrap in a directory that already holds a cluster, or a restore in one that holds any other
    /// file.
    #[error("the data directory holds a cluster already: `{file}` exists. Give an empty directory")]
    Founded {
        /// The existing file that blocks the operation.
        file: String,
    },
    /// A restore was interrupted before its last step, so part of the table may be missing (P2).
    #[error(
        "`{file}` is there: a `lockkeeper restore` into this data directory was not finished, and part of its table is \
         missing. Nothing was changed: run it again with the same directory, or empty the directory"
    )]
    Unfinished {
        /// The restore's marker.
        file: String,
    },
    /// The bootstrap record or candidate to be written is invalid.
    #[error("this founding record can't be written: {what}")]
    Unfounded {
        /// The reason.
        what: &'static str,
    },
    /// An I/O operation failed.
    #[error("cannot {doing} `{file}`{}", advice(source))]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file that it was applied to.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// For `map_err`: adds the operation and the file.
    pub(super) fn io(doing: &'static str, file: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| Self::Io { doing, file, source }
    }

    pub(super) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), offset, what: what.into() }
    }
}

/// Advice for the faults that users meet; the cause itself is the error's source.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": the disk is full. Free space (a start needs room for one more segment of the log), then start again"
        }
        io::ErrorKind::PermissionDenied => {
            ": not allowed; the data directory and its files must belong to the user that the node runs as"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": the filesystem is mounted read-only",
        _ => "",
    }
}
