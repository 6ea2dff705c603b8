//! What a command answers, and what the rest of the world must be told.

use crate::limits;
use crate::name::LockName;
use crate::types::{Seq, SessionId, Slot, Token};

/// The answer to a command.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The session is open.
    Opened {
        /// Its id.
        session: SessionId,
    },
    /// The session is not live, and all its requests are over. Final (S2).
    SessionGone,
    /// The names are held.
    Granted(Grant),
    /// The request waits.
    Queued {
        /// How many earlier waiters overlap it (Q1). A lower bound, at least [`limits::POSITION_LOOK_MAX`] or as many as
        /// were found among so many entries, where an exact number would cost more (M2).
        position: u64,
        /// For a permit: the limits in force, one a name in byte order (L4).
        limits: Vec<u32>,
    },
    /// The names aren't free, and the request did not want to wait.
    Busy {
        /// The session of the conflicting live hold with the lowest token; `None` behind waiters and closed holds only, for
        /// a retry, and where it was not found among [`limits::HOLDER_LOOK_MAX`] entries (M2).
        holder: Option<SessionId>,
        /// How many waiters overlap it (Q1): as `position` of [`Reply::Queued`]; 0 for a retry.
        queued_ahead: u64,
    },
    /// The request is over, and this is how.
    Finished(End),
    /// The hold is under a break that waits for its holder (B1).
    Revoked {
        /// Its token.
        token: Token,
    },
    /// Done, or nothing to do.
    Done,
    /// No live hold has that token and covers that name (B3).
    NotCurrent {
        /// The tokens of the live holds that cover the name, ascending: at most [`limits::LIVE_TOKENS_MAX`].
        live: Vec<Token>,
    },
    /// The hold is a closed one; only a break with `now` opens it (B2).
    StillClosed,
    /// The command broke a rule or met a limit; nothing changed.
    Refused(Rejection),
}

/// What a granted request got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The fencing token: one for all names of the request.
    pub token: Token,
    /// For a permit: slot and limit in force, one a name in byte order. Empty otherwise.
    pub permits: Vec<PermitGrant>,
}

/// The permit that a grant took of one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PermitGrant {
    /// Which permit.
    pub slot: Slot,
    /// How many there are.
    pub limit: u32,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// It waited, and its client left the queue.
    Left,
    /// It held, and its client released it.
    Released,
    /// It held, and an operator's break ended it (also when its client finished it under the break).
    Broken,
    /// It waited for as long as it wanted.
    TimedOut,
    /// It never held or waited: it was busy, or refused.
    NotAcquired,
    /// Nothing is known of it: never seen, or forgotten after `done_through` passed it.
    Gone,
}

/// What a command did to others: told in the order of rule E1.
///
/// The asker's own result is the [`Reply`], never an effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A session ended, and with it all its requests.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// A hold came under a break that waits; starts the leader's timer (B1).
    Revoked {
        /// Whose.
        session: SessionId,
        /// Which request.
        seq: Seq,
        /// Its token.
        token: Token,
    },
    /// A request ended without its client's asking.
    Ended {
        /// Whose.
        session: SessionId,
        /// Which request.
        seq: Seq,
        /// How.
        end: End,
    },
    /// A hold stays closed for so long after its end; starts the leader's timer (D1).
    Closed {
        /// The token that it had.
        token: Token,
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// A waiter was granted.
    Granted {
        /// Whose.
        session: SessionId,
        /// Which request.
        seq: Seq,
        /// What it got.
        grant: Grant,
    },
}

/// The effects of the commands applied since it was last cleared.
pub type Effects = Vec<Effect>;

/// Why a command was refused. The text says the value, the limit, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// No names, or more than [`limits::NAMES_PER_REQUEST_MAX`].
    #[error(
        "the request has {count} names, 1 to {} are allowed; split it, or lock a common parent as a subtree",
        limits::NAMES_PER_REQUEST_MAX
    )]
    NameCount {
        /// How many, before merging.
        count: usize,
    },
    /// A permit can't cover a subtree (N2).
    #[error(
        "a permit can't cover a subtree; ask for `exclusive` or `shared`, or for permits of single names"
    )]
    PermitSubtree,
    /// A number of permits outside of 1 to [`limits::PERMITS_MAX`].
    #[error("{of} permits were asked for, 1 to {} are allowed", limits::PERMITS_MAX)]
    PermitCount {
        /// The number.
        of: u32,
    },
    /// Above [`limits::KEEP_CLOSED_MS_MAX`].
    #[error("keep_closed is {ms} ms, at most {} ms (24 h) are allowed", limits::KEEP_CLOSED_MS_MAX)]
    KeepClosed {
        /// As asked, in milliseconds.
        ms: u64,
    },
    /// Above [`limits::VALUE_BYTES_MAX`].
    #[error(
        "the value has {bytes} bytes, at most {} are allowed; store it elsewhere and proclaim where",
        limits::VALUE_BYTES_MAX
    )]
    ValueTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Above [`limits::META_BYTES_MAX`].
    #[error("the meta data have {bytes} bytes, at most {} are allowed", limits::META_BYTES_MAX)]
    MetaTooLong {
        /// Their length.
        bytes: usize,
    },
    /// A label, reason or author above [`limits::LABEL_BYTES_MAX`].
    #[error("`{field}` has {bytes} bytes, at most {} are allowed", limits::LABEL_BYTES_MAX)]
    TextTooLong {
        /// Which text.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A ttl outside of [`limits::TTL_MS_MIN`] to [`limits::TTL_MS_MAX`].
    #[error(
        "the ttl is {ms} ms, {} ms (1 s) to {} ms (1 h) are allowed",
        limits::TTL_MS_MIN,
        limits::TTL_MS_MAX
    )]
    Ttl {
        /// As asked, in milliseconds.
        ms: u64,
    },
    /// Above [`limits::LOCK_DELAY_MS_MAX`].
    #[error("the lock-delay is {ms} ms, at most {} ms (1 h) are allowed", limits::LOCK_DELAY_MS_MAX)]
    LockDelay {
        /// As asked, in milliseconds.
        ms: u64,
    },
    /// A linger above the session's ttl.
    #[error("linger is {ms} ms, at most the session's ttl ({ttl_ms} ms) is allowed")]
    Linger {
        /// As asked, in milliseconds.
        ms: u64,
        /// The ttl asked for beside it.
        ttl_ms: u64,
    },
    /// The number of permits in force is another one (L3).
    #[error(
        "`{name}` has {have} permits, {asked} were asked for; ask for {have}, for no number, or set the limit"
    )]
    LimitMismatch {
        /// The first such name in byte order.
        name: LockName,
        /// In force.
        have: u32,
        /// Asked for.
        asked: u32,
    },
    /// No number of permits is in force, and the request names none (L2).
    #[error(
        "`{name}` has no permit limit in force and the request names none; say how many permits there are"
    )]
    NoLimit {
        /// The first such name in byte order.
        name: LockName,
    },
    /// The target is not a hold of this session (G2).
    #[error("request {target} is not a hold of this session")]
    NotHeld {
        /// The target.
        target: Seq,
    },
    /// A permit can't be downgraded (G2).
    #[error("request {target} holds a permit; only exclusive holds can be downgraded")]
    WrongMode {
        /// The target.
        target: Seq,
    },
    /// At [`limits::SESSIONS_MAX`].
    #[error(
        "the table has {} sessions, the most it takes; close some, or wait for silent ones to expire",
        limits::SESSIONS_MAX
    )]
    TooManySessions,
    /// At [`limits::REQUESTS_PER_SESSION_MAX`].
    #[error(
        "the session has {} live requests, the most it may have; release some, or open another session",
        limits::REQUESTS_PER_SESSION_MAX
    )]
    TooManyRequests,
    /// At [`limits::WAITERS_PER_NAME_MAX`].
    #[error("`{name}` has {} waiters, the most it takes; try again later", limits::WAITERS_PER_NAME_MAX)]
    TooManyWaiters {
        /// The first such name in byte order.
        name: LockName,
    },
    /// At [`limits::KEPT_ANSWERS_MAX`]. Not kept itself (R6).
    #[error(
        "{} answers are kept for the session, the most it may leave unconfirmed; raise done_through",
        limits::KEPT_ANSWERS_MAX
    )]
    TooManyKeptAnswers,
    /// At [`limits::CLOSED_HOLDS_MAX`] (D4).
    #[error(
        "the table keeps {} holds closed or to be closed, the most it takes; ask without keep_closed",
        limits::CLOSED_HOLDS_MAX
    )]
    TooManyClosedHolds,
    /// At [`limits::TABLE_BYTES_MAX`].
    #[error(
        "the table is full: its sessions and locks count for {} GiB, the most it takes; release some locks, or use shorter \
         values and names",
        limits::TABLE_BYTES_MAX >> 30
    )]
    TableFull,
    /// At [`limits::STORED_LIMITS_MAX`].
    #[error("{} names have a stored limit, the most the table takes; remove some", limits::STORED_LIMITS_MAX)]
    TooManyStoredLimits,
    /// The counter is at [`limits::TOKEN_MAX`] (T3).
    #[error("the table has issued its last token ({}); found a new table", limits::TOKEN_MAX)]
    TokensExhausted,
    /// Too far a jump of the counter (T3).
    #[error(
        "tokens can't be raised to {above}: at most {} in a table that has issued some, {} in a new one",
        limits::RAISE_TOKENS_MAX,
        limits::TOKEN_MAX
    )]
    RaiseTooHigh {
        /// As asked.
        above: u64,
    },
    /// A version of the rules that this code doesn't know. A node that gets this **must stop** before it applies
    /// anything else (V1); nothing was changed.
    #[error("rules version {version} is unknown here (newest known: {known}); upgrade this node")]
    UnknownRules {
        /// As asked.
        version: u32,
        /// The newest one known.
        known: u32,
    },
}
