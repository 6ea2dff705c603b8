//! The real disk: one owner, no access for other users, and the same behaviour as the disk of the simulator.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use lockkeeper_replica::disk::memory::MemoryDisk;
use lockkeeper_replica::disk::{Disk, DiskFile};
use lockkeeper_replica::storage::{self, Existing, LogOptions, OpenError, Opened};
use lockkeeper_server::disk::{DataDirectory, DirectoryError};
use lockkeeper_wire::store::{Entry, Founding, HardState, Record, SnapshotHead, SnapshotTail};

const SMALL: LogOptions = LogOptions { segment_bytes: 16 << 10 };

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, kind: 1, data: vec![index as u8; 3000].into() }
}

fn sorted_names(disk: &impl Disk) -> Vec<String> {
    let mut names = disk.list().expect("a sound disk");
    names.sort_unstable();
    names
}

/// The behaviour of any disk that the storage relies on.
fn assert_behaves(disk: &impl Disk) {
    let mut file = disk.create("a").expect("a fresh name");
    assert_eq!(disk.create("a").expect_err("it exists").kind(), ErrorKind::AlreadyExists);
    assert_eq!(disk.open("b").expect_err("it does not exist").kind(), ErrorKind::NotFound);
    assert_eq!(disk.remove("b").expect_err("it does not exist").kind(), ErrorKind::NotFound);
    assert_eq!(disk.rename("b", "c").expect_err("it does not exist").kind(), ErrorKind::NotFound);
    file.write_at(3, b"xyz").expect("it grows");
    file.sync().expect("a sound disk");
    let mut bytes = [9; 6];
    disk.open("a").expect("it exists").read_at(0, &mut bytes).expect("it has six bytes");
    assert_eq!((&bytes, file.size().expect("a sound disk")), (b"\0\0\0xyz", 6));
    assert_eq!(file.read_at(1, &mut bytes).expect_err("it is shorter").kind(), ErrorKind::UnexpectedEof);
    disk.create("b").expect("a fresh name").write_at(0, b"old").expect("it grows");
    disk.rename("a", "b").expect("in place of what had the name");
    disk.sync_names().expect("a sound disk");
    assert_eq!(sorted_names(disk), ["b"]);
    assert_eq!(disk.open("b").expect("it exists").size().expect("a sound disk"), 6);
    disk.remove("b").expect("it exists");
    file.read_at(0, &mut bytes).expect("an open file stays readable");
    assert_eq!(sorted_names(disk), Vec::<String>::new());
}

#[test]
fn real_disk_and_memory_disk_behave_alike() {
    assert_behaves(&MemoryDisk::new());
    let dir = tempfile::tempdir().expect("a directory can be made");
    let disk = DataDirectory::own(dir.path().join("data")).expect("nobody has it");
    assert_behaves(&disk);
}

#[test]
fn restart_recovers_log_hard_state_and_snapshot() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let path = dir.path().join("new/data");
    let disk = DataDirectory::own(&path).expect("nobody has it");
    assert!(matches!(storage::open(&disk, SMALL), Ok(Opened::Empty)));
    let founding =
        Founding { cluster: vec![1; 16], node: 1, incarnation: vec![2; 16], ..Founding::default() };
    let Existing { mut log, snapshots, .. } = storage::found(&disk, SMALL, &founding).expect("it is empty");
    let spare = log.spare_maker().make().expect("a sound disk");
    assert!(log.give_spare(spare).names().is_empty());
    for index in 1..=20 {
        let hard_state = Some(HardState { term: 1, vote: 1, commit: index });
        log.append(&Record { hard_state, entries: vec![entry(index)] }).expect("a sound disk");
    }
    let head = SnapshotHead { index: 12, term: 1, rules: 1, members: None };
    let mut writer = snapshots.begin(&head).expect("a sound disk");
    writer.piece(b"a table").expect("a sound disk");
    let tail = SnapshotTail { pieces: 1, bytes: 7, digest: vec![0; 16] };
    writer.finish(&tail).expect("a sound disk").run(&disk).expect("a sound disk");
    let mut removal = log.compact(12);
    assert!(!removal.names().is_empty(), "twelve entries fill more than a segment");
    removal.run(&disk).expect("a sound disk");
    drop((log, snapshots, disk));

    for entry in fs::read_dir(&path).expect("it is there") {
        let entry = entry.expect("it can be listed");
        let mode = entry.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.file_name());
    }
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o700);

    let disk = DataDirectory::own(&path).expect("its owner is gone");
    let opened = storage::open(&disk, SMALL).expect("a sound disk");
    let Opened::Existing(existing) = opened else { panic!("it was founded") };
    assert_eq!(existing.founding, founding);
    assert_eq!(existing.hard_state, HardState { term: 1, vote: 1, commit: 20 });
    assert_eq!(existing.entries, (13..=20).map(entry).collect::<Vec<_>>());
    let mut reader = existing.snapshot.expect("it was written");
    assert_eq!(reader.head(), &head);
    assert_eq!(reader.next_piece().expect("a sound disk").as_deref(), Some(b"a table".as_slice()));
    assert_eq!(reader.next_piece().expect("a sound disk"), None);
    assert_eq!(reader.tail(), Some(&tail));
    let error = storage::found(&disk, SMALL, &founding).expect_err("it was founded before");
    assert!(matches!(error, OpenError::Founded { .. }), "{error}");
}

#[test]
fn data_directory_has_one_owner_and_the_error_names_its_pid() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let owner = DataDirectory::own(dir.path()).expect("nobody has it");
    let clone = owner.clone();
    drop(owner);
    let error = DataDirectory::own(dir.path()).expect_err("a clone still has it");
    let own_pid = std::process::id();
    assert!(matches!(error, DirectoryError::InUse { pid: Some(pid), .. } if pid == own_pid), "{error}");
    assert!(error.to_string().contains(&format!("in use by another process, pid {own_pid}")), "{error}");
    drop(clone);
    DataDirectory::own(dir.path()).expect("its owner is gone");
}

#[test]
fn path_through_a_file_is_refused_as_no_directory() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let file = dir.path().join("file");
    fs::write(&file, "x").expect("a file can be made");
    for path in [file.clone(), file.join("data")] {
        let error = DataDirectory::own(&path).expect_err("a file is in the way");
        assert!(error.to_string().contains("is not a directory"), "{error}");
    }
}
