//! Whether the disks of the nodes have room for the next segment of the log.
//!
//! Responsible for: a node without that room does not stay the leader if another voter has it. Followers
//! report it in their heartbeat responses.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_wire::peer::{PeerKind, PeerMessage};

use super::Replica;
use crate::engine::ELECTION_TICKS;

/// After a transfer that has failed, the next attempt waits this many election time-outs.
const PAUSE_TIMEOUTS: u32 = 10;

#[derive(Default)]
pub(super) struct DiskRoom {
    /// Whether this node's own disk is full.
    pub(super) is_full: bool,
    /// The members that have reported a full disk in their last heartbeat response.
    full: BTreeSet<u64>,
    /// No transfer is begun before this time.
    pause_until: Duration,
}

impl DiskRoom {
    /// Adds the state of this node's disk to an outgoing message.
    pub(super) fn say(&self, message: &mut PeerMessage) {
        message.disk_full = self.is_full && message.kind() == PeerKind::HeartbeatResponse;
    }

    /// Whether the last report of this member was that its disk is full.
    pub(super) fn is_full_at(&self, node: u64) -> bool {
        self.full.contains(&node)
    }

    /// Drops the reports of nodes that are no longer members.
    pub(super) fn set_members(&mut self, is_member: impl Fn(u64) -> bool) {
        self.full.retain(|node| is_member(*node));
    }
}

impl Replica {
    pub(super) fn note_disk_of(&mut self, message: &PeerMessage) {
        if message.kind() != PeerKind::HeartbeatResponse || message.term < self.engine.term() {
            return;
        }
        if message.disk_full && self.members.nodes.contains_key(&message.from) {
            self.disk_room.full.insert(message.from);
        } else {
            self.disk_room.full.remove(&message.from);
        }
    }

    /// Transfers the leadership if this node's disk is full and another voter's is not. A new leader waits
    /// until it has heard the others, so that two nodes with full disks don't transfer it to each other.
    pub(super) fn hand_over_if_full(&mut self) {
        if self.disk_room.is_full
            && self.lead.is_ready()
            && !self.leads_newly()
            && !self.is_handing_over()
            && self.now >= self.disk_room.pause_until
            && let Some(to) = self.successor_with_room()
        {
            self.disk_room.pause_until = self.now + self.config.tick * ELECTION_TICKS as u32 * PAUSE_TIMEOUTS;
            self.begin_handover(to);
        }
    }
}
