//! Snapshots of the table, one file each, written in pieces. A snapshot is complete once its file has its
//! final name.
//!
//! Responsible for: a snapshot is complete or does not exist. It is written under a temporary name, synced in
//! steps so that the log's syncs never wait for a large one, and renamed when all of it is on the disk. So a
//! file with a final name that can't be read is damaged, and the start fails. It never falls back to the
//! previous snapshot, because the log between the two may be gone.
//!
//! A snapshot from a leader is [sealed](SnapshotWriter::seal) first. The consensus engine decides whether the
//! snapshot takes effect, and only then is it [published](Sealed::publish), **before** the log is reset. In
//! the opposite order, a crash between the two steps would leave a log that begins after a missing snapshot,
//! and a healthy node would reject its own disk.
//!
//! This module does not interpret the content of the pieces.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_wire::store::{SnapshotHead, SnapshotTail};
use prost::Message;

use super::Removal;
use super::error::OpenError;
use super::format::{
    DirectoryIdentity, FileKind, Frame, Header, PIECE_BYTES_MAX, SECTOR, put_frame, read_frame,
};
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
    identity: DirectoryIdentity,
    begun: Arc<AtomicU64>,
}

impl<D: Disk> Snapshots<D> {
    pub(super) fn new(disk: D, identity: DirectoryIdentity) -> Self {
        Self { disk, identity, begun: Arc::default() }
    }

    pub(super) fn identity(&self) -> DirectoryIdentity {
        self.identity
    }

    /// Begins to write the snapshot at `head.index`.
    ///
    /// # Errors
    /// The disk's I/O error. No other data are harmed.
    pub fn begin(&self, head: &SnapshotHead) -> io::Result<SnapshotWriter<D>> {
        let temporary = format!("incoming-{}{TEMPORARY}", self.begun.fetch_add(1, Ordering::Relaxed));
        let (header, seed) = Header::plain(FileKind::Snapshot, self.identity, head.index).encode();
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

    /// Opens the snapshot at `index`, at its first piece.
    ///
    /// # Errors
    /// [`OpenError::Io`] if it does not exist or the disk fails; [`OpenError::Corrupt`] and related errors if
    /// it is damaged.
    pub fn open(&self, index: u64) -> Result<SnapshotReader<D>, OpenError> {
        let file_name = name(index);
        let file = self.disk.open(&file_name).map_err(OpenError::io("open", &file_name))?;
        let (_, seed) = Header::read(&file, &file_name, FileKind::Snapshot, index, Some(self.identity))?;
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

/// Returns the removal of all snapshots except the newest.
fn older(disk: &impl Disk) -> io::Result<Removal> {
    let mut indexes: Vec<u64> = disk.list()?.iter().filter_map(|name| index(name)).collect();
    indexes.sort_unstable();
    indexes.pop();
    Ok(Removal::new(indexes.into_iter().map(name).collect()))
}

/// A snapshot that is being written. If dropped before [`SnapshotWriter::finish`], it leaves a temporary file
/// that the next start deletes; [`SnapshotWriter::abandon`] deletes the file at once.
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
    /// Writes the next piece, of at most [`PIECE_BYTES_MAX`] bytes. Syncs when that many bytes are unsynced.
    ///
    /// # Errors
    /// `InvalidInput` for a piece that is too long, or the disk's I/O error. After an I/O error the snapshot
    /// can't be finished; no other data are harmed.
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

    /// Completes the snapshot and makes it durable: once this returns, a start opens it unless a newer one
    /// exists. The returned removal deletes the older snapshots; the log may be
    /// [compacted](super::Log::compact) up to this one.
    ///
    /// # Errors
    /// `InvalidInput` if the counts in `tail` differ from the pieces or bytes written, or the disk's I/O
    /// error. After an I/O error it is unknown whether a start opens it: the process must end, as after a
    /// failed write of the log.
    pub fn finish(self, tail: &SnapshotTail) -> io::Result<Removal> {
        self.seal(tail)?.publish()
    }

    /// Completes the snapshot and makes all of it durable except its final name: a start does not open it.
    ///
    /// # Errors
    /// `InvalidInput` if the counts in `tail` differ from the pieces or bytes written, or the disk's I/O
    /// error. The file is deleted then, and no other data are harmed.
    pub fn seal(mut self, tail: &SnapshotTail) -> io::Result<Sealed<D>> {
        if let Err(error) = self.end(tail) {
            // If this fails, the next start deletes the file.
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

    /// Abandons the snapshot and deletes its file.
    ///
    /// # Errors
    /// The disk's I/O error; the next start deletes the file then.
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

/// A complete, durable snapshot that still has its temporary name and has no effect. If dropped, it leaves a
/// temporary file that the next start deletes; [`Sealed::give_up`] deletes it earlier.
#[derive(Debug)]
#[must_use = "it takes up room, and counts for nothing"]
pub struct Sealed<D> {
    disk: D,
    temporary: String,
    index: u64,
    bytes: u64,
}

impl<D: Disk> Sealed<D> {
    /// The index of the last entry in the snapshot.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The size of the pieces' content, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Renames the snapshot to its final name, durably: once this returns, a start opens it unless a newer
    /// one exists. The returned removal deletes the older snapshots. If the snapshot was received,
    /// [`Log::reset`](super::Log::reset) must follow.
    ///
    /// # Errors
    /// The disk's I/O error. It is unknown then whether a start opens it: the process must end, as after a
    /// failed write of the log.
    pub fn publish(self) -> io::Result<Removal> {
        self.disk.rename(&self.temporary, &name(self.index))?;
        self.disk.sync_names()?;
        older(&self.disk)
    }

    /// Abandons the snapshot; the returned removal deletes its file.
    pub fn give_up(self) -> Removal {
        Removal::new(vec![self.temporary])
    }
}

/// A snapshot that is being read. Each piece is verified before it is returned.
#[derive(Debug)]
pub struct SnapshotReader<D: Disk> {
    head: SnapshotHead,
    pieces: Pieces<D::File>,
}

impl<D: Disk> SnapshotReader<D> {
    /// The snapshot's head, with its position in the log.
    pub fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// The length of the file, in bytes: about the size of the pieces' content.
    pub fn file_bytes(&self) -> u64 {
        self.pieces.size()
    }

    /// The tail, after [`SnapshotReader::next_piece`] has returned `None`.
    pub fn tail(&self) -> Option<&SnapshotTail> {
        self.pieces.tail()
    }

    /// Returns the next piece; `None` after the last one. Only then is the snapshot known to be complete.
    ///
    /// # Errors
    /// [`OpenError::Corrupt`] if the piece is damaged or missing; [`OpenError::Io`].
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        self.pieces.next()
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
