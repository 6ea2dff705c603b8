//! The bytes of a fenced object: a text header, then the content.
//!
//! Checksums detect truncation and bit flips of the header and of the content, which are reported as errors
//! and never read as other marks or other content. The header is text, so that operators can read it:
//! ```text
//! lockkeeper-object 1
//! holds content
//! nonce 9b1f0d8c5a7e42b6a3c1e0f2d4b68790
//! change 3
//! before 02c4…e1 77ab…09
//! base any 18 writer 17
//! slot 3 any 20 writer 20
//! content 12 bytes 3f1c0a5d9b7e2468
//! check 90ab12cd34ef5678
//! ```
//! - `nonce` is new with every change, so no two changes have equal bytes. An ETag may be the MD5 of the
//!   bytes: with the nonce, an If-Match on an ETag identifies one change.
//! - `change` counts the changes, and `before` lists the nonces of the previous ones, the newest first, at
//!   most [`BEFORE_MAX`]. A writer that got no response uses this list to determine whether its change took
//!   effect, even after further changes of the object.
//! - `content` has the length and the XXH3 of the content, or is `content none` if there is none: a deleted
//!   object remains, with its marks.
//! - `check` is the XXH3 of the header up to this line.

use std::fmt::{self, Write as _};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::lines;
use crate::rule::Marks;

/// The version that this code writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;
/// Most nonces of previous changes in a record. Far more than occur during one request: each change of
/// another writer takes a read and a put.
pub(super) const BEFORE_MAX: usize = 32;
/// Longest header, in bytes.
pub(super) const HEADER_BYTES_MAX: u64 = 512 + BEFORE_MAX as u64 * 33 + lines::BYTES_MAX;

const MAGIC: &str = "lockkeeper-object ";
const CHECK: &[u8] = b"\ncheck ";
/// The length of a checksum's digits and their line end.
const CHECK_BYTES: usize = 17;

/// Identifies one change of an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Nonce(u128);

impl Nonce {
    /// Returns a new nonce, from the system's RNG: two processes, or a process and its fork, must never share
    /// one.
    ///
    /// # Errors
    /// The system's RNG failed.
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }

    /// Parses 32 hexadecimal digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let value = u128::from_str_radix(text, 16).ok().map(Self)?;
        (value.to_string() == text).then_some(value)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The kind of fence that an object belongs to: neither kind may read the other's content as its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// The content itself.
    Content,
    /// The name of the object with the content.
    Pointer,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Content => "content",
            Self::Pointer => "pointer",
        })
    }
}

/// A whole fenced object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) holds: Holds,
    pub(super) nonce: Nonce,
    /// The number of this change; 1 for the change that created the object.
    pub(super) change: u64,
    /// Nonces of the previous changes, the newest first.
    pub(super) before: Vec<Nonce>,
    pub(super) marks: Marks,
    pub(super) content: Option<Bytes>,
}

/// Why bytes could not be decoded as a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Unreadable {
    /// An object that no fence wrote.
    Foreign,
    /// The program does not support this format version.
    Newer { version: u32 },
    /// The bytes are truncated, corrupted or edited.
    Corrupt { why: &'static str },
}

impl Record {
    /// The record that follows `last`, or the first one.
    pub(super) fn after(
        last: Option<&Self>,
        holds: Holds,
        nonce: Nonce,
        marks: Marks,
        content: Option<Bytes>,
    ) -> Self {
        let mut before = Vec::new();
        if let Some(last) = last {
            before.push(last.nonce);
            before.extend(last.before.iter().take(BEFORE_MAX - 1));
        }
        Self { holds, nonce, change: last.map_or(0, |last| last.change) + 1, before, marks, content }
    }

    /// Encodes the record; equal records give equal bytes.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = self.header().into_bytes();
        bytes.extend_from_slice(self.content.as_deref().unwrap_or_default());
        bytes.into()
    }

    fn header(&self) -> String {
        let Self { holds, nonce, change, before, marks, content } = self;
        let mut text = format!("{MAGIC}{VERSION}\nholds {holds}\nnonce {nonce}\nchange {change}\nbefore");
        // Writing to a String can't fail.
        for nonce in before {
            let _ = write!(text, " {nonce}");
        }
        text.push('\n');
        lines::push(&mut text, marks);
        let _ = match content {
            Some(content) => writeln!(text, "content {} bytes {:016x}", content.len(), xxh3_64(content)),
            None => writeln!(text, "content none"),
        };
        let check = xxh3_64(text.as_bytes());
        let _ = writeln!(text, "check {check:016x}");
        text
    }

    /// Decodes `bytes`, which must be exactly the output of [`encode`](Self::encode) for the returned record.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, Unreadable> {
        let corrupt = |why| Unreadable::Corrupt { why };
        if !bytes.starts_with(MAGIC.as_bytes()) {
            return Err(Unreadable::Foreign);
        }
        let end = bytes.windows(CHECK.len()).position(|window| window == CHECK);
        let body = end.ok_or(corrupt("its header has no end"))? + 1;
        let header = body + CHECK.len() - 1 + CHECK_BYTES;
        let text = bytes.get(..header).and_then(|header| std::str::from_utf8(header).ok());
        let text = text.ok_or(corrupt("its header is cut or is not text"))?;
        // The checksum is checked before the version: a flipped digit is damage, not a newer version.
        if text[body..] != format!("check {:016x}\n", xxh3_64(&bytes[..body])) {
            return Err(corrupt("its header's checksum does not match"));
        }
        let lines = &text[..body];
        let version = lines[MAGIC.len()..].split('\n').next().and_then(|version| version.parse().ok());
        match version.ok_or(corrupt("its version is not a number"))? {
            VERSION => {}
            version => return Err(Unreadable::Newer { version }),
        }
        let record = parse(lines, bytes.slice(header..)).ok_or(corrupt("a line is not one of its header"))?;
        // Only the canonical form is valid. This also compares the content's length and checksum.
        if record.header() == text {
            Ok(record)
        } else {
            Err(corrupt("its content is not what its header says, or the header is not as a fence writes it"))
        }
    }
}

/// Parses the lines of a header; `rest` is the content after it.
fn parse(lines: &str, rest: Bytes) -> Option<Record> {
    let mut lines = lines.lines().skip(1);
    let mut next = |name: &str| lines.next()?.strip_prefix(name);
    let holds = match next("holds ")? {
        "content" => Holds::Content,
        "pointer" => Holds::Pointer,
        _ => return None,
    };
    let nonce = Nonce::parse(next("nonce ")?)?;
    let change = next("change ")?.parse().ok()?;
    let before = next("before")?.split_ascii_whitespace().map(Nonce::parse).collect::<Option<Vec<_>>>()?;
    let lines: Vec<&str> = lines.collect();
    let (content, marks) = lines.split_last()?;
    let content = match content.strip_prefix("content ")? {
        "none" if !rest.is_empty() => return None,
        "none" => None,
        _ => Some(rest),
    };
    let marks = lines::parse(marks.iter().copied())?;
    Some(Record { holds, nonce, change, before, marks, content })
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_record(bytes: &Bytes) {
    if let Ok(record) = Record::decode(bytes) {
        assert_eq!(&record.encode(), bytes);
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_seed() -> Bytes {
    let nonce = Nonce::parse(&"0".repeat(32)).expect("a nonce");
    Record::after(None, Holds::Content, nonce, Marks::default(), None).encode()
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Token;

    use super::*;
    use crate::rule::{Action, Section};

    fn token(value: u64) -> Token {
        Token::new(value).expect("a token")
    }

    fn sample(content: Option<&'static [u8]>) -> Record {
        let mut marks = Marks::default();
        for section in [
            Section::exclusive(token(17)),
            Section::shared(token(18)),
            Section::permit(3, token(9_007_199_254_740_991)).expect("a slot"),
        ] {
            let _ = marks.check(Action::Enter, section).expect("passes");
        }
        let first = Record::after(None, Holds::Content, Nonce(7), Marks::default(), None);
        Record::after(Some(&first), Holds::Content, Nonce(u128::MAX), marks, content.map(Bytes::from_static))
    }

    #[test]
    fn decode_returns_the_encoded_record() {
        for content in [None, Some(&b""[..]), Some(b"\ncheck 0123456789abcdef\n"), Some(&[0, 255])] {
            let record = sample(content);
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
        let pointer = Record::after(None, Holds::Pointer, Nonce(0), Marks::default(), None);
        assert_eq!(Record::decode(&pointer.encode()), Ok(pointer));
    }

    #[test]
    fn encoded_header_is_readable_text() {
        let bytes = sample(Some(b"seven")).encode();
        let text = std::str::from_utf8(&bytes).expect("text");
        let nonce = "f".repeat(32);
        let seven = format!("{:032x}", 7);
        assert!(
            text.starts_with(&format!(
                "lockkeeper-object 1\nholds content\nnonce {nonce}\nchange 2\nbefore {seven}\n\
                 base any 18 writer 17\nslot 3 any 9007199254740991 writer 9007199254740991\ncontent 5 bytes "
            )),
            "{text}"
        );
        assert!(text.ends_with("\nseven"), "{text}");
    }

    #[test]
    fn every_cut_flip_and_added_byte_is_detected() {
        for content in [None, Some(&b"some content"[..])] {
            let good = sample(content).encode();
            let mut tried = 0;
            let mut refuse = |bytes: Vec<u8>, what: String| {
                let told = Record::decode(&Bytes::from(bytes));
                assert!(
                    matches!(told, Err(Unreadable::Corrupt { .. } | Unreadable::Foreign)),
                    "{what}: {told:?}"
                );
                tried += 1;
            };
            for at in 0..good.len() {
                refuse(good[..at].to_vec(), format!("a cut at byte {at}"));
                refuse(good[at + 1..].to_vec(), format!("a lost head of {} bytes", at + 1));
                for bit in 0..8 {
                    let mut flipped = good.to_vec();
                    flipped[at] ^= 1 << bit;
                    refuse(flipped, format!("a flip of bit {bit} in byte {at}"));
                }
                for byte in [b'0', b'\n', 0] {
                    let mut longer = good.to_vec();
                    longer.insert(at, byte);
                    refuse(longer, format!("byte {byte} put in at {at}"));
                }
            }
            refuse([&good[..], b"\n"].concat(), "an added line end".to_owned());
            assert_eq!(tried, good.len() * 13 + 1);
        }
    }

    /// Headers that only another program or a manual edit could write: valid checksum, invalid header.
    #[test]
    fn headers_that_no_fence_writes_are_refused_even_with_a_right_checksum() {
        let sealed = |body: &str| Bytes::from(format!("{body}check {:016x}\n", xxh3_64(body.as_bytes())));
        let nonce = Nonce(1);
        let good = format!(
            "lockkeeper-object 1\nholds content\nnonce {nonce}\nchange 1\nbefore\nbase any 1 writer 1\ncontent none\n"
        );
        assert!(Record::decode(&sealed(&good)).is_ok(), "the specimen itself");
        for (from, to) in [
            ("content none", "content some"),
            ("content none", "content 1 bytes 0000000000000000"),
            ("change 1", "change 01"),
            ("any 1 writer 1", "any 1 writer 2"),
            ("before", "before 1"),
            ("before", "before "),
            ("holds content", "holds nothing"),
            ("nonce 0", "nonce +"),
            ("\n", "\r\n"),
        ] {
            let told = Record::decode(&sealed(&good.replacen(from, to, 1)));
            assert!(matches!(told, Err(Unreadable::Corrupt { .. })), "{to:?}: {told:?}");
        }
        assert_eq!(
            Record::decode(&sealed("lockkeeper-object 2\nwhatever\n")),
            Err(Unreadable::Newer { version: 2 })
        );
        assert_eq!(Record::decode(&Bytes::from_static(b"{}")), Err(Unreadable::Foreign));
        assert_eq!(Record::decode(&Bytes::new()), Err(Unreadable::Foreign));
    }

    #[test]
    fn a_record_names_the_changes_before_it_up_to_the_limit() {
        let mut last: Option<Record> = None;
        for change in 1..=BEFORE_MAX as u64 + 5 {
            let next =
                Record::after(last.as_ref(), Holds::Content, Nonce(change.into()), Marks::default(), None);
            assert_eq!(next.change, change);
            assert_eq!(next.before.len() as u64, (change - 1).min(BEFORE_MAX as u64));
            assert_eq!(next.before.first(), last.as_ref().map(|last| &last.nonce));
            last = Some(next);
        }
    }
}
