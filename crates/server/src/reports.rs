//! Log lines about followers that do not answer, and about expired sessions.
//!
//! Responsible for: one line for each change of a follower, and at most one about expired sessions in a
//! period, however many expire. Reads no clock and writes no log itself.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lockkeeper_replica::ExpiredSession;

/// The interval at which the leader looks at its followers. One that is silent at two looks is logged.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The least time between two lines about expired sessions.
const EXPIRED_EVERY: Duration = Duration::from_secs(10);

/// What was logged.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    next_look: Option<Instant>,
    next_expired: Option<Instant>,
    /// The silent followers at the last look.
    silent: BTreeSet<u64>,
    /// The followers that were logged as silent.
    told: BTreeSet<u64>,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A follower is connected, and does not answer.
    Silent(u64),
    /// It answers again, or is not connected any more, which has lines of its own.
    Over(u64),
}

impl Reports {
    /// Whether the leader is to look at its followers now.
    pub(crate) fn is_look_due(&mut self, now: Instant) -> bool {
        is_due(&mut self.next_look, now, LOOK_EVERY)
    }

    /// Returns the lines about followers: `silent` are the connected ones that the leader does not hear.
    pub(crate) fn looked(&mut self, silent: BTreeSet<u64>) -> Vec<Report> {
        let mut lines = Vec::new();
        for node in silent.intersection(&self.silent) {
            if self.told.insert(*node) {
                lines.push(Report::Silent(*node));
            }
        }
        let over: Vec<u64> = self.told.difference(&silent).copied().collect();
        for node in over {
            self.told.remove(&node);
            lines.push(Report::Over(node));
        }
        self.silent = silent;
        lines
    }

    /// Whether a line about expired sessions may be logged now.
    pub(crate) fn may_tell_expired(&self, now: Instant) -> bool {
        self.next_expired.is_none_or(|at| now >= at)
    }

    /// The line about sessions that have expired; `None` if none have.
    pub(crate) fn expired(&mut self, now: Instant, count: u64, named: &[ExpiredSession]) -> Option<String> {
        if count == 0 {
            return None;
        }
        self.next_expired = Some(now + EXPIRED_EVERY);
        let mut names: Vec<String> = named.iter().map(name).collect();
        let rest = count.saturating_sub(named.len() as u64);
        if rest > 0 {
            names.push(format!("{rest} more"));
        }
        let names = names.join(", ");
        let have = if count == 1 { "session has" } else { "sessions have" };
        Some(format!(
            "{count} {have} expired, and lost all locks, since nothing was heard of the client for the ttl: {names}"
        ))
    }
}

fn is_due(next: &mut Option<Instant>, now: Instant, every: Duration) -> bool {
    let due = next.is_none_or(|at| now >= at);
    if due {
        *next = Some(now + every);
    }
    due
}

/// A session in words. Quoted: a text from a client must not look like another line of the log.
fn name(it: &ExpiredSession) -> String {
    let ExpiredSession { session, label, identity } = it;
    let label = if label.is_empty() { String::new() } else { format!(" {label:?}") };
    let identity = if identity.is_empty() { String::new() } else { format!(" of {identity:?}") };
    format!("{}{label}{identity}", session.0)
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::SessionId;

    use super::*;

    #[test]
    fn follower_that_is_silent_at_two_looks_is_logged_once_and_so_is_its_end() {
        let mut reports = Reports::default();
        let set = |nodes: &[u64]| nodes.iter().copied().collect::<BTreeSet<u64>>();
        assert_eq!(reports.looked(set(&[2, 3])), []);
        assert_eq!(reports.looked(set(&[3])), [Report::Silent(3)]);
        assert_eq!(reports.looked(set(&[3])), []);
        assert_eq!(reports.looked(set(&[])), [Report::Over(3)]);
        assert_eq!(reports.looked(set(&[3])), []);
        assert_eq!(reports.looked(set(&[])), [], "once is no trouble");
    }

    #[test]
    fn expired_sessions_are_named_and_the_rest_is_counted() {
        let (mut reports, now) = (Reports::default(), Instant::now());
        assert_eq!(reports.expired(now, 0, &[]), None);
        assert!(reports.may_tell_expired(now));
        let it =
            ExpiredSession { session: SessionId(7), label: "a\nb".to_owned(), identity: "ann".to_owned() };
        let line = reports.expired(now, 3, &[it]).unwrap();
        assert!(
            line.starts_with("3 sessions have expired") && line.ends_with(r#": 7 "a\nb" of "ann", 2 more"#),
            "{line}"
        );
        assert!(!reports.may_tell_expired(now + EXPIRED_EVERY / 2));
        assert!(reports.may_tell_expired(now + EXPIRED_EVERY));
    }
}
