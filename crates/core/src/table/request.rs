//! One request: a waiter, a hold, or what is left of a hold while it stays closed.
//!
//! Small on purpose: a table must hold a million of them (at most 300 bytes a held lock, DESIGN section 4).

use slab::Slab;

use super::crowd::Class;
use super::names::{Names, NodeId};
use crate::name::LockName;
use crate::snapshot::view::{PhaseView, RequestView};
use crate::types::{ModeKind, Seq, SessionId, Slot, Ticket, Token};

/// Index of a [`Request`]. Reused after the request is gone.
pub(super) type RequestId = u32;

pub(super) struct Request {
    pub(super) ticket: Ticket,
    /// `None` for a closed hold: it is nobody's (D2).
    pub(super) owner: Option<Owner>,
    /// In byte order of their names.
    pub(super) nodes: Few<NodeId>,
    /// For a granted permit: one a name. Empty otherwise.
    pub(super) slots: Few<Slot>,
    pub(super) kind: ModeKind,
    pub(super) subtree: bool,
    /// 0 is off; 0 for a closed hold.
    pub(super) keep_closed_ms: u32,
    /// What it counts for beside its extras, in bytes: see [`base_bytes`].
    pub(super) base_bytes: u32,
    pub(super) stage: Stage,
    pub(super) extras: Option<Box<Extras>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) seq: Seq,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Waiting { at_most_ms: Option<u64> },
    Held { token: Token },
    Revoked { token: Token },
    Closed { token: Token, ms: u64 },
}

/// What most requests don't have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) value: Box<[u8]>,
    pub(super) meta: Box<[u8]>,
    /// Why it is broken, and by whom, for a revoked hold.
    pub(super) reason: Box<str>,
    pub(super) by: Box<str>,
}

/// What a request counts for by itself, and each segment of each name.
const REQUEST_BYTES: usize = 192;
const SEGMENT_BYTES: usize = 96;

/// What a request with these names counts for. Names above its names are counted for each request, though they are
/// stored once: so the count of a table is a sum, whatever the order in which its requests came.
pub(super) fn base_bytes(names: &[LockName]) -> u32 {
    let names = names.iter().map(|name| name.segments() * SEGMENT_BYTES + name.as_str().len());
    (REQUEST_BYTES + names.sum::<usize>()) as u32
}

impl Request {
    /// What it counts for, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let extras = self
            .extras
            .as_ref()
            .map_or(0, |it| it.value.len() + it.meta.len() + it.reason.len() + it.by.len());
        u64::from(self.base_bytes) + extras as u64
    }

    pub(super) fn class(&self) -> Class {
        Class::of(self.kind, self.subtree)
    }

    /// The token of a hold, also of a closed one.
    pub(super) fn token(&self) -> Option<Token> {
        match self.stage {
            Stage::Waiting { .. } => None,
            Stage::Held { token } | Stage::Revoked { token } | Stage::Closed { token, .. } => Some(token),
        }
    }

    pub(super) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// What its bytes and its plain data are made of.
    pub(super) fn view<'a>(
        &'a self,
        names: &'a Names,
    ) -> RequestView<'a, impl ExactSizeIterator<Item = LockName>> {
        let extras = self.extras.as_deref();
        let slots = self.slots.as_slice();
        RequestView {
            ticket: self.ticket,
            owner: self.owner.map(|owner| (owner.session, owner.seq)),
            names: self.nodes.as_slice().iter().map(|&node| names.name(node)),
            mode: self.kind,
            subtree: self.subtree,
            keep_closed_ms: u64::from(self.keep_closed_ms),
            value: extras.map_or(&[], |extras| &extras.value),
            meta: extras.map_or(&[], |extras| &extras.meta),
            phase: match self.stage {
                Stage::Waiting { at_most_ms } => PhaseView::Waiting { at_most_ms },
                Stage::Held { token } => PhaseView::Held { token, slots },
                Stage::Revoked { token } => {
                    let (reason, by) = extras.map_or(("", ""), |extras| (&extras.reason, &extras.by));
                    PhaseView::Revoked { token, slots, reason, by }
                }
                Stage::Closed { token, ms } => PhaseView::Closed { token, slots, ms },
            },
        }
    }

    /// The slot that a granted permit has of its `index`-th name.
    pub(super) fn slot(&self, index: usize) -> Option<Slot> {
        self.slots.as_slice().get(index).copied()
    }
}

/// Grows in steps of an eighth instead of doubling: a table that has just outgrown its slab must not take twice the
/// memory (at most 300 bytes a held lock), and moving a large slab is cheap, since the system remaps it.
pub(super) fn insert<T>(slab: &mut Slab<T>, item: T) -> u32 {
    if slab.len() == slab.capacity() {
        slab.reserve_exact((slab.len() / 8).max(16));
    }
    slab.insert(item) as u32
}

/// Mostly one, sometimes many: no allocation for one.
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
