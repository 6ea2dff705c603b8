//! A small file whose content is replaced atomically, even if the writer is killed.
//!
//! Two headers alternate; each has the position of its body, a checksum of itself and one of the body. A body
//! never overwrites the current one. Writes are not synced: a caller that needs durability against power loss
//! syncs. The content of the bodies is opaque.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"LKRECRD1";
const HEADER_BYTES: usize = 48;
/// Each header has a sector of its own.
const HEADER_STRIDE: usize = 512;
const BODIES_AT: u64 = 1024;
/// Size of the first read; nearly every file is smaller.
const PAGE: usize = 4096;
/// A longer body is treated as damage: the limit is far above the space for 2^17 waiters.
const BODY_BYTES_MAX: u64 = 1 << 30;

/// The current content and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Current {
    generation: u64,
    at: u64,
    length: u64,
    sum: u64,
}

/// The content of a file.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// Never written, or the first writer was killed before it wrote its header.
    Empty,
    Body(Current, Vec<u8>),
    /// There is no valid header with a valid body. Nothing of the file is used.
    Damaged,
}

pub(super) fn read(file: &File) -> io::Result<Content> {
    let mut page = vec![0; PAGE];
    let filled = read_at(file, &mut page, 0)?;
    page.truncate(filled);
    if filled == 0 {
        return Ok(Content::Empty);
    }
    let header =
        |index: usize| page.get(index * HEADER_STRIDE..).map(|rest| &rest[..rest.len().min(HEADER_BYTES)]);
    let headers = [header(0).unwrap_or_default(), header(1).unwrap_or_default()];
    let mut found: Vec<Current> =
        headers.iter().enumerate().filter_map(|(i, bytes)| decode(bytes, i)).collect();
    found.sort_unstable_by_key(|current| std::cmp::Reverse(current.generation));
    for current in found {
        if let Some(body) = body(file, &page, current)? {
            return Ok(Content::Body(current, body));
        }
    }
    let untouched = headers.iter().all(|bytes| bytes.iter().all(|&byte| byte == 0));
    Ok(if untouched { Content::Empty } else { Content::Damaged })
}

/// Writes a body beside the current one, then the header that makes it current.
pub(super) fn write(file: &File, before: Option<Current>, body: &[u8]) -> io::Result<Current> {
    let length = body.len() as u64;
    let at = match before {
        None => BODIES_AT,
        Some(Current { at, .. }) if BODIES_AT + length <= at => BODIES_AT,
        Some(Current { at, length, .. }) => at + length,
    };
    let generation = before.map_or(1, |before| before.generation + 1);
    let current = Current { generation, at, length, sum: xxh3_64(body) };
    file.write_all_at(body, at)?;
    super::os::die_at("body written");
    file.write_all_at(&encode(current), generation % 2 * HEADER_STRIDE as u64)?;
    Ok(current)
}

fn encode(current: Current) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    let numbers = [current.generation, current.at, current.length, current.sum];
    for (field, number) in bytes[8..40].chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    let sum = xxh3_64(&bytes[..40]);
    bytes[40..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8], index: usize) -> Option<Current> {
    if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC || xxh3_64(&bytes[..40]).to_le_bytes() != bytes[40..]
    {
        return None;
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let current = Current { generation: number(8), at: number(16), length: number(24), sum: number(32) };
    let in_its_place = current.generation % 2 == index as u64;
    (in_its_place && current.at >= BODIES_AT && current.length <= BODY_BYTES_MAX).then_some(current)
}

fn body(file: &File, page: &[u8], current: Current) -> io::Result<Option<Vec<u8>>> {
    let (at, length) = (current.at as usize, current.length as usize);
    let body = match page.get(at..at.saturating_add(length)) {
        Some(body) => body.to_vec(),
        None if length == 0 => Vec::new(),
        None => {
            if file.metadata()?.len() < current.at.saturating_add(current.length) {
                return Ok(None);
            }
            let mut body = vec![0; length];
            let filled = read_at(file, &mut body, current.at)?;
            body.truncate(filled);
            body
        }
    };
    Ok((body.len() == length && xxh3_64(&body) == current.sum).then_some(body))
}

/// Fills the buffer, or reads to the end of the file.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(file: &File) -> Option<Vec<u8>> {
        match read(file).unwrap() {
            Content::Body(_, body) => Some(body),
            Content::Empty => Some(Vec::new()),
            Content::Damaged => None,
        }
    }

    fn bytes_of(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        read_at(file, &mut bytes, 0).unwrap();
        bytes
    }

    fn file_of(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file
    }

    #[test]
    fn the_last_written_content_is_read() {
        let file = tempfile::tempfile().unwrap();
        let mut current = None;
        for size in [0, 1, 300, 5000, 20, 100_000, 3, 0] {
            let body = vec![size as u8; size];
            current = Some(write(&file, current, &body).unwrap());
            assert_eq!(read(&file).unwrap(), Content::Body(current.unwrap(), body));
        }
        assert!(file.metadata().unwrap().len() < 300_000);
    }

    #[test]
    fn every_flipped_byte_gives_the_old_content_or_the_new_or_damage() {
        let file = tempfile::tempfile().unwrap();
        let first = write(&file, None, b"the old content").unwrap();
        write(&file, Some(first), b"the new one").unwrap();
        let good = bytes_of(&file);
        let mut old = 0;
        for at in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                match body_of(&file_of(&bad)).as_deref() {
                    Some(b"the new one") => {}
                    Some(b"the old content") => old += 1,
                    other => panic!("byte {at}: {other:?}"),
                }
            }
        }
        assert_eq!(old, 3 * (HEADER_BYTES + b"the new one".len()), "each byte of the new content counts");
    }

    #[test]
    fn a_writer_killed_after_any_byte_leaves_the_old_content() {
        let file = tempfile::tempfile().unwrap();
        let mut current = write(&file, None, &[1; 700]).unwrap();
        for round in 2..6_u8 {
            let before = bytes_of(&file);
            let old = vec![round - 1; 700];
            current = write(&file, Some(current), &[round; 700]).unwrap();
            let after = bytes_of(&file);
            // The body is written first, then the header; the write is cut at each byte.
            let header = usize::from(current.generation % 2 == 1) * HEADER_STRIDE;
            let parts = [(current.at as usize, current.at as usize + 700), (header, header + HEADER_BYTES)];
            let mut torn = before.clone();
            torn.resize(after.len().max(before.len()), 0);
            for (from, to) in parts {
                for at in from..to {
                    let whole = body_of(&file_of(&torn)).expect("never damage");
                    assert_eq!(whole, old, "cut before byte {at}");
                    torn[at] = after[at];
                }
            }
            assert_eq!(body_of(&file_of(&torn)).unwrap(), vec![round; 700]);
        }
    }

    #[test]
    fn a_first_writer_killed_before_its_header_leaves_an_empty_file() {
        let mut bytes = vec![0; 1100];
        bytes[1024..].fill(7);
        assert_eq!(read(&file_of(&bytes)).unwrap(), Content::Empty);
    }

    #[test]
    fn two_bad_headers_are_reported_as_damage() {
        let file = tempfile::tempfile().unwrap();
        let first = write(&file, None, b"a").unwrap();
        write(&file, Some(first), b"b").unwrap();
        let mut bad = bytes_of(&file);
        bad[3] ^= 1;
        bad[515] ^= 1;
        assert_eq!(read(&file_of(&bad)).unwrap(), Content::Damaged);
    }
}
