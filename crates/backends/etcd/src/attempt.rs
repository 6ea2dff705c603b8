//! One attempt to acquire: creates the entry's key in the lock's queue, and decides by the keys ahead whether
//! the entry holds the lock.

use lockkeeper_backend::leased::{
    Attempt, Entry, Note, NotePermit, PermitTurn, SLOT_PAUSE, Tried, broken_at_grant, is_revoked,
    other_limit, permit_turn, waiters_ahead,
};
use lockkeeper_backend::{BootInstant, Busy};
use lockkeeper_core::{ModeKind, Token};
use tokio::time::{Instant, sleep};

use super::api::range_request::SortOrder;
use super::api::request_op::Request as Op;
use super::api::{Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use super::connection::{EtcdFailure, NoLease};
use super::layout::{key, kind, obstacles, permits};
use super::leases::{EntryLease, RestingWait};
use super::store::{
    EtcdStore, created_at, delete, owner, put_unchanged, ranges, read, sorted, unchanged, unreadable,
};
use super::watcher::Watched;

/// Poll interval of a waiter without watch events: the etcd member that serves its watch may be partitioned.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);
/// Number of keys ahead of a waiter that one attempt reads; more if the lock has more permits.
const COUNTED: i64 = 100;
/// Fewer waiters than this may acquire and release in turn within 100 ms, the delay of a lagging watch.
const NEAR: u64 = 16;

impl EtcdStore {
    pub(super) async fn try_hold(&self, attempt: &Attempt) -> Result<Tried, EtcdFailure> {
        let entry = &*attempt.entry;
        let deadline = Instant::now() + entry.limit();
        let lease = match self.leases.of(&entry.id).or_else(|| self.leases.reuse(entry, BootInstant::now())) {
            Some(lease) => lease,
            None => {
                let begun = BootInstant::now();
                let lease = EntryLease::new(self.grant_lease(entry.ttl, deadline).await?, begun);
                self.leases.set(&entry.id, lease);
                lease
            }
        };
        if self.leases.is_ended(&entry.id) {
            // The entry was ended while this attempt waited for a lease. A failed revoke is ignored: the
            // lease expires.
            let _ = self.revoke(entry, lease, deadline).await;
            self.leases.remove(&entry.id);
            return Err(EtcdFailure::NOT_DONE);
        }
        if let Some(created) = lease.revision
            && let Some(tried) = self.attempt_by_reads(attempt, lease, created, deadline).await?
        {
            return Ok(tried);
        }
        self.join_queue(attempt, EntryLease { revision: None, holds: false, ..lease }, deadline).await
    }

    /// Creates the entry's key. For an entry that does not wait, creates it only if the entry would hold.
    async fn join_queue(
        &self,
        attempt: &Attempt,
        mut lease: EntryLease,
        deadline: Instant,
    ) -> Result<Tried, EtcdFailure> {
        let entry = &*attempt.entry;
        let folder = self.layout.folder(&entry.name);
        let own = key(&folder, entry.mode, lease.id);
        let permit = self.permit_asked(entry, &folder, deadline).await?;
        let note = Note { client: self.client.clone(), permit, ..Note::of(attempt) };
        let begun = BootInstant::now();
        let taken = self.txn(deadline, take(attempt, &folder, &own, lease.id, &note)).await?;
        let mut answers = ranges(taken.responses);
        let (Some(first), mine) = (answers.pop(), answers.pop()) else { return Err(unreadable()) };
        let created = match (taken.succeeded, mine.and_then(|mine| mine.kvs.into_iter().next())) {
            (true, _) => taken.header.map_or(0, |header| header.revision),
            (false, Some(mine)) => {
                if is_revoked(&mine.value) {
                    return Err(EtcdFailure::Refused(broken_at_grant()));
                }
                mine.create_revision
            }
            // The lock isn't free, and this entry does not wait.
            (false, None) => {
                // The lease can be reused only if no earlier attempt is in doubt: such an attempt may still
                // create a key with this lease, so the entry's end revokes the lease.
                if attempt.first {
                    self.leases.remove(&entry.id);
                    self.leases.keep(lease, entry.ttl);
                }
                return Ok(Tried::Busy(busy(&first)));
            }
        };
        if lease.renewed_at < attempt.ttl_from {
            // Renew only after the transaction, which a majority has confirmed. A deposed leader may answer
            // this renewal; its successor then gives the lease a full ttl from a time after the transaction.
            match self.keep_alive(&[lease.id], deadline).await {
                Ok(live) if live == [true] => lease.renewed_at = begun,
                Ok(_) => return Err(EtcdFailure::Answered(NoLease)),
                Err(_) => return Err(EtcdFailure::IN_DOUBT),
            }
        }
        let lease = EntryLease { revision: Some(created), ..lease };
        self.leases.set(&entry.id, lease);
        let is_first = first.kvs.first().is_none_or(|first| first.create_revision >= created);
        let tried = match is_first && permit.is_none() {
            true => self.hold(entry, lease, created, None, deadline).await.map(Some),
            false => self.attempt_by_reads(attempt, lease, created, deadline).await,
        };
        match tried {
            Ok(tried) => tried.ok_or(EtcdFailure::IN_DOUBT),
            // The key exists.
            Err(failure) => Err(failure.in_doubt()),
        }
    }

    /// The entry's permit request; `None` in other modes. A request without a number of permits uses the
    /// number in use.
    async fn permit_asked(
        &self,
        entry: &Entry,
        folder: &str,
        deadline: Instant,
    ) -> Result<Option<NotePermit>, EtcdFailure> {
        let mut in_use = None;
        if entry.mode == (lockkeeper_core::Mode::Permit { of: None }) {
            let any = RangeRequest { limit: 1, ..sorted(permits(folder), SortOrder::Ascend) };
            let any = TxnRequest { success: vec![range(any)], ..TxnRequest::default() };
            let found = ranges(self.txn(deadline, any).await?.responses);
            in_use = found.first().and_then(|found| permit_of(found.kvs.first()?)).map(|permit| permit.of);
        }
        NotePermit::asked(&entry.name, entry.mode, in_use).map_err(EtcdFailure::Refused)
    }

    /// Attempts for an entry whose key exists, by reads only: etcd does not write reads to its log, unlike
    /// the transaction that creates a key. `None` if the key no longer exists.
    async fn attempt_by_reads(
        &self,
        attempt: &Attempt,
        lease: EntryLease,
        created: i64,
        deadline: Instant,
    ) -> Result<Option<Tried>, EtcdFailure> {
        let entry = &*attempt.entry;
        if let Some(wait) = self.leases.wait_of(&entry.id)
            && self.is_unchanged(&wait, deadline).await?
        {
            self.watcher.watch(&entry.id, wait.watched, wait.is_near);
            return Ok(Some(Tried::Waits { ahead: wait.ahead, again: AGAIN }));
        }
        let folder = self.layout.folder(&entry.name);
        let own = key(&folder, entry.mode, lease.id);
        // A permit request needs only as many earlier keys as there are permits. Its own key has that number.
        let own_permit = |mine: &KeyValue| permit_of(mine).map_or(COUNTED, |permit| i64::from(permit.of));
        let mut count = COUNTED;
        loop {
            let before = RequestOp {
                request: Some(Op::RequestRange(RangeRequest {
                    limit: count,
                    ..before(&folder, entry, created)
                })),
            };
            let reads = TxnRequest { success: vec![read(&own), before], ..TxnRequest::default() };
            let mut answers = ranges(self.txn(deadline, reads).await?.responses);
            let (Some(before), Some(mine)) = (answers.pop(), answers.pop()) else { return Err(unreadable()) };
            let Some(mine) = mine.kvs.into_iter().next().filter(|mine| mine.create_revision == created)
            else {
                self.leases.set(&entry.id, EntryLease { revision: None, holds: false, ..lease });
                return Ok(None);
            };
            if is_revoked(&mine.value) {
                return Err(EtcdFailure::Refused(broken_at_grant()));
            }
            if entry.mode.kind() == ModeKind::Permit && own_permit(&mine) > count && before.more {
                count = own_permit(&mine);
                continue;
            }
            // `before` lists the nearest key first; `waiters_ahead` takes queue order.
            let earlier = before.kvs.iter().rev().map(|other| kind(&folder, &other.key));
            let ahead = waiters_ahead(earlier, permit_of(&mine));
            let is_near = ahead < NEAR && !before.more;
            let watched = match self.awaited(attempt, &folder, &mine, &before, lease, deadline).await? {
                Awaited::Nothing(permit) => {
                    return self.hold(entry, lease, created, permit, deadline).await.map(Some);
                }
                Awaited::Slot(_) if !attempt.wait && Instant::now() + SLOT_PAUSE < deadline => {
                    sleep(SLOT_PAUSE).await;
                    continue;
                }
                Awaited::Change(watched) | Awaited::Slot(watched) => watched,
                Awaited::Lost => continue,
            };
            if !attempt.wait {
                // Without `wait`, only a permit request creates its key before it is known to hold.
                self.withdraw(attempt, lease, &own, created, deadline).await?;
                return Ok(Some(Tried::Busy(busy(&before))));
            }
            let wait = before.kvs.iter().find(|key| watched.is_of(&key.key)).map(|awaited| RestingWait {
                own: own.clone(),
                unchanged: [unchanged(&mine), unchanged(awaited)],
                watched: watched.clone(),
                ahead,
                is_near,
            });
            self.leases.wait(&entry.id, lease, wait);
            self.watcher.watch(&entry.id, watched, is_near);
            return Ok(Some(Tried::Waits { ahead, again: AGAIN }));
        }
    }

    /// Whether both the waiter's key and the key that it waits for are unchanged. With this check an idle
    /// waiter reads two keys per attempt instead of all keys ahead.
    async fn is_unchanged(&self, wait: &RestingWait, deadline: Instant) -> Result<bool, EtcdFailure> {
        // The read makes the transaction linearizable: a partitioned member answers a transaction of
        // comparisons alone, but not one with a read.
        let own = RangeRequest { key: wait.own.clone(), count_only: true, ..RangeRequest::default() };
        let compare = wait.unchanged.to_vec();
        let txn = TxnRequest { compare, success: vec![range(own)], ..TxnRequest::default() };
        Ok(self.txn(deadline, txn).await?.succeeded)
    }

    /// Determines from the keys ahead what the entry waits for. If a permit request waits for nothing, writes
    /// its slot.
    async fn awaited(
        &self,
        attempt: &Attempt,
        folder: &str,
        mine: &KeyValue,
        before: &RangeResponse,
        lease: EntryLease,
        deadline: Instant,
    ) -> Result<Awaited, EtcdFailure> {
        let Some(own) = permit_of(mine) else {
            let next = before.kvs.first().map(|next| Watched::end(next.key.clone()));
            return Ok(next.map_or(Awaited::Nothing(None), Awaited::Change));
        };
        if own.slot.is_some() {
            return Ok(Awaited::Nothing(Some(own)));
        }
        let earlier: Vec<Option<NotePermit>> = before
            .kvs
            .iter()
            .map(|key| permit_of(key).filter(|_| kind(folder, &key.key) == ModeKind::Permit))
            .collect();
        Ok(match permit_turn(&earlier, own.of) {
            PermitTurn::AwaitsChange { at } => Awaited::Change(Watched::change(before.kvs[at].key.clone())),
            PermitTurn::AwaitsSlot { at } => Awaited::Slot(Watched::change(before.kvs[at].key.clone())),
            PermitTurn::AwaitsEnd => Awaited::Change(Watched::any_end(obstacles(folder, attempt.entry.mode))),
            PermitTurn::Mismatch { have } => {
                self.withdraw(attempt, lease, &mine.key, mine.create_revision, deadline).await?;
                return Err(EtcdFailure::Refused(other_limit(&attempt.entry.name, have, own.of)));
            }
            PermitTurn::Takes { slot } => {
                let permit = NotePermit { slot: Some(slot), ..own };
                let Some(note) = Note::read(&mine.value) else { return Err(unreadable()) };
                let note = Note { permit: Some(permit), ..note };
                match self.txn(deadline, put_unchanged(mine, &note, None)).await?.succeeded {
                    true => Awaited::Nothing(Some(permit)),
                    // The key has changed: by an operator's break, or by an earlier attempt in doubt.
                    false => Awaited::Lost,
                }
            }
        })
    }

    /// Deletes the key of an entry that does not wait, and detaches the lease from the entry.
    async fn withdraw(
        &self,
        attempt: &Attempt,
        lease: EntryLease,
        own: &[u8],
        created: i64,
        deadline: Instant,
    ) -> Result<(), EtcdFailure> {
        let entry = &*attempt.entry;
        if !attempt.first {
            // An earlier attempt without an answer may still create a key with this lease.
            return self.revoke(entry, lease, deadline).await.map(drop);
        }
        let txn = TxnRequest {
            compare: vec![created_at(own, created)],
            success: vec![delete(own)],
            failure: Vec::new(),
        };
        self.txn(deadline, txn).await?;
        self.leases.remove(&entry.id);
        self.leases.keep(lease, entry.ttl);
        Ok(())
    }

    /// The entry holds: its key was created at this revision, which is its token.
    async fn hold(
        &self,
        entry: &Entry,
        lease: EntryLease,
        created: i64,
        permit: Option<NotePermit>,
        deadline: Instant,
    ) -> Result<Tried, EtcdFailure> {
        let lease = self.prepare_closing(entry, lease, deadline).await?;
        self.leases.set(&entry.id, EntryLease { holds: true, ..lease });
        let token = u64::try_from(created).ok().and_then(Token::new).ok_or_else(unreadable)?;
        Ok(Tried::granted(token, permit.and_then(NotePermit::grant)))
    }
}

/// What an entry in the queue waits for.
enum Awaited {
    /// The entry holds the lock, with this permit if its mode is `permit`.
    Nothing(Option<NotePermit>),
    Change(Watched),
    /// A permit is free, but an earlier request has not written its slot yet.
    Slot(Watched),
    /// Its own key was written meanwhile.
    Lost,
}

fn range(range: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Op::RequestRange(range)) }
}

/// The permit that a key's request asks for or has.
pub(super) fn permit_of(key: &KeyValue) -> Option<NotePermit> {
    Note::read(&key.value)?.permit
}

/// The transaction of an attempt. Its read responses are the entry's own key, unless this transaction created
/// that key, and the lock's first key.
fn take(attempt: &Attempt, folder: &str, own: &[u8], lease: i64, note: &Note) -> TxnRequest {
    let put = PutRequest { key: own.to_vec(), value: note.bytes(), lease, ..PutRequest::default() };
    let absent = match attempt.wait || note.permit.is_some() {
        true => created_at(own, 0),
        // True if the lock has no conflicting key: a comparison of a range applies to each key in the range.
        false => {
            let (begin, range_end) = obstacles(folder, attempt.entry.mode);
            Compare { range_end, ..created_at(&begin, 0) }
        }
    };
    let first = || {
        range(RangeRequest { limit: 1, ..sorted(obstacles(folder, attempt.entry.mode), SortOrder::Ascend) })
    };
    TxnRequest {
        compare: vec![absent],
        success: vec![RequestOp { request: Some(Op::RequestPut(put)) }, first()],
        failure: vec![read(own), first()],
    }
}

/// The keys that an entry waits for, created before this revision, the latest first.
fn before(folder: &str, entry: &Entry, created: i64) -> RangeRequest {
    RangeRequest {
        // The slots of permits are in the values.
        keys_only: entry.mode.kind() != ModeKind::Permit,
        max_create_revision: created - 1,
        ..sorted(obstacles(folder, entry.mode), SortOrder::Descend)
    }
}

fn busy(first: &RangeResponse) -> Busy {
    // A lock that is closed after a hold has no holder.
    let is_held = |found: &&KeyValue| Note::read(&found.value).is_none_or(|note| !note.closed);
    Busy {
        holder: first.kvs.first().filter(is_held).map(owner),
        queued_ahead: u64::try_from(first.count - 1).unwrap_or_default(),
    }
}
