//! A backup: one file with a whole table, which can be stored anywhere.
//!
//! Responsible for the file format: header, head, the pieces of a snapshot, its tail. Each frame's checksum
//! also covers the frame's offset, and is seeded by the header. So a file that was cut, damaged, or assembled
//! from two files is rejected with the position. A file of a newer format is a separate error. This module
//! does not interpret the pieces.

use std::io;

use lockkeeper_wire::store::BackupHead;
use prost::Message;

use super::FORMAT_VERSION;
use super::error::OpenError;
use super::format::{DirectoryIdentity, FileKind, Frame, Header, SECTOR, put_frame, read_frame};
use super::pieces::Pieces;
use super::snapshot::{SnapshotReader, Snapshots};
use crate::disk::{Disk, DiskFile};

/// Why a file was rejected as a backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A newer program wrote the file.
    #[error(
        "`{file}` has format {found}, this program reads formats up to {FORMAT_VERSION}; use the newer program that \
         wrote it"
    )]
    NewerFormat {
        /// The file.
        file: String,
        /// The version of the file's format.
        found: u32,
    },
    /// The content was changed after it was written, or the file never was a backup.
    #[error(
        "`{file}` is no backup, or a damaged one: at byte {offset}: {what}. Nothing of it is used; take another backup, or \
         use an earlier one"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The position in the file, in bytes.
        offset: u64,
        /// The actual and the expected content.
        what: String,
    },
    /// An I/O operation failed.
    #[error("cannot {doing} `{file}`")]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// The file that it was applied to.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<OpenError> for BackupError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NewerFormat { file, found } => Self::NewerFormat { file, found },
            OpenError::Corrupt { file, offset, what } => Self::Damaged { file, offset, what },
            OpenError::Io { doing, file, source } => Self::Io { doing, file, source },
            // These errors concern data directories; reading a single file never returns them.
            other @ (OpenError::AnotherCluster { .. }
            | OpenError::Founded { .. }
            | OpenError::Unfinished { .. }
            | OpenError::Unfounded { .. }) => {
                Self::Damaged { file: String::new(), offset: 0, what: other.to_string() }
            }
        }
    }
}

/// A stored snapshot as the bytes of a backup, returned in parts.
#[derive(Debug)]
pub struct BackupParts<D: Disk> {
    snapshot: SnapshotReader<D>,
    /// Header and head, until they are returned.
    begin: Option<Vec<u8>>,
    seed: u32,
    at: u64,
    is_over: bool,
}

impl<D: Disk> Snapshots<D> {
    /// Opens the stored snapshot at `head.index` as a backup. The snapshot's term and rules replace those in
    /// `head`.
    ///
    /// # Errors
    /// As [`Snapshots::open`].
    pub fn backup(&self, head: BackupHead) -> Result<BackupParts<D>, OpenError> {
        let snapshot = self.open(head.index)?;
        let head = BackupHead { term: snapshot.head().term, rules: snapshot.head().rules, ..head };
        let (header, seed) = Header::plain(FileKind::Backup, self.identity(), head.index).encode();
        let mut frame = Vec::new();
        put_frame(&mut frame, seed, SECTOR, Frame::Head, &head.encode_to_vec());
        let begin = [header.as_slice(), &frame].concat();
        Ok(BackupParts { snapshot, seed, at: begin.len() as u64, begin: Some(begin), is_over: false })
    }
}

impl<D: Disk> BackupParts<D> {
    /// Returns the next bytes of the file, slightly more than [`PIECE_BYTES_MAX`](super::PIECE_BYTES_MAX) at
    /// most; `None` at its end.
    ///
    /// # Errors
    /// As [`SnapshotReader::next_piece`]. The parts returned before are not a valid backup then.
    pub fn next_part(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        if let Some(begin) = self.begin.take() {
            return Ok(Some(begin));
        }
        if self.is_over {
            return Ok(None);
        }
        let (what, payload) = match (self.snapshot.next_piece()?, self.snapshot.tail()) {
            (Some(piece), _) => (Frame::Piece, piece),
            (None, Some(tail)) => (Frame::Tail, tail.encode_to_vec()),
            (None, None) => return Ok(None),
        };
        self.is_over = what == Frame::Tail;
        let mut part = Vec::new();
        put_frame(&mut part, self.seed, self.at, what, &payload);
        self.at += part.len() as u64;
        Ok(Some(part))
    }
}

/// A backup that is being read. Each piece is verified before it is returned.
#[derive(Debug)]
pub struct BackupReader<F> {
    identity: DirectoryIdentity,
    head: BackupHead,
    pieces: Pieces<F>,
}

impl<F: DiskFile> BackupReader<F> {
    /// Opens `file`; errors use `name` for it.
    ///
    /// # Errors
    /// [`BackupError`] by kind.
    pub fn open(file: F, name: &str) -> Result<Self, BackupError> {
        let (header, seed) = Header::read_any(&file, name, FileKind::Backup)?;
        let size = file.size().map_err(OpenError::io("measure", name))?;
        let (what, payload, at) = read_frame(&file, name, seed, SECTOR, size)?;
        let head = match (what, BackupHead::decode(payload.as_slice())) {
            (Frame::Head, Ok(head)) if head.index == header.number => head,
            _ => {
                let what = "no head of a backup stands at its begin";
                return Err(OpenError::corrupt(name, SECTOR, what).into());
            }
        };
        let pieces = Pieces::new(file, name.to_owned(), seed, size, at);
        Ok(Self { identity: header.identity, head, pieces })
    }

    /// The backup's head.
    pub fn head(&self) -> &BackupHead {
        &self.head
    }

    /// The id of the cluster that was backed up.
    pub fn cluster(&self) -> [u8; 16] {
        self.identity.cluster
    }

    /// The table's digest, 16 bytes, little-endian; available after [`BackupReader::next_piece`] has returned
    /// `None`.
    pub fn digest(&self) -> Option<&[u8]> {
        self.pieces.tail().map(|tail| tail.digest.as_slice())
    }

    /// Returns the next piece; `None` after the last one. Only then is the backup known to be complete.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] if the piece is damaged or missing; [`BackupError::Io`].
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, BackupError> {
        Ok(self.pieces.next()?)
    }
}
