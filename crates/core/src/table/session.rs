//! One session: its live requests, and the final answers its client may not have yet (P7). And all of them: who may
//! change one, and what a walk is owed for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::ahead::{Pen, SessionsAhead};
use super::request::RequestId;
use crate::reply::{End, Reply};
use crate::snapshot::items::put_session;
use crate::snapshot::{KeptAnswer, SessionState};
use crate::types::{Seq, SessionId};

pub(super) struct Session {
    pub(super) secret_hash: [u8; 32],
    pub(super) ttl_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) linger_ms: u64,
    pub(super) label: Box<str>,
    pub(super) highest: Seq,
    pub(super) done_through: Seq,
    pub(super) live: BTreeMap<Seq, RequestId>,
    kept: BTreeMap<Seq, Kept>,
    /// `(until, seq)` of every kept answer that has an until: what a rising `done_through` lets go, in order.
    by_until: BTreeSet<(Seq, Seq)>,
}

struct Kept {
    reply: Reply,
    until: Option<Seq>,
}

impl Session {
    pub(super) fn new(open: &crate::OpenSession) -> Self {
        Self {
            secret_hash: open.secret_hash,
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label: open.label.clone(),
            highest: Seq(0),
            done_through: Seq(0),
            live: BTreeMap::new(),
            kept: BTreeMap::new(),
            by_until: BTreeSet::new(),
        }
    }

    /// R1: taken before the command, never goes down, raises the highest seq seen.
    pub(super) fn take_done_through(&mut self, done_through: Seq) {
        self.see(done_through);
        if done_through <= self.done_through {
            return;
        }
        self.done_through = done_through;
        while let Some(&(until, seq)) = self.by_until.first()
            && until <= done_through
        {
            self.by_until.pop_first();
            self.kept.remove(&seq);
        }
    }

    /// Raises the highest seq seen.
    pub(super) fn see(&mut self, seq: Seq) {
        self.highest = self.highest.max(seq);
    }

    /// Keeps a final answer; not at all if the client already has what it is kept for.
    pub(super) fn keep(&mut self, seq: Seq, reply: Reply, until: Option<Seq>) {
        match until {
            Some(until) if until <= self.done_through => return,
            Some(until) => {
                self.by_until.insert((until, seq));
            }
            None => {}
        }
        self.kept.insert(seq, Kept { reply, until });
    }

    pub(super) fn kept(&self, seq: Seq) -> Option<&Reply> {
        self.kept.get(&seq).map(|kept| &kept.reply)
    }

    /// How a request that is no longer live ended, for the `Finish` numbered `by`; the answer is then kept for that
    /// `Finish` too (R3).
    pub(super) fn finish_kept(&mut self, target: Seq, by: Seq) -> End {
        let Some(kept) = self.kept.remove(&target) else { return End::Gone };
        if let Some(until) = kept.until {
            self.by_until.remove(&(until, target));
        }
        let end = match kept.reply {
            Reply::Finished(end) => end,
            _ => End::NotAcquired,
        };
        self.keep(target, kept.reply, Some(kept.until.map_or(by, |until| until.max(by))));
        end
    }

    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// Requests that ended without the client's asking, and whose end it has not confirmed yet (R3).
    pub(super) fn unconfirmed_ends(&self) -> impl Iterator<Item = (Seq, End)> {
        self.kept.iter().filter_map(|(&seq, kept)| match (&kept.reply, kept.until) {
            (Reply::Finished(end), None) => Some((seq, *end)),
            _ => None,
        })
    }

    /// The same as plain data, without the live requests: those know their session.
    pub(super) fn state(&self, id: SessionId) -> SessionState {
        let kept =
            |(&seq, kept): (&Seq, &Kept)| KeptAnswer { seq, reply: kept.reply.clone(), until: kept.until };
        SessionState {
            id,
            secret_hash: self.secret_hash,
            ttl_ms: self.ttl_ms,
            lock_delay_ms: self.lock_delay_ms,
            linger_ms: self.linger_ms,
            label: self.label.clone(),
            highest: self.highest,
            done_through: self.done_through,
            kept: self.kept.iter().map(kept).collect(),
        }
    }
}

/// The live sessions of a table. They are changed only through the methods here, which save the old state for a walk
/// that is under way.
#[derive(Default)]
pub(super) struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    walk: Option<Box<SessionsAhead>>,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// By id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.by_id.iter().map(|(&id, session)| (id, session))
    }

    /// Those with a higher id.
    pub(super) fn after(&self, id: SessionId) -> impl Iterator<Item = SessionId> {
        self.by_id.range((Bound::Excluded(id), Bound::Unbounded)).map(|(&id, _)| id)
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.preserve(id);
        self.by_id.get_mut(&id)
    }

    /// Whether it is new. A walk under way knows by its id that it is.
    pub(super) fn insert(&mut self, id: SessionId, session: Session) -> bool {
        self.by_id.insert(id, session).is_none()
    }

    pub(super) fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.preserve(id);
        self.by_id.remove(&id)
    }

    fn preserve(&mut self, id: SessionId) {
        if let Some(walk) = &mut self.walk
            && let Some(session) = self.by_id.get(&id)
            && walk.note(id)
        {
            walk.saved.save(|out| put_session(out, &session.state(id)));
        }
    }

    /// Begins a walk; sessions above `last` will be new.
    pub(super) fn begin_walk(&mut self, last: SessionId) {
        self.walk = Some(Box::new(SessionsAhead::new(last)));
    }

    /// Goes on with the walk; whether it has passed them all.
    pub(super) fn walk_on(&mut self, pen: &mut Pen<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        for (&id, session) in self.by_id.range(walk.range()) {
            if pen.is_spent() {
                return false;
            }
            if walk.pass(id, pen) {
                pen.put(1 + session.kept_count(), |out| put_session(out, &session.state(id)));
            }
        }
        walk.pass_all();
        true
    }

    /// Writes what was saved; whether that was all.
    pub(super) fn write_saved(&mut self, pen: &mut Pen<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }
}
