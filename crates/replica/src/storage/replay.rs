//! Reads the log back at a start.
//!
//! Responsible for one decision: which bytes belong to the log. A torn last record is dropped; all other
//! damage makes the start fail. Reads only.

use bytes::Bytes;
use lockkeeper_wire::store::{Entry, HardState, Record};
use prost::Message;

use super::error::OpenError;
use super::format::{DirectoryIdentity, FileKind, Header, Position, SECTOR};
use super::log::{Closed, follows};
use super::record::{self, Found};
use super::segment::{self, SECTORS_MIN};
use crate::disk::{Disk, DiskFile};

/// The log as read.
pub(super) struct Replay {
    /// The index of the entry before the first one, and its term if known.
    pub(super) base: u64,
    pub(super) base_term: Option<u64>,
    pub(super) entries: Vec<Entry>,
    /// The size on disk of the records with entries after the index that [`read`] was given, in bytes.
    pub(super) bytes_after: u64,
    pub(super) hard_state: HardState,
    pub(super) next_record: u64,
    /// All segments except the last.
    pub(super) closed: Vec<Closed>,
    pub(super) last: LastSegment,
    /// Number, seed and size of the last segment but one, if the last one has no records. The node may have
    /// stopped before the seal was written, or the seal may not have reached the disk; so the segment is
    /// sealed again.
    pub(super) seal_again: Option<(u64, u32, u64)>,
}

/// The segment that takes appends.
pub(super) struct LastSegment {
    pub(super) header: Header,
    pub(super) seed: u32,
    /// Header and records, without the unused rest.
    pub(super) bytes: Vec<u8>,
    pub(super) highest: u64,
}

/// One segment as read.
struct Segment {
    header: Header,
    seed: u32,
    bytes: Vec<u8>,
    /// Offset of the end of the segment's records, in bytes.
    end: usize,
    highest: u64,
    sealed: bool,
}

/// Reads the segments with these numbers, in ascending order. `after`: the index of the last entry in the
/// snapshot.
pub(super) fn read(
    disk: &impl Disk,
    identity: DirectoryIdentity,
    numbers: &[u64],
    after: u64,
) -> Result<Replay, OpenError> {
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else {
        return Err(missing(1, "and so is every other part of the log, though a cluster was founded here"));
    };
    for pair in numbers.windows(2) {
        if pair[0] + 1 != pair[1] {
            return Err(missing(
                pair[0] + 1,
                &format!(
                    "though parts {first} to {} and {} to {last} of the log are there",
                    pair[0], pair[1]
                ),
            ));
        }
    }
    let mut reader: Option<ReplayState> = None;
    for number in numbers {
        let name = segment::name(*number);
        let (header, seed, bytes) = load(disk, &name, *number, identity)?;
        let reader = match &mut reader {
            Some(reader) => {
                reader.go_on(&header, &name)?;
                reader
            }
            None => reader.insert(ReplayState::begin(&header, after)),
        };
        reader.segment(header, seed, bytes, &name, number == last)?;
    }
    reader.ok_or_else(|| missing(1, "and so is the rest of the log"))?.finish()
}

fn missing(number: u64, what: &str) -> OpenError {
    OpenError::corrupt(&segment::name(number), 0, format!("the file is missing, {what}"))
}

/// Whether the only segment of a directory without a bootstrap record is unused, as an interrupted bootstrap
/// leaves it.
pub(super) fn is_unused(disk: &impl Disk, number: u64) -> Result<bool, OpenError> {
    let name = segment::name(number);
    let file = disk.open(&name).map_err(OpenError::io("open", &name))?;
    let (header, _) = Header::read(&file, &name, FileKind::Segment, number, None)?;
    let (_, _, bytes) = load(disk, &name, number, header.identity)?;
    Ok(record::first_written(&bytes[SECTOR as usize..]).is_none())
}

fn load(
    disk: &impl Disk,
    name: &str,
    number: u64,
    identity: DirectoryIdentity,
) -> Result<(Header, u32, Vec<u8>), OpenError> {
    let file = disk.open(name).map_err(OpenError::io("open", name))?;
    let (header, seed) = Header::read(&file, name, FileKind::Segment, number, Some(identity))?;
    let size = file.size().map_err(OpenError::io("measure", name))?;
    if header.size != size || !size.is_multiple_of(SECTOR) || size < SECTORS_MIN * SECTOR {
        return Err(OpenError::corrupt(
            name,
            size.min(header.size),
            format!("it has {size} bytes, its header says {}", header.size),
        ));
    }
    let mut bytes = vec![0; size as usize];
    file.read_at(0, &mut bytes).map_err(OpenError::io("read", name))?;
    Ok((header, seed, bytes))
}

/// The log as read so far.
struct ReplayState {
    base: u64,
    base_term: Option<u64>,
    entries: Vec<Entry>,
    after: u64,
    bytes_after: u64,
    hard_state: HardState,
    next_record: u64,
    segments: Vec<Segment>,
}

impl ReplayState {
    fn begin(header: &Header, after: u64) -> Self {
        Self {
            base: header.last.index,
            base_term: Some(header.last.term),
            entries: Vec::new(),
            after,
            bytes_after: 0,
            hard_state: header.hard_state,
            next_record: header.first_record,
            segments: Vec::new(),
        }
    }

    fn last(&self) -> Position {
        let base = || Position { index: self.base, term: self.base_term.unwrap_or(0) };
        self.entries.last().map_or_else(base, |entry| Position { index: entry.index, term: entry.term })
    }

    /// Checks the header of a further segment against the state after the segments before it.
    fn go_on(&mut self, header: &Header, name: &str) -> Result<(), OpenError> {
        if header.first_record != self.next_record {
            return Err(OpenError::corrupt(
                name,
                64,
                format!(
                    "it begins with record {}, the part before it ends with record {}: records are lost",
                    header.first_record,
                    self.next_record.saturating_sub(1)
                ),
            ));
        }
        if header.reset {
            self.entries.clear();
            self.bytes_after = 0;
            (self.base, self.base_term) = (header.last.index, Some(header.last.term));
            self.hard_state = header.hard_state;
            self.segments.iter_mut().for_each(|segment| segment.highest = 0);
        } else if header.last != self.last() || header.hard_state != self.hard_state {
            return Err(OpenError::corrupt(
                name,
                72,
                format!(
                    "it continues a log that ends at entry {}, the part before it ends at {}",
                    header.last.index,
                    self.last().index
                ),
            ));
        }
        Ok(())
    }

    fn segment(
        &mut self,
        header: Header,
        seed: u32,
        mut bytes: Vec<u8>,
        name: &str,
        is_last: bool,
    ) -> Result<(), OpenError> {
        let seal_at = bytes.len() - SECTOR as usize;
        let mut at = SECTOR as usize;
        let mut highest = 0;
        loop {
            match record::find(&bytes[at..seal_at], seed, self.next_record) {
                Found::Record(payload, size) => {
                    let last = self.record(payload, name, at as u64)?;
                    // One without entries counts with those before it.
                    if last > self.after || self.bytes_after > 0 {
                        self.bytes_after += size as u64;
                    }
                    highest = highest.max(last);
                    self.next_record = self.next_record.saturating_add(1);
                    at += size;
                }
                Found::End => break,
                Found::Torn if is_last => break,
                Found::Torn => {
                    return Err(OpenError::corrupt(
                        name,
                        at as u64,
                        format!(
                            "record {} is incomplete, and it isn't the last of the log",
                            self.next_record
                        ),
                    ));
                }
                Found::Bad(distance, what) => {
                    return Err(OpenError::corrupt(name, (at + distance) as u64, what));
                }
            }
        }
        let seal = &bytes[seal_at..];
        let sealed = seal == record::seal(seed, self.next_record.saturating_sub(1));
        if !sealed && let Some(byte) = record::first_written(seal) {
            return Err(OpenError::corrupt(
                name,
                (seal_at + byte) as u64,
                format!(
                    "the seal behind record {} is not what was written",
                    self.next_record.saturating_sub(1)
                ),
            ));
        }
        if is_last && sealed {
            return Err(missing(
                header.number.saturating_add(1),
                &format!("though `{name}` says that the log goes on there"),
            ));
        }
        // Only the bytes of the last segment are needed later.
        if is_last {
            bytes.truncate(at);
        } else {
            bytes = Vec::new();
        }
        self.segments.push(Segment { header, seed, bytes, end: at, highest, sealed });
        Ok(())
    }

    /// Applies a record to the log; returns the highest index of its entries, 0 if it has none.
    fn record(&mut self, payload: Vec<u8>, name: &str, offset: u64) -> Result<u64, OpenError> {
        let corrupt = |what: String| OpenError::corrupt(name, offset, what);
        // As `Bytes`, the entries share the buffer instead of copying it.
        let record = Record::decode(Bytes::from(payload))
            .map_err(|error| corrupt(format!("record {} can't be decoded: {error}", self.next_record)))?;
        let last = follows(&record.entries, self.last().index).map_err(corrupt)?;
        if let (Some(last), Some(first)) = (last, record.entries.first()) {
            let before = first.index - 1;
            if before < self.base {
                (self.base, self.base_term) = (before, None);
                self.entries.clear();
            } else {
                self.entries.truncate((before - self.base) as usize);
            }
            self.entries.extend(record.entries);
            self.hard_state = record.hard_state.unwrap_or(self.hard_state);
            return Ok(last.index);
        }
        self.hard_state = record.hard_state.unwrap_or(self.hard_state);
        Ok(0)
    }

    fn finish(mut self) -> Result<Replay, OpenError> {
        let last = self.segments.pop().ok_or_else(|| missing(1, "and so is the rest of the log"))?;
        let is_fresh = last.end == SECTOR as usize;
        let mut seal_again = None;
        let before = self.segments.len().saturating_sub(1);
        for (index, segment) in self.segments.iter().enumerate() {
            if index == before && is_fresh {
                // The seal may be missing; or it is readable but not on the disk, if its sync failed.
                seal_again = Some((segment.header.number, segment.seed, segment.header.size));
            } else if !segment.sealed {
                return Err(OpenError::corrupt(
                    &segment::name(segment.header.number),
                    segment.header.size - SECTOR,
                    "the seal is missing, though the next part of the log was written",
                ));
            }
        }
        let closed = |segment: &Segment| Closed { number: segment.header.number, highest: segment.highest };
        Ok(Replay {
            base: self.base,
            base_term: self.base_term,
            entries: self.entries,
            bytes_after: self.bytes_after,
            hard_state: self.hard_state,
            next_record: self.next_record,
            closed: self.segments.iter().map(closed).collect(),
            last: LastSegment {
                header: last.header,
                seed: last.seed,
                bytes: last.bytes,
                highest: last.highest,
            },
            seal_again,
        })
    }
}

impl Replay {
    /// The index of the last entry of the log.
    pub(super) fn end(&self) -> u64 {
        self.entries.last().map_or(self.base, |entry| entry.index)
    }

    /// The term of entry `index`, if known.
    pub(super) fn term(&self, index: u64) -> Option<u64> {
        if index == self.base {
            return self.base_term;
        }
        let place = index.checked_sub(self.base.saturating_add(1))?;
        self.entries.get(place as usize).map(|entry| entry.term)
    }
}
