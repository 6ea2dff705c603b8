//! Errors, one type per API boundary. The variants are divided by the reaction that they need.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{NameError, Rejection};

/// Why a hold is no longer valid. Stop using its token and acquire again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// Its deadline passed before a keep-alive was acknowledged (P5).
    Expired,
    /// The lock service ended the session.
    SessionEnded,
    /// The lock service has no record of the hold: it was deleted by hand, or lost in a fail-over or a restart.
    Forgotten,
    /// An operator broke it.
    Broken,
    /// It was held for longer than `max_hold`.
    MaxHold,
    /// The connection that carried the hold is gone, or the lock directory or a file of it.
    Disconnected,
    /// [`Locks::shutdown`](crate::Locks::shutdown) released it.
    ShutDown,
}

impl LossCause {
    /// The cause as one word, for metrics and JSON.
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
            Self::Disconnected => "the connection, directory or file that carried it is gone",
            Self::ShutDown => "the client was shut down",
        })
    }
}

/// The order with which an operator broke a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BreakNotice {
    /// The operator.
    pub by: String,
    /// The reason.
    pub reason: String,
}

impl BreakNotice {
    #[cfg_attr(not(feature = "service"), allow(dead_code, reason = "only tables know it"))]
    pub(crate) fn new(by: &str, reason: &str) -> Self {
        Self { by: by.to_owned(), reason: reason.to_owned() }
    }
}

/// The hold is lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the lock was lost: {}; stop using its token, then acquire again", self.why())]
#[non_exhaustive]
pub struct Lost {
    /// The cause of the loss.
    pub cause: LossCause,
    /// Who broke the hold, and why; `None` if it was not broken, or if the lock service did not say.
    pub broken: Option<Arc<BreakNotice>>,
    /// Why its lease was not renewed: what the lock service, or the connection to it, said last.
    pub trouble: Option<Arc<str>>,
}

impl Lost {
    pub(crate) fn new(cause: LossCause) -> Self {
        Self { cause, broken: None, trouble: None }
    }

    /// The cause as a text, with the operator's or the lock service's reason.
    #[must_use]
    pub fn why(&self) -> String {
        match (self.broken.as_deref(), &self.trouble) {
            (Some(BreakNotice { by, reason }), _) => format!("{by} broke it: {reason:?}"),
            (None, Some(trouble)) => format!("{}: {trouble}", self.cause),
            (None, None) => self.cause.to_string(),
        }
    }
}

/// The result of [`Guard::verify`](crate::Guard::verify) when the hold is not confirmed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The hold is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The service did not answer, or refused to for a reason that may pass; the hold remains valid until its deadline.
    #[error("the lock service did not confirm the hold, which can be relied on until its deadline, not longer{}", because(.why))]
    NoAnswer {
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report it.
        why: Option<Arc<str>>,
    },
}

/// The reason why a hold was not changed, or perhaps not: see [`Guard::set_value`](crate::Guard::set_value) and
/// [`Guard::downgrade`](crate::Guard::downgrade). The hold is as valid as before unless it is lost.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The hold is lost.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The backend lacks the ability.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The lock service refused the change: the value is too long, or a permit can't be shared.
    #[error(transparent)]
    Backend(BackendError),
    /// The service did not confirm the change, which may have been made (P12). Asking again does no harm.
    #[error("the lock service did not confirm the change; it may have been made, and asking again does no harm{}", because(.why))]
    NoAnswer {
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report it.
        why: Option<Arc<str>>,
    },
}

/// The conflicting holder and the queue in front of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Busy {
    /// The label of the conflicting holder; `None` if only waiters or closed holds conflict.
    pub holder: Option<String>,
    /// The number of requests already waiting.
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

/// The backend lacks the ability. Reported as an error, never silently replaced by a weaker guarantee (P11).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{backend}` can't {what}: {why}; {instead}")]
pub struct Unsupported {
    /// The backend's URL scheme.
    pub backend: &'static str,
    /// The requested ability.
    pub what: &'static str,
    /// Why the backend lacks it.
    pub why: &'static str,
    /// The recommended alternative.
    pub instead: &'static str,
}

/// A failure of the lock service, or of the network in between.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    /// The problem and, where they apply, the offending value and the remedy.
    pub message: String,
    /// The reaction that the error needs.
    pub kind: BackendErrorKind,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The reaction that a [`BackendError`] needs. Each lock service decides it in one table of its errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The request was illegal: the caller must change a value.
    Refused,
    /// The backend lacks the ability.
    Unsupported,
    /// The service refuses this client's credentials, or its user lacks a permission there.
    Denied,
    /// A full disk, damaged state, file permissions: an operator must act.
    Operator,
    /// The service, or this client there (its quota), has reached a limit: end something, or try again later.
    LimitReached,
    /// The service is unreachable, or does not serve at the moment: a later retry may succeed.
    Unreachable,
}

impl BackendErrorKind {
    /// Whether the same request may succeed later: by itself, or after an operator has acted on the lock service. Otherwise
    /// the request is wrong, and must be changed.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        !matches!(self, Self::Refused | Self::Unsupported)
    }
}

impl BackendError {
    /// A failure without a source error.
    pub(crate) fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, source: None }
    }

    /// A failure with a source error, which `Display` does not repeat.
    pub(crate) fn caused(
        kind: BackendErrorKind,
        message: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self { message: message.into(), kind, source: Some(Arc::new(source)) }
    }
}

impl From<NameError> for BackendError {
    fn from(error: NameError) -> Self {
        Self::new(BackendErrorKind::Refused, error.to_string())
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

/// Why a client couldn't be created.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is invalid.
    #[error(transparent)]
    Url(#[from] crate::url::UrlError),
    /// The backend lacks an ability that the URL or the program requests.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// Why a lock wasn't acquired. Nothing is held, unless the variant is [`AcquireError::Ambiguous`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An option has an illegal value.
    #[error("{option} is {value}, {allowed}")]
    Invalid {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// The request exceeds a limit that applies to every lock service. Nothing was sent.
    #[error(transparent)]
    Limit(#[from] Rejection),
    /// The lock is not free, and the caller did not want to wait.
    #[error("the lock is busy: {0}")]
    Busy(Busy),
    /// The lock did not become free in time: the service said that it is not free.
    #[error("the lock did not become free within {}{}", brief(.waited), because(.why))]
    TimedOut {
        /// The duration of the wait.
        waited: Duration,
        /// The refusal of the latest attempt, if it was refused.
        why: Option<Arc<str>>,
    },
    /// The backend lacks the ability (P11).
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The backend did not answer, or refused every attempt for a reason that passes by itself. Nothing was acquired.
    #[error("{}", unserved(.waited, .why))]
    Unreachable {
        /// The duration of the attempts.
        waited: Duration,
        /// The error of the latest attempt, if the backend reports one.
        why: Option<Arc<str>>,
    },
    /// A request was sent and no answer arrived: the lock may be held by this client for up to its ttl (P12). The
    /// client keeps trying to release it.
    #[error("the lock service gave no certain answer for {}; the lock may be held until its ttl has passed{}", brief(.waited), because(.why))]
    Ambiguous {
        /// The duration of the attempts.
        waited: Duration,
        /// The error of the latest attempt, if the backend reports one.
        why: Option<Arc<str>>,
    },
    /// The client is shutting down.
    #[error("the client is shutting down")]
    ShuttingDown,
}

impl AcquireError {
    /// Whether the same acquire may succeed later, although the lock service did not serve it: see
    /// [`BackendErrorKind::may_pass`].
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Backend(error) => error.kind.may_pass(),
            Self::Unreachable { .. } | Self::Ambiguous { .. } => true,
            _ => false,
        }
    }
}

/// A duration in whole milliseconds: finer digits say nothing about a wait.
fn brief(waited: &Duration) -> String {
    format!("{:?}", Duration::from_millis(waited.as_millis() as u64))
}

fn unserved(waited: &Duration, why: &Option<Arc<str>>) -> String {
    let waited = brief(waited);
    match why {
        Some(why) => format!("nothing was acquired within {waited}: {why}"),
        None => format!("the lock service did not answer for {waited}; nothing was acquired"),
    }
}

/// The reason as a suffix of an error message.
fn because(why: &Option<Arc<str>>) -> String {
    why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}

/// Why a release did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The hold was lost before the release: another client may have held the lock meanwhile.
    #[error("the lock was lost before it was released: {}; check what you wrote with its token", .0.why())]
    AlreadyLost(Lost),
    /// No answer arrived, or a refusal that may pass. The client keeps trying to release; the lock is free no later than
    /// when its ttl has passed (P12).
    #[error("the release was not confirmed; the lock is free at the latest when its ttl has passed{}", because(.why))]
    Ambiguous {
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report it.
        why: Option<Arc<str>>,
    },
}

/// Why [`Lock::run`](crate::Lock::run) did not run its body under the lock from beginning to end.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The body never ran.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost while the body ran, or just after.
    #[error(transparent)]
    Lost(#[from] Lost),
}
