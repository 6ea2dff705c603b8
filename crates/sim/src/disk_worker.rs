//! The disk worker of a node: stores snapshots while the event loop runs, one step at a time, and reads
//! stored ones.

use std::io;

use lockkeeper_core::{Restorer, Table};
use lockkeeper_replica::SnapshotStep;
use lockkeeper_replica::disk::memory::MemoryDisk;
use lockkeeper_replica::storage::{PIECE_BYTES_MAX, Sealed, SnapshotReader, SnapshotWriter, Snapshots};
use lockkeeper_wire::store::SnapshotTail;

use crate::bulk::Bulk;
use crate::crowd::Budgets;

/// The snapshot that is being written, and the next step of writing it.
pub(crate) struct Chores {
    snapshots: Snapshots<MemoryDisk>,
    open: Option<(SnapshotWriter<MemoryDisk>, u64)>,
    pub(crate) todo: Option<SnapshotStep>,
}

/// The result of a step.
pub(crate) enum DiskTaskResult {
    Step,
    /// The snapshot is abandoned; the replica begins another one later.
    Failed,
    /// The state of the disk is unknown, so the process must end (P10).
    Stop(io::Error),
}

impl Chores {
    pub(crate) fn new(snapshots: Snapshots<MemoryDisk>) -> Self {
        Self { snapshots, open: None, todo: None }
    }

    /// Reads the pieces of a stored snapshot, to be sent to another node.
    pub(crate) fn read(&self, index: u64) -> Result<(Vec<Vec<u8>>, SnapshotTail), String> {
        let mut reader = self.snapshots.open(index).map_err(|error| error.to_string())?;
        let mut pieces = Vec::new();
        while let Some(piece) = reader.next_piece().map_err(|error| error.to_string())? {
            pieces.push(piece);
        }
        let tail = reader.tail().cloned().ok_or("the snapshot has no end")?;
        Ok((pieces, tail))
    }

    /// Writes a received snapshot to a file without its final name, so that a start ignores it.
    pub(crate) fn receive(
        &self,
        bulk: &Bulk,
        budgets: Budgets,
    ) -> Result<(Sealed<MemoryDisk>, Table), String> {
        let head = bulk.offer.head.as_ref().ok_or("the offer has no head")?;
        let mut writer = self.snapshots.begin(head).map_err(|error| error.to_string())?;
        let mut restorer = Restorer::new(0);
        for piece in &bulk.pieces {
            writer.piece(piece).map_err(|error| error.to_string())?;
            restorer.push(piece).map_err(|error| error.to_string())?;
        }
        let sealed = writer.seal(&bulk.tail).map_err(|error| error.to_string())?;
        let table = restorer.finish().map_err(|error| error.to_string())?;
        Ok((sealed, budgets.table(table)))
    }

    /// Carries out the pending step; returns `None` if there is none.
    pub(crate) fn step(&mut self, disk: &MemoryDisk) -> Option<DiskTaskResult> {
        let step = self.todo.take()?;
        let ends = matches!(step, SnapshotStep::Finish(_));
        Some(match self.carry_out(step, disk) {
            Ok(()) => DiskTaskResult::Step,
            Err(error) if ends => DiskTaskResult::Stop(error),
            Err(_) => {
                // The next start removes the incomplete file.
                self.open = None;
                DiskTaskResult::Failed
            }
        })
    }

    fn carry_out(&mut self, step: SnapshotStep, disk: &MemoryDisk) -> io::Result<()> {
        let begun = || io::Error::other("no snapshot was begun");
        match step {
            SnapshotStep::Begin(head) => {
                self.open = Some((self.snapshots.begin(&head)?, 0));
                Ok(())
            }
            SnapshotStep::Piece(piece) => {
                let (writer, pieces) = self.open.as_mut().ok_or_else(begun)?;
                for part in piece.chunks(PIECE_BYTES_MAX) {
                    writer.piece(part)?;
                    *pieces += 1;
                }
                Ok(())
            }
            SnapshotStep::Finish(tail) => {
                let (writer, pieces) = self.open.take().ok_or_else(begun)?;
                writer.finish(&SnapshotTail { pieces, ..tail })?.run(disk)
            }
        }
    }
}

/// The table of the newest snapshot. Without a snapshot: the empty table of a new cluster with this rules
/// version.
pub(crate) fn read_table(
    snapshot: Option<SnapshotReader<MemoryDisk>>,
    rules: u32,
    budgets: Budgets,
) -> Result<Table, String> {
    let Some(mut snapshot) = snapshot else { return Ok(budgets.table(Table::with_rules(0, rules))) };
    let mut restorer = Restorer::new(0);
    while let Some(piece) = snapshot.next_piece().map_err(|error| error.to_string())? {
        restorer.push(&piece).map_err(|error| error.to_string())?;
    }
    let digest = restorer.digest().map(|digest| digest.to_le_bytes().to_vec());
    if digest != snapshot.tail().map(|tail| tail.digest.clone()) {
        return Err("the snapshot's digest is another than the one it was written with".to_owned());
    }
    restorer.finish().map(|table| budgets.table(table)).map_err(|error| error.to_string())
}
