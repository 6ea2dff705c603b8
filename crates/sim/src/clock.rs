//! Virtual time: true time, which only the simulation reads, and the clocks of nodes and clients.

use std::time::Duration;

use lockkeeper::BootInstant;

/// True time, in nanoseconds since the start of the run.
pub(crate) type Nanos = u64;

pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000 * MS;

/// The largest deviation of a clock's rate, in parts per million. Two clocks then differ by 0.9 % at most,
/// which is less than the margin of 1 % that P5 assumes.
pub(crate) const DRIFT_PPM_MAX: i64 = 4_500;

const MILLION: i128 = 1_000_000;

/// A clock with its own origin and rate. The rate may change; the reading never jumps.
#[derive(Clone, Debug)]
pub(crate) struct DriftingClock {
    true_base: Nanos,
    local_base: Nanos,
    ppm: i64,
}

impl DriftingClock {
    pub(crate) fn new(origin: Nanos, ppm: i64) -> Self {
        Self { true_base: 0, local_base: origin, ppm }
    }

    /// The clock's reading at a moment of true time.
    pub(crate) fn at(&self, now: Nanos) -> Nanos {
        let passed = i128::from(now.saturating_sub(self.true_base));
        self.local_base + (passed * (MILLION + i128::from(self.ppm)) / MILLION) as Nanos
    }

    pub(crate) fn duration(&self, now: Nanos) -> Duration {
        Duration::from_nanos(self.at(now))
    }

    pub(crate) fn instant(&self, now: Nanos) -> BootInstant {
        BootInstant::from_nanos(self.at(now))
    }

    /// The first moment of true time at which the clock reads at least `local`.
    pub(crate) fn when(&self, local: Nanos) -> Nanos {
        let left = i128::from(local.saturating_sub(self.local_base));
        let rate = MILLION + i128::from(self.ppm);
        let passed = (left * MILLION + rate - 1) / rate;
        self.true_base.saturating_add(Nanos::try_from(passed).unwrap_or(Nanos::MAX))
    }

    pub(crate) fn drift(&mut self, now: Nanos, ppm: i64) {
        self.local_base = self.at(now);
        self.true_base = now;
        self.ppm = ppm;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_the_inverse_of_at_at_every_rate() {
        for ppm in [-DRIFT_PPM_MAX, -1, 0, 7, DRIFT_PPM_MAX] {
            let mut clock = DriftingClock::new(12_345, ppm);
            clock.drift(77, ppm / 2);
            for local in [12_500, 1_000_003, 5_000_000_000] {
                let moment = clock.when(local);
                assert!(clock.at(moment) >= local && clock.at(moment - 1) < local, "{ppm} {local}");
            }
        }
    }
}
