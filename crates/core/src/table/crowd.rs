//! The state of exactly one name: its holds by token, its waiters by ticket, and its permits.
//!
//! This module only stores requests; `grant` decides conflicts.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::request::{RequestEntry, RequestId};
use super::requests::Requests;
use crate::types::{ModeKind, Slot, Ticket, Token};

/// Waiters of one class at one name, in order of arrival.
pub(super) type ByTicket = BTreeMap<Ticket, RequestId>;

/// A request's mode and whether it covers a subtree. Whether two overlapping requests conflict depends only
/// on their classes; permits are also counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Class {
    Exclusive,
    Shared,
    Permit,
    ExclusiveSubtree,
    SharedSubtree,
}

impl Class {
    pub(super) const ALL: [Self; 5] =
        [Self::Exclusive, Self::Shared, Self::Permit, Self::ExclusiveSubtree, Self::SharedSubtree];
    pub(super) const NOT_PERMITS: [Self; 4] =
        [Self::Exclusive, Self::Shared, Self::ExclusiveSubtree, Self::SharedSubtree];
    pub(super) const SUBTREES: [Self; 2] = [Self::ExclusiveSubtree, Self::SharedSubtree];

    pub(super) const fn of(kind: ModeKind, subtree: bool) -> Self {
        match (kind, subtree) {
            (ModeKind::Exclusive, false) => Self::Exclusive,
            (ModeKind::Exclusive, true) => Self::ExclusiveSubtree,
            (ModeKind::Shared, false) => Self::Shared,
            (ModeKind::Shared, true) => Self::SharedSubtree,
            (ModeKind::Permit, _) => Self::Permit,
        }
    }

    pub(super) const fn kind(self) -> ModeKind {
        match self {
            Self::Exclusive | Self::ExclusiveSubtree => ModeKind::Exclusive,
            Self::Shared | Self::SharedSubtree => ModeKind::Shared,
            Self::Permit => ModeKind::Permit,
        }
    }
}

/// Those of `classes` that can block a request of mode `kind` (N2): all, except the shared ones for a shared
/// request. Permits block a permit only if none is left, which `is_full` checks.
pub(super) fn opposed(kind: ModeKind, classes: &[Class]) -> impl Iterator<Item = Class> {
    classes
        .iter()
        .copied()
        .filter(move |class| !(kind == ModeKind::Shared && class.kind() == ModeKind::Shared))
}

/// Requests at one name, by class.
pub(super) struct Sets<K>([BTreeMap<K, RequestId>; 5]);

impl<K> Default for Sets<K> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| BTreeMap::new()))
    }
}

impl<K> Sets<K> {
    pub(super) fn of(&self, class: Class) -> &BTreeMap<K, RequestId> {
        &self.0[class as usize]
    }

    fn of_mut(&mut self, class: Class) -> &mut BTreeMap<K, RequestId> {
        &mut self.0[class as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(BTreeMap::len).sum()
    }
}

/// The permit limit of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limit {
    pub(super) number: u32,
    /// True if set by `SetLimit`. An implied limit is removed with the last permit request of the name (L3).
    pub(super) stored: bool,
}

/// Bitmap of the taken permits of a name, closed holds included.
#[derive(Default)]
pub(super) struct Slots(Vec<u64>);

impl Slots {
    /// Takes the lowest free permit (L1).
    fn take_lowest(&mut self) -> Slot {
        let word = self.0.iter().position(|&word| word != u64::MAX).unwrap_or(self.0.len());
        if word == self.0.len() {
            self.0.push(0);
        }
        let bit = self.0[word].trailing_ones();
        self.0[word] |= 1 << bit;
        word as Slot * 64 + bit
    }

    fn take(&mut self, slot: Slot) {
        let word = slot as usize / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (slot % 64);
    }

    fn is_taken(&self, slot: Slot) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    fn free(&mut self, slot: Slot) {
        self.0[slot as usize / 64] &= !(1 << (slot % 64));
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

/// The full form of a name's state, for a name with several requests, waiters, or a limit.
#[derive(Default)]
pub(super) struct Crowd {
    /// Includes closed holds.
    pub(super) holds: Sets<Token>,
    pub(super) waiting: Sets<Ticket>,
    pub(super) slots: Slots,
    pub(super) limit: Option<Limit>,
}

/// The state of one name. Most names in use have one holder, no waiter and no limit; their form takes no
/// allocation.
#[derive(Default)]
pub(super) enum Here {
    #[default]
    Idle,
    Held(RequestId),
    Crowd(Box<Crowd>),
}

impl Here {
    pub(super) fn crowd(&self) -> Option<&Crowd> {
        match self {
            Self::Crowd(crowd) => Some(crowd),
            Self::Idle | Self::Held(_) => None,
        }
    }

    fn crowd_mut(&mut self, requests: &Requests) -> &mut Crowd {
        if !matches!(self, Self::Crowd(_)) {
            let mut crowd = Box::<Crowd>::default();
            if let Self::Held(id) = *self {
                let request = &requests[id as usize];
                crowd.holds.of_mut(request.class()).insert(token_of(request), id);
            }
            *self = Self::Crowd(crowd);
        }
        let Self::Crowd(crowd) = self else { unreachable!("made a crowd above") };
        crowd
    }

    /// Returns to the compact form if possible. Removes an implied limit without permit requests (L3).
    fn settle(&mut self) {
        let Self::Crowd(crowd) = self else { return };
        let permits = crowd.holds.of(Class::Permit).len() + crowd.waiting.of(Class::Permit).len();
        if permits == 0 && crowd.limit.is_some_and(|limit| !limit.stored) {
            crowd.limit = None;
        }
        if permits > 0 || crowd.limit.is_some() || crowd.waiting.len() > 0 {
            return;
        }
        let first = Class::ALL.iter().find_map(|&class| crowd.holds.of(class).values().next());
        match (first, crowd.holds.len()) {
            (None, _) => *self = Self::Idle,
            (Some(&id), 1) => *self = Self::Held(id),
            _ => {}
        }
    }

    /// Number of holds of one class, including closed ones.
    pub(super) fn holds(&self, class: Class, requests: &Requests) -> usize {
        match self {
            Self::Idle => 0,
            Self::Held(id) => usize::from(requests[*id as usize].class() == class),
            Self::Crowd(crowd) => crowd.holds.of(class).len(),
        }
    }

    /// Number of waiters of all classes.
    pub(super) fn count_waiting(&self) -> usize {
        self.crowd().map_or(0, |crowd| crowd.waiting.len())
    }

    /// Number of holds of these classes, including closed ones.
    pub(super) fn count_holds(&self, classes: &[Class], requests: &Requests) -> usize {
        classes.iter().map(|&class| self.holds(class, requests)).sum()
    }

    /// The hold, possibly closed, that has this token and one of these classes.
    pub(super) fn hold_with(
        &self,
        token: Token,
        classes: &[Class],
        requests: &Requests,
    ) -> Option<RequestId> {
        match self {
            Self::Idle => None,
            Self::Held(id) => {
                let request = &requests[*id as usize];
                (request.has_token(token) && classes.contains(&request.class())).then_some(*id)
            }
            Self::Crowd(crowd) => classes.iter().find_map(|&class| {
                let (_, &id) = crowd.holds.of(class).range(..=token).next_back()?;
                requests[id as usize].has_token(token).then_some(id)
            }),
        }
    }

    /// Holds of one class with a token above `after`, including closed ones, by token.
    pub(super) fn holds_after(
        &self,
        after: Option<Token>,
        class: Class,
        requests: &Requests,
    ) -> impl Iterator<Item = (Token, RequestId)> {
        let (one, many) = match self {
            Self::Idle => (None, None),
            Self::Held(id) => {
                let request = &requests[*id as usize];
                let token = request.token().filter(|&token| request.class() == class && Some(token) > after);
                (token.map(|token| (token, *id)), None)
            }
            Self::Crowd(crowd) => {
                let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                (None, Some(crowd.holds.of(class).range((from, Bound::Unbounded))))
            }
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(&token, &id)| (token, id)))
    }

    /// Waiters of one class; `None` in the compact form, which has no waiters.
    pub(super) fn waiting(&self, class: Class) -> Option<&ByTicket> {
        self.crowd().map(|crowd| crowd.waiting.of(class))
    }

    /// Whether a hold, possibly closed, has this permit.
    pub(super) fn is_taken(&self, slot: Slot) -> bool {
        self.crowd().is_some_and(|crowd| crowd.slots.is_taken(slot))
    }

    pub(super) fn limit(&self) -> Option<Limit> {
        self.crowd().and_then(|crowd| crowd.limit)
    }

    /// Sets the limit. An implied limit is removed again at once if the name has no permit request.
    pub(super) fn set_limit(&mut self, limit: Limit, requests: &Requests) {
        self.crowd_mut(requests).limit = Some(limit);
        self.settle();
    }

    /// Sets a limit. Unlike [`Self::set_limit`], does not remove an implied limit if the name has no permit
    /// request: the caller adds one next. Restoring a snapshot uses this for stored limits too.
    pub(super) fn imply_limit(&mut self, limit: Limit, requests: &Requests) {
        self.crowd_mut(requests).limit = Some(limit);
    }

    pub(super) fn add_waiter(&mut self, id: RequestId, requests: &Requests) {
        let request = &requests[id as usize];
        self.crowd_mut(requests).waiting.of_mut(request.class()).insert(request.ticket, id);
    }

    pub(super) fn remove_waiter(&mut self, id: RequestId, requests: &Requests) {
        let request = &requests[id as usize];
        self.crowd_mut(requests).waiting.of_mut(request.class()).remove(&request.ticket);
        self.settle();
    }

    /// Adds a hold. For a permit, takes and returns a slot: the given one, or the lowest free one.
    pub(super) fn add_hold(
        &mut self,
        id: RequestId,
        slot: Option<Slot>,
        requests: &Requests,
    ) -> Option<Slot> {
        let request = &requests[id as usize];
        let class = request.class();
        if matches!(self, Self::Idle) && class != Class::Permit {
            *self = Self::Held(id);
            return None;
        }
        let token = token_of(request);
        let crowd = self.crowd_mut(requests);
        crowd.holds.of_mut(class).insert(token, id);
        (class == Class::Permit).then(|| match slot {
            Some(slot) => {
                crowd.slots.take(slot);
                slot
            }
            None => crowd.slots.take_lowest(),
        })
    }

    pub(super) fn remove_hold(&mut self, id: RequestId, slot: Option<Slot>, requests: &Requests) {
        if matches!(self, Self::Held(_)) {
            *self = Self::Idle;
            return;
        }
        let request = &requests[id as usize];
        let token = token_of(request);
        let crowd = self.crowd_mut(requests);
        crowd.holds.of_mut(request.class()).remove(&token);
        if let Some(slot) = slot {
            crowd.slots.free(slot);
        }
        self.settle();
    }
}

/// The token of a hold, which is set before the hold is added here.
fn token_of(hold: &RequestEntry) -> Token {
    let Some(token) = hold.token() else { unreachable!("a hold has its token") };
    token
}
