//! What a session is opened with, and the times that follow from it.

use std::time::Duration;

/// What a session is opened with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(test, derive(Hash))]
pub struct Spec {
    /// `None` where nothing expires: a connection or a descriptor holds the locks.
    pub ttl: Option<Duration>,
    pub lock_delay: Duration,
    pub linger: Duration,
    /// Whether the session is kept alive.
    pub renew: bool,
}

/// Only a clock's rate is trusted, to 1 % (P5).
pub(super) const DRIFT_PERCENT: u32 = 1;
/// The first pause before a command is sent again.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(20);
/// The longest one.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long to pause after so many failed tries.
pub(super) fn pause(tries: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << tries.min(16)).min(RETRY_MAX)
}

/// Without a ttl: for how long an unanswered command is waited for before its caller is told so.
const PATIENCE: Duration = Duration::from_secs(10);

impl Spec {
    /// How long the session may be believed in after a keep-alive was sent.
    pub(super) fn belief(&self) -> Option<Duration> {
        self.ttl.map(|ttl| ttl - ttl * DRIFT_PERCENT / 100)
    }

    pub(super) fn renew_every(&self) -> Duration {
        self.ttl.unwrap_or(Duration::MAX) / 3
    }

    /// The pause between tries that fail: ttl/12 (DESIGN section 6).
    pub(super) fn try_every(&self) -> Duration {
        self.renew_every() / 4
    }

    /// How long a caller waits for the fate of a command whose answer does not come.
    pub(super) fn patience(&self) -> Duration {
        self.ttl.unwrap_or(PATIENCE)
    }
}
