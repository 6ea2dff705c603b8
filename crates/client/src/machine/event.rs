//! What goes into the machine and what comes out.

use std::time::Duration;

use lockkeeper_core::{End, PermitGrant, Seq, Token};

use crate::error::{BackendError, Busy, LossCause};
use crate::time::BootInstant;

/// A caller's request, for as long as it lives; stable while the session behind it changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Key(pub u64);

/// One call to the backend. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct CallId(pub u64);

/// What the machine must know of a request; the rest is the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Want {
    /// By the caller's own clock.
    pub wait_until: Option<BootInstant>,
    /// How long the backend may be silent, where that is shorter than its session's own patience.
    pub patience: Option<Duration>,
    pub min_validity: Duration,
    pub max_hold: Option<Duration>,
    /// Between the signal of a loss that has time (`max_hold`, a break) and the end of the hold.
    pub grace: Duration,
}

#[derive(Clone, Debug)]
pub enum Event {
    Acquire {
        key: Key,
        want: Want,
    },
    /// The caller is gone: its future or its guard was dropped.
    Abandon {
        key: Key,
    },
    /// The caller waits for [`Output::Released`].
    Release {
        key: Key,
    },
    Answered {
        call: CallId,
        answer: Answer,
    },
    /// No answer came. `sent`: the backend may have seen it (P12).
    Failed {
        call: CallId,
        sent: bool,
    },
    Pushed(Push),
    Wake,
    /// Release everything and close.
    Shutdown,
}

/// What a backend says without being asked.
#[derive(Clone, Debug)]
pub enum Push {
    Queued {
        seq: Seq,
        position: u64,
    },
    Revoked {
        seq: Seq,
    },
    Ended {
        seq: Seq,
        end: End,
    },
    /// The stream that carried the session ended at `at`, without a word of the service. With `linger`, the session
    /// is believed in for no longer than that from then on, until a later attach is acknowledged.
    #[cfg_attr(not(feature = "service"), allow(dead_code, reason = "only streams end"))]
    Detached {
        at: BootInstant,
    },
    /// What carried one hold is gone: a connection that holds no other.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "only connections of one hold end alone")
    )]
    HoldLost {
        seq: Seq,
        cause: LossCause,
    },
    /// What carried the session is gone: a connection, a directory.
    Lost(LossCause),
}

/// A backend's answer to a call.
#[derive(Clone, Debug)]
pub enum Answer {
    Opened,
    KeptAlive,
    Granted(Granted),
    Busy(Busy),
    Refused(BackendError),
    Finished(End),
    Revoked,
    SessionGone,
    Closed,
}

/// What a grant brought.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(test, derive(Hash))]
pub struct Granted {
    /// `None` where the backend can't fence.
    pub token: Option<Token>,
    /// For permits, one a name in byte order.
    pub permits: Vec<PermitGrant>,
}

/// A call to the backend. Calls of a session must arrive in the order in which they come out of the machine (R5).
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub enum What {
    /// `fresh`: a new session; otherwise the one whose answer was lost.
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
    Close,
}

/// Whose task carries a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Caller(Key),
    Worker,
}

#[must_use]
#[derive(Clone, Debug)]
pub enum Output {
    Call {
        call: CallId,
        what: What,
        by: By,
    },
    /// The session's deadline moved.
    Belief(Option<BootInstant>),
    Queued {
        key: Key,
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
    /// Nothing was sent.
    Unreachable,
    /// Something was sent, and nothing came back (P12).
    Ambiguous,
    ShuttingDown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Releasing {
    Released,
    AlreadyLost(LossCause),
    /// The release was sent and not answered; it goes on being sent (P12).
    Ambiguous,
}
