//! Keep-alives by calls that also name the changes of the session's requests, and may wait for one: so a
//! client without a stream waits for all its requests with one call.
//!
//! A poll is answered like any keep-alive, once a quorum read has confirmed it. If there is no change to
//! name then, it waits: the answer is passed on at the end of its time, unless a change comes first. The
//! answer stays true meanwhile, since the lease counts from when the call was sent, and since every
//! change since then would have answered the call.

use lockkeeper_core::{Reply, Seq, SessionId};
use lockkeeper_wire::answer;
use lockkeeper_wire::v1::{self, server_item::What};

use super::Replica;
use super::calls::OpenCalls;
use crate::event::{CallId, Requester, SessionPoll};
use crate::mutant::Mutant;

impl SessionPoll {
    fn knows(&self, seq: Seq) -> bool {
        self.known.binary_search(&seq).is_ok()
    }

    fn waits_for(&self, seq: Seq) -> bool {
        self.waiting.binary_search(&seq).is_ok()
    }
}

impl OpenCalls {
    /// Stores what a keep-alive asks for.
    pub(super) fn set_poll(&mut self, call: CallId, id: u64, mut poll: SessionPoll) {
        poll.waiting.sort_unstable();
        poll.known.sort_unstable();
        if let Some(open) = self.open.get_mut(&call) {
            open.poll = Some((id, poll));
        }
    }

    fn poll(&self, call: CallId) -> Option<&(u64, SessionPoll)> {
        self.open.get(&call)?.poll.as_ref()
    }
}

impl Replica {
    /// The answer to a call of a live session, without its item: the changes that the call asks for.
    pub(super) fn changes(&self, call: CallId, session: SessionId) -> v1::SessionCallResponse {
        let no_poll = SessionPoll::default();
        let poll = self.calls.poll(call).map_or(&no_poll, |(_, poll)| poll);
        let part = self.config.ends_per_part;
        let mut response = v1::SessionCallResponse::default();
        if let Some(lease) = self.book.lease(session) {
            response.revoked =
                lease.revoked.iter().filter(|&&seq| !poll.knows(seq)).map(|seq| seq.0).collect();
        }
        let ended = |seq: Seq, end| v1::EndedRequest { seq: seq.0, end: answer::finished(end).end };
        for &seq in &poll.waiting {
            if self.table.is_waiting(session, seq) {
                continue;
            }
            match self.table.request(session, seq) {
                Some(Reply::Granted(grant)) if response.granted.len() < part => {
                    let What::Granted(grant) = answer::granted(&grant) else { continue };
                    response.granted.push(v1::GrantedRequest { seq: seq.0, grant: Some(grant) });
                }
                None if response.ended.len() < part && !poll.knows(seq) => {
                    response.ended.extend(self.table.end_of(session, seq).map(|end| ended(seq, end)));
                }
                _ => {}
            }
        }
        let ends = self.table.unconfirmed_ends(session, Seq(0));
        let ends = ends.filter(|&(seq, _)| !poll.knows(seq) && !poll.waits_for(seq));
        response.ended.extend(ends.take(part).map(|(seq, end)| ended(seq, end)));
        response
    }

    /// Whether the call waits for a change: `response` has none.
    pub(super) fn keeps_polling(
        &self,
        call: CallId,
        item: &v1::ServerItem,
        response: &v1::SessionCallResponse,
    ) -> bool {
        matches!(item.what, Some(What::KeptAlive(_)))
            && self.calls.poll(call).is_some_and(|(_, poll)| poll.waits)
            && response.granted.is_empty()
            && response.revoked.is_empty()
            && response.ended.is_empty()
    }

    /// Makes a confirmed call the one of its session that waits for changes; an earlier one is answered now.
    pub(super) fn begin_poll(&mut self, call: CallId, session: SessionId) {
        let (table, lease) = (&self.table, self.book.lease(session));
        if let Some((_, poll)) = self.calls.open.get_mut(&call).and_then(|open| open.poll.as_mut()) {
            // Seqs of no request would let a client fill this node's memory.
            poll.waiting.retain(|&seq| table.is_waiting(session, seq));
            poll.known.retain(|&seq| {
                let after = Seq(seq.0.saturating_sub(1));
                lease.is_some_and(|lease| lease.revoked.contains(&seq))
                    || table.unconfirmed_ends(session, after).next().is_some_and(|(first, _)| first == seq)
            });
        }
        let earlier = self.calls.polls.insert(session, call).filter(|earlier| *earlier != call);
        if let Some(earlier) = earlier
            && let Some((_, poll)) = self.calls.open.get_mut(&earlier).and_then(|open| open.poll.as_mut())
        {
            poll.waits = false;
            self.acknowledge_poll(earlier, session);
        }
    }

    /// Answers the waiting poll of a session if it asks for this change of a request.
    pub(super) fn answer_poll(&mut self, session: SessionId, seq: Seq, what: &What) {
        let Some(&call) = self.calls.polls.get(&session) else { return };
        let is_asked = self.calls.poll(call).is_some_and(|(_, poll)| match what {
            What::Granted(_) => poll.waits_for(seq) && !self.is(Mutant::GrantNotPolled),
            What::Revoked(_) | What::Ended(_) => !poll.knows(seq),
            _ => poll.waits_for(seq),
        });
        if is_asked {
            self.acknowledge_poll(call, session);
        }
    }

    /// Answers the waiting poll of a session if there was a change while the session's end was proposed,
    /// which is taken back.
    pub(super) fn poll_again(&mut self, session: SessionId) {
        if let Some(&call) = self.calls.polls.get(&session) {
            self.acknowledge_poll(call, session);
        }
    }

    fn acknowledge_poll(&mut self, call: CallId, session: SessionId) {
        let id = self.calls.poll(call).map_or(0, |(id, _)| *id);
        self.acknowledge(Requester::Call(call), session, |notices| notices.kept_alive(id));
    }
}
