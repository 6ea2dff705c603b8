//! Deadlocks (K1, K2): the search for a cycle that a new wait would close.
//!
//! A wait needs all that blocks it to end: holds, and earlier waiters. A hold that is declared by a wait
//! without limit lasts until that wait has ended. A cycle of these can't resolve itself. Waits begin only by
//! queueing, and tokens are never issued twice; so the request that comes last closes the cycle, through a
//! hold that it declares, and only such a request is looked at. The search goes from it to what blocks it,
//! from there to the waits that declare those holds, and so on, breadth first.
//!
//! The order of the search decides what is found within its bound, so it must be the same on all replicas:
//! names in byte order, holds by token, waiters by ticket.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::Table;
use super::acquire::Wanted;
use super::crowd::{Class, Here, opposed};
use super::names::NodeId;
use super::request::{RequestEntry, RequestId, RequestStage};
use super::usage::AccountId;
use crate::cycle::{Cycle, CycleRequest};
use crate::limits;
use crate::name::LockName;
use crate::types::{ModeKind, SessionId, Ticket, Token};

/// The waits that declare a token.
pub(super) type Declared = BTreeMap<(Token, Ticket), RequestId>;

/// The new request, which is not stored yet.
pub(super) struct Newcomer<'a> {
    pub(super) wanted: Wanted<'a>,
    pub(super) names: &'a [LockName],
    pub(super) session: SessionId,
    pub(super) account: AccountId,
    /// The tokens that it declares.
    pub(super) holding: &'a [Token],
}

/// A wait in the queue of the search.
struct ReachedWait {
    id: RequestId,
    /// The wait that it blocks: an index of the queue; `None` for the new request.
    blocks: Option<usize>,
    /// The hold by which it blocks; `None` if it is an earlier waiter.
    hold: Option<RequestId>,
}

/// Why the search ends before its queue is empty.
enum Stop {
    /// This hold, which blocks that wait of the queue, is declared by the new request.
    Cycle {
        blocked: Option<usize>,
        hold: RequestId,
    },
    OutOfSteps,
}

/// Where requests may block a wait: a name, how it relates to the name of the wait, and whether shared
/// requests are left out, as those that don't block a shared one.
type Place = (NodeId, Side, bool);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    At,
    Above,
    Below,
}

struct Search<'a> {
    table: &'a Table,
    new: &'a Newcomer<'a>,
    steps_left: usize,
    queue: Vec<ReachedWait>,
    seen: BTreeSet<RequestId>,
    /// The places whose holds were visited, and whose waiters up to the ticket were: many waits in one queue
    /// have the same before them.
    places: BTreeMap<Place, Ticket>,
}

impl Table {
    /// The declared tokens that matter (K1): of a wait without limit for an exclusive or shared hold, those
    /// that were issued. A later hold with a token that was declared before could close a cycle unseen.
    pub(super) fn declared_by(
        &self,
        holding: Box<[Token]>,
        kind: ModeKind,
        at_most_ms: Option<u64>,
    ) -> Box<[Token]> {
        if at_most_ms.is_some() || kind == ModeKind::Permit {
            return Box::default();
        }
        let mut holding = holding.into_vec();
        holding.retain(|token| token.get() <= self.last_token);
        holding.into()
    }

    /// Adds what a waiter declares to the index.
    pub(super) fn declare(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        let tokens = request.extras.iter().flat_map(|extras| extras.holding.iter());
        self.declared.extend(tokens.map(|&token| ((token, request.ticket), id)));
    }

    /// Removes what a waiter declares from the index.
    pub(super) fn declare_no_more(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        for &token in request.extras.iter().flat_map(|extras| extras.holding.iter()) {
            self.declared.remove(&(token, request.ticket));
        }
    }

    /// The cycle that a new wait would close; `None` also if there may be one beyond
    /// [`limits::DEADLOCK_STEPS_MAX`].
    pub(super) fn deadlock(&self, new: &Newcomer<'_>) -> Option<Cycle> {
        if new.holding.is_empty() {
            return None;
        }
        let mut search = Search {
            table: self,
            new,
            steps_left: limits::DEADLOCK_STEPS_MAX,
            queue: Vec::new(),
            seen: BTreeSet::new(),
            places: BTreeMap::new(),
        };
        match search.run() {
            Err(Stop::Cycle { blocked, hold }) => Some(search.describe(blocked, hold)),
            Err(Stop::OutOfSteps) | Ok(()) => None,
        }
    }

    /// Whether a request lasts: a hold or wait of an ended session ends without a command of its client.
    fn is_of_live_session(&self, request: &RequestEntry) -> bool {
        let is_live = |session| !self.sessions.has_backlog() || self.sessions.get(session).is_some();
        request.owner.is_some_and(|owner| is_live(owner.session))
    }
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let table = self.table;
        self.visit_blockers(None, &self.new.wanted, Ticket(u64::MAX))?;
        let mut next = 0;
        while let Some(reached) = self.queue.get(next) {
            let wait = &table.requests[reached.id as usize];
            self.spend(wait.nodes.as_slice().len() - 1)?;
            self.visit_blockers(Some(next), &wait.wanted(), wait.ticket)?;
            next += 1;
        }
        Ok(())
    }

    fn spend(&mut self, steps: usize) -> Result<(), Stop> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(Stop::OutOfSteps)?;
        Ok(())
    }

    /// Until which ticket the place was visited before; it is now, until this one.
    fn pass(&mut self, place: Place, ticket: Ticket) -> Option<Ticket> {
        match self.places.entry(place) {
            Entry::Vacant(entry) => {
                entry.insert(ticket);
                None
            }
            Entry::Occupied(mut entry) => {
                let visited = *entry.get();
                entry.insert(visited.max(ticket));
                Some(visited)
            }
        }
    }

    /// Visits what blocks a wait. `blocked` is its index in the queue.
    fn visit_blockers(
        &mut self,
        blocked: Option<usize>,
        wanted: &Wanted<'_>,
        ticket: Ticket,
    ) -> Result<(), Stop> {
        for &node in wanted.nodes {
            self.visit_at(blocked, (node, Side::At), wanted.kind, ticket)?;
            for (above, _) in self.table.names.above(node) {
                self.visit_at(blocked, (above, Side::Above), wanted.kind, ticket)?;
            }
            if wanted.subtree {
                self.visit_below(blocked, node, false, ticket)?;
                if wanted.kind != ModeKind::Shared {
                    self.visit_below(blocked, node, true, ticket)?;
                }
            }
        }
        Ok(())
    }

    /// Visits the holds and earlier waiters at a name that block requests of this mode for the name, or for
    /// one below it.
    fn visit_at(
        &mut self,
        blocked: Option<usize>,
        (node, side): (NodeId, Side),
        kind: ModeKind,
        ticket: Ticket,
    ) -> Result<(), Stop> {
        let table = self.table;
        let here = &table.names.get(node).here;
        if matches!(here, Here::Idle) {
            return Ok(());
        }
        let classes: &[Class] = if side == Side::At { &Class::ALL } else { &Class::SUBTREES };
        let visited = self.pass((node, side, kind == ModeKind::Shared), ticket);
        if visited.is_none() {
            for class in opposed(kind, classes) {
                // Of many readers, those that end the search come first: there may be more than steps.
                let is_crowded =
                    here.crowd().is_some_and(|it| it.holds.of(class).len() > limits::HOLDING_MAX);
                let declared = self.new.holding.iter().filter(|_| is_crowded);
                let mut own = declared.filter_map(|&token| here.hold_with(token, &[class], &table.requests));
                if let Some(hold) = own.find(|&hold| self.is_own(&table.requests[hold as usize])) {
                    return Err(Stop::Cycle { blocked, hold });
                }
                for (_, hold) in here.holds_after(None, class, &table.requests) {
                    self.visit_hold(blocked, hold)?;
                }
            }
        }
        let from = visited.unwrap_or(Ticket(0));
        for class in opposed(kind, classes).filter(|_| from < ticket) {
            let waiting = here.waiting(class).filter(|waiting| !waiting.is_empty());
            for (_, &waiter) in waiting.into_iter().flat_map(|waiting| waiting.range(from..ticket)) {
                self.visit_waiter(blocked, waiter, None)?;
            }
        }
        Ok(())
    }

    /// Visits the shared holds and earlier waiters strictly below a name, or those that are not shared.
    fn visit_below(
        &mut self,
        blocked: Option<usize>,
        top: NodeId,
        shared: bool,
        ticket: Ticket,
    ) -> Result<(), Stop> {
        let table = self.table;
        let visited = self.pass((top, Side::Below, shared), ticket);
        let below = table.names.get(top).below;
        let holds = if shared { below.all - below.unshared } else { below.unshared };
        if visited.is_none() && holds > 0 {
            // The names come in an order that differs between replicas. So the search either has all of them,
            // and sorts the holds, or ends.
            let nodes: Vec<_> = table.names.below(top).take(self.steps_left + 1).collect();
            self.spend(nodes.len())?;
            let mut found: Vec<(Token, RequestId)> = nodes
                .iter()
                .flat_map(|(_, node)| Class::ALL.iter().map(move |&class| (node, class)))
                .filter(|(_, class)| (class.kind() == ModeKind::Shared) == shared)
                .flat_map(|(node, class)| node.here.holds_after(None, class, &table.requests))
                .take(self.steps_left + 1)
                .collect();
            if found.len() > self.steps_left {
                return Err(Stop::OutOfSteps);
            }
            found.sort_unstable();
            for (_, hold) in found {
                self.visit_hold(blocked, hold)?;
            }
        }
        let from = visited.unwrap_or(Ticket(0));
        if let Some(waiting) = table.names.waiting_below(top, shared)
            && from < ticket
        {
            for (_, &(waiter, _)) in waiting.range(from..ticket) {
                self.visit_waiter(blocked, waiter, None)?;
            }
        }
        Ok(())
    }

    /// Visits the waits that declare a hold. Revoked and closed holds end without their callers.
    fn visit_hold(&mut self, blocked: Option<usize>, hold: RequestId) -> Result<(), Stop> {
        self.spend(1)?;
        let table = self.table;
        let request = &table.requests[hold as usize];
        let RequestStage::Held { token } = request.stage else { return Ok(()) };
        if self.is_own(request) {
            return Err(Stop::Cycle { blocked, hold });
        }
        if !table.is_of_live_session(request) {
            return Ok(());
        }
        let last = token.get() + u64::from(request.spare_tokens);
        let declared = table.declared.range((token, Ticket(0))..);
        for (_, &waiter) in declared.take_while(|((token, _), _)| token.get() <= last) {
            if table.requests[waiter as usize].account == request.account {
                self.visit_waiter(blocked, waiter, Some(hold))?;
            } else {
                self.spend(1)?;
            }
        }
        Ok(())
    }

    /// Whether the new request declares this hold.
    fn is_own(&self, hold: &RequestEntry) -> bool {
        matches!(hold.stage, RequestStage::Held { .. })
            && hold.account == self.new.account
            && self.new.holding.iter().any(|&token| hold.has_token(token))
            && self.table.is_of_live_session(hold)
    }

    /// Adds a wait to the queue, if it has no limit. Requests for permits need one of many, so they may be
    /// granted although some of what blocks them stays.
    fn visit_waiter(
        &mut self,
        blocked: Option<usize>,
        id: RequestId,
        hold: Option<RequestId>,
    ) -> Result<(), Stop> {
        self.spend(1)?;
        let request = &self.table.requests[id as usize];
        let is_followed = matches!(request.stage, RequestStage::Waiting { at_most_ms: None })
            && request.kind != ModeKind::Permit
            && self.table.is_of_live_session(request);
        if is_followed && self.seen.insert(id) {
            self.queue.push(ReachedWait { id, blocks: blocked, hold });
        }
        Ok(())
    }

    fn describe(&self, mut blocked: Option<usize>, hold: RequestId) -> Cycle {
        let mut requests = vec![self.describe_request(hold)];
        while let Some(reached) = blocked.and_then(|blocked| self.queue.get(blocked)) {
            requests.push(self.describe_request(reached.id));
            requests.extend(reached.hold.map(|hold| self.describe_request(hold)));
            blocked = reached.blocks;
        }
        let new = self.new;
        requests.extend(new.names.first().map(|name| CycleRequest {
            session: new.session,
            label: self.label(Some(new.session)),
            name: name.clone(),
            names: new.names.len(),
            token: None,
            age: None,
        }));
        requests.reverse();
        Cycle::of(requests)
    }

    fn describe_request(&self, id: RequestId) -> CycleRequest {
        let table = self.table;
        let request = &table.requests[id as usize];
        let session = request.owner.map(|owner| owner.session);
        let nodes = request.nodes.as_slice();
        CycleRequest {
            session: session.unwrap_or(SessionId(0)),
            label: self.label(session),
            name: table.names.name(nodes[0]),
            names: nodes.len(),
            token: request.token(),
            age: request.since.until(table.clock),
        }
    }

    fn label(&self, session: Option<SessionId>) -> Box<str> {
        let session = session.and_then(|session| self.table.sessions.get(session));
        session.map(|session| session.label.clone()).unwrap_or_default()
    }
}
