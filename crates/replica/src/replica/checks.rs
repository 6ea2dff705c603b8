//! Nodes compare their tables: one log must have made one table of all of them, and the node whose table is another one
//! stops (DESIGN 5).
//!
//! A digest is what a snapshot's walk ends with, so it costs nothing but the snapshot. Those of two nodes can be compared if both
//! were taken after the same entry:
//!
//! 1. A leader whose snapshot is due names the entry that will be its next. All that it says from then on says so too, on
//!    connections that keep the order; so a follower knows the name before it can know that this entry is committed.
//! 2. Whoever applies that entry begins a snapshot. Who can't (another one is under way; the name was lost with a connection) is
//!    not compared this time.
//! 3. A follower's answers to heartbeats tell what came of it.
//! 4. What a majority of the voters has is right; the leader's heartbeats tell that. Whoever has another digest of that entry stops:
//!    a follower, or the leader itself.
//! 5. Without a majority nobody is wrong: a stop is for good, and it would be the healthy one's as often as not. The leader says who
//!    differs, and names another entry, so that a voter that was not compared can decide.
//!
//! All of it is told again and again, so nothing depends on a message that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::snapshot::FORMAT;
use lockkeeper_wire::peer::{PeerKind, PeerMessage, TableDigest};
use lockkeeper_wire::store::Configuration;

use super::Replica;
use crate::event::{Difference, LostEntries, Output};

/// While it isn't known which of two tables is right, a leader waits so long for the voters that have not told, then names another
/// entry. A walk over millions of locks takes seconds; and each costs a snapshot, so it must not be often.
const AGAIN: Duration = Duration::from_secs(60);

/// What a table was after an entry, in this program's [`FORMAT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digest {
    index: u64,
    value: u128,
}

#[derive(Default)]
pub(super) struct Checks {
    /// The entry after which the next snapshot is taken; 0: none is named.
    named: u64,
    /// Of this node, at the last one that was named.
    own: Option<Digest>,
    /// Of the others, as they said last.
    told: BTreeMap<u64, Digest>,
    /// What a leader tells: a majority has it. It stands, whoever stops or is removed afterwards.
    right: Option<Digest>,
    /// Who differs from this node, at `own`.
    differ: BTreeSet<u64>,
    /// When `own` was taken, or an entry named for the sake of a difference.
    waits_since: Duration,
    /// There is something new to judge by.
    has_news: bool,
    /// This node is the wrong one, and that was said.
    is_wrong: bool,
    /// Entries that this node has acknowledged are gone.
    lost: Option<LostEntries>,
}

impl Checks {
    /// The leader names an entry that is still to come, unless it has done so.
    pub(super) fn name(&mut self, index: u64, applied: u64) {
        // One behind `index`, the next entry, is no entry that a leader of this log can have named.
        if self.named <= applied || self.named > index {
            self.named = index;
        }
    }

    /// Whether this is the entry that was named.
    pub(super) fn is_reached(&mut self, applied: u64) -> bool {
        if self.named == 0 || applied < self.named {
            return false;
        }
        std::mem::take(&mut self.named) == applied
    }

    /// A named snapshot's walk has ended.
    pub(super) fn taken(&mut self, index: u64, value: u128, now: Duration) {
        self.own = Some(Digest { index, value });
        self.waits_since = now;
        self.differ.clear();
        self.has_news = true;
    }

    /// What goes with a message that leaves.
    pub(super) fn say(&self, message: &mut PeerMessage) {
        let digest = match message.kind() {
            PeerKind::Heartbeat => self.right,
            PeerKind::HeartbeatResponse => self.own,
            PeerKind::Append => None,
            _ => return,
        };
        if message.kind() != PeerKind::HeartbeatResponse {
            message.snapshot_at = self.named;
        }
        message.digest = digest.map(|Digest { index, value }| TableDigest {
            index,
            high: (value >> 64) as u64,
            low: value as u64,
            format: FORMAT,
        });
    }

    /// Others take part from now on. What those told who are gone is dropped.
    pub(super) fn set_members(&mut self, is_member: impl Fn(u64) -> bool) {
        self.told.retain(|node, _| is_member(*node));
        self.has_news = true;
    }

    /// Who says something else than this node, of the same entry.
    fn others<'a>(&'a self, own: &'a Digest) -> impl Iterator<Item = (u64, u128)> + 'a {
        let same = self.told.iter().filter(|(_, told)| told.index == own.index);
        same.map(|(node, told)| (*node, told.value))
    }
}

impl Replica {
    /// What came with a peer's message, before the message itself counts.
    pub(super) fn compare(&mut self, message: &PeerMessage) {
        if message.term < self.engine.term() {
            return;
        }
        if let Some(acknowledged) = self.engine.beyond_log(message) {
            let last = self.engine.last_index();
            self.checks.lost.get_or_insert(LostEntries { peer: message.from, acknowledged, last });
        }
        let digest = message
            .digest
            .filter(|it| it.format == FORMAT)
            .map(|it| Digest { index: it.index, value: u128::from(it.high) << 64 | u128::from(it.low) });
        match message.kind() {
            PeerKind::Append | PeerKind::Heartbeat => {
                if message.snapshot_at > self.applied.index {
                    self.checks.named = message.snapshot_at;
                }
                let own = self.checks.own;
                if let (Some(own), Some(right)) = (own, digest)
                    && own.index == right.index
                    && own.value != right.value
                {
                    self.is_wrong(own, message.from, right.value);
                }
            }
            PeerKind::HeartbeatResponse => {
                if let Some(digest) = digest.filter(|_| self.members.nodes.contains_key(&message.from)) {
                    self.checks.has_news |= self.checks.told.insert(message.from, digest) != Some(digest);
                }
            }
            _ => {}
        }
    }

    /// Entries that this node has acknowledged and has no more, as a member's message has shown: it must stop, and advance no more.
    #[must_use]
    pub fn lost_entries(&self) -> Option<LostEntries> {
        self.checks.lost
    }

    /// The leader's part: tells who differs, and finds what is right.
    pub(super) fn judge(&mut self) {
        if !self.checks.has_news || !self.engine.is_leader() {
            return;
        }
        self.checks.has_news = false;
        let Some(own) = self.checks.own else { return };
        let told: BTreeMap<u64, u128> =
            self.checks.others(&own).chain([(self.config.node, own.value)]).collect();
        for (&node, &theirs) in told.iter().filter(|(_, value)| **value != own.value) {
            if self.checks.differ.insert(node) {
                let difference = Difference { index: own.index, own: own.value, node, theirs };
                self.outputs.push(Output::Differs(difference));
            }
        }
        if self.is_judged(own.index) {
            return;
        }
        if let Some((node, value)) = of_majority(&self.members.configuration, &told) {
            self.checks.right = Some(Digest { index: own.index, value });
            if value != own.value {
                self.is_wrong(own, node, value);
            }
        }
    }

    fn is_judged(&self, index: u64) -> bool {
        self.checks.right.is_some_and(|right| right.index == index)
    }

    /// Whether a leader should name another entry before its next snapshot is due, because a voter that may be there has not told
    /// which of two tables is right. Once it was asked and said so, not again for [`AGAIN`].
    pub(super) fn must_compare_again(&mut self) -> bool {
        let Some(own) = self.checks.own else { return false };
        if self.checks.differ.is_empty()
            || self.is_judged(own.index)
            || self.now < self.checks.waits_since + AGAIN
        {
            return false;
        }
        let told: BTreeSet<u64> = self.checks.others(&own).map(|(node, _)| node).collect();
        let Configuration { voters, voters_outgoing, .. } = &self.members.configuration;
        let may_tell = voters.iter().chain(voters_outgoing).any(|voter| {
            *voter != self.config.node && !told.contains(voter) && !self.unreachable.contains(voter)
        });
        if may_tell {
            self.checks.waits_since = self.now;
        }
        may_tell
    }

    fn is_wrong(&mut self, own: Digest, node: u64, theirs: u128) {
        if !std::mem::replace(&mut self.checks.is_wrong, true) {
            let difference = Difference { index: own.index, own: own.value, node, theirs };
            self.outputs.push(Output::Wrong(difference));
        }
    }
}

/// What a majority of the voters has, and one node that says so. While voters change, a majority before and one after.
fn of_majority(configuration: &Configuration, told: &BTreeMap<u64, u128>) -> Option<(u64, u128)> {
    let has = |voters: &[u64], value: u128| {
        2 * voters.iter().filter(|voter| told.get(voter) == Some(&value)).count() > voters.len()
    };
    let Configuration { voters, voters_outgoing, .. } = configuration;
    let is_right = |value| has(voters, value) && (voters_outgoing.is_empty() || has(voters_outgoing, value));
    told.iter().map(|(node, value)| (*node, *value)).find(|(_, value)| is_right(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(voters: &[u64], outgoing: &[u64], told: &[(u64, u128)], right: Option<u128>) {
        let configuration = Configuration {
            voters: voters.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            ..Configuration::default()
        };
        let told = told.iter().copied().collect();
        assert_eq!(of_majority(&configuration, &told).map(|(_, value)| value), right);
    }

    #[test]
    fn only_a_majority_of_all_voters_decides() {
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8), (3, 8)], Some(8));
        check(&[1, 2, 3], &[], &[(1, 7), (3, 7)], Some(7));
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8)], None);
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8), (3, 9)], None);
        check(&[1, 2, 3, 4, 5], &[], &[(1, 7), (2, 8), (3, 8)], None);
        check(&[1, 2, 3, 4], &[], &[(1, 7), (2, 7), (3, 8), (4, 8)], None);
        check(&[1, 2], &[], &[(1, 7), (2, 8)], None);
    }

    #[test]
    fn who_does_not_vote_does_not_decide() {
        check(&[1, 2], &[], &[(1, 7), (2, 8), (3, 8), (4, 8)], None);
    }

    #[test]
    fn while_voters_change_both_majorities_decide() {
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (4, 8)], None);
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (3, 8)], None);
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (3, 8), (4, 8)], Some(8));
    }
}
