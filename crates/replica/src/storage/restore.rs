//! A table from elsewhere as the first entry of a new cluster.
//!
//! Responsible for: a restore that was cut off at any step is never taken for an empty directory, whose table would begin
//! without the locks and below the tokens of the restored one (P2). The marker is durable before the first other file, and
//! removed after everything else is; every way into the directory but a further restore refuses it.

use lockkeeper_wire::store::{Founding, SnapshotHead, SnapshotTail};

use super::error::OpenError;
use super::format::PIECE_BYTES_MAX;
use super::{Existing, Names, Options, Removal, Snapshots, begin_log, founding, reopen};
use crate::disk::{Disk, DiskFile};

/// The marker of an unfinished restore. Its name counts, its content is for people.
pub const RESTORE_MARKER: &str = "restore-unfinished";

const MARKER_TEXT: &[u8] =
    b"`lockkeeper restore` writes into this directory, or was interrupted: run it again.\n";

/// Fills an empty directory with a table: entry 1 of the cluster that `founding` founds. `pieces` are those of its walk,
/// `digest` is what the walk ended with. An unfinished restore is begun again: its files are removed.
///
/// # Errors
/// [`OpenError::Founded`] if there is any file that an unfinished restore did not leave; [`OpenError::Unfounded`] if
/// `founding` makes no sense; [`OpenError::Io`]: [`super::open`] refuses the directory then, unless no file was made, or
/// only the last step, the marker's removal, failed.
pub fn restore<D: Disk>(
    disk: &D,
    options: Options,
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
    // There is none before it that could be removed.
    let Removal { .. } = write().map_err(OpenError::io("write the table into", "snapshot"))?;
    founding::write(disk, founding, identity)?;
    let existing = reopen(disk, options)?;
    let unmark = || {
        disk.remove(RESTORE_MARKER)?;
        // A failed sync leaves unknown what is durable: the restore counts as unfinished again, as far as the disk still writes.
        disk.sync_names().inspect_err(|_| drop(disk.create(RESTORE_MARKER)))
    };
    unmark().map_err(OpenError::io("remove", RESTORE_MARKER))?;
    Ok(existing)
}

/// Leaves nothing but the marker in the directory, durably.
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
        // The name of a marker that an earlier process made need not be durable either.
        disk.sync_names()
    };
    write().map_err(OpenError::io("write", RESTORE_MARKER))?;
    for name in names.iter().filter(|name| *name != RESTORE_MARKER) {
        disk.remove(name).map_err(OpenError::io("remove", name))?;
    }
    Ok(())
}
