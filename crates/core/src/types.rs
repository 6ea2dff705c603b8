//! Basic types: token, session id, seq, ticket, slot and mode.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::limits::TOKEN_MAX;

/// A fencing token: an integer from 1 to 2^53 − 1 that rises with every grant (P2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The lowest token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// Returns `None` for 0 and for values above 2^53 − 1, which no table issues.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(value) if value.get() <= TOKEN_MAX => Some(Self(value)),
            _ => None,
        }
    }

    /// The token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// A value that is no fencing token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a fencing token: an integer from 1 to {TOKEN_MAX}")]
pub struct InvalidToken(String);

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.get()
    }
}

impl TryFrom<u64> for Token {
    type Error = InvalidToken;

    fn try_from(value: u64) -> Result<Self, InvalidToken> {
        Self::new(value).ok_or_else(|| InvalidToken(value.to_string()))
    }
}

/// Reads what `Display` writes.
impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| InvalidToken(text.chars().take(40).collect()))
    }
}

impl Token {
    /// The last token of a block with so many spare tokens after this one (C2); `None` if there are none.
    #[must_use]
    pub fn after(self, spare_tokens: u32) -> Option<Self> {
        if spare_tokens == 0 { None } else { Self::new(self.get() + u64::from(spare_tokens)) }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.0)
    }
}

/// Session id, assigned by the table: from 1, never reused (S1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Sequence number of a command within its session. It rises, and gaps are allowed. A command with a skipped
/// number is not executed later (R5), except a `Finish` (R4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A leader's wall clock in milliseconds since 1970, for people: no rule reads it, and it may step back (E3).
/// 0: unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The age of something that began then; `None` if that is unknown. 0 if this clock is behind.
    #[must_use]
    pub fn until(self, now: Self) -> Option<Duration> {
        (self.0 > 0).then(|| Duration::from_millis(now.0.saturating_sub(self.0)))
    }

    /// For display; `None` if it is unknown, or no year of four digits.
    #[must_use]
    pub fn time(self) -> Option<SystemTime> {
        const YEAR_10000: u64 = 253_402_300_800_000;
        let known = (1..YEAR_10000).contains(&self.0);
        known.then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(self.0))
    }
}

impl From<SystemTime> for WallTime {
    /// Before 1970: unknown.
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Digest of the parts of a numbered command that a repeat must have in common with it (R5). It detects a
/// mistake of the session's own client; it is no defence against crafted commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Fingerprint(pub u32);

/// Position of a request in the order of arrival. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Index of one of the N permits of a name, from 0.
pub type Slot = u32;

/// The mode in which a request holds its names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Excludes every other hold.
    Exclusive,
    /// Compatible with other shared holds.
    Shared,
    /// One of N permits (a semaphore).
    Permit {
        /// Number of permits; `None` takes the limit in force (L2).
        of: Option<u32>,
    },
}

impl Mode {
    /// The mode without the number of permits.
    #[must_use]
    pub const fn kind(self) -> ModeKind {
        match self {
            Self::Exclusive => ModeKind::Exclusive,
            Self::Shared => ModeKind::Shared,
            Self::Permit { .. } => ModeKind::Permit,
        }
    }
}

/// A mode without the number of permits. Conflicts depend on it (N2), and fences take it as an argument
/// (F-a).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ModeKind {
    /// Excludes every other hold.
    Exclusive,
    /// Compatible with other shared holds.
    Shared,
    /// One of N permits.
    Permit,
}

impl fmt::Display for ModeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit => "permit",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_convert_to_numbers_and_texts_and_back() {
        for value in [1, 7, TOKEN_MAX] {
            let token = Token::try_from(value).unwrap();
            assert_eq!((u64::from(token), token.to_string().parse()), (value, Ok(token)));
        }
        for value in [0, TOKEN_MAX + 1] {
            let error = Token::try_from(value).unwrap_err();
            assert!(error.to_string().contains(&format!("`{value}` is not a fencing token")), "{error}");
        }
        for text in ["", "-1", "1.0", " 7", "0x7", "18446744073709551616"] {
            text.parse::<Token>().unwrap_err();
        }
    }
}
