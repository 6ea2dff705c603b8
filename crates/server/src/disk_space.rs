//! How much space the disk of the data directory has, and when it will be full.
//!
//! Responsible for: warnings come from a stated bound, early enough to act. The disk worker measures; others
//! read the last measurement, so a disk that does not answer delays none of them.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper_wire::v1::DiskState;
use parking_lot::Mutex;

use crate::disk;

/// The disk is low when less than this many segments of the log are free.
const LOW_SEGMENTS: u64 = 8;
/// The disk is low when it will be full within this time.
const LOW_TIME: Duration = Duration::from_secs(60 * 60);
/// Free space is compared between the two halves of this many periods of [`PERIOD`]: ten minutes.
const PERIODS: usize = 20;
const PERIOD: Duration = Duration::from_secs(30);
/// After a measurement of this age, the disk counts as one that does not answer.
const AGE_MAX: Duration = Duration::from_secs(15);
/// After a line in the log, a better state is logged after this time at the earliest.
const BETTER_AFTER: Duration = Duration::from_secs(60);

/// A measurement, and the judgement of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DiskReading {
    /// The bytes of the data directory's files.
    pub(crate) used: u64,
    /// The bytes that are free on its file system for this process.
    pub(crate) free: u64,
    pub(crate) state: DiskState,
    /// When the disk will be full, if its free space goes on to fall as in the last ten minutes.
    pub(crate) full_in: Option<Duration>,
}

/// The space of the data directory's disk.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    /// The data directory, for messages.
    directory: String,
    segment_bytes: u64,
    measured: Mutex<Measured>,
}

#[derive(Default, Debug)]
struct Measured {
    last: Option<(Instant, DiskReading)>,
    highs: Highs,
    /// Whether the last attempt to make a segment has failed on a full disk.
    lacks_segment: bool,
    warned: Option<(Instant, DiskState)>,
}

/// The most space that was free in each of the last periods. A log grows until a snapshot lets its older part
/// be removed; the highest values of two spans of time show whether it grows beyond that.
#[derive(Default, Debug)]
struct Highs {
    /// The start of the present period.
    since: Option<Instant>,
    free: VecDeque<u64>,
}

impl Highs {
    fn add(&mut self, now: Instant, free: u64) {
        match self.since {
            Some(since) if now.saturating_duration_since(since) < PERIOD => {
                if let Some(last) = self.free.back_mut() {
                    *last = free.max(*last);
                }
            }
            _ => {
                self.since = Some(now);
                self.free.push_back(free);
                if self.free.len() > PERIODS {
                    self.free.pop_front();
                }
            }
        }
    }

    /// When `free` bytes are used up. `None`: the free space does not fall, or is not known for long enough.
    fn full_in(&self, free: u64) -> Option<Duration> {
        if self.free.len() < PERIODS {
            return None;
        }
        let high = |periods: &mut dyn Iterator<Item = &u64>| periods.copied().max().unwrap_or(0);
        let older = high(&mut self.free.iter().take(PERIODS / 2));
        let newer = high(&mut self.free.iter().skip(PERIODS / 2));
        let fall = older.checked_sub(newer).filter(|fall| *fall > 0)?;
        let half = PERIOD * (PERIODS / 2) as u32;
        Duration::try_from_secs_f64(half.as_secs_f64() * free as f64 / fall as f64).ok()
    }
}

impl DiskSpace {
    pub(crate) fn new(directory: String, segment_bytes: u64) -> Self {
        Self { directory, segment_bytes, measured: Mutex::default() }
    }

    /// Measures the space.
    pub(crate) fn measure(&self, directory: &Path) {
        match disk::usage(directory) {
            Ok((used, free)) => self.measured(Instant::now(), used, free),
            Err(error) => tracing::debug!(%error, "the disk's space can't be read: {error}"),
        }
    }

    /// Stores a measurement of the bytes used and free, and logs a warning when the space has become low.
    fn measured(&self, now: Instant, used: u64, free: u64) {
        let mut measured = self.measured.lock();
        measured.highs.add(now, free);
        self.judge(&mut measured, now, used, free);
    }

    /// Notes whether a segment of the log could be made, or that the disk was full.
    pub(crate) fn has_segment(&self, now: Instant, was_made: bool) {
        let mut measured = self.measured.lock();
        measured.lacks_segment = !was_made;
        let (used, free) = measured.last.map_or((0, 0), |(_, last)| (last.used, last.free));
        self.judge(&mut measured, now, used, free);
    }

    fn judge(&self, measured: &mut Measured, now: Instant, used: u64, free: u64) {
        let full_in = measured.highs.full_in(free);
        let is_low = free < LOW_SEGMENTS * self.segment_bytes || full_in.is_some_and(|left| left < LOW_TIME);
        let state = match () {
            () if measured.lacks_segment => DiskState::Full,
            () if is_low => DiskState::Low,
            () => DiskState::Enough,
        };
        let reading = DiskReading { used, free, state, full_in };
        measured.last = Some((now, reading));
        // A worse state is logged at once, a better one not before it has lasted for a while.
        let is_news = match measured.warned {
            None => state != DiskState::Enough,
            Some((at, told)) => {
                state > told || (state < told && now.saturating_duration_since(at) >= BETTER_AFTER)
            }
        };
        if is_news {
            self.log(&reading);
            measured.warned = Some((now, state));
        }
    }

    fn log(&self, reading: &DiskReading) {
        let (directory, free) = (&self.directory, in_mib(reading.free));
        let soon = reading
            .full_in
            .filter(|left| *left < LOW_TIME)
            .map_or_else(String::new, |left| format!(", and will be full in {} min", left.as_secs() / 60));
        match reading.state {
            DiskState::Full => tracing::error!(
                "the disk under `{directory}` has no room for the next part of the log ({free} free): this node gives the \
                 leadership away, and stops when the present part is full; free space there"
            ),
            DiskState::Low => tracing::warn!(
                "the disk under `{directory}` has {free} free{soon}: free space there; without room for its log a node stops"
            ),
            DiskState::Enough | DiskState::Unspecified => {
                tracing::info!("the disk under `{directory}` has {free} free again");
            }
        }
    }

    /// The last measurement; `None` if the disk has not answered since.
    pub(crate) fn reading(&self) -> Option<DiskReading> {
        let last = self.measured.lock().last;
        last.filter(|(at, _)| at.elapsed() < AGE_MAX).map(|(_, reading)| reading)
    }
}

fn in_mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space() -> (DiskSpace, Instant) {
        (DiskSpace::new("data".to_owned(), 64 * MIB), Instant::now())
    }

    fn state(space: &DiskSpace) -> (DiskState, Option<u64>) {
        let reading = space.measured.lock().last.unwrap().1;
        (reading.state, reading.full_in.map(|left| left.as_secs() / 60))
    }

    #[test]
    fn disk_is_low_below_eight_segments_and_full_without_room_for_the_next() {
        let (space, start) = space();
        space.measured(start, 0, 512 * MIB);
        assert_eq!(state(&space), (DiskState::Enough, None));
        space.measured(start, 0, 512 * MIB - 1);
        assert_eq!(state(&space), (DiskState::Low, None));
        space.has_segment(start, false);
        assert_eq!(state(&space), (DiskState::Full, None));
        space.measured(start, 0, 600 * MIB);
        assert_eq!(state(&space), (DiskState::Full, None), "until a segment was made");
        space.has_segment(start, true);
        assert_eq!(state(&space), (DiskState::Enough, None));
    }

    #[test]
    fn disk_that_fills_up_is_low_an_hour_before() {
        let (space, start) = space();
        let free = |minute: u64| (100_000 - 1_000 * minute) * MIB;
        for second in 0..30 * 60 {
            space.measured(start + Duration::from_secs(second), 0, free(second / 60));
        }
        let (state_now, left) = state(&space);
        assert_eq!(
            (state_now, left.map(|left| left.abs_diff(71) <= 2)),
            (DiskState::Enough, Some(true)),
            "{left:?}"
        );
        for second in 30 * 60..45 * 60 {
            space.measured(start + Duration::from_secs(second), 0, free(second / 60));
        }
        let (state_now, left) = state(&space);
        assert_eq!(
            (state_now, left.map(|left| left.abs_diff(56) <= 2)),
            (DiskState::Low, Some(true)),
            "{left:?}"
        );
    }

    #[test]
    fn log_that_grows_and_shrinks_fills_no_disk() {
        let (space, start) = space();
        for second in 0..40 * 60 {
            // Every four minutes a snapshot frees what the log has grown.
            space.measured(start + Duration::from_secs(second), 0, (2_000 - 5 * (second % 240)) * MIB);
            assert_eq!(state(&space).0, DiskState::Enough, "after {second} s");
        }
    }
}
