//! The table and the oracle side by side: every command is applied to both, and all results are compared.
//!
//! Reports the first difference in full, and checks the invariants after every command. This module contains
//! no rule.

use lockkeeper_core::{
    Command, Cycle, Effects, LockName, Page, Rejection, Reply, Snapshot, Table, TokenStatus, invariants,
};

use super::{Checked, Oracle, deadlock, queries};

/// An arbitrary hash seed. [`Pair::restart`] changes the seed, since no result may depend on it.
const SEED: u64 = 0x5eed;

/// A table and its oracle, which must agree.
pub(crate) struct Pair {
    pub(crate) table: Table,
    pub(crate) oracle: Oracle,
    /// Snapshot of both after the last command.
    pub(crate) now: Snapshot,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let table = Table::new(SEED);
        let now = table.snapshot();
        let oracle = Oracle::new();
        assert_eq!(now, *oracle.snapshot(), "an empty table");
        Self { table, oracle, now }
    }

    /// A pair whose permits are granted past at most so many waiters (M2).
    pub(crate) fn with_permit_waiters_passed_max(waiters: usize) -> Self {
        let Self { table, mut oracle, now } = Self::new();
        oracle.permit_waiters_passed_max = waiters;
        Self { table: table.with_permit_waiters_passed_max(waiters), oracle, now }
    }

    /// A pair restored from a snapshot.
    pub(crate) fn restore(snapshot: &Snapshot) -> Self {
        let table = Table::restore(snapshot, SEED).expect("a snapshot of a table can be restored");
        Self { table, oracle: Oracle::from_snapshot(snapshot), now: snapshot.clone() }
    }

    /// Applies a command to both. `Err` describes the difference, or the violated invariant.
    pub(crate) fn apply(&mut self, command: &Command) -> Result<(Reply, Effects), String> {
        let answer = self.apply_and_compare(command)?;
        invariants::all(&self.table)?;
        Ok(answer)
    }

    /// As [`Pair::apply`] without the state invariants, for callers that check these once per state.
    pub(crate) fn apply_and_compare(&mut self, command: &Command) -> Result<(Reply, Effects), String> {
        let (mut effects, mut expected) = (Effects::new(), Effects::new());
        let visits = self.table.visits();
        let reply = self.table.apply(command.clone(), &mut effects);
        let (visits, visits_max) = (self.table.visits() - visits, command.visits_max());
        if visits > visits_max {
            return Err(format!("M2: {command:?} looked at {visits} entries, {visits_max} are allowed"));
        }
        let expected_reply = self.oracle.apply(command.clone(), &mut expected);
        let after = self.table.snapshot();
        let expected_after = self.oracle.snapshot();
        // K2: any cycle will do.
        let mut comparable = reply.clone();
        if let Reply::Refused(Rejection::Deadlock { cycle }) = &mut comparable {
            let cycle = std::mem::take(cycle);
            let is_right = match &self.oracle.refused {
                Some(refused) => deadlock::is_cycle(&self.now, refused, &cycle),
                None => cycle == Cycle::default(),
            };
            if !is_right {
                return Err(format!("K2: {command:?} was refused with {cycle:?} in {:?}", self.now));
            }
        }
        if comparable != expected_reply || effects != expected || after != *expected_after {
            return Err(format!(
                "table and oracle differ at {command:?}\n\
                 table:  {reply:?} {effects:?}\noracle: {expected_reply:?} {expected:?}\n\
                 {}before: {:?}",
                differing_lines(&after, expected_after),
                self.now
            ));
        }
        invariants::step(&self.now, command, &reply, &effects, &after)?;
        self.now = after;
        Ok((reply, effects))
    }

    /// B4: compares the status of a token.
    pub(crate) fn check_token(&self, name: &LockName, token: u64) -> Result<Checked, String> {
        let expected = self.oracle.check_token(name, token);
        let checked = match self.table.check_token(name, token) {
            TokenStatus::Current => Checked::Current,
            TokenStatus::NotCurrent { live } => Checked::NotCurrent(live),
            TokenStatus::NeverIssued => Checked::NeverIssued,
        };
        if checked == expected {
            Ok(checked)
        } else {
            Err(format!("check_token({name}, {token}): table {checked:?}, oracle {expected:?}"))
        }
    }

    /// Compares the queries about a name and about all sessions.
    pub(crate) fn queries_agree(&self, name: &LockName) -> Result<(), String> {
        let second = queries::describe(&self.now, name, EVERYTHING).holds.get(1).map(|hold| hold.token);
        let part = Page { after: second, holds_max: 2, waiters_max: 2, ..EVERYTHING };
        for page in [part, EVERYTHING] {
            let (answer, expected) =
                (self.table.describe(name, page), queries::describe(&self.now, name, page));
            if answer != expected {
                return Err(format!(
                    "describe({name}): table {answer:?}, oracle {expected:?}, of {:?}",
                    self.now
                ));
            }
        }
        for prefix in [None, Some(name)] {
            let (answer, expected) =
                (self.table.names_in_use(prefix), queries::names_in_use(&self.now, prefix));
            if answer != expected {
                return Err(format!("names below {prefix:?}: table {answer:?}, oracle {expected:?}"));
            }
        }
        let answer: Vec<_> = self.table.sessions().map(|session| (session.id, session.requests)).collect();
        let ids = self.now.sessions.iter().map(|session| session.id);
        let expected: Vec<_> = ids.map(|id| (id, queries::requests_of(&self.now, id))).collect();
        if answer == expected {
            Ok(())
        } else {
            Err(format!("sessions: table {answer:?}, oracle {expected:?}"))
        }
    }

    /// Encodes and restores the table, and continues with the restored one under another seed.
    pub(crate) fn restart(&mut self) -> Result<(), String> {
        let bytes = self.now.encode();
        let read = Snapshot::decode(&bytes).map_err(|why| why.to_string())?;
        if read != self.now || read.digest() != self.now.digest() || read.encode() != bytes {
            return Err(format!("{:?} became {read:?} through its bytes", self.now));
        }
        let restored = Table::restore(&read, SEED + 1).map_err(|why| why.to_string())?;
        self.table = restored.with_permit_waiters_passed_max(self.oracle.permit_waiters_passed_max);
        let restored = self.table.snapshot();
        if restored == self.now { Ok(()) } else { Err(format!("{:?} became {restored:?}", self.now)) }
    }
}

const EVERYTHING: Page =
    Page { after: None, holds_max: 1_000, bytes_max: usize::MAX, waiters_max: usize::MAX };

/// The differing lines of two snapshots; whole snapshots are too long to read.
fn differing_lines(table: &Snapshot, oracle: &Snapshot) -> String {
    let (table, oracle) = (format!("{table:#?}"), format!("{oracle:#?}"));
    let mut text = String::new();
    for (number, (table, oracle)) in table.lines().zip(oracle.lines()).enumerate() {
        if table != oracle {
            text += &format!("snapshot, line {number}: table {}, oracle {}\n", table.trim(), oracle.trim());
        }
    }
    text
}
