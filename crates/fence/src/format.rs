//! The byte format of one resource's marks, used by mark files and by the store of marks.
//!
//! A checksum detects truncation, bit flips and manual edits, which are reported as errors and never read as
//! other marks. The format is text, so that an operator can read it with `cat`:
//! ```text
//! lockkeeper-fence 1
//! base any 18 writer 17
//! slot 3 any 20 writer 20
//! check 3f1c0a5d9b7e2468
//! ```
//! `any` is the highest token that passed, `writer` the highest that passed as a writer; `base` has the marks
//! for sections without a slot, `slot 3` those of slot 3. 0 means that no token has passed yet. The last line
//! is the XXH3 of all bytes before it.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use crate::lines;
use crate::rule::Marks;

/// The version that this code writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 1;
/// Longest mark file, in bytes: every slot with the longest numbers. A longer file is refused as damaged, and
/// not read further.
#[cfg(any(test, target_os = "linux"))]
pub(crate) const BYTES_MAX: u64 = 64 + lines::BYTES_MAX;

const MAGIC: &str = "lockkeeper-fence ";

/// Why bytes could not be decoded as marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// The program does not support this format version.
    Newer { version: u32 },
    /// The bytes are truncated, corrupted, edited, or not a mark file.
    Corrupt { why: &'static str },
}

/// Encodes `marks`; equal marks give equal bytes.
pub(crate) fn encode(marks: &Marks) -> Vec<u8> {
    let mut text = format!("{MAGIC}{VERSION}\n");
    lines::push(&mut text, marks);
    let check = xxh3_64(text.as_bytes());
    let _ = writeln!(text, "check {check:016x}"); // writing to a String can't fail
    text.into_bytes()
}

/// The number of marks in encoded ones, which are not verified: one for the resource, and one for each slot.
#[cfg(feature = "store")]
pub(crate) fn count(bytes: &[u8]) -> u64 {
    // Neither the first line nor the last one has marks.
    (bytes.iter().filter(|byte| **byte == b'\n').count() as u64).saturating_sub(2)
}

/// Decodes `bytes`, which must be exactly the output of [`encode`] for the returned marks.
pub(crate) fn decode(bytes: &[u8]) -> Result<Marks, Unreadable> {
    let corrupt = |why| Unreadable::Corrupt { why };
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is not text"))?;
    let rest = text.strip_prefix(MAGIC).ok_or(corrupt("its first line is not that of a mark file"))?;
    let (body, check) = text.rsplit_once("check ").ok_or(corrupt("its last line is missing"))?;
    // The checksum is checked before the version: a flipped digit is damage, not a newer version.
    if check != format!("{:016x}\n", xxh3_64(body.as_bytes())) {
        return Err(corrupt("its checksum does not match"));
    }
    let version = rest.split('\n').next().and_then(|version| version.parse().ok());
    match version.ok_or(corrupt("its version is not a number"))? {
        VERSION => {}
        version => return Err(Unreadable::Newer { version }),
    }
    let marks = lines::parse(body.lines().skip(1)).ok_or(corrupt("a line is not one of a mark file"))?;
    // Only the canonical form is valid. The parser accepts other forms, but they don't re-encode to the same
    // bytes.
    if encode(&marks) == bytes {
        Ok(marks)
    } else {
        Err(corrupt("it is not in the form that a fence writes"))
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::Token;
    use lockkeeper_core::limits::PERMITS_MAX;

    use super::*;
    use crate::rule::{Action, Pair, Section};

    fn token(value: u64) -> Token {
        Token::new(value).expect("a token")
    }

    fn sample() -> Marks {
        let mut marks = Marks::default();
        for section in [
            Section::exclusive(token(17)),
            Section::shared(token(18)),
            Section::permit(3, token(20)).expect("a slot"),
            Section::permit(65_535, token(9_007_199_254_740_991)).expect("a slot"),
        ] {
            let _ = marks.check(Action::Enter, section).expect("passes");
        }
        marks
    }

    #[test]
    fn decode_returns_the_encoded_marks() {
        for marks in [Marks::default(), sample()] {
            assert_eq!(decode(&encode(&marks)), Ok(marks));
        }
    }

    #[test]
    fn encoded_marks_are_readable_text() {
        let text = String::from_utf8(encode(&sample())).expect("text");
        assert!(
            text.starts_with("lockkeeper-fence 1\nbase any 18 writer 17\nslot 3 any 20 writer 20\n"),
            "{text}"
        );
    }

    #[test]
    fn every_cut_flip_and_added_byte_is_detected() {
        let good = encode(&sample());
        let mut tried = 0;
        let mut refuse = |bytes: &[u8], what: String| {
            assert!(matches!(decode(bytes), Err(Unreadable::Corrupt { .. })), "{what} went unnoticed");
            tried += 1;
        };
        for cut in 0..good.len() {
            refuse(&good[..cut], format!("a cut at byte {cut}"));
            refuse(&good[cut + 1..], format!("a lost head of {} bytes", cut + 1));
            let mut zeroed = good.clone();
            zeroed[cut..].fill(0);
            refuse(&zeroed, format!("zeros from byte {cut}"));
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[cut] ^= 1 << bit;
                refuse(&flipped, format!("a flip of bit {bit} in byte {cut}"));
            }
            for byte in [b'0', b'\n', 0] {
                let mut longer = good.clone();
                longer.insert(cut, byte);
                refuse(&longer, format!("byte {byte} put in at {cut}"));
            }
        }
        refuse(&[&good[..], b"\n"].concat(), "an added line end".to_owned());
        refuse(&[&good[..], &good[..]].concat(), "the file twice".to_owned());
        assert_eq!(tried, good.len() * 14 + 2);
    }

    /// Content that only another program or a manual edit could write: valid checksum, invalid content.
    #[test]
    fn content_that_no_fence_writes_is_refused_even_with_a_right_checksum() {
        let sealed = |body: &str| format!("{body}check {:016x}\n", xxh3_64(body.as_bytes())).into_bytes();
        for body in [
            "lockkeeper-fence 1\n",
            "lockkeeper-fence 1\nbase any 1 writer 2\n",
            "lockkeeper-fence 1\nbase any 01 writer 1\n",
            "lockkeeper-fence 1\nbase any +1 writer 1\n",
            "lockkeeper-fence 1\nbase any -1 writer -1\n",
            "lockkeeper-fence 1\nbase any 9007199254740992 writer 0\n",
            "lockkeeper-fence 1\nbase any 1 writer 1\nslot 65536 any 2 writer 2\n",
            "lockkeeper-fence 1\nbase any 1 writer 1\nslot 1 any 2 writer 2\nslot 0 any 2 writer 2\n",
            "lockkeeper-fence 1\nbase any 1 writer 1\nslot 1 any 2 writer 2\nslot 1 any 3 writer 3\n",
            "lockkeeper-fence 1\r\nbase any 1 writer 1\r\n",
            "lockkeeper-fence one\nbase any 1 writer 1\n",
        ] {
            assert!(matches!(decode(&sealed(body)), Err(Unreadable::Corrupt { .. })), "{body:?}");
        }
        assert_eq!(
            decode(&sealed("lockkeeper-fence 2\nwhatever\n")),
            Err(Unreadable::Newer { version: 2 }),
            "a newer version says so"
        );
    }

    #[test]
    fn the_largest_marks_fit_the_limit() {
        let high = Some(token(9_007_199_254_740_991));
        let pair = Pair { any: high, writer: high };
        let slots = (0..PERMITS_MAX).map(|slot| (slot, pair)).collect();
        let bytes = encode(&Marks { base: Pair::default(), slots });
        assert!(bytes.len() as u64 <= BYTES_MAX, "{} bytes, limit {BYTES_MAX}", bytes.len());
    }
}
