//! The whole table as plain data in one canonical order: sessions by id, requests by ticket, limits by name (E2).
//!
//! Two tables that applied the same commands have equal snapshots and equal digests; anything that keeps or moves
//! a table goes through here: `items` is its bytes, whole or in pieces. A large table is written by a walk and read
//! back by a [`Restorer`](crate::Restorer), neither of which makes a [`Snapshot`]. Nothing in this module decides
//! anything about locks.

mod codec;
pub(crate) mod items;
pub(crate) mod view;

pub use items::FORMAT;

use crate::name::LockName;
use crate::reply::Reply;
use crate::types::{ModeKind, Seq, SessionId, Slot, Ticket, Token};

/// All that a table knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The version of the rules in force (V1).
    pub rules: u32,
    /// The last token issued; 0 before the first.
    pub last_token: u64,
    /// The last ticket given; 0 before the first.
    pub last_ticket: u64,
    /// The last session id given; 0 before the first.
    pub last_session: u64,
    /// Live sessions, by id.
    pub sessions: Vec<SessionState>,
    /// Waiters, holds and closed holds, by ticket.
    pub requests: Vec<RequestState>,
    /// Permit limits in force, by name.
    pub limits: Vec<LimitState>,
    /// Sessions that have ended, of which something is still there (M2), by id.
    pub ending: Vec<EndingState>,
    /// Names at which something went away and whose waiters were not all looked at since (M2), by number.
    pub freed: Vec<FreedState>,
}

/// A live session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionState {
    /// Its id.
    pub id: SessionId,
    /// The hash of its secret.
    pub secret_hash: [u8; 32],
    /// Milliseconds without a keep-alive after which it expires.
    pub ttl_ms: u64,
    /// Milliseconds for which its holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// Milliseconds left after its stream was closed; 0 is off.
    pub linger_ms: u64,
    /// For people.
    pub label: Box<str>,
    /// The highest seq seen.
    pub highest: Seq,
    /// The client has every answer up to here.
    pub done_through: Seq,
    /// Final answers the client may not have yet, by seq.
    pub kept: Vec<KeptAnswer>,
}

/// A final answer that is kept so that a retry gets it again (P7, R3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptAnswer {
    /// The command or request it answers.
    pub seq: Seq,
    /// The answer.
    pub reply: Reply,
    /// Kept until `done_through` reaches this; `None` until a `Finish` names the request.
    pub until: Option<Seq>,
}

/// A session that has ended; its requests and its kept answers are removed piece by piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndingState {
    /// What is left of it.
    pub session: SessionState,
    /// Milliseconds for which its holds stay closed.
    pub delay_ms: u64,
}

/// A name at which something went away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreedState {
    /// Its place in the order in which they are worked off.
    pub number: u64,
    /// The name.
    pub name: LockName,
    /// Whether its subtree was freed too.
    pub subtree: bool,
    /// How what went away had held or wanted the name.
    pub kind: ModeKind,
    /// Requests up to this ticket were looked at.
    pub after: Ticket,
}

/// A waiter, a hold or a closed hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestState {
    /// Its place in the order of arrival.
    pub ticket: Ticket,
    /// Session and seq; `None` for a closed hold, which is nobody's (D2).
    pub owner: Option<(SessionId, Seq)>,
    /// Its names, merged, in byte order (N1).
    pub names: Vec<LockName>,
    /// How it holds or wants to hold them.
    pub mode: ModeKind,
    /// Whether it covers everything below its names.
    pub subtree: bool,
    /// Milliseconds for which it stays closed after its end; 0 is off, and 0 for a closed hold.
    pub keep_closed_ms: u64,
    /// What the holder proclaims.
    pub value: Box<[u8]>,
    /// For people.
    pub meta: Box<[u8]>,
    /// Whether it waits, holds, …
    pub phase: Phase,
}

/// Where a request stands. `slots` has one entry a name for permits and is empty otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In the queue.
    Waiting {
        /// For at most so many milliseconds.
        at_most_ms: Option<u64>,
    },
    /// Granted.
    Held {
        /// Its token.
        token: Token,
        /// Its permits.
        slots: Vec<Slot>,
    },
    /// Granted, and under a break that waits.
    Revoked {
        /// Its token.
        token: Token,
        /// Its permits.
        slots: Vec<Slot>,
        /// Why it is broken.
        reason: Box<str>,
        /// Who breaks it.
        by: Box<str>,
    },
    /// Over, but still shut.
    Closed {
        /// The token it had.
        token: Token,
        /// The permits it keeps.
        slots: Vec<Slot>,
        /// For how long from its end, in milliseconds.
        ms: u64,
    },
}

/// A name's number of permits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitState {
    /// The name.
    pub name: LockName,
    /// The number.
    pub limit: u32,
    /// Whether `SetLimit` stored it; otherwise it lives while permit requests of the name do (L3).
    pub stored: bool,
}
