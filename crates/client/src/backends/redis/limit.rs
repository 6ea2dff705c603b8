//! Time limits of calls.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout, timeout_at};

/// A time limit.
pub(crate) trait Limit: Sync {
    /// The remaining time.
    fn left(&self) -> Duration;

    /// Awaits `answer` within the limit; `None` after it.
    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send;
}

/// Counted from the start of each wait.
impl Limit for Duration {
    fn left(&self) -> Duration {
        *self
    }

    fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send {
        timeout(*self, answer).map(Result::ok)
    }
}

/// A fixed deadline.
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
