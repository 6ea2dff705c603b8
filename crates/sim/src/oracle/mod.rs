//! The oracle: checks every promise from outside, against the log as written and applied, the replies to
//! clients, and true time. It reads the state of nodes and clients, and changes none of it.
//!
//! `log.rs`: the agreed log, and each node's copy of it (P1, P10). `table.rs`: the table that the agreed log
//! produces, command by command (P1, P2, P4, P7, P8). `members.rs`: membership (P1, P10). `silence.rs`: which
//! sessions a node may expire (P9). `order.rs`: the order of acquires (P8). `rounds.rs` and `reads.rs`:
//! whether a node still led when it answered, and whether the answer is right (P2, P6). `reply_checker.rs`:
//! replies to clients (P2, P7, P10). `answers.rs`: all checks of an answer (P5 for calls, C4). `tries.rs`:
//! answers to requests that do not wait (C6). The guards are checked in `world/mod.rs` (P4, P5).

mod answers;
mod log;
mod members;
mod order;
mod reads;
mod reply_checker;
mod rounds;
mod silence;
mod table;
mod tries;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::{Command, SessionId, Table, limits};
use lockkeeper_replica::{CallRequest, Event, ITEMS_PER_PIECE, Members, Replica, StreamId};
use lockkeeper_wire::store;

use crate::clock::Nanos;
use crate::core::{Core, Id};
use crate::crowd::Budgets;
use crate::net::Up;
use crate::scenario::{Fault, Scenario};
use answers::CallLeases;
use log::{AgreedLog, Copy};
use members::Taking;
use order::ProposalOrder;
use reads::Reads;
use reply_checker::ReplyChecker;
use rounds::QuorumReadChecker;
use silence::Silence;
use table::History;
pub(crate) use tries::OpenTry;

/// `Err`: the number of the broken promise, and what was observed.
pub(crate) type CheckResult = Result<(), (&'static str, String)>;

/// A node's table is compared with the oracle's again after this many entries.
const COMPARED_EVERY: u64 = 16;

/// The largest number of table entries that a node may visit for the outputs of one turn. The largest output
/// is a piece of a snapshot; each of its items takes one visit, and one for each segment of the item's name.
const READS_MAX: u64 = (ITEMS_PER_PIECE * (1 + limits::NAME_SEGMENTS_MAX)) as u64;

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenPromise {
    /// The number of the promise, such as `P5`.
    pub promise: String,
    /// True time, in nanoseconds.
    pub at: u64,
    /// Description of the violation.
    pub what: String,
}

pub(crate) struct Oracle {
    pub(crate) failure: Option<BrokenPromise>,
    /// The scenario has slow disks, on which one write may take seconds.
    has_slow_disk: bool,
    budgets: Budgets,
    pub(crate) history: History,
    log: AgreedLog,
    nodes: Vec<ObservedNode>,
    members: Taking,
    /// Sessions whose stream was closed by the network, where the node detected the close before the client
    /// did. They are the one exception to P5, until a node acknowledges their next attach.
    excused: BTreeSet<u64>,
    /// The sessions by the prefixes of their secrets, as answers have told.
    by_secret: BTreeMap<u64, u64>,
    rounds: QuorumReadChecker,
    reads: Reads,
    replies: ReplyChecker,
    call_leases: CallLeases,
    /// Tokens of sections that have begun (C2).
    sections: BTreeSet<u64>,
    pub(crate) seen: Coverage,
}

/// The oracle's view of one node.
#[derive(Default)]
struct ObservedNode {
    /// The newest version of the table's rules that the node's binary supports.
    rules: u32,
    /// The node's disk is lost: it no longer counts as a voter that has data.
    is_wiped: bool,
    copy: Copy,
    silence: Silence,
    order: ProposalOrder,
    /// What the node had applied when it put out the last outputs.
    put_out: u64,
}

/// Counters of a run. A run in which little happened proves little.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Commands applied.
    pub commands: u64,
    /// Grants.
    pub grants: u64,
    /// Grants of cached holds.
    pub cached: u64,
    /// Cached holds that were recalled.
    pub recalled: u64,
    /// Sections that began with a cached hold, without the lock service.
    pub local: u64,
    /// Expiries of sessions that leaders have proposed.
    pub expired: u64,
    /// Starts of nodes.
    pub starts: u64,
    /// Terms in which a node wrote an entry as the leader.
    pub elections: u64,
    /// Guards that were lost.
    pub lost: u64,
    /// Sections that the fence rejected.
    pub fenced: u64,
    /// Sections that wrote.
    pub written: u64,
    /// Lost updates of the unfenced values: they show that a lock without a fence is not enough (P3).
    pub overwritten: u64,
    /// Requests whose result the client does not know: they were sent, and no reply came in time (P12).
    pub ambiguous: u64,
    /// Membership changes.
    pub changes: u64,
    /// Disks that were lost.
    pub wiped: u64,
    /// How often the rules version of a table was raised.
    pub raised: u64,
    /// `Resume` commands, which continue the backlog of other commands (M2).
    pub resumed: u64,
    /// The most table entries that a node visited in one turn, without those for its outputs.
    pub most_visits: u64,
    /// The most table entries that a node visited for the outputs of one turn.
    pub most_reads: u64,
}

impl Coverage {
    /// Adds the counters of another run.
    pub fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.grants += other.grants;
        self.cached += other.cached;
        self.recalled += other.recalled;
        self.local += other.local;
        self.expired += other.expired;
        self.starts += other.starts;
        self.elections += other.elections;
        self.lost += other.lost;
        self.fenced += other.fenced;
        self.written += other.written;
        self.overwritten += other.overwritten;
        self.ambiguous += other.ambiguous;
        self.changes += other.changes;
        self.wiped += other.wiped;
        self.raised += other.raised;
        self.resumed += other.resumed;
        self.most_visits = self.most_visits.max(other.most_visits);
        self.most_reads = self.most_reads.max(other.most_reads);
    }
}

fn index_of(node: Id) -> usize {
    node as usize - 1
}

impl Oracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let budgets = scenario.budgets;
        Self {
            has_slow_disk: scenario.faults.contains(&Fault::SlowDisk),
            budgets,
            failure: None,
            history: History::new(limits::RULES_VERSION, budgets),
            log: AgreedLog::default(),
            nodes: (0..scenario.nodes).map(|_| ObservedNode::default()).collect(),
            members: Taking::default(),
            excused: BTreeSet::new(),
            by_secret: BTreeMap::new(),
            rounds: QuorumReadChecker::default(),
            reads: Reads::default(),
            replies: ReplyChecker::default(),
            call_leases: CallLeases::default(),
            sections: BTreeSet::new(),
            seen: Coverage::default(),
        }
    }

    /// Records a failure; only the first one counts.
    pub(crate) fn fail(&mut self, at: Nanos, promise: &str, what: &str) {
        if self.failure.is_none() {
            self.failure = Some(BrokenPromise { promise: promise.to_owned(), at, what: what.to_owned() });
        }
    }

    fn judge(&mut self, now: Nanos, verdict: CheckResult) {
        if let Err((promise, what)) = verdict {
            self.fail(now, promise, &what);
        }
    }

    /// To be called when another node is created.
    pub(crate) fn joins(&mut self) {
        self.nodes.push(ObservedNode::default());
    }

    /// To be called when a node starts as a member, with its bootstrap record and the newest rules version of
    /// its binary.
    pub(crate) fn founded(&mut self, now: Nanos, node: Id, rules: u32, founding: &store::Founding) {
        self.nodes[index_of(node)].rules = rules;
        if self.members.is_first() {
            self.history = History::new(founding.rules, self.budgets);
        }
        let verdict = self.members.founded(node, founding);
        self.judge(now, verdict);
    }

    /// To be called when a node has applied `members`. `newest` is the membership after the highest entry
    /// that any node has applied.
    pub(crate) fn members_are(&mut self, now: Nanos, members: &Members, newest: &Members) {
        let verdict = self.members.applied(members, newest);
        self.seen.changes = self.members.changes();
        self.judge(now, verdict);
    }

    /// To be called when a node's disk is lost. `is_wiped`: the node no longer counts as a voter that has
    /// data.
    pub(crate) fn wiped(&mut self, node: Id, is_wiped: bool) {
        self.seen.wiped += 1;
        let of = &mut self.nodes[index_of(node)];
        (of.copy, of.is_wiped) = (Copy::default(), is_wiped);
    }

    /// Checks the snapshot, and the log after it, that a node found at its start.
    pub(crate) fn recovered(
        &mut self,
        now: Nanos,
        node: Id,
        (at, _): (u64, u64),
        table: &Table,
        hard_state: &store::HardState,
        entries: &[store::Entry],
    ) {
        self.seen.starts += 1;
        let of = &mut self.nodes[index_of(node)];
        of.silence = Silence::default();
        of.order = ProposalOrder::default();
        let mut verdict = of.copy.recovered(&self.log, node, at, hard_state, entries);
        if verdict.is_ok() && self.history.digest(at) != Some(table.snapshot().digest()) {
            let what = format!("the snapshot of entry {at} on node {node} is not the table that was there");
            verdict = Err(("P10", what));
        }
        self.judge(now, verdict);
    }

    /// To be called when a turn of a node begins. `local` is the reading of the node's clock.
    pub(crate) fn turn(&mut self, now: Nanos, node: Id, local: Duration, replica: &Replica) {
        let least = replica.table().sessions().map(|session| session.ttl_ms).min();
        let step = Duration::from_millis(least.unwrap_or(limits::TTL_MS_MIN)) / 12;
        let of = &mut self.nodes[index_of(node)];
        of.silence.turn(local, step);
        let verdict = of.silence.is_late(of.copy.applied, &self.history, self.has_slow_disk);
        self.judge(now, verdict);
    }

    /// To be called when a packet has become readable in a client socket of a node.
    pub(crate) fn arrived(&mut self, now: Nanos, node: Id, stream: StreamId, packet: &Up) {
        self.nodes[index_of(node)].silence.arrived(now, stream, packet);
    }

    /// To be called when a node reads the end of a stream that the client has neither closed nor found
    /// closed, or the end of a replayed stream.
    pub(crate) fn closed_between(&mut self, node: Id, stream: StreamId) {
        self.excused.extend(self.nodes[index_of(node)].silence.carried_by(stream));
    }

    /// To be called when a node has closed a stream.
    pub(crate) fn ended(&mut self, node: Id, stream: StreamId) {
        self.nodes[index_of(node)].silence.ended(stream);
    }

    /// To be called when a node begins a drain barrier.
    pub(crate) fn barrier(&mut self, now: Nanos, node: Id) {
        self.nodes[index_of(node)].silence.barrier(now);
    }

    /// To be called when an event is passed to a node's replica.
    pub(crate) fn handed_over(&mut self, now: Nanos, node: Id, event: &Event) {
        let of = &mut self.nodes[index_of(node)];
        of.silence.handed_over(event);
        if let Event::Called(_, called) = event
            && let CallRequest::Open(open) = &called.request
            && let Some(session) = self.by_secret.get(&open.secret.prefix())
        {
            of.silence.opened_by_call(*session);
        }
        of.order.handed_over(event);
        self.rounds.handed_over(now, event);
    }

    /// To be called when a node begins to write a record. Returns whether the record proposes the expiry of a
    /// session.
    pub(crate) fn wrote(&mut self, now: Nanos, node: Id, record: &store::Record) -> bool {
        let before = self.seen.expired;
        let verdict = self.propose(now, node, record);
        self.judge(now, verdict);
        self.seen.expired > before
    }

    /// Checks the commands that no node has written before: they are a leader's proposals.
    fn propose(&mut self, now: Nanos, node: Id, record: &store::Record) -> CheckResult {
        let of = &mut self.nodes[index_of(node)];
        for command in of.copy.wrote(&mut self.log, now, node, record)? {
            of.order.proposed(&command)?;
            match &command {
                Command::ExpireSession { session } => {
                    self.seen.expired += 1;
                    of.silence.may_expire(now, *session, &self.history)?;
                    of.silence.ends(*session);
                }
                command => {
                    of.silence.may_end(command, &self.history)?;
                    of.silence.proposed(command);
                }
            }
        }
        Ok(())
    }

    /// To be called when a node begins to install a received snapshot. Returns the term of the snapshot's
    /// last entry.
    pub(crate) fn installing(&mut self, node: Id, at: u64) -> u64 {
        self.nodes[index_of(node)].copy.installs(at);
        self.log.agreed(at).unwrap_or_default()
    }

    /// To be called when a record is durable on a node.
    pub(crate) fn durable(&mut self, node: Id, record: &store::Record) {
        self.nodes[index_of(node)].copy.synced(record);
    }

    /// Checks how many table entries a node has visited in this turn so far: for its work (`visits`), and in
    /// addition for its outputs (`reads`) (M2).
    pub(crate) fn worked(&mut self, now: Nanos, node: Id, visits: u64, reads: u64) {
        self.seen.most_visits = self.seen.most_visits.max(visits);
        self.seen.most_reads = self.seen.most_reads.max(reads);
        for (visits, most, when) in
            [(visits, self.budgets.visits_max, "in one turn"), (reads, READS_MAX, "for its outputs")]
        {
            if visits > most {
                let what =
                    format!("node {node} looks at {visits} entries of its table {when}, {most} are allowed");
                self.fail(now, "M2", &what);
            }
        }
    }

    /// To be called when a node has put out all outputs of what it has applied.
    pub(crate) fn put_out(&mut self, node: Id) {
        let of = &mut self.nodes[index_of(node)];
        of.put_out = of.copy.applied;
    }

    /// P2 for sections: each has a token of its own (C2). To be called when a section begins.
    pub(crate) fn section_begins(&mut self, now: Nanos, token: u64) {
        if !self.sections.insert(token) {
            self.fail(now, "P2", &format!("a second section begins with token {token}"));
        }
    }

    /// To be called when a try has ended; `is_busy`: because the lock was busy.
    pub(crate) fn try_ends(&mut self, now: Nanos, id: tries::TryId, is_busy: bool) {
        let verdict = self.history.tries.end(now, id, is_busy);
        self.judge(now, verdict);
    }

    /// The number of terms that had a leader.
    pub(crate) fn elections(&self) -> u64 {
        self.log.elections()
    }

    /// Checks a replica after each change. An entry is applied to the oracle's table once the first node has
    /// begun to apply it.
    fn observe(&mut self, node: Id, replica: &Replica) -> CheckResult {
        let of = &mut self.nodes[index_of(node)];
        let (index, begun) = (replica.applied_index(), replica.begun_index());
        let rules = replica.table().rules();
        if rules > of.rules {
            return Err((
                "V1",
                format!("node {node} knows rules {}, its table is by rules {rules}", of.rules),
            ));
        }
        if index < of.copy.applied {
            return Err((
                "P10",
                format!("node {node} goes back to entry {index}, it had applied {}", of.copy.applied),
            ));
        }
        while of.copy.begun < begun {
            let next = of.copy.begun + 1;
            let Some(term) = of.copy.at(next) else {
                return Err(("P10", format!("node {node} applies entry {next}, and has not written it")));
            };
            match self.log.agreed(next) {
                None => {
                    self.log.agree(next, term);
                    let commands = self.log.commands(next, term);
                    self.history.apply(next, commands, &self.excused, &mut self.seen)?;
                }
                Some(agreed) if agreed == term => {}
                Some(agreed) => {
                    return Err((
                        "P10",
                        format!(
                            "node {node} applies entry {next} of term {term}; the one that was applied first is of \
                             term {agreed}"
                        ),
                    ));
                }
            }
            for timer in self.history.begun(next) {
                of.silence.begins(*timer);
            }
            of.copy.begun = next;
        }
        of.copy.applied = index;
        let begins = Self::follow_lead(of, node, replica, &self.log, &self.history)?;
        if index == begun && (begins || index >= of.copy.compared + COMPARED_EVERY) {
            of.copy.compare(node, replica.table(), self.history.digest(index))?;
        }
        Ok(())
    }

    /// Updates whether the node leads. Returns whether it has just become a ready leader.
    fn follow_lead(
        of: &mut ObservedNode,
        node: Id,
        replica: &Replica,
        log: &AgreedLog,
        history: &History,
    ) -> Result<bool, (&'static str, String)> {
        let term = of.copy.term();
        match (replica.is_ready(), of.silence.leads()) {
            (true, Some(known)) if known == term => Ok(false),
            (true, _) => {
                let last: Option<SessionId> = replica.table().sessions().map(|session| session.id).max();
                of.silence.ready(term, last);
                let index = of.copy.applied;
                if index < history.applied() && log.elected_after(term).is_none() {
                    return Err((
                        "P10",
                        format!(
                            "node {node} leads with entry {index} applied; {} was applied before",
                            history.applied()
                        ),
                    ));
                }
                Ok(true)
            }
            (false, None) => Ok(false),
            (false, Some(_)) => {
                of.silence.stepped_down();
                Ok(false)
            }
        }
    }

    /// Checks every invariant of the agreed table, including those that hold only without a backlog.
    pub(crate) fn check_queue(&mut self, now: Nanos) {
        let verdict = self.history.check();
        self.judge(now, verdict);
    }

    /// Checks that a node's table equals the oracle's, at the end of a run.
    pub(crate) fn compare(&mut self, now: Nanos, node: Id, replica: &Replica) {
        let index = replica.applied_index();
        let verdict =
            self.nodes[index_of(node)].copy.compare(node, replica.table(), self.history.digest(index));
        self.judge(now, verdict);
    }
}

impl Core {
    /// Checks a replica after each change, and traces newly applied entries.
    pub(crate) fn observe(&mut self, node: Id, replica: &Replica) {
        let oracle = &mut self.oracle;
        let before = oracle.history.applied();
        let verdict = oracle.observe(node, replica);
        oracle.judge(self.now, verdict);
        for index in before + 1..=oracle.history.applied() {
            let term = oracle.log.agreed(index).unwrap_or_default();
            let commands = oracle.log.commands(index, term);
            let verdict = oracle.call_leases.applied(self.now, commands);
            self.trace.note(self.now, format_args!("node {node} applied {index} ({term}): {commands:?}"));
            oracle.judge(self.now, verdict);
        }
    }
}
