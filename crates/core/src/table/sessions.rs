//! Opening and ending sessions (S1–S3).

use super::session::Session;
use super::{EndOf, Table, tell_ends};
use crate::command::OpenSession;
use crate::limits;
use crate::reply::{Effect, Effects, Rejection, Reply};
use crate::types::SessionId;
use crate::validate::SessionContent;

impl Table {
    pub(super) fn open_session(&mut self, open: &OpenSession) -> Reply {
        if let Some(&session) = self.by_secret.get(&open.secret_hash) {
            return Reply::Opened { session };
        }
        if let Err(rejection) = SessionContent::from(open).check() {
            return Reply::Refused(rejection);
        }
        if self.sessions.len() >= limits::SESSIONS_MAX {
            return Reply::Refused(Rejection::TooManySessions);
        }
        self.last_session += 1;
        let session = SessionId(self.last_session);
        self.sessions.insert(session, Session::new(open));
        self.by_secret.insert(open.secret_hash, session);
        Reply::Opened { session }
    }

    /// Ends a session and all its requests. Lock-delay applies only if it `expired` (S3).
    pub(super) fn end_session(&mut self, id: SessionId, expired: bool, out: &mut Effects) -> Reply {
        let Some(session) = self.sessions.remove(id) else { return Reply::SessionGone };
        self.by_secret.remove(&session.secret_hash);
        out.push(Effect::SessionEnded { session: id });
        let delay_ms = if expired { session.lock_delay_ms } else { 0 };
        let mut ends = Vec::new();
        for request in session.live.into_values() {
            let ticket = self.requests[request as usize].ticket;
            let closed = self.end_request(request, delay_ms);
            ends.push(EndOf { ticket, ended: None, closed });
        }
        tell_ends(ends, out);
        Reply::SessionGone
    }
}
