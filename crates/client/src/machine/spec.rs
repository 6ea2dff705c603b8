//! A session's parameters, and the times derived from them.

use std::time::Duration;

/// A session's parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Spec {
    /// `None` if nothing expires: a connection or a descriptor holds the locks.
    pub ttl: Option<Duration>,
    pub lock_delay: Duration,
    pub linger: Duration,
    /// Whether the session is renewed even while no request is pending.
    pub renew: bool,
}

/// Assumed limit for the drift between two clocks: 1 %. Only rates of clocks are trusted (P5).
pub(super) const DRIFT_PERCENT: u32 = 1;
/// The first pause before a retry.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest pause before a retry.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(1);
/// The pause after `tries` failed attempts.
pub(super) fn pause(tries: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << tries.min(16)).min(RETRY_MAX)
}

/// Without a ttl: how long a command may remain unanswered before its caller gets an error.
const PATIENCE: Duration = Duration::from_secs(10);

impl Spec {
    /// How long the lease is valid after a keep-alive was sent.
    pub(super) fn lease(&self) -> Option<Duration> {
        self.ttl.map(|ttl| ttl - ttl * DRIFT_PERCENT / 100)
    }

    pub(super) fn renew_every(&self) -> Duration {
        self.ttl.unwrap_or(Duration::MAX) / 3
    }

    /// The pause between failed keep-alives: ttl/12, so that several attempts fit before the deadline.
    pub(super) fn try_every(&self) -> Duration {
        self.renew_every() / 4
    }

    /// How long a caller waits for a command without an answer.
    pub(super) fn patience(&self) -> Duration {
        self.ttl.unwrap_or(PATIENCE)
    }
}
