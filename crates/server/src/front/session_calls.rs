//! `SessionCall`: a request of a session whose client keeps no stream open.
//!
//! Responsible for: a call gets the answers that a stream would get, and no other caller's. The calls of a session that
//! are in progress share a stream to the replica, which their clients do not see; it is found only by the session's
//! secret. It ends with the last of them, as one that this node closes: the session then has its whole ttl.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::Command;
use lockkeeper_replica::{Event, StreamId};
use lockkeeper_wire::request::{ItemError, Request};
use lockkeeper_wire::v1::{self, StreamEndReason, client_item, server_item::What};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tonic::Status;

use super::Front;
use super::ask::{PATIENCE, not_leader, shuts_down};
use super::caller::Caller;
use super::connection::Starting;
use crate::access::Identity;
use crate::inbox::Source;
use crate::places::TakenPlace;

/// The path of the call.
pub(super) const SESSION_CALL: &str = "/lockkeeper.v1.Lockkeeper/SessionCall";
/// The longest wait for a queued request in one call: proxies close connections that are silent for much longer.
pub(super) const POLL_MAX: Duration = Duration::from_secs(60);

/// Who shares a stream: the caller, the session (0 for one that is being opened), and its secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedStreamKey {
    identity: String,
    session: u64,
    secret: Vec<u8>,
}

/// A stream to the replica for the calls of a session that are in progress.
pub(super) struct SharedStream {
    id: StreamId,
    key: SharedStreamKey,
    source: Source,
    pub(super) caller: Caller,
    _place: TakenPlace<Identity>,
    state: Mutex<SharedState>,
}

#[derive(Default)]
struct SharedState {
    calls: BTreeMap<u64, PendingCall>,
    /// Why the replica has ended the stream.
    ended: Option<Status>,
}

struct PendingCall {
    /// The request whose answers the call waits for; 0: none.
    seq: u64,
    /// It waits for the end of another request, which may have answers of its own under the same seq.
    is_finish: bool,
    answers: UnboundedSender<v1::ServerItem>,
}

/// All streams of calls in progress.
#[derive(Default)]
pub(super) struct SharedStreams {
    by_key: BTreeMap<SharedStreamKey, Arc<SharedStream>>,
    by_id: BTreeMap<StreamId, Arc<SharedStream>>,
}

impl SharedStreams {
    pub(super) fn get(&self, id: StreamId) -> Option<&Arc<SharedStream>> {
        self.by_id.get(&id)
    }

    pub(super) fn all(&self) -> Vec<(StreamId, Caller)> {
        self.by_id.iter().map(|(id, stream)| (*id, stream.caller.clone())).collect()
    }

    pub(super) fn callers(&self) -> impl Iterator<Item = &Caller> {
        self.by_id.values().map(|stream| &stream.caller)
    }

    /// The replica has ended this stream.
    pub(super) fn end(&mut self, id: StreamId, end: &v1::StreamEnd) {
        let Some(stream) = self.by_id.remove(&id) else { return };
        self.by_key.remove(&stream.key);
        let mut state = stream.lock();
        state.ended = Some(match end.reason() {
            StreamEndReason::NotLeader | StreamEndReason::Unspecified => {
                not_leader(format!("this node does not lead: {}", end.text), &end.leader)
            }
            StreamEndReason::Shutdown => shuts_down(),
            StreamEndReason::Denied => Status::permission_denied(end.text.clone()),
            StreamEndReason::Protocol | StreamEndReason::TooSlow => {
                Status::invalid_argument(end.text.clone())
            }
        });
        state.calls.clear();
    }
}

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the replica's answers to the calls that they concern.
    pub(super) fn deliver(&self, items: Vec<v1::ServerItem>) {
        let state = self.lock();
        for item in items {
            let concerns = |number: u64, call: &PendingCall| match &item.what {
                Some(What::KeptAlive(it)) => it.id == number,
                Some(What::Opened(_) | What::SessionGone(_)) => true,
                Some(What::Attached(_) | What::Nodes(_) | What::StreamEnd(_)) | None => false,
                Some(What::Refused(_)) if item.seq == 0 => true,
                Some(What::Finished(_)) => call.seq == item.seq,
                Some(_) => call.seq == item.seq && !call.is_finish,
            };
            for call in state.calls.iter().filter(|(number, call)| concerns(**number, call)).map(|(_, it)| it)
            {
                // Fails if the caller has gone.
                let _ = call.answers.send(item.clone());
            }
        }
    }
}

/// What a call asks for.
struct Asked {
    key: SharedStreamKey,
    /// The request whose answers it waits for; 0: none.
    seq: u64,
    /// `None`: a keep-alive, which goes with every call.
    request: Option<Request>,
    poll: Duration,
}

impl Asked {
    fn new(caller: &Caller, asked: v1::SessionCallRequest) -> Result<Result<Self, v1::ServerItem>, Status> {
        let poll = Duration::from_millis(asked.poll_ms);
        if poll > POLL_MAX {
            return Err(Status::invalid_argument(format!(
                "`poll_ms` is {}, at most {} are allowed; call again to wait longer",
                asked.poll_ms,
                POLL_MAX.as_millis()
            )));
        }
        let item = asked.item.ok_or_else(|| Status::invalid_argument("`item` is missing"))?;
        let seq = match &item.what {
            Some(client_item::What::Acquire(it)) => it.seq,
            Some(client_item::What::Finish(it)) => it.seq,
            Some(client_item::What::SetValue(it)) => it.seq,
            Some(client_item::What::Downgrade(it)) => it.seq,
            Some(client_item::What::Attach(_)) => {
                return Err(Status::invalid_argument(
                    "`item` is an `attach`, which every call does by itself",
                ));
            }
            Some(client_item::What::Open(it)) if it.linger_ms > 0 => {
                return Err(Status::invalid_argument(format!(
                    "`linger_ms` is {}, but a session without a stream can't linger: 0 is allowed",
                    it.linger_ms
                )));
            }
            _ => 0,
        };
        let secret = match &item.what {
            Some(client_item::What::Open(it)) => it.secret.clone(),
            _ => asked.secret,
        };
        let session = item.session;
        let request = match Request::try_from(item) {
            Ok(Request::KeepAlive { .. }) => None,
            Ok(request) => Some(request),
            Err(ItemError::Refused { session, seq, refused }) => {
                return Ok(Err(v1::ServerItem { session, seq, what: Some(What::Refused(refused)) }));
            }
            Err(ItemError::Malformed(why)) => return Err(Status::invalid_argument(why.to_string())),
        };
        let key = SharedStreamKey { identity: caller.identity.as_str().to_owned(), session, secret };
        Ok(Ok(Self { key, seq, request, poll }))
    }

    /// The requests on the stream: they attach the session, ask for a proof that this node leads, and ask for what the
    /// call asks for.
    fn frame(self, number: u64, stream: StreamId) -> Result<Vec<Request>, Status> {
        if let Some(Request::Open(open)) = self.request {
            let mut open = open;
            open.attach = stream.0;
            return Ok(vec![Request::Open(open)]);
        }
        // Attaches of later streams have higher numbers.
        let attach = v1::AttachSession { secret: self.key.secret, attach: stream.0 };
        let attach =
            v1::ClientItem { session: self.key.session, what: Some(client_item::What::Attach(attach)) };
        let attach =
            Request::try_from(attach).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Request::Attach { session, .. } = &attach else {
            return Err(Status::internal("an attach was read as another request: a bug"));
        };
        let keep_alive = Request::KeepAlive { session: *session, id: number };
        Ok([attach, keep_alive].into_iter().chain(self.request).collect())
    }
}

/// A call in progress.
struct Call {
    front: Arc<Front>,
    stream: Arc<SharedStream>,
    number: u64,
    answers: UnboundedReceiver<v1::ServerItem>,
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut registry = self.front.registry();
        let mut state = self.stream.lock();
        state.calls.remove(&self.number);
        if !state.calls.is_empty() {
            return;
        }
        drop(state);
        let shared = &mut registry.shared_streams;
        if shared.by_id.remove(&self.stream.id).is_some() {
            shared.by_key.remove(&self.stream.key);
        }
        drop(registry);
        let closed = Event::StreamClosed { stream: self.stream.id, by_client: false };
        self.front.push_from(&self.stream.source, closed);
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
        asked: v1::SessionCallRequest,
    ) -> Result<v1::SessionCallResponse, Status> {
        self.check_serving()?;
        let begun = Instant::now();
        let asked = match Asked::new(caller, asked)? {
            Ok(asked) => asked,
            Err(refused) => return Ok(v1::SessionCallResponse { item: Some(refused), revoked: Vec::new() }),
        };
        let poll = asked.poll;
        let awaited = AwaitedAnswer::of(&asked);
        let mut call = self.begin_call(caller, &asked)?;
        let requests = asked.frame(call.number, call.stream.id)?;
        let mut waiting_number = None;
        poll_fn(|cx| self.inbox.poll_room(&call.stream.source, &mut waiting_number, cx)).await;
        self.push_from(&call.stream.source, Event::Frame(call.stream.id, requests));
        arriving.handed_on();
        call.answer(awaited, begun + poll, begun + poll + PATIENCE).await
    }

    fn begin_call(self: &Arc<Self>, caller: &Caller, asked: &Asked) -> Result<Call, Status> {
        let (sender, answers) = unbounded_channel();
        let number = self.next_id();
        let is_finish =
            matches!(asked.request, Some(Request::Command { command: Command::Finish { .. }, .. }));
        let pending = PendingCall { seq: asked.seq, is_finish, answers: sender };
        let known = self.registry().shared_streams.by_key.get(&asked.key).cloned();
        let stream = match known {
            Some(stream) => stream,
            None => self.open_shared_stream(caller, &asked.key)?,
        };
        stream.lock().calls.insert(number, pending);
        Ok(Call { front: self.clone(), stream, number, answers })
    }

    fn open_shared_stream(
        self: &Arc<Self>,
        caller: &Caller,
        key: &SharedStreamKey,
    ) -> Result<Arc<SharedStream>, Status> {
        let place = self.place("streams of sessions", &self.stream_places, caller)?;
        let id = StreamId(self.next_id());
        let stream = Arc::new(SharedStream {
            id,
            key: key.clone(),
            source: Source { caller: caller.identity.clone(), lane: id.0 },
            caller: caller.clone(),
            _place: place,
            state: Mutex::default(),
        });
        let mut registry = self.registry();
        registry.shared_streams.by_key.insert(key.clone(), stream.clone());
        registry.shared_streams.by_id.insert(id, stream.clone());
        drop(registry);
        let quota = self.access.quota(&caller.identity);
        let identity = caller.identity.as_str().into();
        self.push_from(&stream.source, Event::StreamOpened { stream: id, identity, quota });
        Ok(stream)
    }
}

/// The answer that completes a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AwaitedAnswer {
    Open,
    KeepAlive,
    Request,
}

impl AwaitedAnswer {
    fn of(asked: &Asked) -> Self {
        match asked.request {
            Some(Request::Open(_)) => Self::Open,
            Some(_) => Self::Request,
            None => Self::KeepAlive,
        }
    }
}

impl Call {
    /// Waits for the answer, for a queued request until `poll_until`, and at most until `until`.
    async fn answer(
        &mut self,
        awaited: AwaitedAnswer,
        poll_until: Instant,
        until: Instant,
    ) -> Result<v1::SessionCallResponse, Status> {
        let mut confirmed = (awaited == AwaitedAnswer::Open).then(Vec::new);
        let mut answer = None;
        let mut is_queued = false;
        loop {
            if let (Some(revoked), Some(item), false) = (&confirmed, &answer, is_queued) {
                return Ok(response(item, revoked));
            }
            let limit = if confirmed.is_some() && is_queued { poll_until } else { until };
            let item = match tokio::time::timeout_at(limit, self.answers.recv()).await {
                Ok(Some(item)) => item,
                Ok(None) => return Err(self.stream.lock().ended.clone().unwrap_or_else(shuts_down)),
                Err(_) => {
                    return match (&confirmed, &answer) {
                        (Some(revoked), Some(item)) => Ok(response(item, revoked)),
                        _ => Err(Status::deadline_exceeded(
                            "no answer in time: no node leads, or this one can't reach a majority; whether the call had an effect \
                             is unknown, repeat it",
                        )),
                    };
                }
            };
            match &item.what {
                Some(What::SessionGone(_) | What::Refused(_)) => return Ok(response(&item, &[])),
                Some(What::KeptAlive(it)) => {
                    confirmed = Some(it.revoked.clone());
                    if awaited == AwaitedAnswer::KeepAlive {
                        answer = Some(item);
                    }
                }
                what => {
                    is_queued = matches!(what, Some(What::Queued(_)));
                    answer = Some(item);
                }
            }
        }
    }
}

fn response(item: &v1::ServerItem, revoked: &[u64]) -> v1::SessionCallResponse {
    v1::SessionCallResponse { item: Some(item.clone()), revoked: revoked.to_vec() }
}
