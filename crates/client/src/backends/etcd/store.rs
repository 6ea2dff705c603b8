//! Entries as keys of etcd: attempts, renewals, and ends.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, Mode, Token};
use tokio::time::Instant;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::range_request::{SortOrder, SortTarget};
use super::api::request_op::Request as Op;
use super::api::response_op::Response as Answered;
use super::api::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use super::connection::{EtcdFailure, Link, NoLease};
use super::layout::{Layout, key, obstacles};
use super::leases::{EntryLease, Leases, seconds};
use super::watcher::KeyWatcher;
use crate::backend::{BoxFuture, CallError};
use crate::backends::leased::{Attempt, Entry, Note, Renewed, Store, Tried, broken_at_grant, is_revoked};
use crate::error::{BackendError, BackendErrorKind, Busy};
use crate::time::BootInstant;

/// A waiter attempts again after this time, even if no message came: the member that it watches may be cut off.
const AGAIN: Duration = Duration::from_secs(5);
/// How many of those before a waiter are counted.
const COUNTED: i64 = 100;
/// Reads in one transaction; etcd allows 128 by default.
const READS_MAX: usize = 100;

/// The keys of one client.
pub(super) struct EtcdStore(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) link: Arc<Link>,
    pub(super) layout: Layout,
    pub(super) leases: Leases,
    pub(super) watcher: KeyWatcher,
    /// Names this client's wake key.
    pub(super) client: String,
}

impl Store for EtcdStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            match inner.attempt(&attempt).await {
                Ok(tried) => Ok(tried),
                Err(EtcdFailure::Silent(error)) => Err(error),
                // The next attempt begins with another lease.
                Err(EtcdFailure::Answered(NoLease)) => {
                    inner.leases.remove(&attempt.entry.id);
                    Err(CallError { sent: false })
                }
                Err(EtcdFailure::Refused(error)) => {
                    // Its key may exist. If the lease can't be ended, it expires.
                    if let Some(lease) = inner.leases.of(&attempt.entry.id) {
                        let deadline = Instant::now() + attempt.entry.limit();
                        let _ = inner.revoke(&attempt.entry, lease, deadline).await;
                        inner.leases.remove(&attempt.entry.id);
                    }
                    Ok(Tried::Refused(error))
                }
            }
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.renew(&entries).await.map_err(EtcdFailure::of_repeated) })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            inner.watcher.forget(&entry.id);
            inner.finish(&entry, doubt).await.map_err(EtcdFailure::of_repeated)
        })
    }

    fn trouble(&self) -> Option<String> {
        self.0.link.trouble().map(|error| error.to_string())
    }
}

impl Inner {
    async fn attempt(&self, attempt: &Attempt) -> Result<Tried, EtcdFailure> {
        let entry = &*attempt.entry;
        let deadline = Instant::now() + entry.limit();
        let mut lease =
            match self.leases.of(&entry.id).or_else(|| self.leases.reuse(entry, BootInstant::now())) {
                Some(lease) => lease,
                None => self.grant_lease(entry, deadline).await?,
            };
        if self.leases.is_ended(&entry.id) {
            // While this attempt waited for a lease. If the lease can't be ended, it expires.
            let _ = self.revoke(entry, lease, deadline).await;
            self.leases.remove(&entry.id);
            return Err(EtcdFailure::NOT_DONE);
        }
        let folder = self.layout.folder(&entry.name);
        let own = key(&folder, entry.mode, lease.id);
        if let Some(created) = lease.revision
            && let Some(tried) = self.attempt_by_reads(entry, lease, created, deadline).await?
        {
            return Ok(tried);
        }
        let taken = self.txn(deadline, take(attempt, &folder, &own, lease.id, &self.client)).await?;
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
                // An earlier attempt without an answer may still create a key with this lease: then it is ended.
                if attempt.first {
                    self.leases.remove(&entry.id);
                    self.leases.keep(lease.id, entry.ttl, BootInstant::now());
                }
                return Ok(Tried::Busy(busy(&first)));
            }
        };
        if !lease.is_fresh {
            // The lease must live for a whole ttl from this attempt on. Only after the transaction, which a majority has
            // confirmed: a leader that was replaced may answer renewals for a while, and the next one begins the
            // lease anew later than this attempt then.
            match self.keep_alive(&[lease.id], deadline).await {
                Ok(live) if live == [true] => lease.is_fresh = true,
                Ok(_) => return Err(EtcdFailure::Answered(NoLease)),
                Err(_) => return Err(EtcdFailure::IN_DOUBT),
            }
        }
        let holds = first.kvs.first().is_none_or(|first| first.create_revision >= created);
        self.leases.set(&entry.id, EntryLease { revision: Some(created), holds, ..lease });
        if !holds {
            let before = before(&folder, entry.mode, created);
            let before = self
                .link
                .call(deadline, async |connection| connection.kv().range(connection.request(before)).await)
                .await?;
            if let Some(next) = before.kvs.first() {
                self.watcher.watch(&entry.id, next.key.clone());
                return Ok(Tried::Waits { ahead: before.kvs.len() as u64, again: AGAIN });
            }
            self.leases.set(&entry.id, EntryLease { revision: Some(created), holds: true, ..lease });
        }
        granted(created)
    }

    /// Attempts for an entry whose key exists, by reads only: unlike the transaction that creates keys, etcd does not write these to
    /// its log. `None` if the key does not exist any more.
    async fn attempt_by_reads(
        &self,
        entry: &Entry,
        lease: EntryLease,
        created: i64,
        deadline: Instant,
    ) -> Result<Option<Tried>, EtcdFailure> {
        let folder = self.layout.folder(&entry.name);
        let own = key(&folder, entry.mode, lease.id);
        let before = RequestOp { request: Some(Op::RequestRange(before(&folder, entry.mode, created))) };
        let reads = TxnRequest { success: vec![read(&own), before], ..TxnRequest::default() };
        let mut answers = ranges(self.txn(deadline, reads).await?.responses);
        let (Some(before), Some(mine)) = (answers.pop(), answers.pop()) else { return Err(unreadable()) };
        let Some(mine) = mine.kvs.first().filter(|mine| mine.create_revision == created) else {
            self.leases.set(&entry.id, EntryLease { revision: None, holds: false, ..lease });
            return Ok(None);
        };
        if is_revoked(&mine.value) {
            return Err(EtcdFailure::Refused(broken_at_grant()));
        }
        self.leases.set(&entry.id, EntryLease { holds: before.kvs.is_empty(), ..lease });
        match before.kvs.first() {
            Some(next) => {
                self.watcher.watch(&entry.id, next.key.clone());
                Ok(Some(Tried::Waits { ahead: before.kvs.len() as u64, again: AGAIN }))
            }
            None => granted(created).map(Some),
        }
    }

    /// Creates a lease for the entry, and records it.
    async fn grant_lease(&self, entry: &Entry, deadline: Instant) -> Result<EntryLease, EtcdFailure> {
        let asked = LeaseGrantRequest { ttl: seconds(entry.ttl), id: 0 };
        let granted = self
            .link
            .call(deadline, async |connection| {
                connection.lease().lease_grant(connection.request(asked)).await
            })
            .await;
        // A lease whose answer is lost has no key, and expires.
        let granted = granted.map_err(|failure| match failure {
            EtcdFailure::Silent(_) => EtcdFailure::NOT_DONE,
            failure => failure,
        })?;
        let lease = EntryLease { id: granted.id, is_fresh: true, revision: None, holds: false };
        self.leases.set(&entry.id, lease);
        Ok(lease)
    }

    pub(super) async fn txn(&self, deadline: Instant, txn: TxnRequest) -> Result<TxnResponse, EtcdFailure> {
        self.link.call(deadline, async |connection| connection.kv().txn(connection.request(txn)).await).await
    }

    /// Renews leases; returns for each whether it exists.
    async fn keep_alive(&self, leases: &[i64], deadline: Instant) -> Result<Vec<bool>, EtcdFailure> {
        let requests: Vec<_> = leases.iter().map(|&id| LeaseKeepAliveRequest { id }).collect();
        let count = requests.len();
        let mut live = Vec::with_capacity(count);
        let called = self.link.call(deadline, async |connection| {
            let request = connection.request(tokio_stream::iter(requests));
            let mut answers = connection.lease().lease_keep_alive(request).await?.into_inner();
            while live.len() < count {
                match answers.message().await? {
                    Some(answer) => live.push(answer.ttl > 0),
                    None => return Err(tonic::Status::unavailable("the stream of renewals has ended")),
                }
            }
            Ok(tonic::Response::new(()))
        });
        called.await?;
        Ok(live)
    }

    async fn renew(&self, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, EtcdFailure> {
        let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
        let mut renewed = Vec::with_capacity(entries.len());
        for entries in entries.chunks(READS_MAX) {
            renewed.append(&mut self.renew_some(entries, Instant::now() + limit).await?);
        }
        Ok(renewed)
    }

    /// Renews the leases of the entries whose keys exist and are not revoked.
    async fn renew_some(
        &self,
        entries: &[Arc<Entry>],
        deadline: Instant,
    ) -> Result<Vec<Renewed>, EtcdFailure> {
        let leases: Vec<Option<EntryLease>> = entries.iter().map(|entry| self.leases.of(&entry.id)).collect();
        let known = || entries.iter().zip(&leases).filter_map(|(entry, lease)| Some((entry, (*lease)?)));
        let read = |(entry, lease): (&Arc<Entry>, EntryLease)| {
            let key = key(&self.layout.folder(&entry.name), entry.mode, lease.id);
            RequestOp { request: Some(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() })) }
        };
        let reads: Vec<RequestOp> = known().map(read).collect();
        if reads.is_empty() {
            return Ok(vec![Renewed::Gone; entries.len()]);
        }
        let ids: Vec<i64> = known().map(|(_, lease)| lease.id).collect();
        let found = self.txn(deadline, TxnRequest { success: reads, ..TxnRequest::default() }).await?;
        let states: Vec<Renewed> = ranges(found.responses).iter().map(state).collect();
        if states.len() != ids.len() {
            return Err(unreadable());
        }
        let kept: Vec<i64> = ids
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == Renewed::Kept)
            .map(|(id, _)| *id)
            .collect();
        let live = self.keep_alive(&kept, deadline).await?;
        let mut live = live.into_iter();
        let mut states = states.into_iter().map(|state| match state {
            Renewed::Kept if live.next() != Some(true) => Renewed::Gone,
            state => state,
        });
        Ok(leases.iter().map(|lease| lease.and_then(|_| states.next()).unwrap_or(Renewed::Gone)).collect())
    }

    async fn finish(&self, entry: &Entry, doubt: bool) -> Result<End, EtcdFailure> {
        let deadline = Instant::now() + entry.limit();
        let Some(lease) = self.leases.of_ending(&entry.id) else { return Ok(End::Gone) };
        let (true, Some(revision)) = (!doubt, lease.revision) else {
            return self.revoke(entry, lease, deadline).await;
        };
        let own = key(&self.layout.folder(&entry.name), entry.mode, lease.id);
        let begun = BootInstant::now();
        let txn = TxnRequest {
            compare: vec![created_at(&own, revision)],
            success: vec![read(&own), delete(&own)],
            failure: Vec::new(),
        };
        let ended = match self.txn(deadline, txn).await {
            Ok(ended) => ended,
            Err(failure) => {
                // Whether the key is deleted is not known. A repeat ends the lease itself.
                self.leases.set(&entry.id, EntryLease { revision: None, ..lease });
                return Err(failure);
            }
        };
        self.leases.remove(&entry.id);
        if !ended.succeeded {
            return Ok(End::Gone);
        }
        let was = ranges(ended.responses).first().map(state);
        if was == Some(Renewed::Kept) {
            self.leases.keep(lease.id, entry.ttl, begun);
        }
        Ok(match (was, lease.holds) {
            (Some(Renewed::Revoked), _) => End::Broken,
            (_, true) => End::Released,
            (_, false) => End::Left,
        })
    }

    /// Ends the entry's lease, and with it the key, also one that a late attempt would create.
    async fn revoke(&self, entry: &Entry, lease: EntryLease, deadline: Instant) -> Result<End, EtcdFailure> {
        let asked = LeaseRevokeRequest { id: lease.id };
        let revoked = self
            .link
            .call(deadline, async |connection| {
                connection.lease().lease_revoke(connection.request(asked)).await
            })
            .await;
        match revoked {
            Ok(_) => {
                self.leases.remove(&entry.id);
                Ok(if lease.holds { End::Released } else { End::Left })
            }
            Err(EtcdFailure::Answered(NoLease)) => {
                self.leases.remove(&entry.id);
                Ok(End::Gone)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// The transaction of an attempt. Its answers: the own key, unless it was created just now, and the lock's first key.
fn take(attempt: &Attempt, folder: &str, own: &[u8], lease: i64, client: &str) -> TxnRequest {
    let note = Note { client: client.to_owned(), ..Note::of(attempt) };
    let put = PutRequest { key: own.to_vec(), value: note.bytes(), lease, ..PutRequest::default() };
    let absent = match attempt.wait {
        true => created_at(own, 0),
        // There is no key of the lock: a comparison of a range is one of each of its keys.
        false => {
            let (begin, range_end) = obstacles(folder, attempt.entry.mode);
            Compare { range_end, ..created_at(&begin, 0) }
        }
    };
    let first = || {
        let range =
            RangeRequest { limit: 1, ..sorted(obstacles(folder, attempt.entry.mode), SortOrder::Ascend) };
        RequestOp { request: Some(Op::RequestRange(range)) }
    };
    TxnRequest {
        compare: vec![absent],
        success: vec![RequestOp { request: Some(Op::RequestPut(put)) }, first()],
        failure: vec![read(own), first()],
    }
}

/// The keys that a request of this mode waits for, created before this revision, the latest first, at most [`COUNTED`].
fn before(folder: &str, mode: Mode, created: i64) -> RangeRequest {
    RangeRequest {
        limit: COUNTED,
        keys_only: true,
        max_create_revision: created - 1,
        ..sorted(obstacles(folder, mode), SortOrder::Descend)
    }
}

/// The grant of the key that was created at this revision.
fn granted(created: i64) -> Result<Tried, EtcdFailure> {
    let token = u64::try_from(created).ok().and_then(Token::new).ok_or_else(unreadable)?;
    Ok(Tried::granted(token))
}

/// The condition that a key was created at this revision; 0: that it does not exist.
pub(super) fn created_at(key: &[u8], revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.to_vec(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        range_end: Vec::new(),
    }
}

pub(super) fn read(key: &[u8]) -> RequestOp {
    let range = RangeRequest { key: key.to_vec(), ..RangeRequest::default() };
    RequestOp { request: Some(Op::RequestRange(range)) }
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
    RequestOp { request: Some(Op::RequestDeleteRange(delete)) }
}

/// The keys from the first up to the second, by their creation.
pub(super) fn sorted((key, range_end): (Vec<u8>, Vec<u8>), order: SortOrder) -> RangeRequest {
    RangeRequest {
        key,
        range_end,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// The answers of a transaction's reads.
pub(super) fn ranges(responses: Vec<super::api::ResponseOp>) -> Vec<RangeResponse> {
    let range = |response: super::api::ResponseOp| match response.response {
        Some(Answered::ResponseRange(range)) => Some(range),
        _ => None,
    };
    responses.into_iter().filter_map(range).collect()
}

/// What a read of an entry's key means for the entry.
fn state(read: &RangeResponse) -> Renewed {
    match read.kvs.first() {
        None => Renewed::Gone,
        Some(found) if is_revoked(&found.value) => Renewed::Revoked,
        Some(_) => Renewed::Kept,
    }
}

fn busy(first: &RangeResponse) -> Busy {
    let holder = |found: &KeyValue| owner(found);
    Busy {
        holder: first.kvs.first().map(holder),
        queued_ahead: u64::try_from(first.count - 1).unwrap_or_default(),
    }
}

/// The owner of a key, for display.
pub(super) fn owner(found: &KeyValue) -> String {
    match Note::read(&found.value) {
        Some(note) => note.owner,
        None => format!("another client of etcd, lease {:x}", found.lease),
    }
}

pub(super) fn unreadable() -> EtcdFailure {
    EtcdFailure::Refused(BackendError::new(
        BackendErrorKind::Operator,
        "etcd's answer can't be read: it lacks a part; etcd 3.4 or later is needed",
    ))
}
