//! The consensus engine: raft-rs, driven without I/O. raft-rs types do not leave this module.
//!
//! raft-rs depends on an old protobuf library whose parser has a known recursion flaw (RUSTSEC-2024-0437). So
//! raft-rs never parses bytes from other processes: entries and messages are encoded and decoded with this
//! project's own schema.

mod bounds;
mod convert;
mod election;
mod lag;
mod ready;
mod tail;

use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::store;
use prost::Message as _;
use raft::prelude::{Message, Snapshot};
use raft::{ProgressState, RawNode, SnapshotStatus, StateRole};

use crate::mutant::Mutant;
use bounds::Standpoint;
use convert::{
    coalesce, conf_change, from_conf_state, from_peer, to_committed, to_conf_state, to_peer, to_stored,
};
use lag::Lag;
use ready::Then;
pub(crate) use ready::{Committed, Ignored, Position, Progress, Ready, Released};
pub use ready::{Persisted, Write};
use tail::Tail;

/// Interval of heartbeats, in ticks.
const HEARTBEAT_TICKS: usize = 2;
/// Shortest election time-out in ticks; the longest is twice that.
pub const ELECTION_TICKS: usize = 12;
/// The engine's quorum check clears its record of the followers that have responded. For this many ticks
/// afterwards, the followers in the cleared record still count as responding.
const SILENT_TICKS: u32 = 2 * HEARTBEAT_TICKS as u32;
/// Maximum bytes of entries per message, and of committed entries per [`Ready`].
const MESSAGE_BYTES: u64 = 1 << 20;
/// Maximum number of append messages in flight to one follower; a connection must have room for all of them.
/// raft-rs' `batch_append`, which merges appends, stays off: it does not limit the merged size, so a follower
/// that lags would be sent all of its missing entries in one message.
const IN_FLIGHT_MAX: usize = 32;
/// Maximum bytes of entries that are proposed and not committed; above it, proposals are refused.
const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;

/// Initial state: members and log.
pub(crate) struct Start {
    pub(crate) node: u64,
    pub(crate) configuration: store::Configuration,
    /// Determines the election time-outs, together with node, term and number of tries.
    pub(crate) seed: u64,
    /// Bytes of applied entries kept in memory for lagging followers.
    pub(crate) tail_bytes: usize,
    pub(crate) mutant: Option<Mutant>,
    /// Index of the last entry in the snapshot; 0 without one.
    pub(crate) snapshot_index: u64,
    pub(crate) snapshot_term: u64,
    pub(crate) hard_state: Option<store::HardState>,
    /// Log entries after the snapshot.
    pub(crate) entries: Vec<store::Entry>,
}

pub(crate) struct Engine {
    raw: RawNode<Tail>,
    seed: u64,
    /// The number of elections that this node has started since it last knew a leader.
    campaigns: u64,
    /// The leader to which the connection broke. Reset to 0 by a message from it, and by an election.
    lost_leader: u64,
    mutant: Option<Mutant>,
    /// The durable commit index. A membership change is applied only up to it.
    durable_commit: u64,
    /// Committed entries that wait for the commit index to become durable.
    held: Vec<Committed>,
    lag: Lag,
}

impl Engine {
    pub(crate) fn start(start: Start) -> Result<Self, String> {
        let config = raft::Config {
            id: start.node,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: start.snapshot_index,
            max_size_per_msg: MESSAGE_BYTES,
            max_committed_size_per_ready: MESSAGE_BYTES,
            max_inflight_msgs: IN_FLIGHT_MAX,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: true,
            // Followers receive the commit index with the next append or heartbeat. They serve no reads, so
            // they don't need it earlier, and raft-rs' broadcast of each commit would cost two more messages
            // per follower.
            skip_bcast_commit: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let (seed, mutant, keep) = (start.seed, start.mutant, start.tail_bytes);
        let stored = start.hard_state.map_or(0, |state| state.commit);
        let durable_commit = stored.max(start.snapshot_index);
        let raw = RawNode::new(&config, Tail::new(start), &logger).map_err(|error| error.to_string())?;
        let held = Vec::new();
        let lag = Lag::new(keep);
        let mut engine = Self { raw, seed, campaigns: 0, lost_leader: 0, mutant, durable_commit, held, lag };
        engine.set_timeout();
        Ok(engine)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub(crate) fn is_candidate(&self) -> bool {
        matches!(self.raw.raft.state, StateRole::Candidate | StateRole::PreCandidate)
    }

    /// The leader of the current term; 0 if unknown.
    pub(crate) fn leader(&self) -> u64 {
        self.raw.raft.leader_id
    }

    /// Whether this node leads, or received a leader's message within the shortest election time-out.
    pub(crate) fn hears_leader(&self) -> bool {
        self.is_leader() || (self.leader() != 0 && self.raw.raft.election_elapsed < ELECTION_TICKS)
    }

    pub(crate) fn term(&self) -> u64 {
        self.raw.raft.term
    }

    pub(crate) fn committed(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    /// Starts an election at once. For a node that is the only voter, which need not wait for a time-out.
    pub(crate) fn campaign(&mut self) {
        // raft-rs returns no error for this message.
        let _ = self.raw.campaign();
        self.set_timeout();
    }

    pub(crate) fn tick(&mut self) {
        self.raw.tick();
        if self.leader() != 0 {
            self.campaigns = 0;
        } else if self.is_candidate() && self.raw.raft.election_elapsed == 0 {
            self.campaigns += 1;
        }
        self.set_timeout();
        if self.is_leader() {
            let progress = self.progress();
            self.lag.tick(&progress, self.raw.store().start());
        } else {
            self.lag.forget();
        }
        self.pin();
    }

    /// Handles a peer's message. Must not be called between [`Engine::ready`] and [`Engine::persisted`].
    ///
    /// # Errors
    /// [`Ignored`]: the message was dropped, since it is invalid in this node's state or its sender is no
    /// member.
    pub(crate) fn step(&mut self, mut message: PeerMessage) -> Result<(), Ignored> {
        bounds::check(&self.standpoint(), &mut message)?;
        let message = from_peer(self.raw.raft.id, message)?;
        self.step_raft(message)
    }

    /// See [`bounds::beyond_log`].
    pub(crate) fn beyond_log(&self, message: &PeerMessage) -> Option<u64> {
        bounds::beyond_log(&self.standpoint(), message)
    }

    fn standpoint(&self) -> Standpoint {
        Standpoint {
            term: self.term(),
            last: self.last_index(),
            committed: self.committed(),
            leader: self.leader(),
            is_leader: self.is_leader(),
        }
    }

    /// Passes the metadata of a completely received snapshot to raft-rs, which decides whether it is newer.
    pub(crate) fn step_snapshot(
        &mut self,
        from: u64,
        term: u64,
        at: Position,
        configuration: &store::Configuration,
    ) -> Result<(), Ignored> {
        bounds::check_snapshot(&self.standpoint(), from, term, at, configuration)?;
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = at.index;
        metadata.term = at.term;
        metadata.set_conf_state(to_conf_state(configuration));
        let mut message = Message { from, to: self.raw.raft.id, term, ..Message::default() };
        message.set_msg_type(raft::prelude::MessageType::MsgSnapshot);
        message.set_snapshot(snapshot);
        self.step_raft(message)
    }

    /// Whether the snapshot of the last [`Engine::step_snapshot`] replaces the log once it is durable. That
    /// is not the case if the log is newer.
    pub(crate) fn will_install(&self, at: Position) -> bool {
        self.raw.snap().is_some_and(|snapshot| {
            let metadata = snapshot.get_metadata();
            (metadata.index, metadata.term) == (at.index, at.term)
        })
    }

    fn step_raft(&mut self, message: Message) -> Result<(), Ignored> {
        let result = self.raw.step(message);
        // A step may begin a new term, for which raft-rs draws a random election time-out; it is replaced by
        // a reproducible one.
        self.set_timeout();
        result.map_err(|_| Ignored("its sender is no member"))
    }

    /// Appends an entry as leader. `None` if refused: the caller must propose it again later, before any
    /// other.
    pub(crate) fn propose(&mut self, data: Vec<u8>) -> Option<Position> {
        self.raw.propose(Vec::new(), data).ok()?;
        Some(self.last())
    }

    /// Proposes a membership change; `None` if refused. The engine may still replace it by an empty entry, so
    /// the caller must check the entry committed at this position.
    pub(crate) fn change(&mut self, change: &store::MembersChange) -> Option<Position> {
        let mut proposed = conf_change(change);
        proposed.context = change.encode_to_vec().into();
        self.raw.propose_conf_change(Vec::new(), proposed).ok()?;
        Some(self.last())
    }

    /// Applies a committed membership change; returns the new configuration.
    ///
    /// # Errors
    /// If the change contradicts the current configuration: the log is corrupt.
    pub(crate) fn apply_change(
        &mut self,
        change: &store::MembersChange,
    ) -> Result<store::Configuration, String> {
        let state = self.raw.apply_conf_change(&conf_change(change)).map_err(|error| error.to_string())?;
        self.raw.mut_store().conf_state = state.clone();
        Ok(from_conf_state(&state))
    }

    fn last(&self) -> Position {
        Position { index: self.last_index(), term: self.term() }
    }

    /// Begins a quorum read, whose response is in [`Ready::confirmed`]. raft-rs may drop it without a
    /// response.
    pub(crate) fn ask(&mut self, round: u64) {
        self.raw.read_index(round.to_le_bytes().to_vec());
    }

    /// Begins a leadership transfer. It fails unless the target is a voter that can be brought up to date
    /// within an election time-out. Until the transfer ends, proposals are refused.
    pub(crate) fn transfer(&mut self, to: u64) {
        self.raw.transfer_leader(to);
    }

    pub(crate) fn is_transferring(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// Reports that messages to this peer may have been lost.
    pub(crate) fn lost(&mut self, peer: u64) {
        self.raw.report_unreachable(peer);
    }

    /// Reports the outcome of sending a snapshot. There must be exactly one report for each node in
    /// `snapshots_to` of [`Ready`] and [`Released`]: until then raft-rs sends the peer no entries.
    pub(crate) fn snapshot_sent(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(peer, status);
    }

    /// Reports a snapshot that is stored on disk and can be sent to followers.
    pub(crate) fn snapshot_stored(&mut self, at: Position, configuration: store::Configuration) {
        self.raw.mut_store().stored(at, configuration);
    }

    /// Whether a follower needs a snapshot that is not stored. Clears the request.
    pub(crate) fn take_snapshot_wish(&self) -> bool {
        self.raw.store().take_wish()
    }

    /// Reports that a snapshot at this index was begun for followers that need one. The entries after it are
    /// kept from now on, since the followers will need these too.
    pub(crate) fn snapshot_begun(&mut self, index: u64) {
        self.lag.begun(index);
        self.pin();
    }

    /// Reports that the stored snapshot is being sent to these followers.
    fn snapshots_leave(&mut self, to: &[u64]) {
        let index = self.raw.store().stored_index();
        to.iter().for_each(|node| self.lag.sent(*node, index));
        self.pin();
    }

    fn pin(&mut self) {
        let pins = if self.mutant == Some(Mutant::TailNotPinned) { [None; 2] } else { self.lag.pins() };
        self.raw.mut_store().pin(pins);
    }

    /// Index of the last log entry, committed or not.
    pub(crate) fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    /// Replication progress of the other nodes; empty on a node that does not lead.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let tracker = self.raw.raft.prs();
        let voters = tracker.conf().voters();
        let others = tracker.iter().filter(|(node, _)| **node != self.raw.raft.id);
        let mut progress: Vec<Progress> = others
            .map(|(&node, it)| Progress {
                node,
                matched: it.matched,
                committed: it.committed_index,
                was_heard: it.recent_active,
                is_active: it.recent_active || self.lag.silent(node) <= SILENT_TICKS,
                is_learner: !voters.contains(node),
                waits_for_snapshot: it.state == ProgressState::Snapshot,
            })
            .collect();
        progress.sort_unstable_by_key(|it| it.node);
        progress
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.held.is_empty() || self.raw.has_ready()
    }

    pub(crate) fn ready(&mut self) -> Ready {
        if !self.held.is_empty() {
            return self.ready_to_release();
        }
        let before = self.raw.store().hard_state.clone();
        let mut ready = self.raw.ready();
        let confirmed = ready.take_read_states();
        let (committed, held) =
            split(to_committed(ready.take_committed_entries()).collect(), |entry| entry.is_members);
        let snapshot = Some(ready.snapshot()).filter(|it| it.get_metadata().index > 0).cloned();
        let entries = ready.take_entries();
        let state = self.raw.raft.hard_state();
        let must_write = ready.must_sync() || held.iter().any(|entry| self.waits(entry));
        // Every record contains the commit index, changed or not, although raft-rs tolerates its loss. So a
        // node that restarts is at most one membership change behind any node that it may communicate with.
        // Majorities of two successive configurations intersect; with a configuration that is two changes
        // old, a second leader could be elected.
        let forgets = self.mutant == Some(Mutant::MembersAppliedEarly) && ready.hs().is_none();
        let hard_state = (must_write && !forgets).then_some(store::HardState {
            term: state.term,
            vote: state.vote,
            commit: state.commit,
        });
        let record = store::Record { hard_state, entries: entries.iter().map(to_stored).collect() };
        // A leader's messages need not wait for its own disk, unless its term is new: a sole voter elects
        // itself in one step, and if it crashed before the sync, it could lead the same term twice.
        let (mut now, mut after) = (Vec::new(), Vec::new());
        let mut snapshots_to = Vec::new();
        let is_new = (state.term, state.vote) != (before.term, before.vote);
        let early = if is_new { &mut after } else { &mut now };
        sort(&ready.take_messages(), early, &mut snapshots_to);
        sort(&ready.take_persisted_messages(), &mut after, &mut snapshots_to);
        if !self.is_leader() {
            // If this node was deposed in this turn, the offers would name it as the leader of the later
            // term.
            snapshots_to.clear();
        }
        now.extend(after.extract_if(.., |message| self.is_hasty(message)));
        if !snapshots_to.is_empty() {
            self.snapshots_leave(&snapshots_to);
        }
        let tail = self.raw.mut_store();
        tail.hard_state = state;
        let installed = snapshot.map(|snapshot| {
            let metadata = snapshot.get_metadata();
            let at = Position { index: metadata.index, term: metadata.term };
            tail.install(at, metadata.get_conf_state().clone());
            at
        });
        tail.append(entries);
        let confirmed = confirmed.into_iter().filter_map(|state| {
            let round = state.request_ctx.as_slice().try_into().ok()?;
            Some((u64::from_le_bytes(round), state.index))
        });
        let commit = hard_state.map(|state| state.commit);
        Ready {
            confirmed: confirmed.collect(),
            committed,
            now,
            snapshots_to,
            write: Write {
                record,
                installs: installed.map(|at| at.index),
                then: Then { after, held, commit, installed, ready: Some(ready) },
            },
        }
    }

    /// A write of the commit index only, so that the entries that wait for it can be applied.
    fn ready_to_release(&mut self) -> Ready {
        let state = self.raw.raft.hard_state();
        let stored = &self.raw.store().hard_state;
        // Term and vote are those of the last record. Newer ones, if any, are written by the next call of
        // `ready`, together with what depends on them.
        let hard_state = store::HardState {
            term: stored.term,
            vote: stored.vote,
            commit: state.commit.min(self.persisted_to()),
        };
        let record = store::Record { hard_state: Some(hard_state), entries: Vec::new() };
        let held = std::mem::take(&mut self.held);
        Ready {
            confirmed: Vec::new(),
            committed: Vec::new(),
            now: Vec::new(),
            snapshots_to: Vec::new(),
            write: Write {
                record,
                installs: None,
                then: Then {
                    after: Vec::new(),
                    held,
                    commit: Some(hard_state.commit),
                    installed: None,
                    ready: None,
                },
            },
        }
    }

    /// Whether a mutant sends this message before the write that it depends on.
    fn is_hasty(&self, message: &PeerMessage) -> bool {
        match message.kind() {
            PeerKind::VoteResponse | PeerKind::Vote => self.mutant == Some(Mutant::VoteNotDurable),
            PeerKind::AppendResponse => self.mutant == Some(Mutant::AckBeforeSync),
            _ => false,
        }
    }

    fn persisted_to(&self) -> u64 {
        self.raw.raft.raft_log.persisted
    }

    /// Whether the entry is a membership change that must wait: it is applied only once its commit is durable
    /// on this node.
    fn waits(&self, entry: &Committed) -> bool {
        let early = self.mutant == Some(Mutant::MembersAppliedEarly);
        entry.is_members && entry.at.index > self.durable_commit && !early
    }

    /// Continues after a write; returns the messages and entries that depended on it.
    pub(crate) fn persisted(&mut self, proof: Persisted) -> Released {
        let Then { after: mut messages, mut held, commit, installed, ready } = proof.0;
        self.durable_commit = self.durable_commit.max(commit.unwrap_or(0));
        let mut snapshots_to = Vec::new();
        if let Some(ready) = ready {
            let mut light = self.raw.advance_append(ready);
            if let Some(commit) = light.commit_index() {
                self.raw.mut_store().hard_state.commit = commit;
            }
            sort(&light.take_messages(), &mut messages, &mut snapshots_to);
            held.extend(to_committed(light.take_committed_entries()));
        }
        if !snapshots_to.is_empty() {
            self.snapshots_leave(&snapshots_to);
        }
        let (committed, held) = split(held, |entry| self.waits(entry));
        self.held = held;
        Released { installed, committed, messages, snapshots_to }
    }

    /// To be called when all entries up to `index` are applied.
    pub(crate) fn applied(&mut self, index: u64) {
        self.raw.advance_apply_to(index);
        self.raw.mut_store().trim(index);
    }
}

/// Splits the entries before the first one for which `waits` is true.
fn split(
    mut entries: Vec<Committed>,
    waits: impl Fn(&Committed) -> bool,
) -> (Vec<Committed>, Vec<Committed>) {
    let first = entries.iter().position(waits).unwrap_or(entries.len());
    let held = entries.split_off(first);
    (entries, held)
}

fn sort(from: &[Message], messages: &mut Vec<PeerMessage>, snapshots_to: &mut Vec<u64>) {
    for message in from {
        match to_peer(message) {
            Some(message) => messages.push(message),
            None if message.has_snapshot() => snapshots_to.push(message.to),
            None => {}
        }
    }
    coalesce(messages);
}
