//! `SessionCall`: one request of a session whose client keeps no stream open.
//!
//! Responsible for: a call gets the answers that a stream would get, and no answers meant for other callers.
//! The calls of a session share a stream to the replica (`shared_stream.rs`), which is found only by the
//! session's secret. Clients do not see this stream.

mod shared_stream;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Command, SessionId};
use lockkeeper_replica::Event;
use lockkeeper_wire::request::{ItemError, Open, Request, Secret};
use lockkeeper_wire::v1::{self, server_item::What};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::ClientSessions;
use crate::front::callers::Caller;
use crate::front::statuses::{PATIENCE, shuts_down};
use crate::front::transport::Arriving;
#[cfg(test)]
pub(in crate::front) use shared_stream::IDLE_MAX;
use shared_stream::{
    Attachment, AwaitingCall, Awaits, CallAnswer, CallId, CallProgress, SharedStreamKey, is_queued,
};
pub(super) use shared_stream::{SharedStream, SharedStreams};

/// The longest wait for a queued request in one call: proxies close connections that are silent for much
/// longer.
pub(in crate::front) const POLL_MAX: Duration = Duration::from_secs(60);
/// If a call takes longer than this, the shared stream is closed after it. Closing gives the session its
/// whole ttl from then on: part of the ttl that the keep-alive gave has passed by the time the client gets
/// its answer.
pub(in crate::front) const SHORT_CALL: Duration = Duration::from_millis(100);

/// A call's request, and the answer that the call waits for.
struct Asked {
    session: SessionId,
    secret: Secret,
    request: Request,
    awaits: Awaits,
}

impl Asked {
    fn new(session: u64, secret: &[u8], request: Request) -> Result<Self, Status> {
        let shown = || Secret::from_wire(secret).map_err(|why| Status::invalid_argument(why.to_string()));
        let (secret, awaits) = match &request {
            Request::Open(open) if open.linger_ms > 0 => {
                return Err(Status::invalid_argument(format!(
                    "`linger_ms` is {}, but a session without a stream can't linger: 0 is allowed",
                    open.linger_ms
                )));
            }
            Request::Open(open) => (open.secret, Awaits::Opened),
            Request::KeepAlive { .. } => (shown()?, Awaits::KeptAlive),
            Request::Command { seq, command: Command::Finish { target, .. }, .. } => {
                (shown()?, Awaits::End { seq: seq.0, target: target.0 })
            }
            Request::Command { seq, .. } => (shown()?, Awaits::Answer(seq.0)),
            Request::Attach { .. } | Request::Denied { .. } => {
                return Err(Status::invalid_argument(
                    "`item` is an `attach`, which every call does by itself",
                ));
            }
        };
        // A session that is being opened has no id yet.
        let session = if awaits == Awaits::Opened { 0 } else { session };
        Ok(Self { session: SessionId(session), secret, request, awaits })
    }

    fn key(&self, caller: &Caller) -> SharedStreamKey {
        SharedStreamKey { identity: caller.identity.clone(), secret: self.secret.0 }
    }

    /// The requests to send on the shared stream: an attach, unless the session is attached; a keep-alive,
    /// whose answer proves that this node leads; and the call's own request. If that opens a session, the
    /// keep-alive follows once the session is open.
    fn frame(self, number: u64, attachment: Attachment) -> Vec<Request> {
        let session = self.session;
        let Attachment { number: attach, session: attached } = attachment;
        let is_attached = attached == Some(session);
        let attach_it = (!is_attached).then_some(Request::Attach { session, secret: self.secret, attach });
        let keep_alive = Request::KeepAlive { session, id: number };
        match self.request {
            Request::Open(open) => vec![Request::Open(Open { attach, ..open })],
            Request::KeepAlive { .. } => attach_it.into_iter().chain([keep_alive]).collect(),
            request => attach_it.into_iter().chain([keep_alive, request]).collect(),
        }
    }
}

/// A call in progress.
struct CallInProgress<'sessions> {
    sessions: &'sessions ClientSessions,
    stream: Arc<SharedStream>,
    id: CallId,
    begun: Instant,
    poll_until: Instant,
    answer: oneshot::Receiver<CallAnswer>,
    /// Whether the call was answered within [`SHORT_CALL`] and no other answer to it will come.
    is_answered: bool,
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        self.sessions.leave_shared_stream(&self.stream, self.id, self.is_answered);
    }
}

impl ClientSessions {
    /// Answers a `SessionCall` on this node.
    pub(in crate::front) async fn session_call(
        &self,
        caller: &Caller,
        arriving: &Arriving,
        call: v1::SessionCallRequest,
    ) -> Result<v1::SessionCallResponse, Status> {
        self.replica.check_serving()?;
        let begun = Instant::now();
        let poll = Duration::from_millis(call.poll_ms);
        if poll > POLL_MAX {
            return Err(Status::invalid_argument(format!(
                "`poll_ms` is {}, at most {} are allowed; call again to wait longer",
                call.poll_ms,
                POLL_MAX.as_millis()
            )));
        }
        let item = call.item.ok_or_else(|| Status::invalid_argument("`item` is missing"))?;
        let session = item.session;
        let sampled = self.traced.as_ref().map(|traced| traced.sampled(std::slice::from_ref(&item)));
        let request = match Request::try_from(item) {
            Ok(request) => request,
            Err(ItemError::Refused { session, seq, refused }) => {
                let item = v1::ServerItem { session, seq, what: Some(What::Refused(refused)) };
                return Ok(v1::SessionCallResponse { item: Some(item), ..Default::default() });
            }
            Err(ItemError::Malformed(why)) => return Err(Status::invalid_argument(why.to_string())),
        };
        let asked = Asked::new(session, &call.secret, request)?;
        let mut call = self.begin_call(caller, &asked, begun, poll)?;
        // The access files may have changed since the call was authorized.
        if let Some(refusal) = self.callers.ended(caller) {
            return Err(Status::permission_denied(refusal));
        }
        let stream = &call.stream;
        let mut waiting_number = None;
        poll_fn(|cx| self.replica.inbox.poll_room(&stream.source, &mut waiting_number, cx)).await;
        if stream.awaits_answer(call.id) {
            let requests = asked.frame(call.id.number, stream.attachment());
            if let Some((traced, sampled)) = self.traced.as_ref().zip(sampled) {
                traced.arrived(stream.id, sampled, &requests);
            }
            self.replica.push_from(&stream.source, Event::Frame(stream.id, requests));
        }
        arriving.handed_on();
        call.answer().await
    }

    fn begin_call(
        &self,
        caller: &Caller,
        asked: &Asked,
        begun: Instant,
        poll: Duration,
    ) -> Result<CallInProgress<'_>, Status> {
        let (sender, answer) = oneshot::channel();
        let id = CallId { session: asked.session.0, number: self.replica.next_id() };
        let poll_until = begun + poll;
        let call = AwaitingCall {
            caller: caller.clone(),
            awaits: asked.awaits,
            poll_until,
            progress: CallProgress::default(),
            sender,
        };
        let stream = self.join_shared_stream(asked.key(caller), id, call)?;
        Ok(CallInProgress { sessions: self, stream, id, begun, poll_until, answer, is_answered: false })
    }
}

impl CallInProgress<'_> {
    /// Waits for the answer. While the request is queued, waits until the end of the poll at most.
    async fn answer(&mut self) -> CallAnswer {
        let answer = self.wait().await;
        let is_last = answer.as_ref().is_ok_and(|answer| !answer.item.as_ref().is_some_and(is_queued));
        self.is_answered = is_last && self.begun.elapsed() < SHORT_CALL;
        answer
    }

    async fn wait(&mut self) -> CallAnswer {
        if self.poll_until > self.begun {
            if let Ok(answer) = timeout_at(self.poll_until, &mut self.answer).await {
                return answer.unwrap_or_else(|_| Err(shuts_down()));
            }
            if let Some(queued) = self.stream.take_queued(self.id) {
                return Ok(queued);
            }
        }
        match timeout_at(self.poll_until + PATIENCE, &mut self.answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(shuts_down())),
            Err(_) => Err(Status::deadline_exceeded(
                "no answer in time: no node leads, or this one can't reach a majority; whether the call had an effect is \
                 unknown, repeat it",
            )),
        }
    }
}
