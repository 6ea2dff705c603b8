//! Small data directories, and the state that a node reads from one.

use lockkeeper_replica::disk::memory::MemoryDisk;
use lockkeeper_replica::storage::{self, Existing, LogOptions, OpenError, Opened};
use lockkeeper_wire::store::{Entry, Founding, HardState, Member, Record, SnapshotHead, SnapshotTail};

/// Segments so small that a few records fill one, and some records need a segment of their own size.
pub(crate) const SMALL: LogOptions = LogOptions { segment_bytes: 4096 };

/// Everything that a node reads from its disk at a start.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct View {
    pub(crate) snapshot: Option<(SnapshotHead, Vec<u8>)>,
    pub(crate) hard_state: HardState,
    pub(crate) entries: Vec<Entry>,
}

pub(crate) fn founding() -> Founding {
    let member = |node: u64| Member {
        node,
        incarnation: vec![node as u8; 16],
        peer_address: format!("10.0.0.{node}:5626"),
        client_address: format!("10.0.0.{node}:5625"),
    };
    Founding {
        cluster: vec![7; 16],
        node: 1,
        incarnation: vec![1; 16],
        members: vec![member(1), member(2)],
        tokens_above: 5,
        rules: 1,
    }
}

pub(crate) fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

/// An entry whose content depends on its index and term, so that no other entry equals it.
pub(crate) fn entry(index: u64, term: u64, length: usize) -> Entry {
    let data = (0..length).map(|at| (index.wrapping_mul(31) + term * 7 + at as u64) as u8).collect();
    Entry { index, term, kind: 1, data }
}

pub(crate) fn record(hard_state: Option<HardState>, entries: Vec<Entry>) -> Record {
    Record { hard_state, entries }
}

pub(crate) fn found(disk: &MemoryDisk) -> Existing<MemoryDisk> {
    storage::found(disk, SMALL, &founding()).expect("an empty directory can be founded")
}

pub(crate) fn open(disk: &MemoryDisk) -> Result<Existing<MemoryDisk>, OpenError> {
    match storage::open(disk, SMALL)? {
        Opened::Existing(existing) => Ok(existing),
        Opened::Empty | Opened::Candidate(_) => panic!("the directory was founded, and is said to be empty"),
    }
}

/// Reads everything, including the snapshot's pieces.
pub(crate) fn view(existing: &mut Existing<MemoryDisk>) -> Result<View, OpenError> {
    assert_eq!(existing.founding, founding(), "the founding record is the one that was written");
    let snapshot = match &mut existing.snapshot {
        None => None,
        Some(reader) => {
            let mut bytes = Vec::new();
            while let Some(piece) = reader.next_piece()? {
                bytes.extend(piece);
            }
            assert_eq!(reader.tail().map(|tail| tail.bytes), Some(bytes.len() as u64));
            Some((reader.head().clone(), bytes))
        }
    };
    Ok(View { snapshot, hard_state: existing.hard_state, entries: existing.entries.clone() })
}

pub(crate) fn open_view(disk: &MemoryDisk) -> Result<View, OpenError> {
    view(&mut open(disk)?)
}

pub(crate) fn head(index: u64, term: u64) -> SnapshotHead {
    SnapshotHead { index, term, rules: 1, members: None }
}

pub(crate) fn tail(pieces: &[Vec<u8>]) -> SnapshotTail {
    SnapshotTail {
        pieces: pieces.len() as u64,
        bytes: pieces.iter().map(|piece| piece.len() as u64).sum(),
        digest: vec![9; 16],
    }
}

/// Two pieces whose content depends on the snapshot's index and term.
pub(crate) fn pieces(index: u64, term: u64) -> Vec<Vec<u8>> {
    vec![vec![index as u8; 300], vec![term as u8; 200]]
}

/// A bootstrap record, a snapshot at entry 3, and two segments with records of one and of several sectors.
/// The log does not begin with entry 1, so it needs the snapshot.
pub(crate) fn small_directory() -> (MemoryDisk, View) {
    let disk = MemoryDisk::new();
    let Existing { mut log, snapshots, .. } = found(&disk);
    let mut append = |hard_state, entries| log.append(&record(hard_state, entries)).expect("a sound disk");
    append(Some(hard_state(1, 1, 0)), vec![]);
    append(None, vec![entry(1, 1, 1500), entry(2, 1, 10)]);
    append(Some(hard_state(1, 1, 3)), vec![entry(3, 1, 700)]);
    append(None, vec![entry(4, 1, 1200), entry(5, 1, 40)]);
    append(Some(hard_state(2, 2, 4)), vec![]);
    // Replaces entry 5, and continues into the third segment.
    append(None, vec![entry(5, 2, 700), entry(6, 2, 20)]);
    append(Some(hard_state(2, 2, 6)), vec![entry(7, 2, 1100)]);
    let mut writer = snapshots.begin(&head(3, 1)).expect("a sound disk");
    for piece in pieces(3, 1) {
        writer.piece(&piece).expect("a sound disk");
    }
    writer.finish(&tail(&pieces(3, 1))).expect("a sound disk").run(&disk).expect("a sound disk");
    log.compact(3).run(&disk).expect("a sound disk");
    let view = View {
        snapshot: Some((head(3, 1), pieces(3, 1).concat())),
        hard_state: hard_state(2, 2, 6),
        entries: vec![entry(4, 1, 1200), entry(5, 2, 700), entry(6, 2, 20), entry(7, 2, 1100)],
    };
    (disk, view)
}

pub(crate) fn names(disk: &MemoryDisk) -> Vec<String> {
    use lockkeeper_replica::disk::Disk;
    disk.list().expect("a sound disk")
}

/// A seeded random number generator (SplitMix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % n
    }
}
