//! Rust's errors as exceptions. Their classes, and what their fields mean, are in `lockkeeper/_errors.py`.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::url::UrlError;
use lockkeeper::{
    AcquireError, BackendError, BackendErrorKind, ChangeError, ConnectError, HoldError, Lost, ReleaseError,
    Unsupported, VerifyError,
};
use lockkeeper_fence::dynamodb::DynamoDbError;
use lockkeeper_fence::redis::RedisFenceError;
use lockkeeper_fence::{MarksError, Refused};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// An error of a call, until the GIL is held.
pub(crate) enum CallError {
    Connect(ConnectError),
    Acquire(AcquireError),
    Backend(BackendError),
    Change(ChangeError),
    Lost(Lost),
    Release(ReleaseError),
    Verify(VerifyError),
    /// The hold was released before, or is being released.
    Released,
}

macro_rules! from {
    ($($error:ident => $variant:ident),*) => {
        $(impl From<$error> for CallError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}
from!(
    ConnectError => Connect, AcquireError => Acquire, BackendError => Backend, ChangeError => Change, Lost => Lost,
    ReleaseError => Release, VerifyError => Verify
);

impl From<HoldError> for CallError {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Lost(lost) => Self::Lost(lost),
            HoldError::NotAcquired(error) => Self::Acquire(error),
            other => Self::Backend(BackendError::new(BackendErrorKind::Refused, other.to_string())),
        }
    }
}

/// Sets the fields of an exception.
type Fields<'a> = &'a dyn Fn(&Bound<'_, PyDict>) -> PyResult<()>;

/// An exception of `lockkeeper/_errors.py`.
fn exception(class: &str, text: &str, fields: Fields<'_>) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Python::attach(|py| {
        let made = || {
            let module = MODULE.get_or_try_init(py, || py.import("lockkeeper._errors").map(Bound::unbind))?;
            let values = PyDict::new(py);
            fields(&values)?;
            module.bind(py).getattr(class)?.call((text,), Some(&values))
        };
        made().map_or_else(|error| error, PyErr::from_value)
    })
}

fn none(_: &Bound<'_, PyDict>) -> PyResult<()> {
    Ok(())
}

impl From<CallError> for PyErr {
    fn from(failure: CallError) -> Self {
        match failure {
            CallError::Connect(error) => connect(&error),
            CallError::Acquire(error) => acquire(&error),
            CallError::Backend(error) => backend(&error),
            CallError::Change(ChangeError::Lost(lost)) | CallError::Verify(VerifyError::Lost(lost)) => {
                self::lost(&lost)
            }
            CallError::Change(ChangeError::Unsupported(error)) => unsupported(&error),
            CallError::Change(ChangeError::Backend(error)) => backend(&error),
            CallError::Change(error) => exception("NoAnswer", &error.to_string(), &none),
            CallError::Verify(error) => exception("NoAnswer", &error.to_string(), &none),
            CallError::Lost(lost) => self::lost(&lost),
            CallError::Release(ReleaseError::AlreadyLost(lost)) => self::lost(&lost),
            CallError::Release(error) => exception("ReleaseNotConfirmed", &error.to_string(), &none),
            CallError::Released => exception("Released", "the lock was released; acquire it again", &none),
        }
    }
}

pub(crate) fn operator(text: &str) -> PyErr {
    backend(&BackendError::new(BackendErrorKind::Operator, text))
}

pub(crate) fn used_after_fork(process: u32) -> PyErr {
    let text = format!(
        "this was made in process {process}, of which this one is a fork: a fork has no connection and renews \
         nothing; call `lockkeeper.connect` after the fork"
    );
    exception("UsedAfterFork", &text, &none)
}

pub(crate) fn lost(lost: &Lost) -> PyErr {
    exception("LockLost", &lost.to_string(), &|fields| {
        fields.set_item("cause", lost.cause.as_str())?;
        fields.set_item("trouble", lost.trouble.as_deref())?;
        fields.set_item("broken_by", lost.broken.as_ref().map(|broken| &broken.by))?;
        fields.set_item("reason", lost.broken.as_ref().map(|broken| &broken.reason))
    })
}

pub(crate) fn invalid_option(option: &str, value: &str, allowed: &str) -> PyErr {
    acquire_invalid(option, value, allowed, &format!("`{option}` is {value}; {allowed}"))
}

fn acquire_invalid(option: &str, value: &str, allowed: &str, text: &str) -> PyErr {
    exception("InvalidOption", text, &|fields| {
        fields.set_item("option", option)?;
        fields.set_item("value", value)?;
        fields.set_item("allowed", allowed)
    })
}

/// A refusal of a fence.
pub(crate) fn refused(refused: &Refused) -> PyErr {
    let text = refused.to_string();
    match refused {
        Refused::Stale { offered, highest } => exception("Stale", &text, &|fields| {
            fields.set_item("token", offered.get())?;
            fields.set_item("newest", highest.get())
        }),
        Refused::Repeated { token } => {
            exception("Repeated", &text, &|fields| fields.set_item("token", token.get()))
        }
        _ => not_fenced(&text),
    }
}

pub(crate) fn not_fenced(text: &str) -> PyErr {
    exception("NotFenced", text, &none)
}

pub(crate) fn redis_fence(error: &RedisFenceError) -> PyErr {
    let text = error.to_string();
    match error {
        RedisFenceError::Refused(refused) => self::refused(refused),
        RedisFenceError::Failed { done, .. } => {
            exception("EffectFailed", &text, &|fields| fields.set_item("done", done))
        }
        RedisFenceError::Unknown { .. } => exception("NoAnswer", &text, &none),
        _ => not_fenced(&text),
    }
}

pub(crate) fn dynamodb_fence(error: &DynamoDbError) -> PyErr {
    match error {
        DynamoDbError::Refused(refused) => self::refused(refused),
        DynamoDbError::When { .. } => exception("ConditionFailed", &error.to_string(), &none),
        _ => not_fenced(&error.to_string()),
    }
}

/// The file of a fence's marks.
pub(crate) fn marks(error: &MarksError) -> PyErr {
    not_fenced(&error.to_string())
}

fn connect(error: &ConnectError) -> PyErr {
    match error {
        ConnectError::Url(error) => url(error),
        ConnectError::Unsupported(error) => unsupported(error),
        ConnectError::Backend(error) => backend(error),
        other => exception("ConnectError", &other.to_string(), &none),
    }
}

pub(crate) fn url(error: &UrlError) -> PyErr {
    exception("InvalidUrl", &error.to_string(), &none)
}

pub(crate) fn unsupported(error: &Unsupported) -> PyErr {
    exception("Unsupported", &error.to_string(), &|fields| {
        fields.set_item("backend", error.backend)?;
        fields.set_item("what", error.what)?;
        fields.set_item("instead", error.instead)
    })
}

fn backend(error: &BackendError) -> PyErr {
    let class = match error.kind {
        BackendErrorKind::Unsupported => "Unsupported",
        BackendErrorKind::Denied => "Denied",
        BackendErrorKind::LimitReached => "LimitReached",
        BackendErrorKind::Unreachable => "Unreachable",
        BackendErrorKind::Operator => "NeedsOperator",
        _ => "Refused",
    };
    exception(class, &error.to_string(), &|fields| fields.set_item("may_pass", error.kind.may_pass()))
}

fn acquire(error: &AcquireError) -> PyErr {
    let text = error.to_string();
    let waiting = |class: &str, waited: &Duration, why: &Option<Arc<str>>| {
        exception(class, &text, &|fields| {
            fields.set_item("waited", waited.as_secs_f64())?;
            fields.set_item("why", why.as_deref())
        })
    };
    match error {
        AcquireError::Name(_) => exception("InvalidName", &text, &none),
        AcquireError::Invalid { option, value, allowed } => acquire_invalid(option, value, allowed, &text),
        AcquireError::Limit(_) => exception("LimitReached", &text, &none),
        AcquireError::Busy(busy) => exception("Busy", &text, &|fields| {
            fields.set_item("holder", busy.holder.as_deref())?;
            fields.set_item("queued_ahead", busy.queued_ahead)
        }),
        AcquireError::TimedOut { waited, why } => waiting("AcquireTimeout", waited, why),
        AcquireError::Unreachable { waited, why } => waiting("Unreachable", waited, why),
        AcquireError::Ambiguous { waited, why } => waiting("Ambiguous", waited, why),
        AcquireError::Unsupported(error) => unsupported(error),
        AcquireError::Backend(error) => backend(error),
        _ => exception("AcquireError", &text, &none),
    }
}
