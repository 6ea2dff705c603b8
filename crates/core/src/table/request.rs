//! A request: a waiter, a hold, or a closed hold.
//!
//! Kept small so that a table can hold a million locks, with at most 300 bytes for each held lock.

use slab::Slab;

use super::crowd::Class;
use super::names::{Names, NodeId};
use super::usage::{AccountId, Usage};
use crate::name::LockName;
use crate::snapshot::Caching;
use crate::snapshot::view::{PhaseView, RequestView};
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};

/// Index of a [`RequestEntry`]. Reused after the request is removed.
pub(super) type RequestId = u32;

pub(super) struct RequestEntry {
    pub(super) ticket: Ticket,
    /// `None` for a closed hold, which belongs to no session (D2).
    pub(super) owner: Option<Owner>,
    /// The fingerprint of the acquire (R5); 0 for a closed hold.
    pub(super) fingerprint: Fingerprint,
    /// The nodes of the request's names, in byte order of the names.
    pub(super) nodes: Few<NodeId>,
    /// One slot per name for a granted permit. Otherwise empty.
    pub(super) slots: Few<Slot>,
    pub(super) kind: ModeKind,
    pub(super) subtree: bool,
    /// In milliseconds; 0 disables it, and is the value of closed holds.
    pub(super) keep_closed_ms: u32,
    /// Accounted size in bytes, without that of the extras: see [`base_bytes`].
    pub(super) base_bytes: u32,
    /// The account of the request's session; for a closed hold, of the session that held it.
    pub(super) account: AccountId,
    pub(super) stage: RequestStage,
    pub(super) caching: Caching,
    /// Tokens of a hold after its first.
    pub(super) spare_tokens: u32,
    /// When it was granted; of a waiter, when it was queued.
    pub(super) since: WallTime,
    pub(super) extras: Option<Box<Extras>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) seq: Seq,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestStage {
    Waiting { at_most_ms: Option<u64> },
    Held { token: Token },
    Revoked { token: Token },
    Closed { token: Token, ms: u64 },
}

/// Fields that most requests don't have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) value: Box<[u8]>,
    pub(super) meta: Box<[u8]>,
    /// Reason of the break, for a revoked hold; the next field is the operator.
    pub(super) reason: Box<str>,
    pub(super) by: Box<str>,
    /// Tokens that the caller of a waiter holds (K1).
    pub(super) holding: Box<[Token]>,
}

/// Accounted size in bytes of a request; the next constant is that of each segment of each name.
const REQUEST_BYTES: usize = 192;
const SEGMENT_BYTES: usize = 96;

/// Accounted size in bytes of a request with these names. Every request is charged for the prefixes of its
/// names, although the tree stores a prefix once for all requests: so a request's accounted size does not
/// depend on other requests.
pub(super) fn base_bytes(names: &[LockName]) -> u32 {
    let names = names.iter().map(|name| name.segments() * SEGMENT_BYTES + name.as_str().len());
    (REQUEST_BYTES + names.sum::<usize>()) as u32
}

impl RequestEntry {
    /// Accounted size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let extras = self.extras.as_ref().map_or(0, |it| {
            it.value.len() + it.meta.len() + it.reason.len() + it.by.len() + size_of_val(&*it.holding)
        });
        u64::from(self.base_bytes) + extras as u64
    }

    /// The usage that this request adds for the identity of its session.
    pub(super) fn usage(&self) -> Usage {
        let waiters = u64::from(matches!(self.stage, RequestStage::Waiting { .. }));
        let names = self.nodes.as_slice().len() as u64;
        Usage { sessions: 0, requests: 1, waiters, names, bytes: self.bytes() }
    }

    pub(super) fn class(&self) -> Class {
        Class::of(self.kind, self.subtree)
    }

    /// The token of a hold or closed hold; `None` for a waiter.
    pub(super) fn token(&self) -> Option<Token> {
        match self.stage {
            RequestStage::Waiting { .. } => None,
            RequestStage::Held { token }
            | RequestStage::Revoked { token }
            | RequestStage::Closed { token, .. } => Some(token),
        }
    }

    /// Whether the hold has this token.
    pub(super) fn has_token(&self, token: Token) -> bool {
        let first = self.token().map(Token::get);
        first.is_some_and(|first| (first..=first + u64::from(self.spare_tokens)).contains(&token.get()))
    }

    pub(super) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// The request as a borrowed view, which is encoded or converted to plain data.
    pub(super) fn view<'a>(
        &'a self,
        names: &'a Names,
    ) -> RequestView<'a, impl ExactSizeIterator<Item = LockName>> {
        let extras = self.extras.as_deref();
        let slots = self.slots.as_slice();
        RequestView {
            ticket: self.ticket,
            owner: self.owner.map(|owner| (owner.session, owner.seq)),
            fingerprint: self.fingerprint,
            names: self.nodes.as_slice().iter().map(|&node| names.name(node)),
            mode: self.kind,
            subtree: self.subtree,
            keep_closed_ms: u64::from(self.keep_closed_ms),
            value: extras.map_or(&[], |extras| &extras.value),
            meta: extras.map_or(&[], |extras| &extras.meta),
            since: self.since,
            caching: self.caching,
            spare_tokens: self.spare_tokens,
            holding: extras.map_or(&[], |extras| &extras.holding),
            phase: match self.stage {
                RequestStage::Waiting { at_most_ms } => PhaseView::Waiting { at_most_ms },
                RequestStage::Held { token } => PhaseView::Held { token, slots },
                RequestStage::Revoked { token } => {
                    let (reason, by) = extras.map_or(("", ""), |extras| (&extras.reason, &extras.by));
                    PhaseView::Revoked { token, slots, reason, by }
                }
                RequestStage::Closed { token, ms } => PhaseView::Closed { token, slots, ms },
            },
        }
    }

    /// The slot that a granted permit has at the `index`-th name.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        self.slots.as_slice().get(index).copied()
    }
}

/// Inserts into a slab that grows by an eighth instead of doubling: doubling would exceed the memory limit
/// (300 bytes per held lock) just after growth. Moving a large slab is cheap, because the operating system
/// remaps it.
pub(super) fn insert<T>(slab: &mut Slab<T>, item: T) -> u32 {
    if slab.len() == slab.capacity() {
        slab.reserve_exact((slab.len() / 8).max(16));
    }
    slab.insert(item) as u32
}

/// A list that usually has one element, which takes no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Few<T> {
    None,
    One(T),
    Many(Box<[T]>),
}

impl<T: Copy> Few<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T: Copy> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let Some(first) = items.next() else { return Self::None };
        let Some(second) = items.next() else { return Self::One(first) };
        Self::Many([first, second].into_iter().chain(items).collect())
    }
}
