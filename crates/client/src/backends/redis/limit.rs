//! How long a call may take, and who watches over it.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout, timeout_at};

/// A time limit.
pub(crate) trait Limit: Sync {
    /// What is left of it.
    fn left(&self) -> Duration;

    /// Waits for an answer for as long; `None` if none came.
    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send;
}

/// From whenever somebody waits.
impl Limit for Duration {
    fn left(&self) -> Duration {
        *self
    }

    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send {
        timeout(*self, answer).map(Result::ok)
    }
}

/// Until then.
impl Limit for Instant {
    fn left(&self) -> Duration {
        self.saturating_duration_since(Self::now())
    }

    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send {
        timeout_at(*self, answer).map(Result::ok)
    }
}

impl<L: Limit> Limit for &L {
    fn left(&self) -> Duration {
        (**self).left()
    }

    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send {
        (**self).within(answer)
    }
}
