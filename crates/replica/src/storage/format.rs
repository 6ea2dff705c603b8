//! What all files of a data directory have in common: the header, and the checked frames of those that are written once.
//!
//! Responsible for: telling a file of ours from anything else, its format's version, and to which data directory it
//! belongs. The header's magic, kind, version and checksum keep their places in every later version, so that an older
//! program can say "newer" rather than "damaged".

use crc32fast::Hasher;
use lockkeeper_wire::store::HardState;

use super::error::OpenError;
use crate::disk::DiskFile;

/// The version of everything that [`crate::storage`] writes. One number: files of two versions never stand side by side.
pub const FORMAT_VERSION: u32 = 1;

/// What a disk writes whole or not at all, in bytes; records start on its multiples.
pub const SECTOR_BYTES: usize = 512;

/// The longest payload of a frame, so of a piece of a snapshot, in bytes: what is synced at once must not be huge.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

pub(super) const SECTOR: u64 = SECTOR_BYTES as u64;

const MAGIC: [u8; 8] = *b"LOCKKEEP";
/// Where the header's checksum stands, over all bytes before it.
const CHECKSUM_AT: usize = SECTOR_BYTES - 4;

/// To which data directory a file belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) cluster: [u8; 16],
    pub(super) incarnation: [u8; 16],
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (cluster, incarnation) =
            (u128::from_be_bytes(self.cluster), u128::from_be_bytes(self.incarnation));
        write!(f, "cluster {cluster:032x} (incarnation {incarnation:032x})")
    }
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Founding = 1,
    Segment = 2,
    Snapshot = 3,
    Backup = 4,
    Candidate = 5,
}

/// Where a log stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Position {
    pub(super) index: u64,
    pub(super) term: u64,
}

/// The first sector of every file.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) identity: Identity,
    /// Of a segment: its place in the log, from 1. Of a snapshot: its index.
    pub(super) number: u64,
    /// Of a segment: its size in bytes, header and seal included.
    pub(super) size: u64,
    /// Of a segment: the number of its first record.
    pub(super) first_record: u64,
    /// Of a segment: the last entry when it was begun, and the hard state. So earlier segments can go.
    pub(super) last: Position,
    pub(super) hard_state: HardState,
    /// Of a segment: the log was emptied when it was begun, since a snapshot took its place.
    pub(super) reset: bool,
}

impl Header {
    /// Of a file that needs no more than a name.
    pub(super) fn plain(kind: Kind, identity: Identity, number: u64) -> Self {
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

    /// Its bytes, and their checksum, which seeds all further ones of the file: content of another file is none here.
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

    /// Reads the header of `file`, which must be of `kind`.
    pub(super) fn decode(
        bytes: &[u8; SECTOR_BYTES],
        file: &str,
        kind: Kind,
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
            identity: Identity { cluster: array_at(bytes, 16), incarnation: array_at(bytes, 32) },
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

    /// Reads the header of `file`, which must be of `kind`.
    pub(super) fn read_any(from: &impl DiskFile, file: &str, kind: Kind) -> Result<(Self, u32), OpenError> {
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

    /// Reads the header of `file`, which must be of `kind`, have this `number`, and belong where it lies.
    pub(super) fn read(
        from: &impl DiskFile,
        file: &str,
        kind: Kind,
        number: u64,
        identity: Option<Identity>,
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

/// What a frame holds.
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

/// Length, what it holds, checksum.
const FRAME_HEAD_BYTES: usize = 12;

/// The checksum depends on the place, so that frames can't be exchanged.
fn frame_checksum(seed: u32, offset: u64, head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&offset.to_le_bytes());
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}

/// Replaces `bytes` by a frame that will stand at `offset`.
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

/// Reads the frame of `file` at `offset`, and says where it ends. `size` is the file's.
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
/// If `bytes` ends before; callers know their lengths.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}
