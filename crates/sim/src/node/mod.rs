//! A node: the production replica and the production log on an in-memory disk, driven as the server process
//! drives them.
//!
//! Packets that have arrived in a socket are kept apart from those that were read, because the drain barrier
//! (P9) depends on the difference. During a write, or while the process is stopped, the event loop does not
//! run, and unread input accumulates.
//!
//! `start.rs`: start and crash. `form.rs`: bootstrap and joining. `handshake.rs`: handshake and
//! admission. `armed.rs`: faults at certain moments. `sockets.rs`: input. `turn.rs`: the event loop.
//! `polls.rs`: a check of calls that wait.

mod addresses;
mod armed;
mod form;
mod handshake;
mod polls;
mod sockets;
mod start;
mod turn;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_core::limits;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{Log, Sealed};
use lockkeeper_replica::{AskId, CallId, Event, Question, Replica, StreamCloseCause, StreamId, Write};
use lockkeeper_wire::store::Record;

use crate::bulk::BulkId;
use crate::clock::{DriftingClock, MS, Nanos, SECOND};
use crate::core::{Core, Id};
use crate::disk_worker::Chores;
use crate::net::{Down, Up};
pub(crate) use addresses::{client_address, node_at};
pub(crate) use armed::Arm;
use form::Forming;
use handshake::Directory;
use lockkeeper_wire::store::Founding;
use polls::Polls;
pub(crate) use start::TOKENS_ABOVE;

/// How often work for a stopped node is retried until the node runs again.
const POLL_EVERY: Nanos = 100 * MS;
/// The error code that a failing disk returns.
const EIO: i32 = 5;

pub(crate) struct SimNode {
    pub(crate) id: Id,
    pub(crate) clock: DriftingClock,
    disk: MemoryDisk,
    /// How often the process has started.
    pub(crate) run: u64,
    process: Option<NodeProcess>,
    /// Set while the node has no data and is looking for its cluster.
    forming: Option<Forming>,
    seed: u64,
    /// A bootstrap node: it takes part in creating the cluster. The others join later.
    is_founder: bool,
    /// The newest version of the table's rules that the node's binary supports.
    pub(crate) rules: u32,
    /// The node's disk was lost and replaced by an empty one: the node is no longer the member that has its
    /// id.
    pub(crate) is_wiped: bool,
    /// The node is never started again.
    pub(crate) is_gone: bool,
    /// The last bootstrap record of the node. It is kept when the disk is wiped, for the mutant that restarts
    /// a wiped node under its old identity.
    record: Option<Founding>,
}

/// The state of a member's process, which a crash loses.
struct NodeProcess {
    replica: Replica,
    directory: Directory,
    log: Log<MemoryDisk>,
    chores: Chores,
    /// Packets that have arrived, but are not read yet.
    sockets: BTreeMap<StreamId, VecDeque<Up>>,
    /// Streams whose next read is already scheduled.
    reading: BTreeSet<StreamId>,
    /// Frames from peers that have arrived, but are not read yet.
    frames: VecDeque<(Id, Vec<u8>)>,
    /// Events that were read, but not yet passed to the replica.
    inbox: VecDeque<Event>,
    barriers: Vec<Barrier>,
    writes: VecDeque<Pending>,
    polls: Polls,
    /// Received snapshots that the replica has neither installed nor discarded, by index.
    incoming: BTreeMap<u64, (BulkId, Sealed<MemoryDisk>)>,
    /// The whole process is stopped until this time.
    stopped_until: Nanos,
    /// The event loop is stopped until this time; client sockets are still read.
    loop_until: Nanos,
    /// No client socket is read until this time.
    unread_until: Nanos,
    /// The clock's reading before the process was stopped, for the mutant that uses it in the first turn
    /// afterwards.
    read_before: Option<Duration>,
    /// The fault that waits for its moment.
    arm: Option<Arm>,
    dies_in_write: bool,
    is_stopping: bool,
    loses_sent: bool,
    /// A keep-alive or attach was passed to the replica in this turn.
    has_sign: bool,
    /// The index of the last entry that `Arm::EntriesLost` has lost.
    lost_entry: u64,
    turn_at: Option<Nanos>,
    /// The table's counter of visited entries at the start of this turn, plus the visits since then that do
    /// not count as its work.
    visits_before: u64,
}

impl NodeProcess {
    /// The earliest time at which the event loop may run.
    fn runs_at(&self) -> Nanos {
        self.stopped_until.max(self.loop_until)
    }

    /// When to check again whether the loop may run: the end of a fault may allow that earlier than planned.
    fn next_poll(&self, now: Nanos) -> Nanos {
        self.runs_at().min(now + POLL_EVERY)
    }
}

/// A write that the disk is carrying out.
enum Pending {
    Write(Box<Write>),
    /// For the mutant that reports a write as synced before it is written.
    Late(Record),
}

impl Pending {
    fn record(&self) -> &Record {
        match self {
            Self::Write(write) => write.record(),
            Self::Late(record) => record,
        }
    }
}

/// A drain barrier: it passes once all input that had arrived when it began has been read.
struct Barrier {
    number: u64,
    waits: BTreeMap<StreamId, usize>,
}

impl SimNode {
    pub(crate) fn new(core: &mut Core, id: Id, is_founder: bool) -> Self {
        let ppm = core.scenario.drift;
        let ppm = core.dice.within(0, 2 * ppm as u64) as i64 - ppm;
        let origin = core.dice.within(SECOND, 1_000_000 * SECOND);
        Self {
            id,
            clock: DriftingClock::new(origin, ppm),
            disk: MemoryDisk::new(),
            run: 0,
            process: None,
            forming: None,
            seed: core.dice.u64(),
            is_founder,
            rules: limits::RULES_VERSION - u32::from(id <= core.scenario.old),
            is_wiped: false,
            is_gone: false,
            record: None,
        }
    }

    /// Whether the node has ever had the bootstrap record. Only then can its data replace those of a lost
    /// disk.
    pub(crate) fn has_record(&self) -> bool {
        self.record.is_some()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some() || self.forming.is_some()
    }

    /// Whether the node is the leader and has applied all entries committed before its term.
    pub(crate) fn is_ready(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.replica.is_ready())
    }

    /// The index of the last applied entry.
    pub(crate) fn applied(&self) -> Option<u64> {
        self.process.as_ref().map(|process| process.replica.applied_index())
    }

    /// Whether the node's table has a backlog, or only some of the commands of an entry are applied.
    pub(crate) fn has_backlog(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let replica = &process.replica;
            replica.table().has_backlog() || replica.begun_index() != replica.applied_index()
        })
    }

    /// Compares the node's table with the oracle's.
    pub(crate) fn compare(&self, core: &mut Core) {
        if let Some(process) = &self.process {
            core.oracle.compare(core.now, self.id, &process.replica);
        }
    }

    /// Whether the node can answer a handshake now.
    pub(crate) fn answers(&self, now: Nanos) -> bool {
        self.is_up() && self.process.as_ref().is_none_or(|process| process.stopped_until <= now)
    }

    /// Stops the whole process until the given time, as SIGSTOP does.
    pub(crate) fn stop_until(&mut self, now: Nanos, until: Nanos) {
        let local = self.clock.duration(now);
        if let Some(process) = &mut self.process {
            process.read_before.get_or_insert(local);
            process.stopped_until = process.stopped_until.max(until);
        }
    }

    /// Stops only the event loop until the given time; client sockets are still read.
    pub(crate) fn stop_loop_until(&mut self, now: Nanos, until: Nanos) {
        let local = self.clock.duration(now);
        if let Some(process) = &mut self.process {
            process.read_before.get_or_insert(local);
            process.loop_until = process.loop_until.max(until);
        }
    }

    /// Stops reading client sockets until the given time; the event loop runs.
    pub(crate) fn unread_until(&mut self, until: Nanos) {
        if let Some(process) = &mut self.process {
            process.unread_until = process.unread_until.max(until);
        }
    }

    /// Closes a client's stream on the node's behalf; input that was not read is lost.
    pub(crate) fn hang_up(&mut self, core: &mut Core, stream: StreamId) {
        let Some(process) = &mut self.process else { return };
        process.sockets.remove(&stream);
        let is_call = core.net.lines.get(&stream).is_some_and(|line| line.is_call);
        process.inbox.push_back(if is_call {
            process.polls.end(CallId(stream.0));
            Event::CallDropped(CallId(stream.0))
        } else {
            Event::StreamClosed { stream, cause: StreamCloseCause::Service }
        });
        core.oracle.ended(self.id, stream);
        core.send_down(stream, Down::Closed);
        self.turn_soon(core, core.now);
    }

    /// Makes the next sync fail.
    pub(crate) fn fail_sync(&mut self) {
        self.disk.fail(Operation::Sync, 0, EIO);
    }

    pub(crate) fn heal(&mut self, core: &mut Core) {
        self.disk.heal();
        if let Some(process) = &mut self.process {
            process.stopped_until = 0;
            process.loop_until = 0;
            process.arm = None;
            process.unread_until = 0;
        }
        self.turn_soon(core, core.now);
    }

    /// Whether the node has received SIGTERM.
    pub(crate) fn is_stopping(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_stopping)
    }

    /// Begins to shut the node down, as on SIGTERM.
    pub(crate) fn stops(&mut self, core: &mut Core) {
        if let Some(process) = &mut self.process {
            process.inbox.push_back(Event::ShutDown);
            process.is_stopping = true;
            self.turn_soon(core, core.now);
        }
    }

    pub(crate) fn ask(&mut self, core: &mut Core, ask: AskId, question: Question) {
        core.note(format_args!("operator asks node {} {ask:?} {question:?}", self.id));
        if let Some(process) = &mut self.process {
            core.oracle.asked(ask, &question);
            process.inbox.push_back(Event::Asked(ask, question));
            self.turn_soon(core, core.now);
        }
    }
}
