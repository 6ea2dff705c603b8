//! Results of a step of the consensus, and the write that must be durable before some of them may be used.

use bytes::Bytes;
use lockkeeper_wire::peer::PeerMessage;
use lockkeeper_wire::store;

/// Index and term of an entry. A proposal is committed only if the entry committed at the index has this
/// term.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// A peer's message that was dropped without being handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a peer's message is ignored: {0}")]
pub(crate) struct Ignored(pub(crate) &'static str);

/// State that must be durable before any output that depends on it is sent (P10).
///
/// The only way to a [`Persisted`] is [`Write::synced`].
#[must_use]
pub struct Write {
    pub(super) record: store::Record,
    pub(super) installs: Option<u64>,
    pub(super) then: Then,
}

/// Proof that a [`Write`] is durable; the replica continues only with it.
#[must_use]
pub struct Persisted(pub(super) Then);

pub(super) struct Then {
    /// Messages that depend on the record.
    pub(super) after: Vec<PeerMessage>,
    /// A membership change and the entries after it. They may be applied only after the write, since raft-rs
    /// does not allow a membership change to be applied while it waits for a write.
    pub(super) held: Vec<Committed>,
    /// The commit index in the record.
    pub(super) commit: Option<u64>,
    pub(super) installed: Option<Position>,
    /// `None` if the record has only a commit index.
    pub(super) ready: Option<raft::Ready>,
}

impl Write {
    /// The record to append to the log.
    #[must_use]
    pub fn record(&self) -> &store::Record {
        &self.record
    }

    /// Index of a received snapshot that replaces log and table. **Before** the record is appended: rename
    /// the snapshot's file to the final name, sync, then reset the log to its index. In another order, a
    /// crash in between would leave a log without the snapshot that it continues.
    #[must_use]
    pub fn installs(&self) -> Option<u64> {
        self.installs
    }

    /// Must be called only after the record was written **and** the sync that followed has succeeded.
    pub fn synced(self) -> Persisted {
        Persisted(self.then)
    }
}

/// A committed entry.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Committed {
    pub(crate) at: Position,
    /// Whether the entry changes the members.
    pub(crate) is_members: bool,
    /// Empty for a new leader's first entry, and for a membership change that the engine refused.
    pub(crate) data: Bytes,
}

/// Results of a step of the consensus.
pub(crate) struct Ready {
    /// Confirmed quorum reads: `(round, index that must be applied before the answer)`.
    pub(crate) confirmed: Vec<(u64, u64)>,
    /// Entries that may be applied at once.
    pub(crate) committed: Vec<Committed>,
    /// Messages that depend on no unwritten state, so they are sent before the write.
    pub(crate) now: Vec<PeerMessage>,
    /// Followers to be sent the stored snapshot.
    pub(crate) snapshots_to: Vec<u64>,
    /// Must be durable before the next step of the consensus.
    pub(crate) write: Write,
}

/// Results that depended on a write.
pub(crate) struct Released {
    /// Position of the last entry in a received snapshot, which replaces log and table.
    pub(crate) installed: Option<Position>,
    pub(crate) committed: Vec<Committed>,
    pub(crate) messages: Vec<PeerMessage>,
    pub(crate) snapshots_to: Vec<u64>,
}

/// Replication progress of a follower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) node: u64,
    pub(crate) matched: u64,
    /// Index up to which the follower is known to know the commit of entries.
    pub(crate) committed: u64,
    /// Whether a message from the follower arrived since the engine's last quorum check.
    pub(crate) was_heard: bool,
    /// Whether the follower responds: a message from it arrived since the engine's last quorum check; or that
    /// check was a few ticks ago, and a message arrived in the interval before the check.
    pub(crate) is_active: bool,
    pub(crate) is_learner: bool,
    /// Whether a snapshot is being sent to the follower.
    pub(crate) waits_for_snapshot: bool,
}
