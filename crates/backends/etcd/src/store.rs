//! Lease-store entries as keys of etcd: renewals and ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::leased::{Attempt, Entry, Note, Renewed, Store, Tried, is_revoked};
use lockkeeper_backend::{BackendError, BackendErrorKind, BootInstant, BoxFuture, CallError};
use lockkeeper_core::End;
use tokio::time::Instant;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::range_request::{SortOrder, SortTarget};
use super::api::request_op::Request as Op;
use super::api::response_op::Response as Answered;
use super::api::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use super::connection::{EtcdFailure, Link, MemberConnection, NoLease};
use super::layout::{Layout, key};
use super::leases::{EntryLease, Leases, seconds};
use super::watcher::KeyWatcher;

/// Reads in one transaction; etcd allows 128 by default.
const READS_MAX: usize = 100;

/// The keys of one client.
pub(super) struct EtcdStore {
    pub(super) link: Arc<Link>,
    pub(super) layout: Layout,
    pub(super) leases: Leases,
    pub(super) watcher: KeyWatcher,
    /// Names this client's wake key.
    pub(super) client: String,
}

impl Store for EtcdStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move {
            match self.try_hold(&attempt).await {
                Ok(tried) => Ok(tried),
                Err(EtcdFailure::Silent(error)) => Err(error),
                // The next attempt creates another lease.
                Err(EtcdFailure::Answered(NoLease)) => {
                    self.leases.remove(&attempt.entry.id);
                    Err(CallError::NOT_SENT)
                }
                Err(EtcdFailure::Refused(error)) => self.refused(&attempt, error).await,
            }
        })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let mut renewed = Vec::with_capacity(entries.len());
            for entries in entries.chunks(READS_MAX) {
                let some = self.renew_some(entries, Instant::now() + limit).await;
                renewed.append(&mut some.map_err(EtcdFailure::of_repeated)?);
            }
            Ok(renewed)
        })
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move {
            self.watcher.forget(&entry.id);
            self.end(&entry, doubt).await.map_err(EtcdFailure::of_repeated)
        })
    }

    fn set_value(&self, entry: Arc<Entry>, value: Arc<[u8]>) -> BoxFuture<'_, Result<Renewed, CallError>> {
        Box::pin(async move {
            let Some(lease) = self.leases.of(&entry.id) else { return Ok(Renewed::Gone) };
            let deadline = Instant::now() + entry.limit();
            let change = |note: Note| note.revoked.is_none().then(|| note.with_value(&value));
            let set = self.rewrite(&entry, lease, None, change, deadline);
            set.await.map_err(EtcdFailure::of_repeated)
        })
    }

    fn trouble(&self) -> Option<String> {
        self.link.trouble().map(|error| error.to_string())
    }
}

impl EtcdStore {
    /// Creates a lease.
    pub(super) async fn grant_lease(&self, ttl: Duration, deadline: Instant) -> Result<i64, EtcdFailure> {
        let asked = LeaseGrantRequest { ttl: seconds(ttl), id: 0 };
        let granted = self
            .link
            .call(deadline, asked, |connection, request| {
                let mut lease = connection.lease();
                Box::pin(async move { lease.lease_grant(request).await })
            })
            .await;
        // A lease whose answer is lost has no key, and expires.
        Ok(granted.map_err(EtcdFailure::not_done)?.id)
    }

    /// Ends a lease, and with it the keys that have it.
    pub(super) async fn end_lease(&self, lease: i64, deadline: Instant) -> Result<(), EtcdFailure> {
        let asked = LeaseRevokeRequest { id: lease };
        let ended = self.link.call(deadline, asked, |connection, request| {
            let mut lease = connection.lease();
            Box::pin(async move { lease.lease_revoke(request).await })
        });
        ended.await.map(drop)
    }

    pub(super) async fn txn(&self, deadline: Instant, txn: TxnRequest) -> Result<TxnResponse, EtcdFailure> {
        let call = |connection: &MemberConnection, request| -> BoxFuture<'static, _> {
            let mut kv = connection.kv();
            Box::pin(async move { kv.txn(request).await })
        };
        self.link.call(deadline, txn, call).await
    }

    /// Renews leases; returns for each whether it exists.
    pub(super) async fn keep_alive(
        &self,
        leases: &[i64],
        deadline: Instant,
    ) -> Result<Vec<bool>, EtcdFailure> {
        let requests: Vec<_> = leases.iter().map(|&id| LeaseKeepAliveRequest { id }).collect();
        let called = self.link.call(deadline, requests, |connection, request| {
            let mut lease = connection.lease();
            Box::pin(async move {
                let count = request.get_ref().len();
                let mut live = Vec::with_capacity(count);
                let mut answers = lease.lease_keep_alive(request.map(tokio_stream::iter)).await?.into_inner();
                while live.len() < count {
                    match answers.message().await? {
                        Some(answer) => live.push(answer.ttl > 0),
                        None => return Err(tonic::Status::unavailable("the stream of renewals has ended")),
                    }
                }
                Ok(tonic::Response::new(live))
            })
        });
        called.await
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
        let known: Vec<EntryLease> = known().map(|(_, lease)| lease).collect();
        let begun = BootInstant::now();
        let found = self.txn(deadline, TxnRequest { success: reads, ..TxnRequest::default() }).await?;
        let states: Vec<Renewed> = ranges(found.responses).iter().map(state).collect();
        if states.len() != known.len() {
            return Err(unreadable());
        }
        let kept = || known.iter().zip(&states).filter(|(_, state)| **state == Renewed::Kept);
        // Renew both leases: a key that now has the longer one may have had the other a moment ago.
        let ids: Vec<i64> = kept().flat_map(|(lease, _)| [Some(lease.id), lease.closing]).flatten().collect();
        let live = self.keep_alive(&ids, deadline).await?;
        let live: HashSet<i64> =
            ids.into_iter().zip(live).filter(|(_, is_live)| *is_live).map(|(id, _)| id).collect();
        let is_live = |lease: &EntryLease| {
            live.contains(&lease.id) && lease.closing.is_none_or(|closing| live.contains(&closing))
        };
        for (entry, lease) in entries.iter().zip(&leases) {
            if let Some(lease) = lease.filter(|lease| live.contains(&lease.id)) {
                self.leases.renewed(&entry.id, lease.id, begun);
            }
        }
        let mut states = known.iter().zip(&states).map(|(lease, state)| match state {
            Renewed::Kept if !is_live(lease) => Renewed::Gone,
            state => *state,
        });
        Ok(leases.iter().map(|lease| lease.and_then(|_| states.next()).unwrap_or(Renewed::Gone)).collect())
    }

    /// Handles a refused attempt that may have created its key. The entry keeps its lease while the key may
    /// exist, since an attempt with another lease would queue behind that key. A waiter keeps its position.
    async fn refused(&self, attempt: &Attempt, error: BackendError) -> Result<Tried, CallError> {
        let entry = &attempt.entry;
        let Some(lease) = self.leases.of(&entry.id) else { return Ok(Tried::Refused(error)) };
        let keeps_position = attempt.wait && lease.revision.is_some() && error.kind.may_pass();
        if !keeps_position && self.revoke(entry, lease, Instant::now() + entry.limit()).await.is_ok() {
            return Ok(Tried::Refused(error));
        }
        Err(CallError { sent: true, ..CallError::refused(error) })
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, EtcdFailure> {
        let deadline = Instant::now() + entry.limit();
        let Some(lease) = self.leases.of_ending(entry, doubt, BootInstant::now()) else {
            return Ok(End::Gone);
        };
        if lease.holds && !entry.keep_closed.is_zero() {
            return self.close(entry, lease, doubt, deadline).await;
        }
        let (true, Some(revision)) = (!doubt, lease.revision) else {
            return self.revoke(entry, lease, deadline).await;
        };
        let own = key(&self.layout.folder(&entry.name), entry.mode, lease.id);
        let txn = TxnRequest {
            compare: vec![created_at(&own, revision)],
            success: vec![read(&own), delete(&own)],
            failure: Vec::new(),
        };
        let ended = match self.txn(deadline, txn).await {
            Ok(ended) => ended,
            Err(failure) => {
                // The key may or may not be deleted. A repeated end revokes the lease itself.
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
            self.leases.keep(lease, entry.ttl);
        }
        if let Some(closing) = lease.closing {
            // A failure is ignored: the lease expires.
            let _ = self.end_lease(closing, deadline).await;
        }
        Ok(match (was, lease.holds) {
            (Some(Renewed::Revoked), _) => End::Broken,
            (_, true) => End::Released,
            (_, false) => End::Left,
        })
    }

    /// Revokes the entry's leases, which deletes its key, and makes a delayed attempt that would create it
    /// fail.
    pub(super) async fn revoke(
        &self,
        entry: &Entry,
        lease: EntryLease,
        deadline: Instant,
    ) -> Result<End, EtcdFailure> {
        if let Some(closing) = lease.closing {
            match self.end_lease(closing, deadline).await {
                Ok(()) | Err(EtcdFailure::Answered(NoLease)) => {}
                Err(failure) => return Err(failure),
            }
        }
        match self.end_lease(lease.id, deadline).await {
            Ok(()) => {
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

/// The condition that a key was not written since it was read.
pub(super) fn unchanged(key: &KeyValue) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.key.clone(),
        target_union: Some(TargetUnion::ModRevision(key.mod_revision)),
        range_end: Vec::new(),
    }
}

/// Writes the value of a key that was not written since it was read. `lease`: its new lease; `None` keeps the
/// present one.
pub(super) fn put_unchanged(key: &KeyValue, note: &Note, lease: Option<i64>) -> TxnRequest {
    let put = PutRequest {
        key: key.key.clone(),
        value: note.bytes(),
        lease: lease.unwrap_or_default(),
        ignore_lease: lease.is_none(),
    };
    TxnRequest {
        compare: vec![created_at(&key.key, key.create_revision), unchanged(key)],
        success: vec![RequestOp { request: Some(Op::RequestPut(put)) }],
        failure: Vec::new(),
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

/// Reads a key range in the order of creation.
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

/// The state of an entry, from a read of its key.
pub(super) fn state(read: &RangeResponse) -> Renewed {
    match read.kvs.first() {
        None => Renewed::Gone,
        Some(found) if is_revoked(&found.value) => Renewed::Revoked,
        Some(_) => Renewed::Kept,
    }
}

/// The owner of a key, for display.
pub(super) fn owner(found: &KeyValue) -> String {
    match Note::read(&found.value) {
        Some(note) => note.owner,
        None => format!("another client (`lease {:x}`)", found.lease),
    }
}

pub(super) fn unreadable() -> EtcdFailure {
    EtcdFailure::Refused(BackendError::new(
        BackendErrorKind::Operator,
        "etcd's answer can't be read: it lacks a part; etcd 3.4 or later is needed",
    ))
}
