//! Bounds on the numbers in peers' messages, derived from this node's log and term.
//!
//! Responsible for: no number in a peer's message makes the engine panic. raft-rs asserts properties that
//! hold only with correct peers and disks that lose nothing durable; this module checks them first. A message
//! beyond a bound is dropped, has its commit index lowered, or is replaced by one that has only a term.

use std::collections::BTreeSet;

use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::store::Configuration;

use super::{Ignored, Position};
use crate::members::NODES_MAX;

/// Maximum by which a message raises this node's term. An election raises the term by one, so even a node
/// that was away for a hundred years, with an election every second, is behind by less. Without the bound,
/// one message could raise the term so high that no election is possible any more.
pub(super) const TERMS_AHEAD_MAX: u64 = 1 << 32;

/// This node's position in term and log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standpoint {
    pub(super) term: u64,
    /// Index of the last log entry, and of the last committed one.
    pub(super) last: u64,
    pub(super) committed: u64,
    /// The leader of this term; 0 if unknown.
    pub(super) leader: u64,
    pub(super) is_leader: bool,
}

/// Checks the numbers of a message, and caps those that may exceed their bound.
pub(super) fn check(own: &Standpoint, message: &mut PeerMessage) -> Result<(), Ignored> {
    if message.log_term > message.term || message.commit_term > message.term {
        return Err(Ignored("it speaks of a term after its own"));
    }
    if message.request_snapshot != 0 {
        return Err(Ignored("it asks for a snapshot, which no node of this release does"));
    }
    if message.term > own.term.saturating_add(TERMS_AHEAD_MAX) {
        return approach(own, message);
    }
    let is_of_term = message.term == own.term;
    match message.kind() {
        PeerKind::Append | PeerKind::Heartbeat if is_of_term && own.is_leader => {
            Err(Ignored("this node leads in its term"))
        }
        PeerKind::Append | PeerKind::Heartbeat
            if is_of_term && own.leader != 0 && own.leader != message.from =>
        {
            Err(Ignored("another node leads in its term"))
        }
        // For raft-rs, every index beyond the log has term 0. So without this check, an append after such an
        // index with log term 0 would match this log.
        PeerKind::Append if (message.index == 0) != (message.log_term == 0) => {
            Err(Ignored("the entry before its entries has no term"))
        }
        PeerKind::Append if message.entries.iter().any(|entry| entry.term == 0) => {
            Err(Ignored("an entry has no term"))
        }
        // The commit index is lowered, and the message kept: it still proves that there is a leader.
        PeerKind::Heartbeat if message.commit > own.last => {
            message.commit = own.committed;
            Ok(())
        }
        PeerKind::TimeoutNow if !is_of_term || own.leader != message.from => {
            Err(Ignored("its sender does not lead, and can't hand over"))
        }
        PeerKind::AppendResponse | PeerKind::HeartbeatResponse if is_of_term => response(own, message),
        _ => Ok(()),
    }
}

/// Checks a response of this node's term: no follower's log is longer than its leader's.
fn response(own: &Standpoint, message: &PeerMessage) -> Result<(), Ignored> {
    if message.index > own.last || message.commit > own.last {
        return Err(Ignored("it acknowledges entries that this node's log has not"));
    }
    if message.reject_hint > message.index {
        return Err(Ignored("it has less than it says that it refuses"));
    }
    Ok(())
}

/// Handles a term that is too far ahead: raises this node's term by the bound and drops the rest of the
/// message. So if a forged message has raised the term of one node, the others reach that term after some
/// messages.
fn approach(own: &Standpoint, message: &mut PeerMessage) -> Result<(), Ignored> {
    if matches!(message.kind(), PeerKind::PreVote | PeerKind::PreVoteResponse) {
        return Err(Ignored("it asks for, or grants, an election in a term far ahead"));
    }
    let (from, to) = (message.from, message.to);
    *message =
        PeerMessage { from, to, term: own.term.saturating_add(TERMS_AHEAD_MAX), ..PeerMessage::default() };
    message.set_kind(PeerKind::HeartbeatResponse);
    Ok(())
}

/// Returns an index from the message if this node's log ends before it, although the message shows that this
/// node has acknowledged that entry, or that the entry is committed. The commit index in a heartbeat never
/// exceeds what the receiver has acknowledged in that term, and a follower never has more entries than its
/// leader. So this node's disk has lost entries, or the message is forged.
pub(super) fn beyond_log(own: &Standpoint, message: &PeerMessage) -> Option<u64> {
    let claimed = match message.kind() {
        PeerKind::Heartbeat if message.term >= own.term && !own.is_leader => message.commit,
        PeerKind::AppendResponse if message.term == own.term && own.is_leader && !message.reject => {
            message.index.max(message.commit)
        }
        PeerKind::AppendResponse | PeerKind::HeartbeatResponse
            if message.term == own.term && own.is_leader =>
        {
            message.commit
        }
        _ => return None,
    };
    Some(claimed).filter(|claimed| *claimed > own.last)
}

/// Upper bound of log indices, far above any real log. Beyond it, additions in raft-rs could overflow.
const INDEX_MAX: u64 = 1 << 62;

/// Checks a snapshot's metadata, since raft-rs adopts the configuration in them without a check.
pub(super) fn check_snapshot(
    own: &Standpoint,
    from: u64,
    term: u64,
    at: Position,
    configuration: &Configuration,
) -> Result<(), Ignored> {
    if term > own.term.saturating_add(TERMS_AHEAD_MAX) || at.index > INDEX_MAX {
        return Err(Ignored("its term or its last entry is too far ahead"));
    }
    if term == own.term && (own.is_leader || (own.leader != 0 && own.leader != from)) {
        return Err(Ignored("another node leads in its term"));
    }
    if is_possible(configuration) { Ok(()) } else { Err(Ignored("its configuration contradicts itself")) }
}

/// Whether a configuration can result from membership changes.
fn is_possible(configuration: &Configuration) -> bool {
    let Configuration { voters, learners, voters_outgoing, learners_next } = configuration;
    let parts = [voters, learners, voters_outgoing, learners_next];
    let sets = parts.map(|ids| ids.iter().copied().collect::<BTreeSet<u64>>());
    let is_sound = parts.iter().zip(&sets).all(|(ids, set)| ids.len() == set.len() && !set.contains(&0));
    let [voters, learners, outgoing, next] = &sets;
    is_sound
        && !voters.is_empty()
        && parts.iter().all(|ids| ids.len() <= NODES_MAX)
        && learners.is_disjoint(voters)
        && learners.is_disjoint(outgoing)
        && next.is_subset(outgoing)
        && next.is_disjoint(voters)
}
