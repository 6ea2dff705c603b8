//! The grant rule: a request is granted when it conflicts with no hold, no closed hold and no earlier waiter
//! (G1).

use super::Table;
use super::acquire::Wanted;
use super::crowd::{Class, Here, opposed};
use super::names::{NameNode, NodeId};
use super::request::{RequestEntry, RequestId, RequestStage};
use crate::limits;
use crate::reply::{Effect, Effects};
use crate::snapshot::Caching;
use crate::types::{ModeKind, Ticket, Token};

impl RequestEntry {
    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted { nodes: self.nodes.as_slice(), kind: self.kind, subtree: self.subtree, of: None }
    }
}

impl Table {
    /// Whether a request with this ticket conflicts with a hold or an earlier waiter.
    pub(super) fn is_blocked(&self, wanted: &Wanted<'_>, ticket: Ticket) -> bool {
        wanted.nodes.iter().any(|&node| {
            self.is_blocked_at(node, wanted.kind, wanted.of, ticket)
                || (wanted.subtree && self.is_blocked_below(node, wanted.kind, ticket))
        })
    }

    /// Whether the request conflicts at the name itself, or with a subtree request above it.
    pub(super) fn is_blocked_at(
        &self,
        node: NodeId,
        kind: ModeKind,
        of: Option<u32>,
        ticket: Ticket,
    ) -> bool {
        let here = self.names.get(node);
        let classes: &[Class] = if kind == ModeKind::Permit { &Class::NOT_PERMITS } else { &Class::ALL };
        self.has_conflict(here, kind, classes, ticket)
            || (kind == ModeKind::Permit && self.is_full(&here.here, of, ticket))
            || self.is_covered_above(node, kind, ticket)
    }

    /// Whether the request conflicts with a subtree request at a name above.
    fn is_covered_above(&self, node: NodeId, kind: ModeKind, ticket: Ticket) -> bool {
        self.names.above(node).any(|(_, above)| self.has_conflict(above, kind, &Class::SUBTREES, ticket))
    }

    /// Whether a request at a name below the node conflicts with a subtree request at the node or above it.
    pub(super) fn is_covered(&self, node: NodeId, kind: ModeKind, ticket: Ticket) -> bool {
        self.has_conflict(self.names.get(node), kind, &Class::SUBTREES, ticket)
            || self.is_covered_above(node, kind, ticket)
    }

    fn has_conflict(&self, node: &NameNode, kind: ModeKind, classes: &[Class], ticket: Ticket) -> bool {
        opposed(kind, classes).any(|class| {
            node.here.holds(class, &self.requests) > 0
                || node
                    .here
                    .waiting(class)
                    .and_then(|waiting| waiting.first_key_value())
                    .is_some_and(|(&first, _)| first < ticket)
        })
    }

    /// Whether no permit is left: holds (closed ones included, L1) + earlier waiting permits + 1 > limit.
    /// Also returns true if more than
    /// [`limits::PERMIT_WAITERS_PASSED_MAX`] earlier permits wait
    /// (M2).
    pub(super) fn is_full(&self, here: &Here, of: Option<u32>, ticket: Ticket) -> bool {
        let Some(limit) = here.limit().map(|limit| limit.number).or(of) else { return false };
        let held = here.holds(Class::Permit, &self.requests);
        let Some(room) = (limit as usize).checked_sub(held + 1) else { return true };
        let Some(waiting) = here.waiting(Class::Permit) else { return false };
        let room = room.min(self.permit_waiters_passed_max);
        let earlier = if waiting.last_key_value().is_none_or(|(&last, _)| last < ticket) {
            waiting.len()
        } else {
            waiting.range(..ticket).take(room + 1).count()
        };
        self.names.visits().add(earlier.min(room + 1));
        earlier > room
    }

    /// Whether a subtree request conflicts with a request strictly below its name.
    pub(super) fn is_blocked_below(&self, node: NodeId, kind: ModeKind, ticket: Ticket) -> bool {
        let below = self.names.get(node).below;
        let holds = if kind == ModeKind::Shared { below.unshared } else { below.all };
        let is_earlier = |shared: bool| {
            let waiting = self.names.waiting_below(node, shared);
            waiting.and_then(|waiting| waiting.first_key_value()).is_some_and(|(&first, _)| first < ticket)
        };
        holds > 0 || is_earlier(false) || (kind != ModeKind::Shared && is_earlier(true))
    }

    /// Adds a new request to the queue of each of its names.
    pub(super) fn queue(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        let (ticket, shared) = (request.ticket, request.kind == ModeKind::Shared);
        let nodes = request.nodes.clone();
        for &node in nodes.as_slice() {
            self.names.here_mut(node).add_waiter(id, &self.requests);
            self.names.wait_above(node, ticket, id, shared);
        }
        self.declare(id);
    }

    /// Removes a request from the queue of each of its names.
    pub(super) fn unqueue(&mut self, id: RequestId) {
        self.set_caching(id, Caching::None);
        self.declare_no_more(id);
        let request = &self.requests[id as usize];
        let (ticket, shared) = (request.ticket, request.kind == ModeKind::Shared);
        let nodes = request.nodes.clone();
        for &node in nodes.as_slice() {
            self.names.here_mut(node).remove_waiter(id, &self.requests);
            self.names.wait_above_no_more(node, ticket, shared);
        }
    }

    /// Turns a request into a hold with the next token and, for permits, the lowest free slots. With spare
    /// tokens it is a cached hold, unless there are not as many left (C2).
    pub(super) fn hold(&mut self, id: RequestId, spare_tokens: u32) {
        self.last_token += 1;
        let Some(token) = Token::new(self.last_token) else { unreachable!("callers check TOKEN_MAX") };
        let last = self.last_token + u64::from(spare_tokens);
        let spare_tokens = if last <= limits::TOKEN_MAX { spare_tokens } else { 0 };
        self.last_token += u64::from(spare_tokens);
        let since = self.clock;
        self.requests.edit(id, &self.names, |request| {
            (request.stage, request.since) = (RequestStage::Held { token }, since);
            request.spare_tokens = spare_tokens;
        });
        if spare_tokens > 0 {
            self.set_caching(id, Caching::Cached);
        }
        let request = &self.requests[id as usize];
        let shared = request.kind == ModeKind::Shared;
        let nodes = request.nodes.clone();
        let mut slots = Vec::new();
        for &node in nodes.as_slice() {
            slots.extend(self.names.here_mut(node).add_hold(id, None, &self.requests));
            self.names.count_above(node, shared, 1);
        }
        if !slots.is_empty() {
            self.requests.edit(id, &self.names, |request| request.slots = slots.into_iter().collect());
        }
    }

    /// Downgrades an exclusive hold to shared. It keeps its ticket and its token, and the grant pass visits
    /// the waiters behind it (G2).
    pub(super) fn share(&mut self, id: RequestId) {
        self.free(id);
        let nodes = self.requests[id as usize].nodes.clone();
        for &node in nodes.as_slice() {
            self.names.here_mut(node).remove_hold(id, None, &self.requests);
            self.names.count_above(node, false, -1);
        }
        self.requests.edit(id, &self.names, |request| request.kind = ModeKind::Shared);
        for &node in nodes.as_slice() {
            self.names.here_mut(node).add_hold(id, None, &self.requests);
            self.names.count_above(node, true, 1);
        }
    }

    /// Grants a waiter.
    pub(super) fn grant(&mut self, id: RequestId, out: &mut Effects) {
        let Some(owner) = self.requests[id as usize].owner else { return };
        self.granted_after.extend(self.requests[id as usize].since.until(self.clock));
        // The request becomes a hold before it leaves the queue. In the other order, the name could be
        // without a permit request for a moment, and its implied limit would be removed (L3).
        self.hold(id, 0);
        self.unqueue(id);
        if self.requests[id as usize].extras.as_ref().is_some_and(|extras| !extras.holding.is_empty()) {
            // What the caller held while it waited matters no more (K1).
            self.requests.edit(id, &self.names, |request| request.extras_mut().holding = Box::default());
        }
        out.push(Effect::Granted { session: owner.session, seq: owner.seq, grant: self.grant_of(id) });
    }
}
