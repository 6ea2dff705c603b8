//! Calls to all servers, of which a majority must answer.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lockkeeper_backend::{BackendError, BackendErrorKind};
use tokio::time::{Instant, timeout_at};

/// How long to wait for the other servers once a majority has answered.
const REST: Duration = Duration::from_millis(300);
/// How long to wait for a majority; a single server's limit is shorter.
const LIMIT: Duration = Duration::from_secs(10);

/// The smallest majority.
pub(super) const fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Makes all calls at once. Returns their results with their indexes, without those of calls that took too
/// long and were dropped.
pub(super) async fn ask_all<T, E>(
    calls: Vec<impl Future<Output = Result<T, E>>>,
) -> Vec<(usize, Result<T, E>)> {
    let mut missing = majority_of(calls.len());
    let calls = calls.into_iter().enumerate().map(|(index, call)| async move { (index, call.await) });
    let mut calls: FuturesUnordered<_> = calls.collect();
    let mut results = Vec::new();
    let mut deadline = Instant::now() + LIMIT;
    while let Ok(Some((index, result))) = timeout_at(deadline, calls.next()).await {
        missing -= usize::from(result.is_ok() && missing > 0);
        if missing == 0 {
            deadline = deadline.min(Instant::now() + REST);
        }
        results.push((index, result));
    }
    results.sort_unstable_by_key(|(index, _)| *index);
    results
}

/// The error of a call that too few servers answered. `each`: the servers' names and answers. `kinds`: the
/// kinds of their errors.
pub(super) fn too_few<'a>(
    what: &str,
    each: impl Iterator<Item = (&'a str, String)>,
    kinds: Vec<BackendErrorKind>,
) -> BackendError {
    let each: Vec<String> = each.map(|(name, answer)| format!("{name}: {answer}")).collect();
    let kind = kinds.into_iter().find(|kind| *kind != BackendErrorKind::Unreachable);
    BackendError::new(kind.unwrap_or(BackendErrorKind::Unreachable), format!("{what}: {}", each.join("; ")))
}
