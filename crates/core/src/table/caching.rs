//! Cached holds (C1–C6): a client may use one for several sections, and gives it back when it is recalled.
//!
//! A request that is blocked by cached holds recalls them. One that doesn't wait is put off until their
//! holders have answered, since the locks may be idle; it stays in the queue only while nothing but cached
//! holds is in its way.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::acquire::Wanted;
use super::crowd::{Class, opposed};
use super::end::Closure;
use super::names::NodeId;
use super::request::{RequestId, RequestStage};
use super::work::{Budget, Freed};
use super::{EndOf, Table, tell_ends};
use crate::limits;
use crate::name::{self, LockName};
use crate::reply::{Effect, Effects, End, Reply};
use crate::snapshot::Caching;
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Ticket};

/// The names of cached holds and of requests that are put off. A name has at most one of each, because cached
/// holds are exclusive, and a request that overlaps a waiter is not put off.
#[derive(Default)]
pub(super) struct CachedNames {
    unrecalled: BTreeMap<LockName, RequestId>,
    recalled: BTreeMap<LockName, RequestId>,
    tries: BTreeMap<LockName, RequestId>,
}

impl CachedNames {
    fn of(&mut self, caching: Caching) -> Option<&mut BTreeMap<LockName, RequestId>> {
        match caching {
            Caching::None => None,
            Caching::Cached => Some(&mut self.unrecalled),
            Caching::Recalled => Some(&mut self.recalled),
            Caching::Try => Some(&mut self.tries),
        }
    }

    fn are_none_held(&self) -> bool {
        self.unrecalled.is_empty() && self.recalled.is_empty()
    }

    /// Number of names of each kind.
    pub(super) fn counts(&self) -> [usize; 3] {
        [&self.unrecalled, &self.recalled, &self.tries].map(BTreeMap::len)
    }
}

/// The entries strictly below a name.
fn below<'a>(
    names: &'a BTreeMap<LockName, RequestId>,
    top: &str,
) -> impl Iterator<Item = (&'a LockName, RequestId)> {
    let first = format!("{top}/");
    let from = (Bound::Included(first.as_str()), Bound::Unbounded);
    let entries = names.range::<str, _>(from);
    entries.take_while(move |(name, _)| name.as_str().starts_with(&first)).map(|(name, &id)| (name, id))
}

fn first_below(names: &BTreeMap<LockName, RequestId>, top: &str) -> Option<RequestId> {
    below(names, top).next().map(|(_, id)| id)
}

impl Table {
    /// Number of names that cached holds have, recalled ones included.
    #[must_use]
    pub fn cached_names(&self) -> usize {
        self.cached.unrecalled.len() + self.cached.recalled.len()
    }

    /// Changes the state of a hold or waiter, and the index of its names with it.
    pub(super) fn set_caching(&mut self, id: RequestId, caching: Caching) {
        let request = &self.requests[id as usize];
        let before = request.caching;
        if before == caching {
            return;
        }
        for &node in request.nodes.as_slice() {
            let name = self.names.name(node);
            if let Some(names) = self.cached.of(before) {
                names.remove(&name);
            }
            if let Some(names) = self.cached.of(caching) {
                names.insert(name, id);
            }
        }
        self.requests.edit(id, &self.names, |request| request.caching = caching);
    }

    /// Adds the names of a restored request to the index.
    pub(super) fn restore_caching(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        let Some(names) = self.cached.of(request.caching) else { return };
        names.extend(request.nodes.as_slice().iter().map(|&node| (self.names.name(node), id)));
    }

    /// Recalls the cached holds in the way of a waiter that have not been recalled yet, as far as the budget
    /// goes; the rest is left to the grant pass, which visits the waiter again (C4, M2).
    pub(super) fn recall(&mut self, id: RequestId, budget: &mut Budget, recalls: &mut Vec<(Ticket, Effect)>) {
        if self.cached.unrecalled.is_empty() {
            return;
        }
        let request = &self.requests[id as usize];
        let (ticket, subtree, nodes) = (request.ticket, request.subtree, request.nodes.clone());
        for &node in nodes.as_slice() {
            let top = self.names.name(node);
            if let Some(&hold) = self.cached.unrecalled.get(&top) {
                self.recall_hold(hold, recalls);
            }
            for above in name::ancestors(top.as_str()) {
                if let Some(&hold) = self.cached.unrecalled.get(above)
                    && self.requests[hold as usize].subtree
                {
                    self.recall_hold(hold, recalls);
                }
            }
            while subtree && let Some(hold) = first_below(&self.cached.unrecalled, top.as_str()) {
                if budget.is_spent() {
                    let after = Ticket(ticket.0 - 1);
                    self.freed.push(Freed { name: node, subtree: false, kind: ModeKind::Exclusive, after });
                    return;
                }
                budget.spend(self.names_above(hold));
                self.recall_hold(hold, recalls);
            }
        }
    }

    fn recall_hold(&mut self, hold: RequestId, recalls: &mut Vec<(Ticket, Effect)>) {
        self.set_caching(hold, Caching::Recalled);
        let request = &self.requests[hold as usize];
        // An ended session gets no effect: its `SessionEnded` stands for all its holds (E1).
        let owner = request.owner.filter(|owner| self.sessions.get(owner.session).is_some());
        if let Some(owner) = owner {
            let effect = Effect::Recalled { session: owner.session, seq: owner.seq };
            recalls.push((request.ticket, effect));
        }
    }

    /// Whether nothing but cached holds is in the way of a request that is not granted: no other hold, and no
    /// waiter that overlaps it (C6). False if more than [`limits::CACHED_BELOW_MAX`] cached names are below.
    pub(super) fn is_blocked_by_cached_only(&self, wanted: &Wanted<'_>) -> bool {
        !self.cached.are_none_held()
            && wanted.nodes.iter().all(|&node| {
                self.has_cached_only(node, wanted, &Class::ALL)
                    && self
                        .names
                        .above(node)
                        .all(|(above, _)| self.has_cached_only(above, wanted, &Class::SUBTREES))
                    && (!wanted.subtree || self.has_cached_only_below(node, wanted.kind))
            })
    }

    /// Whether the holds of these classes at a node that are in the way are all cached, and none waits there.
    fn has_cached_only(&self, node: NodeId, wanted: &Wanted<'_>, classes: &[Class]) -> bool {
        let here = &self.names.get(node).here;
        let waits = |class: &Class| here.waiting(*class).is_some_and(|waiting| !waiting.is_empty());
        if classes.iter().any(waits) {
            return false;
        }
        if wanted.kind == ModeKind::Permit
            && classes.contains(&Class::Permit)
            && self.is_full(here, wanted.of, Ticket(u64::MAX))
        {
            return false;
        }
        let counted = |class: &Class| wanted.kind == ModeKind::Permit && *class == Class::Permit;
        opposed(wanted.kind, classes).filter(|class| !counted(class)).all(|class| {
            // Of the exclusive holds there is at most one.
            let mut holds = here.holds_after(None, class, &self.requests);
            holds.next().is_none_or(|(_, id)| self.requests[id as usize].caching.is_held())
        })
    }

    fn has_cached_only_below(&self, node: NodeId, kind: ModeKind) -> bool {
        let waits = |shared: bool| self.names.waiting_below(node, shared).is_some_and(|it| !it.is_empty());
        if waits(true) || waits(false) {
            return false;
        }
        let counts = self.names.get(node).below;
        let holds = if kind == ModeKind::Shared { counts.unshared } else { counts.all } as usize;
        if holds > limits::CACHED_BELOW_MAX {
            return false;
        }
        let top = self.names.name(node);
        let cached =
            [&self.cached.unrecalled, &self.cached.recalled].map(|it| below(it, top.as_str()).count());
        self.names.visits().add(holds);
        cached.iter().sum::<usize>() == holds
    }

    /// Makes a cached hold an ordinary one (C5).
    pub(super) fn settle(
        &mut self,
        id: SessionId,
        seq: Seq,
        target: Seq,
        done_through: Seq,
        out: &mut Effects,
    ) -> Reply {
        self.change_hold(id, seq, target, Fingerprint::of_settle(target), done_through, |table, hold| {
            table.end_caching(hold, out);
            Reply::Done
        })
    }

    /// A cached hold becomes an ordinary one: it was settled, downgraded, revoked, or closed. The requests
    /// that were put off because of it are busy, unless they are shared and the hold is, too.
    pub(super) fn end_caching(&mut self, hold: RequestId, out: &mut Effects) {
        let mut ends = Vec::new();
        self.end_caching_into(hold, &mut ends);
        tell_ends(ends, out);
    }

    /// As [`Table::end_caching`], with the effects added to others that are still to be sorted.
    pub(super) fn end_caching_into(&mut self, hold: RequestId, ends: &mut Vec<EndOf>) {
        if !self.requests[hold as usize].caching.is_held() {
            return;
        }
        self.set_caching(hold, Caching::None);
        if self.cached.tries.is_empty() {
            return;
        }
        let request = &self.requests[hold as usize];
        let mut found = Vec::new();
        for &node in request.nodes.as_slice() {
            let top = self.names.name(node);
            let tries = &self.cached.tries;
            let above = name::ancestors(top.as_str()).filter_map(|above| tries.get(above).copied());
            found.extend(tries.get(&top).copied());
            found.extend(above.filter(|&id| self.requests[id as usize].subtree));
            if request.subtree {
                let below = below(tries, top.as_str()).map(|(_, id)| id);
                found.extend(below.take(self.work_max));
            }
        }
        let is_shared = request.kind == ModeKind::Shared;
        found.retain(|&id| !(is_shared && self.requests[id as usize].kind == ModeKind::Shared));
        found.sort_unstable_by_key(|&id| self.requests[id as usize].ticket);
        found.dedup();
        for id in found {
            if self.tries_left.is_spent() {
                return; // Their limits end them.
            }
            self.tries_left.spend(self.names_above(id));
            debug_assert!(matches!(self.requests[id as usize].stage, RequestStage::Waiting { .. }));
            self.end_unasked_into(id, End::TimedOut, Closure::AsAgreed, ends);
        }
    }
}
