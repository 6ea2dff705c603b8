//! Breaking the hold of another client.

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
