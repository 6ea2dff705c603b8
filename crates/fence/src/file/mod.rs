//! A fence for a local file, or for other resources that one file represents. Linux only.
//!
//! Contains the public calls and the names of the fence's files. The order of steps is in `steps`, the system
//! calls in `disk`, the bytes of the mark file in `crate::format`. The fence depends on no lock service.
//!
//! Beside `FILE` the fence keeps three files:
//! - `FILE.fence`: the marks, as text with a checksum. Replaced atomically and durably (write, fsync, rename,
//!   fsync of the directory).
//! - `FILE.fence.lock`: never replaced and never removed. A flock on it makes check and effect one step among
//!   processes; a flock on a file that is replaced by rename would lock an inode that no other process opens.
//!   It is non-empty once marks exist, so that a missing mark file is detected and not treated as "never
//!   seen".
//! - `FILE.fence.new`: the temporary name of a replacement before its rename. A killed process may leave it
//!   behind; the next replacement removes it.
//!
//! The marks are durable before the data appear, never after. A mark without its data is harmless, since the
//! same token may write again; data without their mark would let a stale token overwrite them.

mod disk;
mod error;
mod steps;
#[cfg(test)]
mod steps_tests;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::Token;

use crate::rule::{Action, Marks, Section};
use disk::LockedFiles;
pub use error::{FileError, Unguardable};

/// Default limit of the wait for the flock. Checks take milliseconds, so a process that holds the flock this
/// long is probably stopped.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The fence of one file. Any number of values, threads and processes may use the same file.
#[derive(Clone, Debug)]
pub struct FileFence {
    paths: Paths,
    wait: Duration,
}

/// The paths of the guarded file and of the fence's files. The directory is resolved once, by `new`.
#[derive(Clone, Debug)]
struct Paths {
    dir: PathBuf,
    data: PathBuf,
    marks: PathBuf,
    lock: PathBuf,
    temp: PathBuf,
}

impl FileFence {
    /// The fence of `path`. Creates nothing before the first check. The file need not exist, but its
    /// directory must.
    ///
    /// # Errors
    /// [`FileError::Unguardable`] if `path` is a symlink (its target could be fenced under another name), has
    /// several hard links, is on a network filesystem (a flock may not exclude other hosts), names no file,
    /// or names one of a fence's own files. [`FileError::Io`] if the directory or the file can't be
    /// inspected.
    pub fn new(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let unguardable = |why| FileError::Unguardable { path: path.to_owned(), why };
        let name = path.file_name().ok_or_else(|| unguardable(Unguardable::NoName))?;
        let own = [".fence", ".fence.lock", ".fence.new"];
        if own.iter().any(|end| name.as_encoded_bytes().ends_with(end.as_bytes())) {
            return Err(unguardable(Unguardable::OwnFile));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = parent.canonicalize().map_err(FileError::io("find the directory", parent))?;
        let beside = |end: &str| dir.join(with_end(name, end));
        let paths = Paths {
            data: dir.join(name),
            marks: beside(".fence"),
            lock: beside(".fence.lock"),
            temp: beside(".fence.new"),
            dir,
        };
        disk::refuse_network(&paths.dir)?;
        disk::inspect(&paths.data)?;
        Ok(Self { paths, wait: WAIT_DEFAULT })
    }

    /// Sets how long a call waits for the flock while another process or thread holds it. Default
    /// [`WAIT_DEFAULT`].
    #[must_use]
    pub fn wait_at_most(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// The guarded file, with its directory resolved.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.paths.data
    }

    /// Raises the marks, durably. Call it before the section reads the data that it will write.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a later section has passed: stop. Any other error: the section must not
    /// continue, and may enter again.
    pub fn enter(&self, section: Section) -> Result<(), FileError> {
        self.pass(Action::Enter, section, |_| Ok(()))
    }

    /// The file's content; `None` if the file does not exist. Enter first, otherwise an update can be lost.
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::Unguardable`] if the path is not a plain file, or has become a symlink
    /// or got a second hard link.
    pub fn read(&self) -> Result<Option<Vec<u8>>, FileError> {
        disk::read(&self.paths.data)
    }

    /// Checks, and replaces the file's content by `bytes`, completely or not at all. On success both the
    /// marks and the content are durable. Mode, owner and group of the file are kept as far as the process
    /// may set them; extended attributes are lost.
    ///
    /// # Errors
    /// [`FileError::Refused`]: nothing was written. [`FileError::Unsure`]: written, but a power loss may undo
    /// the write; write again with the same token. After any other error the old content is unchanged, and
    /// the same token may try again.
    pub fn write(&self, section: Section, bytes: &[u8]) -> Result<(), FileError> {
        self.pass(Action::Write, section, |held| steps::put(held, bytes))
    }

    /// Checks, and runs `effect` while the flock is held, so that no other check of this file runs meanwhile:
    /// for several files under one fence, or for appending. The marks are durable before `effect` starts.
    /// `effect` must make its own changes durable, and the next section must repair a partial effect after a
    /// crash. `effect` must be short, must start no process that outlives it, and must not call the fence of
    /// this file.
    ///
    /// # Errors
    /// As [`write`](Self::write), except [`FileError::Unsure`]. After an error `effect` has not run.
    pub fn write_with<R>(&self, section: Section, effect: impl FnOnce() -> R) -> Result<R, FileError> {
        self.pass(Action::Write, section, |_| Ok(effect()))
    }

    /// Checks as a write does, without a write: for scripts whose effect can't run inside the library. A
    /// later section may enter between this check and the effect, so a stale effect becomes less likely, but
    /// stays possible. Prefer [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn check(&self, section: Section) -> Result<(), FileError> {
        self.write_with(section, || ())
    }

    /// As [`write_with`](Self::write_with), but each token passes only once, and `enter` is not needed: for
    /// an effect that does not depend on anything read before, executed at most once per grant (rule F-d).
    /// The token counts as used even if `effect` fails or the process dies in it.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Refused::Repeated`](crate::Refused::Repeated) for a token that has
    /// passed before.
    pub fn check_once<R>(&self, section: Section, effect: impl FnOnce() -> R) -> Result<R, FileError> {
        self.pass(Action::CheckOnce, section, |_| Ok(effect()))
    }

    /// The current marks; the default ones if the file's fence was never used. Creates nothing.
    ///
    /// # Errors
    /// [`FileError::MarksMissing`], [`FileError::MarksCorrupt`], [`FileError::MarksNewer`],
    /// [`FileError::Io`].
    pub fn marks(&self) -> Result<Marks, FileError> {
        disk::peek(&self.paths)
    }

    /// Sets the two base marks (`any` and `writer`, see [`Marks`]) to `to`, higher or lower, and removes the
    /// marks of all slots. For the one case in which marks may be lowered: the move to another lock service
    /// whose tokens are lower. Stop all writers first: sections that still run under a token of the old
    /// service would be refused or accepted arbitrarily.
    ///
    /// # Errors
    /// As [`marks`](Self::marks) and [`enter`](Self::enter): damaged or missing marks are refused here too.
    /// After an I/O error the marks may be the old or the new ones; call `reset` again.
    pub fn reset(&self, to: Token) -> Result<(), FileError> {
        steps::reset(&mut LockedFiles::open(&self.paths, self.wait)?, to)
    }

    fn pass<R>(
        &self,
        action: Action,
        section: Section,
        effect: impl FnOnce(&mut LockedFiles<'_>) -> Result<R, FileError>,
    ) -> Result<R, FileError> {
        let mut held = LockedFiles::open(&self.paths, self.wait)?;
        steps::pass(&mut held, action, section)?;
        effect(&mut held)
    }
}

fn with_end(name: &OsStr, end: &str) -> OsString {
    let mut whole = name.to_owned();
    whole.push(end);
    whole
}
