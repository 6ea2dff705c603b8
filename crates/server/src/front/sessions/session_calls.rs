//! `SessionCall`: one request of a session whose client keeps no stream open.
//!
//! Responsible for: a call waits for its answer; and until the end of its poll for a queued request, or for a
//! change of its session's requests.

use std::future::poll_fn;
use std::time::Duration;

use lockkeeper_core::Seq;
use lockkeeper_places::TakenPlace;
use lockkeeper_replica::{CallId, CallRequest, Event, SessionCall, SessionPoll};
use lockkeeper_wire::request::{ItemError, Request, Secret};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::{ClientSessions, StreamRegistry};
use crate::access::Identity;
use crate::front::callers::Caller;
use crate::front::statuses::{PATIENCE, not_leader, shuts_down};
use crate::front::transport::Arriving;
use crate::inbox::Source;

/// The longest wait in one call: proxies close connections that are silent for much longer.
pub(in crate::front) const POLL_MAX: Duration = Duration::from_secs(60);
/// The most numbers in each list of a keep-alive.
const POLLED_MAX: usize = 4_096;

/// The replica's answer to a call.
pub(in crate::front) struct CallAnswer {
    pub(in crate::front) response: v1::SessionCallResponse,
    /// Whether the call waits at the replica for a later answer.
    pub(in crate::front) waits: bool,
}

/// A call that waits for its answer.
pub(in crate::front) struct WaitingCall {
    caller: Caller,
    /// The end of the poll. Before this time, an answer that a call waits does not complete it.
    poll_until: Instant,
    /// The last such answer.
    so_far: Option<v1::SessionCallResponse>,
    sender: oneshot::Sender<Result<CallAnswer, Status>>,
    _place: TakenPlace<Identity>,
}

impl WaitingCall {
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }
}

/// A call in progress. Dropping it cancels the call.
struct CallInProgress<'sessions> {
    sessions: &'sessions ClientSessions,
    source: Source,
    id: CallId,
    begun: Instant,
    poll_until: Instant,
    answer: oneshot::Receiver<Result<CallAnswer, Status>>,
    /// Whether the replica will send no further answer.
    is_over: bool,
}

impl Drop for CallInProgress<'_> {
    fn drop(&mut self) {
        self.sessions.registry().calls.remove(&self.id);
        if !self.is_over {
            self.sessions.replica.push_from(&self.source, Event::CallDropped(self.id));
        }
    }
}

/// The changes that the call asks for.
fn session_poll(call: &v1::SessionCallRequest) -> Result<SessionPoll, Status> {
    let seqs = |name: &str, list: &[u64]| match list.len() {
        0..=POLLED_MAX => Ok(list.iter().copied().map(Seq).collect()),
        count => Err(Status::invalid_argument(format!(
            "`{name}` has {count} numbers, at most {POLLED_MAX} are allowed; a later call may have the others"
        ))),
    };
    let (waiting, known) = (seqs("waiting", &call.waiting)?, seqs("known", &call.known)?);
    Ok(SessionPoll { waiting, known, waits: call.poll_ms > 0 })
}

fn call_request(request: Request, secret: &[u8], asked: SessionPoll) -> Result<CallRequest, Status> {
    let secret = match &request {
        Request::Open(open) if open.linger_ms > 0 => {
            return Err(Status::invalid_argument(format!(
                "`linger_ms` is {}, but a session without a stream can't linger: 0 is allowed",
                open.linger_ms
            )));
        }
        Request::Open(open) => open.secret,
        _ => Secret::from_wire(secret).map_err(|why| Status::invalid_argument(why.to_string()))?,
    };
    let mut call = CallRequest::new(request, secret)
        .ok_or_else(|| Status::invalid_argument("`item` is an `attach`, which every call does by itself"))?;
    match &mut call {
        CallRequest::KeepAlive { poll, .. } => *poll = asked,
        _ if asked.bytes() > 0 => {
            return Err(Status::invalid_argument("`waiting` and `known` are for a `keep_alive` only"));
        }
        _ => {}
    }
    Ok(call)
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
        let poll_time = Duration::from_millis(call.poll_ms);
        if poll_time > POLL_MAX {
            return Err(Status::invalid_argument(format!(
                "`poll_ms` is {}, at most {} are allowed; call again to wait longer",
                call.poll_ms,
                POLL_MAX.as_millis()
            )));
        }
        let poll = session_poll(&call)?;
        let item = call.item.ok_or_else(|| Status::invalid_argument("`item` is missing"))?;
        let sampled = self.traced.as_ref().map(|traced| traced.sampled(std::slice::from_ref(&item)));
        let request = match Request::try_from(item) {
            Ok(request) => call_request(request, &call.secret, poll)?,
            Err(ItemError::Refused { session, seq, refused }) => {
                let item = v1::ServerItem { session, seq, what: Some(What::Refused(refused)) };
                return Ok(v1::SessionCallResponse { item: Some(item), ..Default::default() });
            }
            Err(ItemError::Malformed(why)) => return Err(Status::invalid_argument(why.to_string())),
        };
        let place = self.callers.place("calls of sessions", &self.call_places, caller)?;
        let id = CallId(self.replica.next_id());
        let source = Source { caller: caller.identity.clone(), lane: id.0 };
        let mut waiting_number = None;
        poll_fn(|cx| self.replica.inbox.poll_room(&source, &mut waiting_number, cx)).await;

        let (sender, answer) = oneshot::channel();
        let poll_until = begun + poll_time;
        let waiting = WaitingCall { caller: caller.clone(), poll_until, so_far: None, sender, _place: place };
        self.registry().calls.insert(id, waiting);
        let mut call =
            CallInProgress { sessions: self, source, id, begun, poll_until, answer, is_over: true };
        // The access files may have changed since the call was authorized.
        if let Some(refusal) = self.callers.ended(caller) {
            return Err(Status::permission_denied(refusal));
        }
        if let Some((traced, sampled)) = self.traced.as_ref().zip(sampled) {
            traced.called(id, sampled);
        }
        let quota = self.callers.access.quota(&caller.identity);
        let called = SessionCall { identity: caller.identity.as_str().into(), quota, request };
        self.replica.push_from(&call.source, Event::Called(id, Box::new(called)));
        call.is_over = false;
        arriving.handed_on();
        call.answer().await
    }
}

impl StreamRegistry {
    /// Delivers the replica's answer to a call.
    pub(in crate::front) fn deliver_call(&mut self, id: CallId, answer: CallAnswer) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        if answer.waits && Instant::now() < call.poll_until {
            call.so_far = Some(answer.response);
        } else {
            self.end_call(id, Ok(answer));
        }
    }

    /// Ends a call, unless it has ended.
    pub(in crate::front) fn end_call(&mut self, id: CallId, answer: Result<CallAnswer, Status>) {
        if let Some(call) = self.calls.remove(&id) {
            // Fails only if the caller has gone.
            let _ = call.sender.send(answer);
        }
    }
}

impl CallInProgress<'_> {
    /// Waits for the answer. While the call waits at the replica, waits until the end of the poll at most.
    async fn answer(&mut self) -> Result<v1::SessionCallResponse, Status> {
        let answer = self.wait().await;
        self.is_over = answer.as_ref().is_ok_and(|answer| !answer.waits);
        answer.map(|answer| answer.response)
    }

    async fn wait(&mut self) -> Result<CallAnswer, Status> {
        if self.poll_until > self.begun {
            if let Ok(answer) = timeout_at(self.poll_until, &mut self.answer).await {
                return answer.unwrap_or_else(|_| Err(shuts_down()));
            }
            let so_far = self.sessions.registry().calls.get_mut(&self.id).and_then(|call| call.so_far.take());
            if let Some(response) = so_far {
                return Ok(CallAnswer { response, waits: true });
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

/// The error of a call that the replica has ended.
pub(in crate::front) fn call_ended(end: &v1::StreamEnd) -> Status {
    match end.reason() {
        StreamEndReason::Shutdown => shuts_down(),
        _ => not_leader(format!("this node does not lead: {}", end.text), &end.leader),
    }
}
