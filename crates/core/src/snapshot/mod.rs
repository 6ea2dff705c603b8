//! The whole table as plain data in canonical order: sessions by id, requests by ticket, limits by name (E2).
//!
//! Tables that applied the same commands have equal snapshots and equal digests. All storage and transfer of
//! tables uses this module; `items` defines the bytes, whole or in pieces. Large tables are written by the
//! snapshot iterator and read by a [`Restorer`](crate::Restorer), neither of which builds a [`Snapshot`].
//! This module contains no lock rules.

mod codec;
pub(crate) mod items;
pub(crate) mod view;

pub use items::FORMAT;

use crate::name::LockName;
use crate::reply::Reply;
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};

/// The complete state of a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The version of the rules in force (V1).
    pub rules: u32,
    /// Last token issued; 0 before the first.
    pub last_token: u64,
    /// Last ticket assigned; 0 before the first.
    pub last_ticket: u64,
    /// Last session id assigned; 0 before the first.
    pub last_session: u64,
    /// The leader's wall clock (E3).
    pub clock: WallTime,
    /// Live sessions, by id.
    pub sessions: Vec<SessionState>,
    /// Waiters, holds and closed holds, by ticket.
    pub requests: Vec<RequestState>,
    /// Permit limits in force, by name.
    pub limits: Vec<LimitState>,
    /// Ended sessions that still have requests or answers (M2), by id.
    pub ending: Vec<EndingState>,
    /// Freed names whose waiters were not all visited yet (M2), by number.
    pub freed: Vec<FreedState>,
}

/// State of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionState {
    /// Id of the session.
    pub id: SessionId,
    /// Hash of the session's secret.
    pub secret_hash: [u8; 32],
    /// Time until expiry without a keep-alive, in milliseconds.
    pub ttl_ms: u64,
    /// Time for which the session's holds stay closed if it expires, in milliseconds.
    pub lock_delay_ms: u64,
    /// Time until expiry after the client closed its stream, in milliseconds; 0 disables it.
    pub linger_ms: u64,
    /// Description for people.
    pub label: Box<str>,
    /// Who opened it; empty: unknown.
    pub identity: Box<str>,
    /// Highest seq seen.
    pub highest: Seq,
    /// The client has received every answer up to this seq.
    pub done_through: Seq,
    /// Kept answers, by seq: final answers that the client may not have received.
    pub kept: Vec<KeptAnswer>,
}

/// A final answer, kept so that a retry receives it again (P7, R3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptAnswer {
    /// Seq of the answered command or request.
    pub seq: Seq,
    /// The command's fingerprint (R5).
    pub fingerprint: Fingerprint,
    /// The kept answer.
    pub reply: Reply,
    /// Kept until `done_through` reaches this seq; `None` until a `Finish` names the request.
    pub until: Option<Seq>,
}

/// An ended session, whose requests and kept answers are removed in pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndingState {
    /// State of the session.
    pub session: SessionState,
    /// Lock-delay of the session's holds, in milliseconds; 0 if the session did not expire.
    pub delay_ms: u64,
}

/// A name whose waiters may have been unblocked, and have not all been visited by the grant pass: a request
/// has left the name or was downgraded, or its limit was set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreedState {
    /// Position in the order of the backlog.
    pub number: u64,
    /// The freed name.
    pub name: LockName,
    /// Whether that request covered the subtree.
    pub subtree: bool,
    /// Mode in which that request held or waited; permit if the limit was set.
    pub kind: ModeKind,
    /// Waiters up to this ticket need no visit: the request did not block them, or they were visited since.
    pub after: Ticket,
}

/// A waiter, a hold or a closed hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestState {
    /// Position in the order of arrival.
    pub ticket: Ticket,
    /// Session and seq; `None` for a closed hold, which belongs to no session (D2).
    pub owner: Option<(SessionId, Seq)>,
    /// The fingerprint of its acquire (R5); 0 for a closed hold.
    pub fingerprint: Fingerprint,
    /// The request's names, merged, in byte order (N1).
    pub names: Vec<LockName>,
    /// Held or requested mode.
    pub mode: ModeKind,
    /// Whether the request covers all names below its names too.
    pub subtree: bool,
    /// Time for which the hold stays closed after its end, in milliseconds; 0 disables it, and is the value
    /// of closed holds.
    pub keep_closed_ms: u64,
    /// Value that the holder publishes.
    pub value: Box<[u8]>,
    /// Purpose, for people.
    pub meta: Box<[u8]>,
    /// When it was granted; of a waiter, when it was queued (E3).
    pub since: WallTime,
    /// Whether its holder caches it, or what cached holds decide about it.
    pub caching: Caching,
    /// Tokens of a hold after its first (C2).
    pub spare_tokens: u32,
    /// Tokens that the caller of a waiter holds (K1).
    pub holding: Box<[Token]>,
    /// Waiting, held, revoked or closed.
    pub phase: Phase,
}

/// Whether a hold is a cached one, or a waiter is put off because of cached holds (C1–C6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Caching {
    /// An ordinary hold or waiter.
    #[default]
    None,
    /// A hold that its client may use for several sections.
    Cached,
    /// A cached hold for which others wait; its client begins no section with it any more.
    Recalled,
    /// A request that doesn't wait, put off until the holders of the cached holds in its way have answered.
    Try,
}

impl Caching {
    /// Whether it is a cached hold.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Cached | Self::Recalled)
    }
}

/// Phase of a request. `slots` has one entry per name for permits and is otherwise empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// In the queue.
    Waiting {
        /// Wait limit in milliseconds; `None` is no limit.
        at_most_ms: Option<u64>,
    },
    /// Granted.
    Held {
        /// The hold's token.
        token: Token,
        /// The permits taken.
        slots: Vec<Slot>,
    },
    /// Granted, and under a break that waits for the holder.
    Revoked {
        /// The hold's token.
        token: Token,
        /// The permits taken.
        slots: Vec<Slot>,
        /// Reason of the break.
        reason: Box<str>,
        /// Operator who ordered the break.
        by: Box<str>,
    },
    /// Ended, but still excluding others.
    Closed {
        /// The token of the ended hold.
        token: Token,
        /// The permits that stay taken.
        slots: Vec<Slot>,
        /// Time from the hold's end, in milliseconds.
        ms: u64,
    },
}

/// The permit limit of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitState {
    /// Name of the lock.
    pub name: LockName,
    /// Number of permits.
    pub limit: u32,
    /// Whether `SetLimit` stored it. An implied limit is removed with the last permit request of the name
    /// (L3).
    pub stored: bool,
}
