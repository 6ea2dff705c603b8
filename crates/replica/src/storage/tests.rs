//! Decoders, tested from inside the module: arbitrary bytes, and wrong content with valid checksums.

use lockkeeper_wire::store::{Entry, Founding, Record};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::format::{DirectoryIdentity, FileKind, Frame, Header, put_frame, read_frame};
use super::record::{self, Found};
use super::{LogOptions, OpenError, Opened, SECTOR_BYTES, found, open};
use crate::disk::memory::MemoryDisk;
use crate::disk::{Disk, DiskFile};

const SMALL: LogOptions = LogOptions { segment_bytes: 4096 };
const SEGMENT: &str = "log-00000000000000000001";

fn founded() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let founding =
        Founding { cluster: vec![1; 16], node: 1, incarnation: vec![2; 16], ..Founding::default() };
    found(&disk, SMALL, &founding).expect("an empty directory can be founded");
    disk
}

/// A directory whose log has these payloads as its records, with valid checksums.
fn with_records(payloads: &[Vec<u8>]) -> MemoryDisk {
    let disk = founded();
    let mut file = disk.open(SEGMENT).expect("it was founded");
    let mut header = [0; SECTOR_BYTES];
    file.read_at(0, &mut header).expect("a sound disk");
    let (_, seed) = Header::decode(&header, SEGMENT, FileKind::Segment).expect("a sound disk");
    let (mut at, mut sectors) = (SECTOR_BYTES as u64, Vec::new());
    for (number, payload) in (1..).zip(payloads) {
        record::put(&mut sectors, seed, number, payload);
        file.write_at(at, &sectors).expect("a sound disk");
        at += sectors.len() as u64;
    }
    disk
}

fn entry(index: u64) -> Entry {
    Entry { index, term: 1, kind: 1, data: Vec::new().into() }
}

/// Asserts that opening fails with damage in the log segment.
fn assert_refused(disk: &MemoryDisk, what: &str) {
    let error = open(disk, SMALL).map(|_| ()).expect_err(what);
    assert!(matches!(&error, OpenError::Corrupt { file, .. } if file == SEGMENT), "{what}: {error}");
}

#[test]
fn inconsistent_log_with_valid_checksums_is_refused() {
    let encode = |entries: Vec<Entry>| Record { hard_state: None, entries }.encode_to_vec();
    let committed = lockkeeper_wire::store::HardState { term: 1, vote: 0, commit: 3 };
    let cases = [
        ("a gap between records", vec![encode(vec![entry(1)]), encode(vec![entry(3)])]),
        ("a gap in a record", vec![encode(vec![entry(1), entry(3)])]),
        ("entry 0", vec![encode(vec![entry(0)])]),
        ("the last index of all", vec![encode(vec![entry(u64::MAX)])]),
        ("a log that does not begin at 1", vec![encode(vec![entry(2)])]),
        (
            "more committed than there is",
            vec![Record { hard_state: Some(committed), entries: vec![entry(1)] }.encode_to_vec()],
        ),
        ("no protobuf", vec![vec![0xFF; 40]]),
    ];
    for (what, payloads) in cases {
        assert_refused(&with_records(&payloads), what);
    }
}

proptest! {
    #[test]
    fn record_round_trips_and_is_refused_with_another_seed_or_number(payload in vec(any::<u8>(), 0..3000), seed: u32, number: u64, behind in 0..4_usize) {
        let mut area = Vec::new();
        record::put(&mut area, seed, number, &payload);
        let size = area.len();
        prop_assert_eq!(size, record::size(payload.len()));
        prop_assert!(area.chunks(SECTOR_BYTES).all(|sector| sector[0] != 0 && sector[1] != 0));
        area.resize(size + behind * SECTOR_BYTES, 0);
        prop_assert_eq!(record::find(&area, seed, number), Found::Record(payload, size));
        let is_bad = |found| matches!(found, Found::Bad(..));
        prop_assert!(is_bad(record::find(&area, seed ^ 1, number)), "of another file");
        prop_assert!(is_bad(record::find(&area, seed, number ^ 1)), "in another place");
    }

    #[test]
    fn record_with_missing_sectors_is_torn_or_damaged_if_data_follow(
        payload in vec(any::<u8>(), 0..3000), missing: u8, follower in any::<bool>(),
    ) {
        let mut area = Vec::new();
        record::put(&mut area, 5, 9, &payload);
        let size = area.len();
        let mut lost = 0;
        for (index, sector) in area.chunks_mut(SECTOR_BYTES).enumerate() {
            if missing >> index & 1 == 1 {
                sector.fill(0);
                lost += 1;
            }
        }
        prop_assume!(lost > 0);
        let all_lost = lost == size / SECTOR_BYTES;
        let mut next = vec![0; SECTOR_BYTES];
        if follower {
            record::put(&mut next, 5, 10, b"later");
        }
        area.extend(next);
        let found = record::find(&area, 5, 9);
        match (follower, all_lost) {
            (true, _) => prop_assert!(matches!(found, Found::Bad(..)), "{found:?}"),
            (false, true) => prop_assert_eq!(found, Found::End),
            (false, false) => prop_assert_eq!(found, Found::Torn),
        }
    }

    #[test]
    fn arbitrary_bytes_are_never_a_record_a_header_or_a_frame(
        bytes in vec(any::<u8>(), SECTOR_BYTES * 3), tagged: bool,
    ) {
        let mut bytes = bytes;
        if tagged {
            bytes[..2].copy_from_slice(b"R1");
        }
        prop_assert!(matches!(record::find(&bytes, 0, 1), Found::Bad(..)));
        let header = bytes.first_chunk().expect("it is longer");
        prop_assert!(Header::decode(header, "x", FileKind::Segment).is_err());
        let disk = MemoryDisk::new();
        disk.set_bytes("x", bytes.clone());
        let file = disk.open("x").expect("it is there");
        prop_assert!(read_frame(&file, "x", 0, 512, bytes.len() as u64).is_err());
    }

    #[test]
    fn a_log_of_arbitrary_payloads_opens_or_is_refused(payloads in vec(vec(any::<u8>(), 0..200), 1..4)) {
        let result = open(&with_records(&payloads), SMALL);
        let is_clean = matches!(&result, Ok(Opened::Existing(_)) | Err(OpenError::Corrupt { .. }));
        prop_assert!(is_clean, "{result:?}");
    }

    #[test]
    fn frames_and_headers_of_arbitrary_content_are_read_as_written_or_refused(
        payload in vec(any::<u8>(), 0..300), numbers: [u64; 5], seed: u32,
    ) {
        let disk = founded();
        let identity = DirectoryIdentity { cluster: [1; 16], incarnation: [2; 16] };
        let [number, size, first_record, index, term] = numbers;
        let header = Header {
            size, first_record, last: super::Position { index, term },
            ..Header::plain(FileKind::Segment, identity, number)
        };
        let (bytes, _) = header.encode();
        prop_assert_eq!(Header::decode(&bytes, "x", FileKind::Segment).expect("it was just made").0, header.clone());
        let mut frame = Vec::new();
        put_frame(&mut frame, seed, 0, Frame::Piece, &payload);
        disk.set_bytes("x", frame.clone());
        let file = disk.open("x").expect("it is there");
        let (what, read, end) = read_frame(&file, "x", seed, 0, frame.len() as u64).expect("it was just made");
        prop_assert_eq!((what, &read, end), (Frame::Piece, &payload, frame.len() as u64));

        // The same content in a bootstrap record, and in the header of a segment.
        let (bytes, seed) = Header::plain(FileKind::Founding, identity, 0).encode();
        put_frame(&mut frame, seed, 512, Frame::Founding, &payload);
        let whole = disk.copy();
        whole.set_bytes("founding", [bytes.as_slice(), &frame].concat());
        prop_assert!(open(&whole, SMALL).is_err(), "no founding record of this cluster");
        let mut segment = disk.bytes(SEGMENT).expect("it was founded");
        let (bytes, _) = Header { size: 4096, number: 1, ..header }.encode();
        segment[..SECTOR_BYTES].copy_from_slice(&bytes);
        disk.set_bytes(SEGMENT, segment);
        prop_assert_eq!(open(&disk, SMALL).is_ok(), index == 0, "entries before the log are missing");
    }
}
