//! Failing operations: each returns an error, and none is retried.

use std::io::ErrorKind;

use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, OpenError};

use crate::support::*;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn log_refuses_every_call_after_a_failed_write_or_sync() {
    for operation in [Operation::Write, Operation::Sync] {
        let disk = MemoryDisk::new();
        let mut log = found(&disk).log;
        log.append(&record(None, vec![entry(1, 1, 10)])).expect("a sound disk");
        disk.fail(operation, 0, EIO);
        log.append(&record(None, vec![entry(2, 1, 10)])).expect_err("it fails");
        let counts = (disk.count(Operation::Write), disk.count(Operation::Sync));
        for _ in 0..3 {
            let error = log.append(&record(None, vec![entry(2, 1, 10)])).expect_err("an earlier one failed");
            assert!(error.to_string().contains("end the process"), "{error}");
            log.reset(9, 1).expect_err("an earlier one failed");
        }
        assert_eq!(
            (disk.count(Operation::Write), disk.count(Operation::Sync)),
            counts,
            "the disk is left alone"
        );
    }
}

#[test]
fn start_makes_page_cache_content_durable_before_returning_it() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    disk.fail(Operation::Sync, 0, EIO);
    log.append(&record(None, vec![entry(1, 1, 900)])).expect_err("it fails");
    // The process ends but the machine runs on: the record is readable, but no later sync would write it to
    // the disk.
    disk.restart();
    let shown = open_view(&disk).expect("the file looks whole");
    assert_eq!(shown.entries, [entry(1, 1, 900)]);
    disk.crash(|_| 0);
    assert_eq!(open_view(&disk).expect("it was copied"), shown);
}

#[test]
fn full_disk_is_an_error_and_synced_data_stay() {
    // Fails the write of the record itself; then each step of a switch to the next segment: creating it,
    // writing its header (the second write, after the zero-fill), renaming it, syncing its name.
    let steps = [
        (Operation::Write, 0),
        (Operation::Create, 0),
        (Operation::Write, 1),
        (Operation::Rename, 0),
        (Operation::SyncNames, 0),
    ];
    for (step, (operation, after)) in steps.into_iter().enumerate() {
        let disk = MemoryDisk::new();
        let mut log = found(&disk).log;
        log.append(&record(None, vec![entry(1, 1, 2000)])).expect("a sound disk");
        disk.fail(operation, after, ENOSPC);
        let length = if step == 0 { 10 } else { 2000 };
        let error = log.append(&record(None, vec![entry(2, 1, length)])).expect_err("the disk is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull, "step {step}: {error}");
        disk.restart();
        let view = open_view(&disk).expect("there is space again");
        assert!(view.entries == [entry(1, 1, 2000)], "step {step}");
        assert!(names(&disk).iter().all(|name| !name.ends_with(".new")), "step {step}: {:?}", names(&disk));
    }
}

#[test]
fn start_on_a_full_disk_fails_with_advice_and_changes_nothing() {
    let (disk, view) = small_directory();
    disk.fail(Operation::Write, 0, ENOSPC);
    let error = storage::open(&disk, SMALL).expect_err("the disk is full");
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(error.to_string().contains("Free space"), "{error}");
    assert_eq!(open_view(&disk).expect("there is space again"), view);
}

#[test]
fn failed_segment_preallocation_leaves_the_log_unchanged() {
    let disk = MemoryDisk::new();
    let mut log = found(&disk).log;
    let before = names(&disk);
    disk.fail(Operation::Write, 0, ENOSPC);
    let error = log.spare_maker().make().expect_err("the disk is full");
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(names(&disk), before, "the unfinished file is removed");
    log.append(&record(None, vec![entry(1, 1, 10)])).expect("the log is not harmed");
}

#[test]
fn failed_snapshot_keeps_the_older_one_and_accepts_no_more_pieces() {
    for operation in [Operation::Write, Operation::Sync] {
        let (disk, view) = small_directory();
        let Existing { snapshots, mut log, .. } = open(&disk).expect("a sound disk");
        let mut writer = snapshots.begin(&head(7, 2)).expect("a sound disk");
        disk.fail(operation, 0, EIO);
        let long = vec![3; storage::PIECE_BYTES_MAX];
        writer.piece(&long).expect_err("it fails");
        writer.piece(b"more").expect_err("an earlier one failed");
        writer.finish(&tail(&[])).expect_err("an earlier one failed");
        log.append(&record(None, vec![entry(8, 2, 10)])).expect("the log is not harmed");
        let mut after = open_view(&disk).expect("the older one is whole");
        assert_eq!(after.entries.pop(), Some(entry(8, 2, 10)));
        assert_eq!(after, view);
    }
}

#[test]
fn lying_sync_loses_the_record_in_a_power_cut() {
    // The same power cut with an honest disk keeps the record, so it is the injected fault that loses it.
    let outcome = |is_lying| {
        let disk = MemoryDisk::new();
        let mut log = found(&disk).log;
        disk.lie(is_lying);
        log.append(&record(None, vec![entry(1, 1, 900)])).expect("it says that it is synced");
        disk.lie(false);
        disk.crash(|_| 0);
        open_view(&disk).expect("nothing of it arrived").entries.len()
    };
    assert_eq!((outcome(false), outcome(true)), (1, 0));
}
