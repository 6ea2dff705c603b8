//! Why a call to a lock service has no usable answer.

use crate::backend::CallError;
use crate::error::BackendError;

/// A failed call. `A`: an answer of this service that the caller may expect.
#[derive(Clone, Debug)]
pub(crate) enum StoreFailure<A> {
    /// No answer, or one after which the call may be repeated.
    Silent(CallError),
    Answered(A),
    /// The service refuses it.
    Refused(BackendError),
}

impl<A> StoreFailure<A> {
    /// Nothing was sent, or the service did nothing.
    pub(crate) const NOT_DONE: Self = Self::Silent(CallError { sent: false });
    /// The service may have executed it, or may still execute it.
    pub(crate) const IN_DOUBT: Self = Self::Silent(CallError { sent: true });

    /// The failure of a renewal or an end, which the caller repeats.
    pub(crate) fn of_repeated(self) -> CallError {
        match self {
            Self::Silent(error) => error,
            Self::Answered(_) => CallError { sent: true },
            Self::Refused(error) => {
                tracing::warn!(%error, "a renewal or an end is tried again");
                CallError { sent: false }
            }
        }
    }
}
