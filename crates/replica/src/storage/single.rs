//! A file with a single message: the bootstrap record or the candidate.

use super::error::OpenError;
use super::format::{DirectoryIdentity, FileKind, Frame, Header, SECTOR, put_frame, read_frame};
use super::segment::TEMPORARY;
use crate::disk::{Disk, DiskFile};

/// Replaces the file, durably.
pub(super) fn write(
    disk: &impl Disk,
    name: &str,
    (kind, frame): (FileKind, Frame),
    identity: DirectoryIdentity,
    message: &[u8],
) -> Result<(), OpenError> {
    let temporary = format!("{name}{TEMPORARY}");
    let write = || {
        let (header, seed) = Header::plain(kind, identity, 0).encode();
        let mut bytes = header.to_vec();
        let mut framed = Vec::new();
        put_frame(&mut framed, seed, SECTOR, frame, message);
        bytes.append(&mut framed);
        let mut file = disk.create(&temporary)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&temporary, name)?;
        disk.sync_names()
    };
    write().map_err(OpenError::io("write", name))
}

/// Returns the identity in the file's header, the message's kind, and the message. Bytes after the message
/// are an error.
pub(super) fn read(
    disk: &impl Disk,
    name: &str,
    kind: FileKind,
) -> Result<(DirectoryIdentity, Frame, Vec<u8>), OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    let (header, seed) = Header::read(&file, name, kind, 0, None)?;
    let size = file.size().map_err(OpenError::io("measure", name))?;
    let (what, message, end) = read_frame(&file, name, seed, SECTOR, size)?;
    if end != size {
        return Err(OpenError::corrupt(name, end, format!("{} bytes follow the record", size - end)));
    }
    Ok((header.identity, what, message))
}
