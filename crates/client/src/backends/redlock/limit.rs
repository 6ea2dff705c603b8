//! One time limit for all calls of a round, which are sent at the same moment: a timer each would cost more than the
//! call.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The driver of the calls polls them once more when their time is over ([`Self::watch_over`]).
pub(super) struct RoundLimit {
    length: Duration,
    deadline: Instant,
    has_passed: AtomicBool,
}

impl RoundLimit {
    /// A limit that starts now.
    pub(super) fn new(length: Duration) -> Self {
        Self { length, deadline: Instant::now() + length, has_passed: AtomicBool::new(false) }
    }

    /// The full length, from its start.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn has_passed(&self) -> bool {
        self.has_passed.load(Ordering::Relaxed)
    }

    /// Polls `work`, and once more when its time is over.
    pub(super) async fn watch_over<F: Future>(&self, work: F) -> F::Output {
        let (mut work, mut timer) = (pin!(work), pin!(sleep_until(self.deadline)));
        std::future::poll_fn(|context| {
            loop {
                if let Poll::Ready(output) = work.as_mut().poll(context) {
                    return Poll::Ready(output);
                }
                if self.has_passed() || timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.has_passed.store(true, Ordering::Relaxed);
            }
        })
        .await
    }
}

impl RoundLimit {
    /// The remaining time.
    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Awaits `answer` within the limit; `None` after it.
    pub(super) fn within<F: Future + Send>(&self, answer: F) -> impl Future<Output = Option<F::Output>> + Send {
        Within { answer, limit: self }
    }
}

pin_project_lite::pin_project! {
    /// An answer, while its round has time.
    struct Within<'a, F> {
        #[pin]
        answer: F,
        limit: &'a RoundLimit,
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.answer.poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if this.limit.has_passed() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
