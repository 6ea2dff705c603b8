//! Comparison of table digests between nodes: one log must produce one table, and a node with another table
//! stops.
//!
//! A digest is a by-product of a snapshot, so it costs nothing beyond the snapshot. Digests of two nodes are
//! comparable if both were taken after the same entry:
//!
//! 1. A leader whose snapshot is due names the index of its next entry. All its appends and heartbeats carry
//!    that index from then on, over ordered connections; so a follower receives it before it can learn that
//!    the entry is committed.
//! 2. A node that applies this entry begins a snapshot. A node that can't (another snapshot is in progress,
//!    or the index was lost with a connection) is not compared this time.
//! 3. A follower's heartbeat responses carry its digest.
//! 4. The digest that a majority of the voters has counts as right, and the leader's heartbeats carry it. A
//!    node with another digest for that entry stops, be it a follower or the leader itself.
//! 5. Without a majority no node stops: a stop is for good, and would hit the healthy node as often as the
//!    wrong one. The leader reports the difference and names another entry, so that a voter that was not
//!    compared can decide.
//!
//! Later messages repeat the named index and the digests, so lost messages do no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::snapshot::FORMAT;
use lockkeeper_wire::peer::{PeerKind, PeerMessage, TableDigest};
use lockkeeper_wire::store::Configuration;

use super::Replica;
use crate::event::{Difference, LostEntries, Output};

/// While it is undecided which of two tables is right, a leader waits this long for the digests of the other
/// voters, then names another entry. Every named entry costs one snapshot on each node, which takes seconds
/// for millions of locks.
const AGAIN: Duration = Duration::from_secs(60);

/// Digest of a table after an entry, in this program's [`FORMAT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digest {
    index: u64,
    value: u128,
}

#[derive(Default)]
pub(super) struct Checks {
    /// Index of the entry after which the next snapshot is taken; 0 if none is named.
    named: u64,
    /// This node's latest digest after a named entry.
    own: Option<Digest>,
    /// The latest digest received from each other node.
    reported: BTreeMap<u64, Digest>,
    /// The digest that a majority has, which a leader sends. It stays valid if some of those nodes stop or
    /// are removed.
    right: Option<Digest>,
    /// Nodes whose digest after the entry of `own` differs from `own`.
    differ: BTreeSet<u64>,
    /// When `own` was taken, or, if that is later, when an entry was last named because of a difference.
    waits_since: Duration,
    /// Whether digests or members have changed since the last comparison.
    has_news: bool,
    /// Whether this node's table is wrong, which is reported once.
    is_wrong: bool,
    /// Set if entries that this node had acknowledged, or that are committed, are missing from its log.
    lost: Option<LostEntries>,
}

impl Checks {
    /// Names a future entry, unless one is named already.
    pub(super) fn name(&mut self, index: u64, applied: u64) {
        // `index` is the next entry. So an index above it was named by another leader, whose entries this log
        // does not have.
        if self.named <= applied || self.named > index {
            self.named = index;
        }
    }

    /// Whether `applied` is the named entry. Once that entry is reached, no entry is named any more.
    pub(super) fn is_reached(&mut self, applied: u64) -> bool {
        if self.named == 0 || applied < self.named {
            return false;
        }
        std::mem::take(&mut self.named) == applied
    }

    /// Stores the digest of a completed named snapshot.
    pub(super) fn taken(&mut self, index: u64, value: u128, now: Duration) {
        self.own = Some(Digest { index, value });
        self.waits_since = now;
        self.differ.clear();
        self.has_news = true;
    }

    /// Adds the named entry and the digest to an outgoing message.
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

    /// Drops the digests of nodes that are no longer members.
    pub(super) fn set_members(&mut self, is_member: impl Fn(u64) -> bool) {
        self.reported.retain(|node, _| is_member(*node));
        self.has_news = true;
    }

    /// Other nodes' digests after the entry of `own`.
    fn others<'a>(&'a self, own: &'a Digest) -> impl Iterator<Item = (u64, u128)> + 'a {
        let same = self.reported.iter().filter(|(_, reported)| reported.index == own.index);
        same.map(|(node, reported)| (*node, reported.value))
    }
}

impl Replica {
    /// Processes the digest, the named entry and the log indices in a peer's message, before the engine gets
    /// it.
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
                    self.checks.has_news |= self.checks.reported.insert(message.from, digest) != Some(digest);
                }
            }
            _ => {}
        }
    }

    /// Set if a member's message shows that this node's log lacks entries that the node has acknowledged, or
    /// that are committed. The caller must then stop the node, and not call [`Replica::advance`] again.
    #[must_use]
    pub fn lost_entries(&self) -> Option<LostEntries> {
        self.checks.lost
    }

    /// Leader only: reports nodes that differ from it, finds the digest of a majority, and reports this node
    /// as wrong if its own digest is another one.
    pub(super) fn judge(&mut self) {
        if !self.checks.has_news || !self.engine.is_leader() {
            return;
        }
        self.checks.has_news = false;
        let Some(own) = self.checks.own else { return };
        let reported: BTreeMap<u64, u128> =
            self.checks.others(&own).chain([(self.config.node, own.value)]).collect();
        for (&node, &theirs) in reported.iter().filter(|(_, value)| **value != own.value) {
            if self.checks.differ.insert(node) {
                let difference = Difference { index: own.index, own: own.value, node, theirs };
                self.outputs.push(Output::Differs(difference));
            }
        }
        if self.is_judged(own.index) {
            return;
        }
        if let Some((node, value)) = of_majority(&self.members.configuration, &reported) {
            self.checks.right = Some(Digest { index: own.index, value });
            if value != own.value {
                self.is_wrong(own, node, value);
            }
        }
    }

    fn is_judged(&self, index: u64) -> bool {
        self.checks.right.is_some_and(|right| right.index == index)
    }

    /// Whether this leader should name another entry before its next snapshot is due: two tables differ, and
    /// a reachable voter that was not compared could decide which one is right. Returns true at most once per
    /// [`AGAIN`].
    pub(super) fn must_compare_again(&mut self) -> bool {
        let Some(own) = self.checks.own else { return false };
        if self.checks.differ.is_empty()
            || self.is_judged(own.index)
            || self.now < self.checks.waits_since + AGAIN
        {
            return false;
        }
        let reported: BTreeSet<u64> = self.checks.others(&own).map(|(node, _)| node).collect();
        let Configuration { voters, voters_outgoing, .. } = &self.members.configuration;
        let may_tell = voters.iter().chain(voters_outgoing).any(|voter| {
            *voter != self.config.node && !reported.contains(voter) && !self.unreachable.contains(voter)
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

/// The digest of a majority of the voters, and one node that has it. In a joint configuration, of a majority
/// of both sets.
fn of_majority(configuration: &Configuration, reported: &BTreeMap<u64, u128>) -> Option<(u64, u128)> {
    let has = |voters: &[u64], value: u128| {
        2 * voters.iter().filter(|voter| reported.get(voter) == Some(&value)).count() > voters.len()
    };
    let Configuration { voters, voters_outgoing, .. } = configuration;
    let is_right = |value| has(voters, value) && (voters_outgoing.is_empty() || has(voters_outgoing, value));
    reported.iter().map(|(node, value)| (*node, *value)).find(|(_, value)| is_right(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(voters: &[u64], outgoing: &[u64], reported: &[(u64, u128)], right: Option<u128>) {
        let configuration = Configuration {
            voters: voters.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            ..Configuration::default()
        };
        let reported = reported.iter().copied().collect();
        assert_eq!(of_majority(&configuration, &reported).map(|(_, value)| value), right);
    }

    #[test]
    fn majority_of_all_voters_decides() {
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8), (3, 8)], Some(8));
        check(&[1, 2, 3], &[], &[(1, 7), (3, 7)], Some(7));
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8)], None);
        check(&[1, 2, 3], &[], &[(1, 7), (2, 8), (3, 9)], None);
        check(&[1, 2, 3, 4, 5], &[], &[(1, 7), (2, 8), (3, 8)], None);
        check(&[1, 2, 3, 4], &[], &[(1, 7), (2, 7), (3, 8), (4, 8)], None);
        check(&[1, 2], &[], &[(1, 7), (2, 8)], None);
    }

    #[test]
    fn learners_do_not_decide() {
        check(&[1, 2], &[], &[(1, 7), (2, 8), (3, 8), (4, 8)], None);
    }

    #[test]
    fn joint_configuration_needs_both_majorities() {
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (4, 8)], None);
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (3, 8)], None);
        check(&[1, 2, 4], &[1, 2, 3], &[(1, 7), (2, 8), (3, 8), (4, 8)], Some(8));
    }
}
