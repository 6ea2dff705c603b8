//! The session itself: opening it, keeping it alive, closing it.

use std::time::Duration;

use super::event::{Answer, By, NotAcquired, Output, What};
use super::{DRIFT_PERCENT, Machine, RETRY_MIN, Sent, pause};
use crate::error::BackendError;
use crate::time::BootInstant;

/// Where the session stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) enum Link {
    Closed,
    /// `again`: when to try again, once a try has failed.
    Opening {
        again: Option<BootInstant>,
        tries: u32,
    },
    /// `next`: when the next keep-alive is due; `tried`: when the last one, or the attach, was sent.
    Live {
        next: BootInstant,
        tried: BootInstant,
    },
    Closing,
}

impl Link {
    pub(super) fn next_wake(self, renews: bool) -> Option<BootInstant> {
        match self {
            Self::Opening { again, .. } => again,
            Self::Live { next, .. } if renews => Some(next),
            _ => None,
        }
    }

    /// Not before `pause` has passed since the last try: a service that fails at once must not be asked in a loop.
    pub(super) fn renew_soon(&mut self, now: BootInstant, pause: Duration) {
        if let Self::Live { next, tried } = self {
            *next = now.max(*tried + pause).min(*next);
        }
    }
}

impl Machine {
    pub(super) fn tend_link(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        let wanted = !self.stopping && !self.pending.is_empty();
        match self.link {
            Link::Closed if wanted => self.open(now, 0, out),
            Link::Opening { again: Some(at), tries } if now >= at => self.open(now, tries, out),
            Link::Live { next, .. } if self.renews() && now >= next => {
                // One that is unanswered for ttl/6 is overtaken by another try (DESIGN section 6).
                self.link = Link::Live { next: now + self.spec.renew_every() / 2, tried: now };
                self.call(now, What::KeepAlive, By::Worker, out);
            }
            _ => {}
        }
    }

    /// A session without renewal is kept alive only while somebody still waits in it.
    pub(super) fn renews(&self) -> bool {
        self.spec.ttl.is_some() && (self.spec.renew || !self.pending.is_empty())
    }

    fn open(&mut self, now: BootInstant, tries: u32, out: &mut Vec<Output>) {
        self.link = Link::Opening { again: None, tries };
        self.call(now, What::Open { fresh: tries == 0 }, By::Worker, out);
    }

    /// An attach or keep-alive that was sent at `sent_at` is acknowledged: the only thing that moves the deadline (P5).
    pub(super) fn confirmed(
        &mut self,
        now: BootInstant,
        sent_at: BootInstant,
        answer: Answer,
        out: &mut Vec<Output>,
    ) {
        match answer {
            Answer::Opened | Answer::KeptAlive => {}
            // A keep-alive that is refused says nothing of holds: their deadline stands (P5).
            Answer::Refused(_) if !matches!(self.link, Link::Opening { .. }) => return self.link_failed(now),
            Answer::Refused(error) => return self.open_refused(error, out),
            _ => return,
        }
        let next = sent_at.checked_add(self.spec.renew_every()).unwrap_or(BootInstant::MAX);
        self.link = match self.link {
            Link::Live { next: planned, tried } => Link::Live { next: planned.max(next), tried },
            Link::Opening { .. } => Link::Live { next, tried: sent_at },
            other => return self.link = other,
        };
        let until = self.spec.belief().map(|belief| sent_at + belief);
        if until > self.belief {
            self.belief = until;
            out.push(Output::Belief(until));
        }
        self.hand_out_early(now, out);
    }

    /// The stream has ended: the service may have cut the session's time to `linger` (DESIGN section 5). What was
    /// asked before may have been acknowledged on that stream, so only what is asked from now on counts.
    pub(super) fn detached(&mut self, now: BootInstant, at: BootInstant, out: &mut Vec<Output>) {
        if self.spec.linger.is_zero() {
            return;
        }
        self.calls.retain(|_, Sent { what, .. }| !matches!(what, What::Open { .. } | What::KeepAlive));
        match &mut self.link {
            Link::Opening { again, .. } => *again = Some(again.map_or(now, |again| again.min(now))),
            // At once, but not twice in a moment: a peer that ends every stream must not be asked in a loop.
            link => link.renew_soon(now, RETRY_MIN),
        }
        let until = at + (self.spec.linger - self.spec.linger * DRIFT_PERCENT / 100);
        if self.belief.is_some_and(|belief| until < belief) {
            self.belief = Some(until);
            out.push(Output::Belief(self.belief));
            self.pass_deadlines(now, out);
        }
    }

    fn open_refused(&mut self, error: BackendError, out: &mut Vec<Output>) {
        self.link = Link::Closed;
        let keys: Vec<_> = self.requests.keys().copied().collect();
        for key in keys {
            self.remove(key);
            let why = NotAcquired::Refused(error.clone());
            out.push(Output::NotAcquired { key, why });
        }
    }

    pub(super) fn link_failed(&mut self, now: BootInstant) {
        match &mut self.link {
            Link::Opening { again, tries } => {
                *again = Some(now + pause(*tries));
                *tries += 1;
            }
            // Try again soon: at least every ttl/12 (DESIGN section 6).
            Link::Live { next, .. } => *next = (*next).min(now + self.spec.try_every()),
            Link::Closed | Link::Closing => {}
        }
    }

    pub(super) fn close(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        match self.link {
            Link::Live { .. } => {
                self.link = Link::Closing;
                self.call(now, What::Close, By::Worker, out);
            }
            Link::Opening { .. } => {
                // Nobody wants it any more. If it opens after all, it expires by itself.
                self.calls.retain(|_, Sent { what, .. }| !matches!(what, What::Open { .. }));
                self.link = Link::Closed;
            }
            Link::Closed | Link::Closing => {}
        }
    }

    pub(super) fn closed(&mut self) {
        self.link = Link::Closed;
        self.belief = None;
    }
}
