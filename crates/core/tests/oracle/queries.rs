//! Queries for people and drivers, answered by scanning all requests.

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Description, HoldInfo, HoldState, LockName, Page, SessionId, Snapshot, WaiterInfo};

use super::{b3_covers, token_of};

/// Holds that cover the name, by token, and waiters at exactly that name, in ticket order. The page's bound
/// on bytes is not applied.
pub(crate) fn describe(now: &Snapshot, name: &LockName, page: Page) -> Description {
    let mut description = Description::default();
    for request in &now.requests {
        let state = match &request.phase {
            Phase::Waiting { .. } => {
                if request.names.contains(name) {
                    description.waiter_count += 1;
                    description.waiters.push(WaiterInfo {
                        owner: request.owner.expect("a waiter has an owner"),
                        mode: request.mode,
                        subtree: request.subtree,
                        meta: request.meta.clone(),
                        since: request.since,
                    });
                }
                continue;
            }
            Phase::Held { .. } => HoldState::Held,
            Phase::Revoked { reason, by, .. } => {
                HoldState::Revoked { reason: reason.clone(), by: by.clone() }
            }
            Phase::Closed { ms, .. } => HoldState::Closed { ms: *ms },
        };
        if b3_covers(request, name) {
            description.holds.push(HoldInfo {
                owner: request.owner,
                token: token_of(request).expect("a hold has a token"),
                mode: request.mode,
                subtree: request.subtree,
                names: request.names.clone(),
                slot: super::requests::slot_of(request, name),
                state,
                since: request.since,
                caching: request.caching,
                spare_tokens: request.spare_tokens,
                value: request.value.clone(),
                meta: request.meta.clone(),
            });
        }
    }
    description.holds.sort_by_key(|hold| hold.token);
    description.hold_count = description.holds.len();
    description.holds.retain(|hold| Some(hold.token) > page.after);
    description.has_more = description.holds.len() > page.holds_max;
    description.holds.truncate(page.holds_max);
    description.waiters.truncate(page.waiters_max);
    description.limit = now.limits.iter().find(|l| l.name == *name).map(|l| (l.limit, l.stored));
    description
}

/// Names at or below the prefix that have holds, closed holds, waiters or a stored limit.
pub(crate) fn names_in_use(now: &Snapshot, prefix: Option<&LockName>) -> Vec<LockName> {
    let of_requests = now.requests.iter().flat_map(|request| &request.names);
    let mut names: Vec<LockName> =
        of_requests.chain(now.limits.iter().map(|limit| &limit.name)).cloned().collect();
    names.retain(|name| prefix.is_none_or(|prefix| prefix == name || prefix.is_above(name.as_str())));
    names.sort();
    names.dedup();
    names
}

/// Number of live requests of a session.
pub(crate) fn requests_of(now: &Snapshot, session: SessionId) -> usize {
    now.requests.iter().filter(|request| request.owner.is_some_and(|(owner, _)| owner == session)).count()
}
