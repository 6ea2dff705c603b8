//! Replies to commands, and their effects on other requests and sessions.

use crate::cycle::Cycle;
use crate::limits;
use crate::name::LockName;
use crate::types::{Seq, SessionId, Slot, Token};

/// The answer to a command.
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The session is open.
    Opened {
        /// Id of the session.
        session: SessionId,
    },
    /// The session is not live, and all its requests have ended. Final (S2).
    SessionGone,
    /// The request holds its names.
    Granted(Grant),
    /// The request is queued.
    Queued {
        /// Number of earlier waiters that overlap the request, where two shared requests don't count each
        /// other (Q1). A lower bound if an exact count would visit more than [`limits::POSITION_VISITS_MAX`]
        /// waiters (M2).
        position: u64,
        /// For a permit: the limits in force, one per name in byte order (L4).
        limits: Vec<u32>,
    },
    /// The names are not free, and the request does not wait.
    Busy {
        /// The session of the conflicting live hold with the lowest token, among at most
        /// [`limits::HOLDER_VISITS_MAX`] visited holds (M2). `None` if only waiters and closed holds
        /// conflict, if the search found no live hold, and for a retry.
        holder: Option<SessionId>,
        /// Number of waiters that overlap the request, counted like `position` of [`Reply::Queued`] (Q1); 0
        /// for a retry.
        queued_ahead: u64,
    },
    /// The end of the request that was the target.
    Finished(End),
    /// The hold is under a break that waits for its holder (B1).
    Revoked {
        /// The hold's token.
        token: Token,
    },
    /// The command was applied, or had nothing to change.
    Done,
    /// No hold with that token, live or closed, covers that name (B3).
    NotCurrent {
        /// Tokens of the live, unrevoked holds among the [`limits::LIVE_TOKENS_MAX`] lowest tokens that cover
        /// the name, ascending (B4).
        live: Vec<Token>,
    },
    /// The hold has ended but stays closed; a break without `now` does not open it (B2).
    StillClosed,
    /// The command violated a rule or reached a limit; no lock changed.
    Refused(Rejection),
}

/// The result of a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The fencing token, one for all names of the request.
    pub token: Token,
    /// For a permit: slot and limit in force, one per name in byte order. Otherwise empty.
    pub permits: Vec<PermitGrant>,
    /// Number of tokens after `token` that belong to the hold as well, one for each further section; 0 if the
    /// hold is not a cached one (C2).
    pub spare_tokens: u32,
}

/// The permit that a grant took at one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PermitGrant {
    /// Index of the permit.
    pub slot: Slot,
    /// Number of permits of the name.
    pub limit: u32,
}

/// The way in which a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// The request waited, and its client left the queue.
    Left,
    /// The request held, and its client released it.
    Released,
    /// The request held, and an operator's break ended it, or its client finished it while it was under the
    /// break.
    Broken,
    /// The request waited, and its wait limit passed. For a request that doesn't wait: the lock is busy (C6).
    TimedOut,
    /// The request never held or waited: it was busy or refused, or the target is the seq of another command
    /// (R4).
    NotAcquired,
    /// No answer is kept for the request: the table never received it, its answer was dropped because the
    /// client had confirmed it, or it was refused with [`Rejection::TooManyKeptAnswers`].
    Gone,
}

/// A change that a command made to a session or a request. Emitted in the order of rule E1.
///
/// The result for the command's sender is the [`Reply`], never an effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A session and all its requests ended.
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// A break revoked a hold, and waits for the holder to finish it; starts the leader's timer (B1).
    Revoked {
        /// Session of the hold.
        session: SessionId,
        /// Request that became the hold.
        seq: Seq,
        /// The hold's token.
        token: Token,
    },
    /// Another request waits for a cached hold: its holder gives it back, or settles it (C4, C5).
    Recalled {
        /// Session of the hold.
        session: SessionId,
        /// Request that became the hold.
        seq: Seq,
    },
    /// A request ended without a command of its client.
    Ended {
        /// Session of the request.
        session: SessionId,
        /// The request.
        seq: Seq,
        /// The way in which it ended.
        end: End,
    },
    /// A hold ended and stays closed; starts the leader's timer (D1).
    Closed {
        /// The token of the ended hold.
        token: Token,
        /// How long the hold stays closed, counted from its end, in milliseconds.
        ms: u64,
    },
    /// A waiter was granted.
    Granted {
        /// Session of the request.
        session: SessionId,
        /// The request.
        seq: Seq,
        /// Token and permits.
        grant: Grant,
    },
}

/// Effects of the commands applied since the vector was last cleared.
pub type Effects = Vec<Effect>;

/// The reason for refusing a command. The text contains the value and the limit, and mostly a remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// No names, or more than [`limits::NAMES_PER_REQUEST_MAX`].
    #[error(
        "the request has {count} names, 1 to {} are allowed; split it, or lock a common parent as a subtree",
        limits::NAMES_PER_REQUEST_MAX
    )]
    NameCount {
        /// Number of names before merging.
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
        /// Requested number.
        of: u32,
    },
    /// `keep_closed` above [`limits::KEEP_CLOSED_MS_MAX`].
    #[error("keep_closed is {ms} ms, at most {} ms (24 h) are allowed", limits::KEEP_CLOSED_MS_MAX)]
    KeepClosed {
        /// Requested time in milliseconds.
        ms: u64,
    },
    /// A value longer than [`limits::VALUE_BYTES_MAX`].
    #[error(
        "the value has {bytes} bytes, at most {} are allowed; store it elsewhere and proclaim where",
        limits::VALUE_BYTES_MAX
    )]
    ValueTooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// Meta data longer than [`limits::META_BYTES_MAX`].
    #[error("the meta data have {bytes} bytes, at most {} are allowed", limits::META_BYTES_MAX)]
    MetaTooLong {
        /// Length in bytes.
        bytes: usize,
    },
    /// More than [`limits::SPARE_TOKENS_MAX`] spare tokens (C2).
    #[error("{asked} spare tokens were asked for, at most {} are allowed", limits::SPARE_TOKENS_MAX)]
    SpareTokens {
        /// Requested number.
        asked: u32,
    },
    /// Only an exclusive hold without `keep_closed` can be a cached one (C1).
    #[error("only an exclusive hold without keep_closed can be cached; ask for it without caching")]
    NotCacheable,
    /// More than [`limits::HOLDING_MAX`] declared tokens (K1).
    #[error(
        "the request declares {count} tokens that its caller holds, at most {} are allowed; declare those of the latest holds",
        limits::HOLDING_MAX
    )]
    HoldingCount {
        /// Number of tokens.
        count: usize,
    },
    /// A label, reason or author longer than [`limits::LABEL_BYTES_MAX`].
    #[error("`{field}` has {bytes} bytes, at most {} are allowed", limits::LABEL_BYTES_MAX)]
    TextTooLong {
        /// Name of the field.
        field: &'static str,
        /// Length in bytes.
        bytes: usize,
    },
    /// A ttl outside of [`limits::TTL_MS_MIN`] to [`limits::TTL_MS_MAX`].
    #[error(
        "the ttl is {ms} ms, {} ms (1 s) to {} ms (1 h) are allowed",
        limits::TTL_MS_MIN,
        limits::TTL_MS_MAX
    )]
    Ttl {
        /// Requested ttl in milliseconds.
        ms: u64,
    },
    /// A lock-delay above [`limits::LOCK_DELAY_MS_MAX`].
    #[error("the lock-delay is {ms} ms, at most {} ms (1 h) are allowed", limits::LOCK_DELAY_MS_MAX)]
    LockDelay {
        /// Requested time in milliseconds.
        ms: u64,
    },
    /// A linger above the session's ttl.
    #[error("linger is {ms} ms, at most the session's ttl ({ttl_ms} ms) is allowed")]
    Linger {
        /// Requested linger in milliseconds.
        ms: u64,
        /// Requested ttl in milliseconds.
        ttl_ms: u64,
    },
    /// The session of this secret was opened by a client with another identity (S4).
    #[error("session {session} was opened by another client; open a new one, with a secret of your own")]
    OtherIdentity {
        /// The session.
        session: SessionId,
    },
    /// The session of this secret was opened with another ttl, lock-delay or linger (S1).
    #[error(
        "session {session} of this secret is open with a {field} of {have} ms, {asked} ms was asked for; repeat the opening \
         unchanged, or open another session with a secret of its own"
    )]
    OtherTerms {
        /// The session.
        session: SessionId,
        /// `ttl`, `lock-delay` or `linger`: the first that differs, in this order.
        field: &'static str,
        /// The session's value in milliseconds.
        have: u64,
        /// Requested value in milliseconds.
        asked: u64,
    },
    /// The seq was used for a command with other content (R5). This refusal is not kept.
    #[error(
        "number {seq} was used in this session for something else; repeat a request unchanged, or give it a number of its own"
    )]
    NumberTaken {
        /// The seq.
        seq: Seq,
    },
    /// The request's number of permits differs from the implied limit in force (L3).
    #[error(
        "`{name}` has {have} permits, {asked} were asked for; ask for {have}, for no number, or set the limit"
    )]
    LimitMismatch {
        /// The first such name in byte order.
        name: LockName,
        /// Limit in force.
        have: u32,
        /// Requested number.
        asked: u32,
    },
    /// No limit is in force, and the request has no number of permits (L2).
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
        /// Seq of the target.
        target: Seq,
    },
    /// A permit can't be downgraded (G2).
    #[error("request {target} holds a permit; only exclusive holds can be downgraded")]
    WrongMode {
        /// Seq of the target.
        target: Seq,
    },
    /// The table has [`limits::SESSIONS_MAX`] sessions.
    #[error(
        "the table has {} sessions, the most it takes; close some, or wait for silent ones to expire",
        limits::SESSIONS_MAX
    )]
    TooManySessions,
    /// The session has [`limits::REQUESTS_PER_SESSION_MAX`] live requests.
    #[error(
        "the session has {} live requests, the most it may have; release some, or open another session",
        limits::REQUESTS_PER_SESSION_MAX
    )]
    TooManyRequests,
    /// A name has [`limits::WAITERS_PER_NAME_MAX`] waiters.
    #[error("`{name}` has {} waiters, the most it takes; try again later", limits::WAITERS_PER_NAME_MAX)]
    TooManyWaiters {
        /// The first such name in byte order.
        name: LockName,
    },
    /// The wait would never end: what blocks the request waits, in the end, for a hold that the caller of
    /// this request keeps (K2).
    #[error("{cycle}")]
    Deadlock {
        /// The requests in the cycle; empty for a retry.
        cycle: Cycle,
    },
    /// The session has [`limits::KEPT_ANSWERS_MAX`] kept answers. This refusal is not kept itself (R6).
    #[error(
        "{} answers are kept for the session, the most it may leave unconfirmed; raise done_through",
        limits::KEPT_ANSWERS_MAX
    )]
    TooManyKeptAnswers,
    /// The table is at [`limits::CLOSED_HOLDS_MAX`] (D4).
    #[error(
        "the table keeps {} holds closed or to be closed, the most it takes; ask without keep_closed",
        limits::CLOSED_HOLDS_MAX
    )]
    TooManyClosedHolds,
    /// The table is at [`limits::TABLE_BYTES_MAX`].
    #[error(
        "the table is full: its sessions and locks count for {} GiB, the most it takes; release some locks, or use shorter \
         values and names",
        limits::TABLE_BYTES_MAX >> 30
    )]
    TableFull,
    /// The table has [`limits::STORED_LIMITS_MAX`] stored limits.
    #[error("{} names have a stored limit, the most the table takes; remove some", limits::STORED_LIMITS_MAX)]
    TooManyStoredLimits,
    /// The token counter is at [`limits::TOKEN_MAX`] (T3).
    #[error("the table has issued its last token ({}); found a new table", limits::TOKEN_MAX)]
    TokensExhausted,
    /// The token counter can't be raised this far (T3).
    #[error(
        "tokens can't be raised to {above}: at most {} in a table that has issued some, {} in a new one",
        limits::RAISE_TOKENS_MAX,
        limits::TOKEN_MAX
    )]
    RaiseTooHigh {
        /// Requested value of the counter.
        above: u64,
    },
    /// The binary doesn't support this version of the rules. Nothing was changed, and a node that gets this
    /// reply **must stop** before it applies any further command (V1).
    #[error("rules version {version} is unknown here (newest known: {known}); upgrade this node")]
    UnknownRules {
        /// Requested version.
        version: u32,
        /// Newest supported version.
        known: u32,
    },
}
