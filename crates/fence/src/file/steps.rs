//! The order of the steps of a check and of a write, apart from the system calls.
//!
//! Responsible for one promise: whatever survives a kill or a power loss, data never appears without its mark, and
//! nothing is answered before it is durable. May not touch a disk itself: it drives a [`Disk`], so that
//! `steps_tests` can cut the power after every step.

use lockkeeper_core::Token;

use super::error::FileError;
use crate::format;
use crate::rule::{Action, Marks, Pair, Passed, Section};

/// What a replacement becomes when it is renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Marks,
    Data,
}

/// The files of one fence, while the flock is held.
pub(super) trait Disk {
    /// The bytes of the mark file, if it exists.
    fn marks(&mut self) -> Result<Option<Vec<u8>>, FileError>;
    /// Whether marks were ever made durable here.
    fn founded(&mut self) -> Result<bool, FileError>;
    /// Notes, durably, that marks exist.
    fn found(&mut self) -> Result<(), FileError>;
    /// Writes the replacement of `target` beside it and makes its bytes durable (not its name).
    fn prepare(&mut self, target: Target, bytes: &[u8]) -> Result<(), FileError>;
    /// Renames the prepared replacement to `target`. Atomic, and not durable before `sync_names`.
    fn rename(&mut self, target: Target) -> Result<(), FileError>;
    /// Makes all renames so far durable.
    fn sync_names(&mut self) -> Result<(), FileError>;
    /// The error for marks that are missing though they were founded.
    fn missing(&self) -> FileError;
    /// The error for marks that can't be read.
    fn unreadable(&self, why: format::Unreadable) -> FileError;
    /// The error for data that is in place but perhaps not durable.
    fn unsure(&self, source: FileError) -> FileError;
}

/// Reads the marks. Missing ones are those of a resource never seen, unless they were founded.
pub(super) fn load(disk: &mut impl Disk) -> Result<Marks, FileError> {
    // Founded first: a process that peeks without the flock would else see no marks, then see them founded.
    let founded = disk.founded()?;
    match disk.marks()? {
        Some(bytes) => format::decode(&bytes).map_err(|why| disk.unreadable(why)),
        None if founded => Err(disk.missing()),
        None => Ok(Marks::default()),
    }
}

/// Checks, and makes the marks durable. The effect may only follow.
pub(super) fn pass(disk: &mut impl Disk, action: Action, section: Section) -> Result<(), FileError> {
    let mut marks = load(disk)?;
    if marks.check(action, section)? == Passed::Raised {
        replace(disk, &marks)?;
    }
    settle(disk)
}

/// Sets the marks, whatever they were; but damaged ones are not written over.
pub(super) fn reset(disk: &mut impl Disk, to: Token) -> Result<(), FileError> {
    load(disk)?;
    let base = Pair { any: Some(to), writer: Some(to) };
    replace(disk, &Marks { base, ..Marks::default() })?;
    settle(disk)
}

fn replace(disk: &mut impl Disk, marks: &Marks) -> Result<(), FileError> {
    disk.prepare(Target::Marks, &format::encode(marks))?;
    disk.rename(Target::Marks)
}

/// Also when nothing rose: the mark, or the data that this section will read, may stem from a process that was killed
/// between its rename and this call.
fn settle(disk: &mut impl Disk) -> Result<(), FileError> {
    disk.sync_names()?;
    if !disk.founded()? {
        disk.found()?;
    }
    Ok(())
}

/// Replaces the data. Only after [`pass`].
pub(super) fn put(disk: &mut impl Disk, bytes: &[u8]) -> Result<(), FileError> {
    disk.prepare(Target::Data, bytes)?;
    disk.rename(Target::Data)?;
    disk.sync_names().map_err(|source| disk.unsure(source))
}
