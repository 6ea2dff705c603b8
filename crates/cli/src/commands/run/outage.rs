//! The messages about a lock service that does not serve, while a command tries again and again.

use std::time::{Duration, Instant};

use crate::output::say;

/// How often an unchanged failure is reported.
const REPEAT: Duration = Duration::from_secs(60);

/// Reports a failure when it begins, when it changes, and once a minute while it lasts: a service that is
/// down for a night must not fill the log.
#[derive(Default)]
pub(super) struct OutageReport {
    reported: Option<(String, Instant)>,
}

impl OutageReport {
    /// A further attempt has failed.
    pub(super) fn failed(&mut self, message: &str) {
        if self.is_due(message, Instant::now()) {
            say(format_args!("{message}; trying again"));
        }
    }

    /// An attempt has succeeded.
    pub(super) fn over(&mut self) {
        self.reported = None;
    }

    fn is_due(&mut self, message: &str, now: Instant) -> bool {
        if let Some((known, at)) = &self.reported
            && known == message
            && now.saturating_duration_since(*at) < REPEAT
        {
            return false;
        }
        self.reported = Some((message.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_reported_when_it_begins_changes_or_has_lasted_for_a_minute() {
        let mut outage = OutageReport::default();
        let began = Instant::now();
        let mut due = |message, seconds| outage.is_due(message, began + Duration::from_secs(seconds));
        assert!(due("refused", 0) && !due("refused", 1) && !due("refused", 59));
        assert!(due("timed out", 59) && !due("timed out", 60));
        assert!(due("timed out", 120));
        outage.over();
        assert!(outage.is_due("timed out", began + Duration::from_secs(121)));
    }
}
