//! Seqs, `done_through` and kept answers: the rules that make a retry harmless (R1–R6).

use lockkeeper_core::limits::KEPT_ANSWERS_MAX;
use lockkeeper_core::snapshot::{KeptAnswer, Phase, RequestState};
use lockkeeper_core::{End, Fingerprint, Grant, Rejection, Reply, Seq, SessionId};

use super::{Oracle, ReportedEffects};

impl Oracle {
    /// `Acquire`, `SetValue`, `Downgrade` and `Settle`: the first four checks of R7, the limit of kept
    /// answers, the command itself, then R6.
    pub(crate) fn numbered(
        &mut self,
        session: SessionId,
        seq: Seq,
        fingerprint: Fingerprint,
        done_through: Seq,
        command: impl FnOnce(&mut Self) -> Reply,
    ) -> Reply {
        if self.session(session).is_none() {
            return Reply::SessionGone; // S2
        }
        self.r1_take_done_through(session, done_through);
        if let Some(reply) = self.r5_already_seen(session, seq, fingerprint) {
            return reply;
        }
        let state = self.session(session).expect("it is live");
        state.highest = seq;
        if state.kept.len() >= KEPT_ANSWERS_MAX {
            return Reply::Refused(Rejection::TooManyKeptAnswers);
        }
        let reply = command(self);
        self.r6_keep(session, seq, fingerprint, &reply);
        reply
    }

    /// R1: never falls, and raises the highest seq seen.
    fn r1_take_done_through(&mut self, session: SessionId, done_through: Seq) {
        let state = self.session(session).expect("it is live");
        state.done_through = state.done_through.max(done_through);
        state.highest = state.highest.max(done_through);
        self.r3_forget_confirmed_answers();
    }

    /// R5: a command at or below the highest seq is not executed, and must be the one that had this seq
    /// first. R2: a live request is found for any `done_through`.
    fn r5_already_seen(&mut self, session: SessionId, seq: Seq, fingerprint: Fingerprint) -> Option<Reply> {
        if seq > self.session(session).expect("it is live").highest {
            return None;
        }
        Some(match self.p7_present_state(session, seq).or_else(|| self.kept(session, seq)) {
            Some((first, _)) if first != fingerprint => Reply::Refused(Rejection::NumberTaken { seq }),
            Some((_, reply)) => reply,
            None => Reply::Finished(End::Gone),
        })
    }

    /// P7-a: the reply to a retry is the request's present state.
    fn p7_present_state(&self, session: SessionId, seq: Seq) -> Option<(Fingerprint, Reply)> {
        let request = self.state.requests.iter().find(|r| r.owner == Some((session, seq)))?;
        let reply = match &request.phase {
            Phase::Waiting { .. } => self.queued(request),
            Phase::Held { token, .. } => Reply::Granted(Grant {
                token: *token,
                permits: self.l4_permits(request),
                spare_tokens: request.spare_tokens,
            }),
            Phase::Revoked { token, .. } => Reply::Revoked { token: *token },
            Phase::Closed { .. } => unreachable!("a closed hold is nobody's (D2)"),
        };
        Some((request.fingerprint, reply))
    }

    fn kept(&self, session: SessionId, seq: Seq) -> Option<(Fingerprint, Reply)> {
        let state = self.state.sessions.iter().find(|s| s.id == session)?;
        state.kept.iter().find(|kept| kept.seq == seq).map(|kept| (kept.fingerprint, kept.reply.clone()))
    }

    /// R6: every final answer is kept, including errors.
    fn r6_keep(&mut self, session: SessionId, seq: Seq, fingerprint: Fingerprint, reply: &Reply) {
        if !matches!(reply, Reply::Granted(_) | Reply::Queued { .. }) {
            let reply = match reply {
                // The holder and the queue length are not kept (M2).
                Reply::Busy { .. } => Reply::Busy { holder: None, queued_ahead: 0 },
                reply => reply.clone(),
            };
            let state = self.session(session).expect("it is live");
            state.kept.push(KeptAnswer { seq, fingerprint, reply, until: Some(seq) });
        }
    }

    /// R3: the end of a request is kept until the client has confirmed the `Finish` that names it. `until` is
    /// the seq of that `Finish`; `None` until there is one.
    pub(crate) fn r3_keep_end(&mut self, request: &RequestState, end: End, until: Option<Seq>) {
        let (session, seq) = request.owner.expect("a live request has an owner");
        let fingerprint = request.fingerprint;
        let state = self.session(session).expect("a live request's session is live");
        state.kept.push(KeptAnswer { seq, fingerprint, reply: Reply::Finished(end), until });
    }

    /// R3: kept until `done_through` reaches `until`.
    pub(crate) fn r3_forget_confirmed_answers(&mut self) {
        for session in &mut self.state.sessions {
            let done_through = session.done_through;
            session.kept.retain(|kept| kept.until.is_none_or(|until| until > done_through));
        }
    }

    /// R4: always runs; idempotent by its target; raises the highest seq to max(own, target); never refused.
    pub(crate) fn r4_finish(
        &mut self,
        session: SessionId,
        seq: Seq,
        target: Seq,
        done_through: Seq,
        reported: &mut ReportedEffects,
    ) -> Reply {
        if self.session(session).is_none() {
            return Reply::SessionGone; // S2
        }
        self.r1_take_done_through(session, done_through);
        let state = self.session(session).expect("it is live");
        state.highest = state.highest.max(seq).max(target);
        if let Some(kept) = state.kept.iter_mut().find(|kept| kept.seq == target) {
            // R3: a later `Finish` prolongs the time for which the answer is kept, and never shortens it.
            kept.until = Some(kept.until.map_or(seq, |until| until.max(seq)));
            return Reply::Finished(match kept.reply {
                Reply::Finished(end) => end,
                _ => End::NotAcquired,
            });
        }
        let Some(request) = self.state.requests.iter().find(|r| r.owner == Some((session, target))).cloned()
        else {
            return Reply::Finished(End::Gone);
        };
        let end = match request.phase {
            Phase::Waiting { .. } => End::Left,
            Phase::Held { .. } => End::Released,
            Phase::Revoked { .. } => End::Broken, // B1
            Phase::Closed { .. } => unreachable!("a closed hold is nobody's (D2)"),
        };
        self.d1_end(request.ticket, 0, reported);
        self.r3_keep_end(&request, end, Some(seq));
        Reply::Finished(end)
    }
}
