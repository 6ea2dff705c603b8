//! A request that waits in the server's queue, on the caller's runtime.

use std::pin::pin;
use std::time::Duration;

use lockkeeper_backend::Push;
use tokio::time::timeout;

use super::hold::granted;
use super::inspect;
use super::request::{Acquired, Claim, TERMINATED_WITHIN, left, terminate};
use super::shared::Shared;
use super::sql::{Tried, unreadable};
use crate::connect::NoAnswer;

/// How long a cancelled wait may take to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);

/// Waits for the lock until it is granted, or the request is released or abandoned.
pub(super) async fn wait(shared: &Shared, claim: Claim) -> Acquired {
    let doing = "wait for a lock";
    let (connection, request) = (claim.used.connection.clone(), claim.request.clone());
    let query = inspect::statement(claim.says.common.version, Some(claim.says.key));
    let ahead = match connection.ask(&query).await {
        Ok(rows) => inspect::busy(&rows).queued_ahead,
        Err(none) => return claim.unanswered(none, doing),
    };
    request.push(Push::Queued { seq: request.seq, position: ahead });
    let statement = claim.says.wait(&claim.note);
    let mut waiting = pin!(connection.wait_for(&statement));
    let rows = tokio::select! {
        biased;
        answer = &mut waiting => match answer {
            Ok(rows) => rows,
            Err(none) => {
                if let NoAnswer::Ended(why) = &none {
                    let name = request.name().as_str();
                    tracing::warn!(name, why, "a waiter has lost its place with its connection: it waits again, last");
                }
                return claim.unanswered(none, doing);
            }
        },
        () = request.over.cancelled() => return abandon(claim, waiting).await,
    };
    match Tried::read(&rows) {
        Some(tried) => granted(shared, claim, &tried),
        None => claim.refused(unreadable(doing)),
    }
}

/// Cancels the statement of a wait, and releases the lock if it was granted meanwhile (DistributedLock issue
/// 147). The connection is closed, since a late cancel could hit its next statement. If the cancelled
/// statement does not end in time, the server process is terminated.
async fn abandon<T>(claim: Claim, waiting: impl Future<Output = Result<T, NoAnswer>>) -> Acquired {
    let connection = claim.used.connection.clone();
    if let Err(why) = connection.cancel().await {
        tracing::debug!(why, "the server can't be asked to give up a wait");
    }
    let has_ended = matches!(timeout(CANCEL_WITHIN, waiting).await, Ok(Ok(_) | Err(NoAnswer::Refused(_))));
    let is_free = match has_ended {
        true => connection.ask("select pg_catalog.pg_advisory_unlock_all()").await.is_ok(),
        false => {
            let left = claim.used.left();
            let terminated = terminate(&claim.queries, &claim.request, &left);
            timeout(TERMINATED_WITHIN, terminated).await.unwrap_or(false)
        }
    };
    if is_free {
        claim.close();
    }
    left()
}
