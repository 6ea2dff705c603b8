//! What can go wrong, one type a boundary, each variant by whose move is next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{NameError, Rejection};

/// Why a hold is no longer to be relied on. Stop using its token; acquire again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// Its deadline passed before a keep-alive was acknowledged (P5).
    Expired,
    /// The lock service says that the session is over.
    SessionEnded,
    /// The lock service does not know it any more: it was deleted by hand, or lost in a fail-over or a restart.
    Forgotten,
    /// An operator broke it.
    Broken,
    /// It was held for longer than `max_hold`.
    MaxHold,
    /// What carried it is gone: a connection, a lock directory.
    Disconnected,
    /// [`Locks::shutdown`](crate::Locks::shutdown) took it back.
    ShutDown,
}

impl LossCause {
    /// One word for metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::SessionEnded => "session-ended",
            Self::Forgotten => "forgotten",
            Self::Broken => "broken",
            Self::MaxHold => "max-hold",
            Self::Disconnected => "disconnected",
            Self::ShutDown => "shut-down",
        }
    }
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ended before a keep-alive was acknowledged",
            Self::SessionEnded => "the lock service ended its session",
            Self::Forgotten => "the lock service does not know it any more: deleted, or lost in a fail-over",
            Self::Broken => "an operator broke it",
            Self::MaxHold => "it was held for longer than max_hold",
            Self::Disconnected => "the connection or directory that carried it is gone",
            Self::ShutDown => "the client was shut down",
        })
    }
}

/// The hold is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the lock was lost: {cause}; stop using its token, then acquire again")]
pub struct Lost {
    /// Why.
    pub cause: LossCause,
}

/// What a round trip to the lock service found out about a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// It is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The service did not answer; the hold is believed in until its deadline.
    #[error("the lock service did not answer; the hold can be relied on until its deadline, not longer")]
    NoAnswer,
}

/// Who is in the way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Busy {
    /// The conflicting holder, as it labelled itself; `None` behind waiters or closed holds only.
    pub holder: Option<String>,
    /// How many wait already.
    pub queued_ahead: u64,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Some(holder) => write!(f, "held by {holder}")?,
            None => {
                f.write_str("not held, but not free: others wait for it, or it stays closed for a while")?
            }
        }
        match self.queued_ahead {
            0 => Ok(()),
            1 => f.write_str(", 1 waiting"),
            n => write!(f, ", {n} waiting"),
        }
    }
}

/// This backend can't do that. Said once, never silently replaced by something weaker (P11).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{backend}` can't {what}: {why}; {instead}")]
pub struct Unsupported {
    /// The backend's URL scheme.
    pub backend: &'static str,
    /// What was asked for.
    pub what: &'static str,
    /// Why it can't.
    pub why: &'static str,
    /// What to do.
    pub instead: &'static str,
}

/// A failure of the lock service, or of what lies between.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    /// What was wrong, the value, what to do.
    pub message: String,
    /// Whose move is next.
    pub kind: BackendErrorKind,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Whose move is next after a [`BackendError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The caller asked for something illegal: another value helps.
    Refused,
    /// The backend can't do it at all.
    Unsupported,
    /// Permissions, full disk, damaged state: an operator must act.
    Operator,
    /// Out of reach: trying later may help.
    Unreachable,
}

impl BackendError {
    /// A failure without a cause below it.
    pub(crate) fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, source: None }
    }

    /// A failure with its cause, which `Display` does not repeat.
    pub(crate) fn caused(
        kind: BackendErrorKind,
        message: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { message: message.into(), kind, source: Some(Arc::new(source)) }
    }
}

impl From<lockkeeper_core::Rejection> for BackendError {
    fn from(rejection: lockkeeper_core::Rejection) -> Self {
        Self::new(BackendErrorKind::Refused, rejection.to_string())
    }
}

impl From<Unsupported> for BackendError {
    fn from(unsupported: Unsupported) -> Self {
        Self::new(BackendErrorKind::Unsupported, unsupported.to_string())
    }
}

/// Why a client couldn't be made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one.
    #[error(transparent)]
    Url(#[from] crate::url::UrlError),
    /// The backend can't do what the URL or the program asks for.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a lock wasn't acquired. Nothing is held, except where [`AcquireError::Ambiguous`] says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An option has a value that is not allowed.
    #[error("{option} is {value}, {allowed}")]
    Invalid {
        /// Which option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A limit that holds for every lock service is passed. Nothing was sent.
    #[error(transparent)]
    Limit(#[from] Rejection),
    /// It isn't free, and the caller did not want to wait.
    #[error("the lock is busy: {0}")]
    Busy(Busy),
    /// It did not become free in time.
    #[error("the lock did not become free within {waited:?}")]
    TimedOut {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The backend can't do that (P11).
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The backend didn't answer, and nothing was sent.
    #[error("the lock service did not answer for {waited:?}; nothing was acquired{}", because(.why))]
    Unreachable {
        /// For how long it was tried.
        waited: Duration,
        /// What the latest try failed of, where the backend can tell.
        why: Option<String>,
    },
    /// Something was sent and nothing came back: the lock may be held in our name for up to its ttl (P12). The
    /// client goes on giving it back.
    #[error("the lock service did not answer for {waited:?}; the lock may be held until its ttl has passed{}", because(.why))]
    Ambiguous {
        /// For how long it was tried.
        waited: Duration,
        /// What the latest try failed of, where the backend can tell.
        why: Option<String>,
    },
    /// The client is being shut down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

/// The cause behind an error's first words.
fn because(why: &Option<String>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}

/// What became of a release.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// It was lost before: somebody else may have held the lock meanwhile.
    #[error("the lock was lost before it was released: {0}; check what you wrote with its token")]
    AlreadyLost(LossCause),
    /// No answer came. The client goes on releasing; at the latest the lock is free when its ttl has passed (P12).
    #[error("the release was not answered; the lock is free at the latest when its ttl has passed")]
    Ambiguous,
}

/// What became of [`Lock::run`](crate::Lock::run).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<T, E> {
    /// The body never ran.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost while the body ran.
    #[error("the lock was lost while the work ran: {cause}")]
    Lost {
        /// Why.
        cause: LossCause,
        /// What the body made of it; `None` if it was dropped ([`OnLost::DropBody`](crate::OnLost)).
        body: Option<Result<T, E>>,
    },
    /// The body failed; the lock was released.
    #[error("the work failed under the lock")]
    Body(#[source] E),
    /// The body succeeded, and its value is here; only the release is in doubt.
    #[error("the work succeeded, but its lock's release did not: {source}")]
    ReleaseFailed {
        /// What the body returned.
        value: T,
        /// Why the release failed.
        source: ReleaseError,
    },
}
