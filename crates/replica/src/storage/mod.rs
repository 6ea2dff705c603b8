//! What a node keeps on its disk: who it is, the log, and snapshots of the table.
//!
//! Responsible for promise P10 as far as it is about one disk: what was synced is there after a crash, exactly; a write
//! that was under way is there whole or not at all; and anything else that is found is refused with its place, never
//! read as data. Knows nothing of consensus or locks. Reading order: [`open`] and [`found`] here, `log.rs` (the order of
//! writes), `record.rs` (torn or damaged), `replay.rs` (reading back), `snapshot.rs`.
//!
//! | file | what |
//! | --- | --- |
//! | `candidate` | what a node says of itself until its cluster is founded |
//! | `founding` | the founding record, written once, before the first vote |
//! | `log-N` | part N of the log, of fixed size; consecutive numbers from the oldest that is needed |
//! | `snapshot-I` | the table after entry I |
//! | `….new` | unfinished; removed at every start |
//! | `restore-unfinished` | a restore was cut off; every start refuses the directory |
//!
//! A backup (`backup.rs`) is one file of its own, elsewhere.
//!
//! Every file begins with a header of one sector: format version, cluster and incarnation, checksum.

mod backup;
mod candidate;
mod error;
mod format;
mod founding;
mod log;
mod pieces;
mod record;
mod replay;
mod restore;
mod segment;
mod single;
mod snapshot;
#[cfg(test)]
mod tests;

use std::io;

use lockkeeper_wire::store::{Candidate, Entry, Founding, HardState};

pub use backup::{BackupError, BackupParts, BackupReader};
pub use error::OpenError;
pub use format::{FORMAT_VERSION, PIECE_BYTES_MAX, SECTOR_BYTES};
pub use log::Log;
pub use record::RECORD_BYTES_MAX;
pub use restore::{RESTORE_MARKER, restore};
pub use segment::{Spare, SpareMaker};
pub use snapshot::{Sealed, SnapshotReader, SnapshotWriter, Snapshots};

use format::{Header, Kind, Position, SECTOR};
use log::{Buffers, Current};
use replay::Replay;
use segment::{SECTORS_MIN, TEMPORARY};

use crate::disk::{Disk, DiskFile};

/// How a data directory is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The size of a segment of the log, in bytes, rounded up to whole sectors. Segments that exist keep theirs.
    pub segment_bytes: u64,
}

impl Default for Options {
    /// 64 MiB: some seconds of the heaviest load, so that a compaction gives back space soon, and making one is rare.
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

impl Options {
    fn segment_bytes(self) -> u64 {
        self.segment_bytes.max(SECTORS_MIN * SECTOR).next_multiple_of(SECTOR)
    }
}

/// What a data directory holds.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, at the start")]
pub enum Opened<D: Disk> {
    /// No cluster was founded here: see [`stand`] and [`found`].
    Empty,
    /// The same, and this node has said this of itself, or may have.
    Candidate(Candidate),
    /// A node of a cluster.
    Existing(Existing<D>),
}

/// The data of a node, as a start finds them.
#[derive(Debug)]
pub struct Existing<D: Disk> {
    /// Its founding record.
    pub founding: Founding,
    /// The newest snapshot, to be read from its start.
    pub snapshot: Option<SnapshotReader<D>>,
    /// Its commit is at least the snapshot's index.
    pub hard_state: HardState,
    /// The entries behind the snapshot, the first at its index + 1.
    pub entries: Vec<Entry>,
    /// To go on with.
    pub log: Log<D>,
    /// To read and write snapshots with.
    pub snapshots: Snapshots<D>,
    /// Older snapshots. To be run once the newest was read whole.
    pub leftovers: Removal,
}

/// Files that are not needed any more. Nothing happens until it is run.
#[derive(Default, Debug)]
#[must_use = "files that aren't removed fill the disk"]
pub struct Removal {
    names: Vec<String>,
}

impl Removal {
    fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// Their names, in the order in which they go.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Removes them, on any thread. One after the other, each durably: after a crash, what is left of the log has no gap.
    ///
    /// # Errors
    /// Whatever the disk says. No data are harmed by it. What is left of `self` must be run again before any later removal,
    /// or that one would leave a gap.
    pub fn run(&mut self, disk: &impl Disk) -> io::Result<()> {
        while let Some(name) = self.names.first() {
            match disk.remove(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => disk.sync_names()?,
            }
            self.names.remove(0);
        }
        Ok(())
    }

    /// Puts a later removal behind this one.
    pub fn then(&mut self, later: Self) {
        self.names.extend(later.names);
    }
}

/// The names that mean something to us.
#[derive(Default)]
struct Names {
    is_restoring: bool,
    is_founded: bool,
    is_candidate: bool,
    /// Numbers of segments, rising.
    segments: Vec<u64>,
    /// Indexes of snapshots, rising.
    snapshots: Vec<u64>,
    temporary: Vec<String>,
}

impl Names {
    /// # Errors
    /// [`OpenError::Unfinished`] in a directory that only a restore may change.
    fn finished(disk: &impl Disk) -> Result<Self, OpenError> {
        let names = Self::list(disk)?;
        if names.is_restoring {
            return Err(OpenError::Unfinished { file: RESTORE_MARKER.to_owned() });
        }
        Ok(names)
    }

    /// Whether a file of this name can be one of ours.
    fn is_data(name: &str) -> bool {
        name == founding::NAME
            || name == candidate::NAME
            || segment::numbered(name, "log-").is_some()
            || snapshot::index(name).is_some()
            || name.ends_with(TEMPORARY)
    }

    fn list(disk: &impl Disk) -> Result<Self, OpenError> {
        let mut names = Self::default();
        for name in disk.list().map_err(OpenError::io("list", "."))? {
            if name == RESTORE_MARKER {
                names.is_restoring = true;
            } else if name == founding::NAME {
                names.is_founded = true;
            } else if name == candidate::NAME {
                names.is_candidate = true;
            } else if let Some(number) = segment::numbered(&name, "log-") {
                names.segments.push(number);
            } else if let Some(index) = snapshot::index(&name) {
                names.snapshots.push(index);
            } else if name.ends_with(TEMPORARY) {
                names.temporary.push(name);
            }
        }
        names.segments.sort_unstable();
        names.snapshots.sort_unstable();
        Ok(names)
    }

    /// Without a founding record there must be no data; a first segment that was never used is what a crash leaves
    /// while a cluster is founded.
    fn check_unfounded(&self, disk: &impl Disk) -> Result<(), OpenError> {
        let strange = match (self.segments.as_slice(), self.snapshots.first()) {
            ([], None) => None,
            ([1], None) => (!replay::is_unused(disk, 1)?).then(|| segment::name(1)),
            ([.., last], _) => Some(segment::name(*last)),
            ([], Some(index)) => Some(format!("snapshot-{index:020}")),
        };
        match strange {
            None => Ok(()),
            Some(name) => Err(OpenError::corrupt(
                founding::NAME,
                0,
                format!("the file is missing, though there is `{name}`"),
            )),
        }
    }

    fn remove_temporary(&self, disk: &impl Disk) -> Result<(), OpenError> {
        for name in &self.temporary {
            disk.remove(name).map_err(OpenError::io("remove", name))?;
        }
        Ok(())
    }
}

/// Opens a data directory. Whoever calls this owns it: nobody else may use the directory until the process ends.
///
/// Reads first, and changes nothing unless all of it is in order. Then the last segment of the log is copied to a fresh,
/// synced file, before anything that it says is used: after a failed sync the page cache may show what the disk lacks.
///
/// # Errors
/// [`OpenError`] by kind; its text says what to do. Pieces of the snapshot are checked only when they are read.
pub fn open<D: Disk>(disk: &D, options: Options) -> Result<Opened<D>, OpenError> {
    let names = Names::finished(disk)?;
    open_listed(disk, options, &names)
}

fn open_listed<D: Disk>(disk: &D, options: Options, names: &Names) -> Result<Opened<D>, OpenError> {
    if !names.is_founded {
        names.check_unfounded(disk)?;
        return Ok(match names.is_candidate {
            true => Opened::Candidate(candidate::read(disk)?),
            false => Opened::Empty,
        });
    }
    let (founding, identity) = founding::read(disk)?;
    let snapshots = Snapshots::new(disk.clone(), identity);
    let newest = names.snapshots.last();
    let snapshot = newest.map(|index| snapshots.open(*index)).transpose()?;
    let at = snapshot.as_ref().map_or(Position::default(), |snapshot| Position {
        index: snapshot.head().index,
        term: snapshot.head().term,
    });
    let mut replay = replay::read(disk, identity, &names.segments)?;
    let rest = behind(&mut replay, at, &segment::name(names.segments[0]))?;
    let hard_state = log::raised(replay.hard_state, at);
    let (entries, must_reset) = match rest {
        Some(entries) => (entries, false),
        None => (Vec::new(), true),
    };
    let last = entries.last().map_or(at, |entry| Position { index: entry.index, term: entry.term });
    if hard_state.commit > last.index {
        return Err(OpenError::corrupt(
            &segment::name(replay.last.header.number),
            replay.last.bytes.len() as u64,
            format!("the log ends at entry {}, though entry {} was committed", last.index, hard_state.commit),
        ));
    }

    // All is in order: from here on the directory is changed.
    names.remove_temporary(disk)?;
    if names.is_candidate {
        disk.remove(candidate::NAME).map_err(OpenError::io("remove", candidate::NAME))?;
    }
    let leftovers = names.snapshots.iter().rev().skip(1).rev().map(|index| format!("snapshot-{index:020}"));
    let leftovers = Removal::new(leftovers.collect());
    let log_end = Position { index: replay.end(), term: replay.term(replay.end()).unwrap_or(0) };
    let mut log = go_on(disk, options, identity, replay, if must_reset { log_end } else { last })
        .map_err(OpenError::io("renew the last part of", "log"))?;
    if must_reset {
        log.reset(at.index, at.term).map_err(OpenError::io("begin a new part of", "log"))?;
    }
    Ok(Opened::Existing(Existing { founding, snapshot, hard_state, entries, log, snapshots, leftovers }))
}

/// The entries of the log behind the newest snapshot, `at`; `None` if the log must give way to it.
///
/// That is so when the node stopped after a snapshot that it had received was complete, and before [`Log::reset`]: the
/// log ends before it, or was of another history.
fn behind(replay: &mut Replay, at: Position, first_segment: &str) -> Result<Option<Vec<Entry>>, OpenError> {
    if replay.base > at.index {
        return Err(OpenError::corrupt(
            first_segment,
            0,
            format!(
                "the log begins with entry {}, though the newest snapshot ends at {}: what is between is missing",
                replay.base.saturating_add(1),
                at.index
            ),
        ));
    }
    if replay.end() < at.index || replay.term(at.index).is_some_and(|term| term != at.term) {
        return Ok(None);
    }
    let behind = (at.index - replay.base) as usize;
    Ok(Some(replay.entries.split_off(behind)))
}

/// Puts a fresh copy in the place of the last segment, and goes on with it.
fn go_on<D: Disk>(
    disk: &D,
    options: Options,
    identity: format::Identity,
    replay: Replay,
    last: Position,
) -> io::Result<Log<D>> {
    let segment_bytes = options.segment_bytes();
    let maker = SpareMaker::new(disk.clone(), segment_bytes);
    let header = &replay.last.header;
    let mut copy = maker.make_sized(header.size)?;
    copy.file.write_at(0, &replay.last.bytes)?;
    copy.file.sync()?;
    disk.rename(&copy.name, &segment::name(header.number))?;
    // Also makes durable what was removed, and every name that an earlier run had not synced.
    disk.sync_names()?;
    if let Some((number, seed, size)) = replay.seal_again {
        let file = disk.open(&segment::name(number))?;
        log::seal(
            &mut Current { file, number, seed, size, at: size, highest: 0 },
            replay.next_record.saturating_sub(1),
        )?;
    }
    Ok(Log {
        disk: disk.clone(),
        identity,
        segment_bytes,
        maker,
        closed: replay.closed.into(),
        current: Current {
            file: copy.file,
            number: header.number,
            seed: replay.last.seed,
            size: header.size,
            at: replay.last.bytes.len() as u64,
            highest: replay.last.highest,
        },
        next_record: replay.next_record,
        last,
        hard_state: replay.hard_state,
        spare: None,
        buffers: Buffers::default(),
        failed: false,
    })
}

/// Keeps what this node says of itself, durably, in a directory in which [`open`] found no cluster. What it says must be kept
/// before it is said.
///
/// # Errors
/// As of [`found`].
pub fn stand(disk: &impl Disk, candidate: &Candidate) -> Result<(), OpenError> {
    let names = Names::finished(disk)?;
    if names.is_founded {
        return Err(OpenError::Founded { file: founding::NAME.to_owned() });
    }
    names.check_unfounded(disk)?;
    names.remove_temporary(disk)?;
    candidate::write(disk, candidate)
}

/// Writes the founding record of a cluster into a directory in which [`open`] found none, durably, and opens it.
///
/// # Errors
/// [`OpenError::Founded`] if there is one; [`OpenError::Unfounded`] if `founding` makes no sense; [`OpenError::Io`]:
/// whether the cluster was founded is unknown then, the next start finds out.
pub fn found<D: Disk>(disk: &D, options: Options, founding: &Founding) -> Result<Existing<D>, OpenError> {
    let identity = founding::check(founding)?;
    let names = Names::finished(disk)?;
    if names.is_founded {
        return Err(OpenError::Founded { file: founding::NAME.to_owned() });
    }
    names.check_unfounded(disk)?;
    names.remove_temporary(disk)?;
    begin_log(disk, options, identity)?;
    founding::write(disk, founding, identity)?;
    reopen(disk, options)
}

/// The log is there before the founding record says that there is one: so a log that is missing later was lost.
fn begin_log<D: Disk>(disk: &D, options: Options, identity: format::Identity) -> Result<(), OpenError> {
    let begin = || {
        let spare = SpareMaker::new(disk.clone(), 0).make_sized(options.segment_bytes())?;
        let header =
            Header { size: spare.size, first_record: 1, ..Header::plain(Kind::Segment, identity, 1) };
        log::begin(disk, spare, &header)
    };
    begin().map(drop).map_err(OpenError::io("make", &segment::name(1)))
}

/// Opens what was written just now.
fn reopen<D: Disk>(disk: &D, options: Options) -> Result<Existing<D>, OpenError> {
    match open_listed(disk, options, &Names::list(disk)?)? {
        Opened::Existing(existing) => Ok(existing),
        Opened::Empty | Opened::Candidate(_) => {
            Err(OpenError::corrupt(founding::NAME, 0, "it was written, and is gone"))
        }
    }
}
