//! Fires due timers, and expires sessions in two steps. At its deadline a session becomes a candidate. Then a
//! *check* begins: a quorum read that must confirm this leader, and a drain barrier, which completes once all
//! input that had arrived when the check began was handled. At the end of the check the session expires,
//! unless its deadline is now later than the check's beginning. So no stall of leader, network or disk
//! expires a live session (P9).

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_core::{Command, Seq, SessionId};

use super::quorum_reads::PendingRead;
use super::{Origin, Proposal, Replica};
use crate::deadlines::{Attached, Timer};
use crate::event::Output;
use crate::mutant::Mutant;

/// Maximum number of timers visited per call of `Replica::advance`, and of sessions in one check: some
/// milliseconds of work. Timers are visited in the order of their deadlines.
const DUE_PER_TURN: usize = 1 << 13;

/// The most sessions that [`Replica::take_expired`] names.
const NAMED_MAX: usize = 5;

#[derive(Default)]
pub(super) struct Expiry {
    last: u64,
    candidates: BTreeSet<SessionId>,
    /// Sessions whose client has closed their stream, and the attach number of that stream. Their `linger`
    /// begins at the end of a check.
    closes: Vec<(SessionId, u64)>,
    check: Option<Check>,
    /// Sessions for which an expiry was proposed since the last [`Replica::take_expired`]: the first few.
    recent: Vec<ExpiredSession>,
    /// The number of expired sessions at that time.
    reported: u64,
}

/// A session that has expired, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExpiredSession {
    /// The session.
    pub session: SessionId,
    /// What its client has called itself.
    pub label: String,
    /// Who its client was; empty: unknown.
    pub identity: String,
}

/// A check of sessions that were candidates when it began, up to [`DUE_PER_TURN`].
struct Check {
    number: u64,
    /// Reading of the lease clock when the check began. A session whose deadline has moved past this does not
    /// expire by this check.
    began: Duration,
    sessions: BTreeSet<SessionId>,
    closes: Vec<(SessionId, u64)>,
    confirmed: bool,
    drained: bool,
}

impl Expiry {
    pub(super) fn confirmed(&mut self, number: u64) {
        if let Some(check) = self.check.as_mut().filter(|check| check.number == number) {
            check.confirmed = true;
        }
    }

    pub(super) fn drained(&mut self, number: u64) {
        if let Some(check) = self.check.as_mut().filter(|check| check.number == number) {
            check.drained = true;
        }
    }

    pub(super) fn closed_by_client(&mut self, session: SessionId, attach: u64) {
        self.closes.push((session, attach));
    }

    /// Whether the event loop should continue at once: the check in progress is complete, or a new one can
    /// begin.
    pub(super) fn is_decided(&self) -> bool {
        match &self.check {
            Some(check) => check.confirmed && check.drained,
            None => !self.candidates.is_empty() || !self.closes.is_empty(),
        }
    }

    pub(super) fn step_down(&mut self) {
        // The numbers keep rising, so that a late confirmation or drain can't be taken for that of a later
        // check.
        *self = Self { last: self.last, reported: self.reported, ..Self::default() };
    }
}

impl Replica {
    pub(super) fn end_due(&mut self) {
        self.conclude_check();
        let now = self.clock.now();
        for due in self.book.take_due(now, DUE_PER_TURN.min(self.queue_room())) {
            match due {
                Timer::Session(session) if self.is(Mutant::ExpiryAtDeadline) => {
                    if let Some(lease) = self.book.lease_mut(session) {
                        lease.ending = true;
                        self.propose_own(Command::ExpireSession { session });
                    }
                }
                Timer::Session(session) => drop(self.expiry.candidates.insert(session)),
                Timer::TimeOut(session, target) => {
                    if self.is(Mutant::TimeOutUnchecked) {
                        self.propose_own(Command::Finish {
                            session,
                            seq: target,
                            target,
                            done_through: Seq(0),
                        });
                    } else if self.table.is_waiting(session, target) {
                        self.propose_own(Command::TimeOut { session, target });
                    }
                }
                Timer::EndDelay(token) => self.propose_own(Command::EndDelay { token }),
                Timer::EndRevoked(token) => self.propose_own(Command::EndRevoked { token }),
            }
        }
        self.begin_check();
    }

    /// Whether timers may fire. They may not after this node has ended its streams, since clients can't send
    /// keep-alives any more; nor while nothing can be proposed, since keep-alives may arrive before proposals
    /// are possible again.
    pub(super) fn may_end(&self) -> bool {
        self.lead.is_ready()
            && !self.has_left()
            && !self.engine.is_transferring()
            && self.held_until().is_none()
            && !self.turn.has_more()
    }

    /// To be called when proposals have to wait: removes the queued expiries and sets their sessions' timers
    /// again, so that keep-alives received meanwhile count (P9).
    pub(super) fn take_back_ends(&mut self) {
        let mut live = Vec::new();
        self.queue.retain(|proposal| match (&proposal.command, &proposal.origin) {
            (Command::ExpireSession { session }, Origin::Leader) => {
                live.push(*session);
                false
            }
            _ => true,
        });
        for session in live {
            if let Some(lease) = self.book.lease_mut(session) {
                lease.ending = false;
                self.book.again(session);
                self.poll_again(session);
            }
        }
    }

    fn propose_own(&mut self, command: Command) {
        self.queue.push_back(Proposal::new(command, Origin::Leader));
    }

    fn begin_check(&mut self) {
        let expiry = &mut self.expiry;
        if expiry.check.is_some() || (expiry.candidates.is_empty() && expiry.closes.is_empty()) {
            return;
        }
        expiry.last += 1;
        let number = expiry.last;
        let trusting = self.config.mutant == Some(Mutant::ExpiryWithoutDrain);
        expiry.check = Some(Check {
            number,
            began: self.clock.now(),
            sessions: std::iter::from_fn(|| expiry.candidates.pop_first()).take(DUE_PER_TURN).collect(),
            closes: std::mem::take(&mut expiry.closes),
            confirmed: false,
            drained: trusting,
        });
        self.rounds.ask(PendingRead::Silence(number));
        self.outputs.push(Output::Drain(number));
    }

    /// The number of sessions that have expired since the last call, while this node led, and a few of them.
    pub fn take_expired(&mut self) -> (u64, Vec<ExpiredSession>) {
        let all = self.activity.expired;
        let count = all - std::mem::replace(&mut self.expiry.reported, all);
        if count == 0 {
            return (0, Vec::new());
        }
        let mut named = std::mem::take(&mut self.expiry.recent);
        // The others were heard after all.
        named.retain(|it| self.book.lease(it.session).is_none());
        (count, named)
    }

    fn conclude_check(&mut self) {
        let complete = |check: &mut Check| check.confirmed && check.drained;
        let Some(check) = self.expiry.check.take_if(complete) else { return };
        let now = self.clock.now();
        for (session, attach) in check.closes {
            // A later attach or call cancels the close.
            let closed =
                self.book.lease(session).filter(|it| it.attach == attach && it.attached == Attached::Nowhere);
            if closed.is_some() {
                self.book.cut(session, now);
            }
        }
        for session in check.sessions {
            let Some(lease) = self.book.lease_mut(session).filter(|lease| !lease.ending) else { continue };
            // A sign of life has moved the deadline past the check's beginning. If the check took long, the
            // new deadline may have passed too. Even then the session can expire only by another check, whose
            // drain barrier covers the input that has arrived since.
            if lease.deadline > check.began {
                self.book.again(session);
            } else {
                lease.ending = true;
                if self.expiry.recent.len() < NAMED_MAX {
                    let (label, identity) = self.client(session);
                    self.expiry.recent.push(ExpiredSession { session, label, identity });
                }
                self.propose_own(Command::ExpireSession { session });
            }
        }
    }
}
