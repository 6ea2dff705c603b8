//! The order of the steps of a check and of a write, without the system calls.
//!
//! Guarantees that after a kill or a power loss data never exist without their mark, and that a call succeeds
//! only once its changes are durable. Drives a [`FenceFiles`] instead of the filesystem, so that
//! `steps_tests` can simulate a power loss after every step.

use lockkeeper_core::Token;

use super::error::FileError;
use crate::format;
use crate::rule::{Action, Marks, Pair, Passed, Section};

/// The file that a prepared replacement is renamed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Marks,
    Data,
}

/// The files of one fence. The flock is held, except during a [`load`] that only reads marks.
pub(super) trait FenceFiles {
    /// The bytes of the mark file, if it exists.
    fn marks(&mut self) -> Result<Option<Vec<u8>>, FileError>;
    /// Whether it is recorded that marks exist, see [`found`](Self::found).
    fn founded(&mut self) -> Result<bool, FileError>;
    /// Records durably that marks exist; `founded` is true from then on.
    fn found(&mut self) -> Result<(), FileError>;
    /// Writes the replacement of `target` beside it and makes its bytes durable (not its name).
    fn prepare(&mut self, target: Target, bytes: &[u8]) -> Result<(), FileError>;
    /// Renames the prepared replacement to `target`. Atomic, and not durable before `sync_names`.
    fn rename(&mut self, target: Target) -> Result<(), FileError>;
    /// Makes all renames so far durable.
    fn sync_names(&mut self) -> Result<(), FileError>;
    /// The error for marks that are missing although `founded` is true.
    fn missing(&self) -> FileError;
    /// The error for marks that can't be read.
    fn unreadable(&self, why: format::Unreadable) -> FileError;
    /// The error for data that is in place but perhaps not durable.
    fn unsure(&self, source: FileError) -> FileError;
}

/// Reads the marks. A missing mark file means a resource that was never seen, or lost marks (an error) if
/// `founded` is true.
pub(super) fn load(disk: &mut impl FenceFiles) -> Result<Marks, FileError> {
    // `founded` is read first. In the other order, a concurrent first check could run between the two reads
    // of a reader without the flock: that reader would find no marks but `founded` true, and report lost
    // marks.
    let founded = disk.founded()?;
    match disk.marks()? {
        Some(bytes) => format::decode(&bytes).map_err(|why| disk.unreadable(why)),
        None if founded => Err(disk.missing()),
        None => Ok(Marks::default()),
    }
}

/// Checks, and makes the marks durable. The caller runs the effect afterwards.
pub(super) fn pass(disk: &mut impl FenceFiles, action: Action, section: Section) -> Result<(), FileError> {
    let mut marks = load(disk)?;
    if marks.check(action, section)? == Passed::Raised {
        replace(disk, &marks)?;
    }
    settle(disk)
}

/// Replaces the marks whatever their values, but fails if they are damaged or missing.
pub(super) fn reset(disk: &mut impl FenceFiles, to: Token) -> Result<(), FileError> {
    load(disk)?;
    let base = Pair { any: Some(to), writer: Some(to) };
    replace(disk, &Marks { base, ..Marks::default() })?;
    settle(disk)
}

fn replace(disk: &mut impl FenceFiles, marks: &Marks) -> Result<(), FileError> {
    disk.prepare(Target::Marks, &format::encode(marks))?;
    disk.rename(Target::Marks)
}

/// Makes the current directory entries durable, and records that marks exist. Runs even if no mark rose: the
/// mark, or the data that this section will read, may have been renamed into place by a process that was
/// killed before it synced the directory.
fn settle(disk: &mut impl FenceFiles) -> Result<(), FileError> {
    disk.sync_names()?;
    if !disk.founded()? {
        disk.found()?;
    }
    Ok(())
}

/// Replaces the data. Must be called only after [`pass`].
pub(super) fn put(disk: &mut impl FenceFiles, bytes: &[u8]) -> Result<(), FileError> {
    disk.prepare(Target::Data, bytes)?;
    disk.rename(Target::Data)?;
    disk.sync_names().map_err(|source| disk.unsure(source))
}
