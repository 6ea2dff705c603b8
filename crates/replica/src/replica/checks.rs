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
//! 4. The leader finds what is right: what a majority of the voters has; where none agrees, what it has itself. Its heartbeats
//!    tell that.
//! 5. Whoever has another digest of that entry stops: a follower, or the leader itself.
//!
//! All of it is told again and again, so nothing depends on a message that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_wire::peer::{PeerKind, PeerMessage, TableDigest};

use super::Replica;
use crate::event::{Difference, Output};

/// After it has found a difference, a leader waits so long for digests of the other voters: a walk over millions of locks takes
/// seconds. Nobody is wrong until then, unless a majority says so.
const WAIT: Duration = Duration::from_secs(10);

/// What a table was after an entry.
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
    /// What a leader tells: all have it who are right.
    right: Option<Digest>,
    /// Who differs from this node, at `own`; and when the first one was found.
    differ: BTreeSet<u64>,
    differs_since: Duration,
    /// There is something new to judge by.
    has_news: bool,
    /// This node is the wrong one, and that was said.
    is_wrong: bool,
}

impl Checks {
    /// The leader names an entry that is still to come, unless it has done so.
    pub(super) fn name(&mut self, index: u64, applied: u64) {
        if self.named <= applied {
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
    pub(super) fn taken(&mut self, index: u64, value: u128) {
        self.own = Some(Digest { index, value });
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
        });
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
        let digest = message
            .digest
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
                if let Some(digest) = digest {
                    self.checks.has_news |= self.checks.told.insert(message.from, digest) != Some(digest);
                }
            }
            _ => {}
        }
    }

    /// The leader's part: tells who differs, and finds what is right.
    pub(super) fn judge(&mut self) {
        let is_judged = self.checks.right.map(|it| it.index) == self.checks.own.map(|it| it.index);
        let waits = !self.checks.differ.is_empty() && !is_judged;
        if !(self.checks.has_news || waits) || !self.engine.is_leader() {
            return;
        }
        self.checks.has_news = false;
        let Some(own) = self.checks.own else { return };
        let told: BTreeMap<u64, u128> =
            self.checks.others(&own).chain([(self.config.node, own.value)]).collect();
        for (&node, &theirs) in told.iter().filter(|(_, value)| **value != own.value) {
            if self.checks.differ.is_empty() {
                self.checks.differs_since = self.now;
            }
            if self.checks.differ.insert(node) {
                let difference = Difference { index: own.index, own: own.value, node, theirs };
                self.outputs.push(Output::Differs(difference));
            }
        }
        let voters = &self.members.configuration.voters;
        let agree = |value: u128| voters.iter().filter(|voter| told.get(voter) == Some(&value)).count();
        let of_majority = told.iter().find(|(_, value)| agree(**value) > voters.len() / 2);
        let all_told = voters.iter().all(|voter| told.contains_key(voter));
        let is_late = self.now >= self.checks.differs_since + WAIT;
        let right = match of_majority {
            Some((&node, &value)) => Some((node, value)),
            None if !self.checks.differ.is_empty() && (all_told || is_late) => {
                Some((self.config.node, own.value))
            }
            None => None,
        };
        self.checks.right = right.map(|(_, value)| Digest { index: own.index, value });
        if let Some((node, value)) = right.filter(|(_, value)| *value != own.value) {
            self.is_wrong(own, node, value);
        }
    }

    fn is_wrong(&mut self, own: Digest, node: u64, theirs: u128) {
        if !std::mem::replace(&mut self.checks.is_wrong, true) {
            let difference = Difference { index: own.index, own: own.value, node, theirs };
            self.outputs.push(Output::Wrong(difference));
        }
    }
}
