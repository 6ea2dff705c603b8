//! What must be true, judged from outside: the log as it was written and applied, what clients were told, and true time.
//! The oracle sees everything and tells nobody.
//!
//! `table.rs`: the table, command by command (P1, P2, P4, P7, P8, P10). `silence.rs`: who may be called silent (P9).
//! `told.rs`: what clients hear (P2, P7, P10). What guards believe is compared in `world.rs` (P4, P5).

mod silence;
mod table;
mod told;

use std::time::Duration;

use lockkeeper_core::{Command, Table};
use lockkeeper_replica::{Event, Replica, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::{store, v1};

use crate::clock::Nanos;
use crate::core::Core;
pub(crate) use silence::Silence;
pub(crate) use table::History;
use told::Told;

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
    pub(crate) history: History,
    pub(crate) silence: Silence,
    told: Told,
    pub(crate) seen: Seen,
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
    /// Starts of the node.
    pub starts: u64,
    /// Guards that were lost.
    pub lost: u64,
    /// Sections that the fence turned away.
    pub fenced: u64,
    /// Sections that wrote.
    pub written: u64,
    /// Requests that became certain only by asking again.
    pub ambiguous: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.commands += other.commands;
        self.grants += other.grants;
        self.expired += other.expired;
        self.starts += other.starts;
        self.lost += other.lost;
        self.fenced += other.fenced;
        self.written += other.written;
        self.ambiguous += other.ambiguous;
    }
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self {
            failure: None,
            history: History::new(),
            silence: Silence::default(),
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

    fn judge(&mut self, now: Nanos, verdict: Result<(), (&'static str, String)>) {
        if let Err((promise, what)) = verdict {
            self.fail(now, promise, &what);
        }
    }

    /// What a start of the node found: a snapshot, and the log behind it.
    pub(crate) fn recovered(&mut self, now: Nanos, at: u64, table: &Table, entries: &[store::Entry]) {
        self.seen.starts += 1;
        let verdict = self.history.recovered(at, table, entries);
        self.judge(now, verdict);
    }

    /// A turn begins, at this reading of the node's clock.
    pub(crate) fn turn(&mut self, local: Duration) {
        let step = self.history.least_ttl() / 12;
        self.silence.turn(local, step);
    }

    /// The replica is given something.
    pub(crate) fn handed_over(&mut self, event: &Event) {
        self.silence.handed_over(event);
        if let Event::Frame(_, requests) = event {
            for request in requests {
                if let Request::Command { session, seq, command: Command::Acquire(_) } = request {
                    self.history.handed_over(*session, *seq);
                }
            }
        }
    }

    /// The replica wants this to be durable.
    pub(crate) fn wrote(&mut self, now: Nanos, record: &store::Record) {
        let verdict = self.history.wrote(record);
        let verdict = verdict.and_then(|commands| {
            commands.iter().try_for_each(|command| match command {
                Command::ExpireSession { session } => {
                    self.seen.expired += 1;
                    self.silence.may_expire(now, *session, &self.history)
                }
                _ => self.history.may_propose(command, &self.silence),
            })
        });
        self.judge(now, verdict);
    }

    /// It is durable.
    pub(crate) fn durable(&mut self, record: &store::Record) {
        self.history.durable(record);
    }

    /// The node tells clients this.
    pub(crate) fn told(&mut self, now: Nanos, stream: StreamId, items: &[v1::ServerItem]) {
        for item in items {
            self.silence.told(stream, item);
            let verdict = self.told.item(item, &self.history);
            self.judge(now, verdict);
        }
    }
}

impl Core {
    /// Looks at the replica after anything that may have changed it.
    pub(crate) fn observe(&mut self, replica: &Replica) {
        let oracle = &mut self.oracle;
        let before = oracle.history.applied();
        let verdict = oracle.history.observe(replica, &oracle.silence, &mut oracle.seen);
        oracle.judge(self.now, verdict);
        if replica.is_ready() {
            oracle.silence.ready(self.now);
        }
        for index in before + 1..=oracle.history.applied() {
            let what = oracle.history.shown(index);
            self.trace.note(self.now, format_args!("applied {index}: {what}"));
        }
    }
}
