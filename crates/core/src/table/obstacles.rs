//! The queue position and the holder that a reply contains (Q1). They are informational, so the search for
//! them is bounded: a position may be a lower bound, and the holder may be missing (M2).

use std::collections::BTreeSet;

use super::Table;
use super::acquire::Wanted;
use super::crowd::{Class, Here, opposed};
use super::request::RequestId;
use crate::limits;
use crate::reply::Reply;
use crate::types::{ModeKind, SessionId, Ticket, Token};

impl Table {
    /// The reply `Busy` for a request that is not granted.
    pub(super) fn busy(&self, wanted: &Wanted<'_>) -> Reply {
        Reply::Busy {
            holder: self.conflicting_holder(wanted),
            queued_ahead: self.queued_ahead(wanted, Ticket(u64::MAX)),
        }
    }

    /// The session of the live hold with the lowest token, among at most [`limits::HOLDER_VISITS_MAX`]
    /// conflicting holds.
    fn conflicting_holder(&self, wanted: &Wanted<'_>) -> Option<SessionId> {
        let mut left = limits::HOLDER_VISITS_MAX;
        let mut lowest: Option<(Token, SessionId)> = None;
        let mut visit = |here: &Here, classes: &[Class]| {
            // Permits conflict by count (N2): a permit hold conflicts with a permit request only if no permit
            // is left.
            let counted = wanted.kind == ModeKind::Permit && !self.is_full(here, wanted.of, Ticket(u64::MAX));
            for class in opposed(wanted.kind, classes).filter(|&class| !(counted && class == Class::Permit)) {
                for (token, id) in here.holds_after(None, class, &self.requests) {
                    if left == 0 || lowest.is_some_and(|(least, _)| least < token) {
                        break;
                    }
                    left -= 1;
                    if let Some(session) = self.live_holder(id) {
                        lowest = Some((token, session));
                        break;
                    }
                }
            }
        };
        for &node in wanted.nodes {
            visit(&self.names.get(node).here, &Class::ALL);
            self.names.above(node).for_each(|(_, above)| visit(&above.here, &Class::SUBTREES));
        }
        if wanted.subtree {
            let below = wanted.nodes.iter().flat_map(|&node| self.names.below(node));
            below.take(limits::HOLDER_VISITS_MAX).for_each(|(_, below)| visit(&below.here, &Class::ALL));
        }
        lowest.map(|(_, session)| session)
    }

    /// Session of a hold; `None` for a closed hold.
    fn live_holder(&self, id: RequestId) -> Option<SessionId> {
        self.requests[id as usize].owner.map(|owner| owner.session)
    }

    /// Number of earlier waiters that overlap a request, where two shared requests don't count each other
    /// (Q1). Visits at most [`limits::POSITION_VISITS_MAX`] waiters, so the number is a lower bound if there
    /// are more. For one name without subtree, and without a `Crowd` above it, each class is counted
    /// separately: exactly if all its other waiters are earlier, otherwise up to that bound.
    pub(super) fn queued_ahead(&self, wanted: &Wanted<'_>, ticket: Ticket) -> u64 {
        let left = limits::POSITION_VISITS_MAX;
        if let &[node] = wanted.nodes
            && !wanted.subtree
            && self.names.above(node).all(|(_, above)| above.here.crowd().is_none())
        {
            let Some(crowd) = self.names.get(node).here.crowd() else { return 0 };
            let waiting = opposed(wanted.kind, &Class::ALL).map(|class| crowd.waiting.of(class));
            return waiting
                .map(|waiting| match waiting.last_key_value() {
                    // The request is the last waiter of its class, so all others of the class came before it.
                    Some((&last, _)) if last == ticket => waiting.len() - 1,
                    Some((&last, _)) if last > ticket => {
                        let ahead = waiting.range(..ticket).take(left).count();
                        self.names.visits().add(ahead);
                        ahead
                    }
                    _ => waiting.len(),
                })
                .sum::<usize>() as u64;
        }
        // A request that waits at several of the names must count once.
        let mut ahead = BTreeSet::new();
        let mut left = left;
        let mut visit = |waiting: &mut dyn Iterator<Item = Ticket>| {
            for earlier in waiting.take_while(|&earlier| earlier < ticket).take(left) {
                left -= 1;
                ahead.insert(earlier);
            }
        };
        let mut count_at = |here: &Here, classes: &[Class]| {
            for class in opposed(wanted.kind, classes) {
                visit(&mut here.waiting(class).into_iter().flat_map(|waiting| waiting.keys().copied()));
            }
        };
        for &node in wanted.nodes {
            count_at(&self.names.get(node).here, &Class::ALL);
            self.names.above(node).for_each(|(_, above)| count_at(&above.here, &Class::SUBTREES));
        }
        if wanted.subtree {
            let kinds: &[bool] = if wanted.kind == ModeKind::Shared { &[false] } else { &[false, true] };
            for (&node, &shared) in
                wanted.nodes.iter().flat_map(|node| kinds.iter().map(move |kind| (node, kind)))
            {
                let below = self.names.waiting_below(node, shared);
                visit(&mut below.into_iter().flat_map(|waiting| waiting.keys().copied()));
            }
        }
        self.names.visits().add(limits::POSITION_VISITS_MAX - left);
        ahead.len() as u64
    }
}
