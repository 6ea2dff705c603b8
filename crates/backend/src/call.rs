//! The calls of one session to its lock service, their answers, and the service's unsolicited messages.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, LockName, Mode, PermitGrant, Seq, Token};

use crate::error::{BackendError, BreakNotice, Busy, LossCause};
use crate::time::BootInstant;

/// One call of a session.
///
/// `seq` numbers the requests of a session: 1, 2, 3, …. The client repeats a request under the same seq until
/// it is answered, and a repetition must have no second effect (R1). `done_through`: the client has the
/// answers to all seqs up to this one, so the service may forget them.
#[derive(Clone, Debug)]
pub enum Call {
    /// Opens the session.
    Open {
        /// `true`: a new session. `false`: repeats an open whose answer was lost.
        fresh: bool,
    },
    /// Renews the session's lease, and with it all its holds and waiting requests.
    KeepAlive,
    /// Requests a lock. Also the repetition of such a request.
    Acquire {
        /// The request.
        seq: Seq,
        /// See [`Call`].
        done_through: Seq,
        /// The content of the request; the same in each repetition.
        request: Arc<AcquireRequest>,
        /// The rest of the caller's wait, for services that enforce it; `None` is unlimited.
        wait_left: Option<Duration>,
    },
    /// Ends a request: releases its hold, or withdraws it from the queue.
    Finish {
        /// This call's own number.
        seq: Seq,
        /// The request that ends.
        target: Seq,
        /// See [`Call`].
        done_through: Seq,
    },
    /// Changes the hold of `target`. Never repeated automatically; the caller may try again, under a new seq.
    Change {
        /// This call's own number.
        seq: Seq,
        /// The request that holds.
        target: Seq,
        /// See [`Call`].
        done_through: Seq,
        /// The change.
        change: HoldChange,
    },
    /// Closes the session, which ends its holds and requests.
    Close,
}

/// An idempotent change of a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HoldChange {
    /// Replaces its value.
    SetValue(Arc<[u8]>),
    /// Makes an exclusive hold a shared one.
    Downgrade,
    /// Makes a cached hold an ordinary one, which ends with its present section; only for services that
    /// declare `cached`.
    Settle,
}

/// The content of an acquire, as the service receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireRequest {
    /// The names, at least one; several only if the capabilities declare `multi`.
    pub names: Vec<LockName>,
    /// Exclusive, shared, or one of N permits.
    pub mode: Mode,
    /// Whether the hold covers all names below its own.
    pub subtree: bool,
    /// Queue if the lock is not free.
    pub wait: bool,
    /// Queue only if fewer requests than this wait for each of the names; only if the capabilities declare
    /// `queue_limit`. `None`: no limit.
    pub waiters_max: Option<u32>,
    /// For how long the lock stays closed after the hold's end, however it ends.
    pub keep_closed: Duration,
    /// The value of the hold from its grant on; empty where the service has none.
    pub value: Box<[u8]>,
    /// The purpose, for display: `key=value` lines.
    pub meta: Box<[u8]>,
    /// The number of tokens that a cached hold draws beyond its first; 0: an ordinary hold. Not 0 only if the
    /// capabilities declare `cached`.
    pub spare_tokens: u32,
    /// Tokens of holds that the caller keeps until this wait has ended: a service that sees the waits of all
    /// can refuse one that would wait for itself. Others ignore them.
    pub holding: Box<[Token]>,
    /// The W3C trace context of the acquire, if it is sampled. Only our own service receives it.
    pub traceparent: Option<Box<str>>,
}

impl AcquireRequest {
    /// An exclusive request that waits, and asks for nothing else.
    #[must_use]
    pub fn exclusive(names: Vec<LockName>) -> Self {
        Self {
            names,
            mode: Mode::Exclusive,
            subtree: false,
            wait: true,
            waiters_max: None,
            keep_closed: Duration::ZERO,
            value: Box::default(),
            meta: Box::default(),
            spare_tokens: 0,
            holding: Box::default(),
            traceparent: None,
        }
    }
}

/// The call got no answer, or a temporary refusal.
#[derive(Clone, Debug)]
pub struct CallError {
    /// Whether the service may have executed the call (P12).
    pub sent: bool,
    /// The service's refusal, if it gave one.
    pub refusal: Option<Arc<BackendError>>,
}

impl CallError {
    /// Nothing was sent, or the service did nothing.
    pub const NOT_SENT: Self = Self::new(false);
    /// The service may have executed the call, or may still execute it.
    pub const IN_DOUBT: Self = Self::new(true);

    /// A call without an answer and without a refusal.
    pub const fn new(sent: bool) -> Self {
        Self { sent, refusal: None }
    }

    /// The service refused the call and executed nothing.
    pub fn refused(refusal: BackendError) -> Self {
        Self { sent: false, refusal: Some(Arc::new(refusal)) }
    }
}

/// Equal if both agree on whether the service may have executed the call.
#[cfg(any(test, feature = "test-util"))]
impl PartialEq for CallError {
    fn eq(&self, other: &Self) -> bool {
        self.sent == other.sent
    }
}

/// Identifies one call to the backend. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct CallId(pub u64);

/// An unsolicited message of the backend.
#[derive(Clone, Debug)]
pub enum Push {
    /// The request waits in the queue.
    Queued {
        /// The request.
        seq: Seq,
        /// The number of requests ahead of it.
        position: u64,
    },
    /// An operator breaks the hold. Its holder is given time to stop.
    Revoked {
        /// The request that holds.
        seq: Seq,
        /// Who broke the hold, and why, if the service reports it.
        notice: Option<BreakNotice>,
    },
    /// Others wait for a cached hold: it is released when idle, else settled.
    Recalled {
        /// The request that holds.
        seq: Seq,
    },
    /// The service has ended the request.
    Ended {
        /// The request.
        seq: Seq,
        /// How it ended.
        end: End,
    },
    /// The session is attached to a stream, for the first time or after a reconnect: from now on, breaks and
    /// recalls reach the client. Those that happened while there was no stream were pushed just before this.
    Attached,
    /// The session's stream ended at `at`. Unless the service announced it, the lease of a session with
    /// `linger` is valid for at most `linger` after `at`, until a later attach is acknowledged.
    Detached {
        /// When the client detected the end of the stream.
        at: BootInstant,
        /// Whether the service announced the end.
        announced: bool,
    },
    /// The connection that carried this hold is gone. It carried no other hold.
    HoldLost {
        /// The request that held.
        seq: Seq,
        /// The cause that the caller gets.
        cause: LossCause,
        /// The reason, for the caller.
        why: Option<Arc<str>>,
    },
    /// The session is gone: its connection or directory is gone, or the service has ended it.
    Lost(LossCause),
}

/// A backend's answer to a call.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To [`Call::Open`].
    Opened,
    /// To [`Call::KeepAlive`]: all holds of the session are valid for a full ttl, counted from when the call
    /// was sent.
    KeptAlive,
    /// To [`Call::Acquire`]: the request holds the lock.
    Granted(Granted),
    /// To [`Call::Acquire`] without `wait`: the lock is not free, and nothing of the request is left.
    Busy(Busy),
    /// The service will not serve the call, and did nothing.
    Refused(BackendError),
    /// To [`Call::Finish`].
    Finished(End),
    /// To [`Call::Change`]: the hold is changed as asked.
    Changed,
    /// To [`Call::Acquire`] and [`Call::Change`]: an operator has broken the hold.
    Revoked,
    /// The service does not know the session any more: everything it held is lost.
    SessionGone,
    /// To [`Call::Close`].
    Closed,
}

/// The content of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Granted {
    /// `None` if the backend issues no tokens.
    pub token: Option<Token>,
    /// For permits: one per name, in byte order.
    pub permits: Vec<PermitGrant>,
    /// The number of tokens after `token` that belong to the hold as well; 0 if it is not a cached hold.
    pub spare_tokens: u32,
}
