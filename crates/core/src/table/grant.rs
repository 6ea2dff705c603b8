//! The one grant rule: a request is granted when it conflicts with no hold, no closed hold, and no earlier ticket
//! that still waits (G1).
//!
//! After an end, only waiters that overlap what ended are looked at, in ticket order, and a queue is left as soon
//! as nobody further back in it can be granted: an end costs as much as it grants, not as much as waits.

use std::collections::{BTreeMap, BTreeSet};

use super::Table;
use super::acquire::Wanted;
use super::crowd::{Class, Here, opposed};
use super::names::{Counted, Node, NodeId};
use super::request::{Few, Request, RequestId, Stage};
use crate::limits;
use crate::reply::{Effect, Effects};
use crate::types::{ModeKind, Ticket, Token};

impl Request {
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

    /// Conflicts at a name itself, and with what covers it from above.
    fn is_blocked_at(&self, node: NodeId, kind: ModeKind, of: Option<u32>, ticket: Ticket) -> bool {
        let here = self.names.get(node);
        let classes: &[Class] = if kind == ModeKind::Permit { &NOT_PERMITS } else { &Class::ALL };
        self.has_conflict(here, kind, classes, ticket)
            || (kind == ModeKind::Permit && self.is_full(&here.here, of, ticket))
            || self
                .names
                .above(node)
                .any(|(_, above)| self.has_conflict(above, kind, &Class::SUBTREES, ticket))
    }

    fn has_conflict(&self, node: &Node, kind: ModeKind, classes: &[Class], ticket: Ticket) -> bool {
        opposed(kind, classes).any(|class| {
            node.here.holds(class, &self.requests) > 0
                || node
                    .here
                    .waiting(class)
                    .and_then(|waiting| waiting.first_key_value())
                    .is_some_and(|(&first, _)| first < ticket)
        })
    }

    /// Permits: holds + earlier waiting permits + 1 > limit. Closed holds count (L1).
    pub(super) fn is_full(&self, here: &Here, of: Option<u32>, ticket: Ticket) -> bool {
        let Some(limit) = here.limit().map(|limit| limit.number).or(of) else { return false };
        let held = here.holds(Class::Permit, &self.requests);
        let Some(room) = (limit as usize).checked_sub(held + 1) else { return true };
        let earlier = here.waiting(Class::Permit).map_or(0, |waiting| {
            if waiting.last_key_value().is_none_or(|(&last, _)| last < ticket) {
                waiting.len()
            } else {
                waiting.range(..ticket).take(room + 1).count()
            }
        });
        earlier > room
    }

    /// Conflicts of a subtree with what lies strictly below its name.
    fn is_blocked_below(&self, node: NodeId, kind: ModeKind, ticket: Ticket) -> bool {
        let below = self.names.get(node).below;
        let holds = if kind == ModeKind::Shared { below.unshared_holds } else { below.holds };
        holds > 0
            || (below.waiters > 0
                && self.names.below(node).any(|(_, node)| {
                    opposed(kind, &Class::ALL).any(|class| {
                        node.here
                            .waiting(class)
                            .and_then(|waiting| waiting.first_key_value())
                            .is_some_and(|(&first, _)| first < ticket)
                    })
                }))
    }

    /// Puts a new request in the queue of each of its names.
    pub(super) fn queue(&mut self, id: RequestId) {
        let nodes = self.requests[id as usize].nodes.clone();
        for &node in nodes.as_slice() {
            self.names.here_mut(node).add_waiter(id, &self.requests);
            self.names.count_above(node, Counted::Waiter, 1);
        }
    }

    /// Grants a request that is in no queue: the next token, and the lowest free permits.
    pub(super) fn hold(&mut self, id: RequestId) {
        self.last_token += 1;
        let Some(token) = Token::new(self.last_token) else { unreachable!("callers check TOKEN_MAX") };
        let request = self.requests.get_mut(id, &self.names);
        request.stage = Stage::Held { token };
        let shared = request.kind == ModeKind::Shared;
        let nodes = request.nodes.clone();
        let mut slots = Vec::new();
        for &node in nodes.as_slice() {
            slots.extend(self.names.here_mut(node).add_hold(id, None, &self.requests));
            self.names.count_above(node, Counted::Hold { shared }, 1);
        }
        self.requests.get_mut(id, &self.names).slots = slots.into_iter().collect();
    }

    /// Exclusive to shared: the hold keeps its place and its token; readers behind it are looked at (G2).
    pub(super) fn share(&mut self, id: RequestId) {
        self.touch(id);
        let nodes = self.requests[id as usize].nodes.clone();
        for &node in nodes.as_slice() {
            self.names.here_mut(node).remove_hold(id, None, &self.requests);
            self.names.count_above(node, Counted::Hold { shared: false }, -1);
        }
        self.requests.get_mut(id, &self.names).kind = ModeKind::Shared;
        for &node in nodes.as_slice() {
            self.names.here_mut(node).add_hold(id, None, &self.requests);
            self.names.count_above(node, Counted::Hold { shared: true }, 1);
        }
    }

    /// The pass of rule G1 over all waiters that overlap `touched`.
    pub(super) fn grant_waiters(&mut self, touched: &[(NodeId, bool)], out: &mut Effects) {
        let mut queues = self.queues_over(touched);
        let mut heads: BTreeSet<(Ticket, NodeId)> =
            queues.iter().filter_map(|(&node, &reach)| self.next_in(node, reach, Ticket(0))).collect();
        while let Some((ticket, node)) = heads.pop_first() {
            if self.last_token >= limits::TOKEN_MAX {
                return; // T3: waiters stay.
            }
            let Some(id) = self.waiter_at(node, ticket) else {
                // Granted through another of its names a moment ago: what comes behind it here?
                heads.extend(queues.get(&node).and_then(|&reach| self.next_in(node, reach, ticket)));
                continue;
            };
            let request = &self.requests[id as usize];
            let (kind, granted) = (request.kind, !self.is_blocked(&request.wanted(), ticket));
            let at = if granted {
                self.grant(id, out);
                None
            } else {
                Some(self.is_blocked_at(node, kind, None, ticket))
            };
            // Nobody behind an exclusive request can be granted here, nor behind one that this very name blocks:
            // whatever blocks it here blocks, or it blocks, every mode behind it.
            if kind == ModeKind::Exclusive || at == Some(true) {
                queues.remove(&node);
            } else {
                heads.extend(queues.get(&node).and_then(|&reach| self.next_in(node, reach, ticket)));
            }
        }
    }

    /// The queues in which someone may overlap what went away.
    fn queues_over(&self, touched: &[(NodeId, bool)]) -> BTreeMap<NodeId, Reach> {
        let mut queues = BTreeMap::new();
        for &(node, subtree) in touched {
            queues.insert(node, Reach::All);
            for (above, _) in self.names.above(node) {
                queues.entry(above).or_insert(Reach::Subtrees);
            }
            if subtree {
                queues.extend(self.names.below(node).map(|(below, _)| (below, Reach::All)));
            }
        }
        queues
    }

    /// The first waiter of a queue behind `after`.
    fn next_in(&self, node: NodeId, reach: Reach, after: Ticket) -> Option<(Ticket, NodeId)> {
        let crowd = self.names.get(node).here.crowd()?;
        let classes: &[Class] = match reach {
            Reach::All => &Class::ALL,
            Reach::Subtrees => &Class::SUBTREES,
        };
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        classes
            .iter()
            .filter_map(|&class| crowd.waiting.of(class).range(behind).next())
            .map(|(&ticket, _)| (ticket, node))
            .min()
    }

    fn waiter_at(&self, node: NodeId, ticket: Ticket) -> Option<RequestId> {
        let crowd = self.names.get(node).here.crowd()?;
        Class::ALL.iter().find_map(|&class| crowd.waiting.of(class).get(&ticket).copied())
    }

    fn grant(&mut self, id: RequestId, out: &mut Effects) {
        let request = &self.requests[id as usize];
        let Some(owner) = request.owner else { return };
        let limits: Few<_> = request.nodes.clone();
        for &node in limits.as_slice() {
            self.names.count_above(node, Counted::Waiter, -1);
        }
        // The hold comes before the queue place goes, so that an implied limit never falls in between (L3).
        self.hold(id);
        for &node in limits.as_slice() {
            self.names.here_mut(node).remove_waiter(id, &self.requests);
        }
        out.push(Effect::Granted { session: owner.session, seq: owner.seq, grant: self.grant_of(id) });
    }
}

const NOT_PERMITS: [Class; 4] =
    [Class::Exclusive, Class::Shared, Class::ExclusiveSubtree, Class::SharedSubtree];

/// Which waiters of a queue can overlap what went away.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// It went away below this name: only those that cover what is below.
    Subtrees,
}
