//! Inspection: holders, waiters, names in use; and an operator's break.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{LockName, Mode, ModeKind, Token, TokenStatus};
use tokio::time::Instant;

use super::api::compare::{CompareResult, CompareTarget, TargetUnion};
use super::api::range_request::SortOrder;
use super::api::request_op::Request as Op;
use super::api::{Compare, KeyValue, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use super::connection::EtcdFailure;
use super::layout::{is_shared, obstacles, wake_key};
use super::store::{Inner, created_at, delete, owner, sorted};
use crate::backend::{BreakOrder, Broken};
use crate::backends::leased::{Note, Revocation, is_revoked, shown_holder, shown_waiter, untold_holder};
use crate::error::{BackendError, BackendErrorKind};
use crate::info::LockInfo;

/// How many shared holders are counted; more are taken for waiters.
const HOLDERS_COUNTED: i64 = 10_000;
/// How many shared holders are read to look for a token among them, before it is looked for by itself.
const HOLDERS_SHOWN: i64 = 100;
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
            EtcdFailure::Answered(_) => {
                BackendError::new(BackendErrorKind::Operator, "etcd knows no such lease")
            }
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
        let all = sorted(obstacles(&folder, Mode::Exclusive), SortOrder::Ascend);
        let found = self.range(RangeRequest { limit: 1 + WAITERS_SHOWN, ..all }).await?;
        let count = usize::try_from(found.count).unwrap_or_default();
        let held = match found.kvs.first() {
            Some(first) if is_shared(&folder, &first.key) && count > found.kvs.len() => {
                self.shared_holders(&folder).await?
            }
            _ => holders(&folder, &found.kvs),
        };
        Ok(info(name, &folder, found.kvs.iter(), held, count))
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
                let (folder, count) = (self.layout.folder(&name), keys.len());
                let held = holders(&folder, &keys);
                info(name, &folder, keys.iter().take(1 + WAITERS_SHOWN as usize), held, count)
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

    /// The first keys of a lock, and among them the key of this token if it holds.
    async fn holding(&self, folder: &str, token: Token) -> Result<RangeResponse, BackendError> {
        let all = || sorted(obstacles(folder, Mode::Exclusive), SortOrder::Ascend);
        let mut found = self.range(RangeRequest { limit: HOLDERS_SHOWN, ..all() }).await?;
        let is_among = |found: &RangeResponse| found.kvs.iter().any(|key| token_of(key) == Some(token));
        if found.more && holders(folder, &found.kvs) == found.kvs.len() && !is_among(&found) {
            // A crowd of shared holders.
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
        let live = live(&folder, &found);
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
                return Ok(Broken::NotCurrent { live: live(&folder, &found) });
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

/// The tokens of the holders that were read, without those whose holds are being broken.
fn live(folder: &str, found: &RangeResponse) -> Vec<Token> {
    let held = found.kvs.iter().take(holders(folder, &found.kvs));
    held.filter(|key| !is_revoked(&key.value)).filter_map(token_of).collect()
}

/// How many of a lock's first keys hold it: the first, or all shared ones up to the first exclusive one.
fn holders(folder: &str, keys: &[KeyValue]) -> usize {
    match keys.iter().take_while(|key| is_shared(folder, &key.key)).count() {
        0 => keys.len().min(1),
        shared => shared,
    }
}

fn token_of(key: &KeyValue) -> Option<Token> {
    u64::try_from(key.create_revision).ok().and_then(Token::new)
}

/// `keys`: the first keys of the lock, by their creation; `held` of all `count` keys hold it.
fn info<'a>(
    name: LockName,
    folder: &str,
    mut keys: impl Iterator<Item = &'a KeyValue>,
    held: usize,
    count: usize,
) -> LockInfo {
    let kind = |key: &KeyValue| match is_shared(folder, &key.key) {
        true => ModeKind::Shared,
        false => ModeKind::Exclusive,
    };
    let holder = |key: &KeyValue| {
        let note = Note::read(&key.value);
        let revoked = note.as_ref().and_then(|note| note.revoked.clone());
        shown_holder(token_of(key), kind(key), owner(key), note, revoked)
    };
    let holders = keys.by_ref().take(held).map(holder).collect();
    let waiter = |key: &KeyValue| shown_waiter(kind(key), owner(key), Note::read(&key.value));
    LockInfo {
        name,
        holder_count: held,
        waiter_count: count.saturating_sub(held),
        waiters: keys.map(waiter).collect(),
        holders,
        limit: None,
    }
}
