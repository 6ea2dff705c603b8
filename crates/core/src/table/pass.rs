//! The grant pass of rule G1: finds the waiters that can be granted after requests have left their names.
//!
//! The pass visits waiters in ticket order, and only those that overlap a freed name and may have been
//! blocked by the request that left the name. It merges *lanes*: a lane is the queue, sorted by ticket, of
//! the waiters of one class at one name, or of the shared or unshared waiters strictly below a name. Once a
//! request blocks all remaining waiters of a lane, the pass drops that lane. So its work is proportional to
//! its grants, and limited by its budget.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::crowd::{Class, opposed};
use super::names::NodeId;
use super::request::RequestId;
use super::work::{Budget, Freed};
use super::{Table, tell_recalls};
use crate::limits;
use crate::name::LockName;
use crate::reply::{Effect, Effects};
use crate::types::{ModeKind, Ticket};

/// A waiter's visit is charged to the budget as the number of its names and their prefixes, or as the number
/// of visited table entries divided by this constant, whichever is greater.
const VISITS_PER_NAME: usize = 32;

/// Identifies a lane: a node of the tree of names, and which of the node's lanes it is.
type LaneId = (NodeId, Lane);

/// A lane of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// Waiters of one class at the name itself.
    At(Class),
    /// Waiters strictly below the name.
    Below { shared: bool },
}

/// State of a grant pass.
#[derive(Default)]
struct Pass {
    open: BTreeSet<LaneId>,
    /// The next waiter of each lane. May also contain waiters of lanes that were dropped from `open`.
    heads: BTreeSet<(Ticket, LaneId)>,
    /// Names whose crowd of waiting permits became smaller by grants of this pass.
    thinned: BTreeSet<NodeId>,
    /// Effects on cached holds in the way of the visited waiters, and on the waiters.
    recalls: Vec<(Ticket, Effect)>,
    grants: Effects,
}

impl Pass {
    /// Drops the lanes of the node whose waiters all conflict with a request of this class at the node. The
    /// caller has just visited that request: all waiters that are left have later tickets, so the request
    /// blocks them, whether it was granted or still waits.
    fn leave_behind(&mut self, node: NodeId, class: Class) {
        for class in opposed(class.kind(), &Class::ALL) {
            self.open.remove(&(node, Lane::At(class)));
        }
        if Class::SUBTREES.contains(&class) {
            self.open.remove(&(node, Lane::Below { shared: false }));
            if class.kind() != ModeKind::Shared {
                self.open.remove(&(node, Lane::Below { shared: true }));
            }
        }
    }
}

impl Table {
    /// Runs the grant pass over the names that the current command freed, then removes unused names. Work
    /// beyond the budget is left to [`Command::Resume`](crate::Command::Resume).
    pub(super) fn pass_freed(&mut self, out: &mut Effects) {
        if self.freed.is_empty() {
            return;
        }
        let mut freed = std::mem::take(&mut self.freed);
        freed.sort_unstable();
        freed.dedup();
        let mut pass = self.begin_pass(&freed);
        let passed = self.pass(&mut pass);
        tell_recalls(pass.recalls, out);
        out.append(&mut pass.grants);
        // Ends of requests during the pass may free further names, which are left to the next pass.
        let mut later: Vec<Freed<NodeId>> = std::mem::take(&mut self.freed);
        if let Some(passed) = passed {
            later.extend(freed.iter().map(|it| Freed { after: it.after.max(passed), ..*it }));
        }
        // Sorted by name, not by the `NodeId` of the name: these ids differ between replicas if one was
        // restored from a snapshot, and the order must not.
        let mut named: Vec<Freed<LockName>> =
            later.iter().map(|it| it.named(self.names.name(it.name))).collect();
        named.sort_unstable();
        named.into_iter().for_each(|freed| self.unpassed.push(freed));
        for freed in freed.iter().chain(&later) {
            self.names.forget_if_idle(freed.name);
        }
        freed.clear();
        self.freed = freed;
    }

    /// Grants waiters. Returns a ticket if the budget is spent: all waiters up to that ticket were visited.
    fn pass(&mut self, pass: &mut Pass) -> Option<Ticket> {
        let mut budget = Budget::new(self.work_max);
        while let Some(&(ticket, _)) = pass.heads.first() {
            if self.last_token >= limits::TOKEN_MAX {
                return None; // T3: waiters stay.
            }
            let mut lanes = Vec::new();
            while let Some(&(same, lane)) = pass.heads.first()
                && same == ticket
            {
                pass.heads.pop_first();
                if pass.open.contains(&lane) {
                    lanes.push(lane);
                }
            }
            let Some(id) = lanes.first().and_then(|&lane| self.waiter_at(lane, ticket)) else { continue };
            let visits = self.visits();
            let names = self.names_above(id);
            self.visit_waiter(id, ticket, &lanes, pass, &mut budget);
            // Visiting a waiter for permits also visits the requests for permits before it, which may be more
            // than its names.
            budget.spend(names.max((self.visits() - visits) as usize / VISITS_PER_NAME));
            for &lane in lanes.iter().filter(|&lane| pass.open.contains(lane)) {
                pass.heads.extend(self.next_in(lane, ticket));
            }
            if budget.is_spent() && !pass.heads.is_empty() {
                let thinned = |name| Freed { name, subtree: false, kind: ModeKind::Permit, after: ticket };
                self.freed.extend(std::mem::take(&mut pass.thinned).into_iter().map(thinned));
                return Some(ticket);
            }
        }
        None
    }

    /// Grants a waiter if it is not blocked, or removes it if its session has ended. Drops the lanes in which
    /// no later waiter can be granted.
    fn visit_waiter(
        &mut self,
        id: RequestId,
        ticket: Ticket,
        lanes: &[LaneId],
        pass: &mut Pass,
        budget: &mut Budget,
    ) {
        let request = &self.requests[id as usize];
        let (class, kind) = (request.class(), request.kind);
        let Some(owner) = request.owner else { return };
        if self.sessions.get(owner.session).is_none() {
            // The session has ended, but this request was not removed yet.
            self.end_of_ending(owner, id);
            return;
        }
        let is_blocked = self.is_blocked(&self.requests[id as usize].wanted(), ticket);
        for &(node, lane) in lanes {
            let blocks_lane = match lane {
                Lane::At(_) if class == Class::Permit => self.is_blocked_at(node, kind, None, ticket),
                Lane::At(_) => {
                    pass.leave_behind(node, class);
                    is_blocked
                        && (self.is_blocked_at(node, kind, None, ticket)
                            || (Class::SUBTREES.contains(&class)
                                && self.is_blocked_below(node, kind, ticket)))
                }
                Lane::Below { .. } => is_blocked && self.is_covered(node, kind, ticket),
            };
            if blocks_lane {
                pass.open.remove(&(node, lane));
            }
        }
        if is_blocked {
            self.recall(id, budget, &mut pass.recalls);
        } else {
            self.grant(id, &mut pass.grants);
            if class == Class::Permit {
                self.visit_behind_crowds(id, ticket, pass);
            }
        }
    }

    /// Opens the lanes of a permit request that was just granted, at each of its names where more waiters for
    /// permits are left than the bound of M2. There its grant may unblock one more waiter, although no
    /// request has left the name. No other grant unblocks a waiter: a hold blocks the same requests as it did
    /// while it waited.
    fn visit_behind_crowds(&self, id: RequestId, ticket: Ticket, pass: &mut Pass) {
        for &node in self.requests[id as usize].nodes.as_slice() {
            let waiting = self.names.get(node).here.waiting(Class::Permit);
            let lane = (node, Lane::At(Class::Permit));
            if waiting.is_some_and(|waiting| waiting.len() > self.permit_waiters_passed_max) {
                // The lane may be open already, but only behind the request that left the name.
                pass.open.insert(lane);
                pass.thinned.insert(node);
                pass.heads.extend(self.next_in(lane, ticket));
            }
        }
    }

    fn begin_pass(&self, freed: &[Freed<NodeId>]) -> Pass {
        let mut lanes: BTreeMap<LaneId, Ticket> = BTreeMap::new();
        for freed in freed {
            let mut open = |lane: LaneId| {
                let after = lanes.entry(lane).or_insert(freed.after);
                *after = freed.after.min(*after);
            };
            opposed(freed.kind, &Class::ALL).for_each(|class| open((freed.name, Lane::At(class))));
            for (above, _) in self.names.above(freed.name) {
                opposed(freed.kind, &Class::SUBTREES).for_each(|class| open((above, Lane::At(class))));
            }
            if freed.subtree {
                open((freed.name, Lane::Below { shared: false }));
                if freed.kind != ModeKind::Shared {
                    open((freed.name, Lane::Below { shared: true }));
                }
            }
        }
        let heads = lanes.iter().filter_map(|(&lane, &after)| self.next_in(lane, after)).collect();
        Pass { open: lanes.into_keys().collect(), heads, ..Pass::default() }
    }

    /// The first waiter of a lane with a ticket above `after`.
    fn next_in(&self, lane: LaneId, after: Ticket) -> Option<(Ticket, LaneId)> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let ticket = match lane {
            (node, Lane::At(class)) => {
                let waiting = self.names.get(node).here.waiting(class)?;
                waiting.range(behind).next().map(|(&ticket, _)| ticket)
            }
            (node, Lane::Below { shared }) => {
                let waiting = self.names.waiting_below(node, shared)?;
                waiting.range(behind).next().map(|(&ticket, _)| ticket)
            }
        };
        ticket.map(|ticket| (ticket, lane))
    }

    fn waiter_at(&self, lane: LaneId, ticket: Ticket) -> Option<RequestId> {
        match lane {
            (node, Lane::At(class)) => self.names.get(node).here.waiting(class)?.get(&ticket).copied(),
            (node, Lane::Below { shared }) => {
                self.names.waiting_below(node, shared)?.get(&ticket).map(|&(id, _)| id)
            }
        }
    }

    /// Number of the request's names and all their prefixes: the cost of visiting the request.
    pub(super) fn names_above(&self, id: RequestId) -> usize {
        let nodes = self.requests[id as usize].nodes.as_slice();
        nodes.iter().map(|&node| self.names.segments(node)).sum()
    }
}
