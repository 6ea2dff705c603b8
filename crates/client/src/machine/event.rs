//! The machine's inputs and outputs.

use std::time::Duration;

use lockkeeper_backend::{Answer, BackendError, BootInstant, Busy, CallId, Granted, LossCause, Push};
use lockkeeper_core::Seq;

/// Identifies a caller's request for its whole life, across changes of the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Key(pub u64);

/// The limits and times of an acquire, which the machine enforces. The backend gets the rest, an
/// `AcquireRequest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct AcquireLimits {
    /// End of the wait, on the caller's clock.
    pub wait_until: Option<BootInstant>,
    /// If the backend does not answer for this long, it counts as unreachable. No effect if longer than the
    /// session's own limit (its ttl; 10 s without one).
    pub patience: Option<Duration>,
    pub min_validity: Duration,
    pub max_hold: Option<Duration>,
    /// Grace period between the signal of a loss with advance notice (`max_hold`, a break) and the end of the
    /// hold.
    pub grace: Duration,
}

#[derive(Clone, Debug)]
pub enum Event {
    Acquire {
        key: Key,
        limits: AcquireLimits,
    },
    /// The caller's future or guard was dropped.
    Abandon {
        key: Key,
    },
    /// The caller waits for [`Output::Released`].
    Release {
        key: Key,
    },
    /// Makes a cached hold an ordinary one, which ends with its present section (C5). Without an answer it is
    /// not repeated: the service tells the recall again.
    Settle {
        key: Key,
    },
    Answered {
        call: CallId,
        answer: Answer,
    },
    /// The call got no answer. `sent`: the backend may have received it (P12).
    Failed {
        call: CallId,
        sent: bool,
    },
    Pushed(Push),
    Wake,
    /// Release everything and close.
    Shutdown,
}

/// A call to the backend. A session's calls must arrive in the order in which the machine returns them (R5).
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub enum CallKind {
    /// `fresh`: opens a new session. Otherwise repeats the previous open, for the same session, since that
    /// got no answer.
    Open {
        fresh: bool,
    },
    KeepAlive,
    Acquire {
        key: Key,
        seq: Seq,
        done_through: Seq,
        wait_left: Option<Duration>,
    },
    Finish {
        seq: Seq,
        target: Seq,
        done_through: Seq,
    },
    Settle {
        seq: Seq,
        target: Seq,
        done_through: Seq,
    },
    Close,
}

/// Where a call runs: on the runtime of the caller that waits for it, or on the lease thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunsOn {
    Caller(Key),
    LeaseThread,
}

#[must_use]
#[derive(Clone, Debug)]
pub enum Output {
    Call {
        call: CallId,
        kind: CallKind,
        runs_on: RunsOn,
    },
    /// The session's lease deadline moved.
    LeaseDeadline(Option<BootInstant>),
    /// Whether the session's stream is attached, so that recalls arrive. Not before the first one.
    Attached(bool),
    Queued {
        key: Key,
        /// The request's present seq: with another one, it is at the end of the queue again.
        seq: Seq,
        position: u64,
    },
    Granted {
        key: Key,
        grant: Granted,
    },
    NotAcquired {
        key: Key,
        why: NotAcquired,
    },
    Released {
        key: Key,
        how: Releasing,
    },
    /// Others wait for a cached hold. Told again at every attach and keep-alive until it is settled.
    Recalled {
        key: Key,
    },
    Lost {
        key: Key,
        cause: LossCause,
    },
}

#[derive(Clone, Debug)]
pub enum NotAcquired {
    Busy(Busy),
    TimedOut,
    Refused(BackendError),
    /// The backend did not answer in time. The request did not arrive there, or is being ended.
    Unreachable,
    /// The request, or the Finish that ends it, was sent and not answered (P12): the request may still hold
    /// or wait until it is ended.
    Ambiguous,
    ShuttingDown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Releasing {
    Released,
    AlreadyLost(LossCause),
    /// The release was sent and not answered (P12). It is retried.
    Ambiguous,
}
