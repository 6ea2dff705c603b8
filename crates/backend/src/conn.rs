//! One session of a client at a lock service: its calls, their answers, and what the service says unasked.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, LockName, Mode, PermitGrant, Seq, Token};

use crate::error::{BackendError, BreakNotice, Busy, LossCause};
use crate::responder::Responder;
use crate::time::BootInstant;

/// The transport of one session: a connection, a stream, a directory.
pub trait Conn: Send + Sync + 'static {
    /// Submits a call. The service must see a session's calls in the order of `submit` (R5), so the step that fixes the
    /// order happens here; [`Responder::send_when`] takes the rest. `submit` itself must not block.
    ///
    /// A call that does not wait in a queue is answered or fails within the backend's own time limit. A waiting acquire
    /// is answered when the request is granted or has ended.
    fn submit(&self, call: Call, responder: Responder);

    /// Why there is no connection, or the latest call on it has no answer, for users: the node and its message.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Descriptors that keep the hold of request `seq` alive in any process that has them.
    fn descriptors(&self, _seq: Seq) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }
}

/// One call of a session.
#[derive(Clone, Debug)]
pub enum Call {
    /// Opens the session: with `fresh` a new one, otherwise the same one again, because the answer was lost.
    Open {
        fresh: bool,
    },
    KeepAlive,
    Acquire {
        seq: Seq,
        done_through: Seq,
        request: Arc<AcquireRequest>,
        /// The rest of the caller's wait, for services that enforce it; `None` is unlimited.
        wait_left: Option<Duration>,
    },
    Finish {
        seq: Seq,
        target: Seq,
        done_through: Seq,
    },
    /// Changes the hold `target`. Sent once: its caller may repeat it, under another seq.
    Change {
        seq: Seq,
        target: Seq,
        done_through: Seq,
        change: HoldChange,
    },
    Close,
}

/// A change of a hold that leaves it as it is if it is applied twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HoldChange {
    SetValue(Arc<[u8]>),
    Downgrade,
}

/// The content of an acquire, as the service receives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireRequest {
    pub names: Vec<LockName>,
    pub mode: Mode,
    pub subtree: bool,
    /// Queue if the lock is not free.
    pub wait: bool,
    pub keep_closed: Duration,
    /// The value of the hold from its grant on; empty where the service has none.
    pub value: Box<[u8]>,
    pub meta: Box<[u8]>,
    /// The span of the acquire, for our own service, if it is sampled.
    pub traceparent: Option<Box<str>>,
}

/// The call got no answer, or a refusal that may pass.
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

    pub const fn new(sent: bool) -> Self {
        Self { sent, refusal: None }
    }

    /// The service did nothing, and said why.
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
    Queued {
        seq: Seq,
        position: u64,
    },
    /// `notice`: who broke the hold, if the service says so.
    Revoked {
        seq: Seq,
        notice: Option<BreakNotice>,
    },
    Ended {
        seq: Seq,
        end: End,
    },
    /// The session's stream ended at `at` without a message of the service. With `linger`, the lease is valid for at
    /// most `linger` after `at`, until a later attach is acknowledged.
    Detached {
        at: BootInstant,
    },
    /// The connection that carried this hold is gone. It carried no other hold.
    HoldLost {
        seq: Seq,
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
    Opened,
    KeptAlive,
    Granted(Granted),
    Busy(Busy),
    Refused(BackendError),
    Finished(End),
    /// The hold is changed as asked.
    Changed,
    Revoked,
    SessionGone,
    Closed,
}

/// The content of a grant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Granted {
    /// `None` if the backend issues no tokens.
    pub token: Option<Token>,
    /// For permits: one per name, in byte order.
    pub permits: Vec<PermitGrant>,
}
