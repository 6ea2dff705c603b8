//! A fence for a file, or for what one file stands for, on a local filesystem. Linux only.
//!
//! Responsible for the names beside the file and for the public calls. The order of steps is in `steps`, the
//! system calls in `disk`, the bytes of the mark file in `format`. It knows nothing of locks or lock services.
//!
//! Beside `FILE` it keeps three names:
//! - `FILE.fence`: the marks, as text with a checksum. Replaced as a whole (write, fsync, rename, fsync of the
//!   directory), so it is never half old and half new.
//! - `FILE.fence.lock`: never replaced and never removed. A flock on it makes check and effect one step among
//!   processes; a flock on a file that gets renamed over would guard an inode that nobody else opens. It has content
//!   once marks exist, so that a mark file that vanished is noticed and not read as "never seen".
//! - `FILE.fence.new`: where a replacement is written before it is renamed. Left behind by a killed process at
//!   worst; the next one overwrites it.
//!
//! The marks are durable before the data appears, never after: a mark without its data is harmless (the same token
//! writes again), data without its mark would let a stale token in.

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
use disk::Held;
pub use error::{FileError, Unguardable};

/// How long a call waits for another process that is inside a check, if nothing else is said. Checks take
/// milliseconds: one that lasts this long belongs to a process that is stopped.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// The fence of one file. Any number of values, threads and processes may name the same file.
#[derive(Clone, Debug)]
pub struct FileFence {
    paths: Paths,
    wait: Duration,
}

/// The file and the names beside it; the directory is resolved once.
#[derive(Clone, Debug)]
struct Paths {
    dir: PathBuf,
    data: PathBuf,
    marks: PathBuf,
    lock: PathBuf,
    temp: PathBuf,
}

impl FileFence {
    /// The fence of `path`. Nothing is created before the first check. The file need not exist, its directory must.
    ///
    /// # Errors
    /// [`FileError::Unguardable`] if `path` is a symlink (its target could be fenced under another name), has
    /// several hard links, lies on a network filesystem (whose flock other hosts need not see), names no file, or
    /// names one of a fence's own files. [`FileError::Io`] if the directory can't be found.
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

    /// Waits at most `limit` for another process that is inside a check. Default [`WAIT_DEFAULT`].
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

    /// Raises the marks, durably. Call it before the section reads what it will write.
    ///
    /// # Errors
    /// [`FileError::Refused`] if a later section has been here: stop. Any other error: the section may not go on,
    /// and may enter again.
    pub fn enter(&self, section: Section) -> Result<(), FileError> {
        self.pass(Action::Enter, section, |_| Ok(()))
    }

    /// The file's content; `None` if there is no file. Enter first, else an update can be lost.
    ///
    /// # Errors
    /// [`FileError::Io`]; [`FileError::Unguardable`] if the path has become something else than a plain file.
    pub fn read(&self) -> Result<Option<Vec<u8>>, FileError> {
        disk::read(&self.paths.data)
    }

    /// Checks, and replaces the file's content by `bytes`: all of it or, after an error, nothing. When this returns
    /// both the marks and the content are durable. Mode, owner and group of the file stay where the process may set
    /// them; extended attributes don't.
    ///
    /// # Errors
    /// [`FileError::Refused`]: nothing was written. [`FileError::Unsure`]: written, but a power loss may take it
    /// back: write again with the same token. Others: the old content stands, and the same token may try again.
    pub fn write(&self, section: Section, bytes: &[u8]) -> Result<(), FileError> {
        self.pass(Action::Write, section, |held| steps::put(held, bytes))
    }

    /// Checks, and runs `effect` before any other check of this file: for several files under one fence, or an
    /// append. The marks are durable before `effect` starts; making the effect durable is its own business, and what
    /// a crash leaves half done is for the next section to mend. `effect` must be short, start no process that
    /// outlives it, and not call the fence of this file.
    ///
    /// # Errors
    /// As [`write`](Self::write), before `effect` ran.
    pub fn write_with<R>(&self, section: Section, effect: impl FnOnce() -> R) -> Result<R, FileError> {
        self.pass(Action::Write, section, |_| Ok(effect()))
    }

    /// Checks as a write does, without one. For scripts whose effect the library can't run: between this check and
    /// the effect a later section may enter, so it narrows the gap and doesn't close it. Prefer
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn check(&self, section: Section) -> Result<(), FileError> {
        self.write_with(section, || ())
    }

    /// As [`write_with`](Self::write_with), once per token and without `enter`: for one blind effect per grant
    /// (F-d). At most once: if `effect` fails or the process dies in it, the same token is refused all the same.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Refused::Repeated`](crate::Refused::Repeated) for a token that was here.
    pub fn check_once<R>(&self, section: Section, effect: impl FnOnce() -> R) -> Result<R, FileError> {
        self.pass(Action::CheckOnce, section, |_| Ok(effect()))
    }

    /// The marks as they are now; the default ones if the file's fence was never used. Creates nothing.
    ///
    /// # Errors
    /// [`FileError::MarksMissing`], [`FileError::MarksCorrupt`], [`FileError::MarksNewer`], [`FileError::Io`].
    pub fn marks(&self) -> Result<Marks, FileError> {
        disk::peek(&self.paths)
    }

    /// Sets both marks to `to`, higher or lower, and forgets those of slots. For the one case in
    /// which marks may fall: another lock service takes over, whose tokens are lower. Stop all writers first: whoever
    /// still holds by the old service would be turned away, or let in, by accident.
    ///
    /// # Errors
    /// As [`marks`](Self::marks) and [`enter`](Self::enter): marks that are damaged or missing are refused here too. After
    /// an error of the disk the marks may be either; reset them again.
    pub fn reset(&self, to: Token) -> Result<(), FileError> {
        steps::reset(&mut Held::open(&self.paths, self.wait)?, to)
    }

    fn pass<R>(
        &self,
        action: Action,
        section: Section,
        effect: impl FnOnce(&mut Held<'_>) -> Result<R, FileError>,
    ) -> Result<R, FileError> {
        let mut held = Held::open(&self.paths, self.wait)?;
        steps::pass(&mut held, action, section)?;
        effect(&mut held)
    }
}

fn with_end(name: &OsStr, end: &str) -> OsString {
    let mut whole = name.to_owned();
    whole.push(end);
    whole
}
