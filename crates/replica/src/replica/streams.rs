//! Client streams: the sessions attached to them, and the requests read from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockkeeper_core::{Command, Rejection, Seq, SessionId, Usage, limits};
use lockkeeper_wire::answer;
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::v1::{self, server_item::What};

use super::quorum_reads::PendingRead;
use super::{Origin, Proposal, Replica};
use crate::deadlines::Attached;
use crate::event::{Output, Requester, StreamCloseCause, StreamId};
use crate::mutant::Mutant;

/// An open stream.
#[derive(Default)]
pub(super) struct ClientStream {
    /// Who the client is; empty: unknown.
    identity: Arc<str>,
    /// Items to be sent in one frame by the next `Replica::take_outputs`.
    pub(super) items: Vec<v1::ServerItem>,
    /// The sessions whose latest attach came over this stream.
    pub(super) sessions: BTreeSet<SessionId>,
    /// Version of the node list that was last sent: index of the last entry that changed the members, and the
    /// number of address changes.
    nodes: Option<(u64, u64)>,
}

/// What an acknowledgement of a session's keep-alive or attach says about its holds: the seqs of those that
/// are revoked (B1) and recalled (C4).
pub(super) struct Notices {
    pub(super) revoked: Vec<u64>,
    pub(super) recalled: Vec<u64>,
}

impl Notices {
    pub(super) fn kept_alive(self, id: u64) -> What {
        What::KeptAlive(v1::KeptAlive { id, revoked: self.revoked, recalled: self.recalled })
    }
}

/// Maximum number of unconfirmed ends sent at once when a client attaches. (An unconfirmed end: a request was
/// ended by the service, and the client has not confirmed that by a `Finish`.) The next part is sent once the
/// client has confirmed the last end of this part.
pub const ENDS_PER_PART: usize = 1024;

/// The hash of a session's secret. The table stores only this; a client that presents the secret may attach.
fn hash(secret: &Secret) -> [u8; 32] {
    hmac_sha256::Hash::hash(&secret.0)
}

fn invalid(text: String) -> v1::Refused {
    v1::Refused { code: v1::RefusedCode::Invalid.into(), text, secret_prefix: 0 }
}

impl Replica {
    pub(super) fn stream_opened(&mut self, stream: StreamId, identity: &str, quota: Usage) {
        self.quotas.stream_opened(identity, quota);
        let identity = identity.into();
        self.streams.insert(stream, ClientStream { identity, ..ClientStream::default() });
    }

    /// Handles the end of a stream. From here on no attach of the stream is valid or acknowledged.
    pub(super) fn stream_closed(&mut self, stream: StreamId, cause: StreamCloseCause) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        self.quotas.stream_closed(&closed.identity);
        let now = self.clock.now();
        let cause = if self.is(Mutant::LingerOnTimeOut) { StreamCloseCause::Client } else { cause };
        for session in closed.sessions {
            let Some(lease) = self.book.lease_mut(session) else { continue };
            lease.attached = Attached::Nowhere;
            match cause {
                StreamCloseCause::Client if !lease.linger.is_zero() => {
                    let attach = lease.attach;
                    self.expiry.closed_by_client(session, attach);
                }
                // Such a close must end no session (P9). The client gets its ttl to reconnect.
                StreamCloseCause::Service => lease.deadline = lease.deadline.max(now + lease.ttl),
                StreamCloseCause::Client => {}
            }
        }
    }

    /// Ends a stream whose client has sent nothing for a while, unless it has a session, or may get one from
    /// what waits for this node to lead.
    pub(super) fn stream_silent(&mut self, stream: StreamId) {
        if self.lead.is_coming() {
            return;
        }
        if self.streams.get(&stream).is_some_and(|open| open.sessions.is_empty()) {
            let text = "the stream had no session for a while; open another one for the next session";
            self.outputs.push(Output::EndStream(stream, self.stream_end(v1::StreamEndReason::Idle, text)));
        }
    }

    /// Ends all streams and calls.
    pub(super) fn end_streams(&mut self, reason: v1::StreamEndReason, text: &str) {
        self.flush_streams();
        let end = self.stream_end(reason, text);
        for (stream, open) in std::mem::take(&mut self.streams) {
            for session in open.sessions {
                if let Some(lease) = self.book.lease_mut(session) {
                    lease.attached = Attached::Nowhere;
                }
            }
            self.outputs.push(Output::EndStream(stream, end.clone()));
        }
        self.end_calls(&end);
        self.end_parked();
    }

    /// The last item of a stream. It names the leader only if another node leads and is alive: a redirect to
    /// a dead node costs a client more time than a search of its own.
    pub(super) fn stream_end(&self, reason: v1::StreamEndReason, text: &str) -> v1::StreamEnd {
        let leader = self.follows().and_then(|leader| self.clients.get(&leader)).cloned();
        let term = leader.as_ref().map_or(0, |_| self.engine.term());
        v1::StreamEnd { reason: reason.into(), text: text.into(), leader: leader.unwrap_or_default(), term }
    }

    /// Sends the items of this turn, and the list of nodes to streams that have not received it. Visits only
    /// streams with something new, unless the list has changed: there may be as many as clients.
    pub(super) fn flush_streams(&mut self) {
        let version = (self.members.at, self.addresses_seen);
        let mut ids = std::mem::take(&mut self.unflushed);
        if self.flushed_nodes != Some(version) {
            self.flushed_nodes = Some(version);
            ids.extend(self.streams.keys());
        }
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            if stream.nodes != Some(version) && !stream.sessions.is_empty() {
                let mut nodes: Vec<u64> = self.members.nodes.keys().copied().collect();
                nodes.sort_by_key(|&node| node != self.config.node);
                // In a single-node cluster the client has the only address already.
                if nodes.len() > 1 || stream.nodes.is_some() {
                    let addresses = nodes.iter().filter_map(|node| self.clients.get(node).cloned()).collect();
                    let what = Some(What::Nodes(v1::Nodes { addresses, at: self.members.at }));
                    stream.items.push(v1::ServerItem { session: 0, seq: 0, what });
                }
                stream.nodes = Some(version);
            }
            if !stream.items.is_empty() {
                self.outputs.push(Output::Items(id, std::mem::take(&mut stream.items)));
            }
        }
    }

    pub(super) fn frame(&mut self, stream: StreamId, requests: Vec<Request>) {
        if !self.streams.contains_key(&stream) {
            return;
        }
        for request in requests {
            self.request(stream, request);
        }
    }

    fn request(&mut self, stream: StreamId, request: Request) {
        match request {
            Request::Command { session, seq, command } => self.command(stream, session, seq, command),
            Request::KeepAlive { session, id } => self.keep_alive(stream, session, id),
            Request::Attach { session, secret, attach } => self.attach(stream, session, &secret, attach),
            Request::Open(open) => {
                let Some(opener) = self.streams.get(&stream) else { return };
                self.open(Requester::Stream(stream), &opener.identity.clone(), &open);
            }
            Request::Denied { request, refused } => match *request {
                Request::Command { session, seq, .. } if !self.is_repetition(session, seq) => {
                    self.refuse(Requester::Stream(stream), session, seq, refused);
                }
                Request::Open(open) if !self.is_opened(&hash(&open.secret)) => {
                    let refused = v1::Refused { secret_prefix: open.secret.prefix(), ..refused };
                    self.refuse(Requester::Stream(stream), SessionId(0), Seq(0), refused);
                }
                repeated => self.request(stream, repeated),
            },
        }
    }

    fn command(&mut self, stream: StreamId, session: SessionId, seq: Seq, command: Command) {
        let from = Requester::Stream(stream);
        let Some(lease) = self.book.lease(session) else {
            return self.rounds.ask(PendingRead::Unknown { from, session, seq });
        };
        if lease.attached != Attached::Stream(stream) {
            return self.not_attached(stream, session, seq);
        }
        if let Some(sender) = self.streams.get(&stream) {
            self.queue_command(from, &sender.identity.clone(), session, seq, command);
        }
    }

    /// Queues a command of a client that may send one, within its quota.
    pub(super) fn queue_command(
        &mut self,
        from: Requester,
        identity: &Arc<str>,
        session: SessionId,
        seq: Seq,
        mut command: Command,
    ) {
        if let Command::Settle { target, .. } = &command
            && self.table.rules() < limits::RULES_WITH_CACHED_HOLDS
        {
            // Older nodes can't read it in the log. There are no cached holds before all nodes can (V1).
            let refused = answer::refused(&Rejection::NotHeld { target: *target });
            let what = Some(What::Refused(refused));
            return self.tell(from, v1::ServerItem { session: session.0, seq: seq.0, what });
        }
        let is_repetition = self.is_repetition(session, seq);
        let reserved = match self.reserve(identity, &command, is_repetition) {
            Ok(reserved) => reserved,
            Err(text) => return self.refuse_over_quota(from, session, seq, text, 0),
        };
        if let Some(lease) = self.book.lease_mut(session) {
            lease.queued_through = lease.queued_through.max(seq);
            lease.ending |= matches!(command, Command::CloseSession { .. });
        }
        if let Command::Acquire(it) = &mut command {
            let asked = it.spare_tokens;
            it.spare_tokens = self.token_pace.allow(asked, &self.table, self.wall, self.lease_now);
        }
        let command = self.mutated(command);
        let proposal = Proposal { command, origin: Origin::Session { from, session, seq }, reserved };
        if self.is(Mutant::WrongQueueOrder) {
            return self.queue.push_front(proposal);
        }
        self.queue.push_back(proposal);
    }

    /// Whether a session with this secret exists, or is queued.
    pub(super) fn is_opened(&self, secret_hash: &[u8; 32]) -> bool {
        self.table.has_secret(secret_hash) || self.quotas.is_opening(secret_hash)
    }

    /// Whether a command of a session was queued or applied before. If it is applied again, it changes
    /// nothing (R5).
    fn is_repetition(&self, session: SessionId, seq: Seq) -> bool {
        self.table.has_seen(session, seq)
            || self.book.lease(session).is_some_and(|lease| seq <= lease.queued_through)
    }

    /// Applies a mutant's fault, if one is set.
    fn mutated(&self, mut command: Command) -> Command {
        let is_live = |session: SessionId, seq: u64| self.table.request(session, Seq(seq)).is_some();
        match &mut command {
            Command::Acquire(it) if self.is(Mutant::DedupForgotten) && is_live(it.session, it.seq.0) => {
                it.seq = Seq(it.seq.0 + 1);
            }
            Command::Finish { session, target, .. } if self.is(Mutant::FinishEndsAny) => {
                let later = (target.0..target.0 + 16).rev().find(|&seq| is_live(*session, seq));
                *target = later.map_or(*target, Seq);
            }
            _ => {}
        }
        command
    }

    fn keep_alive(&mut self, stream: StreamId, session: SessionId, id: u64) {
        let from = Requester::Stream(stream);
        let Some(lease) = self.book.lease(session) else {
            return self.rounds.ask(PendingRead::Unknown { from, session, seq: Seq(0) });
        };
        if lease.attached != Attached::Stream(stream) {
            return self.not_attached(stream, session, Seq(0));
        }
        if self.renew(session) {
            self.rounds.ask(PendingRead::KeepAlive { from, session, id });
        }
    }

    /// Renews the lease for a sign of life, unless the session's end is proposed.
    pub(super) fn renew(&mut self, session: SessionId) -> bool {
        let (now, late) = (self.clock.now(), self.is(Mutant::KeepAliveAfterEnd));
        let Some(lease) = self.book.lease_mut(session).filter(|lease| !lease.ending || late) else {
            return false;
        };
        self.activity.kept_alive(lease.deadline.saturating_sub(now), lease.ttl);
        lease.deadline = lease.deadline.max(now + lease.ttl);
        true
    }

    fn not_attached(&mut self, stream: StreamId, session: SessionId, seq: Seq) {
        let text =
            format!("session {session} is not attached to this stream; attach it first, with its secret");
        self.refuse(Requester::Stream(stream), session, seq, invalid(text));
    }

    fn refuse_over_quota(
        &mut self,
        from: Requester,
        session: SessionId,
        seq: Seq,
        text: String,
        secret_prefix: u64,
    ) {
        self.outputs.push(Output::OverQuota(from, text.clone()));
        let refused = v1::Refused { code: v1::RefusedCode::Limit.into(), text, secret_prefix };
        self.refuse(from, session, seq, refused);
    }

    fn refuse(&mut self, to: Requester, session: SessionId, seq: Seq, refused: v1::Refused) {
        self.tell(to, v1::ServerItem { session: session.0, seq: seq.0, what: Some(What::Refused(refused)) });
    }

    pub(super) fn open(&mut self, from: Requester, identity: &Arc<str>, open: &Open) {
        let new = open.session(hash(&open.secret), identity);
        let secret_prefix = open.secret.prefix();
        let reserved = match self.reserve_session(identity, &new) {
            Ok(reserved) => reserved,
            Err(text) => return self.refuse_over_quota(from, SessionId(0), Seq(0), text, secret_prefix),
        };
        let origin = Origin::Open { from, attach: open.attach, secret_prefix, received: self.clock.now() };
        self.quotas.session_queued(new.secret_hash);
        self.queue.push_back(Proposal { command: Command::OpenSession(new), origin, reserved });
    }

    fn attach(&mut self, stream: StreamId, session: SessionId, secret: &Secret, attach: u64) {
        let Some(open) = self.streams.get(&stream) else { return };
        let admitted = self.admits(Requester::Stream(stream), &open.identity.clone(), session, secret);
        if admitted && self.claim(stream, session, attach) && self.renew(session) {
            self.rounds.ask(PendingRead::Attach { stream, session, attach });
        }
    }

    /// Whether this client may use the session: it has its secret and the right identity. Refuses the request
    /// if not.
    pub(super) fn admits(
        &mut self,
        from: Requester,
        identity: &str,
        session: SessionId,
        secret: &Secret,
    ) -> bool {
        let unchecked = self.is(Mutant::SecretUnchecked);
        let Some(known) = self.table.secret_hash(session) else {
            self.rounds.ask(PendingRead::Unknown { from, session, seq: Seq(0) });
            return false;
        };
        let refused = if *known != hash(secret) && !unchecked {
            invalid(format!("the secret is not the one that session {session} was opened with"))
        } else if !self.table.admits(session, identity) {
            answer::refused(&Rejection::OtherIdentity { session })
        } else {
            return true;
        };
        self.refuse(from, session, Seq(0), refused);
        false
    }

    /// Attaches the session to this stream and returns true; from here on, requests from the session's older
    /// streams are refused. Returns false if the stream has ended, or if an attach with this number or a
    /// higher one was received before (a repetition on the same stream is accepted, unless calls have taken
    /// the session over meanwhile).
    pub(super) fn claim(&mut self, stream: StreamId, session: SessionId, attach: u64) -> bool {
        let any = self.is(Mutant::OlderAttachAccepted);
        let Some(open) = self.streams.get_mut(&stream) else { return false };
        let Some(lease) = self.book.lease_mut(session) else { return false };
        let repeated = attach == lease.attach && lease.attached == Attached::Stream(stream);
        if attach <= lease.attach && !repeated && !any {
            return false;
        }
        lease.attach = attach;
        open.sessions.insert(session);
        self.unflushed.insert(stream);
        self.attach_to(session, Attached::Stream(stream));
        true
    }

    /// Acknowledges a keep-alive or attach, unless the session is ending, or is not attached to the stream
    /// any more. Answers `SessionGone` if the session has ended.
    pub(super) fn acknowledge(
        &mut self,
        from: Requester,
        session: SessionId,
        what: impl FnOnce(Notices) -> What,
    ) {
        let late = self.is(Mutant::KeepAliveAfterEnd);
        let table = &self.table;
        let Some(lease) = self.book.lease_mut(session) else {
            let what = Some(What::SessionGone(v1::SessionGone {}));
            return self.tell(from, v1::ServerItem { session: session.0, seq: 0, what });
        };
        let may = match from {
            Requester::Stream(stream) => {
                lease.attached == Attached::Stream(stream) && (!lease.ending || late)
            }
            Requester::Call(_) => true,
        };
        if may {
            // A hold that was settled or downgraded is not recalled any more.
            lease.recalled.retain(|&seq| table.is_recalled(session, seq));
            let numbers = |seqs: &BTreeSet<Seq>| seqs.iter().map(|seq| seq.0).collect();
            let notices = Notices { revoked: numbers(&lease.revoked), recalled: numbers(&lease.recalled) };
            self.tell(from, v1::ServerItem { session: session.0, seq: 0, what: Some(what(notices)) });
        }
    }

    /// Sends the ends that the client has not confirmed, after every attach (R3), in parts: the next part is
    /// sent once the client has confirmed the last end of this one. So the frame that acknowledges an attach
    /// stays small, even if thousands of requests have ended.
    pub(super) fn tell_unconfirmed_ends(&mut self, stream: StreamId, session: SessionId, after: Seq) {
        let part = if self.is(Mutant::EndsToldAtOnce) { usize::MAX } else { self.config.ends_per_part };
        let attached = Attached::Stream(stream);
        let Some(lease) = self.book.lease_mut(session).filter(|it| it.attached == attached) else { return };
        let ends: Vec<_> = self.table.unconfirmed_ends(session, after).take(part).collect();
        lease.ends_sent_to = ends.last().filter(|_| ends.len() == part).map(|&(seq, _)| seq);
        for (seq, end) in ends {
            let what = Some(What::Ended(answer::finished(end)));
            self.tell(Requester::Stream(stream), v1::ServerItem { session: session.0, seq: seq.0, what });
        }
    }

    /// Handles a confirmed end: sends the next part if this was the last end of the current one.
    pub(super) fn end_confirmed(&mut self, stream: StreamId, session: SessionId, target: Seq) {
        let Some(lease) = self.book.lease_mut(session) else { return };
        if lease.ends_sent_to.take_if(|last| *last == target).is_some() {
            self.tell_unconfirmed_ends(stream, session, target);
        }
    }
}
