//! What must be true, judged from outside: the log as it was written and applied, what clients were told, and true time.
//! The oracle sees everything and tells nobody.
//!
//! `log.rs`: what the nodes agree on, and what each has of it (P1, P10). `table.rs`: the table that the agreed log makes,
//! command by command (P1, P2, P4, P7, P8). `members.rs`: who takes part (P1, P10). `silence.rs`: whom a node may call silent (P9). `order.rs`: who came first (P8).
//! `rounds.rs` and `reads.rs`: who still led when it answered, and with what (P2, P6). `told.rs`: what clients hear (P2,
//! P7, P10). What guards believe is compared in the world (P4, P5).

mod log;
mod members;
mod order;
mod reads;
mod rounds;
mod silence;
mod table;
mod told;

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Command, SessionId, Table, limits};
use lockkeeper_replica::{Answer, AskId, Event, ITEMS_PER_PIECE, Members, Question, Replica, StreamId};
use lockkeeper_wire::{store, v1};

use crate::clock::Nanos;
use crate::core::{Core, Id};
use crate::crowd::Budgets;
use crate::net::Up;
use crate::scenario::{Fault, Scenario};
use log::{Copy, Log};
use members::Taking;
use order::Order;
use reads::Reads;
use rounds::Rounds;
use silence::Silence;
use table::History;
use told::{Told, Verdict};

/// A node's table is compared with the agreed one whenever it has applied so many more entries.
const COMPARED_EVERY: u64 = 16;

/// Most entries of its table that a node looks at for what it sends out at once: a piece of a snapshot, whose items each
/// have a name of at most so many segments.
const READS_MAX: u64 = (ITEMS_PER_PIECE * (1 + limits::NAME_SEGMENTS_MAX)) as u64;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its number, as `P5`.
    pub promise: String,
    /// When, in nanoseconds of true time.
    pub at: u64,
    /// Who and how.
    pub what: String,
}

pub(crate) struct Oracle {
    pub(crate) failure: Option<Failure>,
    /// A write may take seconds in this world.
    has_slow_disk: bool,
    budgets: Budgets,
    pub(crate) history: History,
    log: Log,
    nodes: Vec<Watched>,
    members: Taking,
    /// Sessions whose stream was closed by something between, seen by the service first, and which were not acknowledged
    /// since: the one exception to P5.
    excused: BTreeSet<u64>,
    rounds: Rounds,
    reads: Reads,
    told: Told,
    pub(crate) seen: Seen,
}

/// What is known of one node.
#[derive(Default)]
struct Watched {
    /// The newest rules of the table that its program knows.
    rules: u32,
    /// Its disk is lost: it takes no part until it is somebody else.
    is_wiped: bool,
    copy: Copy,
    silence: Silence,
    order: Order,
}

/// How much was seen: a run in which nothing happens proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Commands applied.
    pub commands: u64,
    /// Grants.
    pub grants: u64,
    /// Sessions that expired.
    pub expired: u64,
    /// Starts of nodes.
    pub starts: u64,
    /// Terms that had a leader.
    pub elections: u64,
    /// Guards that were lost.
    pub lost: u64,
    /// Sections that the fence turned away.
    pub fenced: u64,
    /// Sections that wrote.
    pub written: u64,
    /// Updates that were lost where no fence was: without one a lock is not enough (P3).
    pub overwritten: u64,
    /// Requests that became certain only by asking again.
    pub ambiguous: u64,
    /// Changes of the members.
    pub changes: u64,
    /// Disks that were lost.
    pub wiped: u64,
    /// Tables whose rules were raised.
    pub raised: u64,
    /// Commands that continued what others had left (M2).
    pub resumed: u64,
    /// The most entries of its table that a node has looked at in one turn.
    pub most_visits: u64,
    /// The same, for what it sent out at once.
    pub most_reads: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.grants += other.grants;
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

fn place(node: Id) -> usize {
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
            log: Log::default(),
            nodes: (0..scenario.nodes).map(|_| Watched::default()).collect(),
            members: Taking::default(),
            excused: BTreeSet::new(),
            rounds: Rounds::default(),
            reads: Reads::default(),
            told: Told::default(),
            seen: Seen::default(),
        }
    }

    /// The first one counts.
    pub(crate) fn fail(&mut self, at: Nanos, promise: &str, what: &str) {
        if self.failure.is_none() {
            self.failure = Some(Failure { promise: promise.to_owned(), at, what: what.to_owned() });
        }
    }

    fn judge(&mut self, now: Nanos, verdict: Verdict) {
        if let Err((promise, what)) = verdict {
            self.fail(now, promise, &what);
        }
    }

    /// Another node is there, that joins.
    pub(crate) fn joins(&mut self) {
        self.nodes.push(Watched::default());
    }

    /// A node starts as a member, by this record, with a program that knows these rules.
    pub(crate) fn founded(&mut self, now: Nanos, node: Id, rules: u32, founding: &store::Founding) {
        self.nodes[place(node)].rules = rules;
        if self.members.is_first() {
            self.history = History::new(founding.rules, self.budgets);
        }
        let verdict = self.members.founded(node, founding);
        self.judge(now, verdict);
    }

    /// A node has applied that these take part; `newest` is what whoever has applied most says.
    pub(crate) fn members_are(&mut self, now: Nanos, members: &Members, newest: &Members) {
        let verdict = self.members.applied(members, newest);
        self.seen.changes = self.members.changes();
        self.judge(now, verdict);
    }

    /// A node's disk is lost. `is_wiped`: it does not vote any more, whatever becomes of it.
    pub(crate) fn wiped(&mut self, node: Id, is_wiped: bool) {
        self.seen.wiped += 1;
        let of = &mut self.nodes[place(node)];
        (of.copy, of.is_wiped) = (Copy::default(), is_wiped);
    }

    /// What a start of a node found: a snapshot, and the log behind it.
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
        let of = &mut self.nodes[place(node)];
        of.silence = Silence::default();
        of.order = Order::default();
        let mut verdict = of.copy.recovered(&self.log, node, at, hard_state, entries);
        if verdict.is_ok() && self.history.digest(at) != Some(table.snapshot().digest()) {
            let what = format!("the snapshot of entry {at} on node {node} is not the table that was there");
            verdict = Err(("P10", what));
        }
        self.judge(now, verdict);
    }

    /// A turn begins, at this reading of the node's clock.
    pub(crate) fn turn(&mut self, now: Nanos, node: Id, local: Duration, replica: &Replica) {
        let least = replica.table().sessions().map(|session| session.ttl_ms).min();
        let step = Duration::from_millis(least.unwrap_or(limits::TTL_MS_MIN)) / 12;
        let of = &mut self.nodes[place(node)];
        of.silence.turn(local, step);
        let verdict = of.silence.is_late(of.copy.applied, &self.history, self.has_slow_disk);
        self.judge(now, verdict);
    }

    /// A packet is readable in a socket of a node from now on.
    pub(crate) fn arrived(&mut self, now: Nanos, node: Id, stream: StreamId, packet: &Up) {
        self.nodes[place(node)].silence.arrived(now, stream, packet);
    }

    /// A node reads that a stream is closed, which its client did not do or knows nothing of yet.
    pub(crate) fn closed_between(&mut self, node: Id, stream: StreamId) {
        self.excused.extend(self.nodes[place(node)].silence.carried_by(stream));
    }

    /// A node has closed a stream.
    pub(crate) fn ended(&mut self, node: Id, stream: StreamId) {
        self.nodes[place(node)].silence.ended(stream);
    }

    /// A node asks for all input of before.
    pub(crate) fn barrier(&mut self, now: Nanos, node: Id) {
        self.nodes[place(node)].silence.barrier(now);
    }

    /// The replica of a node is given something.
    pub(crate) fn handed_over(&mut self, now: Nanos, node: Id, event: &Event) {
        let of = &mut self.nodes[place(node)];
        of.silence.handed_over(event);
        of.order.handed_over(event);
        self.rounds.handed_over(now, event);
    }

    /// The replica wants this to be durable. Whether it proposes the end of a session with it.
    pub(crate) fn wrote(&mut self, now: Nanos, node: Id, record: &store::Record) -> bool {
        let before = self.seen.expired;
        let verdict = self.propose(now, node, record);
        self.judge(now, verdict);
        self.seen.expired > before
    }

    /// What nobody has written before is a leader's proposal, and judged as one.
    fn propose(&mut self, now: Nanos, node: Id, record: &store::Record) -> Verdict {
        let of = &mut self.nodes[place(node)];
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

    /// A node begins to install a received snapshot; the term of its last entry.
    pub(crate) fn installing(&mut self, node: Id, at: u64) -> u64 {
        self.nodes[place(node)].copy.installs(at);
        self.log.agreed(at).unwrap_or_default()
    }

    /// It is durable.
    pub(crate) fn durable(&mut self, node: Id, record: &store::Record) {
        self.nodes[place(node)].copy.synced(record);
    }

    /// A node has looked at so many entries of its table in this turn, up to now, and at so many for what it sends out (M2).
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

    /// A node tells clients this.
    pub(crate) fn told(&mut self, now: Nanos, node: Id, stream: StreamId, items: &[v1::ServerItem]) {
        let nodes = &self.nodes;
        let has = |index: u64| {
            let Some(term) = self.log.agreed(index) else { return false };
            self.members.is_minority(|node| {
                let of = nodes.get(place(node));
                of.is_some_and(|of| !of.is_wiped && !of.copy.is_durable(index, term))
            })
        };
        let mut verdict = told::ends_of_attach(items, self.budgets.ends_per_part);
        for item in items {
            let term = nodes[place(node)].silence.leads();
            verdict = verdict.and_then(|()| self.rounds.told(node, term, stream, item, &self.log));
            verdict = verdict.and_then(|()| nodes[place(node)].silence.may_tell(item));
            verdict = verdict.and_then(|()| self.told.item(item, &self.history, has));
            if let Some(v1::server_item::What::Attached(_) | v1::server_item::What::Opened(_)) = item.what {
                // From here on it has its full ttl again.
                self.excused.remove(&item.session);
            }
        }
        for item in items {
            self.nodes[place(node)].silence.told(stream, item);
        }
        self.judge(now, verdict);
    }

    /// An operator asks a node.
    pub(crate) fn asked(&mut self, ask: AskId, question: &Question) {
        self.reads.asked(ask, question, &self.history);
    }

    /// A node answers an operator.
    pub(crate) fn answered(&mut self, now: Nanos, node: Id, ask: AskId, answer: &Answer) {
        let term = self.nodes[place(node)].silence.leads();
        let verdict = match answer {
            // What went through the log is answered by whoever applied it.
            Answer::Described(_) | Answer::Listed(_) | Answer::Sessions(_) | Answer::Checked(_) => {
                self.rounds.read(node, term, ask, &self.log)
            }
            _ => Ok(()),
        };
        let verdict = verdict.and_then(|()| self.reads.answered(ask, answer, &self.history));
        self.judge(now, verdict);
    }

    /// The elections that there were.
    pub(crate) fn elections(&self) -> u64 {
        self.log.elections()
    }

    /// Looks at a replica after anything that may have changed it. An entry counts as applied once a node has begun it.
    fn observe(&mut self, node: Id, replica: &Replica) -> Verdict {
        let of = &mut self.nodes[place(node)];
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

    /// Whether the node has begun to lead.
    fn follow_lead(
        of: &mut Watched,
        node: Id,
        replica: &Replica,
        log: &Log,
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

    /// Every invariant of the agreed table, also those that hold only while no work is left for later.
    pub(crate) fn check_queue(&mut self, now: Nanos) {
        let verdict = self.history.check();
        self.judge(now, verdict);
    }

    /// At the end: every node has applied the same, and has the same table.
    pub(crate) fn compare(&mut self, now: Nanos, node: Id, replica: &Replica) {
        let index = replica.applied_index();
        let verdict = self.nodes[place(node)].copy.compare(node, replica.table(), self.history.digest(index));
        self.judge(now, verdict);
    }
}

impl Core {
    /// Looks at a replica after anything that may have changed it.
    pub(crate) fn observe(&mut self, node: Id, replica: &Replica) {
        let oracle = &mut self.oracle;
        let before = oracle.history.applied();
        let verdict = oracle.observe(node, replica);
        oracle.judge(self.now, verdict);
        for index in before + 1..=oracle.history.applied() {
            let term = oracle.log.agreed(index).unwrap_or_default();
            let commands = oracle.log.commands(index, term);
            self.trace.note(self.now, format_args!("node {node} applied {index} ({term}): {commands:?}"));
        }
    }
}
