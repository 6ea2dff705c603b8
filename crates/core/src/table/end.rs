//! Ends of requests: finish, time-out, and the ends of closed and revoked holds (R3, R4, W1, D1–D4, B1).

use super::request::{RequestId, RequestStage};
use super::{EndOf, Table, tell_ends};
use crate::reply::{Effect, Effects, End, Reply};
use crate::snapshot::Caching;
use crate::types::{Fingerprint, ModeKind, Seq, SessionId, Token};

impl Table {
    /// Releases a hold or leaves the queue. Executed even if the command's own `seq` was seen before. If the
    /// target has ended already, ends nothing and returns the kept end (R4).
    pub(super) fn finish(
        &mut self,
        id: SessionId,
        seq: Seq,
        target: Seq,
        done_through: Seq,
        out: &mut Effects,
    ) -> Reply {
        let Some(mut session) = self.sessions.get_mut(id) else { return Reply::SessionGone };
        session.take_done_through(done_through);
        session.see(seq.max(target));
        let Some(request) = session.live.remove(&target) else {
            return Reply::Finished(session.finish_kept(target, seq));
        };
        let entry = &self.requests[request as usize];
        let ticket = entry.ticket;
        let end = match entry.stage {
            RequestStage::Waiting { .. } => End::Left,
            RequestStage::Revoked { .. } => End::Broken,
            RequestStage::Held { .. } | RequestStage::Closed { .. } => End::Released,
        };
        session.keep(target, entry.fingerprint, Reply::Finished(end), Some(seq));
        drop(session);
        let mut ends = Vec::new();
        let closed = self.end_request(request, 0, &mut ends);
        if ends.is_empty() {
            // The usual case, without an allocation.
            out.extend(closed);
        } else {
            ends.push(EndOf { ticket, ended: None, closed });
            tell_ends(ends, out);
        }
        Reply::Finished(end)
    }

    /// Ends a wait whose limit has passed. A request in any other state stays, in particular one that was
    /// granted before this command was applied (W1, F1).
    pub(super) fn time_out(&mut self, id: SessionId, target: Seq, out: &mut Effects) -> Reply {
        let Some(session) = self.sessions.get(id) else { return Reply::SessionGone };
        if let Some(&request) = session.live.get(&target)
            && matches!(self.requests[request as usize].stage, RequestStage::Waiting { at_most_ms: Some(_) })
        {
            self.end_unasked(request, End::TimedOut, Closure::AsAgreed, out);
        }
        Reply::Done
    }

    /// Ends a closed hold. A live hold with that token stays (D3, F12).
    pub(super) fn end_delay(&mut self, token: Token) -> Reply {
        if let Some(&request) = self.closed.get(&token) {
            self.open_closed(request);
        }
        Reply::Done
    }

    /// Ends a revoked hold after its holder's time to react (B1).
    pub(super) fn end_revoked(&mut self, token: Token, out: &mut Effects) -> Reply {
        if let Some(&request) = self.revoked.get(&token) {
            self.end_unasked(request, End::Broken, Closure::AsAgreed, out);
        }
        Reply::Done
    }

    /// Ends a request without a command of its client. The end is kept, and sent again at every attach, until
    /// a `Finish` confirms it (R3). A hold whose session has ended, and which the backlog has not reached
    /// yet, gets the session's lock-delay (D1) and no `Ended` effect: `SessionEnded` stands for it (E1).
    pub(super) fn end_unasked(&mut self, id: RequestId, end: End, closure: Closure, out: &mut Effects) {
        let mut ends = Vec::new();
        self.end_unasked_into(id, end, closure, &mut ends);
        tell_ends(ends, out);
    }

    /// As [`Table::end_unasked`], with the effects added to others that are still to be sorted.
    pub(super) fn end_unasked_into(
        &mut self,
        id: RequestId,
        end: End,
        closure: Closure,
        ends: &mut Vec<EndOf>,
    ) {
        let request = &self.requests[id as usize];
        let (ticket, fingerprint) = (request.ticket, request.fingerprint);
        let Some(owner) = request.owner else { return };
        if matches!(closure, Closure::None) && request.keep_closed_ms > 0 {
            self.requests.edit(id, &self.names, |request| request.keep_closed_ms = 0);
            self.closing -= 1;
        }
        self.sessions.forget_request(owner);
        let lock_delay_ms = self.sessions.lock_delay_of_ending(owner.session);
        let mut ended = None;
        if let Some(mut session) = self.sessions.get_mut(owner.session) {
            session.keep(owner.seq, fingerprint, Reply::Finished(end), None);
            ended = Some(Effect::Ended { session: owner.session, seq: owner.seq, end });
        }
        let delay_ms = match closure {
            Closure::AsAgreed => lock_delay_ms.unwrap_or_default(),
            Closure::None => 0,
        };
        let closed = self.end_request(id, delay_ms, ends);
        ends.push(EndOf { ticket, ended, closed });
    }

    /// Removes a waiter, or ends a hold, which then stays closed for the greater of `keep_closed` and
    /// `delay_ms` (D1). The caller removes the request from its session's `live`. `ends` takes the ends of
    /// other requests: those that were put off because of a cached hold which is closed now (C6).
    pub(super) fn end_request(
        &mut self,
        id: RequestId,
        delay_ms: u64,
        ends: &mut Vec<EndOf>,
    ) -> Option<Effect> {
        let request = &self.requests[id as usize];
        let keep_ms = u64::from(request.keep_closed_ms);
        let Some(token) = request.token() else {
            self.closing -= usize::from(keep_ms > 0);
            self.remove_waiter(id);
            return None;
        };
        if matches!(request.stage, RequestStage::Revoked { .. }) {
            self.revoked.remove(&token);
        }
        let ms = keep_ms.max(delay_ms);
        if ms == 0 {
            self.set_caching(id, Caching::None);
            self.remove_hold(id);
            return None;
        }
        let account = request.account;
        self.end_caching_into(id, ends);
        self.sessions.keep_account(account);
        self.requests.edit(id, &self.names, |request| {
            request.stage = RequestStage::Closed { token, ms };
            request.owner = None;
            request.fingerprint = Fingerprint::default();
            request.extras = None;
            request.keep_closed_ms = 0;
        });
        self.closing += usize::from(keep_ms == 0);
        self.closed.insert(token, id);
        Some(Effect::Closed { token, ms })
    }

    /// Removes a closed hold.
    pub(super) fn open_closed(&mut self, id: RequestId) {
        let request = &self.requests[id as usize];
        let account = request.account;
        if let Some(token) = request.token() {
            self.closed.remove(&token);
        }
        self.closing -= 1;
        self.remove_hold(id);
        self.sessions.release_account(account);
    }

    fn remove_waiter(&mut self, id: RequestId) {
        self.free(id);
        self.unqueue(id);
        self.requests.remove(id, &self.names);
    }

    fn remove_hold(&mut self, id: RequestId) {
        self.free(id);
        let request = &self.requests[id as usize];
        let shared = request.kind == ModeKind::Shared;
        let nodes = request.nodes.clone();
        for (index, &node) in nodes.as_slice().iter().enumerate() {
            let slot = self.requests[id as usize].slot(index);
            self.names.here_mut(node).remove_hold(id, slot, &self.requests);
            self.names.count_above(node, shared, -1);
        }
        self.requests.remove(id, &self.names);
    }
}

/// Whether an ended hold stays closed for its `keep_closed`, or not at all (`Break` with `now`, B2).
#[derive(Clone, Copy)]
pub(super) enum Closure {
    AsAgreed,
    None,
}
