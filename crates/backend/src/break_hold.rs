//! Breaking the hold of another client, and ending its session.

use std::fmt;

use lockkeeper_core::{LockName, Token};

/// An operator's order to end a hold (B1–B3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakOrder {
    /// A name that the hold covers.
    pub name: LockName,
    /// The hold's token, so that a break never ends a later hold.
    pub token: Token,
    /// The reason, for the audit log.
    pub reason: String,
    /// The operator, for the audit log.
    pub by: String,
    /// End the hold without waiting for the holder to stop.
    pub now: bool,
}

/// The result of a break.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Broken {
    /// The holder has been asked to stop, or the hold has ended already.
    Done,
    /// No live hold has that token and covers that name.
    NotCurrent {
        /// The tokens of the live holds that cover the name, ascending.
        live: Vec<Token>,
    },
    /// The hold has ended but stays closed; only a break with `now` opens it.
    StillClosed,
}

/// An operator's order to end a session with all its holds and waiters, as if its client were gone: the
/// session's lock-delay applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndSessionOrder {
    /// The session's id, which is never used again.
    pub session: u64,
    /// The reason, for the audit log; at most 256 bytes.
    pub reason: String,
    /// The operator, for the audit log; at most 256 bytes.
    pub by: String,
    /// End it even if its client is attached. The client may go on using its resources until it has stopped
    /// by itself.
    pub now: bool,
}

/// The result of an [`EndSessionOrder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EndedSession {
    /// It has ended.
    Done,
    /// There is no such session (any more).
    Gone,
    /// Its client is attached, and the session goes on: only `now` ends it.
    Attached,
}

impl fmt::Display for EndedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "ended",
            Self::Gone => "gone already",
            Self::Attached => "not ended: its client is attached, or may be; break its holds, or end it with `now` (`--now`)",
        })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("broken"),
            Self::NotCurrent { live } if live.is_empty() => {
                f.write_str("not held with that token, nor with another")
            }
            Self::NotCurrent { live } => {
                let live: Vec<String> = live.iter().map(Token::to_string).collect();
                write!(f, "not held with that token; live tokens: {}", live.join(", "))
            }
            Self::StillClosed => f.write_str("over already, but closed for a while; only `now` opens it"),
        }
    }
}
