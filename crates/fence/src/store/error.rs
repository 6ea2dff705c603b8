//! Errors of mark stores.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::format;
use crate::rule::Refused;

/// Why marks were not checked or not made durable.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MarksError {
    /// The rule refused the section.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Another process has the file open.
    #[error(
    "the marks in `{}` are in use by another process, and only one may keep them at a time; end it (`fuser` tells \
     who it is), or give this one a file of its own if it guards other resources",
    path.display()
  )]
    InUse {
        /// The file of marks.
        path: PathBuf,
    },
    /// The file is damaged, or not a file of marks. A resource in it is never treated as "never seen".
    #[error(
    "the marks in `{}` are damaged: {why}; nothing was let through. Stop all sections, find the \
     last token granted (`lockkeeper check-token`), remove the file, and enter each resource once with that token",
    path.display()
  )]
    Damaged {
        /// The file of marks.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The format of the marks is not supported by this program.
    #[error(
    "the marks in `{}` have format {version}; this program reads format {}; nothing was let through. Use the newer \
     program that wrote them",
    path.display(), format::VERSION
  )]
    Newer {
        /// The file of marks.
        path: PathBuf,
        /// The version of the file's format.
        version: u32,
    },
    /// A system call failed.
    #[error("cannot {doing} the marks in `{}`{}", path.display(), advice(source))]
    Io {
        /// The step, as a verb.
        doing: &'static str,
        /// The file of marks.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A mark rose in memory but could not be made durable. The section must not continue. The mark stays
    /// risen in memory, so lower tokens are refused.
    #[error(
        "the mark rose, but could not be made durable, so nothing was let through; ask again with the same token when \
     the cause is gone (for a `check_once` the token counts as used: acquire again)"
    )]
    NotDurable(#[source] Arc<MarksError>),
    /// The store keeps as many marks as it may: one for each resource, and one for each slot with marks of
    /// its own.
    #[error(
        "{max} marks are kept, which is the limit: one for each resource, and one for each slot of permits; nothing was let \
         through. Resources that have marks go on; raise the limit, or find out who sends tokens for so many resources"
    )]
    Full {
        /// The limit.
        max: u64,
    },
    /// The store was closed, or its thread panicked.
    #[error("the store of marks has ended, so nothing can be let through; open it again")]
    Ended,
}

/// Advice on common faults; the cause itself is the error's source.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => ": the directory does not exist; create it, or correct the path",
        io::ErrorKind::PermissionDenied => {
            ": not allowed; the user needs to write in the directory and in the file"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": the disk is full; free space",
        io::ErrorKind::FileTooLarge => {
            ": it would be larger than the process may write; raise the limit (`ulimit -f`)"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": the filesystem is mounted read-only",
        _ => "",
    }
}
