//! A borrowed view of a request, built from a snapshot's plain data or from the table.
//!
//! The encoder takes only this view, so both sources have the same encoding. The view borrows all fields
//! except the names of the table, which an iterator builds from their segments.

use super::{Caching, Phase, RequestState};
use crate::name::LockName;
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Slot, Ticket, Token, WallTime};

pub(crate) struct RequestView<'a, N> {
    pub(crate) ticket: Ticket,
    pub(crate) owner: Option<(SessionId, Seq)>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) names: N,
    pub(crate) mode: ModeKind,
    pub(crate) subtree: bool,
    pub(crate) keep_closed_ms: u64,
    pub(crate) value: &'a [u8],
    pub(crate) meta: &'a [u8],
    pub(crate) since: WallTime,
    pub(crate) caching: Caching,
    pub(crate) spare_tokens: u32,
    pub(crate) holding: &'a [Token],
    pub(crate) phase: PhaseView<'a>,
}

/// [`Phase`], borrowed.
pub(crate) enum PhaseView<'a> {
    Waiting { at_most_ms: Option<u64> },
    Held { token: Token, slots: &'a [Slot] },
    Revoked { token: Token, slots: &'a [Slot], reason: &'a str, by: &'a str },
    Closed { token: Token, slots: &'a [Slot], ms: u64 },
}

impl RequestState {
    pub(crate) fn view(&self) -> RequestView<'_, impl ExactSizeIterator<Item = &LockName>> {
        RequestView {
            ticket: self.ticket,
            owner: self.owner,
            fingerprint: self.fingerprint,
            names: self.names.iter(),
            mode: self.mode,
            subtree: self.subtree,
            keep_closed_ms: self.keep_closed_ms,
            value: &self.value,
            meta: &self.meta,
            since: self.since,
            caching: self.caching,
            spare_tokens: self.spare_tokens,
            holding: &self.holding,
            phase: match &self.phase {
                &Phase::Waiting { at_most_ms } => PhaseView::Waiting { at_most_ms },
                Phase::Held { token, slots } => PhaseView::Held { token: *token, slots },
                Phase::Revoked { token, slots, reason, by } => {
                    PhaseView::Revoked { token: *token, slots, reason, by }
                }
                Phase::Closed { token, slots, ms } => PhaseView::Closed { token: *token, slots, ms: *ms },
            },
        }
    }
}

impl<N: Iterator<Item = LockName>> RequestView<'_, N> {
    /// The view as plain data.
    pub(crate) fn into_state(self) -> RequestState {
        RequestState {
            ticket: self.ticket,
            owner: self.owner,
            fingerprint: self.fingerprint,
            names: self.names.collect(),
            mode: self.mode,
            subtree: self.subtree,
            keep_closed_ms: self.keep_closed_ms,
            value: self.value.into(),
            meta: self.meta.into(),
            since: self.since,
            caching: self.caching,
            spare_tokens: self.spare_tokens,
            holding: self.holding.into(),
            phase: match self.phase {
                PhaseView::Waiting { at_most_ms } => Phase::Waiting { at_most_ms },
                PhaseView::Held { token, slots } => Phase::Held { token, slots: slots.to_vec() },
                PhaseView::Revoked { token, slots, reason, by } => {
                    Phase::Revoked { token, slots: slots.to_vec(), reason: reason.into(), by: by.into() }
                }
                PhaseView::Closed { token, slots, ms } => Phase::Closed { token, slots: slots.to_vec(), ms },
            },
        }
    }
}
