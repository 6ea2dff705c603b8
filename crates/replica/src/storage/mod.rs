//! The on-disk state of a node: its identity, the log, and snapshots of the table.
//!
//! Responsible for one disk's part of promise P10: after a crash, synced data are unchanged; a write that was
//! in progress is present completely or not at all; all other content is rejected with its position and never
//! read as data. Contains no consensus and no lock logic. Reading order: [`open`] and [`found`] here,
//! `log.rs` (the order of writes), `record.rs` (telling torn records from damaged ones), `replay.rs` (reading
//! the log), `snapshot.rs`.
//!
//! | file | what |
//! | --- | --- |
//! | `candidate` | the state that this node announces until its cluster is bootstrapped |
//! | `founding` | the bootstrap record: cluster and node identity, written once, before the first vote |
//! | `log-N` | segment N of the log; its size never changes; consecutive numbers from the oldest one in use |
//! | `snapshot-I` | the table after entry I |
//! | `….new` | an unfinished file, or a preallocated segment; a start of the node removes it |
//! | `restore-unfinished` | marker of an interrupted restore; every start rejects the directory |
//!
//! A backup (`backup.rs`) is a single file outside the data directory.
//!
//! Every file with a final name, except the restore's marker, begins with a header of one sector: format
//! version, cluster and incarnation, checksum.

mod backup;
mod candidate;
mod error;
mod format;
mod founding;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
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
pub use format::{PIECE_BYTES_MAX, SECTOR_BYTES};
pub use log::Log;
pub use record::{RECORD_BYTES_MAX, record_bytes};
pub use restore::{RESTORE_MARKER, restore};
pub use segment::{Spare, SpareMaker};
pub use snapshot::{Sealed, SnapshotReader, SnapshotWriter, Snapshots};

use format::{FileKind, Header, Position, SECTOR};
use log::{Buffers, Current};
use replay::Replay;
use segment::{SECTORS_MIN, TEMPORARY};

use crate::disk::{Disk, DiskFile};

/// The version of all files that this module writes. It is a single number: files of two versions are never
/// mixed.
pub const FORMAT_VERSION: u32 = 1;

/// Settings of a data directory.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The size of a new log segment, in bytes, rounded up to whole sectors. Existing segments keep their
    /// size.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    /// 64 MiB: a few seconds of the heaviest load. Large enough that new segments are rarely needed, and
    /// small enough that compaction soon frees space.
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

impl LogOptions {
    fn segment_bytes(self) -> u64 {
        self.segment_bytes.max(SECTORS_MIN * SECTOR).next_multiple_of(SECTOR)
    }
}

/// The result of opening a data directory.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, at the start")]
pub enum Opened<D: Disk> {
    /// No cluster was bootstrapped here: see [`stand`] and [`found`].
    Empty,
    /// No cluster was bootstrapped here, but this candidate state is stored and may have been sent to other
    /// nodes.
    Candidate(Candidate),
    /// A node of a cluster.
    Existing(Existing<D>),
}

/// The data of a node, as read at its start.
#[derive(Debug)]
pub struct Existing<D: Disk> {
    /// The bootstrap record.
    pub founding: Founding,
    /// The newest snapshot; the reader is at its first piece.
    pub snapshot: Option<SnapshotReader<D>>,
    /// The stored hard state; its commit is at least the snapshot's index.
    pub hard_state: HardState,
    /// The entries after the snapshot; the first has the snapshot's index + 1.
    pub entries: Vec<Entry>,
    /// The size on disk of the records with these entries, in bytes.
    pub entry_bytes: u64,
    /// The log, ready for appends.
    pub log: Log<D>,
    /// Reads and writes snapshots.
    pub snapshots: Snapshots<D>,
    /// Deletes the older snapshots; run it only after the newest snapshot was read completely.
    pub leftovers: Removal,
}

/// Files that are no longer needed. They are deleted by [`Removal::run`], not before.
#[derive(Default, Debug)]
#[must_use = "files that aren't removed fill the disk"]
pub struct Removal {
    names: Vec<String>,
}

impl Removal {
    fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// The names of the files, in the order of deletion.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Deletes the files, on any thread. They are deleted one at a time, each durably, so a crash never
    /// leaves a gap in the remaining log.
    ///
    /// # Errors
    /// The disk's I/O error; no data are harmed. The remaining files in `self` must be deleted before any
    /// later removal runs, because that one would leave a gap in the log.
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

    /// Appends a later removal to this one.
    pub fn then(&mut self, later: Self) {
        self.names.extend(later.names);
    }
}

/// The file names of the data directory, by kind.
#[derive(Default)]
struct Names {
    is_restoring: bool,
    is_founded: bool,
    is_candidate: bool,
    /// Segment numbers, ascending.
    segments: Vec<u64>,
    /// Snapshot indexes, ascending.
    snapshots: Vec<u64>,
    temporary: Vec<String>,
}

/// Whether the storage layer writes files of this name.
#[must_use]
pub fn is_data(name: &str) -> bool {
    name == RESTORE_MARKER || Names::is_data(name)
}

impl Names {
    /// Lists the directory.
    ///
    /// # Errors
    /// [`OpenError::Unfinished`] in the directory of an interrupted restore: only another restore may change
    /// it.
    fn finished(disk: &impl Disk) -> Result<Self, OpenError> {
        let names = Self::list(disk)?;
        if names.is_restoring {
            return Err(OpenError::Unfinished { file: RESTORE_MARKER.to_owned() });
        }
        Ok(names)
    }

    /// Returns true if the storage layer writes files of this name.
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

    /// A directory without a bootstrap record must hold no data. The one exception is an unused first
    /// segment, which a crash during the bootstrap leaves.
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

/// Opens a data directory. The caller must own it exclusively until the process ends.
///
/// Everything is read and checked before the directory is changed. Then, before the content is returned, the
/// last segment of the log is copied to a new, synced file: after a failed sync the page cache can show data
/// that are not on the disk.
///
/// # Errors
/// [`OpenError`] by kind; its text contains the next step for the user. Snapshot pieces are checked only when
/// they are read.
pub fn open<D: Disk>(disk: &D, options: LogOptions) -> Result<Opened<D>, OpenError> {
    let names = Names::finished(disk)?;
    open_listed(disk, options, &names)
}

fn open_listed<D: Disk>(disk: &D, options: LogOptions, names: &Names) -> Result<Opened<D>, OpenError> {
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
    let mut replay = replay::read(disk, identity, &names.segments, at.index)?;
    let rest = behind(&mut replay, at, &segment::name(names.segments[0]))?;
    let hard_state = log::raised(replay.hard_state, at);
    let (entries, entry_bytes, must_reset) = match rest {
        Some(entries) => (entries, replay.bytes_after, false),
        None => (Vec::new(), 0, true),
    };
    let last = entries.last().map_or(at, |entry| Position { index: entry.index, term: entry.term });
    if hard_state.commit > last.index {
        return Err(OpenError::corrupt(
            &segment::name(replay.last.header.number),
            replay.last.bytes.len() as u64,
            format!("the log ends at entry {}, though entry {} was committed", last.index, hard_state.commit),
        ));
    }

    // Everything was checked; from here on the directory is changed.
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
    Ok(Opened::Existing(Existing {
        founding,
        snapshot,
        hard_state,
        entries,
        entry_bytes,
        log,
        snapshots,
        leftovers,
    }))
}

/// Returns the log entries after the newest snapshot, `at`; `None` if the snapshot replaces the whole log.
///
/// In that case the log ends before the snapshot, or has another term at the snapshot's index: the node
/// stopped after it had published a received snapshot and before [`Log::reset`].
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

/// Replaces the last segment by a fresh synced copy, and returns the log positioned at its end.
fn go_on<D: Disk>(
    disk: &D,
    options: LogOptions,
    identity: format::DirectoryIdentity,
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
    // This sync also makes the caller's removals durable, and every name that an earlier process did not
    // sync.
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

/// Stores this node's candidate state durably, in a directory in which [`open`] found no cluster. Call this
/// before the state is sent to another node.
///
/// # Errors
/// As [`found`].
pub fn stand(disk: &impl Disk, candidate: &Candidate) -> Result<(), OpenError> {
    let names = Names::finished(disk)?;
    if names.is_founded {
        return Err(OpenError::Founded { file: founding::NAME.to_owned() });
    }
    names.check_unfounded(disk)?;
    names.remove_temporary(disk)?;
    candidate::write(disk, candidate)
}

/// Writes the bootstrap record of a cluster durably into a directory in which [`open`] found none, and opens
/// it.
///
/// # Errors
/// [`OpenError::Founded`] if there already is a record; [`OpenError::Unfounded`] if `founding` is invalid;
/// [`OpenError::Io`]: whether the record was written is unknown then, and the next start detects it.
pub fn found<D: Disk>(disk: &D, options: LogOptions, founding: &Founding) -> Result<Existing<D>, OpenError> {
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

/// Creates the log. It is created before the bootstrap record, so a directory with a record and without a log
/// has lost its log.
fn begin_log<D: Disk>(
    disk: &D,
    options: LogOptions,
    identity: format::DirectoryIdentity,
) -> Result<(), OpenError> {
    let begin = || {
        let spare = SpareMaker::new(disk.clone(), 0).make_sized(options.segment_bytes())?;
        let header =
            Header { size: spare.size, first_record: 1, ..Header::plain(FileKind::Segment, identity, 1) };
        log::begin(disk, spare, &header)
    };
    begin().map(drop).map_err(OpenError::io("make", &segment::name(1)))
}

/// Opens the files that were just written.
fn reopen<D: Disk>(disk: &D, options: LogOptions) -> Result<Existing<D>, OpenError> {
    match open_listed(disk, options, &Names::list(disk)?)? {
        Opened::Existing(existing) => Ok(existing),
        Opened::Empty | Opened::Candidate(_) => {
            Err(OpenError::corrupt(founding::NAME, 0, "it was written, and is gone"))
        }
    }
}
