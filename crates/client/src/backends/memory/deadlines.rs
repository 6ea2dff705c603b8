//! Deadlines of the in-process service, on its lease clock.
//!
//! A *turn* is one run of the service, for a call or for a timer. The lease clock excludes stalls: one turn
//! advances it by at most 1/12 of the shortest ttl, so at most that much of a stall counts against a session
//! (P9). Returns due commands; ends nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_core::{Command, Seq, SessionId, Token};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Due {
    Expire(SessionId),
    TimeOut(SessionId, Seq),
    EndDelay(Token),
    EndRevoked(Token),
}

#[derive(Default)]
pub(super) struct MemoryDeadlines {
    /// Nanoseconds on the lease clock.
    lease_now: u64,
    last_turn: Option<BootInstant>,
    due: BTreeSet<(u64, Due)>,
    sessions: BTreeMap<SessionId, Deadline>,
}

struct Deadline {
    ttl: Duration,
    at: u64,
}

impl MemoryDeadlines {
    /// Begins a turn of the service: advances the lease clock.
    pub(super) fn turn(&mut self, now: BootInstant) {
        let elapsed = self.last_turn.map_or(Duration::ZERO, |last| now - last);
        self.last_turn = Some(now);
        self.lease_now = self.lease_now.saturating_add(nanos(elapsed.min(self.turn_max())));
    }

    /// Removes and returns the next due command.
    pub(super) fn pop_due(&mut self) -> Option<Command> {
        loop {
            let &(at, due) = self.due.first()?;
            if at > self.lease_now {
                return None;
            }
            self.due.pop_first();
            return Some(match due {
                Due::Expire(session) => {
                    // Since this timer was set, the session may have ended, or a keep-alive may have moved
                    // its deadline.
                    let Some(deadline) = self.sessions.get(&session) else { continue };
                    if deadline.at > self.lease_now {
                        self.due.insert((deadline.at, due));
                        continue;
                    }
                    Command::ExpireSession { session }
                }
                Due::TimeOut(session, target) => Command::TimeOut { session, target },
                Due::EndDelay(token) => Command::EndDelay { token },
                Due::EndRevoked(token) => Command::EndRevoked { token },
            });
        }
    }

    /// The time of the next turn: the next deadline, and at least every 1/24 of the shortest ttl while there
    /// are sessions, so that a late turn is recognized as a stall.
    pub(super) fn next_turn(&self) -> Option<BootInstant> {
        let last = self.last_turn?;
        let due = self.due.first().map(|&(at, _)| Duration::from_nanos(at.saturating_sub(self.lease_now)));
        let least = self.least_ttl().map(|ttl| ttl / 24);
        due.into_iter().chain(least).min().map(|wait| last + wait)
    }

    pub(super) fn opened(&mut self, session: SessionId, ttl: Duration) {
        let at = self.lease_now.saturating_add(nanos(ttl));
        if self.sessions.insert(session, Deadline { ttl, at }).is_none() {
            self.due.insert((at, Due::Expire(session)));
        }
    }

    pub(super) fn ended(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Handles an attach or a keep-alive: only these extend a deadline.
    pub(super) fn kept_alive(&mut self, session: SessionId) {
        if let Some(deadline) = self.sessions.get_mut(&session) {
            deadline.at = self.lease_now.saturating_add(nanos(deadline.ttl));
        }
    }

    pub(super) fn after(&mut self, wait: Duration, due: Due) {
        self.due.insert((self.lease_now.saturating_add(nanos(wait)), due));
    }

    fn turn_max(&self) -> Duration {
        self.least_ttl().map_or(Duration::MAX, |ttl| ttl / 12)
    }

    fn least_ttl(&self) -> Option<Duration> {
        self.sessions.values().map(|deadline| deadline.ttl).min()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
