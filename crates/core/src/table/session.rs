//! A session with its live requests and kept answers (P7), and the store of all sessions, with change
//! tracking for snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref, DerefMut};

use super::copy_on_write::{SessionsCursor, SnapshotWriter};
use super::request::{Owner, RequestId};
use super::usage::{AccountId, Accounts};
use super::work::Budget;
use crate::limits;
use crate::reply::{End, Rejection, Reply};
use crate::snapshot::items::{Digest, put_ending, put_session};
use crate::snapshot::{EndingState, KeptAnswer, SessionState};
use crate::types::{Fingerprint, Seq, SessionId};

pub(super) struct TableSession {
    pub(super) secret_hash: [u8; 32],
    pub(super) ttl_ms: u64,
    pub(super) lock_delay_ms: u64,
    pub(super) linger_ms: u64,
    pub(super) label: Box<str>,
    pub(super) identity: Box<str>,
    pub(super) account: AccountId,
    pub(super) highest: Seq,
    pub(super) done_through: Seq,
    pub(super) live: BTreeMap<Seq, RequestId>,
    kept: BTreeMap<Seq, KeptReply>,
    /// `(until, seq)` of every kept answer that has an `until`: a rising `done_through` drops them in this
    /// order.
    by_until: BTreeSet<(Seq, Seq)>,
    /// Seqs of the kept answers without an `until`: ends that the client has not confirmed.
    unconfirmed: BTreeSet<Seq>,
    /// Total length of the names in kept answers.
    kept_name_bytes: u64,
    /// The lock-delay of the session's holds in milliseconds, once the session has ended and until its
    /// requests and answers are removed. `None` while it is live.
    ending: Option<u64>,
}

/// Accounted size in bytes of a session without its label and identity; the next constant is that of a kept
/// answer.
pub(super) const SESSION_BYTES: u64 = 512;
pub(super) const KEPT_BYTES: u64 = 160;

struct KeptReply {
    fingerprint: Fingerprint,
    reply: Reply,
    until: Option<Seq>,
}

impl TableSession {
    pub(super) fn new(open: crate::OpenSession) -> Self {
        Self {
            secret_hash: open.secret_hash,
            ttl_ms: open.ttl_ms,
            lock_delay_ms: open.lock_delay_ms,
            linger_ms: open.linger_ms,
            label: open.label,
            identity: open.identity,
            account: AccountId::UNKNOWN,
            highest: Seq(0),
            done_through: Seq(0),
            live: BTreeMap::new(),
            kept: BTreeMap::new(),
            by_until: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            kept_name_bytes: 0,
            ending: None,
        }
    }

    /// Accounted size in bytes, without requests.
    fn bytes(&self) -> u64 {
        let texts = (self.label.len() + self.identity.len()) as u64;
        SESSION_BYTES + texts + self.kept.len() as u64 * KEPT_BYTES + self.kept_name_bytes
    }

    /// Takes the `done_through` of a command, before the command runs, and drops answers that it confirms.
    /// `done_through` never falls, and raises the highest seq seen (R1).
    pub(super) fn take_done_through(&mut self, done_through: Seq) {
        self.see(done_through);
        self.done_through = self.done_through.max(done_through);
        self.forget_confirmed();
    }

    /// Drops confirmed answers, at most [`limits::FORGOTTEN_PER_COMMAND_MAX`].
    fn forget_confirmed(&mut self) {
        for _ in 0..limits::FORGOTTEN_PER_COMMAND_MAX {
            if !self.has_confirmed() {
                return;
            }
            if let Some((_, seq)) = self.by_until.pop_first() {
                self.remove_kept(seq);
            }
        }
    }

    /// Whether confirmed answers are still kept.
    fn has_confirmed(&self) -> bool {
        self.by_until.first().is_some_and(|&(until, _)| until <= self.done_through)
    }

    fn remove_kept(&mut self, seq: Seq) -> Option<KeptReply> {
        let kept = self.kept.remove(&seq)?;
        self.kept_name_bytes -= name_bytes(&kept.reply);
        match kept.until {
            Some(until) => self.by_until.remove(&(until, seq)),
            None => self.unconfirmed.remove(&seq),
        };
        Some(kept)
    }

    /// Raises the highest seq seen.
    pub(super) fn see(&mut self, seq: Seq) {
        self.highest = self.highest.max(seq);
    }

    /// Keeps a final answer, unless the client has already confirmed all answers up to `until`.
    pub(super) fn keep(&mut self, seq: Seq, fingerprint: Fingerprint, reply: Reply, until: Option<Seq>) {
        if until.is_none_or(|until| until > self.done_through) {
            self.put_kept(seq, KeptReply { fingerprint, reply, until });
        }
    }

    fn put_kept(&mut self, seq: Seq, kept: KeptReply) {
        match kept.until {
            Some(until) => {
                self.by_until.insert((until, seq));
            }
            None => {
                self.unconfirmed.insert(seq);
            }
        }
        self.kept_name_bytes += name_bytes(&kept.reply);
        self.kept.insert(seq, kept);
    }

    /// The kept answer of a command, and the command's fingerprint.
    pub(super) fn kept(&self, seq: Seq) -> Option<(Fingerprint, &Reply)> {
        let kept = self.kept.get(&seq)?;
        let is_confirmed = kept.until.is_some_and(|until| until <= self.done_through);
        (!is_confirmed).then_some((kept.fingerprint, &kept.reply))
    }

    /// Returns the end of a request that is no longer live, for the `Finish` with seq `by`. The kept answer
    /// is then kept at least until the client has confirmed that `Finish` (R3).
    pub(super) fn finish_kept(&mut self, target: Seq, by: Seq) -> End {
        if self.kept(target).is_none() {
            return End::Gone;
        }
        let Some(kept) = self.remove_kept(target) else { return End::Gone };
        let end = match kept.reply {
            Reply::Finished(end) => end,
            _ => End::NotAcquired,
        };
        self.keep(target, kept.fingerprint, kept.reply, Some(kept.until.map_or(by, |until| until.max(by))));
        end
    }

    pub(super) fn kept_count(&self) -> usize {
        self.kept.len()
    }

    /// Whether the session has the maximum number of kept answers. Returns false while confirmed answers are
    /// still kept: they don't count, since later commands drop them.
    pub(super) fn keeps_too_many(&self) -> bool {
        self.kept.len() >= limits::KEPT_ANSWERS_MAX && !self.has_confirmed()
    }

    /// The ends of requests with a seq above `after` that the client neither requested nor confirmed (R3).
    pub(super) fn unconfirmed_ends(&self, after: Seq) -> impl Iterator<Item = (Seq, End)> {
        let after = (Bound::Excluded(after), Bound::Unbounded);
        self.unconfirmed.range(after).filter_map(|seq| match self.kept.get(seq)?.reply {
            Reply::Finished(end) => Some((*seq, end)),
            _ => None,
        })
    }

    /// Restores a session; `ending` is the lock-delay of its holds if it had ended. Its requests are added
    /// later.
    pub(super) fn restore(state: SessionState, ending: Option<u64>) -> Self {
        let mut session = Self::new(crate::OpenSession {
            secret_hash: state.secret_hash,
            ttl_ms: state.ttl_ms,
            lock_delay_ms: state.lock_delay_ms,
            linger_ms: state.linger_ms,
            label: state.label,
            identity: state.identity,
        });
        (session.highest, session.done_through, session.ending) = (state.highest, state.done_through, ending);
        // These include confirmed answers that were not dropped before the snapshot.
        for KeptAnswer { seq, fingerprint, reply, until } in state.kept {
            session.put_kept(seq, KeptReply { fingerprint, reply, until });
        }
        session
    }

    /// Encodes the session as a live or as an ending one.
    fn put(&self, id: SessionId, out: &mut Vec<u8>) -> Digest {
        let state = self.state(id);
        match self.ending {
            None => put_session(out, &state),
            Some(delay_ms) => put_ending(out, &EndingState { session: state, delay_ms }),
        }
    }

    /// The session as plain data. Its live requests are not included: they refer to the session by its id.
    pub(super) fn state(&self, id: SessionId) -> SessionState {
        let kept = |(&seq, kept): (&Seq, &KeptReply)| KeptAnswer {
            seq,
            fingerprint: kept.fingerprint,
            reply: kept.reply.clone(),
            until: kept.until,
        };
        SessionState {
            id,
            secret_hash: self.secret_hash,
            ttl_ms: self.ttl_ms,
            lock_delay_ms: self.lock_delay_ms,
            linger_ms: self.linger_ms,
            label: self.label.clone(),
            identity: self.identity.clone(),
            highest: self.highest,
            done_through: self.done_through,
            kept: self.kept.iter().map(kept).collect(),
        }
    }
}

/// Length of the name in an answer, the only part whose length the client chooses.
fn name_bytes(reply: &Reply) -> u64 {
    match reply {
        Reply::Refused(
            Rejection::LimitMismatch { name, .. }
            | Rejection::NoLimit { name }
            | Rejection::TooManyWaiters { name },
        ) => name.as_str().len() as u64,
        _ => 0,
    }
}

/// The sessions of a table: live ones, and ended ones that still have requests or answers. They are changed
/// only through these methods, which save the old state for a snapshot in progress.
#[derive(Default)]
pub(super) struct Sessions {
    by_id: BTreeMap<SessionId, TableSession>,
    ending: BTreeSet<SessionId>,
    /// Sessions with confirmed answers that are still kept.
    forgetting: BTreeSet<SessionId>,
    bytes: u64,
    accounts: Accounts,
    walk: Option<Box<SessionsCursor>>,
}

/// Mutable access to a session. When dropped, it updates the sums and lists that cover all sessions.
pub(super) struct SessionMut<'a> {
    id: SessionId,
    session: &'a mut TableSession,
    bytes: &'a mut u64,
    bytes_before: u64,
    accounts: &'a mut Accounts,
    forgetting: &'a mut BTreeSet<SessionId>,
}

impl Deref for SessionMut<'_> {
    type Target = TableSession;

    fn deref(&self) -> &TableSession {
        self.session
    }
}

impl DerefMut for SessionMut<'_> {
    fn deref_mut(&mut self) -> &mut TableSession {
        self.session
    }
}

impl Drop for SessionMut<'_> {
    fn drop(&mut self) {
        let bytes = self.session.bytes();
        if bytes != self.bytes_before {
            *self.bytes = *self.bytes - self.bytes_before + bytes;
            self.accounts.resize(self.session.account, self.bytes_before, bytes);
        }
        if self.session.has_confirmed() {
            self.forgetting.insert(self.id);
        } else if !self.forgetting.is_empty() {
            self.forgetting.remove(&self.id);
        }
    }
}

impl Sessions {
    /// Number of live sessions.
    pub(super) fn len(&self) -> usize {
        self.by_id.len() - self.ending.len()
    }

    /// Accounted size of all sessions in bytes, without their requests.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Keeps an account for a hold that is closed from now on, also after its last session.
    pub(super) fn keep_account(&mut self, id: AccountId) {
        self.accounts.keep(id);
    }

    /// The closed hold is gone.
    pub(super) fn release_account(&mut self, id: AccountId) {
        self.accounts.remove(id, 0);
    }

    /// Live sessions, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &TableSession)> {
        self.after(SessionId(0))
    }

    /// Live sessions with an id above `id`.
    pub(super) fn after(&self, id: SessionId) -> impl Iterator<Item = (SessionId, &TableSession)> {
        let sessions = self.by_id.range((Bound::Excluded(id), Bound::Unbounded));
        sessions.filter(|(_, session)| session.ending.is_none()).map(|(&id, session)| (id, session))
    }

    /// Ended sessions that still have requests or answers, by id.
    pub(super) fn ending(&self) -> impl Iterator<Item = EndingState> {
        self.ending.iter().filter_map(|&id| {
            let session = self.by_id.get(&id)?;
            Some(EndingState { session: session.state(id), delay_ms: session.ending? })
        })
    }

    /// A live session.
    pub(super) fn get(&self, id: SessionId) -> Option<&TableSession> {
        self.by_id.get(&id).filter(|session| session.ending.is_none())
    }

    /// Mutable access to a live session.
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<SessionMut<'_>> {
        self.get(id)?;
        self.change(id)
    }

    /// Mutable access to a session, live or ending.
    pub(super) fn change(&mut self, id: SessionId) -> Option<SessionMut<'_>> {
        self.preserve(id);
        let session = self.by_id.get_mut(&id)?;
        let (bytes_before, bytes) = (session.bytes(), &mut self.bytes);
        let (accounts, forgetting) = (&mut self.accounts, &mut self.forgetting);
        Some(SessionMut { id, session, bytes, bytes_before, accounts, forgetting })
    }

    /// Adds a session; returns true if the id is new. A snapshot in progress ignores the session, since its
    /// id is above the iterator's range.
    pub(super) fn insert(&mut self, id: SessionId, mut session: TableSession) -> bool {
        self.bytes += session.bytes();
        session.account = self.accounts.add(&session.identity, session.bytes(), session.ending.is_none());
        if session.ending.is_some() {
            self.ending.insert(id);
        }
        if session.has_confirmed() {
            self.forgetting.insert(id);
        }
        self.by_id.insert(id, session).is_none()
    }

    /// Ends a live session and returns the hash of its secret. For all later commands the session is gone;
    /// its requests are removed in pieces.
    pub(super) fn end(&mut self, id: SessionId, expired: bool) -> Option<[u8; 32]> {
        let mut session = self.get_mut(id)?;
        session.ending = Some(if expired { session.lock_delay_ms } else { 0 });
        let (secret_hash, account) = (session.secret_hash, session.account);
        drop(session);
        self.accounts.ended(account);
        self.ending.insert(id);
        Some(secret_hash)
    }

    /// Whether there are ended sessions to remove, or confirmed answers to drop.
    pub(super) fn has_backlog(&self) -> bool {
        !self.ending.is_empty() || !self.forgetting.is_empty()
    }

    /// Drops confirmed answers of one session, up to the bound of a command.
    pub(super) fn forget_some(&mut self) {
        if let Some(&id) = self.forgetting.first()
            && let Some(mut session) = self.change(id)
        {
            session.forget_confirmed();
        }
    }

    /// Takes the next request of an ending session; also returns the lock-delay of the session in
    /// milliseconds. Removes sessions that have no requests left, with their kept answers. `None` if no
    /// request is left, or if the budget is spent.
    pub(super) fn pop_ending(&mut self, budget: &mut Budget) -> Option<(SessionId, RequestId, u64)> {
        while !budget.is_spent()
            && let Some(&id) = self.ending.first()
        {
            let mut session = self.change(id)?;
            if let Some((_, request)) = session.live.pop_first() {
                let delay_ms = session.ending.unwrap_or_default();
                return Some((id, request, delay_ms));
            }
            while !budget.is_spent()
                && let Some(&seq) = session.kept.keys().next()
            {
                budget.spend(1);
                session.remove_kept(seq);
            }
            if session.kept.is_empty() {
                drop(session);
                self.ending.pop_first();
                self.remove(id);
            }
        }
        None
    }

    /// The lock-delay in milliseconds of the holds of a session that has ended and still has requests.
    pub(super) fn lock_delay_of_ending(&self, id: SessionId) -> Option<u64> {
        self.by_id.get(&id)?.ending
    }

    /// Removes a request from its session, live or ending.
    pub(super) fn forget_request(&mut self, owner: Owner) {
        if let Some(mut session) = self.change(owner.session) {
            session.live.remove(&owner.seq);
        }
    }

    fn remove(&mut self, id: SessionId) {
        self.preserve(id);
        if let Some(session) = self.by_id.remove(&id) {
            self.bytes -= session.bytes();
            self.accounts.remove(session.account, session.bytes());
            self.forgetting.remove(&id);
        }
    }

    fn preserve(&mut self, id: SessionId) {
        if let Some(walk) = &mut self.walk
            && let Some(session) = self.by_id.get(&id)
            && walk.note(id)
        {
            walk.saved.save(|out| session.put(id, out));
        }
    }

    /// Starts the snapshot iterator over the sessions with ids up to `last`; sessions with higher ids will be
    /// new.
    pub(super) fn begin_walk(&mut self, last: SessionId) {
        self.walk = Some(Box::new(SessionsCursor::new(last)));
    }

    /// Advances the snapshot iterator; returns true when done.
    pub(super) fn walk_on(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        for (&id, session) in self.by_id.range(walk.range()) {
            if pen.is_spent() {
                return false;
            }
            if walk.pass(id, pen) {
                pen.put(1 + session.kept_count(), |out| session.put(id, out));
            }
        }
        walk.pass_all();
        true
    }

    /// Writes out the copy-on-write buffer; returns true once it is empty.
    pub(super) fn write_saved(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }
}
