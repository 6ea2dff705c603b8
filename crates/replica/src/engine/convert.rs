//! Conversion between raft-rs messages and the wire schema: raft-rs never parses bytes that other processes
//! sent.

use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::store;
use raft::prelude::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType,
    Message, MessageType,
};

use super::{Committed, Ignored, Position};

/// Maximum length of a message's context: the number of a quorum read, or raft-rs' flag for an election by
/// leadership transfer.
const CONTEXT_BYTES_MAX: usize = 32;

pub(super) fn to_stored(entry: &Entry) -> store::Entry {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => store::EntryKind::Batch,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => store::EntryKind::Members,
    };
    store::Entry { index: entry.index, term: entry.term, kind: kind.into(), data: entry.data.clone() }
}

pub(super) fn from_stored(entry: store::Entry) -> Entry {
    let entry_type = match entry.kind() {
        store::EntryKind::Members => EntryType::EntryConfChangeV2,
        store::EntryKind::Batch | store::EntryKind::Unspecified => EntryType::EntryNormal,
    };
    Entry { entry_type, index: entry.index, term: entry.term, data: entry.data, ..Entry::default() }
}

pub(super) fn to_committed(entries: Vec<Entry>) -> impl Iterator<Item = Committed> {
    entries.into_iter().map(|entry| Committed {
        at: Position { index: entry.index, term: entry.term },
        is_members: entry.entry_type != EntryType::EntryNormal,
        data: entry.data,
    })
}

pub(super) fn to_conf_state(configuration: &store::Configuration) -> ConfState {
    ConfState {
        voters: configuration.voters.clone(),
        learners: configuration.learners.clone(),
        voters_outgoing: configuration.voters_outgoing.clone(),
        learners_next: configuration.learners_next.clone(),
        ..ConfState::default()
    }
}

pub(super) fn from_conf_state(state: &ConfState) -> store::Configuration {
    // raft-rs keeps the ids in hash sets; they are sorted so that equal configurations have equal bytes.
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    store::Configuration {
        voters: sorted(&state.voters),
        learners: sorted(&state.learners),
        voters_outgoing: sorted(&state.voters_outgoing),
        learners_next: sorted(&state.learners_next),
    }
}

/// `None` for a message that isn't sent to peers in this form: a snapshot is sent over a separate connection.
pub(super) fn to_peer(message: &Message) -> Option<PeerMessage> {
    let kind = match message.msg_type {
        MessageType::MsgAppend => PeerKind::Append,
        MessageType::MsgAppendResponse => PeerKind::AppendResponse,
        MessageType::MsgRequestVote => PeerKind::Vote,
        MessageType::MsgRequestVoteResponse => PeerKind::VoteResponse,
        MessageType::MsgRequestPreVote => PeerKind::PreVote,
        MessageType::MsgRequestPreVoteResponse => PeerKind::PreVoteResponse,
        MessageType::MsgHeartbeat => PeerKind::Heartbeat,
        MessageType::MsgHeartbeatResponse => PeerKind::HeartbeatResponse,
        MessageType::MsgTimeoutNow => PeerKind::TimeoutNow,
        _ => return None,
    };
    Some(PeerMessage {
        kind: kind.into(),
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.iter().map(to_stored).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.to_vec(),
        request_snapshot: message.request_snapshot,
        ..PeerMessage::default()
    })
}

/// Checks and converts a peer's message. raft-rs trusts its peers: some invalid messages make it panic,
/// others would take effect.
pub(super) fn from_peer(me: u64, message: PeerMessage) -> Result<Message, Ignored> {
    let msg_type = match message.kind() {
        PeerKind::Append => MessageType::MsgAppend,
        PeerKind::AppendResponse => MessageType::MsgAppendResponse,
        PeerKind::Vote => MessageType::MsgRequestVote,
        PeerKind::VoteResponse => MessageType::MsgRequestVoteResponse,
        PeerKind::PreVote => MessageType::MsgRequestPreVote,
        PeerKind::PreVoteResponse => MessageType::MsgRequestPreVoteResponse,
        PeerKind::Heartbeat => MessageType::MsgHeartbeat,
        PeerKind::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
        PeerKind::TimeoutNow => MessageType::MsgTimeoutNow,
        PeerKind::Unspecified => return Err(Ignored("a kind that this version does not know")),
    };
    if message.to != me || message.from == me || message.from == 0 {
        return Err(Ignored("it is not for this node"));
    }
    if message.term == 0 {
        return Err(Ignored("it has no term"));
    }
    if message.context.len() > CONTEXT_BYTES_MAX {
        return Err(Ignored("its context is too long"));
    }
    let mut expected = (message.index, message.log_term);
    for entry in &message.entries {
        let follows = expected.0.checked_add(1) == Some(entry.index) && entry.term >= expected.1;
        if !follows || entry.term > message.term {
            return Err(Ignored("its entries don't follow each other"));
        }
        expected = (entry.index, entry.term);
    }
    Ok(Message {
        msg_type,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.into_iter().map(from_stored).collect::<Vec<_>>().into(),
        commit: message.commit,
        commit_term: message.commit_term,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.into(),
        request_snapshot: message.request_snapshot,
        ..Message::default()
    })
}

/// Merges the acknowledgements of entries that were synced together: the last one covers the earlier ones.
pub(super) fn coalesce(messages: &mut Vec<PeerMessage>) {
    let is_answer = |it: &PeerMessage| it.kind() == PeerKind::AppendResponse && !it.reject;
    let said = |earlier: &PeerMessage, later: &PeerMessage| {
        is_answer(earlier)
            && is_answer(later)
            && earlier.to == later.to
            && earlier.term == later.term
            && earlier.index <= later.index
    };
    messages.dedup_by(|later, earlier| {
        let drops = said(earlier, later);
        if drops {
            std::mem::swap(earlier, later);
        }
        drops
    });
}

/// The engine's form of a membership change. A joint configuration is ended by a `Leave` entry, which any
/// leader may propose. raft-rs' automatic leave would be lost with the leader that began the change.
pub(super) fn conf_change(change: &store::MembersChange) -> ConfChangeV2 {
    use store::members_change::What;
    let (kind, node) = match &change.what {
        Some(What::Add(member)) => (ConfChangeType::AddLearnerNode, member.node),
        Some(What::Promote(node)) => (ConfChangeType::AddNode, *node),
        Some(What::Remove(node)) => (ConfChangeType::RemoveNode, *node),
        Some(What::Leave(_)) | None => return ConfChangeV2::default(),
    };
    let mut it = ConfChangeV2::default();
    if kind == ConfChangeType::RemoveNode {
        it.set_transition(ConfChangeTransition::Explicit);
    }
    it.mut_changes().push(ConfChangeSingle { change_type: kind, node_id: node, ..Default::default() });
    it
}
