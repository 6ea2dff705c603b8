//! Inspection: the state on which a majority of the servers agrees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{BackendError, BackendErrorKind, HolderInfo, LockInfo};
use lockkeeper_core::LockName;
use lockkeeper_redis::{NameState, RedisStore, Seen};

use super::majority::{ask_all, majority_of, too_few};
use super::server::QuorumServer;

/// Queries all servers that can be used. Returns the answers of a majority or more.
pub(super) async fn ask_majority<T, F: Future<Output = Result<T, BackendError>>>(
    servers: &[Arc<QuorumServer>],
    question: impl Fn(Arc<RedisStore>) -> F,
) -> Result<Vec<T>, BackendError> {
    let call = |server: &Arc<QuorumServer>| {
        let asked = server.usable().map(&question);
        async move {
            match asked {
                Ok(answer) => answer.await,
                Err(why) => Err(BackendError::new(BackendErrorKind::Unreachable, why)),
            }
        }
    };
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    for (index, result) in ask_all(servers.iter().map(call).collect()).await {
        match result {
            Ok(answer) => answers.push(answer),
            Err(error) => errors.push((servers[index].name.as_str(), error)),
        }
    }
    let majority = majority_of(servers.len());
    if answers.len() >= majority {
        return Ok(answers);
    }
    let what = format!("{} of {} servers answered, {majority} must", answers.len(), servers.len());
    let kinds = errors.iter().map(|(_, error)| error.kind).collect();
    Err(too_few(&what, errors.iter().map(|(name, error)| (*name, error.to_string())), kinds))
}

/// Identifies one holder across servers: for an entry, its id without the last part, which differs between
/// servers; for another client's key, the value.
fn holder_id(seen: &Seen) -> String {
    let id = seen.id.as_ref().map(|id| id.0.rsplit_once('.').map_or(id.0.as_str(), |(id, _)| id));
    id.unwrap_or(&seen.info.label).to_owned()
}

/// A name's state on a majority of the servers.
pub(super) fn of_majority(name: LockName, states: Vec<NameState>, majority: usize) -> LockInfo {
    let mut seen: BTreeMap<String, Vec<HolderInfo>> = BTreeMap::new();
    let mut waiting: Vec<usize> = states.iter().map(|state| state.waiter_count).collect();
    waiting.sort_unstable_by(|a, b| b.cmp(a));
    // The largest count that a majority of the servers reaches.
    let waiter_count = waiting.get(majority - 1).copied().unwrap_or(0);
    let mut waiters = Vec::new();
    for state in states {
        if state.waiter_count == waiter_count && waiters.is_empty() {
            waiters = state.waiters;
        }
        for holder in state.holds {
            seen.entry(holder_id(&holder)).or_default().push(holder.info);
        }
    }
    let holders: Vec<_> =
        seen.into_values().filter(|infos| infos.len() >= majority).filter_map(eldest).collect();
    LockInfo { waiter_count, waiters, ..LockInfo::held_by(name, holders) }
}

/// Of one holder's keys on several servers, the oldest.
fn eldest(infos: Vec<HolderInfo>) -> Option<HolderInfo> {
    infos.into_iter().max_by_key(|info| info.held_for.unwrap_or(Duration::ZERO))
}

/// The state of all names. A name in use on fewer than a majority of the servers is left out.
pub(super) fn list_of_majority(lists: Vec<Vec<(LockName, NameState)>>, majority: usize) -> Vec<LockInfo> {
    let mut by_name: BTreeMap<LockName, Vec<NameState>> = BTreeMap::new();
    for (name, state) in lists.into_iter().flatten() {
        by_name.entry(name).or_default().push(state);
    }
    let all = by_name.into_iter().map(|(name, states)| of_majority(name, states, majority));
    all.filter(|info| !info.holds.is_empty() || info.waiter_count > 0).collect()
}
