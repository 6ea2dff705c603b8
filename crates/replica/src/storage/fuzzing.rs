//! The fuzz target `storage`: the files of a data directory and backups, with any content under right
//! checksums.

use lockkeeper_wire::store::{Entry, Founding, Record};
use prost::Message;

use super::backup::BackupReader;
use super::format::{DirectoryIdentity, FileKind, Frame, Header, SECTOR, put_frame};
use super::{LogOptions, Opened, found, founding, open, record, segment};
use crate::disk::Disk;
use crate::disk::memory::MemoryDisk;

const OPTIONS: LogOptions = LogOptions { segment_bytes: 16 << 10 };
const FRAMES: [Frame; 5] = [Frame::Founding, Frame::Head, Frame::Piece, Frame::Tail, Frame::Candidate];

/// Builds a file of `bytes` and reads it; the first byte says which file, and how.
///
/// # Panics
/// If reading panics, or a directory that was opened can't be opened again.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    let (disk, identity) = founded();
    match what % 6 {
        // Anything in place of a file.
        0 => disk.set_bytes(founding::NAME, bytes.to_vec()),
        1 => disk.set_bytes(&segment::name(1), bytes.to_vec()),
        2 => log(&disk, identity, bytes),
        3 => snapshot(&disk, identity, bytes),
        4 => return backup(identity, bytes),
        _ => {
            disk.take_away(founding::NAME);
            disk.take_away(&segment::name(1));
            disk.set_bytes(super::candidate::NAME, framed(FileKind::Candidate, identity, 0, bytes));
        }
    }
    let Ok(Opened::Existing(existing)) = open(&disk, OPTIONS) else { return };
    if let Some(mut snapshot) = existing.snapshot {
        while let Ok(Some(_)) = snapshot.next_piece() {}
    }
    drop(existing.log);
    disk.restart();
    assert!(matches!(open(&disk, OPTIONS), Ok(Opened::Existing(_))), "it was opened once");
}

fn founding_record() -> Founding {
    Founding {
        cluster: vec![1; 16],
        node: 1,
        incarnation: vec![2; 16],
        tokens_above: 1,
        rules: 1,
        ..Founding::default()
    }
}

fn founded() -> (MemoryDisk, DirectoryIdentity) {
    let disk = MemoryDisk::new();
    let founding = founding_record();
    let identity = founding::check(&founding).expect("a valid record");
    drop(found(&disk, OPTIONS, &founding).expect("an empty disk"));
    disk.restart();
    (disk, identity)
}

/// Parts of `bytes`, each with a length of two bytes before it.
fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (part, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        parts.push(part);
        bytes = rest;
    }
    parts
}

/// Records with right checksums behind the header of the first segment.
fn log(disk: &MemoryDisk, identity: DirectoryIdentity, bytes: &[u8]) {
    let size = OPTIONS.segment_bytes();
    let header = Header { size, first_record: 1, ..Header::plain(FileKind::Segment, identity, 1) };
    let (header, seed) = header.encode();
    let mut file = header.to_vec();
    let mut sectors = Vec::new();
    for (number, payload) in (1..).zip(parts(bytes)) {
        record::put(&mut sectors, seed, number, payload);
        file.extend_from_slice(&sectors);
    }
    file.resize(size as usize, 0);
    disk.set_bytes(&segment::name(1), file);
}

/// A file of frames: the first byte of each part is the frame's kind.
fn framed(kind: FileKind, identity: DirectoryIdentity, number: u64, bytes: &[u8]) -> Vec<u8> {
    let (header, seed) = Header::plain(kind, identity, number).encode();
    let (mut file, mut frame) = (header.to_vec(), Vec::new());
    debug_assert_eq!(file.len() as u64, SECTOR);
    for part in parts(bytes) {
        let Some((what, payload)) = part.split_first() else { continue };
        put_frame(&mut frame, seed, file.len() as u64, FRAMES[usize::from(*what) % FRAMES.len()], payload);
        file.extend_from_slice(&frame);
    }
    file
}

fn snapshot(disk: &MemoryDisk, identity: DirectoryIdentity, bytes: &[u8]) {
    let index = bytes.first().map_or(0, |index| u64::from(*index));
    let file = framed(FileKind::Snapshot, identity, index, bytes.get(1..).unwrap_or_default());
    disk.set_bytes(&format!("snapshot-{index:020}"), file);
}

fn backup(identity: DirectoryIdentity, bytes: &[u8]) {
    let number = bytes.first().map_or(0, |number| u64::from(*number));
    let disk = MemoryDisk::new();
    disk.set_bytes("backup", framed(FileKind::Backup, identity, number, bytes.get(1..).unwrap_or_default()));
    let Ok(mut backup) = BackupReader::open(disk.open("backup").expect("the file"), "backup") else { return };
    while let Ok(Some(_)) = backup.next_piece() {}
}

/// Valid inputs.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let part = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap_or(0).to_le_bytes()[..], bytes].concat();
    let entry = |index| Entry { index, term: 1, ..Entry::default() };
    let record = |entries: Vec<Entry>| Record { entries, ..Record::default() }.encode_to_vec();
    let records = [part(&record(vec![entry(1), entry(2)])), part(&record(vec![entry(3)]))].concat();
    let head = lockkeeper_wire::store::SnapshotHead { index: 5, term: 1, ..Default::default() };
    let tail = lockkeeper_wire::store::SnapshotTail { pieces: 1, bytes: 3, ..Default::default() };
    let with = |what: u8, bytes: Vec<u8>| part(&[vec![what], bytes].concat());
    let frames = [with(1, head.encode_to_vec()), with(2, b"abc".to_vec()), with(3, tail.encode_to_vec())];
    let founding = framed(
        FileKind::Founding,
        founding::check(&founding_record()).expect("a valid record"),
        0,
        &with(0, founding_record().encode_to_vec()),
    );
    vec![
        [vec![0], founding].concat(),
        [vec![2], records].concat(),
        [vec![3, 5], frames.concat()].concat(),
        [vec![4, 5], frames.concat()].concat(),
        [vec![5], with(4, vec![8, 1])].concat(),
    ]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("storage", seeds(), run);
}
