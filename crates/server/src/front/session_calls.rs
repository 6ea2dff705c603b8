//! `SessionCall`: a request of a session whose client keeps no stream open.
//!
//! Responsible for: a call gets the answers that a stream would get, and no other caller's. The calls of a session that
//! are in progress share a stream to the replica, which their clients do not see; it is found only by the session's
//! secret. It ends with the last of them, as one that this node closes: the session then has its whole ttl.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{Command, SessionId};
use lockkeeper_replica::{Event, StreamId};
use lockkeeper_wire::request::{ItemError, Open, Request, Secret};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tonic::Status;

use super::ask::{PATIENCE, not_leader, shuts_down};
use super::caller::Caller;
use super::connection::Starting;
use super::{Front, OpenStream};
use crate::access::Identity;
use crate::inbox::Source;
use crate::places::TakenPlace;

/// The path of the call.
pub(super) const SESSION_CALL: &str = "/lockkeeper.v1.Lockkeeper/SessionCall";
/// The longest wait for a queued request in one call: proxies close connections that are silent for much longer.
pub(super) const POLL_MAX: Duration = Duration::from_secs(60);

/// Who shares a stream: the calls of a caller that show the same secret, which is of one session. The calls that open it are
/// among them: on a stream of their own they would take the session from the stream of the others.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedStreamKey {
    identity: String,
    secret: [u8; 16],
}

/// A stream to the replica for the calls of a session that are in progress.
pub(super) struct SharedStream {
    id: StreamId,
    key: SharedStreamKey,
    source: Source,
    /// Of the call that has opened it.
    caller: Caller,
    _place: TakenPlace<Identity>,
    state: Mutex<SharedState>,
}

#[derive(Default)]
struct SharedState {
    calls: BTreeMap<u64, AwaitingCall>,
    /// The calls that wait for the answer to a command, by session and seq.
    by_command: BTreeMap<(u64, u64), Vec<u64>>,
    /// The session that is attached to the stream.
    attached: Option<u64>,
    /// The requests of that session that ended without a command, and are not confirmed.
    unconfirmed: BTreeMap<u64, v1::End>,
    /// Why the stream has ended.
    ended: Option<Status>,
    /// The last call is over.
    is_closed: bool,
}

struct AwaitingCall {
    caller: Caller,
    /// 0 for a call that opens one.
    session: u64,
    awaits: Awaits,
    answers: UnboundedSender<Result<v1::ServerItem, Status>>,
}

impl AwaitingCall {
    fn answer(&self, answer: Result<v1::ServerItem, Status>) {
        // Fails if the caller has gone.
        let _ = self.answers.send(answer);
    }
}

impl SharedState {
    fn is_open(&self) -> bool {
        self.ended.is_none() && !self.is_closed
    }

    fn insert(&mut self, number: u64, call: AwaitingCall) {
        if let Awaits::Answer(seq) | Awaits::End(seq) = call.awaits {
            self.by_command.entry((call.session, seq)).or_default().push(number);
        }
        self.calls.insert(number, call);
    }

    fn remove(&mut self, number: u64) -> Option<AwaitingCall> {
        let call = self.calls.remove(&number)?;
        if let Awaits::Answer(seq) | Awaits::End(seq) = call.awaits
            && let Entry::Occupied(mut numbers) = self.by_command.entry((call.session, seq))
        {
            numbers.get_mut().retain(|it| *it != number);
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
        Some(call)
    }

    /// Takes out the calls that `concerns` selects, and gives them their last answer.
    fn end(&mut self, concerns: impl Fn(&AwaitingCall) -> bool, answer: &Result<v1::ServerItem, Status>) {
        let ended: Vec<u64> =
            self.calls.iter().filter(|(_, call)| concerns(call)).map(|(number, _)| *number).collect();
        for call in ended.into_iter().filter_map(|number| self.remove(number)) {
            call.answer(answer.clone());
        }
    }

    /// Hands an answer of the replica to the calls that it concerns. Calls with a final answer are taken out, so that a crowd of
    /// them does not get each other's.
    fn deliver(&mut self, item: v1::ServerItem) {
        let session = item.session;
        match &item.what {
            Some(What::KeptAlive(it)) => {
                if let Some(call) = self.calls.get(&it.id) {
                    call.answer(Ok(item));
                }
            }
            Some(What::Attached(_)) => self.attached = Some(session),
            Some(What::Opened(_)) => {
                self.attached = Some(session);
                for call in self.calls.values().filter(|call| call.awaits == Awaits::Opened) {
                    call.answer(Ok(item.clone()));
                }
            }
            Some(What::SessionGone(_)) => {
                let is_own = self.attached.is_none_or(|attached| attached == session);
                let concerns = |call: &AwaitingCall| call.session == session || (call.session == 0 && is_own);
                self.end(concerns, &Ok(item));
                if self.attached == Some(session) {
                    // The secret may open another session on this stream, whose requests begin with 1 again.
                    self.attached = None;
                    self.unconfirmed.clear();
                }
            }
            Some(What::Refused(_)) if item.seq == 0 => {
                self.end(|call| call.session == session, &Ok(item));
            }
            Some(What::Nodes(_) | What::StreamEnd(_)) | None => {}
            Some(what) => {
                match what {
                    What::Ended(it) => drop(self.unconfirmed.insert(item.seq, it.end())),
                    What::Finished(_) => drop(self.unconfirmed.remove(&item.seq)),
                    _ => {}
                }
                let is_finished = matches!(what, What::Finished(_));
                let numbers = self.by_command.get(&(session, item.seq)).into_iter().flatten();
                for call in numbers.filter_map(|number| self.calls.get(number)) {
                    if is_finished || matches!(call.awaits, Awaits::Answer(_)) {
                        call.answer(Ok(item.clone()));
                    }
                }
            }
        }
    }
}

/// The answer that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaits {
    Opened,
    KeptAlive,
    /// The answer to the command with this seq.
    Answer(u64),
    /// The answer to the `finish` with this seq. The request that it ends may have answers of its own under the same seq.
    End(u64),
}

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Hands the replica's answers to the calls that they concern.
    pub(super) fn deliver(&self, items: Vec<v1::ServerItem>) {
        let mut state = self.lock();
        items.into_iter().for_each(|item| state.deliver(item));
    }

    /// Ends the calls whose callers `refusal` refuses: the files may have changed since they began.
    pub(super) fn end_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        let mut state = self.lock();
        let refused = state.calls.iter().filter_map(|(number, call)| Some((*number, refusal(&call.caller)?)));
        for (number, text) in refused.collect::<Vec<_>>() {
            if let Some(call) = state.remove(number) {
                call.answer(Err(Status::permission_denied(text)));
            }
        }
    }

    /// The requests of the session that ended without a command.
    fn unconfirmed(&self, session: u64) -> Vec<v1::EndedRequest> {
        let state = self.lock();
        let is_own = state.attached == Some(session);
        let ended = state.unconfirmed.iter().filter(|_| is_own);
        ended.map(|(seq, end)| v1::EndedRequest { seq: *seq, end: (*end).into() }).collect()
    }

    /// Ends all calls in progress.
    pub(super) fn end(&self, end: &v1::StreamEnd) {
        let mut state = self.lock();
        let status = match end.reason() {
            StreamEndReason::NotLeader | StreamEndReason::Unspecified => {
                not_leader(format!("this node does not lead: {}", end.text), &end.leader)
            }
            StreamEndReason::Shutdown => shuts_down(),
            StreamEndReason::Denied => Status::permission_denied(end.text.clone()),
            StreamEndReason::Protocol | StreamEndReason::TooSlow => {
                Status::invalid_argument(end.text.clone())
            }
        };
        state.ended = Some(status.clone());
        state.end(|_| true, &Err(status));
    }
}

/// What a call asks for.
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
            Request::Command { seq, command: Command::Finish { .. }, .. } => (shown()?, Awaits::End(seq.0)),
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
        let identity = caller.identity.as_str().to_owned();
        SharedStreamKey { identity, secret: self.secret.0 }
    }

    /// The requests on the stream. They attach the session, unless it is attached, ask for a proof that this node leads, and
    /// ask for what the call asks for. A call that opens a session asks for the proof once it is open.
    fn frame(self, number: u64, stream: StreamId, is_attached: bool) -> Vec<Request> {
        let session = self.session;
        // Attaches of later streams have higher numbers.
        let attach = Request::Attach { session, secret: self.secret, attach: stream.0 };
        let attach = (!is_attached).then_some(attach);
        let keep_alive = Request::KeepAlive { session, id: number };
        match self.request {
            Request::Open(open) => vec![Request::Open(Open { attach: stream.0, ..open })],
            Request::KeepAlive { .. } => attach.into_iter().chain([keep_alive]).collect(),
            request => attach.into_iter().chain([keep_alive, request]).collect(),
        }
    }
}

/// A call in progress.
struct CallInProgress {
    front: Arc<Front>,
    stream: Arc<SharedStream>,
    number: u64,
    awaits: Awaits,
    answers: UnboundedReceiver<Result<v1::ServerItem, Status>>,
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        let stream = &self.stream;
        let mut state = stream.lock();
        state.remove(self.number);
        if !state.calls.is_empty() || std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        drop(state);
        let mut registry = self.front.registry();
        if registry.shared_streams.get(&stream.key).is_some_and(|known| known.id == stream.id) {
            registry.shared_streams.remove(&stream.key);
        }
        drop(registry);
        self.front.push_from(&stream.source, Event::StreamClosed { stream: stream.id, by_client: false });
        self.front.forget_stream(stream.id);
    }
}

/// A call whose request was not handed to the replica yet: no drain barrier passes meanwhile.
pub(super) struct Arriving(Mutex<Option<Starting>>);

impl Arriving {
    pub(super) fn new(starting: Starting) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(starting))))
    }

    /// The request was handed on, or is another node's.
    pub(super) fn handed_on(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Front {
    /// Answers a `SessionCall` on this node.
    pub(super) async fn session_call(
        self: &Arc<Self>,
        caller: &Caller,
        arriving: &Arriving,
        call: v1::SessionCallRequest,
    ) -> Result<v1::SessionCallResponse, Status> {
        self.check_serving()?;
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
        let mut call = self.begin_call(caller, &asked)?;
        // The files may have changed since the call was authorized.
        if let Some(refusal) = self.ended(caller) {
            return Err(Status::permission_denied(refusal));
        }
        let mut waiting_number = None;
        poll_fn(|cx| self.inbox.poll_room(&call.stream.source, &mut waiting_number, cx)).await;
        if call.is_waiting() {
            let is_attached = call.stream.lock().attached == Some(asked.session.0);
            let requests = asked.frame(call.number, call.stream.id, is_attached);
            if let Some((traced, sampled)) = self.traced.as_ref().zip(sampled) {
                traced.arrived(call.stream.id, sampled, &requests);
            }
            self.push_from(&call.stream.source, Event::Frame(call.stream.id, requests));
        }
        arriving.handed_on();
        call.answer(begun + poll, begun + poll + PATIENCE).await
    }

    fn begin_call(self: &Arc<Self>, caller: &Caller, asked: &Asked) -> Result<CallInProgress, Status> {
        let (sender, answers) = unbounded_channel();
        let number = self.next_id();
        let key = asked.key(caller);
        let known = self.registry().shared_streams.get(&key).cloned();
        let stream = match known.filter(|stream| stream.lock().is_open()) {
            Some(stream) => stream,
            None => self.open_shared_stream(caller, key)?,
        };
        let session = asked.session.0;
        let call = AwaitingCall { caller: caller.clone(), session, awaits: asked.awaits, answers: sender };
        stream.lock().insert(number, call);
        Ok(CallInProgress { front: self.clone(), stream, number, awaits: asked.awaits, answers })
    }

    fn open_shared_stream(&self, caller: &Caller, key: SharedStreamKey) -> Result<Arc<SharedStream>, Status> {
        let place = self.stream_place(caller)?;
        let id = StreamId(self.next_id());
        let stream = Arc::new(SharedStream {
            id,
            key: key.clone(),
            source: Source { caller: caller.identity.clone(), lane: id.0 },
            caller: caller.clone(),
            _place: place,
            state: Mutex::default(),
        });
        self.registry().shared_streams.insert(key, stream.clone());
        self.register_stream(id, &stream.source, OpenStream::Shared(stream.clone()));
        Ok(stream)
    }
}

impl CallInProgress {
    /// Whether it has no last answer yet. The stream ends with the last call that has none.
    fn is_waiting(&self) -> bool {
        self.stream.lock().calls.contains_key(&self.number)
    }

    /// Waits for the answer, for a queued request until `poll_until`, and at most until `until`.
    async fn answer(
        &mut self,
        poll_until: Instant,
        until: Instant,
    ) -> Result<v1::SessionCallResponse, Status> {
        let mut answer = None;
        // The seqs of the holds under a break, once the replica has proven that it leads.
        let mut proven = None;
        loop {
            let limit =
                if proven.is_some() && answer.as_ref().is_some_and(is_queued) { poll_until } else { until };
            let received = tokio::time::timeout_at(limit, self.answers.recv()).await;
            let is_late = received.is_err();
            match received {
                Ok(Some(item)) => {
                    let item = item?;
                    match &item.what {
                        Some(What::SessionGone(_) | What::Refused(_)) => {
                            return Ok(v1::SessionCallResponse { item: Some(item), ..Default::default() });
                        }
                        Some(What::KeptAlive(it)) => {
                            proven = Some(it.revoked.clone());
                            if self.awaits == Awaits::KeptAlive {
                                answer = Some(item);
                            }
                        }
                        Some(What::Opened(_)) => {
                            if answer.is_none() {
                                // The answer may be to an earlier call with the same secret, and no proof for this one.
                                let session = SessionId(item.session);
                                let keep_alive = Request::KeepAlive { session, id: self.number };
                                let (stream, front) = (&self.stream, &self.front);
                                front.push_from(&stream.source, Event::Frame(stream.id, vec![keep_alive]));
                            }
                            answer = Some(item);
                        }
                        _ => answer = Some(item),
                    }
                }
                Ok(None) => return Err(shuts_down()),
                Err(_) => {}
            }
            if proven.is_some() && answer.as_ref().is_some_and(|item| is_late || !is_queued(item)) {
                let ended = self.stream.unconfirmed(answer.as_ref().map_or(0, |item| item.session));
                return Ok(v1::SessionCallResponse {
                    item: answer,
                    revoked: proven.unwrap_or_default(),
                    ended,
                });
            }
            if is_late {
                return Err(Status::deadline_exceeded(
                    "no answer in time: no node leads, or this one can't reach a majority; whether the call had an effect \
                     is unknown, repeat it",
                ));
            }
        }
    }
}

fn is_queued(item: &v1::ServerItem) -> bool {
    matches!(item.what, Some(What::Queued(_)))
}
