//! What people are shown: what a majority of the servers shows.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::LockName;

use crate::backends::redis::{Look, Seen};
use crate::info::{HolderInfo, LockInfo};

/// What makes one holder of the keys of several servers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// Its entry, without the number that each server's has.
    Ours(String),
    /// Another client's, by its value.
    Another(String),
}

impl Who {
    fn of(seen: &Seen) -> Self {
        match &seen.id {
            Some(id) => Self::Ours(id.0.rsplit_once('.').map_or(id.0.as_str(), |(id, _)| id).to_owned()),
            None => Self::Another(seen.info.owner.clone()),
        }
    }
}

/// What a majority shows of a name.
pub(super) fn of_majority(name: LockName, looks: Vec<Look>, majority: usize) -> LockInfo {
    let mut seen: BTreeMap<Who, Vec<HolderInfo>> = BTreeMap::new();
    let mut waiting: Vec<usize> = looks.iter().map(|look| look.waiter_count).collect();
    waiting.sort_unstable_by(|a, b| b.cmp(a));
    // As many as wait at so many servers at least.
    let waiter_count = waiting.get(majority - 1).copied().unwrap_or(0);
    let mut waiters = Vec::new();
    for look in looks {
        if look.waiter_count == waiter_count && waiters.is_empty() {
            waiters = look.waiters;
        }
        for holder in look.holders {
            seen.entry(Who::of(&holder)).or_default().push(holder.info);
        }
    }
    let holders: Vec<_> =
        seen.into_values().filter(|infos| infos.len() >= majority).filter_map(eldest).collect();
    LockInfo { name, holder_count: holders.len(), holders, waiter_count, waiters, limit: None }
}

/// Of the keys of one holder the one that was set first: the others are of the same hold.
fn eldest(infos: Vec<HolderInfo>) -> Option<HolderInfo> {
    infos.into_iter().max_by_key(|info| info.held_for.unwrap_or(Duration::ZERO))
}

/// What a majority shows of all names; names in use at fewer are nobody's.
pub(super) fn list_of_majority(lists: Vec<Vec<(LockName, Look)>>, majority: usize) -> Vec<LockInfo> {
    let mut by_name: BTreeMap<LockName, Vec<Look>> = BTreeMap::new();
    for (name, look) in lists.into_iter().flatten() {
        by_name.entry(name).or_default().push(look);
    }
    let all = by_name.into_iter().map(|(name, looks)| of_majority(name, looks, majority));
    all.filter(|info| !info.holders.is_empty() || info.waiter_count > 0).collect()
}
