//! Requests of sessions by calls, without a stream.
//!
//! Every answer to a call proves that this node led after the call had arrived (P6), and renews the session's
//! lease. A command needs no quorum read for that: the entry with the command was proposed after the call had
//! arrived, and is committed. So only a keep-alive asks for a quorum read.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use lockkeeper_core::{Seq, SessionId};
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::{self, server_item::What};

use super::Replica;
use super::quorum_reads::PendingRead;
use crate::deadlines::Attached;
use crate::event::{CallId, CallRequest, Output, Requester, SessionCall, SessionPoll};
use crate::mutant::Mutant;

/// The calls without a final answer.
#[derive(Default)]
pub(super) struct OpenCalls {
    pub(super) open: BTreeMap<CallId, OpenCall>,
    /// The calls whose command is applied: those that wait until their queued request is granted or ends;
    /// and with seq 0 those that wait for their session's end, which is proposed, and polls.
    waiting: BTreeSet<(SessionId, Seq, CallId)>,
    /// The waiting poll of each session.
    pub(super) polls: BTreeMap<SessionId, CallId>,
}

/// A call without a final answer.
#[derive(Default)]
pub(super) struct OpenCall {
    /// Its session and seq in `waiting`.
    waits: Option<(SessionId, Seq)>,
    /// Of a keep-alive: its id, and what it asks for.
    pub(super) poll: Option<(u64, SessionPoll)>,
}

impl OpenCalls {
    /// Makes a call wait for this request, or with seq 0 for its session's end. It waits for nothing else.
    pub(super) fn wait(&mut self, call: CallId, session: SessionId, seq: Seq) {
        let Some(open) = self.open.get_mut(&call) else { return };
        if let Some((session, seq)) = open.waits.replace((session, seq)) {
            self.waiting.remove(&(session, seq, call));
        }
        self.waiting.insert((session, seq, call));
    }

    /// Removes a call. Returns `None` if it was removed before, and else for which request it has waited.
    fn remove(&mut self, call: CallId) -> Option<Option<(SessionId, Seq)>> {
        let OpenCall { waits, .. } = self.open.remove(&call)?;
        if let Some((session, seq)) = waits {
            self.waiting.remove(&(session, seq, call));
            if self.polls.get(&session) == Some(&call) {
                self.polls.remove(&session);
            }
        }
        Some(waits)
    }

    /// The calls that wait for these requests.
    fn waiting(&self, session: SessionId, seqs: RangeInclusive<Seq>) -> Vec<CallId> {
        let (first, last) = (CallId(0), CallId(u64::MAX));
        let keys = (session, *seqs.start(), first)..=(session, *seqs.end(), last);
        self.waiting.range(keys).map(|&(_, _, call)| call).collect()
    }
}

impl Replica {
    pub(super) fn called(&mut self, call: CallId, called: SessionCall) {
        let SessionCall { identity, quota, request } = called;
        self.calls.open.insert(call, OpenCall::default());
        self.quotas.called(&identity, quota);
        let from = Requester::Call(call);
        match request {
            CallRequest::Open(open) => self.open(from, &identity, &open),
            CallRequest::KeepAlive { session, secret, id, poll } => {
                if self.attach_to_calls(call, &identity, session, &secret) {
                    self.calls.set_poll(call, id, poll);
                    self.rounds.ask(PendingRead::KeepAlive { from, session, id });
                    if self.is(Mutant::CallWithoutQuorum) {
                        self.acknowledge(from, session, |notices| notices.kept_alive(id));
                    }
                }
            }
            CallRequest::Command { session, secret, seq, command } => {
                if self.attach_to_calls(call, &identity, session, &secret) {
                    self.queue_command(from, &identity, session, seq, command);
                }
            }
        }
        self.quotas.forget_if_unused(&identity);
    }

    /// Takes the session over from its stream and renews its lease, if the call has its secret. Returns
    /// false if the call is refused.
    fn attach_to_calls(
        &mut self,
        call: CallId,
        identity: &Arc<str>,
        session: SessionId,
        secret: &Secret,
    ) -> bool {
        let admitted = self.admits(Requester::Call(call), identity, session, secret);
        if admitted {
            self.attach_to(session, Attached::ToCalls);
            self.renew(session);
        }
        admitted
    }

    /// Attaches the session to a stream or to calls. Requests of the stream that had it are refused from then
    /// on.
    pub(super) fn attach_to(&mut self, session: SessionId, to: Attached) {
        let Some(lease) = self.book.lease_mut(session) else { return };
        let before = std::mem::replace(&mut lease.attached, to);
        if before != to
            && let Some(stream) = before.stream().and_then(|stream| self.streams.get_mut(&stream))
        {
            stream.sessions.remove(&session);
        }
    }

    /// Sends the answer, and renews the lease from now on, since a call may have waited for long.
    ///
    /// If the session's end is proposed, nothing may be acknowledged (P5): the call waits for that end.
    pub(super) fn answer_call(&mut self, call: CallId, item: v1::ServerItem) {
        if !self.calls.open.contains_key(&call) {
            return;
        }
        let session = SessionId(item.session);
        let needs_no_proof = matches!(item.what, Some(What::Refused(_) | What::SessionGone(_)));
        let mut waits = matches!(item.what, Some(What::Queued(_))).then_some(Seq(item.seq));
        let mut response = v1::SessionCallResponse::default();
        if let Some(lease) = self.book.lease_mut(session).filter(|_| !needs_no_proof) {
            if lease.ending {
                return self.calls.wait(call, session, Seq(0));
            }
            lease.deadline = lease.deadline.max(self.clock.now() + lease.ttl);
            response = self.changes(call, session);
            if self.keeps_polling(call, &item, &response) {
                self.begin_poll(call, session);
                waits = Some(Seq(0));
            }
        }
        response.item = Some(item);
        match waits {
            Some(seq) => {
                self.calls.wait(call, session, seq);
                self.outputs.push(Output::CallWaits(call, response));
            }
            None => {
                self.calls.remove(call);
                self.outputs.push(Output::Called(call, response));
            }
        }
    }

    /// Answers the calls that wait for a request of the session, which is granted or has ended.
    pub(super) fn answer_waiting(&mut self, session: SessionId, seq: Seq, what: &What) {
        if seq == Seq(0) {
            return;
        }
        self.answer_poll(session, seq, what);
        for call in self.calls.waiting(session, seq..=seq) {
            let what = Some(what.clone());
            self.answer_call(call, v1::ServerItem { session: session.0, seq: seq.0, what });
        }
    }

    /// Answers all waiting calls of a session that has ended.
    pub(super) fn session_of_calls_ended(&mut self, session: SessionId) {
        for call in self.calls.waiting(session, Seq(0)..=Seq(u64::MAX)) {
            let what = Some(What::SessionGone(v1::SessionGone {}));
            self.answer_call(call, v1::ServerItem { session: session.0, seq: 0, what });
        }
    }

    /// Forgets a call. Its session has its whole ttl from now on, since a part of the ttl may have passed
    /// while the call waited.
    pub(super) fn call_dropped(&mut self, call: CallId) {
        let Some(Some((session, _))) = self.calls.remove(call) else { return };
        let now = self.clock.now();
        if let Some(lease) = self.book.lease_mut(session).filter(|lease| !lease.ending) {
            lease.deadline = lease.deadline.max(now + lease.ttl);
        }
    }

    pub(super) fn end_calls(&mut self, end: &v1::StreamEnd) {
        let calls = std::mem::take(&mut self.calls).open.into_keys();
        self.outputs.extend(calls.map(|call| Output::CallEnded(call, end.clone())));
    }
}
