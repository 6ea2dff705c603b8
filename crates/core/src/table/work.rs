//! Bounds on the work of a command, and the backlog that commands leave (M2).
//!
//! The work of a command itself is bounded by the lengths of its names. Three consequences are not: the end
//! of a session ends all its requests, an ended request may unblock many waiters, and a client may confirm
//! many answers at once. A command does a bounded part of each (`limits::WORK_PER_COMMAND_MAX`,
//! `limits::FORGOTTEN_PER_COMMAND_MAX`) and stores the rest, which `Command::Resume` continues. The backlog
//! delays grants but never reorders them: a waiter that could be granted still blocks every later conflicting
//! request.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::Table;
use super::copy_on_write::{FreedCursor, SnapshotWriter};
use super::names::NodeId;
use super::request::RequestId;
use crate::name::LockName;
use crate::reply::{Effects, Reply};
use crate::snapshot::FreedState;
use crate::snapshot::items::put_freed;
use crate::types::{ModeKind, Ticket};

/// Counts visited entries of the table: names, requests, waiters and holds.
#[derive(Default)]
pub(super) struct Visits(Cell<u64>);

impl Visits {
    pub(super) fn add(&self, entries: usize) {
        self.0.set(self.0.get().wrapping_add(entries as u64));
    }
}

/// A name whose waiters may have been unblocked: a request that held it or waited for it has ended or was
/// downgraded, or the name's limit was set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Freed<N> {
    pub(super) name: N,
    /// Whether that request covered the subtree.
    pub(super) subtree: bool,
    /// The mode in which that request held or waited; permit if the limit was set. A shared request did not
    /// block other shared ones.
    pub(super) kind: ModeKind,
    /// Waiters up to this ticket need no visit: the request did not block them, or they were visited since.
    pub(super) after: Ticket,
}

impl<N> Freed<N> {
    pub(super) fn named<M>(self, name: M) -> Freed<M> {
        Freed { name, subtree: self.subtree, kind: self.kind, after: self.after }
    }
}

/// The remaining work that the current command may do, in visited names and removed answers.
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn new(work_max: usize) -> Self {
        Self(work_max)
    }

    pub(super) fn spend(&mut self, names: usize) {
        self.0 = self.0.saturating_sub(names);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// The freed names whose grant pass (G1) has not run or not completed, in the order in which it will run.
#[derive(Default)]
pub(super) struct Unpassed {
    /// The freed names, by consecutive numbers. Stores names instead of `NodeId`s, because a node is removed
    /// from the tree of names once its name is unused. Numbering restarts at 0 whenever the map is empty, so
    /// that a replica restored from a snapshot assigns the same numbers.
    names: BTreeMap<u64, Freed<LockName>>,
    walk: Option<Box<FreedCursor>>,
}

impl Unpassed {
    pub(super) fn push(&mut self, freed: Freed<LockName>) {
        self.names.insert(self.next_number(), freed);
    }

    fn next_number(&self) -> u64 {
        self.names.last_key_value().map_or(0, |(&last, _)| last + 1)
    }

    fn pop(&mut self) -> Option<Freed<LockName>> {
        let (number, freed) = self.names.pop_first()?;
        if let Some(walk) = &mut self.walk
            && walk.note(number)
        {
            walk.saved.save(|out| put_freed(out, &freed.state(number)));
        }
        Some(freed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn states(&self) -> impl Iterator<Item = FreedState> {
        self.names.iter().map(|(&number, freed)| freed.state(number))
    }

    /// Adds a freed name from a snapshot; returns false if its number exists already.
    pub(super) fn restore(&mut self, state: FreedState) -> bool {
        let FreedState { number, name, subtree, kind, after } = state;
        self.names.insert(number, Freed { name, subtree, kind, after }).is_none()
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(FreedCursor::new(self.next_number())));
    }

    /// Advances the snapshot iterator; returns true when done.
    pub(super) fn walk_on(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        for (&number, freed) in self.names.range(walk.range()) {
            if pen.is_spent() {
                return false;
            }
            walk.pass(number);
            pen.put(1, |out| put_freed(out, &freed.state(number)));
        }
        walk.pass_all();
        true
    }

    /// Writes out the copy-on-write buffer; returns true once it is empty.
    pub(super) fn write_saved(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }
}

impl Freed<LockName> {
    fn state(&self, number: u64) -> FreedState {
        let Self { name, subtree, kind, after } = self.clone();
        FreedState { number, name, subtree, kind, after }
    }
}

impl Table {
    /// Whether earlier commands left work for [`Resume`](crate::Command::Resume). The table's driver must
    /// apply that command until this method returns false. Until then, requests that could be granted may
    /// still wait, and requests of ended sessions may still exclude others.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.unpassed.is_empty() || self.sessions.has_backlog()
    }

    /// Number of entries visited since the table was created: names, requests, waiters and holds. One command
    /// adds at most [`visits_max`](crate::Command::visits_max).
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.names.visits().0.get().wrapping_add(self.requests.visits().0.get())
    }

    /// Replaces [`WORK_PER_COMMAND_MAX`](crate::limits::WORK_PER_COMMAND_MAX) by another bound, at least 1:
    /// with a low one, tests and the simulator create a backlog from few requests. The bound decides which
    /// command grants which request, so it must be the same on every replica.
    #[must_use]
    pub fn with_work_max(mut self, names: usize) -> Self {
        self.work_max = names.max(1);
        self
    }

    /// Replaces [`PERMIT_WAITERS_PASSED_MAX`](crate::limits::PERMIT_WAITERS_PASSED_MAX) by another bound,
    /// under the same condition. With a low one, tests reach it with few requests.
    #[must_use]
    pub fn with_permit_waiters_passed_max(mut self, waiters: usize) -> Self {
        self.permit_waiters_passed_max = waiters;
        self
    }

    /// The bound of [`Table::with_permit_waiters_passed_max`].
    #[must_use]
    pub fn permit_waiters_passed_max(&self) -> usize {
        self.permit_waiters_passed_max
    }

    /// Does a part of the backlog: drops confirmed answers, then removes ended sessions, then selects freed
    /// names for the grant pass, which runs after the command.
    pub(super) fn resume(&mut self, out: &mut Effects) -> Reply {
        self.sessions.forget_some();
        self.end_ending(&mut Budget::new(self.work_max), out);
        let mut budget = Budget::new(self.work_max);
        while !budget.is_spent()
            && let Some(freed) = self.unpassed.pop()
        {
            budget.spend(1 + freed.name.segments());
            // A name without a node has no waiters, but a subtree request may wait at a name above it.
            if let Some(node) = self.nearest(&freed.name) {
                self.freed.push(freed.named(node));
            }
        }
        Reply::Done
    }

    /// The node of a name or, if the name has none, of the nearest name above that has one.
    fn nearest(&self, name: &LockName) -> Option<NodeId> {
        let above = crate::name::ancestors(name.as_str());
        std::iter::once(name.as_str()).chain(above).find_map(|name| self.names.find(name))
    }

    /// Records that a request leaves its names or is downgraded, so that the grant pass visits the waiters
    /// there.
    pub(super) fn free(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        // The request blocked only requests with later tickets, since no request is granted past an earlier
        // conflicting waiter. Permits are the exception: after the limit was lowered, a permit hold also
        // counts against earlier waiters (L4).
        let after = if request.kind == ModeKind::Permit { Ticket(0) } else { request.ticket };
        let freed = Freed { name: (), subtree: request.subtree, kind: request.kind, after };
        self.freed.extend(request.nodes.as_slice().iter().map(|&node| freed.named(node)));
    }
}
