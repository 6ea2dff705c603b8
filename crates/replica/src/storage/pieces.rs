//! The pieces of a table and their tail, as stored in a snapshot and in a backup.

use lockkeeper_wire::store::SnapshotTail;
use prost::Message;

use super::error::OpenError;
use super::format::{Frame, read_frame};
use crate::disk::DiskFile;

/// Reads the frames after a file's head. Each piece is verified before it is returned.
#[derive(Debug)]
pub(super) struct Pieces<F> {
    file: F,
    name: String,
    seed: u32,
    size: u64,
    at: u64,
    pieces: u64,
    bytes: u64,
    tail: Option<SnapshotTail>,
}

impl<F: DiskFile> Pieces<F> {
    /// Starts at offset `at` of a file with `size` bytes; errors use `name` for the file.
    pub(super) fn new(file: F, name: String, seed: u32, size: u64, at: u64) -> Self {
        Self { file, name, seed, size, at, pieces: 0, bytes: 0, tail: None }
    }

    /// The size of the whole file, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The tail, after [`Pieces::next`] has returned `None`.
    pub(super) fn tail(&self) -> Option<&SnapshotTail> {
        self.tail.as_ref()
    }

    /// Returns the next piece; `None` after the last one, once the tail's counts match and the tail ends the
    /// file.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, OpenError> {
        if self.tail.is_some() {
            return Ok(None);
        }
        let at = self.at;
        let (what, payload, end) = read_frame(&self.file, &self.name, self.seed, at, self.size)?;
        self.at = end;
        match what {
            Frame::Piece => {
                self.pieces += 1;
                self.bytes += payload.len() as u64;
                Ok(Some(payload))
            }
            Frame::Tail => match SnapshotTail::decode(payload.as_slice()) {
                Ok(tail) if (tail.pieces, tail.bytes, end) == (self.pieces, self.bytes, self.size) => {
                    self.tail = Some(tail);
                    Ok(None)
                }
                _ => Err(OpenError::corrupt(
                    &self.name,
                    at,
                    format!(
                        "the tail doesn't match the {} pieces with {} bytes before it, or isn't at the end",
                        self.pieces, self.bytes
                    ),
                )),
            },
            Frame::Head | Frame::Founding | Frame::Candidate => {
                Err(OpenError::corrupt(&self.name, at, "neither a piece nor the tail stands here"))
            }
        }
    }
}
