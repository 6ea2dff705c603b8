//! The session: opening, keep-alives, closing.

use std::time::Duration;

use lockkeeper_backend::{Answer, BackendError, BootInstant};

use super::event::{CallKind, NotAcquired, Output, RunsOn};
use super::{Machine, RETRY_MAX, RETRY_MIN, Sent, pause};

/// The state of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum SessionPhase {
    Closed,
    /// `again`: time of the next attempt, once one has failed.
    Opening {
        again: Option<BootInstant>,
        tries: u32,
    },
    /// `next`: time of the next keep-alive; `tried`: when the last keep-alive, or the attach, was sent.
    Live {
        next: BootInstant,
        tried: BootInstant,
    },
    Closing,
}

/// Limits how fast new sessions are opened: a service that ends every session at once must not be called in a
/// loop.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Opens {
    last: Option<BootInstant>,
    /// How many opens in a row have followed the previous one within [`SOON`].
    soon: u32,
}

/// An open later than this after the previous one counts as the first. Longer than the longest pause.
const SOON: Duration = RETRY_MAX.saturating_mul(2);
/// The count at which the pause is longest.
const SOON_MAX: u32 = 7;

impl Opens {
    fn opened(&mut self, now: BootInstant) {
        let is_soon = self.last.is_some_and(|last| now < last + SOON);
        self.soon = if is_soon { (self.soon + 1).min(SOON_MAX) } else { 0 };
        self.last = Some(now);
    }

    /// The earliest time of the next open; the first reopening may be immediate.
    fn next(&self) -> Option<BootInstant> {
        Some(self.last? + pause(self.soon.checked_sub(1)?))
    }
}

impl SessionPhase {
    pub(super) fn next_wake(self, renews: bool) -> Option<BootInstant> {
        match self {
            Self::Opening { again, .. } => again,
            Self::Live { next, .. } if renews => Some(next),
            _ => None,
        }
    }

    /// Moves the next keep-alive forward to now, but not to less than `pause` after the last attempt: a
    /// service that fails at once must not be called in a loop.
    pub(super) fn renew_soon(&mut self, now: BootInstant, pause: Duration) {
        if let Self::Live { next, tried } = self {
            *next = now.max(*tried + pause).min(*next);
        }
    }
}

impl Machine {
    pub(super) fn advance_session(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        match self.link {
            SessionPhase::Closed if self.wants_session() && self.opens.next().is_none_or(|at| now >= at) => {
                self.opens.opened(now);
                self.open(now, 0, out);
            }
            SessionPhase::Opening { again: Some(at), tries } if now >= at => self.open(now, tries, out),
            SessionPhase::Live { next, .. } if self.renews() && now >= next => {
                // A keep-alive without an answer for ttl/6 is followed by another, so that a lost answer
                // leaves time for retries.
                self.link = SessionPhase::Live { next: now + self.spec.renew_every() / 2, tried: now };
                self.call(now, CallKind::KeepAlive, RunsOn::LeaseThread, out);
            }
            _ => {}
        }
    }

    fn wants_session(&self) -> bool {
        !self.stopping && !self.pending.is_empty()
    }

    /// When the next session will be opened, if its open has to wait.
    pub(super) fn next_open(&self) -> Option<BootInstant> {
        self.opens.next().filter(|_| self.link == SessionPhase::Closed && self.wants_session())
    }

    /// A session without renewal is kept alive only while requests are pending in it.
    pub(super) fn renews(&self) -> bool {
        self.spec.ttl.is_some() && (self.spec.renew || !self.pending.is_empty())
    }

    fn open(&mut self, now: BootInstant, tries: u32, out: &mut Vec<Output>) {
        self.link = SessionPhase::Opening { again: None, tries };
        self.call(now, CallKind::Open { fresh: tries == 0 }, RunsOn::LeaseThread, out);
    }

    /// Handles the acknowledgement of an attach or keep-alive sent at `sent_at`: the only event that extends
    /// the deadline (P5).
    pub(super) fn confirmed(
        &mut self,
        now: BootInstant,
        sent_at: BootInstant,
        answer: Answer,
        out: &mut Vec<Output>,
    ) {
        match answer {
            Answer::Opened => out.push(Output::Attached(true)),
            Answer::KeptAlive => {}
            // A refused keep-alive implies nothing about holds: they keep their deadline (P5).
            Answer::Refused(_) if !matches!(self.link, SessionPhase::Opening { .. }) => {
                return self.link_failed(now);
            }
            Answer::Refused(error) => return self.open_refused(error, out),
            _ => return,
        }
        let next = sent_at.checked_add(self.spec.renew_every()).unwrap_or(BootInstant::MAX);
        self.link = match self.link {
            SessionPhase::Live { next: planned, tried } => {
                SessionPhase::Live { next: planned.max(next), tried }
            }
            SessionPhase::Opening { .. } => SessionPhase::Live { next, tried: sent_at },
            other => return self.link = other,
        };
        let until = self.spec.lease().map(|lease| sent_at + lease);
        if until > self.lease_deadline {
            self.lease_deadline = until;
            out.push(Output::LeaseDeadline(until));
        }
        self.hand_out_early(now, out);
    }

    /// Handles the end of the stream: the service may have cut the session's remaining time to `linger`.
    /// Calls sent before may have been acknowledged on that stream, so only calls sent from now on extend the
    /// deadline.
    pub(super) fn detached(&mut self, now: BootInstant, at: BootInstant, out: &mut Vec<Output>) {
        if self.spec.linger.is_zero() {
            return;
        }
        self.calls
            .retain(|_, Sent { kind, .. }| !matches!(kind, CallKind::Open { .. } | CallKind::KeepAlive));
        match &mut self.link {
            SessionPhase::Opening { again, .. } => *again = Some(again.map_or(now, |again| again.min(now))),
            // Soon, but not immediately after the last attempt: a peer that ends every stream must not be
            // called in a loop.
            link => link.renew_soon(now, RETRY_MIN),
        }
        let until = at + self.spec.linger_lease();
        if self.lease_deadline.is_some_and(|lease_deadline| until < lease_deadline) {
            self.lease_deadline = Some(until);
            out.push(Output::LeaseDeadline(self.lease_deadline));
            self.pass_deadlines(now, out);
        }
    }

    fn open_refused(&mut self, error: BackendError, out: &mut Vec<Output>) {
        self.link = SessionPhase::Closed;
        let keys: Vec<_> = self.requests.keys().copied().collect();
        for key in keys {
            self.remove(key);
            let why = NotAcquired::Refused(error.clone());
            out.push(Output::NotAcquired { key, why });
        }
    }

    pub(super) fn link_failed(&mut self, now: BootInstant) {
        match &mut self.link {
            SessionPhase::Opening { again, tries } => {
                *again = Some(now + pause(*tries));
                *tries += 1;
            }
            // Retry after ttl/12 at the latest.
            SessionPhase::Live { next, .. } => *next = (*next).min(now + self.spec.try_every()),
            SessionPhase::Closed | SessionPhase::Closing => {}
        }
    }

    pub(super) fn close(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        match self.link {
            SessionPhase::Live { .. } => {
                self.link = SessionPhase::Closing;
                self.call(now, CallKind::Close, RunsOn::LeaseThread, out);
            }
            SessionPhase::Opening { .. } => {
                // The session is no longer needed. If the open succeeds after all, the session expires.
                self.calls.retain(|_, Sent { kind, .. }| !matches!(kind, CallKind::Open { .. }));
                self.link = SessionPhase::Closed;
            }
            SessionPhase::Closed | SessionPhase::Closing => {}
        }
    }

    pub(super) fn closed(&mut self) {
        self.link = SessionPhase::Closed;
        self.lease_deadline = None;
    }
}
