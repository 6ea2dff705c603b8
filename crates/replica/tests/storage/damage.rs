//! Damage at every byte and every length is rejected with its position and never read as data.

use lockkeeper_replica::disk::memory::MemoryDisk;
use lockkeeper_replica::storage::{FORMAT_VERSION, OpenError};

use crate::support::{View, names, open_view, small_directory};

/// Damages a copy of the small directory and opens it. Returns the error, or the view if the open succeeded
/// with the right data; panics if it returned wrong data.
fn damaged(disk: &MemoryDisk, view: &View, damage: impl FnOnce(&MemoryDisk)) -> Result<OpenError, Box<View>> {
    let copy = disk.copy();
    damage(&copy);
    match open_view(&copy) {
        Err(error) => Ok(error),
        Ok(found) if found == *view => Err(Box::new(found)),
        Ok(found) => panic!("damage was read as data: {found:?}"),
    }
}

#[test]
fn small_directory_has_four_files_and_opens_undamaged() {
    let (disk, view) = small_directory();
    let names = names(&disk);
    assert_eq!(names.len(), 4, "founding record, snapshot and two segments: {names:?}");
    assert_eq!(open_view(&disk).expect("undamaged"), view);
    assert_eq!(open_view(&disk).expect("an open changes nothing of it"), view);
}

#[test]
fn every_changed_byte_of_every_file_is_refused() {
    let (disk, view) = small_directory();
    let mut wrong = Vec::new();
    for name in names(&disk) {
        let bytes = disk.bytes(&name).expect("it is listed");
        for at in 0..bytes.len() {
            for change in [bytes[at] ^ 1, !bytes[at], 0, b'R'] {
                if change == bytes[at] {
                    continue;
                }
                let mut changed = bytes.clone();
                changed[at] = change;
                match damaged(&disk, &view, |disk| disk.set_bytes(&name, changed)) {
                    Ok(OpenError::Corrupt { file, .. }) if file == name => {}
                    Ok(other) => wrong.push(format!("{name} at {at}: {other}")),
                    Err(_) => wrong.push(format!("{name} at {at}: not noticed")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} changes: {}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

#[test]
fn every_file_that_was_cut_or_grew_is_refused() {
    let (disk, view) = small_directory();
    for name in names(&disk) {
        let bytes = disk.bytes(&name).expect("it is listed");
        for length in (0..bytes.len()).chain([bytes.len() + 1, bytes.len() + 512]) {
            let mut cut = bytes.clone();
            cut.resize(length, 0);
            let error = damaged(&disk, &view, |disk| disk.set_bytes(&name, cut))
                .expect_err_unnoticed(&format!("{name} with {length} bytes"));
            assert!(matches!(error, OpenError::Corrupt { .. }), "{name} with {length} bytes: {error}");
        }
    }
}

/// `expect` for damage that must be detected.
trait Noticed {
    fn expect_err_unnoticed(self, what: &str) -> OpenError;
}

impl Noticed for Result<OpenError, Box<View>> {
    fn expect_err_unnoticed(self, what: &str) -> OpenError {
        self.unwrap_or_else(|_| panic!("{what} was not noticed"))
    }
}

#[test]
fn every_file_that_is_missing_is_refused_by_name() {
    let (disk, view) = small_directory();
    for name in names(&disk) {
        let error = damaged(&disk, &view, |disk| disk.take_away(&name)).expect_err_unnoticed(&name);
        let text = error.to_string();
        assert!(text.contains("missing"), "{name}: {text}");
        // A missing snapshot or a missing oldest segment shows only as a gap between the newest snapshot and
        // the first segment present, so the error names that segment.
        assert!(
            name.starts_with("snapshot") || text.contains(&name) || name.ends_with('2'),
            "{name}: {text}"
        );
        assert!(text.contains("add it anew") && text.contains("restore a backup"), "{text}");
    }
}

#[test]
fn zeroed_sector_within_the_log_is_refused() {
    let (disk, view) = small_directory();
    for name in names(&disk).into_iter().filter(|name| name.starts_with("log-")) {
        let bytes = disk.bytes(&name).expect("it is listed");
        let written: Vec<usize> = (0..bytes.len())
            .step_by(512)
            .filter(|at| bytes[*at..*at + 512].iter().any(|byte| *byte != 0))
            .collect();
        // The last record of the log has three sectors; a record without one of them is indistinguishable
        // from a torn one.
        let is_last = name.ends_with('3');
        let kept = if is_last { written.len() - 3 } else { written.len() };
        for at in &written[..kept] {
            let mut changed = bytes.clone();
            changed[*at..*at + 512].fill(0);
            let error = damaged(&disk, &view, |disk| disk.set_bytes(&name, changed))
                .expect_err_unnoticed(&format!("{name} without the sector at {at}"));
            assert!(matches!(&error, OpenError::Corrupt { .. }), "{error}");
        }
    }
}

#[test]
fn swapped_files_are_refused() {
    let (disk, view) = small_directory();
    let names = names(&disk);
    for one in &names {
        for other in names.iter().filter(|other| *other != one) {
            let bytes = disk.bytes(other).expect("it is listed");
            damaged(&disk, &view, |disk| disk.set_bytes(one, bytes))
                .expect_err_unnoticed(&format!("{other} in the place of {one}"));
        }
    }
}

/// Changes the header and recomputes its checksum.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    change(&mut bytes[..508]);
    let checksum = crc32fast::hash(&bytes[..508]);
    bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn newer_format_is_distinguished_from_damage_and_names_both_versions() {
    let (disk, view) = small_directory();
    for name in names(&disk) {
        let bytes = disk.bytes(&name).expect("it is listed");
        let newer = with_header(&bytes, |header| header[12..16].copy_from_slice(&77_u32.to_le_bytes()));
        let error = damaged(&disk, &view, |disk| disk.set_bytes(&name, newer)).expect_err_unnoticed(&name);
        assert!(
            matches!(&error, OpenError::NewerFormat { file, found: 77 } if *file == name),
            "{name}: {error}"
        );
        let text = error.to_string();
        assert!(text.contains("77") && text.contains(&format!("up to {FORMAT_VERSION}")), "{text}");
    }
}

#[test]
fn a_file_of_another_data_directory_is_refused() {
    let (disk, view) = small_directory();
    for name in names(&disk).into_iter().filter(|name| name != "founding") {
        let bytes = disk.bytes(&name).expect("it is listed");
        for place in [16, 32] {
            let foreign = with_header(&bytes, |header| header[place] ^= 1);
            let error =
                damaged(&disk, &view, |disk| disk.set_bytes(&name, foreign)).expect_err_unnoticed(&name);
            assert!(
                matches!(&error, OpenError::AnotherCluster { file, .. } if *file == name),
                "{name}: {error}"
            );
        }
    }
}

#[test]
fn damaged_snapshot_is_refused_even_if_an_older_one_is_intact() {
    let (disk, _) = small_directory();
    let newest = "snapshot-00000000000000000003";
    let mut bytes = disk.bytes(newest).expect("the small directory has it");
    disk.set_bytes("snapshot-00000000000000000001", bytes.clone());
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    disk.set_bytes(newest, bytes);
    let error = open_view(&disk).expect_err("the newest snapshot is damaged");
    assert!(matches!(&error, OpenError::Corrupt { file, .. } if file == newest), "{error}");
    assert!(disk.bytes("snapshot-00000000000000000001").is_some(), "nothing is removed before all was read");
}
