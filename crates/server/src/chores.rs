//! The thread for slow work on the disk: steps of a snapshot, spare segments, removals. So a turn of the replica never
//! waits for any of it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::storage::{PIECE_BYTES_MAX, Removal, SnapshotWriter, Snapshots, Spare, SpareMaker};
use lockkeeper_replica::{Received, SnapshotStep};
use lockkeeper_wire::store::SnapshotTail;

use crate::inbox::Inbox;
use crate::node::{fail_stop, is_full};
use crate::observe;
use crate::peers::Arrived;

/// How often it is looked whether the data directory is still there: what is acknowledged after it was deleted is lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Something to do, in the order in which it is given.
pub(crate) enum Chore {
    /// One step of the snapshot; the next comes after its answer.
    Step(SnapshotStep),
    /// A segment of the log, ahead of its use.
    MakeSpare,
    /// Files that are not needed any more.
    Remove(Removal),
}

/// What came of it. A removal has no answer.
pub(crate) enum Done<D: Disk> {
    /// The step was carried out.
    Step,
    /// The snapshot was given up.
    StepFailed,
    /// Here it is.
    Spare(Spare<D::File>),
    /// It could not be made; the log makes its next segment itself.
    NoSpare,
    /// The disk is full at a point from which there is no way on.
    Full(io::Error),
    /// A leader's snapshot has arrived.
    Received(Box<Received>, Box<Arrived<D>>),
    /// The data directory is not there any more; the thread has ended.
    Gone,
}

/// What the thread works with.
pub(crate) struct Chores<D: Disk> {
    pub(crate) disk: D,
    /// Whether what this node owns is still what its path leads to.
    pub(crate) is_in_place: Box<dyn Fn() -> bool + Send>,
    pub(crate) snapshots: Snapshots<D>,
    pub(crate) spares: SpareMaker<D>,
    pub(crate) todo: Receiver<Chore>,
    pub(crate) done: Sender<Done<D>>,
    pub(crate) inbox: Arc<Inbox>,
    /// Files that are not needed any more and are still there.
    pub(crate) unremoved: Removal,
    /// Where the data are, for messages.
    pub(crate) directory: String,
}

/// A snapshot that is being written.
struct Open<D: Disk> {
    writer: SnapshotWriter<D>,
    /// As the file has them: large ones of the replica are cut.
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
    /// Runs until nobody gives chores any more, or the data directory is gone.
    pub(crate) fn run(mut self) {
        let mut writer = None;
        let mut look = Instant::now() + LOOK_EVERY;
        loop {
            let chore = match self.todo.recv_timeout(look.saturating_duration_since(Instant::now())) {
                Ok(chore) => Some(chore),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if Instant::now() >= look {
                if !(self.is_in_place)() {
                    // Fails only while the process ends.
                    let _ = self.done.send(Done::Gone);
                    return self.inbox.ring();
                }
                look = Instant::now() + LOOK_EVERY;
            }
            let Some(chore) = chore else { continue };
            let done = match chore {
                Chore::Remove(removal) => {
                    self.remove(removal);
                    continue;
                }
                Chore::MakeSpare => match self.spares.make() {
                    Ok(spare) => Done::Spare(spare),
                    Err(error) => {
                        tracing::warn!(directory = self.directory, %error, "no spare segment could be made: {error}");
                        Done::NoSpare
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

    fn step(&mut self, writer: &mut Option<Open<D>>, step: SnapshotStep) -> Done<D> {
        let result = match (step, writer.take()) {
            (SnapshotStep::Begin(head), before) => {
                // One that was given up by the replica; the next start removes what is left, if this can't.
                drop(before.map(|before| before.writer.abandon()));
                self.snapshots
                    .begin(&head)
                    .map(|writer| Some(Open { writer, pieces: 0, begun: Instant::now() }))
            }
            (SnapshotStep::Piece(piece), Some(mut open)) => match open.write(&piece) {
                Ok(()) => Ok(Some(open)),
                Err(error) => {
                    // As above.
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
                    Err(error) if is_full(&error) => return Done::Full(error),
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
                Done::Step
            }
            Err(error) => {
                tracing::warn!(directory = self.directory, %error, "a snapshot was given up: {error}");
                Done::StepFailed
            }
        }
    }

    /// In their order: what could not be removed is tried again first, since a gap in the log would look like a loss.
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
