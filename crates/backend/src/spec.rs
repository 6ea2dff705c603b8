//! A session's parameters, and the times derived from them.

use std::time::Duration;

/// A session's parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Spec {
    /// `None` if nothing expires: a connection or a descriptor holds the locks.
    pub ttl: Option<Duration>,
    /// How long a lock stays closed after a holder vanished.
    pub lock_delay: Duration,
    /// How long the lease outlives the end of the stream to the service; zero if it does not matter.
    pub linger: Duration,
    /// Whether the session is renewed even while no request is pending.
    pub renew: bool,
}

/// Assumed limit for the drift between two clocks: 1 %. Only rates of clocks are trusted (P5).
const DRIFT_PERCENT: u32 = 1;

/// Without a ttl: how long a command may remain unanswered before its caller gets an error.
const PATIENCE: Duration = Duration::from_secs(10);

impl Spec {
    /// How long the lease is valid after a keep-alive was sent.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.ttl.map(without_drift)
    }

    /// How long the lease is valid after the end of its stream, if no later keep-alive is acknowledged.
    #[must_use]
    pub fn linger_lease(&self) -> Duration {
        without_drift(self.linger)
    }

    /// The time between two keep-alives: a third of the ttl.
    #[must_use]
    pub fn renew_every(&self) -> Duration {
        self.ttl.unwrap_or(Duration::MAX) / 3
    }

    /// The pause between failed keep-alives: ttl/12, so that several attempts fit before the deadline.
    #[must_use]
    pub fn try_every(&self) -> Duration {
        self.renew_every() / 4
    }

    /// How long a caller waits for a command without an answer.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.ttl.unwrap_or(PATIENCE)
    }
}

fn without_drift(duration: Duration) -> Duration {
    duration - duration * DRIFT_PERCENT / 100
}
