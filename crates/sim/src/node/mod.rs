//! A node: the production replica and the production log, on a disk in memory, run as a process would run them.
//!
//! What was sent, what has arrived in a socket and what was read are three different things here: only so is the
//! barrier of P9 put to the test. While a write is under way, or the process is stopped, nothing runs and input piles up.
//!
//! `start.rs`: how it begins and dies. `form.rs`: how it becomes a member. `greet.rs`: whom it lets in. `armed.rs`: mishaps at
//! a certain moment. `sockets.rs`: what arrives. `turn.rs`: the loop.

mod armed;
mod form;
mod greet;
mod sockets;
mod start;
mod turn;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_core::limits;
use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{Log, Sealed};
use lockkeeper_replica::{AskId, Event, Question, Replica, StreamId, Write};
use lockkeeper_wire::store::Record;

use crate::bulk::BulkId;
use crate::chores::Chores;
use crate::clock::{Clock, MS, Nanos, SECOND};
use crate::core::{Core, Id};
use crate::net::{Down, Up};
pub(crate) use armed::Arm;
use form::Forming;
use greet::Directory;
use lockkeeper_wire::store::Founding;
pub(crate) use start::{TOKENS_ABOVE, client_address, node_at};

/// How often what waits for a stopped node looks whether it runs again.
const LOOKS_EVERY: Nanos = 100 * MS;
/// What a disk says that is broken.
const EIO: i32 = 5;

pub(crate) struct Node {
    pub(crate) id: Id,
    pub(crate) clock: Clock,
    disk: MemoryDisk,
    /// Counts its starts.
    pub(crate) run: u64,
    process: Option<Process>,
    /// It has no data, and looks for its cluster.
    forming: Option<Forming>,
    seed: u64,
    /// One of those that found the cluster; the others join it.
    is_founder: bool,
    /// The newest rules of the table that its program knows.
    pub(crate) rules: u32,
    /// Its disk is another one than that of the member of this id.
    pub(crate) is_wiped: bool,
    /// It is never started again.
    pub(crate) is_gone: bool,
    /// As it was founded: for the mutant that begins anew under an old name.
    record: Option<Founding>,
}

/// What a crash takes away.
struct Process {
    replica: Replica,
    directory: Directory,
    log: Log<MemoryDisk>,
    chores: Chores,
    /// Arrived, and not yet read.
    sockets: BTreeMap<StreamId, VecDeque<Up>>,
    /// Streams whose socket is to be read already.
    reading: BTreeSet<StreamId>,
    /// Of other nodes: arrived, and not yet read.
    frames: VecDeque<(Id, Vec<u8>)>,
    /// Read, and not yet handed over.
    inbox: VecDeque<Event>,
    barriers: Vec<Barrier>,
    writes: VecDeque<Pending>,
    /// Received snapshots that the replica has not judged yet, by their index.
    incoming: BTreeMap<u64, (BulkId, Sealed<MemoryDisk>)>,
    /// Nothing runs before.
    stopped_until: Nanos,
    /// The loop doesn't run before, though the sockets of clients are read.
    loop_until: Nanos,
    /// No socket is read before.
    unread_until: Nanos,
    /// The clock as it was read before the process was stopped: for the mutant that uses it afterwards.
    read_before: Option<Duration>,
    /// What strikes it at its moment.
    arm: Option<Arm>,
    dies_in_write: bool,
    is_stopping: bool,
    loses_sent: bool,
    /// A sign of life was handed over in this turn.
    has_sign: bool,
    /// The last entry that was lost on its way.
    lost_entry: u64,
    turn_at: Option<Nanos>,
    /// Entries of the table that were looked at before this turn.
    visits_before: u64,
}

impl Process {
    /// When the loop may run.
    fn runs_at(&self) -> Nanos {
        self.stopped_until.max(self.loop_until)
    }

    /// When to look again whether it does: it may be woken before its time.
    fn looks_at(&self, now: Nanos) -> Nanos {
        self.runs_at().min(now + LOOKS_EVERY)
    }
}

/// A write that the disk is busy with.
enum Pending {
    Write(Box<Write>),
    /// The mutant has said "synced" already.
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

/// All that had arrived when it began must be read before it passes.
struct Barrier {
    number: u64,
    waits: BTreeMap<StreamId, usize>,
}

impl Node {
    pub(crate) fn new(core: &mut Core, id: Id, is_founder: bool) -> Self {
        let ppm = core.scenario.drift;
        let ppm = core.dice.within(0, 2 * ppm as u64) as i64 - ppm;
        let origin = core.dice.within(SECOND, 1_000_000 * SECOND);
        Self {
            id,
            clock: Clock::new(origin, ppm),
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

    /// Whether its disk has ever held the record of the cluster: from then on its data can stand in for what another one loses.
    pub(crate) fn has_record(&self) -> bool {
        self.record.is_some()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some() || self.forming.is_some()
    }

    /// Whether it leads and knows all that was ever committed.
    pub(crate) fn is_ready(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.replica.is_ready())
    }

    /// The last entry in its table.
    pub(crate) fn applied(&self) -> Option<u64> {
        self.process.as_ref().map(|process| process.replica.applied_index())
    }

    /// Whether its table has work left for later, or it is amid an entry.
    pub(crate) fn has_backlog(&self) -> bool {
        self.process.as_ref().is_some_and(|process| {
            let replica = &process.replica;
            replica.table().has_backlog() || replica.begun_index() != replica.applied_index()
        })
    }

    /// Its table against what it should be.
    pub(crate) fn compare(&self, core: &mut Core) {
        if let Some(process) = &self.process {
            core.oracle.compare(core.now, self.id, &process.replica);
        }
    }

    /// Whether it answers a greeting now.
    pub(crate) fn answers(&self, now: Nanos) -> bool {
        self.is_up() && self.process.as_ref().is_none_or(|process| process.stopped_until <= now)
    }

    /// SIGSTOP: nothing runs until then.
    pub(crate) fn stop_until(&mut self, now: Nanos, until: Nanos) {
        let local = self.clock.duration(now);
        if let Some(process) = &mut self.process {
            process.read_before.get_or_insert(local);
            process.stopped_until = process.stopped_until.max(until);
        }
    }

    /// The loop stands still until then, and nothing else.
    pub(crate) fn stop_loop_until(&mut self, now: Nanos, until: Nanos) {
        let local = self.clock.duration(now);
        if let Some(process) = &mut self.process {
            process.read_before.get_or_insert(local);
            process.loop_until = process.loop_until.max(until);
        }
    }

    /// No client's socket is read until then, but the loop runs.
    pub(crate) fn unread_until(&mut self, until: Nanos) {
        if let Some(process) = &mut self.process {
            process.unread_until = process.unread_until.max(until);
        }
    }

    /// The node ends a stream of a client that it takes for dead; what it had not read of it is gone.
    pub(crate) fn hang_up(&mut self, core: &mut Core, stream: StreamId) {
        let Some(process) = &mut self.process else { return };
        process.sockets.remove(&stream);
        process.inbox.push_back(Event::StreamClosed { stream, by_client: false });
        core.oracle.ended(self.id, stream);
        core.send_down(stream, Down::Closed);
        self.turn_soon(core, core.now);
    }

    /// The next sync fails.
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

    /// Whether it was told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_stopping)
    }

    /// SIGTERM.
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
