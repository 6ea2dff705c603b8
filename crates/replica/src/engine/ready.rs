//! What comes of a turn of the consensus, and what must be durable before the rest of it.

use bytes::Bytes;
use lockkeeper_wire::peer::PeerMessage;
use lockkeeper_wire::store;

/// Where a proposal stands in the log, if it is committed at all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// A peer's message that is not even looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a peer's message is ignored: {0}")]
pub(crate) struct Ignored(pub(crate) &'static str);

/// What must be durable before anything that depends on it may leave the node (P10).
///
/// Turned into a [`Persisted`] by whoever has synced it, and by nobody else.
#[must_use]
pub struct Write {
    pub(super) record: store::Record,
    pub(super) installs: Option<u64>,
    pub(super) then: Then,
}

/// The proof that a [`Write`] is durable: only this lets the replica go on.
#[must_use]
pub struct Persisted(pub(super) Then);

pub(super) struct Then {
    /// Messages that say what the record makes true.
    pub(super) after: Vec<PeerMessage>,
    /// Entries that may be applied only now: a change of members is never applied while raft-rs waits for its write.
    pub(super) held: Vec<Committed>,
    /// The commit index in the record.
    pub(super) commit: Option<u64>,
    pub(super) installed: Option<Position>,
    /// `None`: the record says only what was committed.
    pub(super) ready: Option<raft::Ready>,
}

impl Write {
    /// What to append to the log.
    #[must_use]
    pub fn record(&self) -> &store::Record {
        &self.record
    }

    /// The received snapshot that takes the place of log and table **before** the record is appended: its file gets its name, is
    /// synced, then the log is reset to its index. In another order a crash between leaves a log that begins behind nothing.
    #[must_use]
    pub fn installs(&self) -> Option<u64> {
        self.installs
    }

    /// To be called once the record has been written **and** the sync that followed has succeeded; never otherwise.
    pub fn synced(self) -> Persisted {
        Persisted(self.then)
    }
}

/// An entry that a majority has.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Committed {
    pub(crate) at: Position,
    /// Whether it changes the members.
    pub(crate) is_members: bool,
    /// Of a batch, empty: a new leader's first entry, or a change of members that the engine refused.
    pub(crate) data: Bytes,
}

/// What came of a turn of the consensus.
pub(crate) struct Ready {
    /// Rounds that were confirmed: `(round, index that must be applied before it counts)`.
    pub(crate) confirmed: Vec<(u64, u64)>,
    /// Entries that may be applied at once.
    pub(crate) committed: Vec<Committed>,
    /// Messages that depend on nothing unwritten: they go before the write.
    pub(crate) now: Vec<PeerMessage>,
    /// Followers that are to be sent the stored snapshot.
    pub(crate) snapshots_to: Vec<u64>,
    /// To be synced before anything else happens.
    pub(crate) write: Write,
}

/// What a write has made true.
pub(crate) struct Released {
    /// A received snapshot has taken the place of all there was.
    pub(crate) installed: Option<Position>,
    pub(crate) committed: Vec<Committed>,
    pub(crate) messages: Vec<PeerMessage>,
    pub(crate) snapshots_to: Vec<u64>,
}

/// How far a follower is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub(crate) node: u64,
    pub(crate) matched: u64,
    /// It was heard since the engine looked last whether it hears a majority.
    pub(crate) was_heard: bool,
    /// It was heard within the last election time-out, or some ticks more: right after such a look nobody was heard.
    pub(crate) is_active: bool,
    pub(crate) is_learner: bool,
    /// A snapshot is on its way to it.
    pub(crate) waits_for_snapshot: bool,
}
