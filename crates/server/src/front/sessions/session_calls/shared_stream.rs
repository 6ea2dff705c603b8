//! The stream to the replica that all calls of one session share, and the routing of the replica's answers to
//! these calls.
//!
//! After the last call, the stream stays open for the next call if all calls were answered at once: opening
//! and closing a stream costs as much as the rest of such a call. If more than [`IDLE_MAX`] streams are idle,
//! the one that has been idle for longest is closed. A call that joins an idle stream attaches the session
//! again, since another client's stream may have attached the session meanwhile.
//!
//! If a call has waited, or its caller has gone, the stream is closed after its last call, with the cause
//! [`StreamCloseCause::Service`]. The session then has its whole ttl left, and no late answer to the ended
//! call can reach a later one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_core::SessionId;
use lockkeeper_replica::{Event, StreamCloseCause, StreamId};
use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;

use crate::access::Identity;
use crate::front::callers::Caller;
use crate::front::sessions::{ClientSessions, OpenStream};
use crate::front::statuses::{not_leader, shuts_down};
use crate::inbox::Source;
use lockkeeper_places::TakenPlace;

/// Maximum number of idle streams. Each idle stream adds work to every turn of the replica.
pub(in crate::front) const IDLE_MAX: usize = 1 << 10;

/// The calls with the same key share a stream: calls of one caller with the same secret, so of one session.
/// The calls that open the session use this stream too. On a stream of their own they would attach the
/// session there, and so detach it from the stream of the other calls.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedStreamKey {
    pub(super) identity: Identity,
    pub(super) secret: [u8; 16],
}

/// The open shared streams.
#[derive(Default)]
pub(in crate::front) struct SharedStreams {
    by_key: HashMap<SharedStreamKey, Arc<SharedStream>>,
    /// The streams without a call in progress, keyed by a number that rises in the order in which they became
    /// idle.
    idle: BTreeMap<u64, Arc<SharedStream>>,
}

/// A stream to the replica for the calls of a session.
pub(in crate::front) struct SharedStream {
    pub(super) id: StreamId,
    key: SharedStreamKey,
    pub(super) source: Source,
    state: Mutex<SharedState>,
}

/// The answer to a call.
pub(super) type CallAnswer = Result<v1::SessionCallResponse, Status>;

/// Identifies a call by its session and its own number. The session is 0 for a call that opens a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallId {
    pub(super) session: u64,
    pub(super) number: u64,
}

struct SharedState {
    /// The caller of the first call on the stream since it was opened or last idle.
    caller: Caller,
    /// Counts this stream towards the limits on streams (of all callers, and of this one); `None` while the
    /// stream is idle.
    place: Option<TakenPlace<Identity>>,
    calls: BTreeMap<CallId, AwaitingCall>,
    /// The session, the command's seq and the call's number, for each call that waits for the answer to a
    /// command.
    by_command: BTreeSet<(u64, u64, u64)>,
    /// The numbers of the calls that open a session and are still unanswered.
    opening: BTreeSet<u64>,
    /// The attach number for the calls since the stream was last idle. Every later attach has a higher
    /// number, also on other streams.
    attach: u64,
    /// The session that is attached to the stream.
    attached: Option<u64>,
    /// The requests of the attached session that have ended without a command of the client, and whose end
    /// the client has not confirmed.
    unconfirmed: BTreeMap<u64, v1::End>,
    /// The key of this stream in [`SharedStreams::idle`]; `None` while it has calls.
    idle: Option<u64>,
    /// The stream is closed once its last call has ended.
    must_close: bool,
    /// No call may join: the replica has ended the stream, another stream has attached the session, or the
    /// caller is refused.
    is_over: bool,
    /// This node has closed the stream.
    is_closed: bool,
}

/// A call that waits for its answer.
pub(super) struct AwaitingCall {
    pub(super) caller: Caller,
    pub(super) awaits: Awaits,
    /// The end of the poll. Before this time, [`What::Queued`] does not complete the call.
    pub(super) poll_until: Instant,
    pub(super) progress: CallProgress,
    pub(super) sender: oneshot::Sender<CallAnswer>,
}

/// The item that a call waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaits {
    Opened,
    KeptAlive,
    /// The answer to the command with this seq.
    Answer(u64),
    /// The answer to the `finish` with this seq. `target` is the seq of the request that it ends. Answers to
    /// that request also arrive under `seq`, if the client uses the same number for both.
    End {
        seq: u64,
        target: u64,
    },
}

/// The session that is attached to a stream, and the attach number for attaching another one.
pub(super) struct Attachment {
    pub(super) number: u64,
    pub(super) session: Option<SessionId>,
}

/// The parts of a call's answer that have arrived. The call is complete when it has both.
#[derive(Default)]
pub(super) struct CallProgress {
    /// The latest answer to the call's request.
    item: Option<v1::ServerItem>,
    /// The seqs of the session's holds under a break. The answer to the call's keep-alive sets them: that
    /// answer is also the proof that this node leads.
    revoked: Option<Vec<u64>>,
}

impl AwaitingCall {
    fn is_complete(&self) -> bool {
        let CallProgress { item: Some(item), revoked: Some(_) } = &self.progress else { return false };
        !is_queued(item) || Instant::now() >= self.poll_until
    }

    fn answer(self, answer: CallAnswer) {
        // Sending fails only if the caller has gone.
        let _ = self.sender.send(answer);
    }
}

impl SharedState {
    fn new(caller: Caller, place: TakenPlace<Identity>, attach: u64) -> Self {
        Self {
            caller,
            place: Some(place),
            calls: BTreeMap::new(),
            by_command: BTreeSet::new(),
            opening: BTreeSet::new(),
            attach,
            attached: None,
            unconfirmed: BTreeMap::new(),
            idle: None,
            must_close: false,
            is_over: false,
            is_closed: false,
        }
    }

    fn insert(&mut self, id: CallId, call: AwaitingCall) {
        match call.awaits {
            Awaits::Opened => drop(self.opening.insert(id.number)),
            Awaits::KeptAlive => {}
            Awaits::Answer(seq) | Awaits::End { seq, .. } => {
                self.by_command.insert((id.session, seq, id.number));
            }
        }
        self.calls.insert(id, call);
    }

    fn remove(&mut self, id: CallId) -> Option<AwaitingCall> {
        let call = self.calls.remove(&id)?;
        match call.awaits {
            Awaits::Opened => drop(self.opening.remove(&id.number)),
            Awaits::KeptAlive => {}
            Awaits::Answer(seq) | Awaits::End { seq, .. } => {
                self.by_command.remove(&(id.session, seq, id.number));
            }
        }
        Some(call)
    }

    /// Ends all calls of a session with the same answer.
    fn end(&mut self, session: u64, answer: &CallAnswer) {
        let of_session = CallId { session, number: 0 }..=CallId { session, number: u64::MAX };
        let ended: Vec<CallId> = self.calls.range(of_session).map(|(id, _)| *id).collect();
        for call in ended.into_iter().filter_map(|id| self.remove(id)) {
            call.answer(answer.clone());
        }
    }

    /// Answers the call if it is complete, and removes it: many calls may wait for the same item, and an
    /// answered one must not be handed further items.
    fn settle(&mut self, id: CallId) {
        if self.calls.get(&id).is_some_and(AwaitingCall::is_complete)
            && let Some(mut call) = self.remove(id)
        {
            let answer = self.response(std::mem::take(&mut call.progress));
            call.answer(Ok(answer));
        }
    }

    fn response(&self, CallProgress { item, revoked }: CallProgress) -> v1::SessionCallResponse {
        let session = item.as_ref().map(|item| item.session);
        let is_own = session.is_some() && self.attached == session;
        let ended = self.unconfirmed.iter().filter(|_| is_own);
        let ended = ended.map(|(seq, end)| v1::EndedRequest { seq: *seq, end: (*end).into() }).collect();
        v1::SessionCallResponse { item, revoked: revoked.unwrap_or_default(), ended }
    }

    /// Delivers an item of the replica to the calls that wait for it. Returns the requests to send to the
    /// replica because of this item.
    fn deliver(&mut self, item: v1::ServerItem) -> Vec<Request> {
        let session = item.session;
        match &item.what {
            Some(What::KeptAlive(it)) => {
                let of = |session| CallId { session, number: it.id };
                // A call that opens the session is stored under session 0.
                let id = if self.calls.contains_key(&of(session)) { of(session) } else { of(0) };
                if let Some(call) = self.calls.get_mut(&id) {
                    call.progress.revoked = Some(it.revoked.clone());
                    if call.awaits == Awaits::KeptAlive {
                        call.progress.item = Some(item);
                    }
                    self.settle(id);
                }
            }
            Some(What::Attached(it)) => {
                if it.attach == self.attach {
                    self.attached = Some(session);
                }
                // After an attach, the replica sends all unconfirmed ends again.
                self.unconfirmed.clear();
            }
            Some(What::Opened(_)) => return self.opened(&item),
            Some(What::SessionGone(_)) => {
                let is_own = self.attached.is_none_or(|attached| attached == session);
                let gone = only(item);
                self.end(session, &gone);
                if is_own {
                    self.end(0, &gone);
                }
                if self.attached == Some(session) {
                    // The client may open a new session with the same secret on this stream. The seqs of a
                    // new session begin at 1 again.
                    self.attached = None;
                    self.unconfirmed.clear();
                }
            }
            Some(What::Refused(_)) if item.seq == 0 => {
                // The replica refuses an attached session if another stream has attached it since. Only a
                // higher attach number gets the session back, so this stream can't be used any more.
                self.is_over |= self.attached == Some(session);
                self.end(session, &only(item));
            }
            Some(What::Nodes(_) | What::StreamEnd(_)) | None => {}
            Some(what) => {
                if let What::Ended(it) = what {
                    self.unconfirmed.insert(item.seq, it.end());
                }
                self.answered(&item);
            }
        }
        Vec::new()
    }

    /// Handles the answer to an open. It may answer an earlier call with the same secret, so it does not
    /// prove to the other calls that this node still leads. So a keep-alive is returned for each of them.
    fn opened(&mut self, item: &v1::ServerItem) -> Vec<Request> {
        self.attached = Some(item.session);
        let mut keep_alives = Vec::new();
        for number in std::mem::take(&mut self.opening) {
            if let Some(call) = self.calls.get_mut(&CallId { session: 0, number }) {
                call.progress.item = Some(item.clone());
                keep_alives.push(Request::KeepAlive { session: SessionId(item.session), id: number });
            }
        }
        keep_alives
    }

    /// Delivers an item that answers a command.
    fn answered(&mut self, item: &v1::ServerItem) {
        let of_command = (item.session, item.seq, 0)..=(item.session, item.seq, u64::MAX);
        let id = |&(session, _, number): &(u64, u64, u64)| CallId { session, number };
        let ids: Vec<CallId> = self.by_command.range(of_command).map(id).collect();
        for id in ids {
            let Some(call) = self.calls.get_mut(&id) else { continue };
            match (&item.what, call.awaits) {
                (Some(What::Refused(_)), Awaits::Answer(_)) => {
                    if let Some(call) = self.remove(id) {
                        call.answer(only(item.clone()));
                    }
                    continue;
                }
                // `Finished` also answers an acquire that is repeated after its end. Only the answer to a
                // `finish` confirms the end.
                (Some(What::Finished(_)), Awaits::End { target, .. }) => {
                    self.unconfirmed.remove(&target);
                }
                (_, Awaits::Answer(_)) => {}
                _ => continue,
            }
            call.progress.item = Some(item.clone());
            self.settle(id);
        }
    }
}

/// Whether the item only reports that the request is queued; a later item has the outcome.
pub(super) fn is_queued(item: &v1::ServerItem) -> bool {
    matches!(item.what, Some(What::Queued(_)))
}

/// An answer without the proof that this node leads: errors and refusals need none.
fn only(item: v1::ServerItem) -> CallAnswer {
    Ok(v1::SessionCallResponse { item: Some(item), ..Default::default() })
}

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::front) fn caller(&self) -> Caller {
        self.lock().caller.clone()
    }

    /// Whether the stream is idle and no later call can use it: its session is gone, or no call may join.
    pub(in crate::front) fn is_unused(&self) -> bool {
        let state = self.lock();
        state.idle.is_some() && (state.attached.is_none() || state.is_over)
    }

    /// Delivers the replica's items to the calls that wait for them.
    pub(in crate::front) fn deliver(&self, sessions: &ClientSessions, items: Vec<v1::ServerItem>) {
        let mut state = self.lock();
        let requests: Vec<Request> = items.into_iter().flat_map(|item| state.deliver(item)).collect();
        drop(state);
        if !requests.is_empty() {
            sessions.replica.push_from(&self.source, Event::Frame(self.id, requests));
        }
    }

    /// Ends the calls whose callers are no longer permitted. `refusal` returns the reason, or `None` if the
    /// caller is permitted. The access files may have changed since the calls began.
    pub(in crate::front) fn end_denied(&self, refusal: impl Fn(&Caller) -> Option<String>) {
        let mut state = self.lock();
        state.is_over |= refusal(&state.caller).is_some();
        let refused = state.calls.iter().filter_map(|(id, call)| Some((*id, refusal(&call.caller)?)));
        for (id, text) in refused.collect::<Vec<_>>() {
            if let Some(call) = state.remove(id) {
                call.answer(Err(Status::permission_denied(text)));
            }
        }
    }

    /// Ends all calls in progress with the status that `end` stands for.
    pub(in crate::front) fn end(&self, end: &v1::StreamEnd) {
        let mut state = self.lock();
        let status = match end.reason() {
            StreamEndReason::NotLeader | StreamEndReason::Idle | StreamEndReason::Unspecified => {
                not_leader(format!("this node does not lead: {}", end.text), &end.leader)
            }
            StreamEndReason::Shutdown => shuts_down(),
            StreamEndReason::Denied => Status::permission_denied(end.text.clone()),
            StreamEndReason::Protocol | StreamEndReason::TooSlow => {
                Status::invalid_argument(end.text.clone())
            }
        };
        state.is_over = true;
        state.by_command.clear();
        state.opening.clear();
        for call in std::mem::take(&mut state.calls).into_values() {
            call.answer(Err(status.clone()));
        }
    }

    pub(super) fn attachment(&self) -> Attachment {
        let state = self.lock();
        Attachment { number: state.attach, session: state.attached.map(SessionId) }
    }

    /// Whether the call is still unanswered. The stream may already be closed if no call is.
    pub(super) fn awaits_answer(&self, id: CallId) -> bool {
        self.lock().calls.contains_key(&id)
    }

    /// Ends a call whose poll is over: returns the answer `Queued` if the call has received it, and the proof
    /// that this node leads.
    pub(super) fn take_queued(&self, id: CallId) -> Option<v1::SessionCallResponse> {
        let mut state = self.lock();
        if !state.calls.get(&id)?.is_complete() {
            return None;
        }
        let call = state.remove(id)?;
        Some(state.response(call.progress))
    }
}

impl ClientSessions {
    /// Adds a call to the stream with this key; opens the stream if there is none.
    ///
    /// # Errors
    /// The limit of streams is reached, in all or for this caller.
    pub(super) fn join_shared_stream(
        &self,
        key: SharedStreamKey,
        id: CallId,
        call: AwaitingCall,
    ) -> Result<Arc<SharedStream>, Status> {
        let known = self.registry().shared_streams.by_key.get(&key).cloned();
        let may_join = |stream: &Arc<SharedStream>| {
            let state = stream.lock();
            !state.is_over && !state.is_closed
        };
        let stream = match known.filter(may_join) {
            Some(stream) => stream,
            None => self.open_shared_stream(&call.caller, key)?,
        };
        let mut state = stream.lock();
        let idle = state.idle;
        if idle.is_some() {
            state.place = Some(self.stream_place(&call.caller)?);
            state.caller = call.caller.clone();
            state.idle = None;
            (state.attach, state.attached) = (self.replica.next_id(), None);
            state.unconfirmed.clear();
        }
        state.insert(id, call);
        drop(state);
        if let Some(idle) = idle {
            self.registry().shared_streams.idle.remove(&idle);
        }
        Ok(stream)
    }

    fn open_shared_stream(&self, caller: &Caller, key: SharedStreamKey) -> Result<Arc<SharedStream>, Status> {
        let place = self.stream_place(caller)?;
        let id = StreamId(self.replica.next_id());
        let stream = Arc::new(SharedStream {
            id,
            key: key.clone(),
            source: Source { caller: caller.identity.clone(), lane: id.0 },
            state: Mutex::new(SharedState::new(caller.clone(), place, id.0)),
        });
        self.registry().shared_streams.by_key.insert(key, stream.clone());
        self.register_stream(id, &stream.source, OpenStream::Shared(stream.clone()));
        Ok(stream)
    }

    /// To be called when a call has ended. `is_answered`: the call was answered within
    /// [`SHORT_CALL`](super::SHORT_CALL), and no further answer to it can come.
    pub(super) fn leave_shared_stream(&self, stream: &Arc<SharedStream>, id: CallId, is_answered: bool) {
        let mut state = stream.lock();
        state.remove(id);
        state.must_close |= !is_answered;
        if !state.calls.is_empty() || (state.idle.is_some() && !state.must_close) {
            return;
        }
        state.place = None;
        if state.must_close || state.attached.is_none() || state.is_over {
            drop(state);
            return self.close_shared_stream(stream, StreamCloseCause::Service);
        }
        let idle = self.replica.next_id();
        state.idle = Some(idle);
        drop(state);
        let mut registry = self.registry();
        let streams = &mut registry.shared_streams.idle;
        streams.insert(idle, stream.clone());
        let longest = if streams.len() > IDLE_MAX { streams.pop_first() } else { None };
        drop(registry);
        if let Some((_, longest)) = longest {
            self.close_shared_stream(&longest, StreamCloseCause::Idle);
        }
    }

    /// Closes a stream that [is unused](SharedStream::is_unused).
    pub(in crate::front) fn close_unused(&self, stream: &SharedStream) {
        self.close_shared_stream(stream, StreamCloseCause::Idle);
    }

    fn close_shared_stream(&self, stream: &SharedStream, cause: StreamCloseCause) {
        let mut state = stream.lock();
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        let idle = state.idle.take();
        drop(state);
        let mut registry = self.registry();
        let streams = &mut registry.shared_streams;
        if let Some(idle) = idle {
            streams.idle.remove(&idle);
        }
        if streams.by_key.get(&stream.key).is_some_and(|known| known.id == stream.id) {
            streams.by_key.remove(&stream.key);
        }
        drop(registry);
        self.replica.push_from(&stream.source, Event::StreamClosed { stream: stream.id, cause });
        self.forget_stream(stream.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_places::Places;

    #[test]
    fn each_of_a_crowd_that_asks_for_the_same_request_gets_one_answer() {
        const CROWD: u64 = 100_000;
        let identity = Identity::ANONYMOUS;
        let caller = Caller { identity, token: None, address: "".into(), is_checked: false };
        let mut state = SharedState::new(caller.clone(), Places::new(1).take(None).unwrap(), 1);
        let mut answers = Vec::new();
        for number in 1..=CROWD {
            let (sender, answer) = oneshot::channel();
            let call = AwaitingCall {
                caller: caller.clone(),
                awaits: Awaits::Answer(7),
                poll_until: Instant::now(),
                progress: CallProgress::default(),
                sender,
            };
            state.insert(CallId { session: 1, number }, call);
            answers.push(answer);
        }
        let item = |seq, what| v1::ServerItem { session: 1, seq, what: Some(what) };
        state.deliver(item(7, What::Granted(v1::Granted { token: 5, ..v1::Granted::default() })));
        // The same call twice: the second one finds it gone.
        for id in (1..=CROWD).chain([1]) {
            state.deliver(item(0, What::KeptAlive(v1::KeptAlive { id, revoked: vec![7] })));
        }
        for answer in &mut answers {
            let answer = answer.try_recv().unwrap().unwrap();
            assert!(matches!(answer.item.unwrap().what, Some(What::Granted(it)) if it.token == 5));
            assert_eq!(answer.revoked, [7]);
        }
        assert!(state.calls.is_empty() && state.by_command.is_empty());
    }
}
