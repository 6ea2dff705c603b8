//! The clocks of several hosts, compared by bounds.
//!
//! All moments of a history are placed on the clock of its first writer. A moment of another clock becomes a
//! pair: the earliest and the latest moment that it may have been. Of a clock without any bounds nothing is
//! known, and no moment of it is before or after another one.

use std::collections::HashMap;

use lockkeeper_history::{ClockEvent, HistoryEvent, HistoryLine};

/// Nanoseconds on the reference clock. `Time::MIN` and `Time::MAX`: nothing is known.
pub(crate) type Time = i64;

/// How far a clock is ahead of the reference clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ahead {
    min: i64,
    max: i64,
}

impl Ahead {
    const NONE: Self = Self { min: 0, max: 0 };

    /// The middle of the bounds.
    pub(crate) const fn middle(self) -> i64 {
        self.min.midpoint(self.max)
    }

    /// The earliest moment at which this clock may have shown `at`.
    pub(crate) fn earliest(of: Option<Self>, at: u64) -> Time {
        of.map_or(Time::MIN, |ahead| signed(at).saturating_sub(ahead.max))
    }

    /// The latest one.
    pub(crate) fn latest(of: Option<Self>, at: u64) -> Time {
        of.map_or(Time::MAX, |ahead| signed(at).saturating_sub(ahead.min))
    }
}

fn signed(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

/// All clocks of a history.
#[derive(Default)]
pub(crate) struct Clocks {
    known: HashMap<String, Ahead>,
    /// The clock of each writer.
    of_writers: HashMap<String, String>,
}

impl Clocks {
    /// Takes what a line says of clocks.
    pub(crate) fn hear(&mut self, line: &HistoryLine) {
        match &line.event {
            HistoryEvent::Writer(event) => {
                self.used(&event.clock);
                self.of_writers.insert(line.by.clone(), event.clock.clone());
            }
            HistoryEvent::Clock(event) => {
                if let Some(own) = self.of_writers.get(&line.by).cloned() {
                    self.measured(&own, event);
                }
            }
            _ => {}
        }
    }

    /// The clock of a writer.
    pub(crate) fn of_writer(&self, by: &str) -> Option<&String> {
        self.of_writers.get(by)
    }

    /// How far the clock of a writer is ahead, if that is known.
    pub(crate) fn ahead_of_writer(&self, by: &str) -> Option<Ahead> {
        self.ahead(self.of_writer(by)?)
    }

    /// A writer uses this clock. The first one becomes the reference.
    fn used(&mut self, clock: &str) {
        if self.is_empty() {
            self.known.insert(clock.to_owned(), Ahead::NONE);
        }
    }

    /// Whether there is no reference yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn ahead(&self, clock: &str) -> Option<Ahead> {
        self.known.get(clock).copied()
    }

    /// A writer with the clock `own` has measured another one. What it says replaces what was known of a
    /// clock that is not the reference.
    fn measured(&mut self, own: &str, event: &ClockEvent) {
        let (min, max) = (event.ahead_min, event.ahead_max);
        if min > max {
            return;
        }
        let is_reference = |clock: &str| self.known.get(clock) == Some(&Ahead::NONE);
        match (self.ahead(own), self.ahead(&event.other)) {
            (Some(own), _) if !is_reference(&event.other) => {
                let ahead = Ahead { min: own.min.saturating_add(min), max: own.max.saturating_add(max) };
                self.known.insert(event.other.clone(), ahead);
            }
            (None, Some(other)) => {
                let ahead = Ahead { min: other.min.saturating_sub(max), max: other.max.saturating_sub(min) };
                self.known.insert(own.to_owned(), ahead);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(other: &str, ahead_min: i64, ahead_max: i64) -> ClockEvent {
        ClockEvent { other: other.to_owned(), ahead_min, ahead_max }
    }

    #[test]
    fn moments_of_another_clock_are_bounds() {
        let mut clocks = Clocks::default();
        clocks.used("a");
        clocks.used("b");
        let span = |clocks: &Clocks, clock: &str| {
            let ahead = clocks.ahead(clock);
            (Ahead::earliest(ahead, 1000), Ahead::latest(ahead, 1000))
        };
        assert_eq!((span(&clocks, "a"), span(&clocks, "b")), ((1000, 1000), (Time::MIN, Time::MAX)));
        clocks.measured("a", &clock("b", -10, 20));
        assert_eq!(span(&clocks, "b"), (980, 1010));
        clocks.measured("b", &clock("c", 100, 100));
        assert_eq!(span(&clocks, "c"), (880, 910));
        // By a clock that was not known, about one that is.
        clocks.measured("d", &clock("a", 5, 7));
        assert_eq!(span(&clocks, "d"), (1005, 1007));
        // The reference stays what it is.
        clocks.measured("a", &clock("a", 5, 7));
        clocks.measured("d", &clock("a", 50, 70));
        assert_eq!(span(&clocks, "a"), (1000, 1000));
    }
}
