//! Log writes: append, switching to the next segment, dropping old segments.
//!
//! Responsible for the order of writes and syncs. An append is one write and one sync. When a segment is
//! full, the next one is completed, renamed, and its name synced before the full one is sealed; the seal is
//! synced before the next segment takes an append. So only the last record of the last segment can be torn,
//! and a sealed segment without a next one means data loss.
//!
//! A failed write or sync is final ([`Log::append`]): the state of the disk is unknown then, and a second
//! sync would succeed for pages that the kernel has dropped. The process must end; the next start reads the
//! actual state of the disk.

use std::collections::VecDeque;
use std::io;

use lockkeeper_wire::store::{Entry, HardState, Record};
use prost::Message;

use super::Removal;
use super::format::{DirectoryIdentity, FileKind, Header, Position, SECTOR};
use super::record::{self, RECORD_BYTES_MAX};
use super::segment::{self, SECTORS_MIN, Spare, SpareMaker};
use crate::disk::{Disk, DiskFile};

/// Capacity in bytes above which a buffer is freed after use: only a rare large record needs more.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The log of one node. At most one `Log` exists per data directory.
#[derive(Debug)]
pub struct Log<D: Disk> {
    pub(super) disk: D,
    pub(super) identity: DirectoryIdentity,
    pub(super) segment_bytes: u64,
    pub(super) maker: SpareMaker<D>,
    /// Segments before the current one, oldest first.
    pub(super) closed: VecDeque<Closed>,
    pub(super) current: Current<D::File>,
    /// The number of the next record.
    pub(super) next_record: u64,
    pub(super) last: Position,
    pub(super) hard_state: HardState,
    pub(super) spare: Option<Spare<D::File>>,
    pub(super) buffers: Buffers,
    pub(super) failed: bool,
}

/// A segment that takes no further writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) number: u64,
    /// The highest entry index in this segment; 0 if it has no entries, or if a reset has dropped them.
    pub(super) highest: u64,
}

/// The segment that takes appends.
#[derive(Debug)]
pub(super) struct Current<F> {
    pub(super) file: F,
    pub(super) number: u64,
    pub(super) seed: u32,
    pub(super) size: u64,
    /// Offset of the next record, in bytes.
    pub(super) at: u64,
    pub(super) highest: u64,
}

/// Buffers that are reused for every record.
#[derive(Default, Debug)]
pub(super) struct Buffers {
    encoded: Vec<u8>,
    sectors: Vec<u8>,
}

impl<D: Disk> Log<D> {
    /// Writes one record and syncs it: once this returns, the record survives a power cut. A record with
    /// neither entries nor a hard state writes nothing.
    ///
    /// # Errors
    /// `InvalidInput` for a record that does not continue the log or is longer than [`RECORD_BYTES_MAX`]:
    /// nothing was written. Any other error is final: it is unknown whether the record will exist after a
    /// restart, every later call fails too, and the process must end.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        self.check_alive()?;
        let last = self.check(record)?;
        if record.hard_state.is_none() && record.entries.is_empty() {
            return Ok(());
        }
        let length = record.encoded_len();
        if length > RECORD_BYTES_MAX {
            return Err(invalid(format!(
                "a record of {length} bytes was to be appended to the log, at most {RECORD_BYTES_MAX} are allowed; \
                 append its entries in several"
            )));
        }
        let result = self.write(record, length);
        self.failed |= result.is_err();
        result?;
        self.last = last;
        if let Some(hard_state) = record.hard_state {
            self.hard_state = hard_state;
        }
        if let Some(entry) = record.entries.last() {
            self.current.highest = self.current.highest.max(entry.index);
        }
        Ok(())
    }

    /// Drops all entries, because a received, durable snapshot replaces them; the next entry follows `index`.
    /// (For a snapshot of the node's own table call [`Log::compact`] instead.)
    ///
    /// # Errors
    /// As [`Log::append`]: final.
    pub fn reset(&mut self, index: u64, term: u64) -> io::Result<()> {
        self.check_alive()?;
        let before = (self.last, self.hard_state);
        self.last = Position { index, term };
        self.hard_state = raised(self.hard_state, self.last);
        let result = self.roll(0, true);
        if result.is_err() {
            self.failed = true;
            (self.last, self.hard_state) = before;
        }
        result
    }

    /// Drops whole segments, oldest first, whose entries are all at or below `through`; a durable snapshot at
    /// `through` must exist. The files are deleted when the returned [`Removal`] is [run](Removal::run), on
    /// any thread; removals must run in the order in which they were returned.
    pub fn compact(&mut self, through: u64) -> Removal {
        let mut names = Vec::new();
        while self.closed.front().is_some_and(|segment| segment.highest <= through) {
            names.extend(self.closed.pop_front().map(|segment| segment::name(segment.number)));
        }
        Removal::new(names)
    }

    /// Returns a maker that preallocates segments.
    pub fn spare_maker(&self) -> SpareMaker<D> {
        self.maker.clone()
    }

    /// Returns true if [`Log::give_spare`] would keep a spare segment.
    pub fn wants_spare(&self) -> bool {
        self.spare.is_none()
    }

    /// Stores a preallocated segment for use when the current one is full. Without a spare, the log creates
    /// the next segment on demand, which takes as long as writing a whole segment. If no spare is
    /// [wanted](Log::wants_spare), the returned removal deletes it.
    #[must_use = "a spare that was not taken takes up room on the disk until the next start"]
    pub fn give_spare(&mut self, spare: Spare<D::File>) -> Removal {
        let unused = if self.spare.is_none() {
            self.spare = Some(spare);
            None
        } else {
            Some(spare.name)
        };
        Removal::new(unused.into_iter().collect())
    }

    /// The index of the last entry, or of the snapshot if no entry follows it.
    pub fn last_index(&self) -> u64 {
        self.last.index
    }

    /// The number of segments, including the current one.
    pub fn segments(&self) -> usize {
        self.closed.len() + 1
    }

    fn check_alive(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other(
                "an earlier write of the log failed, so what the disk holds is unknown; end the process and start anew",
            ));
        }
        Ok(())
    }

    /// Returns the end of the log after `record`; an error if `record` does not continue the log.
    fn check(&self, record: &Record) -> io::Result<Position> {
        let last = match follows(&record.entries, self.last.index) {
            Ok(last) => last.unwrap_or(self.last),
            Err(what) => return Err(invalid(what)),
        };
        match record.hard_state {
            Some(hard_state) if hard_state.commit > last.index => Err(invalid(format!(
                "a hard state says that entry {} is committed, the log ends at {}",
                hard_state.commit, last.index
            ))),
            _ => Ok(last),
        }
    }

    fn write(&mut self, record: &Record, length: usize) -> io::Result<()> {
        let size = record::size(length) as u64;
        if self.current.at + size > self.current.size - SECTOR {
            self.roll(size, false)?;
        }
        let Buffers { encoded, sectors } = &mut self.buffers;
        encoded.clear();
        encoded.reserve(length);
        record.encode(encoded).expect("a Vec grows as it must");
        record::put(sectors, self.current.seed, self.next_record, encoded);
        self.current.file.write_at(self.current.at, sectors)?;
        self.current.file.sync()?;
        self.current.at += size;
        self.next_record += 1;
        if encoded.capacity() > BUFFER_BYTES_KEPT {
            self.buffers = Buffers::default();
        }
        Ok(())
    }

    /// Switches to the next segment, with room for a record of `needed` bytes: a record never spans two
    /// segments. A record that is longer than a normal segment gets a segment of its own size.
    fn roll(&mut self, needed: u64, reset: bool) -> io::Result<()> {
        let size = self.segment_bytes.max(needed + (SECTORS_MIN - 1) * SECTOR);
        let spare = match self.spare.take() {
            Some(spare) if spare.size >= size => spare,
            small => {
                self.spare = small;
                self.maker.make_sized(size)?
            }
        };
        let header = Header {
            kind: FileKind::Segment,
            identity: self.identity,
            number: self.current.number + 1,
            size: spare.size,
            first_record: self.next_record,
            last: self.last,
            hard_state: self.hard_state,
            reset,
        };
        let next = begin(&self.disk, spare, &header)?;
        seal(&mut self.current, self.next_record - 1)?;
        let full = std::mem::replace(&mut self.current, next);
        self.closed.push_back(Closed { number: full.number, highest: full.highest });
        if reset {
            self.closed.iter_mut().for_each(|segment| segment.highest = 0);
        }
        Ok(())
    }
}

/// Adds a fresh segment to the log, durably.
pub(super) fn begin<D: Disk>(
    disk: &D,
    spare: Spare<D::File>,
    header: &Header,
) -> io::Result<Current<D::File>> {
    let Spare { mut file, name, size } = spare;
    let (bytes, seed) = header.encode();
    file.write_at(0, &bytes)?;
    file.sync()?;
    disk.rename(&name, &segment::name(header.number))?;
    disk.sync_names()?;
    Ok(Current { file, number: header.number, seed, size, at: SECTOR, highest: 0 })
}

/// Seals a full segment: marks that a next segment exists, which starts after record `last`.
pub(super) fn seal<F: DiskFile>(full: &mut Current<F>, last: u64) -> io::Result<()> {
    full.file.write_at(full.size - SECTOR, &record::seal(full.seed, last))?;
    full.file.sync()
}

/// Raises a hard state to the minimum that a snapshot at `at` implies: the snapshot's entries were committed.
/// If the term is raised, the vote is cleared: this node did not vote in that term, or the hard state would
/// contain the term.
pub(super) fn raised(mut hard_state: HardState, at: Position) -> HardState {
    if hard_state.term < at.term {
        hard_state.term = at.term;
        hard_state.vote = 0;
    }
    hard_state.commit = hard_state.commit.max(at.index);
    hard_state
}

/// Checks that `entries` can follow a log that ends at `last`, or replace its tail; returns the new end of
/// the log, `None` if `entries` is empty.
pub(super) fn follows(entries: &[Entry], last: u64) -> Result<Option<Position>, String> {
    let Some(first) = entries.first() else {
        return Ok(None);
    };
    if first.index == 0 || first.index > last.saturating_add(1) {
        return Err(format!("entry {} can't follow a log that ends at {last}", first.index));
    }
    let gap = entries.windows(2).find(|pair| pair[0].index.checked_add(1) != Some(pair[1].index));
    if let Some(gap) = gap {
        return Err(format!("entry {} can't follow entry {}", gap[1].index, gap[0].index));
    }
    Ok(entries.last().map(|entry| Position { index: entry.index, term: entry.term }))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
