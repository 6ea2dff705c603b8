//! Rust's errors as JSON, from which `lib/errors.cjs` makes its classes.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::url::UrlError;
use lockkeeper::{
    AcquireError, BackendError, BackendErrorKind, ChangeError, ConnectError, HoldError, Lost, ReleaseError,
    Unsupported, VerifyError,
};
use lockkeeper_fence::dynamodb::DynamoDbError;
use lockkeeper_fence::{BadResource, MarksError, RedisFenceError, Refused};
use serde_json::{Value, json};

/// An error for JavaScript: the name of its class, its text, and the fields that the class has.
pub(crate) type ErrorJson = Value;

/// An error of a call.
pub(crate) enum NativeError {
    Connect(ConnectError),
    Acquire(AcquireError),
    Backend(BackendError),
    Unsupported(Unsupported),
    Change(ChangeError),
    Lost(Lost),
    Release(ReleaseError),
    Verify(VerifyError),
    Option {
        option: &'static str,
        value: String,
        allowed: &'static str,
    },
    /// The hold was released before, or is being released.
    Released,
    Refused(Refused),
    Redis(RedisFenceError),
    DynamoDb(DynamoDbError),
    Marks(MarksError),
    Resource(BadResource),
}

macro_rules! from {
    ($($error:ident => $variant:ident),*) => {
        $(impl From<$error> for NativeError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}
from!(
    ConnectError => Connect, AcquireError => Acquire, BackendError => Backend, Unsupported => Unsupported,
    ChangeError => Change, Lost => Lost, ReleaseError => Release, VerifyError => Verify, Refused => Refused,
    RedisFenceError => Redis, DynamoDbError => DynamoDb, MarksError => Marks, BadResource => Resource
);

impl From<HoldError> for NativeError {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Lost(lost) => Self::Lost(lost),
            HoldError::NotAcquired(error) => Self::Acquire(error),
            other => Self::Backend(BackendError::new(BackendErrorKind::Refused, other.to_string())),
        }
    }
}

/// An error that a call throws at once.
pub(crate) fn throw(error: NativeError) -> napi::Error {
    napi::Error::from_reason(ErrorJson::from(error).to_string())
}

fn plain(class: &str, error: &impl ToString) -> ErrorJson {
    json!({ "class": class, "message": error.to_string() })
}

impl From<NativeError> for ErrorJson {
    fn from(error: NativeError) -> Self {
        match error {
            NativeError::Connect(error) => connect(&error),
            NativeError::Acquire(error) => acquire(&error),
            NativeError::Backend(error) | NativeError::Change(ChangeError::Backend(error)) => backend(&error),
            NativeError::Unsupported(error) | NativeError::Change(ChangeError::Unsupported(error)) => {
                unsupported(&error)
            }
            NativeError::Change(ChangeError::Lost(lost))
            | NativeError::Verify(VerifyError::Lost(lost))
            | NativeError::Lost(lost)
            | NativeError::Release(ReleaseError::AlreadyLost(lost)) => self::lost(&lost),
            NativeError::Change(error) => plain("NoAnswer", &error),
            NativeError::Verify(error) => plain("NoAnswer", &error),
            NativeError::Release(error) => plain("ReleaseNotConfirmed", &error),
            NativeError::Option { option, value, allowed } => {
                let text = format!("`{option}` is {value}; {allowed}");
                json!({ "class": "InvalidOption", "message": text, "option": option, "value": value, "limit": allowed })
            }
            NativeError::Released => plain("Released", &"the lock was released; acquire it again"),
            NativeError::Refused(refused)
            | NativeError::Redis(RedisFenceError::Refused(refused))
            | NativeError::DynamoDb(DynamoDbError::Refused(refused))
            | NativeError::Marks(MarksError::Refused(refused)) => self::refused(&refused),
            NativeError::Redis(error @ RedisFenceError::Unknown { .. }) => plain("NoAnswer", &chain(&error)),
            NativeError::Redis(error) => plain("FenceError", &error),
            NativeError::DynamoDb(error) => plain("FenceError", &error),
            NativeError::Marks(error) => plain("FenceError", &chain(&error)),
            NativeError::Resource(error) => plain("FenceError", &error),
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn refused(refused: &Refused) -> ErrorJson {
    let message = refused.to_string();
    match refused {
        Refused::Stale { offered, highest } => {
            json!({ "class": "Stale", "message": message, "token": offered.get(), "newest": highest.get() })
        }
        Refused::Repeated { token } => {
            json!({ "class": "Repeated", "message": message, "token": token.get() })
        }
        _ => plain("FenceError", &message),
    }
}

fn lost(lost: &Lost) -> ErrorJson {
    json!({
        "class": "LockLost",
        "message": lost.to_string(),
        "loss": lost.cause.as_str(),
        "trouble": lost.trouble.as_deref(),
        "brokenBy": lost.broken.as_ref().map(|broken| &broken.by),
        "reason": lost.broken.as_ref().map(|broken| &broken.reason),
    })
}

fn connect(error: &ConnectError) -> ErrorJson {
    match error {
        ConnectError::Url(error) => url(error),
        ConnectError::Unsupported(error) => unsupported(error),
        ConnectError::Backend(error) => backend(error),
        other => plain("ConnectError", other),
    }
}

fn url(error: &UrlError) -> ErrorJson {
    plain("InvalidUrl", error)
}

fn unsupported(error: &Unsupported) -> ErrorJson {
    json!({
        "class": "Unsupported",
        "message": error.to_string(),
        "backend": error.backend,
        "what": error.what,
        "remedy": error.instead,
    })
}

fn backend(error: &BackendError) -> ErrorJson {
    let class = match error.kind {
        BackendErrorKind::Unsupported => "Unsupported",
        BackendErrorKind::Denied => "Denied",
        BackendErrorKind::LimitReached => "LimitReached",
        BackendErrorKind::Unreachable => "Unreachable",
        BackendErrorKind::Operator => "NeedsOperator",
        _ => "Refused",
    };
    json!({ "class": class, "message": error.to_string(), "mayPass": error.kind.may_pass() })
}

fn acquire(error: &AcquireError) -> ErrorJson {
    let text = error.to_string();
    let waiting = |class: &str, waited: &Duration, why: &Option<Arc<str>>| {
        let waited = waited.as_secs_f64() * 1e3;
        json!({ "class": class, "message": text, "waited": waited, "why": why.as_deref() })
    };
    match error {
        AcquireError::Name(_) => plain("InvalidName", error),
        AcquireError::Invalid { option, value, allowed } => {
            json!({ "class": "InvalidOption", "message": text, "option": option, "value": value, "limit": allowed })
        }
        AcquireError::Limit(_) => plain("LimitReached", error),
        AcquireError::Busy(busy) => json!({
            "class": "Busy",
            "message": text,
            "holder": busy.holder.as_deref(),
            "queuedAhead": busy.queued_ahead,
        }),
        AcquireError::TimedOut { waited, why } => waiting("AcquireTimeout", waited, why),
        AcquireError::Unreachable { waited, why } => waiting("Unreachable", waited, why),
        AcquireError::Ambiguous { waited, why } => waiting("Ambiguous", waited, why),
        AcquireError::Unsupported(error) => unsupported(error),
        AcquireError::Backend(error) => backend(error),
        _ => plain("AcquireError", error),
    }
}
