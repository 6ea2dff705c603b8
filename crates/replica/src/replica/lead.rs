//! Becoming the leader, and ceasing to be one.

use std::time::Duration;

use lockkeeper_core::{Command, Pending};

use super::{Origin, Proposal, Replica};
use crate::book::Book;
use crate::event::{Answer, Output};
use crate::lease::LeaseClock;
use crate::mutant::Mutant;
use crate::since::Since;

/// How far this node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    No,
    /// Elected in this term, but its first own entry is not applied yet: what an old leader had proposed may still be
    /// committed under it, so nothing is acknowledged.
    Coming(u64),
    /// From its zero point on.
    Ready(u64),
}

impl Lead {
    pub(super) fn is_coming(self) -> bool {
        matches!(self, Self::Coming(_))
    }

    pub(super) fn is_ready(self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// The term in which it leads.
    pub(super) fn term(self) -> Option<u64> {
        match self {
            Self::No => None,
            Self::Coming(term) | Self::Ready(term) => Some(term),
        }
    }
}

impl Replica {
    /// Notices what the consensus has decided.
    pub(super) fn follow_leadership(&mut self) {
        let term = self.engine.is_leader().then(|| self.engine.term());
        if term == self.lead.term() {
            return;
        }
        if self.lead != Lead::No {
            self.step_down();
        }
        self.lead = term.map_or(Lead::No, Lead::Coming);
        if self.is(Mutant::AckBeforeOwnEntry) {
            self.zero_point();
        }
    }

    /// What is not committed has an unknown fate now, and belongs to the next leader: clients ask there.
    fn step_down(&mut self) {
        self.lead = Lead::No;
        let leader = self.engine.leader();
        let unknown = if self.is(Mutant::AnswerByIndex) { 0 } else { self.in_flight.len() };
        let in_flight = self.in_flight.drain(..unknown).flat_map(|batch| batch.proposals);
        let dropped = self.queue.drain(..).chain(in_flight);
        for proposal in dropped {
            if let Origin::Ask(ask) = proposal.origin {
                self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
            }
        }
        for ask in self.rounds.step_down().into_iter().chain(self.changes.step_down()) {
            self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
        }
        self.is_resuming = false;
        self.expiry.step_down();
        self.end_watches();
        let early = std::mem::take(&mut self.early);
        early.into_iter().for_each(|event| self.handle(event));
        self.leave_streams();
        self.book = Book::default();
    }

    /// The first entry of its own term is applied: the zero point. Every session gets its full ttl from here, and every
    /// other timer starts anew (P9).
    pub(super) fn zero_point(&mut self) {
        let Lead::Coming(term) = self.lead else { return };
        self.lead = Lead::Ready(term);
        self.clock = LeaseClock::new(self.now);
        self.lease_now = Duration::ZERO;
        self.book = Book::default();
        self.since = Since::default();
        for session in self.table.sessions() {
            let (ttl, linger) = (ms(session.ttl_ms), ms(session.linger_ms));
            let found = !self.is(Mutant::LingerBelowFloor);
            if self.is(Mutant::ZeroPointForgotten) {
                self.book.opened(session.id, ttl, Duration::ZERO, Duration::ZERO, false);
                self.book.cut(session.id, Duration::ZERO);
                continue;
            }
            self.book.opened(session.id, ttl, linger, Duration::ZERO, found);
        }
        for pending in self.table.pending() {
            match pending {
                Pending::Wait { session, seq, at_most_ms } => self.book.waits(session, seq, ms(at_most_ms)),
                Pending::Closed { token, .. } if self.is(Mutant::ClosuresOpenAtOnce) => {
                    self.book.closed(token, Duration::ZERO);
                }
                Pending::Closed { token, ms: delay } => self.book.closed(token, ms(delay)),
                Pending::Revoked { .. } if self.is(Mutant::RevokedForgotten) => {}
                Pending::Revoked { session, seq, token } => {
                    let Some(lease) = self.book.lease_mut(session) else { continue };
                    lease.revoked.insert(seq);
                    let until = lease.ttl;
                    self.book.revoked(token, until);
                }
            }
        }
        if self.table.last_token() == 0 && !self.is(Mutant::TokensFromOne) {
            // A table without history: before anything is granted, and by the log, so that all nodes agree (T1).
            let command = Command::RaiseTokens { above: self.config.tokens_above };
            self.queue.push_back(Proposal { command, origin: Origin::Leader });
        }
        let early = std::mem::take(&mut self.early);
        early.into_iter().for_each(|event| self.handle(event));
    }
}

pub(super) fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}
