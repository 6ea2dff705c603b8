//! The replica: consensus, table and deadlines as one state machine.
//!
//! A turn is: read everything that has arrived, then the clock; [`Replica::begin`]; [`Replica::handle`] for each; then, until
//! [`Replica::advance`] has nothing to write, or often enough: [`Replica::take_outputs`], which depends on nothing unwritten and goes out first (peers
//! before clients, so that all disks work at once), append and sync, [`Replica::persisted`]; and [`Replica::take_outputs`] once more.
//! A turn's work is bounded; [`Replica::next_wake`] is at once if there is more. Whatever arrives meanwhile is the next turn's: so one log entry, and one sync, serve all that was waiting (natural group commit;
//! among several nodes see `propose.rs`).

mod apply;
mod change;
mod checks;
mod expiry;
mod install;
mod lead;
mod parking;
mod propose;
mod questions;
mod rounds;
mod snapshots;
mod streams;
mod transfer;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_core::{Command, Effects, Seq, SessionId, Table};
use lockkeeper_wire::peer::PeerMessage;
use lockkeeper_wire::{store, v1};

use crate::book::Book;
use crate::engine::{Engine, Persisted, Position, Start, Write};
use crate::event::{Answer, AskId, Event, Output, Question, Received, StreamId};
use crate::lease::LeaseClock;
use crate::members::Members;
use crate::mutant::Mutant;
use crate::since::Since;
pub use apply::TURN_VISITS_MAX;
use apply::Turn;
use change::Changes;
use checks::Checks;
use expiry::Expiry;
use lead::{Lead, Reading};
use parking::Parked;
use propose::Batch;
use rounds::Rounds;
pub use snapshots::ITEMS_PER_PIECE;
use snapshots::Snapshots;
pub use streams::ENDS_PER_PART;
use streams::Stream;
use transfer::Handover;
use watch::Watcher;

/// The consensus' unit of time. Twelve of them without a sign of the leader, at the least, start an election.
pub const TICK: Duration = Duration::from_millis(20);
/// Applied entries that are kept in memory for followers which lag a little, in bytes. A node alone keeps none.
pub const TAIL_BYTES: usize = 4 << 20;

/// Commands that may wait for the log: above this, clients' events are not read.
const QUEUE_MAX: usize = 1 << 16;

/// What a node is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: u64,
    /// Decides election time-outs.
    pub seed: u64,
    /// The first tokens of a table without history are above this one (T1).
    pub tokens_above: u64,
    /// The newest rules of the table that this program knows (V1): those of [`lockkeeper_core::limits`].
    pub rules: u32,
    /// The consensus' unit of time: [`TICK`], or longer where the network is slow.
    pub tick: Duration,
    /// Applied entries that are kept in memory for followers which lag: [`TAIL_BYTES`].
    pub tail_bytes: usize,
    /// A snapshot is taken once the log has grown by so many bytes since the last one, and by that one's size.
    pub snapshot_after: u64,
    /// Most work of a turn on committed entries: [`TURN_VISITS_MAX`]. The simulator has less, and needs no large crowd.
    pub turn_visits_max: u64,
    /// Most unconfirmed ends sent at once for an attach: [`ENDS_PER_PART`], in the simulator fewer.
    pub ends_per_part: usize,
    /// A fault that is built in on purpose, for the simulator to find. `None` in production.
    pub mutant: Option<Mutant>,
}

/// What a node found on its disk.
pub struct Recovered {
    /// The table of the snapshot; a new one without.
    pub table: Table,
    /// The last entry in it; 0 without.
    pub snapshot_index: u64,
    /// That entry's term.
    pub snapshot_term: u64,
    /// Who takes part: by the snapshot, or as founded.
    pub members: Members,
    /// `None` on a new disk.
    pub hard_state: Option<store::HardState>,
    /// The log after the snapshot.
    pub entries: Vec<store::Entry>,
}

/// The node can't go on: it stops before it does harm.
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
    /// Where each node serves clients, for those who ask the wrong one.
    clients: BTreeMap<u64, String>,
    /// How often one of them was seen to have changed.
    addresses_seen: u64,
    /// Peers whose connections broke and did not come back.
    unreachable: BTreeSet<u64>,
    /// The caller's clock at this turn, and the lease clock.
    now: Duration,
    clock: LeaseClock,
    /// What the lease clock would show now: later than at the turn's beginning once a write has taken its time.
    lease_now: Duration,
    next_tick: Duration,
    lead: Lead,
    book: Book,
    since: Since,
    streams: BTreeMap<StreamId, Stream>,
    /// What a client said before this leader was ready, and how many requests that is.
    early: VecDeque<Event>,
    early_requests: usize,
    /// How far this leader has read its table.
    reading: Option<Reading>,
    parked: Parked,
    queue: VecDeque<Proposal>,
    turn: Turn,
    /// A `Resume` is proposed, and not applied yet.
    is_resuming: bool,
    /// The engine took no more proposals at the last try: another is made after the next event or tick.
    is_refused: bool,
    in_flight: VecDeque<Batch>,
    /// No batch waits for the one before it until then.
    unheld_until: Duration,
    rounds: Rounds,
    expiry: Expiry,
    snapshots: Snapshots,
    checks: Checks,
    /// A leader's snapshot that the consensus has accepted, until it is installed.
    received: Option<Box<Received>>,
    changes: Changes,
    handover: Handover,
    watchers: Vec<Watcher>,
    effects: Effects,
    /// What goes to whom, before all other outputs.
    to_peers: BTreeMap<u64, Vec<PeerMessage>>,
    outputs: Vec<Output>,
}

/// A command that is to enter the log, and who waits for its answer.
struct Proposal {
    command: Command,
    origin: Origin,
}

enum Origin {
    /// A session's own command.
    Session { stream: StreamId, session: SessionId, seq: Seq },
    /// An open, which attaches too. Its sign of life counts from when it was received, on the lease clock.
    Open { stream: StreamId, attach: u64, secret_prefix: u64, received: Duration },
    /// An operator's command.
    Ask(AskId),
    /// The leader's own.
    Leader,
}

impl Replica {
    /// A node that goes on where its disk left it.
    ///
    /// # Errors
    /// If what was found contradicts itself.
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
            book: Book::default(),
            since: Since::default(),
            streams: BTreeMap::new(),
            early: VecDeque::new(),
            early_requests: 0,
            reading: None,
            parked: Parked::default(),
            queue: VecDeque::new(),
            turn: Turn::default(),
            is_resuming: false,
            is_refused: false,
            in_flight: VecDeque::new(),
            unheld_until: Duration::ZERO,
            rounds: Rounds::default(),
            expiry: Expiry::default(),
            snapshots: Snapshots::default(),
            checks: Checks::default(),
            received: None,
            changes: Changes::default(),
            handover: Handover::default(),
            watchers: Vec::new(),
            effects: Effects::new(),
            to_peers: BTreeMap::new(),
            outputs: Vec::new(),
        };
        if applied.index > 0 {
            let head = replica.snapshot_head();
            replica.snapshot_stored(head);
        }
        Ok(replica)
    }

    /// Begins a turn. `now` is a clock that counts suspend (`CLOCK_BOOTTIME`), from any origin.
    pub fn begin(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.turn.begin(self.config.turn_visits_max);
        let step_max = self.step_max();
        self.clock.turn(now, step_max);
        self.lease_now = self.clock.now();
        if now >= self.next_tick {
            // One, however long ago the last was: a stall must not depose a leader.
            self.engine.tick();
            self.next_tick = now + self.config.tick;
        }
    }

    fn step_max(&self) -> Duration {
        if self.is(Mutant::LeaseCountsStalls) { Duration::MAX } else { self.book.step_max() }
    }

    /// Takes something that has happened.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Asked(ask, Question::Status) => {
                let status = Answer::Status(self.status());
                self.outputs.push(Output::Answer(ask, status));
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
            Event::ShutDown => self.shut_down(),
            Event::Asked(ask, question @ Question::CheckToken { .. })
                if self.lead == Lead::No && self.is(Mutant::FollowerAnswersCheckToken) =>
            {
                self.answer(ask, question);
            }
            Event::StreamOpened(_)
            | Event::Frame(..)
            | Event::Asked(..)
            | Event::StreamClosed { .. }
            | Event::Dropped(_)
                if self.lead == Lead::No =>
            {
                self.without_lead(event);
            }
            Event::StreamOpened(stream) => self.stream_opened(stream),
            // What must not be answered before the leader knows what there is; what ends it stays behind it.
            Event::Frame(..) | Event::Asked(..) | Event::StreamClosed { .. } | Event::Dropped(_)
                if self.lead.is_coming() =>
            {
                self.early_requests +=
                    if let Event::Frame(_, requests) = &event { requests.len() } else { 1 };
                self.early.push_back(event);
            }
            Event::StreamClosed { stream, by_client } => self.stream_closed(stream, by_client),
            Event::Dropped(ask) => self.dropped(ask),
            Event::Frame(stream, requests) => self.frame(stream, requests),
            Event::Asked(ask, question) => self.asked(ask, question),
        }
    }

    fn peer(&mut self, message: PeerMessage) {
        let (from, kind) = (message.from, message.kind());
        self.compare(&message);
        if let Err(why) = self.engine.step(message) {
            tracing::debug!(from, ?kind, "{why}");
        }
    }

    /// Goes on as far as possible; `Some`: [`Replica::take_outputs`] is sent, then this synced, then [`Replica::persisted`]
    /// called.
    ///
    /// # Errors
    /// If the node must stop (V1).
    pub fn advance(&mut self) -> Result<Option<Write>, Fatal> {
        self.apply_committed(true)?;
        self.follow_leadership();
        self.read_timers();
        self.settle_parked();
        self.tend_handover();
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
        Ok(Some(ready.write))
    }

    /// Goes on after a write has become durable; `now` is read after that: what begins with the commands of this entry
    /// (a ttl, a lock-delay) counts from here, and not from before a slow sync.
    ///
    /// # Errors
    /// If the node must stop (V1).
    pub fn persisted(&mut self, now: Duration, proof: Persisted) -> Result<(), Fatal> {
        self.now = self.now.max(now);
        self.lease_now = self.clock.peek(now, self.step_max());
        self.batch_on_disk();
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
            self.to_peers.entry(message.to).or_default().push(message);
        }
    }

    /// What is to be done now, in this order. Nothing of it depends on a write that is not durable yet.
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

    /// Whether clients' events may be given. If not, they wait: what was given has not entered the log yet.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    fn room(&self) -> usize {
        QUEUE_MAX.saturating_sub(self.queue.len() + self.early_requests)
    }

    /// When the next turn must begin at the latest, on the clock of [`Replica::begin`].
    #[must_use]
    pub fn next_wake(&self) -> Duration {
        let due = self.book.sleep_max(self.clock.now()).filter(|_| self.may_end() && self.has_room());
        let due = due.map_or(self.next_tick, |sleep| self.next_tick.min(self.now + sleep));
        let held = self.held_until();
        let at_once = self.turn.has_more()
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

    /// The table, for whoever compares (tests, the simulator).
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether it leads and knows all that was ever committed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lead.is_ready()
    }

    /// The present term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.engine.term()
    }

    /// Who leads in the present term, as far as this node knows; 0 if it doesn't.
    #[must_use]
    pub fn leader(&self) -> u64 {
        self.engine.leader()
    }

    /// Who takes part, as far as this node has applied.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// The last entry in the table.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied.index
    }

    /// The last entry of which the table has at least a part: [`Replica::applied_index`], or the next one while a turn's
    /// budget did not suffice for all of it.
    #[must_use]
    pub fn begun_index(&self) -> u64 {
        self.turn.begun().unwrap_or(self.applied.index)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.config.mutant == Some(mutant)
    }

    fn tell(&mut self, stream: StreamId, item: v1::ServerItem) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.items.push(item);
        }
    }
}
