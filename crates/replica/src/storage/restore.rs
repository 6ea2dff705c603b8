//! Restores a table into an empty data directory, as the first entry of a new cluster.
//!
//! Responsible for: an interrupted restore is never taken for an empty directory. A node that started in the
//! directory of an interrupted restore would have a table without the locks of the restored one, and with
//! lower tokens (P2). The marker is durable before any other file is created, and is removed once all other
//! files are durable; every operation except another restore rejects a marked directory.

use lockkeeper_wire::store::{Founding, SnapshotHead, SnapshotTail};

use super::error::OpenError;
use super::format::PIECE_BYTES_MAX;
use super::{Existing, LogOptions, Names, Removal, Snapshots, begin_log, founding, reopen};
use crate::disk::{Disk, DiskFile};

/// The marker of an unfinished restore. Only its name matters; its content is for people.
pub const RESTORE_MARKER: &str = "restore-unfinished";

const MARKER_TEXT: &[u8] =
    b"`lockkeeper restore` writes into this directory, or was interrupted: run it again.\n";

/// Fills an empty directory with a table: entry 1 of the cluster that `founding` describes. `pieces` come
/// from the table's snapshot iterator, and `digest` returns its final digest. After an unfinished restore,
/// all of its files are removed and the restore starts over.
///
/// # Errors
/// [`OpenError::Founded`] if any file exists that is not from an unfinished restore; [`OpenError::Unfounded`]
/// if `founding` is invalid; [`OpenError::Io`]: afterwards [`super::open`] rejects the directory, unless no
/// file was created or only the last step, the marker's removal, failed.
pub fn restore<D: Disk>(
    disk: &D,
    options: LogOptions,
    founding: &Founding,
    pieces: impl Iterator<Item = Vec<u8>>,
    digest: impl FnOnce() -> Vec<u8>,
) -> Result<Existing<D>, OpenError> {
    let identity = founding::check(founding)?;
    mark(disk)?;
    begin_log(disk, options, identity)?;
    let head = SnapshotHead { index: 1, term: 1, rules: founding.rules, members: None };
    let write = || {
        let mut writer = Snapshots::new(disk.clone(), identity).begin(&head)?;
        let (mut count, mut bytes) = (0, 0);
        for piece in pieces {
            for part in piece.chunks(PIECE_BYTES_MAX) {
                writer.piece(part)?;
                count += 1;
                bytes += part.len() as u64;
            }
        }
        writer.finish(&SnapshotTail { pieces: count, bytes, digest: digest() })
    };
    // There is no older snapshot to remove.
    let Removal { .. } = write().map_err(OpenError::io("write the table into", "snapshot"))?;
    founding::write(disk, founding, identity)?;
    let existing = reopen(disk, options)?;
    let unmark = || {
        disk.remove(RESTORE_MARKER)?;
        // After a failed sync it is unknown whether the removal is durable. A new marker, if the disk still
        // accepts writes, makes the next start reject the directory again.
        disk.sync_names().inspect_err(|_| drop(disk.create(RESTORE_MARKER)))
    };
    unmark().map_err(OpenError::io("remove", RESTORE_MARKER))?;
    Ok(existing)
}

/// Writes the marker durably, and removes the files of an earlier, unfinished restore.
fn mark(disk: &impl Disk) -> Result<(), OpenError> {
    let names = disk.list().map_err(OpenError::io("list", "."))?;
    let is_marked = names.iter().any(|name| name == RESTORE_MARKER);
    let is_own = |name: &&String| *name == RESTORE_MARKER || (is_marked && Names::is_data(name));
    if let Some(file) = names.iter().find(|name| !is_own(name)) {
        return Err(OpenError::Founded { file: file.clone() });
    }
    let write = || {
        let mut file = if is_marked { disk.open(RESTORE_MARKER)? } else { disk.create(RESTORE_MARKER)? };
        file.write_at(0, MARKER_TEXT)?;
        file.sync()?;
        // The name of a marker from an earlier process may not be durable yet either.
        disk.sync_names()
    };
    write().map_err(OpenError::io("write", RESTORE_MARKER))?;
    for name in names.iter().filter(|name| *name != RESTORE_MARKER) {
        disk.remove(name).map_err(OpenError::io("remove", name))?;
    }
    Ok(())
}
