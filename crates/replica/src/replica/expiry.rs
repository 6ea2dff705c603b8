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
    /// The sessions that have expired since the last [`Replica::take_expired`]: the first few.
    recent: Vec<ExpiredSession>,
    /// The number of expired sessions at that time.
    reported: u64,
    /// The queue has operators' orders to end sessions that were taken back.
    has_orders_to_judge: bool,
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
        let recent = std::mem::take(&mut self.recent);
        *self = Self { last: self.last, recent, reported: self.reported, ..Self::default() };
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
    /// again, so that keep-alives received meanwhile count (P9). Operators' orders stay in the queue, to be
    /// judged again.
    pub(super) fn take_back_ends(&mut self) {
        let mut live = Vec::new();
        let mut has_orders = false;
        self.queue.retain(|proposal| {
            let Command::ExpireSession { session } = &proposal.command else { return true };
            live.push(*session);
            let is_order = matches!(proposal.origin, Origin::EndOrder { .. });
            has_orders |= is_order;
            is_order
        });
        self.expiry.has_orders_to_judge |= has_orders;
        // Such a session may have another end that is proposed already.
        let in_flight = self.in_flight.iter().filter(|_| has_orders).flat_map(|batch| &batch.proposals);
        let ending: BTreeSet<SessionId> = in_flight.filter_map(|it| ends(&it.command)).collect();
        for session in live.into_iter().filter(|session| !ending.contains(session)) {
            if let Some(lease) = self.book.lease_mut(session) {
                lease.ending = false;
                self.book.again(session);
                self.poll_again(session);
            }
        }
    }

    /// Judges the queued orders to end sessions again, after the proposals had to wait: a client may have
    /// attached meanwhile.
    pub(super) fn judge_end_orders(&mut self) {
        if !std::mem::take(&mut self.expiry.has_orders_to_judge) {
            return;
        }
        for proposal in std::mem::take(&mut self.queue) {
            let stays = match (&proposal.command, &proposal.origin) {
                (Command::ExpireSession { session }, Origin::EndOrder { ask, now }) => {
                    self.may_be_ended(*ask, *session, *now)
                }
                _ => true,
            };
            if stays {
                self.queue.push_back(proposal);
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
        (count, std::mem::take(&mut self.expiry.recent))
    }

    /// The session that this command of the leader is about to end, if the log will name it.
    pub(super) fn to_be_named(&self, command: &Command, origin: &Origin) -> Option<ExpiredSession> {
        let (&Command::ExpireSession { session }, Origin::Leader) = (command, origin) else { return None };
        if !self.lead.is_ready() || self.expiry.recent.len() >= NAMED_MAX {
            return None;
        }
        let table = self.table.session(session)?;
        Some(ExpiredSession { session, label: table.label.into(), identity: table.identity.into() })
    }

    pub(super) fn expired(&mut self, named: ExpiredSession) {
        self.expiry.recent.push(named);
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
                self.propose_own(Command::ExpireSession { session });
            }
        }
    }
}

/// The session that this command ends.
fn ends(command: &Command) -> Option<SessionId> {
    match command {
        Command::ExpireSession { session } | Command::CloseSession { session, .. } => Some(*session),
        _ => None,
    }
}
