//! Bounds on the numbers in peers' messages, from this node's log and term.
//!
//! Responsible for: no number from outside makes the engine panic. raft-rs asserts what follows from honest peers and disks that keep
//! what they confirmed; here the same is checked first. A message beyond a bound is dropped, or only its sender's term counts.

use std::collections::BTreeSet;

use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::store::Configuration;

use super::{Ignored, Position};
use crate::members::NODES_MAX;

/// A message raises the term by at most this. Elections raise it by one each, and a node that was away for a hundred years, with an
/// election a second, is behind by less. Without it one message could leave no room for another election.
pub(super) const TERMS_AHEAD_MAX: u64 = 1 << 32;

/// Where this node stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standpoint {
    pub(super) term: u64,
    /// The last entry of the log, and the last one that is committed.
    pub(super) last: u64,
    pub(super) committed: u64,
    /// Who leads in this term; 0 if that is not known.
    pub(super) leader: u64,
    pub(super) is_leader: bool,
}

/// Checks the numbers of a message, and lowers those that count up to a bound only.
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
        // raft-rs takes an index beyond the log for one of term 0, which would match.
        PeerKind::Append if (message.index == 0) != (message.log_term == 0) => {
            Err(Ignored("the entry before its entries has no term"))
        }
        PeerKind::Append if message.entries.iter().any(|entry| entry.term == 0) => {
            Err(Ignored("an entry has no term"))
        }
        // It still says that there is a leader.
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

/// A response of this leader's own term: no follower has more of the log than its leader.
fn response(own: &Standpoint, message: &PeerMessage) -> Result<(), Ignored> {
    if message.index > own.last || message.commit > own.last {
        return Err(Ignored("it acknowledges entries that this node's log has not"));
    }
    if message.reject_hint > message.index {
        return Err(Ignored("it has less than it says that it refuses"));
    }
    Ok(())
}

/// A term far ahead: this node raises its own by the bound, so that honest nodes reach one term after some messages, however far a
/// forged message has raised one of them. The rest of the message is dropped.
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

/// The entry that this node has acknowledged or committed by a peer's words, though its log ends before it. A leader's heartbeat never
/// exceeds the follower's acknowledgements of this term; a follower never has more entries than its leader. So this node's disk has
/// lost entries, or the message is forged.
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

/// Entries are counted up to here, by far more than a log can ever have. Beyond it raft-rs' additions could overflow.
const INDEX_MAX: u64 = 1 << 62;

/// Checks what a snapshot says of itself. raft-rs takes its configuration for one that it made itself.
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

/// Whether changes of members can have led to it.
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
