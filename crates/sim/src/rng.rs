//! The random numbers of a run. They depend only on the run's seed.

use crate::clock::Nanos;

/// A seeded generator; its output depends only on the seed and on the calls made before.
#[derive(Debug)]
pub(crate) struct Rng(fastrand::Rng);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A random number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.u64(..n) }
    }

    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high.max(low))
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element; `of` must not be empty.
    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// A duration between two limits, with each power of two about equally likely: short durations find
    /// races, long ones reach deadlines.
    pub(crate) fn spread(&mut self, low: Nanos, high: Nanos) -> Nanos {
        let low = low.max(1);
        let octaves = u64::from((high / low).max(1).ilog2());
        let octave = self.below(octaves + 1);
        self.within(low << octave, low << (octave + 1)).min(high.max(low))
    }

    pub(crate) fn secret(&mut self) -> [u8; 16] {
        let mut secret = [0; 16];
        self.0.fill(&mut secret);
        secret
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0.u64(..)
    }
}
