//! The consensus: raft-rs, driven without any I/O. Its types stay in this file.
//!
//! raft-rs is an older library whose protobuf parser has a known recursion flaw (RUSTSEC-2024-0437), so bytes from
//! outside never reach it: entries are encoded and decoded by our own schema, and what is built here is built by us.

use std::collections::VecDeque;

use bytes::Bytes;
use lockkeeper_wire::store;
use raft::prelude::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, RawNode, StateRole, StorageError};

/// Heartbeats go out this often, in ticks.
const HEARTBEAT_TICKS: usize = 2;
/// Silence for at least this long, in ticks, starts an election; at most twice as long.
const ELECTION_TICKS: usize = 10;
/// Applied entries that are kept in memory for followers which lag a little, in bytes. A node alone keeps none.
const TAIL_BYTES: usize = 4 << 20;

/// Room for so many entries is kept when there are none.
const ENTRIES_KEPT: usize = 64;

/// Who takes part, and where the log stands.
pub(crate) struct Start {
    pub(crate) node: u64,
    pub(crate) voters: Vec<u64>,
    /// Decides election timeouts, together with node and term.
    pub(crate) seed: u64,
    /// The last entry in the snapshot; 0 without one.
    pub(crate) snapshot_index: u64,
    pub(crate) snapshot_term: u64,
    pub(crate) hard_state: Option<store::HardState>,
    /// What the log holds after the snapshot.
    pub(crate) entries: Vec<store::Entry>,
}

pub(crate) struct Engine {
    raw: RawNode<Tail>,
    seed: u64,
}

/// Where a proposal stands in the log, if it is committed at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// What must be durable before anything that depends on it may leave the node (P10).
///
/// Turned into a [`Persisted`] by whoever has synced it, and by nobody else.
#[must_use]
pub struct Write {
    record: store::Record,
    ready: raft::Ready,
}

/// The proof that a [`Write`] is durable: only this lets the replica go on.
#[must_use]
pub struct Persisted(raft::Ready);

impl Write {
    /// What to append to the log.
    #[must_use]
    pub fn record(&self) -> &store::Record {
        &self.record
    }

    /// To be called once the record has been written **and** the sync that followed has succeeded; never otherwise.
    pub fn synced(self) -> Persisted {
        Persisted(self.ready)
    }
}

/// An entry that a majority has.
pub(crate) struct Committed {
    pub(crate) at: Position,
    /// Empty: a new leader's first entry.
    pub(crate) data: Bytes,
}

/// What came of a turn of the consensus.
pub(crate) struct Ready {
    /// Rounds that were confirmed: `(round, index that must be applied before it counts)`.
    pub(crate) confirmed: Vec<(u64, u64)>,
    /// Entries that may be applied at once.
    pub(crate) committed: Vec<Committed>,
    /// To be synced before anything else happens.
    pub(crate) write: Write,
}

impl Engine {
    pub(crate) fn start(start: Start) -> Result<Self, String> {
        let applied = start.snapshot_index;
        let config = raft::Config {
            id: start.node,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: 1 << 20,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(
            &config,
            Tail::new(start.voters, applied, start.snapshot_term, start.hard_state, start.entries),
            &logger,
        )
        .map_err(|error| error.to_string())?;
        let mut engine = Self { raw, seed: start.seed };
        engine.set_timeout();
        Ok(engine)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub(crate) fn is_candidate(&self) -> bool {
        matches!(self.raw.raft.state, StateRole::Candidate | StateRole::PreCandidate)
    }

    /// 0 if none is known.
    pub(crate) fn leader(&self) -> u64 {
        self.raw.raft.leader_id
    }

    pub(crate) fn term(&self) -> u64 {
        self.raw.raft.term
    }

    pub(crate) fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// Starts an election at once: whoever is alone need not wait for a time-out.
    pub(crate) fn campaign(&mut self) {
        // Refused only to a node that is no voter.
        let _ = self.raw.campaign();
        self.set_timeout();
    }

    pub(crate) fn tick(&mut self) {
        self.raw.tick();
        self.set_timeout();
    }

    /// Appends an entry on the leader. `None`: not now; propose it again later, before anything else.
    pub(crate) fn propose(&mut self, data: Vec<u8>) -> Option<Position> {
        self.raw.propose(Vec::new(), data).ok()?;
        Some(Position { index: self.raw.raft.raft_log.last_index(), term: self.term() })
    }

    /// Asks a majority whether this node still leads. A round may be lost without an answer.
    pub(crate) fn ask(&mut self, round: u64) {
        self.raw.read_index(round.to_le_bytes().to_vec());
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.raw.has_ready()
    }

    pub(crate) fn ready(&mut self) -> Ready {
        let mut ready = self.raw.ready();
        let entries = ready.take_entries();
        let hard_state = ready.hs().filter(|_| ready.must_sync()).map(|hs| store::HardState {
            term: hs.term,
            vote: hs.vote,
            commit: hs.commit,
        });
        let record = store::Record { hard_state, entries: entries.iter().map(to_stored).collect() };
        let confirmed = ready.take_read_states();
        let committed = to_committed(ready.take_committed_entries());
        let tail = self.raw.mut_store();
        if let Some(hs) = ready.hs() {
            tail.hard_state = hs.clone();
        }
        tail.append(entries);
        Ready {
            confirmed: confirmed
                .into_iter()
                .filter_map(|state| {
                    let round = state.request_ctx.as_slice().try_into().ok()?;
                    Some((u64::from_le_bytes(round), state.index))
                })
                .collect(),
            committed,
            write: Write { record, ready },
        }
    }

    /// Goes on after a write; returns what became committed by it.
    pub(crate) fn persisted(&mut self, proof: Persisted) -> Vec<Committed> {
        let mut light = self.raw.advance_append(proof.0);
        if let Some(commit) = light.commit_index() {
            self.raw.mut_store().hard_state.commit = commit;
        }
        to_committed(light.take_committed_entries())
    }

    /// Everything up to here is in the table.
    pub(crate) fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
        self.raw.mut_store().trim(index);
    }

    /// The same on every run for the same node and term: a simulation must replay, and raft-rs draws its own at random.
    fn set_timeout(&mut self) {
        let raft = &mut self.raw.raft;
        let mixed = self.seed
            ^ raft.id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ raft.term.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let spread = (mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33;
        raft.set_randomized_election_timeout(ELECTION_TICKS + spread as usize % ELECTION_TICKS);
    }
}

fn to_stored(entry: &Entry) -> store::Entry {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => store::EntryKind::Batch,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => store::EntryKind::Members,
    };
    store::Entry { index: entry.index, term: entry.term, kind: kind.into(), data: entry.data.clone() }
}

fn from_stored(entry: store::Entry) -> Entry {
    let entry_type = match entry.kind() {
        store::EntryKind::Members => EntryType::EntryConfChangeV2,
        store::EntryKind::Batch | store::EntryKind::Unspecified => EntryType::EntryNormal,
    };
    Entry { entry_type, index: entry.index, term: entry.term, data: entry.data, ..Entry::default() }
}

fn to_committed(entries: Vec<Entry>) -> Vec<Committed> {
    entries
        .into_iter()
        .map(|entry| Committed { at: Position { index: entry.index, term: entry.term }, data: entry.data })
        .collect()
}

/// The end of the log in memory, as raft-rs wants to see it. What is on disk is the storage's matter.
struct Tail {
    voters: Vec<u64>,
    hard_state: HardState,
    /// The entry before the first one here.
    before: Position,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl Tail {
    fn new(
        voters: Vec<u64>,
        snapshot_index: u64,
        snapshot_term: u64,
        stored: Option<store::HardState>,
        entries: Vec<store::Entry>,
    ) -> Self {
        let stored = stored.unwrap_or_default();
        let hard_state = HardState {
            term: stored.term,
            vote: stored.vote,
            // A snapshot holds committed entries only.
            commit: stored.commit.max(snapshot_index),
            ..HardState::default()
        };
        let entries: VecDeque<Entry> = entries.into_iter().map(from_stored).collect();
        let bytes = entries.iter().map(|entry| entry.data.len()).sum();
        let before = Position { index: snapshot_index, term: snapshot_term };
        Self { voters, hard_state, before, entries, bytes }
    }

    fn last(&self) -> u64 {
        self.before.index + self.entries.len() as u64
    }

    fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first() else { return };
        // A new leader's entries replace what an old one left.
        while self.last() >= first.index {
            let Some(replaced) = self.entries.pop_back() else { break };
            self.bytes -= replaced.data.len();
        }
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Lets go of applied entries beyond what may be kept.
    fn trim(&mut self, applied: u64) {
        let keep = if self.voters.len() > 1 { TAIL_BYTES } else { 0 };
        while self.bytes > keep && self.before.index < applied {
            let Some(first) = self.entries.pop_front() else { return };
            self.bytes -= first.data.len();
            self.before = Position { index: first.index, term: first.term };
        }
        if self.entries.is_empty() {
            self.entries.shrink_to(ENTRIES_KEPT);
        }
    }
}

impl raft::Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let conf_state = ConfState { voters: self.voters.clone(), ..ConfState::default() };
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let (skip, take) = (low - self.before.index - 1, high.saturating_sub(low));
        let mut size = 0;
        let fits = |entry: &&Entry| {
            let first = size == 0;
            size += entry.data.len() as u64 + 1;
            first || size <= max
        };
        Ok(self.entries.iter().skip(skip as usize).take(take as usize).take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.index {
            return Ok(self.before.term);
        }
        if index < self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.get((index - self.before.index - 1) as usize);
        entry.map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
