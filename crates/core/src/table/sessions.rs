//! Opening and ending sessions (S1–S3).

use super::request::{Owner, RequestId};
use super::session::TableSession;
use super::work::Budget;
use super::{EndOf, Table, tell_ends};
use crate::command::OpenSession;
use crate::limits;
use crate::reply::{Effect, Effects, Rejection, Reply};
use crate::types::{Seq, SessionId};
use crate::validate::SessionContent;

impl Table {
    pub(super) fn open_session(&mut self, mut open: OpenSession) -> Reply {
        if self.rules < limits::RULES_WITH_IDENTITY {
            open.identity = Box::default();
        }
        if let Some(&session) = self.by_secret.get(&open.secret_hash) {
            return self.opened_before(session, &open);
        }
        if let Err(rejection) = SessionContent::from(&open).check() {
            return Reply::Refused(rejection);
        }
        if self.sessions.len() >= limits::SESSIONS_MAX {
            return Reply::Refused(Rejection::TooManySessions);
        }
        if self.bytes() >= limits::TABLE_BYTES_MAX {
            return Reply::Refused(Rejection::TableFull);
        }
        self.last_session += 1;
        let session = SessionId(self.last_session);
        self.by_secret.insert(open.secret_hash, session);
        self.sessions.insert(session, TableSession::new(open));
        Reply::Opened { session }
    }

    /// The reply to an opening whose secret is that of a live session: a repeat has the same identity (S4)
    /// and the same times (S1), since its client would count on the times that it asked for.
    fn opened_before(&self, session: SessionId, open: &OpenSession) -> Reply {
        if !self.admits(session, &open.identity) {
            return Reply::Refused(Rejection::OtherIdentity { session });
        }
        let Some(known) = self.sessions.get(session) else { return Reply::SessionGone };
        let times = [
            ("ttl", known.ttl_ms, open.ttl_ms),
            ("lock-delay", known.lock_delay_ms, open.lock_delay_ms),
            ("linger", known.linger_ms, open.linger_ms),
        ];
        match times.into_iter().find(|(_, have, asked)| have != asked) {
            Some((field, have, asked)) => {
                Reply::Refused(Rejection::OtherTerms { session, field, have, asked })
            }
            None => Reply::Opened { session },
        }
    }

    /// Whether a client with this identity, which knows the secret, may use the session (S4): its own, or one
    /// that was opened without an identity. False if the session isn't live.
    #[must_use]
    pub fn admits(&self, session: SessionId, identity: &str) -> bool {
        let session = self.sessions.get(session);
        session.is_some_and(|session| session.identity.is_empty() || *session.identity == *identity)
    }

    /// Who opened a live session; empty: unknown.
    #[must_use]
    pub fn identity(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(session).map(|session| &*session.identity)
    }

    /// Whether a live session was opened with this secret (S1).
    #[must_use]
    pub fn has_secret(&self, hash: &[u8; 32]) -> bool {
        self.by_secret.contains_key(hash)
    }

    /// Whether the table has seen this seq of a live session, so that a command with it changes nothing (R5).
    #[must_use]
    pub fn has_seen(&self, session: SessionId, seq: Seq) -> bool {
        self.sessions.get(session).is_some_and(|session| seq <= session.highest)
    }

    /// Ends a session and all its requests. Work beyond the bound of a command is left as a backlog.
    /// Lock-delay applies only if the session `expired` (S3).
    pub(super) fn end_session(&mut self, id: SessionId, expired: bool, out: &mut Effects) -> Reply {
        let Some(secret_hash) = self.sessions.end(id, expired) else { return Reply::SessionGone };
        self.by_secret.remove(&secret_hash);
        out.push(Effect::SessionEnded { session: id });
        self.end_ending(&mut Budget::new(self.work_max), out);
        Reply::SessionGone
    }

    /// Removes requests, kept answers and then the ended sessions themselves, until the budget is spent.
    pub(super) fn end_ending(&mut self, budget: &mut Budget, out: &mut Effects) {
        let mut ends = Vec::new();
        while let Some((_, request, delay_ms)) = self.sessions.pop_ending(budget) {
            budget.spend(self.names_above(request));
            let ticket = self.requests[request as usize].ticket;
            let closed = self.end_request(request, delay_ms, &mut ends);
            ends.push(EndOf { ticket, ended: None, closed });
        }
        tell_ends(ends, out);
    }

    /// Removes a waiter of an ended session that [`Table::end_ending`] has not removed yet. Called when the
    /// grant pass visits the waiter.
    pub(super) fn end_of_ending(&mut self, owner: Owner, id: RequestId) {
        self.sessions.forget_request(owner);
        let mut ends = Vec::new();
        let closed = self.end_request(id, 0, &mut ends);
        debug_assert!(closed.is_none() && ends.is_empty(), "a waiter leaves no closed hold (D2)");
    }
}
