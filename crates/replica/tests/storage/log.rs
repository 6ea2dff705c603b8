//! The log on a fault-free disk: after appends, replaced tails, compaction and resets, the next start finds
//! the same state.

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, OpenError, Opened, RECORD_BYTES_MAX, SECTOR_BYTES};

use crate::support::*;

fn indexes(disk: &MemoryDisk) -> Vec<(u64, u64)> {
    open_view(disk).expect("a sound disk").entries.iter().map(|entry| (entry.index, entry.term)).collect()
}

#[test]
fn empty_directory_can_be_bootstrapped_once() {
    let disk = MemoryDisk::new();
    assert!(matches!(storage::open(&disk, SMALL), Ok(Opened::Empty)));
    let existing = found(&disk);
    assert_eq!((existing.founding, existing.entries.len()), (founding(), 0));
    let error = storage::found(&disk, SMALL, &founding()).expect_err("it was founded before");
    assert!(matches!(error, OpenError::Founded { .. }), "{error}");
}

#[test]
fn invalid_bootstrap_record_is_not_written() {
    let disk = MemoryDisk::new();
    let short_id = lockkeeper_wire::store::Founding { cluster: vec![7; 15], ..founding() };
    let nobody = lockkeeper_wire::store::Founding { node: 0, ..founding() };
    for wrong in [short_id, nobody] {
        let error = storage::found(&disk, SMALL, &wrong).expect_err("it makes no sense");
        assert!(matches!(error, OpenError::Unfounded { .. }), "{error}");
    }
    assert_eq!(names(&disk), Vec::<String>::new());
}

#[test]
fn an_append_is_one_write_and_one_sync() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    let before = (disk.count(Operation::Write), disk.count(Operation::Sync));
    log.append(&record(Some(hard_state(1, 1, 1)), vec![entry(1, 1, 100)])).expect("a sound disk");
    log.append(&record(None, vec![entry(2, 1, 1500)])).expect("a sound disk");
    assert_eq!((disk.count(Operation::Write), disk.count(Operation::Sync)), (before.0 + 2, before.1 + 2));
    log.append(&record(None, vec![])).expect("nothing to write");
    assert_eq!(disk.count(Operation::Write), before.0 + 2, "an empty record costs nothing");
}

#[test]
fn a_record_at_or_below_the_last_index_replaces_the_tail() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    log.append(&record(None, (1..=5).map(|index| entry(index, 1, 10)).collect())).expect("a sound disk");
    log.append(&record(None, vec![entry(3, 2, 10)])).expect("a sound disk");
    assert_eq!(indexes(&disk), [(1, 1), (2, 1), (3, 2)]);
    log = open(&disk).expect("a sound disk").log;
    log.append(&record(None, vec![entry(1, 3, 10), entry(2, 3, 10)])).expect("a sound disk");
    assert_eq!(indexes(&disk), [(1, 3), (2, 3)]);
}

#[test]
fn a_record_that_does_not_continue_the_log_is_refused_and_harms_nothing() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    log.append(&record(None, vec![entry(1, 1, 10)])).expect("a sound disk");
    let wrong = [
        record(None, vec![entry(3, 1, 10)]),
        record(None, vec![entry(0, 1, 10)]),
        record(None, vec![entry(2, 1, 10), entry(4, 1, 10)]),
        record(Some(hard_state(1, 0, 2)), vec![]),
        record(None, vec![entry(2, 1, RECORD_BYTES_MAX)]),
    ];
    for record in wrong {
        let error = log.append(&record).expect_err("it is no continuation");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    log.append(&record(None, vec![entry(2, 1, 10)])).expect("the log still works");
    assert_eq!(indexes(&disk), [(1, 1), (2, 1)]);
}

#[test]
fn a_record_longer_than_a_segment_gets_one_of_its_own_size() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    for (index, length) in [(1, 10), (2, 100_000), (3, 10), (4, 3000), (5, 10)] {
        log.append(&record(None, vec![entry(index, 1, length)])).expect("a sound disk");
    }
    let view = open_view(&disk).expect("a sound disk");
    let lengths: Vec<usize> = view.entries.iter().map(|entry| entry.data.len()).collect();
    assert_eq!(lengths, [10, 100_000, 10, 3000, 10]);
    assert_eq!(view.entries[1], entry(2, 1, 100_000));
}

#[test]
fn spare_segment_is_used_and_a_second_one_is_given_back() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    let maker = log.spare_maker();
    let make = || maker.make().expect("a sound disk");
    assert!(log.wants_spare());
    assert!(log.give_spare(make()).names().is_empty());
    assert!(!log.wants_spare());
    let mut unused = log.give_spare(make());
    assert_eq!(unused.names().len(), 1);
    unused.run(&disk).expect("a sound disk");
    let created = disk.count(Operation::Create);
    log.append(&record(None, vec![entry(1, 1, 2000)])).expect("a sound disk");
    log.append(&record(None, vec![entry(2, 1, 2000)])).expect("a sound disk");
    assert_eq!((disk.count(Operation::Create), log.segments()), (created, 2), "the spare was there");
    assert!(log.wants_spare());
    assert_eq!(indexes(&disk), [(1, 1), (2, 1)]);
    assert!(names(&disk).iter().all(|name| !name.ends_with(".new")), "{:?}", names(&disk));
}

#[test]
fn segments_are_deleted_once_a_snapshot_has_all_their_entries() {
    let (disk, _) = small_directory();
    let Existing { mut log, snapshots, .. } = open(&disk).expect("a sound disk");
    assert_eq!(log.segments(), 2);
    assert!(log.compact(4).names().is_empty(), "entry 5 is needed, and the current segment always is");
    let mut writer = snapshots.begin(&head(7, 2)).expect("a sound disk");
    writer.piece(b"all").expect("a sound disk");
    let mut older = writer.finish(&tail(&[b"all".to_vec()])).expect("a sound disk");
    assert_eq!(older.names(), ["snapshot-00000000000000000003"]);
    older.run(&disk).expect("a sound disk");
    let mut removal = log.compact(7);
    assert_eq!(removal.names(), ["log-00000000000000000002"]);
    removal.run(&disk).expect("a sound disk");
    let after = open_view(&disk).expect("a sound disk");
    assert_eq!(after.hard_state, hard_state(2, 2, 7), "what was snapshotted was committed");
    assert_eq!(after.snapshot, Some((head(7, 2), b"all".to_vec())));
    assert_eq!(after.entries, []);
}

#[test]
fn records_after_the_snapshot_are_measured() {
    let disk = MemoryDisk::new();
    let Existing { mut log, snapshots, .. } = found(&disk);
    for index in 1..=9 {
        log.append(&record(Some(hard_state(1, 1, index)), vec![entry(index, 1, 10)])).expect("a sound disk");
    }
    assert_eq!(open(&disk).expect("a sound disk").entry_bytes, 9 * SECTOR_BYTES as u64);
    let mut writer = snapshots.begin(&head(6, 1)).expect("a sound disk");
    writer.piece(b"table").expect("a sound disk");
    writer.finish(&tail(&[b"table".to_vec()])).expect("a sound disk").run(&disk).expect("a sound disk");
    assert_eq!(open(&disk).expect("a sound disk").entry_bytes, 3 * SECTOR_BYTES as u64);
}

#[test]
fn received_snapshot_replaces_the_log() {
    // The log has nine entries of term 1: it ends before the snapshot, or has another term at the snapshot's
    // index.
    for (index, term) in [(20, 3), (5, 3), (2, 3)] {
        let disk = MemoryDisk::new();
        let Existing { mut log, snapshots, .. } = found(&disk);
        let entries = (1..=9).map(|index| entry(index, 1, 200)).collect();
        log.append(&record(Some(hard_state(1, 1, 1)), entries)).expect("a sound disk");
        let mut writer = snapshots.begin(&head(index, term)).expect("a sound disk");
        writer.piece(b"table").expect("a sound disk");
        writer.finish(&tail(&[b"table".to_vec()])).expect("a sound disk").run(&disk).expect("a sound disk");
        // A node that starts at this point completes the reset that was about to follow.
        let view = open_view(&disk.copy()).expect("a sound disk");
        assert_eq!((view.hard_state, view.entries.len()), (hard_state(3, 0, index), 0), "at {index}");
        log.reset(index, term).expect("a sound disk");
        log.append(&record(None, vec![entry(index + 1, 3, 10)])).expect("a sound disk");
        log.compact(index).run(&disk).expect("a sound disk");
        let view = open_view(&disk).expect("a sound disk");
        assert_eq!(view.entries, [entry(index + 1, 3, 10)], "at {index}");
        assert_eq!(view.hard_state, hard_state(3, 0, index), "what was snapshotted was committed");
    }
}

#[test]
fn snapshot_with_wrong_counts_or_an_oversized_piece_is_not_finished() {
    let (disk, view) = small_directory();
    let snapshots = open(&disk).expect("a sound disk").snapshots;
    let mut writer = snapshots.begin(&head(7, 2)).expect("a sound disk");
    let huge = vec![0; storage::PIECE_BYTES_MAX + 1];
    assert_eq!(writer.piece(&huge).expect_err("it is too long").kind(), std::io::ErrorKind::InvalidInput);
    writer.piece(&huge[1..]).expect("a sound disk");
    let error = writer.finish(&tail(&[])).expect_err("it counts wrong");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let abandoned = snapshots.begin(&head(7, 2)).expect("a sound disk");
    abandoned.abandon().expect("a sound disk");
    assert_eq!(open_view(&disk).expect("a sound disk"), view);
    assert!(names(&disk).iter().all(|name| !name.ends_with(".new")), "a start removes what is unfinished");
}

#[test]
fn unknown_files_are_ignored_and_kept() {
    let (disk, view) = small_directory();
    drop(disk.create("notes.txt").expect("a sound disk"));
    drop(disk.create("log-7").expect("a sound disk"));
    assert_eq!(open_view(&disk).expect("they mean nothing to us"), view);
    assert!(disk.bytes("notes.txt").is_some() && disk.bytes("log-7").is_some());
}
