//! Protocol logic of one connection's stream for its sessions, as a pure state machine: no I/O, and no clock
//! except the times passed as arguments. Production and the simulator run the same code.
//!
//! Responsible for: opening and attaching sessions on each new stream, sending unresolved commands again in
//! the order of their seqs (P7, R5), matching answers to calls, and detecting a service that is silent or
//! sends invalid items. Requests and lease deadlines are decided by the session's machine (`crate::machine`).
//!
//! Each call is resolved through its handle exactly once, with two exceptions, in which the handle is
//! dropped: when the session is removed, and when the client submits a `Finish` of its own pending acquire,
//! since the service then answers only the finish.

mod carried;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod items;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper_backend::{Answer, BootInstant, Call, CallError, Push, Spec};
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use lockkeeper_wire::{FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FRAME_NAMES_MAX};

use carried::CarriedSession;

/// Identifies a session in its carrier; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionKey(u64);

/// Identifies a stream in its carrier; never reused. Items of earlier streams are ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct StreamId(u64);

#[cfg(test)]
impl StreamId {
    /// For test peers that number the streams of several clients.
    pub(super) fn of(number: u64) -> Self {
        Self(number)
    }
}

/// An action for the driver.
#[must_use]
#[derive(Debug)]
pub enum CarrierOutput<H> {
    /// Resolve a call.
    Resolved(H, Result<Answer, CallError>),
    /// Drop the handle of a call that gets no answer.
    Dropped(H),
    /// Forward a push to the session's machine.
    Push(SessionKey, Push),
    /// Drop the stream, which the carrier has already ended. Then open another.
    EndStream(StreamEnding),
    /// The client addresses of all nodes of the cluster, `host:port` each.
    Nodes(Vec<String>),
}

/// Why a stream ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamEnding {
    /// The service announced the end. This does not start `linger`.
    Announced {
        /// The reason, which determines the client's reaction.
        reason: StreamEndReason,
        /// The service's message.
        text: String,
        /// The leader's client address, if known and not this node.
        leader: Option<String>,
        /// The term of that leader; 0 if not given.
        term: u64,
    },
    /// An attach or a keep-alive was not answered for a sixth of its session's ttl, or an attach after others
    /// that were not for longer; the rest of the ttl is left for other nodes.
    Silent,
    /// An invalid item: the peer is no compatible lock service.
    Garbage(String),
}

/// Counters for metrics and tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CarrierStats {
    /// Streams begun.
    pub streams: u64,
    /// Streams ended because the service did not answer.
    pub silent: u64,
    /// Streams ended because of an invalid item.
    pub garbage: u64,
    /// Commands sent again on a later stream.
    pub resent: u64,
}

/// See the module documentation. `H` is the driver's handle for a call.
#[derive(Debug)]
pub struct Carrier<H> {
    sessions: BTreeMap<SessionKey, CarriedSession<H>>,
    /// Open sessions, by the service's id.
    by_id: BTreeMap<u64, SessionKey>,
    /// Sessions not open yet, by the prefix of their secret.
    by_secret: BTreeMap<u64, SessionKey>,
    next_session: u64,
    next_stream: u64,
    stream: Option<StreamId>,
    outbox: Outbox,
    /// When [`Self::wake`] is due: no deadline of a session is earlier.
    next_check: Option<BootInstant>,
}

/// Items to be sent on the present stream.
#[derive(Debug, Default)]
struct Outbox {
    open: bool,
    /// Each with an upper bound for its size in a frame, in bytes.
    items: VecDeque<(usize, v1::ClientItem)>,
    seen: CarrierStats,
}

impl Outbox {
    fn clear(&mut self, open: bool) {
        self.open = open;
        self.items.clear();
    }

    fn put(&mut self, item: v1::ClientItem) {
        self.items.push_back((items::weight(&item), item));
    }
}

impl<H> Default for Carrier<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Carrier<H> {
    /// A carrier without sessions and without a stream.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sessions: BTreeMap::new(),
            by_id: BTreeMap::new(),
            by_secret: BTreeMap::new(),
            next_session: 1,
            next_stream: 1,
            stream: None,
            outbox: Outbox::default(),
            next_check: None,
        }
    }

    /// Adds a session that is not open yet. `secret` is random; its first eight bytes must be unique in this
    /// carrier.
    pub fn add(&mut self, spec: Spec, label: &str, secret: Secret) -> SessionKey {
        let key = SessionKey(self.next_session);
        self.next_session += 1;
        self.by_secret.insert(secret.prefix(), key);
        self.sessions.insert(key, CarriedSession::new(spec, label, secret));
        key
    }

    /// Removes a session with all its calls, which get no answer. Unless the session was closed, the service
    /// expires it after its ttl, with lock-delay.
    pub fn remove(&mut self, key: SessionKey, out: &mut Vec<CarrierOutput<H>>) {
        let Some(session) = self.sessions.remove(&key) else { return };
        self.by_secret.remove(&session.secret_prefix());
        session.id().map(|id| self.by_id.remove(&id));
        out.extend(session.into_handles().map(CarrierOutput::Dropped));
    }

    /// Submits a call. Calls of a session are sent in the order of submission.
    pub fn submit(
        &mut self,
        now: BootInstant,
        key: SessionKey,
        call: Call,
        handle: H,
        out: &mut Vec<CarrierOutput<H>>,
    ) {
        let Some(session) = self.sessions.get_mut(&key) else {
            return out.push(CarrierOutput::Resolved(handle, Ok(Answer::SessionGone)));
        };
        let next_check = session.submit(now, call, handle, &mut self.outbox, out);
        self.check_by(next_check);
    }

    /// Begins a stream: every session in use is opened or attached on it.
    pub fn begin_stream(&mut self, now: BootInstant) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        self.outbox.seen.streams += 1;
        self.stream = Some(stream);
        self.outbox.clear(true);
        let mut next_check = None;
        for session in self.sessions.values_mut() {
            next_check = earlier(next_check, session.begin_stream(now, &mut self.outbox));
        }
        self.check_by(next_check);
        stream
    }

    /// Handles a stream that ended without a message, could not be opened, or is being closed by the driver.
    /// In the last case this must be called before the peer can see the close: from then on the service may
    /// end a session after its `linger`, and the client's lease must end before.
    pub fn stream_lost(&mut self, now: BootInstant, stream: StreamId, out: &mut Vec<CarrierOutput<H>>) {
        if self.stream == Some(stream) {
            self.end_stream(now, false, out);
        }
    }

    /// Handles a frame received on a stream.
    pub fn received(
        &mut self,
        now: BootInstant,
        stream: StreamId,
        items: Vec<v1::ServerItem>,
        out: &mut Vec<CarrierOutput<H>>,
    ) {
        if self.stream != Some(stream) {
            return;
        }
        for item in items {
            let ending = match self.item(now, item, out) {
                Ok(None) => continue,
                Ok(Some(ending)) => ending,
                Err(Nonsense(what)) => StreamEnding::Garbage(what),
            };
            if let StreamEnding::Garbage(_) = ending {
                self.outbox.seen.garbage += 1;
            }
            // An announced end starts no `linger`; the service may take any other end for a close by the
            // client.
            self.end_stream(now, matches!(ending, StreamEnding::Announced { .. }), out);
            return out.push(CarrierOutput::EndStream(ending));
        }
    }

    /// Fails overdue calls, and ends a stream on which the service is silent. After a command whose answer is
    /// late, sends a keep-alive, whose time limit detects an unreachable leader sooner than the next renewal
    /// would.
    pub fn wake(&mut self, now: BootInstant, out: &mut Vec<CarrierOutput<H>>) {
        if self.next_check.is_none_or(|at| now < at) {
            return;
        }
        if self.stream.is_some() && self.sessions.values().any(|session| session.is_unheard(now)) {
            self.outbox.seen.silent += 1;
            let unheard = self.sessions.values_mut().filter(|session| session.is_unheard(now));
            unheard.for_each(CarriedSession::count_silence);
            self.end_stream(now, false, out);
            out.push(CarrierOutput::EndStream(StreamEnding::Silent));
        }
        self.next_check = None;
        for session in self.sessions.values_mut() {
            session.give_up(now, out);
            session.ask_for_a_sign(now, &mut self.outbox);
            self.next_check = earlier(self.next_check, session.next_check());
        }
    }

    /// When [`Self::wake`] is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<BootInstant> {
        self.next_check
    }

    /// The next items to send, as one frame within the limits of the service; empty if there are none, or if
    /// `stream` is not the present stream.
    pub fn take_frame(&mut self, stream: StreamId) -> Vec<v1::ClientItem> {
        if self.stream != Some(stream) {
            return Vec::new();
        }
        let (mut bytes, mut names) = (0, 0);
        let fits = |(weight, item): &&(usize, v1::ClientItem)| {
            bytes += weight;
            names += items::names(item);
            bytes <= FRAME_BYTES_MAX && names <= FRAME_NAMES_MAX
        };
        let count = self.outbox.items.iter().take(FRAME_ITEMS_MAX).take_while(fits).count();
        self.outbox.items.drain(..count).map(|(_, item)| item).collect()
    }

    /// Whether there are items to send.
    #[must_use]
    pub fn has_items(&self) -> bool {
        !self.outbox.items.is_empty()
    }

    /// The present stream.
    #[must_use]
    pub fn stream(&self) -> Option<StreamId> {
        self.stream
    }

    /// Whether any session needs a stream.
    #[must_use]
    pub fn wants_stream(&self) -> bool {
        self.sessions.values().any(CarriedSession::is_wanted)
    }

    /// The shortest ttl of the sessions that need a stream.
    #[must_use]
    pub fn least_ttl(&self) -> Option<Duration> {
        self.sessions.values().filter(|session| session.is_wanted()).map(CarriedSession::ttl).min()
    }

    /// The counters.
    #[cfg(any(test, feature = "simulation"))]
    #[must_use]
    pub fn seen(&self) -> CarrierStats {
        self.outbox.seen
    }

    fn check_by(&mut self, at: Option<BootInstant>) {
        self.next_check = earlier(self.next_check, at);
    }

    fn end_stream(&mut self, now: BootInstant, announced: bool, out: &mut Vec<CarrierOutput<H>>) {
        self.stream = None;
        self.outbox.clear(false);
        for (&key, session) in &mut self.sessions {
            if session.end_stream() {
                out.push(CarrierOutput::Push(key, Push::Detached { at: now, announced }));
            }
        }
    }

    /// Handles one item; `Some`: the service ends the stream.
    fn item(
        &mut self,
        now: BootInstant,
        item: v1::ServerItem,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<Option<StreamEnding>, Nonsense> {
        let v1::ServerItem { session: id, seq, what } = item;
        match what {
            // An optional item of a newer service, unknown to this version.
            None => {}
            Some(What::StreamEnd(end)) => {
                return Ok(Some(StreamEnding::Announced {
                    reason: end.reason(),
                    text: end.text,
                    leader: Some(end.leader).filter(|leader| !leader.is_empty()),
                    term: end.term,
                }));
            }
            Some(What::Nodes(nodes)) => out.push(CarrierOutput::Nodes(nodes.addresses)),
            Some(What::Opened(opened)) => self.opened(now, id, opened, out)?,
            Some(What::Refused(refused)) if id == 0 => self.open_refused(&refused, out),
            Some(What::SessionGone(_)) => {
                if let Some(key) = self.by_id.remove(&id)
                    && let Some(session) = self.sessions.get_mut(&key)
                {
                    session.gone(key, out);
                }
            }
            Some(what) => {
                // The session may have been removed while answers were in flight.
                let Some(&key) = self.by_id.get(&id) else { return Ok(None) };
                let Some(session) = self.sessions.get_mut(&key) else { return Ok(None) };
                let next_check = session.item(now, key, seq, what, &mut self.outbox, out)?;
                if session.is_over() {
                    self.by_id.remove(&id);
                }
                self.check_by(next_check);
            }
        }
        Ok(None)
    }

    fn opened(
        &mut self,
        now: BootInstant,
        id: u64,
        opened: v1::Opened,
        out: &mut Vec<CarrierOutput<H>>,
    ) -> Result<(), Nonsense> {
        if id == 0 {
            return Err(Nonsense("a session is opened as number 0".into()));
        }
        let Some(key) = self.by_secret.remove(&opened.secret_prefix) else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        self.by_id.insert(id, key);
        let next_check = session.opened(now, key, id, opened.attach, &mut self.outbox, out)?;
        self.check_by(next_check);
        Ok(())
    }

    fn open_refused(&mut self, refused: &v1::Refused, out: &mut Vec<CarrierOutput<H>>) {
        let Some(&key) = self.by_secret.get(&refused.secret_prefix) else { return };
        if let Some(session) = self.sessions.get_mut(&key) {
            session.open_refused(&items::refusal(refused), out);
        }
    }
}

/// An invalid item, with a description of the error.
#[derive(Debug)]
struct Nonsense(String);

fn earlier(a: Option<BootInstant>, b: Option<BootInstant>) -> Option<BootInstant> {
    a.into_iter().chain(b).min()
}
