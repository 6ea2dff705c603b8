//! Errors of the file fence.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::format::VERSION;
use crate::rule::Refused;

/// Why a call at a file fence failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The rule refused the section; nothing was written.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The path can't be guarded by a fence.
    #[error("cannot fence `{}`: {why}", path.display())]
    Unguardable {
        /// The path as it was given.
        path: PathBuf,
        /// The reason.
        why: Unguardable,
    },
    /// Another process or thread held the flock for longer than the limit of the wait.
    #[error(
        "`{}` has been locked by another process for {waited:?}; checks take milliseconds, so it is probably stopped. \
         Find it with `fuser {}`, continue or end it, and try again",
        lock.display(), lock.display()
    )]
    Busy {
        /// The lock file that is held.
        lock: PathBuf,
        /// The limit of the wait.
        waited: Duration,
    },
    /// The mark file is damaged. The file is never treated as "never fenced".
    #[error(
        "the marks in `{}` are damaged: {why}; nothing was done. Stop all writers, find the last token granted \
         (`lockkeeper check-token`), remove this file and its `.lock`, and enter once with that token",
        path.display()
    )]
    MarksCorrupt {
        /// The mark file.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The version of the mark file is not supported by this program.
    #[error(
        "the marks in `{}` have format {version}; this program reads format {VERSION}; nothing was done. \
         Use the newer program that wrote them",
        path.display()
    )]
    MarksNewer {
        /// The mark file.
        path: PathBuf,
        /// The version of the file's format.
        version: u32,
    },
    /// The lock file records that marks existed, but the mark file is missing.
    #[error(
        "the marks in `{}` are gone, though this file was fenced before; nothing was done. Restore them; or stop all \
         writers, find the last token granted (`lockkeeper check-token`), remove the `.lock` beside, and enter once \
         with that token",
        path.display()
    )]
    MarksMissing {
        /// The mark file.
        path: PathBuf,
    },
    /// The new content is in place, but may not survive a power loss.
    #[error(
        "`{}` has its new content, but a power loss may take it back: the directory could not be made durable. \
         Write again with the same token",
        path.display()
    )]
    Unsure {
        /// The guarded file.
        path: PathBuf,
        /// The error of the directory sync.
        source: Box<Self>,
    },
    /// A system call failed.
    #[error("cannot {doing} `{}`{}", path.display(), advice(source))]
    Io {
        /// The step, as a verb.
        doing: &'static str,
        /// The path on which it failed.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl FileError {
    /// For `map_err`: the failed step and its path.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// Advice on common faults; the cause itself is the error's source.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => ": it does not exist; create it, or correct the path",
        io::ErrorKind::PermissionDenied => {
            ": not allowed; the user needs to write in the directory and to read and write the `.fence` files"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": the disk is full; the old content stands. Free space, then try again with the same token"
        }
        io::ErrorKind::FileTooLarge => {
            ": it would be larger than the process may write; the old content stands. Raise the limit (`ulimit -f`)"
        }
        io::ErrorKind::ReadOnlyFilesystem => ": the filesystem is mounted read-only",
        io::ErrorKind::NotADirectory => ": a part of the path is not a directory",
        io::ErrorKind::InvalidFilename => {
            ": the name is too long; a fence needs 11 bytes beside the file's own name"
        }
        _ => "",
    }
}

/// Why a fence can't guard a path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unguardable {
    /// The path does not end in a file name.
    #[error("it names no file; give the path of a file")]
    NoName,
    /// The name ends in `.fence`, `.fence.lock` or `.fence.new`.
    #[error(
        "names ending in `.fence`, `.fence.lock` and `.fence.new` are the fence's own; give the guarded file"
    )]
    OwnFile,
    /// A symlink: its target could be fenced under another name, with other marks.
    #[error("it is a symlink to `{}`; give that path itself", target.display())]
    Symlink {
        /// The target of the symlink.
        target: PathBuf,
    },
    /// A file with several hard links: writes through the other names would bypass the fence.
    #[error(
        "it has {names} names (hard links), and the others would go round the fence; make it a file of its own"
    )]
    HardLinks {
        /// The number of names.
        names: u64,
    },
    /// Not a plain file.
    #[error("it is not a plain file, so its content can't be replaced; use `write_with` for anything else")]
    NotAFile,
    /// A filesystem on which a flock may not exclude other hosts.
    #[error("it is on {kind}, where a flock does not exclude other hosts; keep it on a local filesystem")]
    Network {
        /// The filesystem's type.
        kind: &'static str,
    },
}
