//! What a command may cost, and what it leaves for later (M2).
//!
//! A command's own part is bounded by the lengths of its names. Three things are not: ending a session ends all its
//! requests, what ends may let many waiters in, and a client may confirm many answers at once. Each is done up to a
//! bound ([`limits::WORK_PER_COMMAND_MAX`]); the rest is kept, and [`Command::Resume`] continues it. What is left for later delays grants, and never overtakes: a waiter
//! that could be granted still blocks every later request that conflicts with it.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::Table;
use super::ahead::{FreedAhead, Pen};
use super::names::NodeId;
use super::request::RequestId;
use crate::command::Command;
use crate::limits;
use crate::name::LockName;
use crate::reply::{Effects, Reply};
use crate::snapshot::FreedState;
use crate::snapshot::items::put_freed;
use crate::types::{ModeKind, Ticket};

/// Counts the entries of the table that were looked at: names, requests, waiters and holds.
#[derive(Default)]
pub(super) struct Visits(Cell<u64>);

impl Visits {
    pub(super) fn add(&self, entries: usize) {
        self.0.set(self.0.get().wrapping_add(entries as u64));
    }
}

/// A name at which something went away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Freed<N> {
    pub(super) name: N,
    /// Its subtree was freed too.
    pub(super) subtree: bool,
    /// The mode of what went away: shared requests never kept each other out.
    pub(super) kind: ModeKind,
    /// Requests up to this ticket were not kept out by it, or were looked at since.
    pub(super) after: Ticket,
}

impl<N> Freed<N> {
    pub(super) fn named<M>(self, name: M) -> Freed<M> {
        Freed { name, subtree: self.subtree, kind: self.kind, after: self.after }
    }
}

/// How much work may still be done for the current command, in names looked at.
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

/// The names at which the pass of rule G1 has not been made, or not to its end, in the order in which it will be made.
#[derive(Default)]
pub(super) struct Unpassed {
    /// By name, not by node: a node is forgotten as soon as its name is not in use. Numbers begin anew whenever there is
    /// none left, so they are the same on a node that was restored meanwhile.
    names: BTreeMap<u64, Freed<LockName>>,
    walk: Option<Box<FreedAhead>>,
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

    /// Whether none has this number yet.
    pub(super) fn restore(&mut self, state: FreedState) -> bool {
        let FreedState { number, name, subtree, kind, after } = state;
        self.names.insert(number, Freed { name, subtree, kind, after }).is_none()
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(FreedAhead::new(self.next_number())));
    }

    /// Goes on with the walk; whether it has passed them all.
    pub(super) fn walk_on(&mut self, pen: &mut Pen<'_>) -> bool {
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

    /// Writes what was saved; whether that was all.
    pub(super) fn write_saved(&mut self, pen: &mut Pen<'_>) -> bool {
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
    /// Whether earlier commands left work for [`Command::Resume`]. Whoever drives the table applies that command until
    /// there is none: until then some requests wait that could be granted, and some closed sessions still hold.
    #[must_use]
    pub fn has_backlog(&self) -> bool {
        !self.unpassed.is_empty() || self.sessions.has_backlog()
    }

    /// Entries of the table that were looked at since it was made: names, requests, waiters and holds. The difference
    /// over one command is at most [`Command::visits_max`].
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.names.visits().0.get().wrapping_add(self.requests.visits().0.get())
    }

    /// The same table with another [`limits::WORK_PER_COMMAND_MAX`], at least 1: for tests and the simulator, which leave
    /// work for later without a crowd. It decides which command grants what, so it must be the same on every node.
    #[must_use]
    pub fn with_work_max(mut self, names: usize) -> Self {
        self.work_max = names.max(1);
        self
    }

    /// Continues with the sessions that are ending, then with the names that were freed.
    pub(super) fn resume(&mut self, out: &mut Effects) -> Reply {
        self.sessions.forget_some();
        self.end_ending(&mut Budget::new(self.work_max), out);
        let mut budget = Budget::new(self.work_max);
        while !budget.is_spent()
            && let Some(freed) = self.unpassed.pop()
        {
            budget.spend(1 + freed.name.segments());
            // Nothing waits at a name that is gone; but a subtree above it may.
            if let Some(node) = self.nearest(&freed.name) {
                self.freed.push(freed.named(node));
            }
        }
        Reply::Done
    }

    /// The node of a name, or else of the nearest name above it.
    fn nearest(&self, name: &LockName) -> Option<NodeId> {
        let above = crate::name::ancestors(name.as_str());
        std::iter::once(name.as_str()).chain(above).find_map(|name| self.names.find(name))
    }

    /// Notes that a request goes away from its names, so that waiters there are looked at.
    pub(super) fn free(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        // A hold never has a conflicting waiter before it. A permit may have: it counts against all that wait, also
        // before it, once the limit was lowered (L4).
        let after = if request.kind == ModeKind::Permit { Ticket(0) } else { request.ticket };
        let freed = Freed { name: (), subtree: request.subtree, kind: request.kind, after };
        self.freed.extend(request.nodes.as_slice().iter().map(|&node| freed.named(node)));
    }
}

impl Command {
    /// Most entries of the table that this command looks at, whatever the table holds (M2): a few times the segments of
    /// its names, or of the longest list of names that a request may have where it names a request; and what it may do
    /// for others, [`limits::WORK_PER_COMMAND_MAX`].
    #[must_use]
    pub fn visits_max(&self) -> u64 {
        self.visits_max_with(limits::WORK_PER_COMMAND_MAX)
    }

    /// [`Command::visits_max`] in a table with another bound on work ([`Table::with_work_max`]).
    #[must_use]
    pub fn visits_max_with(&self, work_max: usize) -> u64 {
        /// Looks at each name above and at a name: to find it, to find conflicts of each class, to enter it everywhere,
        /// and to forget it.
        const PER_SEGMENT: usize = 48;
        /// Names that are looked at for a place in the queue, a holder, live tokens.
        const LOOKS: usize =
            4 * (limits::POSITION_LOOK_MAX + limits::HOLDER_LOOK_MAX + limits::LIVE_TOKENS_MAX);
        let segments = match self {
            Self::OpenSession(_) | Self::RaiseTokens { .. } | Self::RaiseRules { .. } => 0,
            Self::Acquire(it) => it.names.iter().map(LockName::segments).sum(),
            Self::SetLimit { name, .. } => name.segments(),
            Self::Break(_)
            | Self::TimeOut { .. }
            | Self::EndDelay { .. }
            | Self::EndRevoked { .. }
            | Self::Finish { .. }
            | Self::SetValue { .. }
            | Self::Downgrade { .. }
            | Self::CloseSession { .. }
            | Self::ExpireSession { .. }
            | Self::Resume => limits::NAMES_PER_REQUEST_MAX * limits::NAME_SEGMENTS_MAX,
        };
        (PER_SEGMENT * (segments + 2 * work_max) + LOOKS) as u64
    }
}
