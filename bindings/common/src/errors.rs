//! Errors of calls, and how a language shows them.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    AcquireError, BackendError, BackendErrorKind, ChangeError, ConnectError, HoldError, Lost, ReleaseError,
    Unsupported, VerifyError,
};
use lockkeeper_fence::dynamodb::DynamoDbError;
use lockkeeper_fence::redis::RedisFenceError;
use lockkeeper_fence::{BadResource, MarksError, Refused};

/// An error of a call.
#[derive(Debug)]
pub enum CallError {
    Connect(ConnectError),
    Acquire(AcquireError),
    Backend(BackendError),
    Unsupported(Unsupported),
    Change(ChangeError),
    Lost(Lost),
    Release(ReleaseError),
    Verify(VerifyError),
    /// An argument that the library never gets.
    Option {
        option: &'static str,
        value: String,
        allowed: &'static str,
    },
    /// The hold was released before, or is being released.
    Released,
    /// The member has left its group.
    Left,
    /// An error of a fence, or one that only this language has.
    Other(ErrorShown),
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
    ConnectError => Connect, AcquireError => Acquire, BackendError => Backend, Unsupported => Unsupported,
    ChangeError => Change, Lost => Lost, ReleaseError => Release, VerifyError => Verify, ErrorShown => Other
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

/// An error as a language shows it.
#[derive(Debug)]
pub struct ErrorShown {
    /// The name of its class, the same in all languages.
    pub class: &'static str,
    pub text: String,
    /// The fields that the class has, by their names in Python.
    pub fields: Vec<(&'static str, FieldValue)>,
}

/// The value of a field.
#[derive(Debug)]
pub enum FieldValue {
    Text(Option<String>),
    Number(u64),
    Flag(bool),
    /// In the language's usual unit.
    Time(Duration),
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for FieldValue {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<u64> for FieldValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for FieldValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Duration> for FieldValue {
    fn from(time: Duration) -> Self {
        Self::Time(time)
    }
}

impl ErrorShown {
    /// An error of a class without fields.
    pub fn new(class: &'static str, error: &impl ToString) -> Self {
        Self { class, text: error.to_string(), fields: Vec::new() }
    }

    #[must_use]
    pub fn with(mut self, field: &'static str, value: impl Into<FieldValue>) -> Self {
        self.fields.push((field, value.into()));
        self
    }
}

impl From<CallError> for ErrorShown {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Connect(error) => connect(&error),
            CallError::Acquire(error) => acquire(&error),
            CallError::Backend(error) | CallError::Change(ChangeError::Backend(error)) => backend(&error),
            CallError::Unsupported(error) | CallError::Change(ChangeError::Unsupported(error)) => {
                unsupported(&error)
            }
            CallError::Change(ChangeError::Lost(lost))
            | CallError::Verify(VerifyError::Lost(lost))
            | CallError::Lost(lost)
            | CallError::Release(ReleaseError::AlreadyLost(lost)) => self::lost(&lost),
            CallError::Change(error) => Self::new("NoAnswer", &error),
            CallError::Verify(error) => Self::new("NoAnswer", &error),
            CallError::Release(error) => Self::new("ReleaseNotConfirmed", &error),
            CallError::Option { option, value, allowed } => {
                invalid_option(option, &value, allowed, format!("`{option}` is {value}; {allowed}"))
            }
            CallError::Released => Self::new("Released", &"the lock was released; acquire it again"),
            CallError::Left => Self::new("Released", &"this member has left its group; join it again"),
            CallError::Other(shown) => shown,
        }
    }
}

fn lost(lost: &Lost) -> ErrorShown {
    let broken = lost.broken.as_ref();
    ErrorShown::new("LockLost", lost)
        .with("cause", lost.cause.as_str())
        .with("trouble", lost.trouble.as_deref())
        .with("broken_by", broken.map(|broken| &*broken.by))
        .with("reason", broken.map(|broken| &*broken.reason))
}

fn invalid_option(option: &str, value: &str, allowed: &str, text: String) -> ErrorShown {
    ErrorShown::new("InvalidOption", &text)
        .with("option", option)
        .with("value", value)
        .with("allowed", allowed)
}

fn connect(error: &ConnectError) -> ErrorShown {
    match error {
        ConnectError::Url(error) => ErrorShown::new("InvalidUrl", error),
        ConnectError::Unsupported(error) => unsupported(error),
        ConnectError::Backend(error) => backend(error),
        other => ErrorShown::new("ConnectError", other),
    }
}

fn unsupported(error: &Unsupported) -> ErrorShown {
    ErrorShown::new("Unsupported", error)
        .with("backend", error.backend)
        .with("what", error.what)
        .with("instead", error.instead)
}

fn backend(error: &BackendError) -> ErrorShown {
    let class = match error.kind {
        BackendErrorKind::Unsupported => "Unsupported",
        BackendErrorKind::Denied => "Denied",
        BackendErrorKind::LimitReached => "LimitReached",
        BackendErrorKind::Unreachable => "Unreachable",
        BackendErrorKind::Operator => "NeedsOperator",
        _ => "Refused",
    };
    ErrorShown::new(class, error).with("may_pass", error.kind.may_pass())
}

fn acquire(error: &AcquireError) -> ErrorShown {
    let waiting = |class, waited: &Duration, why: &Option<Arc<str>>| {
        ErrorShown::new(class, error).with("why", why.as_deref()).with("waited", *waited)
    };
    match error {
        AcquireError::Name(_) => ErrorShown::new("InvalidName", error),
        AcquireError::Invalid { option, value, allowed } => {
            invalid_option(option, value, allowed, error.to_string())
        }
        AcquireError::Limit(_) => ErrorShown::new("LimitReached", error),
        AcquireError::Busy(busy) => ErrorShown::new("Busy", error)
            .with("holder", busy.holder.as_deref())
            .with("queued_ahead", busy.queued_ahead),
        AcquireError::Deadlock { .. } => ErrorShown::new("Deadlock", error),
        AcquireError::TimedOut { waited, why } => waiting("AcquireTimeout", waited, why),
        AcquireError::Unreachable { waited, why } => waiting("Unreachable", waited, why),
        AcquireError::Ambiguous { waited, why } => waiting("Ambiguous", waited, why),
        AcquireError::Unsupported(error) => unsupported(error),
        AcquireError::Backend(error) => backend(error),
        _ => ErrorShown::new("AcquireError", error),
    }
}

impl From<Refused> for CallError {
    fn from(error: Refused) -> Self {
        Self::Other(refused(&error))
    }
}

impl From<BadResource> for CallError {
    fn from(error: BadResource) -> Self {
        Self::not_fenced(&error)
    }
}

impl From<RedisFenceError> for CallError {
    fn from(error: RedisFenceError) -> Self {
        Self::Other(match error {
            RedisFenceError::Refused(error) => refused(&error),
            RedisFenceError::Failed { done, .. } => {
                ErrorShown::new("EffectFailed", &error).with("done", done as u64)
            }
            RedisFenceError::Unknown { .. } => ErrorShown::new("NoAnswer", &with_causes(&error)),
            other => ErrorShown::new("NotFenced", &other),
        })
    }
}

impl From<DynamoDbError> for CallError {
    fn from(error: DynamoDbError) -> Self {
        Self::Other(match error {
            DynamoDbError::Refused(error) => refused(&error),
            error @ DynamoDbError::When { .. } => ErrorShown::new("ConditionFailed", &error),
            other => ErrorShown::new("NotFenced", &other),
        })
    }
}

impl From<MarksError> for CallError {
    fn from(error: MarksError) -> Self {
        match error {
            MarksError::Refused(error) => error.into(),
            other => Self::not_fenced(&with_causes(&other)),
        }
    }
}

impl CallError {
    /// A resource without a fence, or a fence that can't be used.
    pub fn not_fenced(error: &impl ToString) -> Self {
        Self::Other(ErrorShown::new("NotFenced", error))
    }
}

fn refused(refused: &Refused) -> ErrorShown {
    match refused {
        Refused::Stale { offered, highest } => {
            ErrorShown::new("Stale", refused).with("token", offered.get()).with("newest", highest.get())
        }
        Refused::Repeated { token } => ErrorShown::new("Repeated", refused).with("token", token.get()),
        _ => ErrorShown::new("NotFenced", refused),
    }
}

/// An error and its causes, in a line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
