//! Errors of a lock service, and why a hold ended. They are divided by the reaction that they need.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{NameError, Rejection};

/// Why a hold is no longer valid. Stop using its token and acquire again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// Its deadline passed before a keep-alive was acknowledged (P5).
    Expired,
    /// The lock service ended the session.
    SessionEnded,
    /// The lock service has no record of the hold: it was deleted by hand, or lost in a fail-over or a
    /// restart.
    Forgotten,
    /// An operator broke it.
    Broken,
    /// It was held for longer than `max_hold`.
    MaxHold,
    /// The connection that carried the hold is gone, or the lock directory or a file of it.
    Disconnected,
    /// The client's shutdown released it.
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
    /// That `by` broke the hold.
    #[must_use]
    pub fn new(by: &str, reason: &str) -> Self {
        Self { by: by.to_owned(), reason: reason.to_owned() }
    }
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
    /// The wait would never end: it would wait for a hold that its own caller keeps.
    Deadlock,
}

impl BackendErrorKind {
    /// Whether the same request may succeed later: by itself, or after an operator has acted on the lock
    /// service. Otherwise the request is wrong, and must be changed.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        !matches!(self, Self::Refused | Self::Unsupported | Self::Deadlock)
    }
}

impl BackendError {
    /// A failure without a source error.
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, source: None }
    }

    /// A failure with a source error, which `Display` does not repeat.
    pub fn caused(
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

impl From<Rejection> for BackendError {
    fn from(rejection: Rejection) -> Self {
        let kind = match rejection {
            Rejection::Deadlock { .. } => BackendErrorKind::Deadlock,
            _ => BackendErrorKind::Refused,
        };
        Self::new(kind, rejection.to_string())
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
