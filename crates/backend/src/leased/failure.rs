//! Why a call to a lock service has no usable answer.

use super::store::Tried;
use crate::call::CallError;
use crate::error::{BackendError, BackendErrorKind};

/// A failed call. `A`: a definite answer of this service that callers handle.
#[derive(Clone, Debug)]
pub enum StoreFailure<A> {
    /// No answer, or an answer after which the call may be repeated.
    Silent(CallError),
    /// The service gave this answer.
    Answered(A),
    /// The service refuses the call.
    Refused(BackendError),
}

impl<A> StoreFailure<A> {
    /// Nothing was sent, or the service did nothing.
    pub const NOT_DONE: Self = Self::Silent(CallError::NOT_SENT);
    /// The service may have executed the call, or may still execute it.
    pub const IN_DOUBT: Self = Self::Silent(CallError::IN_DOUBT);

    /// A temporary refusal with this text: the service did nothing, and a later call may succeed.
    pub fn passing(text: String) -> Self {
        Self::Silent(CallError::refused(BackendError::new(BackendErrorKind::Unreachable, text)))
    }

    /// The failure of a later step: an earlier one was executed.
    pub fn in_doubt(self) -> Self {
        match self {
            Self::Silent(error) => Self::Silent(CallError { sent: true, ..error }),
            failure => failure,
        }
    }

    /// The failure of a step that has changed nothing if it was not answered.
    pub fn not_done(self) -> Self {
        match self {
            Self::Silent(error) => Self::Silent(CallError { sent: false, ..error }),
            failure => failure,
        }
    }

    /// The failure of an attempt. A refusal is the attempt's result; after an unhandled answer it is unknown
    /// what the attempt has done.
    ///
    /// # Errors
    /// There is no answer.
    pub fn of_attempt(self) -> Result<Tried, CallError> {
        match self {
            Self::Silent(error) => Err(error),
            Self::Answered(_) => Err(CallError::IN_DOUBT),
            Self::Refused(error) => Ok(Tried::Refused(error)),
        }
    }

    /// The failure of a renewal or an end, which the caller repeats.
    pub fn of_repeated(self) -> CallError {
        match self {
            Self::Silent(error) => error,
            Self::Answered(_) => CallError::IN_DOUBT,
            Self::Refused(error) => {
                tracing::warn!(%error, "a renewal or an end is tried again");
                CallError::refused(error)
            }
        }
    }
}
