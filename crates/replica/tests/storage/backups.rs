//! Backups: read as they were written, or rejected with the position; restored completely or not at all.

use std::collections::BTreeMap;

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::disk::memory::{MemoryDisk, MemoryFile, Operation};
use lockkeeper_replica::storage::{self, BackupError, BackupReader, FORMAT_VERSION, OpenError, Opened};
use lockkeeper_wire::store::{BackupHead, Candidate, Member};

use crate::support::*;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const FILE: &str = "locks.backup";

fn backup_head() -> BackupHead {
    BackupHead {
        index: 3,
        last_token: 17,
        taken_us: 99,
        version: "1.2.3".to_owned(),
        node: 1,
        ..BackupHead::default()
    }
}

/// The bytes of a backup of the small directory.
fn backup() -> Vec<u8> {
    let (disk, _) = small_directory();
    let mut parts = open(&disk).expect("undamaged").snapshots.backup(backup_head()).expect("it is stored");
    let mut bytes = Vec::new();
    while let Some(part) = parts.next_part().expect("undamaged") {
        bytes.extend(part);
    }
    assert_eq!(parts.next_part().expect("it is over"), None);
    bytes
}

fn reader(bytes: &[u8]) -> Result<BackupReader<MemoryFile>, BackupError> {
    let disk = MemoryDisk::new();
    disk.set_bytes(FILE, bytes.to_vec());
    BackupReader::open(disk.open(FILE).expect("it is there"), FILE)
}

fn read(bytes: &[u8]) -> Result<Vec<u8>, BackupError> {
    let mut reader = reader(bytes)?;
    let mut all = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        all.extend(piece);
    }
    Ok(all)
}

#[test]
fn backup_round_trips() {
    let mut reader = reader(&backup()).expect("undamaged");
    assert_eq!(reader.head(), &BackupHead { term: 1, rules: 1, ..backup_head() });
    assert_eq!((reader.cluster(), reader.digest()), ([7; 16], None));
    for piece in pieces(3, 1) {
        assert_eq!(reader.next_piece().expect("undamaged"), Some(piece));
    }
    assert_eq!(reader.next_piece().expect("undamaged"), None);
    assert_eq!(reader.digest(), Some([9; 16].as_slice()));
    assert_eq!(reader.next_piece().expect("it stays so"), None);
}

#[test]
fn backup_with_changed_missing_or_extra_bytes_is_refused_with_the_position() {
    let bytes = backup();
    let refused = |changed: &[u8], what: &str| match read(changed) {
        Err(BackupError::Damaged { file, offset, .. }) if file == FILE && offset <= bytes.len() as u64 => {}
        other => panic!("{what}: {other:?}"),
    };
    for at in 0..bytes.len() {
        for change in [bytes[at] ^ 1, !bytes[at]] {
            let mut changed = bytes.clone();
            changed[at] = change;
            refused(&changed, &format!("byte {at} is {change}"));
        }
    }
    for length in (0..bytes.len()).chain([bytes.len() + 1, bytes.len() + 512]) {
        let mut cut = bytes.clone();
        cut.resize(length, 0);
        refused(&cut, &format!("{length} bytes"));
    }
}

#[test]
fn other_file_kinds_and_newer_backups_are_refused_with_the_reason() {
    let (disk, _) = small_directory();
    for name in names(&disk) {
        let text = read(&disk.bytes(&name).expect("it is listed")).expect_err("it is no backup").to_string();
        assert!(text.contains("is of kind") && text.contains("take another backup"), "{name}: {text}");
    }
    let text = read(b"not at all").expect_err("it is no backup").to_string();
    assert!(text.contains("no backup") && text.contains("at byte 10"), "{text}");

    let mut newer = backup();
    newer[12..16].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let checksum = crc32fast::hash(&newer[..508]);
    newer[508..512].copy_from_slice(&checksum.to_le_bytes());
    let error = read(&newer).expect_err("nobody can read that yet");
    assert!(
        matches!(error, BackupError::NewerFormat { found, .. } if found == FORMAT_VERSION + 1),
        "{error}"
    );
}

fn restore(disk: &MemoryDisk) -> Result<View, OpenError> {
    let pieces = vec![vec![1; 300], vec![2; storage::PIECE_BYTES_MAX + 5]];
    view(&mut storage::restore(disk, SMALL, &founding(), pieces.into_iter(), || vec![9; 16])?)
}

#[test]
fn a_restored_directory_begins_with_the_table_as_its_first_entry() {
    let disk = MemoryDisk::new();
    let found = restore(&disk).expect("an empty directory");
    let (head, bytes) = found.snapshot.clone().expect("the table");
    assert_eq!((head.index, head.term, head.rules), (1, 1, founding().rules));
    assert_eq!(bytes.len(), 300 + storage::PIECE_BYTES_MAX + 5);
    assert_eq!((found.hard_state.term, found.hard_state.commit, found.entries.len()), (1, 1, 0));
    assert_eq!(open_view(&disk).expect("a later start"), found);
    // New entries follow the restored table.
    let mut log = open(&disk).expect("a later start").log;
    log.append(&record(Some(hard_state(2, 1, 1)), vec![entry(2, 2, 40)])).expect("a sound disk");
    assert_eq!(open_view(&disk).expect("a later start").entries, [entry(2, 2, 40)]);
}

#[test]
fn restore_into_a_non_empty_directory_is_refused() {
    let (disk, view) = small_directory();
    assert!(matches!(restore(&disk), Err(OpenError::Founded { .. })));
    assert_eq!(open_view(&disk).expect("nothing was changed"), view);
    let disk = MemoryDisk::new();
    disk.set_bytes("stranger", b"keep me".to_vec());
    assert!(matches!(restore(&disk), Err(OpenError::Founded { file }) if file == "stranger"));
    assert_eq!(names(&disk), ["stranger"]);
}

/// The result of a start after an interrupted restore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum AfterRestore {
    /// An empty directory: no file of the restore exists.
    Nothing,
    /// The start rejects the directory.
    Unfinished,
    /// The complete table.
    Whole,
}

fn left(disk: &MemoryDisk, what: &str) -> AfterRestore {
    let files = names(disk);
    match storage::open(disk, SMALL) {
        Ok(Opened::Existing(mut existing)) => {
            let found = view(&mut existing).expect("it is whole");
            assert!(found.snapshot.is_some(), "{what}: a cluster without its table");
            AfterRestore::Whole
        }
        Ok(Opened::Empty | Opened::Candidate(_)) => {
            assert_eq!(files, [""; 0], "{what}: a start takes it for an empty directory");
            AfterRestore::Nothing
        }
        Err(OpenError::Unfinished { .. }) => AfterRestore::Unfinished,
        Err(other) => panic!("{what}: {other}"),
    }
}

/// Interrupts a restore at every step, by a killed process and by a full disk. `begin` creates the directory
/// for the restore.
fn cut_at_every_step(begin: impl Fn() -> MemoryDisk) -> BTreeMap<AfterRestore, usize> {
    let mut found = BTreeMap::new();
    for (kinds, errno) in [(Operation::CHANGES, EIO), (Operation::TAKES_SPACE, ENOSPC)] {
        for after in 0.. {
            let disk = begin();
            disk.fail_from(kinds, after, errno);
            let done = restore(&disk).is_ok();
            disk.heal();
            let power_cuts = (0..lockkeeper_corpus::size(2, 8, 8)).map(Some);
            for power_cut in power_cuts.chain([None]) {
                let disk = disk.fork();
                match power_cut {
                    None => disk.restart(),
                    Some(seed) => {
                        let mut rng = Rng(seed);
                        disk.crash(|n| rng.below(n));
                    }
                }
                let what = format!("errno {errno} after {after} steps, power cut {power_cut:?}");
                let left = left(&disk, &what);
                assert!(!done || left == AfterRestore::Whole, "{what}: it was done, and is {left:?}");
                *found.entry(left).or_default() += 1;
                if left != AfterRestore::Whole {
                    restore(&disk).unwrap_or_else(|error| panic!("{what}: the next restore: {error}"));
                    assert_eq!(
                        self::left(&disk, &what),
                        AfterRestore::Whole,
                        "{what}: after the next restore"
                    );
                }
            }
            if done {
                assert!(after > 8, "it has more steps than {after}");
                break;
            }
        }
    }
    found
}

#[test]
fn a_restore_cut_off_at_any_step_is_refused_by_a_start_and_can_be_repeated() {
    let found = cut_at_every_step(MemoryDisk::new);
    for left in [AfterRestore::Nothing, AfterRestore::Unfinished, AfterRestore::Whole] {
        assert!(found.get(&left) > Some(&5), "{left:?} was not seen often enough: {found:?}");
    }
}

#[test]
fn a_repeated_restore_cut_off_at_any_step_is_refused_by_a_start_too() {
    let begin = || {
        let disk = MemoryDisk::new();
        // The failure comes after the log and most of the table are written.
        disk.fail_from(Operation::CHANGES, 14, EIO);
        restore(&disk).expect_err("it is cut off");
        disk.heal();
        disk.restart();
        assert!(names(&disk).len() > 2, "{:?}", names(&disk));
        disk
    };
    let found = cut_at_every_step(begin);
    assert_eq!(found.get(&AfterRestore::Nothing), None, "its mark stays from the first try on: {found:?}");
    assert!(found.get(&AfterRestore::Unfinished) > Some(&20), "{found:?}");
}

#[test]
fn unfinished_restore_is_refused_by_every_operation_except_restore() {
    let disk = MemoryDisk::new();
    disk.fail_from(Operation::CHANGES, 14, EIO);
    restore(&disk).expect_err("it is cut off");
    disk.heal();
    let text = storage::open(&disk, SMALL).expect_err("it is unfinished").to_string();
    for words in ["`lockkeeper restore`", "was not finished", "run it again", "empty the directory"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let candidate = Candidate {
        member: Some(Member { node: 1, incarnation: vec![1; 16], ..Member::default() }),
        ..Candidate::default()
    };
    for refused in [storage::stand(&disk, &candidate), storage::found(&disk, SMALL, &founding()).map(drop)] {
        assert!(matches!(refused, Err(OpenError::Unfinished { .. })), "{refused:?}");
    }
    // A restore also refuses a directory with files of unknown origin.
    disk.set_bytes("stranger", b"keep me".to_vec());
    let before = names(&disk);
    assert!(matches!(restore(&disk), Err(OpenError::Founded { file }) if file == "stranger"));
    assert_eq!(names(&disk), before);
}
