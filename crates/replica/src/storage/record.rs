//! Record layout in sectors: encoding of one log write, and decoding of a segment's bytes.
//!
//! Responsible for: distinguishing a record that a crash cut off (torn) from a damaged one. A sector is
//! written atomically, and a record is written over zeros. So a sector of the record that did not reach the
//! disk is all zero, and a sector that did is not, because it begins with a tag of two non-zero bytes. At
//! most one record is unsynced at a time, so only the last record of the log can be torn, and only zeros
//! follow it.
//!
//! ```text
//! first sector   tag 2 · checksum of the record 4 · checksum of this head 4 · length 4 · number 8 · payload 490
//! further ones   tag 2 · payload 510
//! ```
//! The record's checksum covers the first tag, and all bytes of the record's sectors from the length on,
//! padding included. The head (the fields of the first sector before the payload) has its own checksum: the
//! length of a torn record must be trustworthy, because it determines which sectors are missing.

use std::ops::Range;

use crc32fast::Hasher;
use lockkeeper_wire::store::Record;
use prost::Message;

use super::format::{SECTOR_BYTES, u32_at, u64_at};

/// The longest record, in bytes. All entries of a turn share one record: on a follower about 8 MiB, which is
/// the most that a turn reads from its peers; on a leader a few entries of about 1 MiB.
pub const RECORD_BYTES_MAX: usize = 32 << 20;

const FIRST: [u8; 2] = *b"R1";
const NEXT: [u8; 2] = *b"R+";
const SEAL: [u8; 2] = *b"R.";
const TAG: usize = 2;
const HEAD_CHECKED: Range<usize> = 10..22;
const HEAD: usize = 22;
const FIRST_ROOM: usize = SECTOR_BYTES - HEAD;
const NEXT_ROOM: usize = SECTOR_BYTES - TAG;

/// The size on disk of a record with a payload of `length` bytes, in bytes; a multiple of the sector size.
pub(super) fn size(length: usize) -> usize {
    (1 + length.saturating_sub(FIRST_ROOM).div_ceil(NEXT_ROOM)) * SECTOR_BYTES
}

/// The size on disk of this record, in bytes: whole sectors; 0 if it has nothing to write.
#[must_use]
pub fn record_bytes(record: &Record) -> u64 {
    match record.encoded_len() {
        0 => 0,
        length => size(length) as u64,
    }
}

/// Replaces the content of `sectors` by record `number`.
pub(super) fn put(sectors: &mut Vec<u8>, seed: u32, number: u64, payload: &[u8]) {
    debug_assert!(payload.len() <= RECORD_BYTES_MAX, "callers check");
    sectors.clear();
    sectors.reserve(size(payload.len()));
    sectors.extend_from_slice(&FIRST);
    sectors.extend_from_slice(&[0; 8]);
    sectors.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    sectors.extend_from_slice(&number.to_le_bytes());
    let (first, rest) = payload.split_at(payload.len().min(FIRST_ROOM));
    sectors.extend_from_slice(first);
    for part in rest.chunks(NEXT_ROOM) {
        sectors.extend_from_slice(&NEXT);
        sectors.extend_from_slice(part);
    }
    sectors.resize(size(payload.len()), 0);
    let checksum = checksum(seed, sectors);
    sectors[2..6].copy_from_slice(&checksum.to_le_bytes());
    let checksum = head_checksum(seed, sectors);
    sectors[6..10].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(seed: u32, sectors: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&sectors[..TAG]);
    hasher.update(&sectors[HEAD_CHECKED.start..]);
    hasher.finalize()
}

fn head_checksum(seed: u32, sectors: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&sectors[..6]);
    hasher.update(&sectors[HEAD_CHECKED]);
    hasher.finalize()
}

/// The result of decoding at one offset of a segment.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A complete record: its payload, and its size on disk in bytes.
    Record(Vec<u8>, usize),
    /// Nothing was written at this offset or after it.
    End,
    /// The last write of the log, only a part of which reached the disk. It was never acknowledged.
    Torn,
    /// Damage: its distance in bytes from the offset, and a description.
    Bad(usize, String),
}

fn bad(at: usize, what: impl Into<String>) -> Found {
    Found::Bad(at, what.into())
}

/// Decodes `area`: the rest of a segment, from the offset at which record `number` should begin.
pub(super) fn find(area: &[u8], seed: u32, number: u64) -> Found {
    let Some(head) = area.first_chunk::<SECTOR_BYTES>() else {
        return Found::End;
    };
    if is_zero(head) {
        return match first_written(&area[SECTOR_BYTES..]) {
            None => Found::End,
            // The first sector is missing, so the length is unknown. The record is torn if all sectors
            // written from here on can belong to it.
            Some(_) => torn_unless_another(area, area.len()),
        };
    }
    if head[..TAG] != FIRST {
        return bad(0, "neither a record nor zeros begin here");
    }
    let (checked, stored) = (head_checksum(seed, head), u32_at(head, 6));
    if checked != stored {
        return bad(
            0,
            format!("the checksum of a record's head is {checked:08x}, its bytes say {stored:08x}"),
        );
    }
    let (length, found) = (u32_at(head, 10) as usize, u64_at(head, 14));
    if found != number {
        return bad(0, format!("record {found} stands where record {number} should"));
    }
    let size = size(length);
    if length > RECORD_BYTES_MAX || size > area.len() {
        return bad(
            0,
            format!("record {number} says {length} bytes, {} are left in its segment", area.len()),
        );
    }
    let sectors = &area[..size];
    let (checked, stored) = (checksum(seed, sectors), u32_at(head, 2));
    if checked == stored {
        return Found::Record(payload(sectors, length), size);
    }
    if sectors.chunks(SECTOR_BYTES).any(is_zero) {
        return torn_unless_another(area, size);
    }
    bad(0, format!("the checksum of record {number} is {checked:08x}, its bytes say {stored:08x}"))
}

/// A record with missing sectors is torn if its present sectors after the first have the tag `NEXT`, and
/// nothing is written after the record. Otherwise a later write had begun, so this record had been synced,
/// and the missing sector is damage.
fn torn_unless_another(area: &[u8], size: usize) -> Found {
    let (own, behind) = area.split_at(size);
    let strange = own
        .chunks(SECTOR_BYTES)
        .skip(1)
        .position(|sector| !is_zero(sector) && sector[..TAG.min(sector.len())] != NEXT)
        .map(|sector| (sector + 1) * SECTOR_BYTES);
    match strange.or_else(|| first_written(behind).map(|at| size + at)) {
        None => Found::Torn,
        Some(at) => {
            bad(at, "a sector before this one is missing, and this one was written after it was synced")
        }
    }
}

fn payload(sectors: &[u8], length: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(sectors.len());
    for (index, sector) in sectors.chunks(SECTOR_BYTES).enumerate() {
        payload.extend_from_slice(&sector[if index == 0 { HEAD } else { TAG }..]);
    }
    payload.truncate(length);
    payload
}

/// The last sector of a full segment. It marks that the log continues in the next segment, with the record
/// after `last`.
pub(super) fn seal(seed: u32, last: u64) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    sector[..TAG].copy_from_slice(&SEAL);
    sector[14..22].copy_from_slice(&last.to_le_bytes());
    let checksum = checksum(seed, &sector);
    sector[2..6].copy_from_slice(&checksum.to_le_bytes());
    sector
}

/// Returns the offset of the first non-zero byte, if any.
pub(super) fn first_written(bytes: &[u8]) -> Option<usize> {
    // By sectors first: comparing slices is much faster than comparing single bytes.
    let sector = bytes.chunks(SECTOR_BYTES).position(|sector| !is_zero(sector))? * SECTOR_BYTES;
    bytes[sector..].iter().position(|byte| *byte != 0).map(|byte| sector + byte)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes == &[0; SECTOR_BYTES][..bytes.len()]
}
