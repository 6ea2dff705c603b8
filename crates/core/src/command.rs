//! Everything that may change the table. A command is one entry of the log (or a part of one).

use crate::name::LockName;
use crate::types::{Mode, Seq, SessionId, Token};

/// A change of the table. Applied by [`Table::apply`](crate::Table::apply), in the order of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a session, or finds the one that this secret already opened (S1).
    OpenSession(OpenSession),
    /// Ends a session by its client's wish: no lock-delay (S3).
    CloseSession {
        /// Which.
        session: SessionId,
    },
    /// Ends a session that has been silent (leader only): lock-delay applies (S3).
    ExpireSession {
        /// Which.
        session: SessionId,
    },
    /// Ends the wait of a request whose limit has passed (leader only, W1).
    TimeOut {
        /// Whose.
        session: SessionId,
        /// Which request.
        target: Seq,
    },
    /// Ends a closed hold (leader only, D3).
    EndDelay {
        /// The token that the hold had.
        token: Token,
    },
    /// Ends a revoked hold whose holder had its ttl to react (leader only, B1).
    EndRevoked {
        /// The hold's token.
        token: Token,
    },
    /// Asks to hold names.
    Acquire(Acquire),
    /// Releases a hold or leaves the queue: one command for both, so that giving up can't race with being granted (R4).
    Finish {
        /// Whose.
        session: SessionId,
        /// This command's own number.
        seq: Seq,
        /// The request to end.
        target: Seq,
        /// The client has every answer up to here (R1).
        done_through: Seq,
    },
    /// Replaces the value of an own hold (G3).
    SetValue {
        /// Whose.
        session: SessionId,
        /// This command's own number.
        seq: Seq,
        /// The hold.
        target: Seq,
        /// The new value.
        value: Box<[u8]>,
        /// The client has every answer up to here (R1).
        done_through: Seq,
    },
    /// Exclusive to shared; the hold keeps its place and its token (G2).
    Downgrade {
        /// Whose.
        session: SessionId,
        /// This command's own number.
        seq: Seq,
        /// The hold.
        target: Seq,
        /// The client has every answer up to here (R1).
        done_through: Seq,
    },
    /// Stores or removes a name's number of permits (L4).
    SetLimit {
        /// The name.
        name: LockName,
        /// The number, or `None` to store none.
        limit: Option<u32>,
    },
    /// An operator ends a hold, with a record of why (B1–B3).
    Break(Break),
    /// Later tokens are above this one (T3).
    RaiseTokens {
        /// The greatest token known elsewhere.
        above: u64,
    },
    /// Every member knows this version of the rules (V1).
    RaiseRules {
        /// The version.
        version: u32,
    },
    /// Continues work that earlier commands left to keep within their bound (leader only, M2): see
    /// [`Table::has_backlog`](crate::Table::has_backlog). Nothing without such work.
    Resume,
}

/// See [`Command::OpenSession`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenSession {
    /// A hash of the secret that every later attach must show.
    pub secret_hash: [u8; 32],
    /// How long the session lives without a keep-alive.
    pub ttl_ms: u64,
    /// How long its holds stay closed if it expires.
    pub lock_delay_ms: u64,
    /// The time left after its stream was closed; 0 is off (DESIGN section 5).
    pub linger_ms: u64,
    /// For people: host, process, purpose.
    pub label: Box<str>,
}

/// See [`Command::Acquire`]. Durations are in milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Who asks.
    pub session: SessionId,
    /// The request's number in its session; it names the hold from now on.
    pub seq: Seq,
    /// The client has every answer up to here (R1).
    pub done_through: Seq,
    /// 1 to 64 names; granted together or not at all.
    pub names: Vec<LockName>,
    /// How to hold them.
    pub mode: Mode,
    /// Cover everything below the names too (N2).
    pub subtree: bool,
    /// What to do when the names aren't free.
    pub if_busy: IfBusy,
    /// How long the hold stays closed after its end; 0 is off (D1).
    pub keep_closed_ms: u64,
    /// What the holder proclaims; empty is none.
    pub value: Box<[u8]>,
    /// For people: what the hold is for; empty is none.
    pub meta: Box<[u8]>,
}

/// What an acquire does when it can't be granted at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IfBusy {
    /// Answer [`Reply::Busy`](crate::Reply::Busy).
    Fail,
    /// Queue.
    Wait {
        /// For at most so many milliseconds; `Some(0)` is [`IfBusy::Fail`] (Q2), `None` is for ever.
        at_most_ms: Option<u64>,
    },
}

/// See [`Command::Break`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Break {
    /// A name that the hold covers.
    pub name: LockName,
    /// The hold's token: a break never hits a later hold.
    pub token: Token,
    /// Why, for the audit.
    pub reason: Box<str>,
    /// Who, for the audit.
    pub by: Box<str>,
    /// Skip the holder's time to react: exclusion is off until the holder has stopped by itself (B2).
    pub now: bool,
}
