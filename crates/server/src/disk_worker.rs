//! The disk worker's thread: snapshot steps, spare segments, removals, the free space. A turn of the replica
//! never waits for any of them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::storage::{PIECE_BYTES_MAX, Removal, SnapshotWriter, Snapshots, Spare, SpareMaker};
use lockkeeper_replica::{Received, SnapshotStep};
use lockkeeper_wire::store::SnapshotTail;

use crate::disk::{fail_stop, is_full};
use crate::disk_space::DiskSpace;
use crate::inbox::Inbox;
use crate::observe;
use crate::peers::Arrived;

/// The interval of measurements of the free space, and of checks that the data directory still exists: after
/// its deletion, acknowledged writes would be lost.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A task for the disk worker, which executes tasks in the order in which they were sent.
pub(crate) enum Chore {
    /// One step of the snapshot; the next one is sent after this one's result.
    Step(SnapshotStep),
    /// Make a log segment ahead of its use.
    MakeSpare,
    /// Remove files that are no longer needed.
    Remove(Removal),
}

/// The result of a task (a removal has none), or another event for the replica's thread.
pub(crate) enum DiskTaskResult<D: Disk> {
    /// The step was carried out.
    Step,
    /// The snapshot was abandoned.
    StepFailed,
    /// A spare segment.
    Spare(Spare<D::File>),
    /// No spare segment could be made; whether that is since the disk is full. Unless a later attempt
    /// succeeds in time, the log makes its next segment itself.
    NoSpare(bool),
    /// Completing a snapshot failed because the disk was full. The node stops: it is unknown whether its next
    /// start would load this snapshot or an older one.
    Full(io::Error),
    /// A snapshot that the leader sent was received and written to a file.
    Received(Box<Received>, Box<Arrived<D>>),
    /// The data directory no longer exists; the thread has ended.
    Gone,
}

/// The state of the disk worker's thread.
pub(crate) struct Chores<D: Disk> {
    pub(crate) disk: D,
    /// Whether the data directory's path still leads to the directory that this process owns.
    pub(crate) is_in_place: Box<dyn Fn() -> bool + Send>,
    pub(crate) snapshots: Snapshots<D>,
    pub(crate) spares: SpareMaker<D>,
    pub(crate) todo: Receiver<Chore>,
    pub(crate) done: Sender<DiskTaskResult<D>>,
    pub(crate) inbox: Arc<Inbox>,
    /// Files that are no longer needed and could not be removed yet.
    pub(crate) unremoved: Removal,
    /// Gets the measurements of the free space.
    pub(crate) space: Arc<DiskSpace>,
    /// The data directory, for messages.
    pub(crate) directory: String,
}

/// A snapshot that is being written.
struct Open<D: Disk> {
    writer: SnapshotWriter<D>,
    /// The number of pieces in the file: large pieces of the replica are split.
    pieces: u64,
    begun: Instant,
}

impl<D: Disk> Open<D> {
    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        for part in piece.chunks(PIECE_BYTES_MAX) {
            self.writer.piece(part)?;
            self.pieces += 1;
        }
        Ok(())
    }

    fn finish(self, tail: SnapshotTail) -> io::Result<Removal> {
        self.writer.finish(&SnapshotTail { pieces: self.pieces, ..tail })
    }
}

impl<D: Disk> Chores<D> {
    /// Runs until all senders of tasks are dropped, or the data directory no longer exists.
    pub(crate) fn run(mut self) {
        let mut writer = None;
        let mut next_check = Instant::now() + CHECK_EVERY;
        loop {
            let chore = match self.todo.recv_timeout(next_check.saturating_duration_since(Instant::now())) {
                Ok(chore) => Some(chore),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if Instant::now() >= next_check {
                if !(self.is_in_place)() {
                    // Sending fails only while the process ends.
                    let _ = self.done.send(DiskTaskResult::Gone);
                    return self.inbox.ring();
                }
                self.space.measure(Path::new(&self.directory));
                next_check = Instant::now() + CHECK_EVERY;
            }
            let Some(chore) = chore else { continue };
            let done = match chore {
                Chore::Remove(removal) => {
                    self.remove(removal);
                    continue;
                }
                Chore::MakeSpare => match self.spares.make() {
                    Ok(spare) => {
                        self.space.has_segment(Instant::now(), true);
                        DiskTaskResult::Spare(spare)
                    }
                    Err(error) if is_full(&error) => {
                        self.space.has_segment(Instant::now(), false);
                        DiskTaskResult::NoSpare(true)
                    }
                    Err(error) => {
                        tracing::warn!(directory = self.directory, %error, "no spare segment could be made: {error}");
                        DiskTaskResult::NoSpare(false)
                    }
                },
                Chore::Step(step) => self.step(&mut writer, step),
            };
            if self.done.send(done).is_err() {
                return;
            }
            self.inbox.ring();
        }
    }

    fn step(&mut self, writer: &mut Option<Open<D>>, step: SnapshotStep) -> DiskTaskResult<D> {
        let result = match (step, writer.take()) {
            (SnapshotStep::Begin(head), before) => {
                // `before` is a snapshot that the replica has abandoned. If its file can't be removed now,
                // the next start removes it.
                drop(before.map(|before| before.writer.abandon()));
                self.snapshots
                    .begin(&head)
                    .map(|writer| Some(Open { writer, pieces: 0, begun: Instant::now() }))
            }
            (SnapshotStep::Piece(piece), Some(mut open)) => match open.write(&piece) {
                Ok(()) => Ok(Some(open)),
                Err(error) => {
                    // If the file can't be removed now, the next start removes it.
                    drop(open.writer.abandon());
                    Err(error)
                }
            },
            (SnapshotStep::Finish(tail), Some(open)) => {
                let (begun, bytes) = (open.begun, tail.bytes);
                match open.finish(tail) {
                    Ok(older) => {
                        observe::snapshot(begun.elapsed(), bytes);
                        self.remove(older);
                        Ok(None)
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
                    Err(error) if is_full(&error) => return DiskTaskResult::Full(error),
                    Err(error) => fail_stop(&self.directory, "a snapshot", &error),
                }
            }
            (SnapshotStep::Piece(_) | SnapshotStep::Finish(_), None) => {
                Err(io::Error::other("no snapshot was begun"))
            }
        };
        match result {
            Ok(next) => {
                *writer = next;
                DiskTaskResult::Step
            }
            Err(error) => {
                tracing::warn!(directory = self.directory, %error, "a snapshot was given up: {error}");
                DiskTaskResult::StepFailed
            }
        }
    }

    /// Removes files in the order of the requests; files whose removal failed are tried again first.
    /// Otherwise a segment could be missing between two that remain, and the next start would take that for
    /// data loss.
    fn remove(&mut self, removal: Removal) {
        self.unremoved.then(removal);
        if let Err(error) = self.unremoved.run(&self.disk) {
            tracing::warn!(
                directory = self.directory,
                %error,
                "old files could not be removed ({error}); they are tried again with the next ones"
            );
        }
    }
}
