//! Errors of the public API, one type per boundary. The variants are divided by the reaction that they need.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BreakNotice, Busy, LossCause, Unsupported};
use lockkeeper_core::{NameError, Rejection};

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
            (Some(BreakNotice { by, reason, .. }), _) => format!("{by} broke it: {reason:?}"),
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
    /// The service did not answer, or refused to for a reason that may pass; the hold remains valid until its
    /// deadline.
    #[error("the lock service did not confirm the hold, which can be relied on until its deadline, not longer{}", because(.why))]
    NoAnswer {
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report
        /// it.
        why: Option<Arc<str>>,
    },
}

/// Why a change of a hold failed or was not confirmed: see [`Guard::set_value`](crate::Guard::set_value) and
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
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report
        /// it.
        why: Option<Arc<str>>,
    },
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
        /// The refusal of the latest attempt, or what keeps the client from its lock service at present.
        why: Option<Arc<str>>,
    },
    /// The wait would never end: the lock's holder waits, directly or through others, for a hold that the
    /// caller keeps ([`Lock::holding`](crate::Lock::holding)). The text names the locks, who holds them, and
    /// who waits for them. Release that hold and acquire both again, in the order that everyone uses, or both
    /// at once ([`Locks::all`](crate::Locks::all)); a section under a lock that is held already can use
    /// [`Guard::reenter`](crate::Guard::reenter).
    #[error("{cycle}")]
    Deadlock {
        /// The cycle of waits.
        cycle: String,
    },
    /// The backend lacks the ability (P11).
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The backend did not answer, or refused every attempt for a reason that passes by itself. Nothing was
    /// acquired.
    #[error("{}", unserved(.waited, .why))]
    Unreachable {
        /// The duration of the attempts.
        waited: Duration,
        /// The error of the latest attempt, if the backend reports one.
        why: Option<Arc<str>>,
    },
    /// A request was sent and no answer arrived: the lock may be held by this client for up to its ttl (P12).
    /// The client keeps trying to release it.
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
    pub(crate) fn invalid(option: &'static str, value: String, allowed: String) -> Self {
        Self::Invalid { option, value, allowed }
    }

    /// Whether the same acquire may succeed later, although the lock service did not serve it: see
    /// [`BackendErrorKind::may_pass`](lockkeeper_backend::BackendErrorKind::may_pass).
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
    /// No answer arrived, or a refusal that may pass. The client keeps trying to release; the lock is free no
    /// later than when its ttl has passed (P12).
    #[error("the release was not confirmed; the lock is free at the latest when its ttl has passed{}", because(.why))]
    Ambiguous {
        /// What the lock service, or the connection to it, said last; `None` if the backend does not report
        /// it.
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
