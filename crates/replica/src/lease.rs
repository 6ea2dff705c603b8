//! The leader's lease clock: the time during which this node was running.

use std::time::Duration;

/// Boot time without stalls: a turn advances the clock by a bounded amount, however long ago the previous
/// turn was. So time during which the leader did not run counts against no session (P9).
#[derive(Clone, Debug)]
pub(crate) struct LeaseClock {
    last_turn: Duration,
    reading: Duration,
}

impl LeaseClock {
    pub(crate) fn new(now: Duration) -> Self {
        Self { last_turn: now, reading: Duration::ZERO }
    }

    /// Advances the clock at the beginning of a turn.
    pub(crate) fn turn(&mut self, now: Duration, step_max: Duration) {
        self.reading += now.saturating_sub(self.last_turn).min(step_max);
        self.last_turn = self.last_turn.max(now);
    }

    /// The reading that a turn beginning at `now` would get; does not advance the clock.
    pub(crate) fn peek(&self, now: Duration, step_max: Duration) -> Duration {
        self.reading + now.saturating_sub(self.last_turn).min(step_max)
    }

    pub(crate) fn now(&self) -> Duration {
        self.reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(80);

    #[test]
    fn stall_advances_by_one_step() {
        let mut clock = LeaseClock::new(Duration::from_secs(5));
        clock.turn(Duration::from_millis(5_050), STEP);
        assert_eq!(clock.now(), Duration::from_millis(50));
        clock.turn(Duration::from_secs(500), STEP);
        assert_eq!(clock.now(), Duration::from_millis(130));
    }

    #[test]
    fn backward_clock_does_not_advance() {
        let mut clock = LeaseClock::new(Duration::from_secs(5));
        clock.turn(Duration::from_secs(4), STEP);
        assert_eq!(clock.now(), Duration::ZERO);
        clock.turn(Duration::from_millis(5_010), STEP);
        assert_eq!(clock.now(), Duration::from_millis(10));
    }
}
