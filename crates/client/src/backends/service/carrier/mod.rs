//! What one connection's stream does for the sessions on it, as a pure machine: no I/O, and no clock but the times that
//! are handed in. Production and the simulator run the same code.
//!
//! Responsible for: opening and attaching sessions on each new stream, sending again what is unresolved, in the order
//! of its numbers (P7, R5), finding the call that an answer belongs to, and noticing a service that is silent or talks
//! nonsense. May not decide what a session wants or believes: that is the machine's (`crate::machine`).
//!
//! A call is resolved by the handle that came with it, exactly once, or dropped with it: when its session is removed,
//! and for an acquire that its own client finishes, since the table answers the finish only.

mod carried;
mod items;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lockkeeper_wire::request::{Secret, secret_prefix};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};
use lockkeeper_wire::{FRAME_BYTES_MAX, FRAME_ITEMS_MAX, FRAME_NAMES_MAX};

use crate::backend::{Call, CallError};
use crate::machine::{Answer, Push, Spec};
use crate::time::BootInstant;
use carried::Carried;

/// Names a session in its carrier; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionKey(u64);

/// Names a stream in its carrier; never reused. What an earlier stream still brings is not listened to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct StreamId(u64);

#[cfg(test)]
impl StreamId {
    /// For a stand-in that counts the streams of several clients.
    pub(super) fn of(number: u64) -> Self {
        Self(number)
    }
}

/// What the carrier wants its driver to do.
#[must_use]
#[derive(Debug)]
pub enum Outcome<H> {
    /// A call is over.
    Resolved(H, Result<Answer, CallError>),
    /// Tell the session's machine.
    Push(SessionKey, Push),
    /// Drop the stream: for the carrier it is over already. Then open another.
    EndStream(Ending),
    /// Where all nodes of the cluster serve clients, `host:port` each.
    Nodes(Vec<String>),
}

/// Why a stream is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The service said so. That starts no `linger`.
    Announced {
        /// What to do next.
        reason: StreamEndReason,
        /// The service's own words.
        text: String,
        /// Where the leader serves clients, if that is known and another.
        leader: Option<String>,
        /// The term in which that one leads; 0 if that isn't said.
        term: u64,
    },
    /// An attach or a keep-alive was not answered for a sixth of its session's ttl (DESIGN section 6).
    Silent,
    /// What came is no answer of a lock service.
    Garbage(String),
}

/// What was seen, for metrics and tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Streams begun.
    pub streams: u64,
    /// Streams ended since nothing was answered.
    pub silent: u64,
    /// Streams ended since what came was no answer.
    pub garbage: u64,
    /// Commands that were sent again on a later stream.
    pub resent: u64,
}

/// See the module. `H` is whatever the driver finds a call's caller by.
#[derive(Debug)]
pub struct Carrier<H> {
    sessions: BTreeMap<SessionKey, Carried<H>>,
    /// Sessions by the service's number; only those that are open.
    by_id: BTreeMap<u64, SessionKey>,
    /// Sessions by the prefix of their secret; only those that aren't open yet.
    by_secret: BTreeMap<u64, SessionKey>,
    next_session: u64,
    next_stream: u64,
    stream: Option<StreamId>,
    outbox: Outbox,
    /// No call and no silence can be overdue before.
    look_at: Option<BootInstant>,
}

/// What waits to be sent on the present stream.
#[derive(Debug, Default)]
struct Outbox {
    open: bool,
    /// With about how many bytes each takes in a frame.
    items: VecDeque<(usize, v1::ClientItem)>,
    seen: Seen,
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
    /// Without sessions and without a stream.
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
            look_at: None,
        }
    }

    /// A session that nobody has opened yet. `secret` is random; its first eight bytes must tell it from the others.
    pub fn add(&mut self, spec: Spec, label: &str, secret: Secret) -> SessionKey {
        let key = SessionKey(self.next_session);
        self.next_session += 1;
        self.by_secret.insert(secret_prefix(&secret), key);
        self.sessions.insert(key, Carried::new(spec, label, secret));
        key
    }

    /// Forgets a session with all its calls. What it has at the service ends when its ttl is over, with its
    /// lock-delay, unless it was closed.
    pub fn remove(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(&key) else { return };
        self.by_secret.remove(&session.secret_prefix());
        session.id().map(|id| self.by_id.remove(&id));
    }

    /// Takes a call. Calls of a session are sent in the order in which they come here.
    pub fn submit(
        &mut self,
        now: BootInstant,
        key: SessionKey,
        call: Call,
        handle: H,
        out: &mut Vec<Outcome<H>>,
    ) {
        let Some(session) = self.sessions.get_mut(&key) else {
            return out.push(Outcome::Resolved(handle, Ok(Answer::SessionGone)));
        };
        let look_at = session.submit(now, call, handle, &mut self.outbox, out);
        self.look_by(look_at);
    }

    /// A stream begins: every session that is wanted is opened or attached on it.
    pub fn begin_stream(&mut self, now: BootInstant) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        self.outbox.seen.streams += 1;
        self.stream = Some(stream);
        self.outbox.clear(true);
        let mut look_at = None;
        for session in self.sessions.values_mut() {
            look_at = earlier(look_at, session.begin_stream(now, &mut self.outbox));
        }
        self.look_by(look_at);
        stream
    }

    /// The stream has ended without a word, or could not be opened, or the driver ends it. In the last case this comes
    /// before anything that the peer can see: a session with `linger` is believed in for no longer than that from now.
    pub fn stream_lost(&mut self, now: BootInstant, stream: StreamId, out: &mut Vec<Outcome<H>>) {
        if self.stream == Some(stream) {
            self.end_stream(now, true, out);
        }
    }

    /// A frame has arrived on a stream.
    pub fn received(
        &mut self,
        now: BootInstant,
        stream: StreamId,
        items: Vec<v1::ServerItem>,
        out: &mut Vec<Outcome<H>>,
    ) {
        if self.stream != Some(stream) {
            return;
        }
        for item in items {
            let ending = match self.item(now, item, out) {
                Ok(None) => continue,
                Ok(Some(ending)) => ending,
                Err(Nonsense(what)) => Ending::Garbage(what),
            };
            if let Ending::Garbage(_) = ending {
                self.outbox.seen.garbage += 1;
            }
            // Who ends a stream with a word has no `linger` in mind; all else may look like a close to the service.
            self.end_stream(now, !matches!(ending, Ending::Announced { .. }), out);
            return out.push(Outcome::EndStream(ending));
        }
    }

    /// Looks for calls that were not answered in their time, and for a stream that says nothing. A command that waits
    /// longer than it should has a keep-alive sent after it: a leader that is cut off is noticed by that, not by the
    /// next renewal.
    pub fn wake(&mut self, now: BootInstant, out: &mut Vec<Outcome<H>>) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        if self.stream.is_some() && self.sessions.values().any(|session| session.is_unheard(now)) {
            self.outbox.seen.silent += 1;
            self.end_stream(now, true, out);
            out.push(Outcome::EndStream(Ending::Silent));
        }
        self.look_at = None;
        for session in self.sessions.values_mut() {
            session.give_up(now, out);
            session.ask_for_a_sign(now, &mut self.outbox);
            self.look_at = earlier(self.look_at, session.look_at());
        }
    }

    /// When [`Self::wake`] is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<BootInstant> {
        self.look_at
    }

    /// What is to be sent next, as one frame within the limits of the service; empty if there is nothing, or if the stream
    /// is not the present one.
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

    /// Whether anything waits to be sent.
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
        self.sessions.values().any(Carried::is_wanted)
    }

    /// The shortest ttl of the sessions that need a stream.
    #[must_use]
    pub fn least_ttl(&self) -> Option<Duration> {
        self.sessions.values().filter(|session| session.is_wanted()).map(Carried::ttl).min()
    }

    /// What was seen so far.
    #[cfg(any(test, feature = "simulation"))]
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.outbox.seen
    }

    fn look_by(&mut self, at: Option<BootInstant>) {
        self.look_at = earlier(self.look_at, at);
    }

    fn end_stream(&mut self, now: BootInstant, may_linger: bool, out: &mut Vec<Outcome<H>>) {
        self.stream = None;
        self.outbox.clear(false);
        for (&key, session) in &mut self.sessions {
            let was_carried = session.end_stream();
            if was_carried && may_linger && session.lingers() {
                out.push(Outcome::Push(key, Push::Detached { at: now }));
            }
        }
    }

    /// One item; `Some`: the service ends the stream.
    fn item(
        &mut self,
        now: BootInstant,
        item: v1::ServerItem,
        out: &mut Vec<Outcome<H>>,
    ) -> Result<Option<Ending>, Nonsense> {
        let v1::ServerItem { session: id, seq, what } = item;
        match what {
            // A newer service may say more than we know; it says so only besides what is asked.
            None => {}
            Some(What::StreamEnd(end)) => {
                return Ok(Some(Ending::Announced {
                    reason: end.reason(),
                    text: end.text,
                    leader: Some(end.leader).filter(|leader| !leader.is_empty()),
                    term: end.term,
                }));
            }
            Some(What::Nodes(nodes)) => out.push(Outcome::Nodes(nodes.addresses)),
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
                // One that was removed meanwhile still has answers under way.
                let Some(&key) = self.by_id.get(&id) else { return Ok(None) };
                let Some(session) = self.sessions.get_mut(&key) else { return Ok(None) };
                let look_at = session.item(now, key, seq, what, &mut self.outbox, out)?;
                if session.is_over() {
                    self.by_id.remove(&id);
                }
                self.look_by(look_at);
            }
        }
        Ok(None)
    }

    fn opened(
        &mut self,
        now: BootInstant,
        id: u64,
        opened: v1::Opened,
        out: &mut Vec<Outcome<H>>,
    ) -> Result<(), Nonsense> {
        if id == 0 {
            return Err(Nonsense("a session is opened as number 0".into()));
        }
        let Some(key) = self.by_secret.remove(&opened.secret_prefix) else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        self.by_id.insert(id, key);
        let look_at = session.opened(now, id, opened.attach, &mut self.outbox, out)?;
        self.look_by(look_at);
        Ok(())
    }

    fn open_refused(&mut self, refused: &v1::Refused, out: &mut Vec<Outcome<H>>) {
        let Some(&key) = self.by_secret.get(&refused.secret_prefix) else { return };
        if let Some(session) = self.sessions.get_mut(&key) {
            session.open_refused(&items::refusal(refused), out);
        }
    }
}

/// What came is no answer of a lock service; the text says what.
#[derive(Debug)]
struct Nonsense(String);

fn earlier(a: Option<BootInstant>, b: Option<BootInstant>) -> Option<BootInstant> {
    a.into_iter().chain(b).min()
}
