//! The stream to the replica that the calls of a session share, and who gets which of its answers.
//!
//! It stays open for the next call if all calls were answered at once, since to open and close it costs as
//! much as the rest of such a call; of too many idle ones, the one that has been idle for longest is closed.
//! A call that finds it idle attaches the session again: a stream of another client may have had the session
//! meanwhile. After a call that has waited, or whose caller has gone, it is closed with the last call, as one
//! that this node closes: the session then has its whole ttl, and no answer to that call is to come.

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
use crate::front::ask::{not_leader, shuts_down};
use crate::front::caller::Caller;
use crate::front::{Front, OpenStream};
use crate::inbox::Source;
use lockkeeper_places::TakenPlace;

/// Most streams that stay open between calls. Each costs the replica some work in every turn.
pub(in crate::front) const IDLE_MAX: usize = 1 << 10;

/// Who shares a stream: the calls of a caller that show the same secret, which is of one session. The calls
/// that open it are among them: on a stream of their own they would take the session from the stream of the
/// others.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct SharedStreamKey {
    pub(super) identity: Identity,
    pub(super) secret: [u8; 16],
}

/// The streams that calls share.
#[derive(Default)]
pub(in crate::front) struct SharedStreams {
    by_key: HashMap<SharedStreamKey, Arc<SharedStream>>,
    /// Those without a call in progress, in the order in which their last calls ended.
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

/// A call, by its session and its number. The session of a call that opens one is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallId {
    pub(super) session: u64,
    pub(super) number: u64,
}

struct SharedState {
    /// Of the call that has opened the stream, or was the first after it was idle.
    caller: Caller,
    /// Held while there are calls in progress.
    place: Option<TakenPlace<Identity>>,
    calls: BTreeMap<CallId, AwaitingCall>,
    /// The session, seq and number of each call that waits for the answer to a command.
    by_command: BTreeSet<(u64, u64, u64)>,
    /// The numbers of the calls that open a session and have no answer yet.
    opening: BTreeSet<u64>,
    /// The number of the attaches since the stream was last idle. Later ones have higher numbers, also on
    /// other streams.
    attach: u64,
    /// The session that is attached to the stream.
    attached: Option<u64>,
    /// The requests of that session that ended without a command, and are not confirmed.
    unconfirmed: BTreeMap<u64, v1::End>,
    /// Its number in [`SharedStreams::idle`], if it is there.
    idle: Option<u64>,
    /// It ends with the last call.
    must_close: bool,
    /// The replica has ended it, the session has moved to another stream, or the caller is refused: no call
    /// may join.
    is_over: bool,
    /// This node has closed it.
    is_closed: bool,
}

/// A call that waits for its answer.
pub(super) struct AwaitingCall {
    pub(super) caller: Caller,
    pub(super) awaits: Awaits,
    /// Until when the answer that a request is queued does not suffice.
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
    /// The answer to the `finish` with this seq. The request that it ends, `target`, may have answers of its
    /// own under the same seq.
    End {
        seq: u64,
        target: u64,
    },
}

/// Which session is attached to a stream, and the number for attaching it.
pub(super) struct Attachment {
    pub(super) number: u64,
    pub(super) session: Option<SessionId>,
}

/// What a call has got so far. It needs both.
#[derive(Default)]
pub(super) struct CallProgress {
    /// The last answer to its request.
    item: Option<v1::ServerItem>,
    /// The seqs of the holds under a break, once the replica has proven that it leads.
    revoked: Option<Vec<u64>>,
}

impl AwaitingCall {
    fn is_complete(&self) -> bool {
        let CallProgress { item: Some(item), revoked: Some(_) } = &self.progress else { return false };
        !is_queued(item) || Instant::now() >= self.poll_until
    }

    fn answer(self, answer: CallAnswer) {
        // Fails if the caller has gone.
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

    /// Gives all calls of a session this answer.
    fn end(&mut self, session: u64, answer: &CallAnswer) {
        let of_session = CallId { session, number: 0 }..=CallId { session, number: u64::MAX };
        let ended: Vec<CallId> = self.calls.range(of_session).map(|(id, _)| *id).collect();
        for call in ended.into_iter().filter_map(|id| self.remove(id)) {
            call.answer(answer.clone());
        }
    }

    /// Answers the call if it has all that it needs. Answered calls are taken out, so that a crowd of them
    /// does not get each other's items.
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

    /// Hands an item of the replica to the calls that it concerns. Returns the requests that this leads to.
    fn deliver(&mut self, item: v1::ServerItem) -> Vec<Request> {
        let session = item.session;
        match &item.what {
            Some(What::KeptAlive(it)) => {
                let of = |session| CallId { session, number: it.id };
                // A call that opens the session does not know its id.
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
                // Those that are still unconfirmed follow.
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
                    // The secret may open another session on this stream, whose requests begin with 1 again.
                    self.attached = None;
                    self.unconfirmed.clear();
                }
            }
            Some(What::Refused(_)) if item.seq == 0 => {
                // An attached session is refused if another stream has it now. Only one with a higher number
                // gets it back.
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

    /// The item may answer an earlier call with the same secret, and is no proof for the others: each asks
    /// for its own.
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

    /// Hands an item on that answers a command.
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
                // The same item answers an acquire that is repeated after the end; that confirms nothing.
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

/// Whether it answers that a request waits on: a later item says how that ends.
pub(super) fn is_queued(item: &v1::ServerItem) -> bool {
    matches!(item.what, Some(What::Queued(_)))
}

/// The answer for which no proof is needed.
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

    /// Whether it is open only for a next call, and none will use it.
    pub(in crate::front) fn is_unused(&self) -> bool {
        let state = self.lock();
        state.idle.is_some() && (state.attached.is_none() || state.is_over)
    }

    /// Hands the replica's items to the calls that they concern.
    pub(in crate::front) fn deliver(&self, front: &Front, items: Vec<v1::ServerItem>) {
        let mut state = self.lock();
        let requests: Vec<Request> = items.into_iter().flat_map(|item| state.deliver(item)).collect();
        drop(state);
        if !requests.is_empty() {
            front.push_from(&self.source, Event::Frame(self.id, requests));
        }
    }

    /// Ends the calls whose callers `refusal` refuses: the files may have changed since they began.
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

    /// Ends all calls in progress.
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

    /// Whether the call has no answer yet. The stream may be closed once no call is without one.
    pub(super) fn awaits_answer(&self, id: CallId) -> bool {
        self.lock().calls.contains_key(&id)
    }

    /// The answer for a call whose poll is over: that its request is queued, if that is so.
    pub(super) fn take_queued(&self, id: CallId) -> Option<v1::SessionCallResponse> {
        let mut state = self.lock();
        if !state.calls.get(&id)?.is_complete() {
            return None;
        }
        let call = state.remove(id)?;
        Some(state.response(call.progress))
    }
}

impl Front {
    /// Adds a call to the stream of those with the same key, which is opened if there is none.
    ///
    /// # Errors
    /// There are too many streams.
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
            (state.attach, state.attached) = (self.next_id(), None);
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
        let id = StreamId(self.next_id());
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

    /// To be called when a call is over. `is_answered`: at once, and no other answer to it will come.
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
        let idle = self.next_id();
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
        self.push_from(&stream.source, Event::StreamClosed { stream: stream.id, cause });
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
