//! Gaining and losing leadership.

use std::time::Duration;

use lockkeeper_core::{Command, Pending, SessionId};

use super::token_pace::TokenPace;
use super::{Origin, Proposal, Replica};
use crate::deadlines::Deadlines;
use crate::event::{Answer, Output};
use crate::lease::LeaseClock;
use crate::mutant::Mutant;

/// This node's leadership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    No,
    /// Elected in this term, but not ready: nothing is acknowledged. First its first own entry must be
    /// applied, and with it every entry that earlier leaders committed; then all timers must be read from the
    /// table.
    Coming(u64),
    /// Ready: the zero point has passed.
    Ready(u64),
}

/// Progress of a new leader's scan of its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    Sessions { after: SessionId },
    Requests { from: u64 },
}

/// Slots of the table's request storage that are scanned per step, occupied or not.
const PLACES_PER_PART: usize = 64;

impl Lead {
    pub(super) fn is_coming(self) -> bool {
        matches!(self, Self::Coming(_))
    }

    pub(super) fn is_ready(self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// The term of this node's leadership.
    pub(super) fn term(self) -> Option<u64> {
        match self {
            Self::No => None,
            Self::Coming(term) | Self::Ready(term) => Some(term),
        }
    }
}

impl Replica {
    /// Compares the engine's leadership with this replica's, and reacts to a change.
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
            self.begin_zero_point();
            self.read_timers();
        }
    }

    /// Handles the loss of leadership. From here on this node does not learn the outcome of its uncommitted
    /// commands; clients send them again to the next leader.
    fn step_down(&mut self) {
        self.lead = Lead::No;
        let leader = self.engine.leader();
        let unknown = if self.is(Mutant::AnswerByIndex) { 0 } else { self.in_flight.len() };
        let in_flight = self.in_flight.drain(..unknown).flat_map(|batch| batch.proposals);
        let dropped = self.queue.drain(..).chain(in_flight);
        for proposal in dropped {
            if let Origin::Ask(ask) | Origin::EndOrder { ask, .. } = proposal.origin {
                self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
            }
        }
        for ask in self.rounds.step_down().into_iter().chain(self.changes.step_down()) {
            self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
        }
        self.is_resuming = false;
        self.reading = None;
        self.expiry.step_down();
        self.quotas.step_down();
        self.end_watches();
        self.handle_early();
        self.leave_streams();
        self.book = Deadlines::default();
    }

    /// To be called when the first entry of this leader's term is applied: the table then has everything that
    /// earlier leaders committed.
    pub(super) fn begin_zero_point(&mut self) {
        if self.lead.is_coming() {
            self.book = Deadlines::default();
            self.reading = Some(Reading::Sessions { after: SessionId(0) });
        }
    }

    /// Reads all timers from the table within this turn's budget. A large table takes several turns, between
    /// which heartbeats are sent. The table does not change during the scan, since a leader that is not ready
    /// proposes nothing.
    pub(super) fn read_timers(&mut self) {
        while let Some(reading) = self.reading {
            if self.turn.is_spent() {
                return;
            }
            self.reading = match reading {
                Reading::Sessions { after } => self.read_session(after),
                Reading::Requests { from } => self.read_requests(from),
            };
            if self.reading.is_none() {
                self.zero_point();
            }
        }
    }

    fn read_session(&mut self, after: SessionId) -> Option<Reading> {
        let Some(session) = self.table.sessions_after(after).next() else {
            return Some(Reading::Requests { from: 0 });
        };
        let (ttl, linger) = (ms(session.ttl_ms), ms(session.linger_ms));
        let found = !self.is(Mutant::LingerBelowFloor);
        if self.is(Mutant::ZeroPointForgotten) {
            self.book.opened(session.id, ttl, Duration::ZERO, Duration::ZERO, false);
            self.book.cut(session.id, Duration::ZERO);
        } else {
            self.book.opened(session.id, ttl, linger, Duration::ZERO, found);
        }
        self.turn.spend(1);
        Some(Reading::Sessions { after: session.id })
    }

    fn read_requests(&mut self, from: u64) -> Option<Reading> {
        let (closures_open, revoked_forgotten) =
            (self.is(Mutant::ClosuresOpenAtOnce), self.is(Mutant::RevokedForgotten));
        let recalled_forgotten = self.is(Mutant::RecalledForgotten);
        let (pending, next) = self.table.pending_in_part(from, PLACES_PER_PART);
        self.turn.spend(PLACES_PER_PART as u64);
        for pending in pending {
            self.turn.spend(1);
            match pending {
                Pending::Wait { session, seq, at_most_ms } => self.book.waits(session, seq, ms(at_most_ms)),
                Pending::Closed { token, .. } if closures_open => self.book.closed(token, Duration::ZERO),
                Pending::Closed { token, ms: delay } => self.book.closed(token, ms(delay)),
                Pending::Revoked { .. } if revoked_forgotten => {}
                Pending::Recalled { .. } if recalled_forgotten => {}
                Pending::Recalled { session, seq } => {
                    let Some(lease) = self.book.lease_mut(session) else { continue };
                    lease.recalled.insert(seq);
                }
                Pending::Revoked { session, seq, token } => {
                    let Some(lease) = self.book.lease_mut(session) else { continue };
                    lease.revoked.insert(seq);
                    let until = lease.ttl;
                    self.book.revoked(token, until);
                }
            }
        }
        next.map(|from| Reading::Requests { from })
    }

    /// The zero point: from here on this node answers. Every session gets its full ttl, and every other timer
    /// restarts (P9).
    fn zero_point(&mut self) {
        let Lead::Coming(term) = self.lead else { return };
        self.lead = Lead::Ready(term);
        self.clock = LeaseClock::new(self.now);
        self.lease_now = Duration::ZERO;
        self.token_pace = TokenPace::default();
        if self.table.last_token() == 0 && !self.is(Mutant::TokensFromOne) {
            // A table without history: the counter is raised before any grant, and through the log, so that
            // all nodes agree (T1).
            let command = Command::RaiseTokens { above: self.config.tokens_above };
            self.queue.push_back(Proposal::new(command, Origin::Leader));
        }
        self.handle_early();
    }

    fn handle_early(&mut self) {
        self.early_requests = 0;
        let early = std::mem::take(&mut self.early);
        early.into_iter().for_each(|event| self.handle(event));
    }
}

pub(super) fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}
