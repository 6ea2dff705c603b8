//! Marks as lines of text: for mark files, the store of marks, and fenced objects.
//!
//! Contains the lines of the marks only; the caller adds header and checksum:
//! ```text
//! base any 18 writer 17
//! slot 3 any 20 writer 20
//! ```
//! 0 means that no token has passed. One line per stored slot, in ascending order.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockkeeper_core::Token;
use lockkeeper_core::limits::PERMITS_MAX;

use crate::rule::{Marks, Pair};

/// An upper bound for the bytes of all lines: every slot, with the longest numbers.
pub(crate) const BYTES_MAX: u64 = 64 + PERMITS_MAX as u64 * 64;

/// Appends the lines of `marks`; equal marks give equal lines.
pub(crate) fn push(text: &mut String, marks: &Marks) {
    push_pair(text, "base", marks.base);
    for (slot, pair) in &marks.slots {
        push_pair(text, &format!("slot {slot}"), *pair);
    }
}

fn push_pair(text: &mut String, of: &str, pair: Pair) {
    let number = |mark: Option<Token>| mark.map_or(0, Token::get);
    // Writing to a String can't fail.
    let _ = writeln!(text, "{of} any {} writer {}", number(pair.any), number(pair.writer));
}

/// Parses the marks of all `lines`. Accepts non-canonical numbers: callers re-encode with [`push`] and
/// compare.
pub(crate) fn parse<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<Marks> {
    let base = parse_pair(lines.next()?.strip_prefix("base ")?)?;
    let mut slots = BTreeMap::new();
    for line in lines {
        let (slot, pair) = line.strip_prefix("slot ")?.split_once(' ')?;
        let slot = slot.parse().ok().filter(|slot| *slot < PERMITS_MAX)?;
        slots.insert(slot, parse_pair(pair)?);
    }
    Some(Marks { base, slots })
}

fn parse_pair(text: &str) -> Option<Pair> {
    let (any, writer) = text.strip_prefix("any ")?.split_once(" writer ")?;
    let pair = Pair { any: parse_mark(any)?, writer: parse_mark(writer)? };
    (pair.writer <= pair.any).then_some(pair)
}

fn parse_mark(text: &str) -> Option<Option<Token>> {
    match text.parse().ok()? {
        0 => Some(None),
        value => Token::new(value).map(Some),
    }
}
