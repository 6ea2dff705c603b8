//! A node's state, and its counts since its start, for metrics.

use std::time::Duration;

use lockkeeper_core::{Effect, End, PrefixLoad, Reply, Usage};

use crate::summary::CommandSummary;

/// The state of a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// This node leads.
    pub leads: bool,
    /// The leader's id; 0 if none is known.
    pub leader: u64,
    /// The term of the election.
    pub term: u64,
    /// The last log entry that this node has applied.
    pub applied: u64,
    /// The last log entry that this node knows to be committed.
    pub committed: u64,
    /// The last token that was issued.
    pub last_token: u64,
    /// The usage of the table by all sessions together.
    pub usage: Usage,
    /// The load of the requested prefixes, and of all others together.
    pub prefixes: Vec<PrefixLoad>,
    /// Number of members of the cluster.
    pub members: u64,
    /// Number of members from which the leader receives answers, itself included; 0 unless this node leads.
    pub answering: u64,
    /// The counts of this node as the leader.
    pub activity: Activity,
}

/// Counts of a node as the leader, since its start. A new leader starts from its own counts, so a sum over
/// the nodes counts each event once.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Activity {
    /// Grants.
    pub grants: u64,
    /// Sessions that expired: no keep-alive arrived for the ttl.
    pub expired: u64,
    /// Requests that left the queue because their wait limit was over.
    pub timed_out: u64,
    /// Breaks by operators. A break that is repeated with `now` counts twice.
    pub breaks: u64,
    /// Keep-alives, attaches and calls, by the part of the ttl that was left when they arrived, in tenths.
    pub slack: [u64; SLACK_PARTS],
}

/// The number of equal parts of a ttl in [`Activity::slack`].
pub const SLACK_PARTS: usize = 10;

impl Activity {
    /// Counts the effects of an applied command.
    pub(crate) fn applied(&mut self, command: &CommandSummary, reply: &Reply, effects: &[Effect]) {
        self.grants += u64::from(matches!(reply, Reply::Granted(_)));
        self.breaks += u64::from(matches!((command, reply), (CommandSummary::Break, Reply::Done)));
        for effect in effects {
            match effect {
                Effect::Granted { .. } => self.grants += 1,
                Effect::Ended { end: End::TimedOut, .. } => self.timed_out += 1,
                Effect::SessionEnded { .. } if matches!(command, CommandSummary::Expire) => self.expired += 1,
                _ => {}
            }
        }
    }

    /// Counts a keep-alive that arrived when `left` of the ttl was left.
    pub(crate) fn kept_alive(&mut self, left: Duration, ttl: Duration) {
        let parts = SLACK_PARTS as u128;
        let part = left.as_nanos() * parts / ttl.as_nanos().max(1);
        // The whole ttl is left if the session was opened or kept alive in this turn.
        let part = usize::try_from(part.min(parts - 1)).unwrap_or(SLACK_PARTS - 1);
        self.slack[part] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alives_are_counted_by_what_was_left() {
        let mut activity = Activity::default();
        for left in [0, 99, 100, 950, 999, 1_000, 2_000] {
            activity.kept_alive(Duration::from_millis(left), Duration::from_secs(1));
        }
        assert_eq!(activity.slack, [2, 1, 0, 0, 0, 0, 0, 0, 0, 4]);
    }
}
