//! The small words of the glossary: session, seq, token, mode.

use std::fmt;
use std::num::NonZeroU64;

use crate::limits::TOKEN_MAX;

/// A fencing token: an integer from 1 to 2^53 − 1 that rises with every grant (P2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The least token.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// `None` for 0 and for anything above 2^53 − 1: no table ever issues those.
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

/// A session, as the table numbered it: from 1, never reused (S1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// The number of a command in its session. It rises; gaps are allowed and dead (R5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A request's place in the order of arrival. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Which of the N permits of a name is held, from 0.
pub type Slot = u32;

/// How a request holds its names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// One of N (a semaphore).
    Permit {
        /// How many there are; `None` takes the limit in force (L2).
        of: Option<u32>,
    },
}

impl Mode {
    /// The mode without its number.
    #[must_use]
    pub const fn kind(self) -> ModeKind {
        match self {
            Self::Exclusive => ModeKind::Exclusive,
            Self::Shared => ModeKind::Shared,
            Self::Permit { .. } => ModeKind::Permit,
        }
    }
}

/// A mode without the number of permits: what decides conflicts, and what a fence asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ModeKind {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// One of N.
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
