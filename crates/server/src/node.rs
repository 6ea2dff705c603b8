//! The replica's thread. Each turn of its loop takes all input, runs the replica, writes the log and hands
//! over the outputs.
//!
//! Responsible for: no output leaves before the write that it depends on is durable, and a failed write ends
//! the process (P10); the clock is read after the input (P5). The thread itself writes the log and does the
//! I/O on peer sockets: passing each write and message to another thread would take longer than the time that
//! this could save.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use lockkeeper_replica::disk::Disk;
use lockkeeper_replica::storage::Log;
use lockkeeper_replica::{Difference, Event, Output, Replica};
use lockkeeper_wire::peer::SnapshotOffer;
use lockkeeper_wire::store::Record;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock;
use crate::disk::{fail_stop, is_full};
use crate::disk_worker::{Chore, DiskTaskResult};
use crate::error::ServeError;
use crate::inbox::{Inbox, Outbox, ReplicaStatus};
use crate::leadership::{Leadership, LeadershipLine, Reached};
use crate::observe;
use crate::peers::{Arrived, Peers};
use crate::reports::{Report, Reports};
use crate::traces::AcquireTracer;

/// The requests handled in one turn, by their weight in the inbox: those that take about [`TURN`]. Bounds how
/// long a caller waits for the requests of another, since the next turn may be another caller's.
const TURN_REQUESTS: usize = 1 << 8;
/// Measured duration of a turn of [`TURN_REQUESTS`].
const TURN: Duration = Duration::from_micros(500);
/// Most requests handled in one turn, see [`turn_requests`]. Bounds the delay of keep-alives.
const TURN_REQUESTS_MAX: usize = 1 << 14;
/// Most log writes in one turn: between two writes of a turn, no peer message is read, and the consensus gets
/// no tick.
const TURN_WRITES_MAX: usize = 2;
/// The pause before another attempt after a spare segment could not be made.
const SPARE_PAUSE: Duration = Duration::from_secs(10);

/// The state of the replica's thread.
pub(crate) struct NodeThread<D: Disk> {
    pub(crate) replica: Replica,
    pub(crate) log: Log<D>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) outbox: Arc<Outbox>,
    /// How long the last append to the log took, with its sync.
    pub(crate) last_sync: Duration,
    pub(crate) node: u64,
    pub(crate) leadership: Leadership,
    pub(crate) reports: Reports,
    /// `None`: acquires are not traced.
    pub(crate) tracer: Option<AcquireTracer>,
    pub(crate) peers: Peers,
    /// To the task that sends snapshots to followers.
    pub(crate) offers: UnboundedSender<Box<SnapshotOffer>>,
    /// Received snapshots, by their index.
    pub(crate) incoming: BTreeMap<u64, Arrived<D>>,
    /// Work for the disk thread, and its results.
    pub(crate) chores: Sender<Chore>,
    pub(crate) done: Receiver<DiskTaskResult<D>>,
    /// The data directory, for messages.
    pub(crate) directory: String,
}

/// Whether this thread may request a spare log segment from the disk worker: yes; no, since one was requested
/// already; or not before the given time, since the last attempt failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spare {
    Wanted,
    Asked,
    Not(Instant),
}

impl<D: Disk> NodeThread<D> {
    /// Runs until the inbox is closed.
    ///
    /// # Errors
    /// The replica must stop, entries of the log are missing, the disk is full, or the data directory is
    /// gone. Any other failed write of the log or installation of a snapshot aborts the process.
    pub(crate) fn run(mut self) -> Result<(), ServeError> {
        self.inbox.is_mine();
        let result = self.turns();
        if let Some(tracer) = &mut self.tracer {
            tracer.stop();
        }
        self.outbox.put(&mut Vec::new(), ReplicaStatus::Ended);
        result
    }

    fn turns(&mut self) -> Result<(), ServeError> {
        let mut arrived = Vec::new();
        let mut from_peers = Vec::new();
        let mut outputs = Vec::new();
        let mut spare = Spare::Wanted;
        loop {
            let weight_max = turn_requests(self.last_sync).min(self.replica.room());
            let Some(requests) = self.inbox.take(&mut arrived, weight_max) else { return Ok(()) };
            self.peers.read(&mut from_peers);
            // The clock is read after the input (P5): a keep-alive then counts from its arrival or later, and
            // a new leader's zero point, from which its deadlines count, is not dated before the message that
            // caused it.
            self.replica.begin(clock::now(), clock::wall());
            let begun = Instant::now();
            from_peers.drain(..).for_each(|event| self.replica.handle(event));
            if let Some(lost) = self.replica.lost_entries() {
                let (node, directory) = (self.node, self.directory.clone());
                return Err(ServeError::EntriesLost { node, directory, lost });
            }
            self.finish_chores(&mut spare)?;
            if let Some(tracer) = &mut self.tracer {
                tracer.taken(begun, &arrived);
            }
            arrived.drain(..).for_each(|event| self.replica.handle(event));
            for _ in 0..TURN_WRITES_MAX {
                self.trace_work();
                let Some(write) = self.replica.advance()? else { break };
                // The outputs so far depend only on writes that are durable, so they are sent before the next
                // write is synced.
                self.hand_over(&mut outputs)?;
                let installed = write.installs().map(|index| self.install(index)).transpose()?;
                self.append(write.record())?;
                self.trace_work();
                self.replica.persisted(clock::now(), write.synced())?;
                if let Some(settled) = installed {
                    // Fails only if the thread that received the snapshot has stopped waiting.
                    let _ = settled.send(());
                }
            }
            self.hand_over(&mut outputs)?;
            self.log_leader(begun);
            self.report(begun);
            if requests > 0 {
                observe::turn(requests, begun.elapsed());
            }
            self.want_spare(&mut spare);
            self.sleep();
        }
    }

    fn append(&mut self, record: &Record) -> Result<(), ServeError> {
        if record.hard_state.is_none() && record.entries.is_empty() {
            return Ok(());
        }
        let traced = self.tracer.as_mut().map(|tracer| tracer.write_begins(self.replica.acquires_in_write()));
        let begun = Instant::now();
        match self.log.append(record) {
            Ok(()) => {
                self.last_sync = begun.elapsed();
                observe::synced(self.last_sync);
                if let Some((tracer, traced)) = self.tracer.as_mut().zip(traced) {
                    tracer.write_ends(traced);
                }
                Ok(())
            }
            Err(error) if is_full(&error) => {
                Err(ServeError::DiskFull { directory: self.directory.clone(), source: error })
            }
            Err(error) => fail_stop(&self.directory, "the log", &error),
        }
    }

    fn trace_work(&mut self) {
        if let Some(tracer) = &mut self.tracer {
            tracer.work_begins();
        }
    }

    /// Replaces the log by a received snapshot. The snapshot file gets its final name first; then the log
    /// restarts after the snapshot's index.
    fn install(&mut self, index: u64) -> Result<Sender<()>, ServeError> {
        let Some(Arrived { head, sealed, settled }) = self.incoming.remove(&index) else {
            // Continuing would reset the log to a snapshot that does not exist.
            let what = format!("there is no received snapshot of entry {index}: a bug");
            return Err(ServeError::system("install a snapshot")(io::Error::other(what)));
        };
        let result = sealed.publish().and_then(|older| {
            self.log.reset(head.index, head.term)?;
            Ok(older)
        });
        match result {
            Ok(older) => {
                self.chore(Chore::Remove(older));
                Ok(settled)
            }
            Err(error) if is_full(&error) => {
                Err(ServeError::DiskFull { directory: self.directory.clone(), source: error })
            }
            Err(error) => fail_stop(&self.directory, "a snapshot", &error),
        }
    }

    fn hand_over(&mut self, outputs: &mut Vec<Output>) -> Result<(), ServeError> {
        let begun = Instant::now();
        let taken = self.replica.take_outputs();
        let took = begun.elapsed();
        let mut result = Ok(());
        for output in taken {
            match output {
                Output::Peer(node, messages) => self.peers.send(node, messages),
                Output::Snapshot(step) => {
                    observe::snapshot_step(took);
                    self.chore(Chore::Step(step));
                }
                Output::Compact(through) => {
                    let removal = self.log.compact(through);
                    self.chore(Chore::Remove(removal));
                }
                Output::SendSnapshot(offer) => {
                    let to = offer.to;
                    if self.offers.send(offer).is_err() {
                        // The task has ended: this node has no peers, or the process ends.
                        self.inbox.push(Event::SnapshotSent { to, arrived: false });
                    }
                }
                Output::SnapshotUnused(index) => {
                    if let Some(Arrived { sealed, settled, .. }) = self.incoming.remove(&index) {
                        self.chore(Chore::Remove(sealed.give_up()));
                        // Fails only if the thread that received the snapshot has stopped waiting.
                        let _ = settled.send(());
                    }
                }
                Output::Members(members) => {
                    self.peers.applied(&members, self.replica.table().rules());
                    outputs.push(Output::Members(members));
                }
                Output::Differs(it) => {
                    observe::differs();
                    let Difference { index, own, node, theirs } = it;
                    tracing::error!(
                        node,
                        index,
                        "the table of node {node} is another than this node's: after entry {index} of the log its digest is \
                         {theirs:032x}, here it is {own:032x}. The one that a majority of the voters contradicts stops. Where \
                         there is none, both go on, and what they say of locks can't be trusted: bring the nodes that are down \
                         back, so that they can decide; with two voters, look for failing memory or a failing disk, then \
                         `lockkeeper cluster remove` that node, and add it with an empty directory under a new id"
                    );
                }
                Output::Wrong(it) => result = Err(ServeError::WrongTable { node: self.node, difference: it }),
                output => outputs.push(output),
            }
        }
        // Peer messages are sent before clients are answered, so that the peers sync their logs meanwhile.
        self.peers.flush();
        let state = match self.replica.follows() {
            _ if self.replica.has_left() => ReplicaStatus::Left,
            _ if self.replica.is_ready() => ReplicaStatus::Ready,
            Some(leader) => ReplicaStatus::Following { leader },
            None => ReplicaStatus::Waiting,
        };
        if let Some(tracer) = &mut self.tracer {
            tracer.answered(outputs);
        }
        self.outbox.put(outputs, state);
        if let Some(tracer) = &mut self.tracer {
            tracer.send();
        }
        result
    }

    fn log_leader(&mut self, now: Instant) {
        let Self { replica, peers, node, leadership, .. } = self;
        let leader = if replica.is_ready() { Some(*node) } else { replica.follows() };
        let reached = || Reached::new(*node, &replica.members().configuration, &peers.connected());
        let lines = leadership.update(now, leader, replica.term(), reached);
        lines.into_iter().for_each(LeadershipLine::log);
    }

    /// Logs followers that do not answer, and expired sessions.
    fn report(&mut self, now: Instant) {
        if self.reports.may_tell_expired(now) {
            let (count, named) = self.replica.take_expired();
            if let Some(line) = self.reports.expired(now, count, &named) {
                tracing::warn!(count, "{line}");
            }
        }
        if !self.reports.is_look_due(now) {
            return;
        }
        let (silent, connected) = (self.replica.silent(), self.peers.connected());
        for report in self.reports.looked(silent.intersection(&connected).copied().collect()) {
            match report {
                Report::Silent(node) => tracing::warn!(
                    node,
                    "node {node} is connected and does not answer: it is stopped, its disk hangs, or it is overloaded; look at \
                     its log, and at the machine"
                ),
                Report::Over(node) if connected.contains(&node) => {
                    tracing::info!(node, "node {node} answers again");
                }
                Report::Over(_) => {}
            }
        }
    }

    fn finish_chores(&mut self, spare: &mut Spare) -> Result<(), ServeError> {
        while let Ok(done) = self.done.try_recv() {
            match done {
                DiskTaskResult::Step => self.replica.handle(Event::SnapshotStepDone),
                DiskTaskResult::StepFailed => self.replica.handle(Event::SnapshotFailed),
                DiskTaskResult::Spare(made) => {
                    self.replica.handle(Event::DiskFull(false));
                    let unused = self.log.give_spare(made);
                    self.chore(Chore::Remove(unused));
                    *spare = Spare::Wanted;
                }
                DiskTaskResult::NoSpare(is_full) => {
                    // After another error it is unknown whether there is room.
                    if is_full {
                        self.replica.handle(Event::DiskFull(true));
                    }
                    *spare = Spare::Not(Instant::now() + SPARE_PAUSE);
                }
                DiskTaskResult::Full(source) => {
                    return Err(ServeError::DiskFull { directory: self.directory.clone(), source });
                }
                DiskTaskResult::Received(_, arrived) if self.incoming.contains_key(&arrived.head.index) => {
                    // Another file for this index is already about to be installed or discarded.
                    self.chore(Chore::Remove(arrived.sealed.give_up()));
                }
                DiskTaskResult::Received(received, incoming) => {
                    self.incoming.insert(incoming.head.index, *incoming);
                    self.replica.handle(Event::SnapshotReceived(received));
                }
                DiskTaskResult::Gone => {
                    return Err(ServeError::DirectoryGone { directory: self.directory.clone() });
                }
            }
        }
        Ok(())
    }

    fn want_spare(&self, spare: &mut Spare) {
        let may = match *spare {
            Spare::Wanted => true,
            Spare::Asked => false,
            Spare::Not(until) => Instant::now() >= until,
        };
        if may && self.log.wants_spare() {
            *spare = Spare::Asked;
            self.chore(Chore::MakeSpare);
        }
    }

    fn chore(&self, chore: Chore) {
        // Fails only while the process ends.
        let _ = self.chores.send(chore);
    }

    fn sleep(&mut self) {
        let wake = self.replica.next_wake();
        let now = clock::now();
        if wake > now && (self.replica.held_until().is_some() || self.replica.room() == 0) {
            // While proposals are held back, and while the replica has no room for more, only a peer's
            // message can end the wait early. Clients' events would have no effect before its end, so they
            // need not wake this thread.
            self.peers.wait_for_peers(wake - now);
        } else if wake > now {
            self.peers.wait(Some(wake - now));
        }
    }
}

/// The requests that a turn handles. On a slow disk they are more, so that the work takes about as long as
/// the sync that they share: otherwise the disk's syncs would limit the rate.
fn turn_requests(last_sync: Duration) -> usize {
    let syncs = last_sync.as_micros() / TURN.as_micros();
    usize::try_from(syncs)
        .unwrap_or(usize::MAX)
        .saturating_add(1)
        .saturating_mul(TURN_REQUESTS)
        .min(TURN_REQUESTS_MAX)
}
