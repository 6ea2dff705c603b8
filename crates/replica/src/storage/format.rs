//! The parts shared by all files of a data directory: the header, and the checksummed frames of write-once
//! files.
//!
//! Responsible for: recognizing a Lockkeeper file, its format version, and its data directory. The header's
//! magic, kind, version and checksum keep their offsets in every later version, so an older program can
//! report "newer" instead of "damaged".

use crc32fast::Hasher;
use lockkeeper_wire::store::HardState;

use super::FORMAT_VERSION;
use super::error::OpenError;
use crate::disk::DiskFile;

/// The unit of atomic disk writes, in bytes; records start at multiples of it.
pub const SECTOR_BYTES: usize = 512;

/// The longest payload of a frame, and so of a snapshot piece, in bytes. It bounds the size of one sync.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

pub(super) const SECTOR: u64 = SECTOR_BYTES as u64;

const MAGIC: [u8; 8] = *b"LOCKKEEP";
/// The offset of the header's checksum, which covers all bytes before it.
const CHECKSUM_AT: usize = SECTOR_BYTES - 4;

/// The data directory that a file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DirectoryIdentity {
    pub(super) cluster: [u8; 16],
    pub(super) incarnation: [u8; 16],
}

impl std::fmt::Display for DirectoryIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (cluster, incarnation) =
            (u128::from_be_bytes(self.cluster), u128::from_be_bytes(self.incarnation));
        write!(f, "cluster {cluster:032x} (incarnation {incarnation:032x})")
    }
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileKind {
    Founding = 1,
    Segment = 2,
    Snapshot = 3,
    Backup = 4,
    Candidate = 5,
}

/// A position in the log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Position {
    pub(super) index: u64,
    pub(super) term: u64,
}

/// The first sector of every file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Header {
    pub(super) kind: FileKind,
    pub(super) identity: DirectoryIdentity,
    /// Segment: its number in the log, from 1. Snapshot and backup: index of the last entry in it. Others: 0.
    pub(super) number: u64,
    /// Segment: its size in bytes, header and seal included.
    pub(super) size: u64,
    /// Segment: the number of its first record.
    pub(super) first_record: u64,
    /// Segment: the last entry of the log at the segment's start; the next field: the hard state at that
    /// moment. With them the log can be read without the earlier segments.
    pub(super) last: Position,
    pub(super) hard_state: HardState,
    /// Segment: the log was emptied at the segment's start, because a snapshot replaced it.
    pub(super) reset: bool,
}

impl Header {
    /// The header of a file without segment fields.
    pub(super) fn plain(kind: FileKind, identity: DirectoryIdentity, number: u64) -> Self {
        Self {
            kind,
            identity,
            number,
            size: 0,
            first_record: 0,
            last: Position::default(),
            hard_state: HardState::default(),
            reset: false,
        }
    }

    /// Returns the header's bytes and their checksum. That checksum seeds all other checksums of the file, so
    /// frames and records of another file are never valid in this one.
    pub(super) fn encode(&self) -> ([u8; SECTOR_BYTES], u32) {
        let mut bytes = [0; SECTOR_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.identity.cluster);
        bytes[32..48].copy_from_slice(&self.identity.incarnation);
        let numbers = [
            self.number,
            self.size,
            self.first_record,
            self.last.index,
            self.last.term,
            self.hard_state.term,
            self.hard_state.vote,
            self.hard_state.commit,
            u64::from(self.reset),
        ];
        for (place, number) in bytes[48..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Decodes a header; `file` is the name for errors, and the header must be of `kind`.
    pub(super) fn decode(
        bytes: &[u8; SECTOR_BYTES],
        file: &str,
        kind: FileKind,
    ) -> Result<(Self, u32), OpenError> {
        let corrupt = |offset, what: String| Err(OpenError::corrupt(file, offset, what));
        if bytes[..8] != MAGIC {
            return corrupt(0, "it does not begin as a file of Lockkeeper does".to_owned());
        }
        let (checksum, stored) = (crc32fast::hash(&bytes[..CHECKSUM_AT]), u32_at(bytes, CHECKSUM_AT));
        if checksum != stored {
            return corrupt(
                0,
                format!("the header's checksum is {checksum:08x}, its bytes say {stored:08x}"),
            );
        }
        let found = u32_at(bytes, 12);
        if found > FORMAT_VERSION {
            return Err(OpenError::NewerFormat { file: file.to_owned(), found });
        }
        let (found_kind, wanted) = (u32_at(bytes, 8), kind as u32);
        if found_kind != wanted || found == 0 {
            return corrupt(8, format!("it is of kind {found_kind}, format {found}; {wanted} is expected"));
        }
        let header = Self {
            kind,
            identity: DirectoryIdentity { cluster: array_at(bytes, 16), incarnation: array_at(bytes, 32) },
            number: u64_at(bytes, 48),
            size: u64_at(bytes, 56),
            first_record: u64_at(bytes, 64),
            last: Position { index: u64_at(bytes, 72), term: u64_at(bytes, 80) },
            hard_state: HardState {
                term: u64_at(bytes, 88),
                vote: u64_at(bytes, 96),
                commit: u64_at(bytes, 104),
            },
            reset: u64_at(bytes, 112) != 0,
        };
        Ok((header, checksum))
    }

    /// Reads the header of a file, which must be of `kind`. Accepts any number and any identity.
    pub(super) fn read_any(
        from: &impl DiskFile,
        file: &str,
        kind: FileKind,
    ) -> Result<(Self, u32), OpenError> {
        let size = from.size().map_err(OpenError::io("measure", file))?;
        if size < SECTOR {
            return Err(OpenError::corrupt(
                file,
                size,
                format!("the file ends within its header of {SECTOR} bytes"),
            ));
        }
        let mut bytes = [0; SECTOR_BYTES];
        from.read_at(0, &mut bytes).map_err(OpenError::io("read", file))?;
        Self::decode(&bytes, file, kind)
    }

    /// Reads the header of a file, which must be of `kind`, with this `number` and, if given, this
    /// `identity`.
    pub(super) fn read(
        from: &impl DiskFile,
        file: &str,
        kind: FileKind,
        number: u64,
        identity: Option<DirectoryIdentity>,
    ) -> Result<(Self, u32), OpenError> {
        let (header, seed) = Self::read_any(from, file, kind)?;
        if let Some(expected) = identity.filter(|expected| *expected != header.identity) {
            return Err(OpenError::AnotherCluster {
                file: file.to_owned(),
                found: header.identity.to_string(),
                expected: expected.to_string(),
            });
        }
        if header.number != number {
            return Err(OpenError::corrupt(
                file,
                48,
                format!("its header says number {}, its name {number}", header.number),
            ));
        }
        Ok((header, seed))
    }
}

/// The kind of a frame's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    Founding = 1,
    Head = 2,
    Piece = 3,
    Tail = 4,
    Candidate = 5,
}

impl Frame {
    fn from_number(number: u32) -> Option<Self> {
        [Self::Founding, Self::Head, Self::Piece, Self::Tail, Self::Candidate]
            .into_iter()
            .find(|frame| *frame as u32 == number)
    }
}

/// Payload length, content kind, checksum; 4 bytes each.
const FRAME_HEAD_BYTES: usize = 12;

/// The checksum covers the offset, so frames can't be exchanged within a file.
fn frame_checksum(seed: u32, offset: u64, head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&offset.to_le_bytes());
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

/// Replaces the content of `bytes` by a frame for offset `offset`.
///
/// # Panics
/// If the payload is longer than [`PIECE_BYTES_MAX`]; callers check.
pub(super) fn put_frame(bytes: &mut Vec<u8>, seed: u32, offset: u64, what: Frame, payload: &[u8]) {
    assert!(payload.len() <= PIECE_BYTES_MAX, "a frame of {} bytes", payload.len());
    bytes.clear();
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(what as u32).to_le_bytes());
    let checksum = frame_checksum(seed, offset, bytes, payload);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes.extend_from_slice(payload);
}

/// Reads the frame at `offset`; returns its kind, its payload and the offset of its end. `size` is the
/// file's, in bytes.
pub(super) fn read_frame(
    from: &impl DiskFile,
    file: &str,
    seed: u32,
    offset: u64,
    size: u64,
) -> Result<(Frame, Vec<u8>, u64), OpenError> {
    let corrupt = |what: String| Err(OpenError::corrupt(file, offset, what));
    let left = size.saturating_sub(offset);
    if left < FRAME_HEAD_BYTES as u64 {
        return corrupt(format!("{left} bytes are left where a frame should begin"));
    }
    let mut head = [0; FRAME_HEAD_BYTES];
    from.read_at(offset, &mut head).map_err(OpenError::io("read", file))?;
    let length = u32_at(&head, 0) as usize;
    if length > PIECE_BYTES_MAX || length as u64 > left - FRAME_HEAD_BYTES as u64 {
        return corrupt(format!(
            "a frame says {length} bytes; at most {PIECE_BYTES_MAX} are allowed, {left} are left"
        ));
    }
    let mut payload = vec![0; length];
    from.read_at(offset + FRAME_HEAD_BYTES as u64, &mut payload).map_err(OpenError::io("read", file))?;
    let (checksum, stored) = (frame_checksum(seed, offset, &head[..8], &payload), u32_at(&head, 8));
    if checksum != stored {
        return corrupt(format!("a frame's checksum is {checksum:08x}, its bytes say {stored:08x}"));
    }
    let Some(what) = Frame::from_number(u32_at(&head, 4)) else {
        return corrupt(format!("a frame of unknown kind {}", u32_at(&head, 4)));
    };
    Ok((what, payload, offset + (FRAME_HEAD_BYTES + length) as u64))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// # Panics
/// If `bytes` is too short; callers know their lengths.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}
