//! Inspection: holders, waiters, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_backend::leased::{
    Note, PERMITS_MAX, Revocation, is_revoked, shown_holder, shown_waiter, untold_holder,
};
use lockkeeper_backend::{
    BackendError, BackendErrorKind, BreakOrder, Broken, CallError, HolderState, LockInfo,
};
use lockkeeper_core::{LockName, Mode, ModeKind, Token, TokenStatus};
use tokio::time::Instant;

use super::api::range_request::SortOrder;
use super::api::request_op::Request as Op;
use super::api::{KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use super::attempt::permit_of;
use super::connection::EtcdFailure;
use super::layout::{kind, obstacles, wake_key};
use super::store::{EtcdStore, created_at, delete, owner, sorted, unchanged};

/// Largest number of shared holders that are counted; further ones count as waiters.
const HOLDERS_COUNTED: i64 = 10_000;
/// How many waiters an inspection lists.
const WAITERS_SHOWN: i64 = 20;
/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);
/// Keys of one page of a list.
const PAGE: i64 = 1000;
/// Largest number of keys that a list reads.
const KEYS_MAX: usize = 100_000;
/// Tries of a break whose hold's key changes meanwhile.
const BREAKS_MAX: usize = 5;

impl EtcdStore {
    async fn range(&self, range: RangeRequest) -> Result<RangeResponse, BackendError> {
        let deadline = Instant::now() + LIMIT;
        let call = self.link.call(deadline, range, |connection, request| {
            let mut kv = connection.kv();
            Box::pin(async move { kv.range(request).await })
        });
        call.await.map_err(|failure| self.explained(failure))
    }

    fn explained(&self, failure: EtcdFailure) -> BackendError {
        match failure {
            EtcdFailure::Refused(error) => error,
            EtcdFailure::Answered(_) => {
                BackendError::new(BackendErrorKind::Operator, "etcd knows no such lease")
            }
            EtcdFailure::Silent(CallError { refusal: Some(refusal), .. }) => (*refusal).clone(),
            EtcdFailure::Silent(_) => self.link.trouble().unwrap_or_else(|| {
                BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!("etcd did not answer within {LIMIT:?}"),
                )
            }),
        }
    }

    pub(super) async fn lock_info(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let folder = self.layout.folder(&name);
        let all = sorted(obstacles(&folder, Mode::Exclusive), SortOrder::Ascend);
        let found = self.range(RangeRequest { limit: 1 + WAITERS_SHOWN, ..all }).await?;
        let count = usize::try_from(found.count).unwrap_or_default();
        let (held, mut keys) = (holders(&folder, &found.kvs), found.kvs);
        let held = match keys.first().map(|first| kind(&folder, &first.key)) {
            Some(ModeKind::Shared) if held == keys.len() && count > held => {
                self.shared_holders(&folder).await?
            }
            Some(ModeKind::Permit) if held == keys.len() && count > held => {
                let all = sorted(obstacles(&folder, Mode::Exclusive), SortOrder::Ascend);
                keys = self
                    .range(RangeRequest { limit: i64::from(PERMITS_MAX) + WAITERS_SHOWN, ..all })
                    .await?
                    .kvs;
                holders(&folder, &keys)
            }
            _ => held,
        };
        self.with_closed(info(name, &folder, keys.iter(), held, count), &keys).await
    }

    /// Marks the holds that have ended and keep the lock closed. `keys`: at least the keys of the shown
    /// holders.
    async fn with_closed(&self, mut info: LockInfo, keys: &[KeyValue]) -> Result<LockInfo, BackendError> {
        for (holder, key) in info.holds.iter_mut().zip(keys) {
            if let Some(left) = self.closed_for(key).await? {
                holder.state = HolderState::Closed { left };
                holder.label.clear();
            }
        }
        Ok(info)
    }

    /// The remaining time of a closed hold; `None` if the hold of this key has not ended.
    async fn closed_for(&self, key: &KeyValue) -> Result<Option<Duration>, BackendError> {
        let Some(note) = Note::read(&key.value).filter(|note| note.closes_ms > 0) else { return Ok(None) };
        let left =
            self.left(key.lease, Instant::now() + LIMIT).await.map_err(|failure| self.explained(failure))?;
        // Whole seconds, rounded down.
        Ok((note.closed || left < Duration::from_millis(note.closes_ms)).then_some(left))
    }

    /// The tokens of the holders that were read, without those whose holds are being broken or have ended.
    async fn live(&self, folder: &str, found: &RangeResponse) -> Result<Vec<Token>, BackendError> {
        let mut live = Vec::new();
        for key in found.kvs.iter().take(holders(folder, &found.kvs)) {
            if !is_revoked(&key.value) && self.closed_for(key).await?.is_none() {
                live.extend(token_of(key));
            }
        }
        Ok(live)
    }

    /// The number of shared keys that were created before the first exclusive one, up to [`HOLDERS_COUNTED`].
    async fn shared_holders(&self, folder: &str) -> Result<usize, BackendError> {
        let exclusive = sorted(obstacles(folder, Mode::Shared), SortOrder::Ascend);
        let first = self.range(RangeRequest { limit: 1, ..exclusive }).await?;
        // The keys are read and counted here: the count in etcd's answer ignores `max_create_revision`.
        let all = RangeRequest {
            keys_only: true,
            limit: HOLDERS_COUNTED,
            ..sorted(obstacles(folder, Mode::Exclusive), SortOrder::Ascend)
        };
        let before = match first.kvs.first() {
            Some(first) => RangeRequest { max_create_revision: first.create_revision - 1, ..all },
            None => all,
        };
        Ok(self.range(before).await?.kvs.len())
    }

    pub(super) async fn lock_infos(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
        let (mut key, range_end) = self.layout.all();
        let mut locks: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
        let mut count = 0;
        loop {
            let page =
                RangeRequest { key, range_end: range_end.clone(), limit: PAGE, ..RangeRequest::default() };
            let page = self.range(page).await?;
            count += page.kvs.len();
            let Some(last) = page.kvs.last().filter(|_| page.more) else {
                self.sort_in(page.kvs, prefix, &mut locks);
                break;
            };
            if count > KEYS_MAX {
                let what = format!(
                    "there are more than {KEYS_MAX} keys to look at; look at one lock, or below a prefix"
                );
                return Err(BackendError::new(BackendErrorKind::Refused, what));
            }
            key = [last.key.as_slice(), &[0]].concat();
            self.sort_in(page.kvs, prefix, &mut locks);
        }
        let mut infos = Vec::with_capacity(locks.len());
        for (name, mut keys) in locks {
            keys.sort_by_key(|key| key.create_revision);
            let (folder, count) = (self.layout.folder(&name), keys.len());
            let held = holders(&folder, &keys);
            let info = info(name, &folder, keys.iter().take(1 + WAITERS_SHOWN as usize), held, count);
            infos.push(self.with_closed(info, &keys).await?);
        }
        Ok(infos)
    }

    fn sort_in(
        &self,
        keys: Vec<KeyValue>,
        prefix: Option<&LockName>,
        locks: &mut BTreeMap<LockName, Vec<KeyValue>>,
    ) {
        for key in keys {
            let Some(name) = self.layout.name_of(&key.key) else { continue };
            if prefix.is_none_or(|prefix| *prefix == name || prefix.is_above(name.as_str())) {
                locks.entry(name).or_default().push(key);
            }
        }
    }

    /// The first keys of a lock, and among them the key of this token if it holds.
    async fn holding(&self, folder: &str, token: Token) -> Result<RangeResponse, BackendError> {
        let all = || sorted(obstacles(folder, Mode::Exclusive), SortOrder::Ascend);
        let mut found = self.range(RangeRequest { limit: i64::from(PERMITS_MAX), ..all() }).await?;
        let is_among = |found: &RangeResponse| found.kvs.iter().any(|key| token_of(key) == Some(token));
        if found.more && holders(folder, &found.kvs) == found.kvs.len() && !is_among(&found) {
            // More shared holders than one page of keys.
            let revision = i64::try_from(token.get()).unwrap_or(i64::MAX);
            let its = RangeRequest { min_create_revision: revision, max_create_revision: revision, ..all() };
            let exclusive = sorted(obstacles(folder, Mode::Shared), SortOrder::Ascend);
            let before = RangeRequest { limit: 1, max_create_revision: revision, ..exclusive };
            if self.range(before).await?.kvs.is_empty() {
                found.kvs.append(&mut self.range(its).await?.kvs);
            }
        }
        Ok(found)
    }

    pub(super) async fn check_token(
        &self,
        name: &LockName,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        let folder = self.layout.folder(name);
        let found = self.holding(&folder, token).await?;
        let live = self.live(&folder, &found).await?;
        let last = found.header.map_or(0, |header| header.revision);
        Ok(match token {
            token if live.contains(&token) => TokenStatus::Current,
            token if i64::try_from(token.get()).is_ok_and(|token| token <= last) => {
                TokenStatus::NotCurrent { live }
            }
            _ => TokenStatus::NeverIssued,
        })
    }

    pub(super) async fn break_hold(&self, order: &BreakOrder) -> Result<Broken, BackendError> {
        let folder = self.layout.folder(&order.name);
        for _ in 0..BREAKS_MAX {
            let found = self.holding(&folder, order.token).await?;
            let held = found.kvs.iter().take(holders(&folder, &found.kvs));
            let Some(held) = held.into_iter().find(|held| token_of(held) == Some(order.token)) else {
                return Ok(Broken::NotCurrent { live: self.live(&folder, &found).await? });
            };
            if !order.now && self.closed_for(held).await?.is_some() {
                return Ok(Broken::StillClosed);
            }
            let txn = TxnRequest {
                compare: vec![created_at(&held.key, held.create_revision), unchanged(held)],
                success: if order.now { vec![delete(&held.key)] } else { revocation(held, order)? },
                failure: Vec::new(),
            };
            let deadline = Instant::now() + LIMIT;
            if self.txn(deadline, txn).await.map_err(|failure| self.explained(failure))?.succeeded {
                return Ok(Broken::Done);
            }
        }
        let what = "the hold changed each time it was to be broken; try again";
        Err(BackendError::new(BackendErrorKind::Operator, what))
    }
}

/// Writes the break into the hold's key, and wakes its client. The first order counts (B3).
fn revocation(held: &KeyValue, order: &BreakOrder) -> Result<Vec<RequestOp>, BackendError> {
    let Some(mut note) = Note::read(&held.value) else {
        return Err(untold_holder());
    };
    if note.revoked.is_some() {
        return Ok(Vec::new());
    }
    note.revoked = Some(Revocation { by: order.by.clone(), reason: order.reason.clone() });
    let put = |put| RequestOp { request: Some(Op::RequestPut(put)) };
    Ok(vec![
        put(PutRequest {
            key: held.key.clone(),
            value: note.bytes(),
            ignore_lease: true,
            ..PutRequest::default()
        }),
        put(PutRequest {
            key: wake_key(&note.client),
            value: note.entry.into_bytes(),
            lease: held.lease,
            ..PutRequest::default()
        }),
    ])
}

/// How many of a lock's first keys hold it: one exclusive key, or all shared keys before the first other one,
/// or all keys with a permit.
fn holders(folder: &str, keys: &[KeyValue]) -> usize {
    let is_shared = |key: &&KeyValue| kind(folder, &key.key) == ModeKind::Shared;
    match keys.first().map(|first| kind(folder, &first.key)) {
        None => 0,
        Some(ModeKind::Exclusive) => 1,
        Some(ModeKind::Shared) => keys.iter().take_while(is_shared).count(),
        Some(ModeKind::Permit) => {
            keys.iter().take_while(|key| permit_of(key).is_some_and(|permit| permit.slot.is_some())).count()
        }
    }
}

fn token_of(key: &KeyValue) -> Option<Token> {
    u64::try_from(key.create_revision).ok().and_then(Token::new)
}

/// `keys`: the first keys of the lock, in the order of creation. Of all `count` keys, the first `held` hold
/// it.
fn info<'a>(
    name: LockName,
    folder: &str,
    mut keys: impl Iterator<Item = &'a KeyValue> + Clone,
    held: usize,
    count: usize,
) -> LockInfo {
    let kind = |key: &KeyValue| kind(folder, &key.key);
    let limit = keys.clone().find_map(|key| Some(permit_of(key)?.of));
    let holder = |key: &KeyValue| {
        let note = Note::read(&key.value);
        let revoked = note.as_ref().and_then(|note| note.revoked.clone());
        shown_holder(token_of(key), kind(key), owner(key), note, revoked)
    };
    let holders = keys.by_ref().take(held).map(holder).collect();
    let waiter = |key: &KeyValue| shown_waiter(kind(key), owner(key), Note::read(&key.value));
    LockInfo {
        hold_count: held,
        waiter_count: count.saturating_sub(held),
        waiters: keys.map(waiter).collect(),
        holds: holders,
        permits: limit,
        ..LockInfo::free(name)
    }
}
