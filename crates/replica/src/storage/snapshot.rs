//! Snapshots of the table: each a file of its own, written in pieces, complete as soon as it has its name.
//!
//! Responsible for: a snapshot is whole or it isn't there. It is written under a temporary name, synced piece by piece
//! so that the log's syncs never wait behind a huge one, and gets its name when all of it is on the disk. So a file with
//! the name of a snapshot that can't be read is damage, and refuses; the one before it is never taken instead, since the
//! log between the two may be gone.
//!
//! One that a leader sent is [sealed](SnapshotWriter::seal) first: whether it may count is for the consensus to say, and
//! only then is it [published](Sealed::publish), **before** the log gives way to it. The other way round a crash between
//! the two leaves a log that begins behind a snapshot that isn't there: a healthy node that refuses its own disk.
//!
//! What the pieces hold is not known here.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_wire::store::{SnapshotHead, SnapshotTail};
use prost::Message;

use super::Removal;
use super::error::OpenError;
use super::format::{Frame, Header, Identity, Kind, PIECE_BYTES_MAX, SECTOR, put_frame, read_frame};
use super::pieces::Pieces;
use super::segment::{TEMPORARY, numbered};
use crate::disk::{Disk, DiskFile};

const PREFIX: &str = "snapshot-";

fn name(index: u64) -> String {
    format!("{PREFIX}{index:020}")
}

pub(super) fn index(name: &str) -> Option<u64> {
    numbered(name, PREFIX)
}

/// The snapshots of one data directory. A clone may be used on another thread.
#[derive(Clone, Debug)]
pub struct Snapshots<D> {
    disk: D,
    identity: Identity,
    begun: Arc<AtomicU64>,
}

impl<D: Disk> Snapshots<D> {
    pub(super) fn new(disk: D, identity: Identity) -> Self {
        Self { disk, identity, begun: Arc::default() }
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Begins to write the snapshot at `head.index`.
    ///
    /// # Errors
    /// Whatever the disk says. Nothing else is harmed by it.
    pub fn begin(&self, head: &SnapshotHead) -> io::Result<SnapshotWriter<D>> {
        let temporary = format!("incoming-{}{TEMPORARY}", self.begun.fetch_add(1, Ordering::Relaxed));
        let (header, seed) = Header::plain(Kind::Snapshot, self.identity, head.index).encode();
        let mut file = self.disk.create(&temporary)?;
        file.write_at(0, &header)?;
        let mut writer = SnapshotWriter {
            disk: self.disk.clone(),
            file,
            temporary,
            index: head.index,
            seed,
            at: SECTOR,
            synced: 0,
            pieces: 0,
            bytes: 0,
            buffer: Vec::new(),
            failed: false,
        };
        writer.frame(Frame::Head, &head.encode_to_vec())?;
        Ok(writer)
    }

    /// Opens the snapshot at `index`, to read it from the start.
    ///
    /// # Errors
    /// [`OpenError::Io`] if there is none, or the disk says so; [`OpenError::Corrupt`] and the like if it is damaged.
    pub fn open(&self, index: u64) -> Result<SnapshotReader<D>, OpenError> {
        let file_name = name(index);
        let file = self.disk.open(&file_name).map_err(OpenError::io("open", &file_name))?;
        let (_, seed) = Header::read(&file, &file_name, Kind::Snapshot, index, Some(self.identity))?;
        let size = file.size().map_err(OpenError::io("measure", &file_name))?;
        let (what, payload, at) = read_frame(&file, &file_name, seed, SECTOR, size)?;
        let head = match (what, SnapshotHead::decode(payload.as_slice())) {
            (Frame::Head, Ok(head)) if head.index == index => head,
            _ => {
                return Err(OpenError::corrupt(
                    &file_name,
                    SECTOR,
                    "no head of this snapshot stands at its begin",
                ));
            }
        };
        Ok(SnapshotReader { head, pieces: Pieces::new(file, file_name, seed, size, at) })
    }
}

/// All snapshots but the newest, to be removed.
fn older(disk: &impl Disk) -> io::Result<Removal> {
    let mut indexes: Vec<u64> = disk.list()?.iter().filter_map(|name| index(name)).collect();
    indexes.sort_unstable();
    indexes.pop();
    Ok(Removal::new(indexes.into_iter().map(name).collect()))
}

/// A snapshot that is being written. Dropped before [`SnapshotWriter::finish`], it leaves a temporary file that the next
/// start removes; [`SnapshotWriter::abandon`] removes it at once.
#[derive(Debug)]
pub struct SnapshotWriter<D: Disk> {
    disk: D,
    file: D::File,
    temporary: String,
    index: u64,
    seed: u32,
    at: u64,
    synced: u64,
    pieces: u64,
    bytes: u64,
    buffer: Vec<u8>,
    failed: bool,
}

impl<D: Disk> SnapshotWriter<D> {
    /// Writes the next piece, of at most [`PIECE_BYTES_MAX`] bytes. Synced as soon as that many bytes aren't.
    ///
    /// # Errors
    /// `InvalidInput` for a piece that is too long; whatever the disk says. After the latter the snapshot can't be
    /// finished; nothing else is harmed.
    pub fn piece(&mut self, piece: &[u8]) -> io::Result<()> {
        if piece.len() > PIECE_BYTES_MAX {
            return Err(invalid(format!(
                "a piece of a snapshot has {} bytes, at most {PIECE_BYTES_MAX} are allowed; split it",
                piece.len()
            )));
        }
        self.frame(Frame::Piece, piece)?;
        self.pieces += 1;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// Ends the snapshot and makes it durable: once this returns, it is the one that a start will find, if no newer one
    /// exists. The answer removes those before it; the log may be [compacted](super::Log::compact) up to it.
    ///
    /// # Errors
    /// `InvalidInput` if `tail` counts other pieces or bytes than were written; whatever the disk says. After the latter
    /// it is unknown whether a start will find it: the process must end, as after a failed write of the log.
    pub fn finish(self, tail: &SnapshotTail) -> io::Result<Removal> {
        self.seal(tail)?.publish()
    }

    /// Ends the snapshot and makes all of it durable, but for its name: a start does not find it.
    ///
    /// # Errors
    /// `InvalidInput` if `tail` counts other pieces or bytes than were written; whatever the disk says. What was written is
    /// removed then, and nothing else is harmed.
    pub fn seal(mut self, tail: &SnapshotTail) -> io::Result<Sealed<D>> {
        if let Err(error) = self.end(tail) {
            // The next start removes what is left, if this can't.
            drop(self.abandon());
            return Err(error);
        }
        let Self { disk, temporary, index, bytes, .. } = self;
        Ok(Sealed { disk, temporary, index, bytes })
    }

    fn end(&mut self, tail: &SnapshotTail) -> io::Result<()> {
        if (tail.pieces, tail.bytes) != (self.pieces, self.bytes) {
            return Err(invalid(format!(
                "the snapshot's tail says {} pieces with {} bytes, written were {} with {}",
                tail.pieces, tail.bytes, self.pieces, self.bytes
            )));
        }
        self.frame(Frame::Tail, &tail.encode_to_vec())?;
        self.file.sync()
    }

    /// Gives the snapshot up and removes what was written of it.
    ///
    /// # Errors
    /// Whatever the disk says; the next start removes it then.
    pub fn abandon(self) -> io::Result<()> {
        let Self { disk, file, temporary, .. } = self;
        drop(file);
        disk.remove(&temporary)
    }

    fn frame(&mut self, what: Frame, payload: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other(
                "an earlier write of this snapshot failed; abandon it and begin another",
            ));
        }
        put_frame(&mut self.buffer, self.seed, self.at, what, payload);
        let end = self.at + self.buffer.len() as u64;
        let mut result = self.file.write_at(self.at, &self.buffer);
        if result.is_ok() && end - self.synced >= PIECE_BYTES_MAX as u64 {
            result = self.file.sync();
            self.synced = end;
        }
        self.at = end;
        self.failed = result.is_err();
        result
    }
}

/// A snapshot that is whole on the disk and has no name yet: nothing of it counts. Dropped, it leaves a temporary file
/// that the next start removes; [`Sealed::give_up`] removes it earlier.
#[derive(Debug)]
#[must_use = "it takes up room, and counts for nothing"]
pub struct Sealed<D> {
    disk: D,
    temporary: String,
    index: u64,
    bytes: u64,
}

impl<D: Disk> Sealed<D> {
    /// The last entry in it.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// What its pieces hold, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives it its name, durably: once this returns, it is the one that a start will find, if no newer one exists. The
    /// answer removes those before it. One that was received: [`Log::reset`](super::Log::reset) must follow.
    ///
    /// # Errors
    /// Whatever the disk says. It is unknown then whether a start will find it: the process must end, as after a failed
    /// write of the log.
    pub fn publish(self) -> io::Result<Removal> {
        self.disk.rename(&self.temporary, &name(self.index))?;
        self.disk.sync_names()?;
        older(&self.disk)
    }

    /// Gives it up: the answer removes it.
    pub fn give_up(self) -> Removal {
        Removal::new(vec![self.temporary])
    }
}

/// A snapshot that is being read, piece by piece; each is checked before it is handed out.
#[derive(Debug)]
pub struct SnapshotReader<D: Disk> {
    head: SnapshotHead,
    pieces: Pieces<D::File>,
}

impl<D: Disk> SnapshotReader<D> {
    /// Where in the log it stands.
    pub fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// How long its file is, in bytes: about what its pieces hold.
    pub fn file_bytes(&self) -> u64 {
        self.pieces.size()
    }

    /// Its tail, once [`SnapshotReader::next_piece`] has said that there is no further piece.
    pub fn tail(&self) -> Option<&SnapshotTail> {
        self.pieces.tail()
    }

    /// The next piece; `None` after the last one. Only then is it sure that nothing of the snapshot is missing.
    ///
    /// # Errors
    /// [`OpenError::Corrupt`] if it isn't what was written; [`OpenError::Io`].
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        self.pieces.next()
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
