//! The replica: consensus, lock table and deadlines as one state machine.
//!
//! One turn of the event loop:
//!
//! 1. Read all input that has arrived, then the clock. Call [`Replica::begin`], then [`Replica::handle`] for
//!    each event.
//! 2. Call [`Replica::advance`]. If it returns a [`Write`]: send the outputs of [`Replica::take_outputs`],
//!    none of which depends on this write (messages to peers come first, so that the peers write to their
//!    disks while this node writes to its own); append and sync the write; call [`Replica::persisted`].
//!    Repeat until `advance` returns `None` or the caller's limit of writes per turn is reached.
//! 3. Send the outputs of [`Replica::take_outputs`] once more.
//!
//! A turn's work is bounded; if work is left that can be done now, [`Replica::next_wake`] returns the present
//! time. Input that arrives during a turn is handled in the next one, so all commands that have arrived
//! meanwhile share one sync and, up to a size limit, one log entry (group commit; `propose.rs` also says when
//! a leader delays a batch).

mod apply;
mod calls;
mod change;
mod checks;
mod disk_room;
mod expiry;
mod install;
mod lead;
mod parking;
mod propose;
mod questions;
mod quorum_reads;
mod quotas;
mod session_polls;
mod snapshots;
mod streams;
mod token_pace;
mod transfer;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_core::{Effects, Table, WallTime};
use lockkeeper_wire::peer::PeerMessage;
use lockkeeper_wire::{store, v1};

use crate::deadlines::Deadlines;
use crate::engine::{Engine, Persisted, Position, Start, Write};
use crate::event::{Answer, Event, Output, Question, Received, Requester, StreamId};
use crate::lease::LeaseClock;
use crate::load::{Activity, OldestSearch};
use crate::members::Members;
use crate::mutant::Mutant;
use crate::storage::record_bytes;
use apply::ApplyQueue;
pub use apply::TURN_VISITS_MAX;
use calls::OpenCalls;
use change::Changes;
use checks::Checks;
use disk_room::DiskRoom;
pub use expiry::ExpiredSession;
use expiry::Expiry;
use lead::{Lead, Reading};
use parking::Parked;
use propose::{Batch, Origin, Proposal};
use quorum_reads::QuorumReads;
use quotas::Quotas;
pub use snapshots::ITEMS_PER_PIECE;
use snapshots::Snapshots;
use streams::ClientStream;
pub use streams::ENDS_PER_PART;
use token_pace::TokenPace;
use transfer::Handover;
use watch::Watcher;

/// Duration of a Raft tick. A follower starts an election after 12 ticks or more without a message from the
/// leader.
pub const TICK: Duration = Duration::from_millis(20);
/// Bytes of applied entries kept in memory for followers that lag a little. A single-node cluster keeps none.
pub const TAIL_BYTES: usize = 4 << 20;

/// At this number of requests that are queued, or that arrived before this leader was ready, no more client
/// events are read, and the leader proposes no more commands of its own.
const QUEUE_MAX: usize = 1 << 12;
/// While this number of commands is queued or in flight for clients, no more client events are read. The log
/// commits a new command after all of these, so this limit bounds the delay that one client with many
/// commands causes to the others. (Fairness between clients is up to the caller of [`Replica::room`], which
/// takes their events in turn.) If a commit takes 20 ms, since the nodes are far apart, this allows 50,000
/// commands per second.
const OUTSTANDING_MAX: usize = 1 << 10;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Id of this node.
    pub node: u64,
    /// Seed of the randomized election time-outs.
    pub seed: u64,
    /// A table without history issues only tokens above this one (T1).
    pub tokens_above: u64,
    /// Newest version of the table's rules that this program supports (V1): the one in
    /// [`lockkeeper_core::limits`].
    pub rules: u32,
    /// Duration of a Raft tick: [`TICK`], or longer on slow networks.
    pub tick: Duration,
    /// Bytes of applied entries kept in memory for lagging followers: [`TAIL_BYTES`].
    pub tail_bytes: usize,
    /// A snapshot is due once the log has grown, since the last snapshot, by this many bytes and by at least
    /// that snapshot's size.
    pub snapshot_after: u64,
    /// Maximum work of a turn on committed entries, as a number of visited table entries:
    /// [`TURN_VISITS_MAX`]. The simulator sets it lower, so that few requests suffice to reach it.
    pub turn_visits_max: u64,
    /// Maximum number of ended requests reported at once to a client that attaches: [`ENDS_PER_PART`]; lower
    /// in the simulator.
    pub ends_per_part: usize,
    /// A deliberate fault that the simulator must detect. `None` in production.
    pub mutant: Option<Mutant>,
}

/// State recovered from the node's disk.
pub struct Recovered {
    /// The snapshot's table; an empty one if there is no snapshot.
    pub table: Table,
    /// Index of the last entry in the snapshot; 0 without one.
    pub snapshot_index: u64,
    /// Term of that entry.
    pub snapshot_term: u64,
    /// Cluster members, from the snapshot or, without one, from the bootstrap record.
    pub members: Members,
    /// `None` on a new disk.
    pub hard_state: Option<store::HardState>,
    /// Log entries after the snapshot.
    pub entries: Vec<store::Entry>,
    /// The size on disk of their records, in bytes.
    pub entry_bytes: u64,
}

/// A fatal error: the node must stop before it violates a guarantee.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(pub(crate) String);

/// One node of the lock service.
pub struct Replica {
    config: Config,
    engine: Engine,
    table: Table,
    applied: Position,
    members: Members,
    /// Client address of each node, for redirects.
    clients: BTreeMap<u64, String>,
    /// Number of times since the start that a peer has reported another client address. It is a part of the
    /// version of the node list that is sent to streams.
    addresses_seen: u64,
    /// Peers whose connection broke and is not established again yet.
    unreachable: BTreeSet<u64>,
    /// `now`: the caller's clock, read at the beginning of this turn or after the last write in it. `clock`:
    /// the lease clock, which advances only at the beginning of a turn.
    now: Duration,
    clock: LeaseClock,
    /// The reading that `clock` would have after the last write of this turn; before any write, its actual
    /// reading. Timers started by a command count from here, not from before a slow sync.
    lease_now: Duration,
    next_tick: Duration,
    lead: Lead,
    book: Deadlines,
    /// The wall clock at the beginning of this turn.
    wall: WallTime,
    streams: BTreeMap<StreamId, ClientStream>,
    /// Streams with items to send, or with another session.
    unflushed: BTreeSet<StreamId>,
    /// The version of the node list that all streams with a session have received; see `ClientStream::nodes`.
    flushed_nodes: Option<(u64, u64)>,
    calls: OpenCalls,
    /// Client events received before this leader was ready, and the number of requests in them; an event that
    /// is no frame counts as one.
    early: VecDeque<Event>,
    early_requests: usize,
    /// Progress of a new leader's scan of its table.
    reading: Option<Reading>,
    parked: Parked,
    queue: VecDeque<Proposal>,
    turn: ApplyQueue,
    /// Whether a `Resume` is queued or proposed, and not applied yet.
    is_resuming: bool,
    /// Whether the engine refused the last proposal. The queue then does not make the next turn begin at
    /// once; the proposal is tried again after the next event or tick.
    is_refused: bool,
    in_flight: VecDeque<Batch>,
    /// Until this time, batches are proposed without waiting for the commit of the previous one; see
    /// `propose.rs`.
    unheld_until: Duration,
    token_pace: TokenPace,
    rounds: QuorumReads,
    expiry: Expiry,
    snapshots: Snapshots,
    checks: Checks,
    disk_room: DiskRoom,
    /// A leader's snapshot that the consensus has accepted, until it is installed.
    received: Option<Box<Received>>,
    changes: Changes,
    handover: Handover,
    watchers: Vec<Watcher>,
    quotas: Quotas,
    effects: Effects,
    activity: Activity,
    oldest: OldestSearch,
    /// Messages by receiver; sent before all other outputs.
    to_peers: BTreeMap<u64, Vec<PeerMessage>>,
    outputs: Vec<Output>,
}

impl Replica {
    /// Starts a node from its recovered state.
    ///
    /// # Errors
    /// If the recovered state is inconsistent.
    pub fn start(config: Config, recovered: Recovered, now: Duration) -> Result<Self, Fatal> {
        let applied = Position { index: recovered.snapshot_index, term: recovered.snapshot_term };
        let mut engine = Engine::start(Start {
            node: config.node,
            configuration: recovered.members.configuration.clone(),
            seed: config.seed,
            tail_bytes: config.tail_bytes,
            mutant: config.mutant,
            snapshot_index: recovered.snapshot_index,
            snapshot_term: recovered.snapshot_term,
            hard_state: recovered.hard_state,
            entries: recovered.entries,
        })
        .map_err(Fatal)?;
        if recovered.members.configuration.voters == [config.node] && !recovered.members.is_joint() {
            engine.campaign();
        }
        let clients = recovered.members.nodes.values();
        let clients = clients.map(|member| (member.node, member.client_address.clone())).collect();
        let mut replica = Self {
            next_tick: now + config.tick,
            config,
            engine,
            table: recovered.table,
            applied,
            members: recovered.members,
            clients,
            addresses_seen: 0,
            unreachable: BTreeSet::new(),
            now,
            clock: LeaseClock::new(now),
            lease_now: Duration::ZERO,
            lead: Lead::No,
            book: Deadlines::default(),
            wall: WallTime::default(),
            streams: BTreeMap::new(),
            unflushed: BTreeSet::new(),
            flushed_nodes: None,
            calls: OpenCalls::default(),
            early: VecDeque::new(),
            early_requests: 0,
            reading: None,
            parked: Parked::default(),
            queue: VecDeque::new(),
            turn: ApplyQueue::default(),
            is_resuming: false,
            is_refused: false,
            in_flight: VecDeque::new(),
            unheld_until: Duration::ZERO,
            token_pace: TokenPace::default(),
            rounds: QuorumReads::default(),
            expiry: Expiry::default(),
            snapshots: Snapshots::new(recovered.entry_bytes),
            checks: Checks::default(),
            disk_room: DiskRoom::default(),
            received: None,
            changes: Changes::default(),
            handover: Handover::default(),
            watchers: Vec::new(),
            quotas: Quotas::default(),
            effects: Effects::new(),
            activity: Activity::default(),
            oldest: OldestSearch::default(),
            to_peers: BTreeMap::new(),
            outputs: Vec::new(),
        };
        if applied.index > 0 {
            let head = replica.snapshot_head();
            replica.snapshot_stored(head);
        }
        Ok(replica)
    }

    /// Begins a turn. `now` is read from a clock that counts suspend (`CLOCK_BOOTTIME`), with any origin;
    /// `wall` is for people, and for the pace of tokens (C3).
    pub fn begin(&mut self, now: Duration, wall: WallTime) {
        self.wall = wall;
        self.now = self.now.max(now);
        self.turn.begin(self.config.turn_visits_max);
        let step_max = self.step_max();
        self.clock.turn(now, step_max);
        self.lease_now = self.clock.now();
        if now >= self.next_tick {
            // At most one tick per turn, however late: a stall must not depose a leader.
            self.engine.tick();
            self.next_tick = now + self.config.tick;
        }
    }

    fn step_max(&self) -> Duration {
        if self.is(Mutant::LeaseCountsStalls) { Duration::MAX } else { self.book.step_max() }
    }

    /// Handles one event.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Asked(ask, Question::Status) => {
                let status = Answer::Status(Box::new(self.status()));
                self.outputs.push(Output::Answer(ask, status));
            }
            Event::Asked(ask, Question::Load { prefixes, segments }) => {
                let load = Answer::Load(Box::new(self.load(&prefixes, segments)));
                self.outputs.push(Output::Answer(ask, load));
            }
            Event::Peer(messages) => messages.into_iter().for_each(|message| self.peer(message)),
            Event::PeerUp { node, rules_max, client_address } => {
                self.changes.peer_up(node, rules_max);
                self.peer_up(node, client_address);
            }
            Event::PeerDown(node) => {
                self.changes.peer_down(node);
                self.peer_down(node);
            }
            Event::PeerMissed(node) => self.engine.lost(node),
            Event::WatchRead(ask) => self.watch_read(ask),
            Event::Drained(barrier) => self.expiry.drained(barrier),
            Event::SnapshotStepDone => self.snapshot_step_done(),
            Event::SnapshotFailed => self.snapshot_failed(),
            Event::SnapshotReceived(received) => self.snapshot_received(received),
            Event::SnapshotSent { to, arrived } => self.engine.snapshot_sent(to, arrived),
            Event::DiskFull(is_full) => self.disk_room.is_full = is_full,
            Event::ShutDown => self.shut_down(),
            Event::Asked(ask, question @ Question::CheckToken { .. })
                if self.lead == Lead::No && self.is(Mutant::FollowerAnswersCheckToken) =>
            {
                self.answer(ask, question);
            }
            Event::StreamOpened { .. }
            | Event::Frame(..)
            | Event::Called(..)
            | Event::CallDropped(_)
            | Event::Asked(..)
            | Event::StreamClosed { .. }
            | Event::Dropped(_)
                if self.lead == Lead::No =>
            {
                self.without_lead(event);
            }
            Event::StreamOpened { stream, identity, quota } => self.stream_opened(stream, &identity, quota),
            Event::Quotas { total, by_identity } => self.quotas.set(total, by_identity),
            // A leader that is not ready must not answer requests, so they are kept until it is ready. So are
            // the ends of streams and calls, which must be handled after the requests that arrived before
            // them.
            Event::Frame(..)
            | Event::Called(..)
            | Event::CallDropped(_)
            | Event::Asked(..)
            | Event::StreamClosed { .. }
            | Event::Dropped(_)
                if self.lead.is_coming() =>
            {
                self.early_requests +=
                    if let Event::Frame(_, requests) = &event { requests.len() } else { 1 };
                self.early.push_back(event);
            }
            Event::StreamClosed { stream, cause } => self.stream_closed(stream, cause),
            Event::StreamSilent(stream) => self.stream_silent(stream),
            Event::Dropped(ask) => self.dropped(ask),
            Event::Frame(stream, requests) => self.frame(stream, requests),
            Event::Called(call, called) => self.called(call, *called),
            Event::CallDropped(call) => self.call_dropped(call),
            Event::Asked(ask, question) => self.asked(ask, question),
        }
    }

    fn peer(&mut self, message: PeerMessage) {
        let (from, kind) = (message.from, message.kind());
        self.compare(&message);
        self.note_disk_of(&message);
        if let Err(why) = self.engine.step(message) {
            tracing::debug!(from, ?kind, "{why}");
        }
    }

    /// Applies committed entries, then proposes. If it returns a [`Write`], the caller sends the outputs of
    /// [`Replica::take_outputs`], writes and syncs its record, and calls [`Replica::persisted`]. `None`:
    /// nothing to write now.
    ///
    /// # Errors
    /// If the node must stop, since it can't apply a committed entry (V1).
    pub fn advance(&mut self) -> Result<Option<Write>, Fatal> {
        self.apply_committed(true)?;
        self.follow_leadership();
        self.read_timers();
        self.settle_parked();
        self.tend_handover();
        self.hand_over_if_leaving();
        self.hand_over_if_full();
        self.judge();
        if self.lead.is_ready() {
            if self.may_end() {
                self.end_due();
            }
            self.tend_members();
            self.propose();
            self.begin_round();
        }
        if !self.engine.has_ready() {
            return Ok(None);
        }
        let ready = self.engine.ready();
        self.send_snapshots(ready.snapshots_to);
        self.send(ready.now);
        for (round, index) in ready.confirmed {
            self.rounds.confirmed(round, index);
        }
        self.turn.push(ready.committed);
        self.apply_committed(false)?;
        self.snapshots.logged(record_bytes(ready.write.record()));
        Ok(Some(ready.write))
    }

    /// Continues after a write has become durable. `now` is read after the sync: timers that are started by
    /// the commands applied here (a ttl, a lock-delay) count from this time, not from before a slow sync.
    ///
    /// # Errors
    /// If the node must stop, since it can't apply a committed entry (V1) or install a snapshot.
    pub fn persisted(&mut self, now: Duration, proof: Persisted) -> Result<(), Fatal> {
        self.now = self.now.max(now);
        self.lease_now = self.clock.peek(now, self.step_max());
        self.batches_on_disk();
        let released = self.engine.persisted(proof);
        if let Some(at) = released.installed {
            self.install(at)?;
        }
        self.send_snapshots(released.snapshots_to);
        self.send(released.messages);
        self.turn.push(released.committed);
        self.apply_committed(true)
    }

    fn send(&mut self, messages: Vec<PeerMessage>) {
        for mut message in messages {
            self.checks.say(&mut message);
            self.disk_room.say(&mut message);
            self.to_peers.entry(message.to).or_default().push(message);
        }
    }

    /// Returns the pending outputs, to be executed in this order. No output depends on a write that is not
    /// durable yet.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        self.answer_confirmed();
        self.tell_watchers();
        self.tell_states();
        self.snapshot_step();
        self.flush_streams();
        let peers = std::mem::take(&mut self.to_peers).into_iter();
        let mut outputs: Vec<Output> = peers.map(|(node, messages)| Output::Peer(node, messages)).collect();
        outputs.append(&mut self.outputs);
        outputs
    }

    /// How many requests of clients are accepted now. The caller keeps the others until enough commands are
    /// committed.
    #[must_use]
    pub fn room(&self) -> usize {
        let in_flight: usize = self.in_flight.iter().map(|batch| batch.of_clients).sum();
        self.queue_room().min(OUTSTANDING_MAX.saturating_sub(self.queue.len() + in_flight))
    }

    /// How many more commands the queue may take from the leader itself.
    fn queue_room(&self) -> usize {
        QUEUE_MAX.saturating_sub(self.queue.len() + self.early_requests)
    }

    /// The latest time at which the next turn must begin, on the clock of [`Replica::begin`].
    #[must_use]
    pub fn next_wake(&self) -> Duration {
        let due = self.book.sleep_max(self.clock.now()).filter(|_| self.may_end() && self.queue_room() > 0);
        let due = due.map_or(self.next_tick, |sleep| self.next_tick.min(self.now + sleep));
        let held = self.held_until();
        let at_once = (self.turn.has_more() && !self.waits_to_be_removed())
            || self.reading.is_some()
            || self.engine.has_ready()
            || (!self.queue.is_empty() && !self.is_refused && held.is_none())
            || (self.expiry.is_decided() && self.may_end())
            || self.snapshots.is_due()
            || self.has_untold_watcher();
        if at_once {
            return self.now;
        }
        let due = held.map_or(due, |held| due.min(held));
        self.rounds.due().map_or(due, |round| due.min(round))
    }

    /// The lock table, for tests and the simulator.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether this node leads and its zero point has passed: it has applied every entry committed before its
    /// term, has read all timers from its table, and answers clients.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lead.is_ready()
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.engine.term()
    }

    /// The leader of the current term; 0 if this node knows none.
    #[must_use]
    pub fn leader(&self) -> u64 {
        self.engine.leader()
    }

    /// The cluster members after the last applied entry.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// Index of the last entry that is completely applied.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied.index
    }

    /// Index of the last entry that is at least partly applied: [`Replica::applied_index`], or the next one
    /// if the turn's budget ran out in the middle of it.
    #[must_use]
    pub fn begun_index(&self) -> u64 {
        self.turn.begun().unwrap_or(self.applied.index)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.config.mutant == Some(mutant)
    }

    fn tell(&mut self, to: Requester, item: v1::ServerItem) {
        match to {
            Requester::Stream(stream) => {
                if let Some(open) = self.streams.get_mut(&stream) {
                    open.items.push(item);
                    self.unflushed.insert(stream);
                }
            }
            Requester::Call(call) => self.answer_call(call, item),
        }
    }
}
