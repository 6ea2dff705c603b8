//! Permit limits (L2–L4), and the counters that operators and bootstrap nodes raise (T1, T3, V1).

use super::Table;
use super::crowd::Limit;
use super::request::RequestId;
use super::work::Freed;
use crate::limits;
use crate::name::LockName;
use crate::reply::{Rejection, Reply};
use crate::types::{ModeKind, Ticket, WallTime};
use crate::validate;

impl Table {
    /// Checks a permit request's number against the limits in force, in byte order of the names (L2, L3). A
    /// stored limit overrides the request's number (L4).
    pub(super) fn check_limits(&self, names: &[LockName], of: Option<u32>) -> Result<(), Rejection> {
        for name in names {
            let node = self.names.find(name.as_str());
            let limit = node.and_then(|node| self.names.get(node).here.limit());
            match (limit, of) {
                (Some(Limit { number, stored: false }), Some(asked)) if number != asked => {
                    return Err(Rejection::LimitMismatch { name: name.clone(), have: number, asked });
                }
                (None, None) => return Err(Rejection::NoLimit { name: name.clone() }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets the implied limit of the names that have no limit: this is their first live permit request (L3).
    pub(super) fn imply_limits(&mut self, id: RequestId, of: u32) {
        let nodes = self.requests[id as usize].nodes.clone();
        for &node in nodes.as_slice() {
            let here = self.names.here_mut(node);
            if here.limit().is_none() {
                here.imply_limit(Limit { number: of, stored: false }, &self.requests);
            }
        }
    }

    pub(super) fn set_limit(&mut self, name: &LockName, limit: Option<u32>) -> Reply {
        let had = self.names.find(name.as_str()).and_then(|node| self.names.get(node).here.limit());
        let was_stored = had.is_some_and(|had| had.stored);
        if let Some(Err(rejection)) = limit.map(validate::permits) {
            return Reply::Refused(rejection);
        }
        let limit = match (limit, had) {
            (Some(number), _) => {
                if !was_stored {
                    if self.stored_limits >= limits::STORED_LIMITS_MAX {
                        return Reply::Refused(Rejection::TooManyStoredLimits);
                    }
                    self.stored_limits += 1;
                }
                Limit { number, stored: true }
            }
            (None, Some(had)) if had.stored => {
                self.stored_limits -= 1;
                // The number stays in force, as an implied limit, while there are permit requests (L4, F11).
                Limit { number: had.number, stored: false }
            }
            (None, _) => return Reply::Done,
        };
        let node = self.names.intern(name.as_str());
        self.names.here_mut(node).set_limit(limit, &self.requests);
        self.requests.note_name(name);
        // A higher limit may admit any waiters for permits of the name, so the grant pass after this command
        // visits the waiters from the first ticket on.
        self.freed.push(Freed { name: node, subtree: false, kind: ModeKind::Permit, after: Ticket(0) });
        Reply::Done
    }

    pub(super) fn raise_tokens(&mut self, above: u64) -> Reply {
        if above <= self.last_token {
            return Reply::Done;
        }
        let most = if self.last_token == 0 { limits::TOKEN_MAX } else { limits::RAISE_TOKENS_MAX };
        if above > most {
            return Reply::Refused(Rejection::RaiseTooHigh { above });
        }
        self.last_token = above;
        Reply::Done
    }

    pub(super) fn raise_rules(&mut self, version: u32) -> Reply {
        if version > limits::RULES_VERSION {
            return Reply::Refused(Rejection::UnknownRules { version, known: limits::RULES_VERSION });
        }
        self.rules = self.rules.max(version);
        Reply::Done
    }

    pub(super) fn set_clock(&mut self, now: WallTime) -> Reply {
        if self.rules >= limits::RULES_WITH_CLOCK {
            self.clock = now;
        }
        Reply::Done
    }

    /// The time of the last [`Command::SetClock`](crate::Command::SetClock).
    #[must_use]
    pub fn clock(&self) -> WallTime {
        self.clock
    }
}
