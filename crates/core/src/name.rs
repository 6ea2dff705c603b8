//! Lock names, validated once by parsing.

use std::borrow::Borrow;
use std::fmt;

use crate::limits::{NAME_BYTES_MAX, NAME_SEGMENTS_MAX};

/// The name of a lock: a path of segments separated by `/`, such as `orders/42`.
///
/// UTF-8, 1–512 bytes, at most 32 segments, no empty segment, no control character. Ordered by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Box<str>);

/// The reason for rejecting a lock name. Each text contains the offending value, the rule and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the lock name is empty; give it 1 to {NAME_BYTES_MAX} bytes, such as `orders/42`")]
    Empty,
    /// Longer than [`NAME_BYTES_MAX`].
    #[error(
        "the lock name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed; shorten it, or hash its tail"
    )]
    TooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// More than [`NAME_SEGMENTS_MAX`] segments.
    #[error(
        "the lock name has {segments} segments, at most {NAME_SEGMENTS_MAX} are allowed; join some of them with another \
         character than `/`"
    )]
    TooDeep {
        /// Number of segments.
        segments: usize,
    },
    /// Two adjacent slashes, or one at the start or the end.
    #[error(
        "the lock name {name:?} has an empty segment at byte {at}; \
         write segments with one `/` between them and none at the ends"
    )]
    EmptySegment {
        /// The rejected name.
        name: String,
        /// Byte offset of the empty segment.
        at: usize,
    },
    /// A control character, such as NUL or a newline.
    #[error(
        "the lock name {name:?} has the control character U+{code:04X} at byte {at}; use printable characters only"
    )]
    Control {
        /// The rejected name.
        name: String,
        /// Code point of the character.
        code: u32,
        /// Byte offset of the character.
        at: usize,
    },
    /// The name is not UTF-8.
    #[error(
        "the lock name is not UTF-8 (byte {at} of {name:?}); encode it, as percent-encoding or base64 do"
    )]
    NotUtf8 {
        /// The rejected name, with invalid bytes replaced.
        name: String,
        /// Byte offset of the first invalid byte.
        at: usize,
    },
}

impl LockName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`NameError`]: the rule that the text violates.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        let mut segment_start = 0;
        for (at, c) in text.char_indices() {
            if c.is_control() {
                return Err(NameError::Control { name: text.to_owned(), code: c as u32, at });
            }
            if c == '/' {
                if at == segment_start {
                    return Err(NameError::EmptySegment { name: text.to_owned(), at });
                }
                segment_start = at + 1;
            }
        }
        if segment_start == text.len() {
            return Err(NameError::EmptySegment { name: text.to_owned(), at: segment_start });
        }
        let segments = segments(text);
        if segments > NAME_SEGMENTS_MAX {
            return Err(NameError::TooDeep { segments });
        }
        Ok(Self(text.into()))
    }

    /// Parses bytes that may not be UTF-8, such as a command-line argument.
    ///
    /// # Errors
    /// As [`LockName::parse`], and [`NameError::NotUtf8`].
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: bytes.len() });
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(text),
            Err(e) => Err(NameError::NotUtf8 {
                name: String::from_utf8_lossy(bytes).into_owned(),
                at: e.valid_up_to(),
            }),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `other` is strictly below this name. Compared by segment: `a` covers `a/b`, not `ab`.
    #[must_use]
    pub fn is_above(&self, other: &str) -> bool {
        other.len() > self.0.len()
            && other.as_bytes()[self.0.len()] == b'/'
            && other.as_bytes().starts_with(self.0.as_bytes())
    }

    /// Number of segments, 1 to [`NAME_SEGMENTS_MAX`].
    #[must_use]
    pub fn segments(&self) -> usize {
        segments(&self.0)
    }

    /// Wraps text from the table, which was validated before.
    pub(crate) fn trusted(text: impl Into<Box<str>>) -> Self {
        let text = text.into();
        debug_assert!(Self::parse(&text).is_ok());
        Self(text)
    }
}

fn segments(text: &str) -> usize {
    1 + text.bytes().filter(|&byte| byte == b'/').count()
}

/// All names above `name`, nearest first: `a/b`, `a` for `a/b/c`.
pub(crate) fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(name), |name| parent(name))
}

/// The name without its last segment; `None` for a single segment.
pub(crate) fn parent(name: &str) -> Option<&str> {
    name.rfind('/').map(|at| &name[..at])
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for LockName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_512_bytes() {
        assert_eq!(LockName::parse(""), Err(NameError::Empty));
        assert!(LockName::parse(&"x".repeat(512)).is_ok());
        assert_eq!(LockName::parse(&"x".repeat(513)), Err(NameError::TooLong { bytes: 513 }));
    }

    #[test]
    fn a_name_has_at_most_32_segments() {
        let deep = |segments: usize| vec!["s"; segments].join("/");
        assert_eq!(LockName::parse(&deep(32)).map(|name| name.segments()), Ok(32));
        assert_eq!(LockName::parse(&deep(33)), Err(NameError::TooDeep { segments: 33 }));
    }

    #[test]
    fn a_name_has_no_empty_segment() {
        for (text, at) in [("/a", 0), ("a/", 2), ("a//b", 2), ("/", 0)] {
            assert_eq!(
                LockName::parse(text),
                Err(NameError::EmptySegment { name: text.to_owned(), at }),
                "{text}"
            );
        }
    }

    #[test]
    fn a_name_has_no_control_character_and_is_utf8() {
        assert!(matches!(LockName::parse("a\0b"), Err(NameError::Control { code: 0, at: 1, .. })));
        assert!(matches!(LockName::parse("a\u{85}"), Err(NameError::Control { code: 0x85, .. })));
        assert!(matches!(LockName::parse_bytes(b"a\xffb"), Err(NameError::NotUtf8 { at: 1, .. })));
        assert!(LockName::parse("заказ/42 ✓").is_ok());
    }

    #[test]
    fn covering_is_by_segment() {
        let a = LockName::parse("a").unwrap();
        assert!(a.is_above("a/b") && a.is_above("a/b/c"));
        assert!(!a.is_above("a") && !a.is_above("ab") && !a.is_above("b/a"));
        assert_eq!(ancestors("a/b/c").collect::<Vec<_>>(), ["a/b", "a"]);
    }
}
