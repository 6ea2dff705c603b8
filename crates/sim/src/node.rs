//! The node: the production replica and the production log, on a disk in memory, run as a process would run them.
//!
//! What was sent, what has arrived in a socket and what was read are three different things here: only so is the
//! barrier of P9 put to the test. While a write is under way, or the process is stopped, nothing runs and input piles up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_replica::disk::memory::{MemoryDisk, Operation};
use lockkeeper_replica::storage::{self, Existing, Log, Opened, Options};
use lockkeeper_replica::{
    AskId, Config, Event, Members, Output, Question, Recovered, Replica, StreamId, Write,
};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::store::{Founding, Member, Record};

use crate::chores::{Chores, Done, read_table};
use crate::clock::{Clock, MS, Nanos, SECOND};
use crate::core::{Core, Happening};
use crate::mutants::Place;
use crate::net::{Down, Up};
use crate::scenario::Fault;

/// Small, so that a run of some minutes fills several.
const SEGMENT_BYTES: u64 = 16 << 10;
/// The first token is above this one.
const TOKENS_ABOVE: u64 = 1_000;
const TICK: Duration = Duration::from_millis(50);
/// What a disk says that is broken.
const EIO: i32 = 5;

pub(crate) struct Node {
    pub(crate) clock: Clock,
    disk: MemoryDisk,
    /// Counts its starts.
    pub(crate) run: u64,
    process: Option<Process>,
    asks: u64,
    seed: u64,
}

/// What a crash takes away.
struct Process {
    replica: Replica,
    log: Log<MemoryDisk>,
    chores: Chores,
    /// Arrived, and not yet read.
    sockets: BTreeMap<StreamId, VecDeque<Up>>,
    /// Streams whose socket is to be read already.
    reading: BTreeSet<StreamId>,
    /// Read, and not yet handed over.
    inbox: VecDeque<Event>,
    barriers: Vec<Barrier>,
    writes: VecDeque<Pending>,
    /// Nothing runs before.
    stopped_until: Nanos,
    /// No socket is read before.
    unread_until: Nanos,
    turn_at: Option<Nanos>,
}

/// A write that the disk is busy with.
enum Pending {
    Write(Box<Write>),
    /// The mutant has said "synced" already.
    Late(Record),
}

/// All that had arrived when it began must be read before it passes.
struct Barrier {
    number: u64,
    waits: BTreeMap<StreamId, usize>,
}

impl Node {
    pub(crate) fn new(core: &mut Core) -> Self {
        let ppm = core.scenario.drift;
        let ppm = core.dice.within(0, 2 * ppm as u64) as i64 - ppm;
        let disk = MemoryDisk::new();
        disk.lie(core.is(Place::SyncSkipped));
        let origin = core.dice.within(SECOND, 1_000_000 * SECOND);
        Self { clock: Clock::new(origin, ppm), disk, run: 0, process: None, asks: 0, seed: core.dice.u64() }
    }

    fn config(&self, core: &Core) -> Config {
        Config {
            node: 1,
            tail_bytes: lockkeeper_replica::TAIL_BYTES,
            seed: self.seed,
            tokens_above: TOKENS_ABOVE,
            tick: TICK,
            snapshot_after: core.scenario.snapshot_after,
            mutant: match core.mutant {
                Some(Place::Replica(mutant)) => Some(mutant),
                _ => None,
            },
        }
    }

    pub(crate) fn start(&mut self, core: &mut Core) {
        self.run += 1;
        core.note(format_args!("node starts, run {}", self.run));
        let options = Options { segment_bytes: SEGMENT_BYTES };
        let opened = storage::open(&self.disk, options).and_then(|opened| match opened {
            Opened::Existing(existing) => Ok(existing),
            Opened::Empty | Opened::Candidate(_) => storage::found(&self.disk, options, &founding()),
        });
        let existing = match opened {
            Ok(existing) => existing,
            Err(error) if matches!(error, storage::OpenError::Io { .. }) => {
                core.note(format_args!("node can't start: {error}"));
                return self.crash(core, false);
            }
            Err(error) => return core.broken("P10", &format!("the node refuses its own disk: {error}")),
        };
        let Existing { hard_state, entries, log, mut leftovers, snapshot, snapshots, .. } = existing;
        let at = snapshot.as_ref().map_or((0, 0), |it| (it.head().index, it.head().term));
        let table = match read_table(snapshot) {
            Ok(table) => table,
            Err(why) => return core.broken("P10", &format!("the snapshot of entry {}: {why}", at.0)),
        };
        if let Err(error) = leftovers.run(&self.disk) {
            core.note(format_args!("old files stay: {error}"));
        }
        core.oracle.recovered(core.now, at.0, &table, &entries);
        let recovered = Recovered {
            table,
            snapshot_index: at.0,
            snapshot_term: at.1,
            members: Members::founded(&founding()),
            hard_state: Some(hard_state),
            entries,
        };
        let config = self.config(core);
        let replica = match Replica::start(config, recovered, self.clock.duration(core.now)) {
            Ok(replica) => replica,
            Err(error) => return core.broken("P10", &format!("the node can't go on from its log: {error}")),
        };
        self.process = Some(Process {
            replica,
            log,
            chores: Chores::new(snapshots),
            sockets: BTreeMap::new(),
            reading: BTreeSet::new(),
            inbox: VecDeque::new(),
            barriers: Vec::new(),
            writes: VecDeque::new(),
            stopped_until: 0,
            unread_until: 0,
            turn_at: None,
        });
        core.oracle.silence.node_started();
        self.turn_soon(core, core.now);
    }

    /// The process dies, with all that was not synced; it starts again later.
    pub(crate) fn crash(&mut self, core: &mut Core, power: bool) {
        core.note(format_args!("node dies (power {power})"));
        if let Some(mut process) = self.process.take() {
            // What was being written has reached the disk in part.
            while let Some(pending) = process.writes.pop_front() {
                let record = match &pending {
                    Pending::Write(write) => write.record(),
                    Pending::Late(record) => record,
                };
                self.disk.heal();
                self.disk.fail(Operation::Sync, 0, EIO);
                // It fails, as it must: the process is gone before the sync.
                let _ = process.log.append(record);
            }
        }
        self.disk.heal();
        if power || core.is(Place::SyncSkipped) {
            let dice = &mut core.dice;
            self.disk.crash(|n| dice.below(n));
        } else {
            self.disk.restart();
        }
        let says_so = core.dice.chance(70);
        core.node_gone(self.run, says_so);
        let pause =
            if core.is_stormy { core.dice.spread(5 * MS, 2 * core.scenario.ttl_max) } else { 20 * MS };
        core.after(pause, Happening::NodeStarts);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// SIGSTOP: nothing runs until then.
    pub(crate) fn stop_until(&mut self, until: Nanos) {
        if let Some(process) = &mut self.process {
            process.stopped_until = process.stopped_until.max(until);
        }
    }

    /// No socket is read until then, but the loop runs.
    pub(crate) fn unread_until(&mut self, until: Nanos) {
        if let Some(process) = &mut self.process {
            process.unread_until = process.unread_until.max(until);
        }
    }

    /// The next sync fails.
    pub(crate) fn fail_sync(&mut self) {
        self.disk.fail(Operation::Sync, 0, EIO);
    }

    pub(crate) fn heal(&mut self, core: &mut Core) {
        self.disk.heal();
        if let Some(process) = &mut self.process {
            process.stopped_until = 0;
            process.unread_until = 0;
        }
        self.turn_soon(core, core.now);
    }

    pub(crate) fn ask(&mut self, core: &mut Core, question: Question) {
        self.asks += 1;
        let ask = AskId(self.asks);
        core.note(format_args!("operator asks {ask:?} {question:?}"));
        if let Some(process) = &mut self.process {
            process.inbox.push_back(Event::Asked(ask, question));
            self.turn_soon(core, core.now);
        }
    }

    /// A packet arrives in a socket.
    pub(crate) fn arrives(&mut self, core: &mut Core, stream: StreamId, packet: Up) {
        let Some(line) = core.net.lines.get_mut(&stream) else { return };
        let opens = matches!(packet, Up::Open);
        let Some(process) = self.process.as_mut() else {
            // Nobody listens. Who is told so tries again.
            return core.send_down(stream, Down::Closed);
        };
        if opens {
            line.run = Some(self.run);
        } else if line.run != Some(self.run) {
            return core.send_down(stream, Down::Closed);
        }
        core.oracle.silence.arrived(core.now, stream, &packet);
        process.sockets.entry(stream).or_default().push_back(packet);
        if process.reading.insert(stream) {
            let pause = core.dice.spread(5_000, if core.is_stormy { 10 * MS } else { MS });
            let at = (core.now + pause).max(process.unread_until);
            core.at(at, Happening::NodeReads { run: self.run, stream });
        }
    }

    pub(crate) fn reads(&mut self, core: &mut Core, run: u64, stream: StreamId) {
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        let not_before = process.stopped_until.max(process.unread_until);
        if core.now < not_before {
            let pause = core.dice.spread(5_000, 10 * MS);
            return core.at(not_before + pause, Happening::NodeReads { run, stream });
        }
        process.reading.remove(&stream);
        for packet in process.sockets.remove(&stream).unwrap_or_default() {
            let event = match packet {
                Up::Open => Event::StreamOpened(stream),
                Up::Closed => Event::StreamClosed { stream, by_client: true },
                Up::Frame(items) => {
                    let requests = items.into_iter().map(Request::try_from).collect();
                    match requests {
                        Ok(requests) => Event::Frame(stream, requests),
                        Err(error) => {
                            return core.broken("P7", &format!("the client sent what is none: {error}"));
                        }
                    }
                }
            };
            process.inbox.push_back(event);
        }
        for barrier in &mut process.barriers {
            barrier.waits.remove(&stream);
        }
        process.pass_barriers();
        let pause = core.dice.within(0, 200_000);
        self.turn_soon(core, core.now + pause);
    }

    fn turn_soon(&mut self, core: &mut Core, at: Nanos) {
        let Some(process) = &mut self.process else { return };
        let at = at.max(process.stopped_until);
        if process.turn_at.is_none_or(|planned| at < planned) {
            process.turn_at = Some(at);
            core.at(at, Happening::NodeTurn { run: self.run });
        }
    }

    pub(crate) fn turn(&mut self, core: &mut Core, run: u64) {
        let local = self.clock.duration(core.now);
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        // One that was planned and then moved.
        if process.turn_at != Some(core.now) {
            return;
        }
        process.turn_at = None;
        if core.now < process.stopped_until {
            return self.turn_soon(core, core.now);
        }
        if process.writes.iter().any(|pending| matches!(pending, Pending::Write(_))) {
            return;
        }
        core.oracle.turn(local);
        process.replica.begin(local);
        for event in std::mem::take(&mut process.inbox) {
            core.oracle.handed_over(&event);
            process.replica.handle(event);
        }
        self.go_on(core);
    }

    pub(crate) fn wrote(&mut self, core: &mut Core, run: u64) {
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        if core.now < process.stopped_until {
            return core.at(process.stopped_until, Happening::NodeWrote { run });
        }
        let Some(pending) = process.writes.pop_front() else { return };
        let record = match &pending {
            Pending::Write(write) => write.record(),
            Pending::Late(record) => record,
        };
        if let Err(error) = process.log.append(record) {
            core.note(format_args!("node aborts: {error}"));
            return self.crash(core, true);
        }
        core.oracle.durable(record);
        if let Pending::Write(write) = pending {
            self.go_on_after(core, *write);
        }
    }

    /// A step of a snapshot has been given time enough.
    pub(crate) fn stored(&mut self, core: &mut Core, run: u64) {
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        if core.now < process.stopped_until {
            return core.at(process.stopped_until, Happening::NodeStored { run });
        }
        match process.chores.step(&self.disk) {
            None => {}
            Some(Done::Step) => process.inbox.push_back(Event::SnapshotStepDone),
            Some(Done::Failed) => process.inbox.push_back(Event::SnapshotFailed),
            Some(Done::Stop(error)) => {
                core.note(format_args!("node aborts: {error}"));
                return self.crash(core, true);
            }
        }
        self.turn_soon(core, core.now);
    }

    fn go_on_after(&mut self, core: &mut Core, write: Write) {
        let now = self.clock.duration(core.now);
        let Some(process) = &mut self.process else { return };
        if let Err(error) = process.replica.persisted(now, write.synced()) {
            return core.broken("P10", &format!("the node stops: {error}"));
        }
        self.go_on(core);
    }

    fn go_on(&mut self, core: &mut Core) {
        let now = self.clock.duration(core.now);
        loop {
            let Some(process) = &mut self.process else { return };
            let write = match process.replica.advance() {
                Ok(Some(write)) => write,
                Ok(None) => break,
                Err(error) => return core.broken("P10", &format!("the node stops: {error}")),
            };
            core.observe(&process.replica);
            let record = write.record();
            core.oracle.wrote(core.now, record);
            if record.entries.is_empty() && record.hard_state.is_none() {
                if let Err(error) = process.replica.persisted(now, write.synced()) {
                    return core.broken("P10", &format!("the node stops: {error}"));
                }
                core.observe(&process.replica);
                continue;
            }
            let slow = core.has(Fault::SlowDisk) && core.dice.chance(10);
            let pause = if slow { core.dice.spread(MS, 3 * SECOND) } else { core.dice.spread(80_000, MS) };
            core.after(pause, Happening::NodeWrote { run: self.run });
            if core.is(Place::ReplyBeforeSync) {
                process.writes.push_back(Pending::Late(record.clone()));
                if let Err(error) = process.replica.persisted(now, write.synced()) {
                    return core.broken("P10", &format!("the node stops: {error}"));
                }
                core.observe(&process.replica);
                continue;
            }
            process.writes.push_back(Pending::Write(Box::new(write)));
            return;
        }
        self.put_out(core);
    }

    fn put_out(&mut self, core: &mut Core) {
        let Some(process) = &mut self.process else { return };
        core.observe(&process.replica);
        for output in process.replica.take_outputs() {
            match output {
                Output::Items(stream, items) => {
                    core.oracle.told(core.now, stream, &items);
                    core.send_down(stream, Down::Items(items));
                }
                Output::EndStream(stream, end) => {
                    core.send_down(stream, Down::End(end));
                    core.send_down(stream, Down::Closed);
                }
                Output::Answer(ask, answer) => core.note(format_args!("operator hears {ask:?} {answer:?}")),
                Output::Drain(number) => {
                    core.oracle.silence.barrier(core.now);
                    let waits = process.sockets.iter().map(|(&stream, unread)| (stream, unread.len()));
                    process.barriers.push(Barrier { number, waits: waits.collect() });
                    process.pass_barriers();
                }
                Output::Snapshot(step) => {
                    process.chores.todo = Some(step);
                    let pause = core.dice.spread(50_000, 20 * MS);
                    core.after(pause, Happening::NodeStored { run: self.run });
                }
                Output::Peer(..) => {}
                Output::Compact(index) => {
                    core.note(format_args!("node compacts its log up to {index}"));
                    if let Err(error) = process.log.compact(index).run(&self.disk) {
                        core.note(format_args!("old files stay: {error}"));
                    }
                }
            }
        }
        let wake = self.clock.when(process.replica.next_wake().as_nanos() as Nanos);
        // Even a loop that has something to do at once takes its time for it.
        let at = if process.inbox.is_empty() { wake.max(core.now + 20_000) } else { core.now + 20_000 };
        self.turn_soon(core, at);
    }
}

impl Process {
    fn pass_barriers(&mut self) {
        let (passed, left) =
            std::mem::take(&mut self.barriers).into_iter().partition(|barrier| barrier.waits.is_empty());
        self.barriers = left;
        let passed: Vec<Barrier> = passed;
        self.inbox.extend(passed.into_iter().map(|barrier| Event::Drained(barrier.number)));
    }
}

fn founding() -> Founding {
    Founding {
        cluster: vec![1; 16],
        node: 1,
        incarnation: vec![2; 16],
        members: vec![Member { node: 1, incarnation: vec![2; 16], ..Member::default() }],
        tokens_above: TOKENS_ABOVE,
        rules: 1,
    }
}
