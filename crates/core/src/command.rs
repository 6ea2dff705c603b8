//! Commands: all possible changes of the table. A log entry holds one command or several.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::name::LockName;
use crate::types::{Fingerprint, Mode, Seq, SessionId, Token, WallTime};

/// A change of the table, applied by [`Table::apply`](crate::Table::apply) in log order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a session, or returns the one already opened with this secret (S1).
    OpenSession(OpenSession),
    /// Ends a session at its client's request, without lock-delay (S3).
    CloseSession {
        /// Session to end.
        session: SessionId,
    },
    /// Ends a session whose keep-alives have stopped (leader only); lock-delay applies (S3).
    ExpireSession {
        /// Session to end.
        session: SessionId,
    },
    /// Ends the wait of a request whose wait limit has passed (leader only, W1).
    TimeOut {
        /// Session of the request.
        session: SessionId,
        /// Request to end.
        target: Seq,
    },
    /// Ends a closed hold (leader only, D3).
    EndDelay {
        /// The closed hold's token.
        token: Token,
    },
    /// Ends a revoked hold after its holder had one ttl to react (leader only, B1).
    EndRevoked {
        /// The revoked hold's token.
        token: Token,
    },
    /// Requests one or more names.
    Acquire(Acquire),
    /// Releases a hold or leaves the queue. One command does both: a client that cancels its wait also
    /// releases the hold if the grant was applied before the cancellation (R4).
    Finish {
        /// Session of the request.
        session: SessionId,
        /// Seq of this command.
        seq: Seq,
        /// Request to end.
        target: Seq,
        /// The client has received every answer up to this seq (R1).
        done_through: Seq,
    },
    /// Replaces the value of one of the session's holds (G3).
    SetValue {
        /// Session of the hold.
        session: SessionId,
        /// Seq of this command.
        seq: Seq,
        /// Request that became the hold.
        target: Seq,
        /// New value.
        value: Box<[u8]>,
        /// The client has received every answer up to this seq (R1).
        done_through: Seq,
    },
    /// Changes an exclusive hold to shared; it keeps its position and its token (G2).
    Downgrade {
        /// Session of the hold.
        session: SessionId,
        /// Seq of this command.
        seq: Seq,
        /// Request that became the hold.
        target: Seq,
        /// The client has received every answer up to this seq (R1).
        done_through: Seq,
    },
    /// Makes a cached hold an ordinary one, which ends with the section that its holder is in (C5).
    Settle {
        /// Session of the hold.
        session: SessionId,
        /// Seq of this command.
        seq: Seq,
        /// Request that became the hold.
        target: Seq,
        /// The client has received every answer up to this seq (R1).
        done_through: Seq,
    },
    /// Stores or removes a name's number of permits (L4).
    SetLimit {
        /// Name of the lock.
        name: LockName,
        /// Number of permits; `None` removes the stored limit.
        limit: Option<u32>,
    },
    /// Ends a hold at an operator's order: with `now` at once, otherwise after its holder had time to react
    /// (B1–B3).
    Break(Break),
    /// Raises the token counter: later tokens are above this value (T3).
    RaiseTokens {
        /// Highest token known outside of this table.
        above: u64,
    },
    /// Raises the version of the rules to one that every member supports (V1).
    RaiseRules {
        /// New version.
        version: u32,
    },
    /// Sets the time that requests which queue or are granted from here on show to people (leader only, E3).
    SetClock {
        /// The leader's wall clock.
        now: WallTime,
    },
    /// Does a part of the backlog: work that earlier commands left because the work of one command is bounded
    /// (leader only, M2); see [`Table::has_backlog`](crate::Table::has_backlog). Changes nothing if there is
    /// no backlog.
    Resume,
}

impl Fingerprint {
    /// Of an acquire: of its names in their order, subtree, mode, number of permits and `keep_closed`. Not of
    /// the wait, which a repeat may shorten, nor of spare tokens, `holding`, value and meta: those of the
    /// first one count.
    #[must_use]
    pub fn of_acquire(acquire: &Acquire) -> Self {
        let mode = match acquire.mode {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permit { of: None } => 2,
            Mode::Permit { of: Some(of) } => 3 + u64::from(of),
        };
        let head = [0, u64::from(acquire.subtree), mode, acquire.keep_closed_ms];
        Self::of(head, acquire.names.iter().map(|name| name.as_str().as_bytes()))
    }

    /// Of a [`Command::SetValue`].
    #[must_use]
    pub fn of_set_value(target: Seq, value: &[u8]) -> Self {
        Self::of([1, target.0, 0, 0], [value])
    }

    /// Of a [`Command::Downgrade`].
    #[must_use]
    pub fn of_downgrade(target: Seq) -> Self {
        Self::of([2, target.0, 0, 0], [])
    }

    /// Of a [`Command::Settle`].
    #[must_use]
    pub fn of_settle(target: Seq) -> Self {
        Self::of([3, target.0, 0, 0], [])
    }

    /// Hashes each part with the hash of those before it as its seed.
    fn of<'a>(head: [u64; 4], parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let head = head.iter().fold(0, |hash, number| xxh3_64_with_seed(&number.to_le_bytes(), hash));
        Self(parts.into_iter().fold(head, |hash, part| xxh3_64_with_seed(part, hash)) as u32)
    }
}

/// Parameters of [`Command::OpenSession`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenSession {
    /// Hash of the secret that every later attach must present.
    pub secret_hash: [u8; 32],
    /// Time until expiry without a keep-alive.
    pub ttl_ms: u64,
    /// Time for which the session's holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// Time until expiry after the client closed its stream; 0 disables it, and the ttl applies.
    pub linger_ms: u64,
    /// Description for people: host, process, purpose.
    pub label: Box<str>,
    /// Who opens it, as the service has authenticated the client; empty: unknown. Ignored below version 2 of
    /// the rules (S4).
    pub identity: Box<str>,
}

/// Parameters of [`Command::Acquire`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Requesting session.
    pub session: SessionId,
    /// Seq of the request in its session. After the grant it identifies the hold.
    pub seq: Seq,
    /// The client has received every answer up to this seq (R1).
    pub done_through: Seq,
    /// 1 to 64 names, granted together or not at all.
    pub names: Vec<LockName>,
    /// Requested mode.
    pub mode: Mode,
    /// Whether the request covers all names below its names too (N2).
    pub subtree: bool,
    /// Behaviour if the names are not free.
    pub if_busy: IfBusy,
    /// Time for which the hold stays closed after its end; 0 disables it (D1).
    pub keep_closed_ms: u64,
    /// Value that the holder publishes; empty means none.
    pub value: Box<[u8]>,
    /// Purpose of the hold, for people; empty means none.
    pub meta: Box<[u8]>,
    /// Makes the hold a cached one if it is granted at once: the number of tokens that it draws beyond its
    /// first, one for each further section (C1, C2). 0 makes an ordinary hold. Ignored below version 5 of the
    /// rules.
    pub spare_tokens: u32,
    /// Tokens of holds that the caller keeps until this wait has ended (K1), at most
    /// [`limits::HOLDING_MAX`](crate::limits::HOLDING_MAX). Ignored below version 5 of the rules.
    pub holding: Box<[Token]>,
}

/// Behaviour of an acquire that can't be granted at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IfBusy {
    /// Returns [`Reply::Busy`](crate::Reply::Busy).
    Fail,
    /// Queues the request.
    Wait {
        /// Wait limit in milliseconds; `Some(0)` equals [`IfBusy::Fail`] (Q2), `None` is no limit.
        at_most_ms: Option<u64>,
        /// Queues the request only if fewer requests than this wait for each of its names already; otherwise
        /// as [`IfBusy::Fail`] (Q3). `None` is no limit. Ignored below version 4 of the rules.
        waiters_max: Option<u32>,
    },
}

impl IfBusy {
    /// Waiting without any limit.
    pub const WAIT: Self = Self::Wait { at_most_ms: None, waiters_max: None };

    /// Whether a request that can't be granted at once may be queued (Q2).
    #[must_use]
    pub fn may_wait(self) -> bool {
        !matches!(self, Self::Fail | Self::Wait { at_most_ms: Some(0), .. })
    }
}

/// Parameters of [`Command::Break`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Break {
    /// A name that the hold covers.
    pub name: LockName,
    /// The hold's token. A later hold of the same name has another one, so the break can't end it.
    pub token: Token,
    /// Reason, for the audit log.
    pub reason: Box<str>,
    /// Operator, for the audit log.
    pub by: Box<str>,
    /// Skips the holder's time to react. Exclusion is then not guaranteed until the holder has stopped by
    /// itself (B2).
    pub now: bool,
}
