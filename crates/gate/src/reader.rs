//! How long a response may wait for its reader.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum rate of a reader, in bytes per second: a slower one uses up the time that its response may wait.
const BYTES_PER_S_MIN: u64 = 1024;

/// The remaining time that a response may wait for its reader. Time that the upstream takes does not count;
/// each part that is read adds time again, up to the limit.
#[derive(Debug)]
pub(crate) struct ReaderWait {
    limit: Duration,
    left: Duration,
    /// The time since which the response waits for the reader; `None` while the reader waits for the next
    /// part.
    since: Option<Instant>,
}

impl ReaderWait {
    /// The state of a response whose reader has not begun to read.
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, left: limit, since: Some(now) }
    }

    /// To be called when the reader is ready for the next part.
    pub(crate) fn ready(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now - since);
        }
    }

    /// To be called when the reader has taken a part of this length.
    pub(crate) fn taken(&mut self, bytes: usize, now: Instant) {
        let more = Duration::from_millis((bytes as u64).saturating_mul(1000) / BYTES_PER_S_MIN);
        self.left = self.left.saturating_add(more).min(self.limit);
        self.since = Some(now);
    }

    /// The time at which the wait is over if the reader stays idle. While the reader waits for the upstream:
    /// the time of the next check.
    pub(crate) fn until(&self, now: Instant) -> Instant {
        match self.since {
            Some(since) => since + self.left,
            // The reader may become slow at any time, with hardly any time left, so the next check is due
            // after the time that is left, but not before a second.
            None => now + self.left.max(Duration::from_secs(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_for_the_reader_uses_up_its_time_and_reading_adds_some() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut wait = ReaderWait::new(Duration::from_secs(30), at(0));
        assert_eq!(wait.until(at(0)), at(30), "nobody reads");
        wait.ready(at(10));
        assert_eq!(wait.until(at(100)), at(120), "the upstream may take any time");
        wait.taken(5 * 1024, at(100));
        assert_eq!(wait.until(at(100)), at(125));
        wait.ready(at(125));
        assert_eq!(wait.until(at(125)), at(126));
        wait.taken(1, at(130));
        assert_eq!(wait.until(at(130)), at(130), "a byte is not enough");
        wait.ready(at(130));
        wait.taken(1 << 30, at(130));
        assert_eq!(wait.until(at(130)), at(160), "at most the limit");
    }
}
