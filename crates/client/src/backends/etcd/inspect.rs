//! Inspection: holders, waiters, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use tokio::time::Instant;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::range_request::SortOrder;
use super::api::request_op::Request as Op;
use super::api::{Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use super::connection::EtcdFailure;
use super::layout::wake_key;
use super::store::{Inner, created_at, delete, owner, sorted};
use crate::backend::{BreakOrder, Broken};
use crate::backends::leased::{Note, Revocation, is_revoked};
use crate::error::{BackendError, BackendErrorKind};
use crate::info::{HolderInfo, HolderState, LockInfo, WaiterInfo, decode_meta};

/// How many waiters an inspection lists.
const WAITERS_SHOWN: i64 = 20;
/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);
/// Keys of one page of a list.
const PAGE: i64 = 1000;
/// Largest number of keys that a list reads.
const KEYS_MAX: usize = 100_000;
/// How often a break is tried again if the hold's key changes meanwhile.
const BREAKS_MAX: usize = 5;

impl Inner {
    async fn range(&self, range: RangeRequest) -> Result<RangeResponse, BackendError> {
        let deadline = Instant::now() + LIMIT;
        let call = self
            .link
            .call(deadline, async |connection| connection.kv().range(connection.request(range)).await);
        call.await.map_err(|failure| self.explained(failure))
    }

    fn explained(&self, failure: EtcdFailure) -> BackendError {
        match failure {
            EtcdFailure::Refused(error) => error,
            EtcdFailure::NoLease => BackendError::new(BackendErrorKind::Operator, "etcd knows no such lease"),
            EtcdFailure::Silent(_) => self.link.trouble().unwrap_or_else(|| {
                BackendError::new(
                    BackendErrorKind::Unreachable,
                    format!("etcd did not answer within {LIMIT:?}"),
                )
            }),
        }
    }

    pub(super) async fn look(&self, name: LockName) -> Result<LockInfo, BackendError> {
        let folder = self.layout.folder(&name);
        let found = self
            .range(RangeRequest { limit: 1 + WAITERS_SHOWN, ..sorted(&folder, SortOrder::Ascend) })
            .await?;
        let count = usize::try_from(found.count).unwrap_or_default();
        Ok(info(name, found.kvs.iter(), count))
    }

    pub(super) async fn list(&self, prefix: Option<&LockName>) -> Result<Vec<LockInfo>, BackendError> {
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
        Ok(locks
            .into_iter()
            .map(|(name, mut keys)| {
                keys.sort_by_key(|key| key.create_revision);
                let count = keys.len();
                info(name, keys.iter().take(1 + WAITERS_SHOWN as usize), count)
            })
            .collect())
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

    pub(super) async fn check_token(
        &self,
        name: &LockName,
        token: Token,
    ) -> Result<TokenStatus, BackendError> {
        let folder = self.layout.folder(name);
        let found = self.range(RangeRequest { limit: 1, ..sorted(&folder, SortOrder::Ascend) }).await?;
        let live = live(&found);
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
            let found = self.range(RangeRequest { limit: 1, ..sorted(&folder, SortOrder::Ascend) }).await?;
            let Some(held) = found.kvs.first().filter(|held| token_of(held) == Some(order.token)) else {
                return Ok(Broken::NotCurrent { live: live(&found) });
            };
            let unchanged = Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: held.key.clone(),
                target_union: Some(TargetUnion::ModRevision(held.mod_revision)),
                range_end: Vec::new(),
            };
            let txn = TxnRequest {
                compare: vec![created_at(&held.key, held.create_revision), unchanged],
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
        let what = "its holder is another client of etcd, which can't be told; only a break with `now` ends its hold";
        return Err(BackendError::new(BackendErrorKind::Refused, what));
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

/// The token of the holder, unless its hold is being broken.
fn live(found: &RangeResponse) -> Vec<Token> {
    let is_held = |key: &&KeyValue| !is_revoked(&key.value);
    found.kvs.first().filter(is_held).and_then(token_of).into_iter().collect()
}

fn token_of(key: &KeyValue) -> Option<Token> {
    u64::try_from(key.create_revision).ok().and_then(Token::new)
}

/// `keys`: the first keys of the lock, by their creation.
fn info<'a>(name: LockName, mut keys: impl Iterator<Item = &'a KeyValue>, count: usize) -> LockInfo {
    let holders: Vec<HolderInfo> = keys.next().map(holder).into_iter().collect();
    let waiter = |key: &KeyValue| {
        let note = Note::read(&key.value).unwrap_or_default();
        WaiterInfo { owner: owner(key), mode: ModeKind::Exclusive, meta: decode_meta(note.meta.as_bytes()) }
    };
    LockInfo {
        name,
        holder_count: holders.len(),
        waiter_count: count.saturating_sub(holders.len()),
        waiters: keys.map(waiter).collect(),
        holders,
        limit: None,
    }
}

fn holder(key: &KeyValue) -> HolderInfo {
    let note = Note::read(&key.value);
    let revoked = note.as_ref().and_then(|note| note.revoked.clone());
    HolderInfo {
        token: token_of(key),
        mode: ModeKind::Exclusive,
        subtree: false,
        slot: None,
        owner: owner(key),
        held_for: None,
        state: match revoked {
            Some(Revocation { by, reason }) => HolderState::Revoked { reason, by },
            None => HolderState::Held,
        },
        meta: note.map(|note| decode_meta(note.meta.as_bytes())).unwrap_or_default(),
        value: Vec::new(),
    }
}
