//! A request that waits in the server's queue, on the backend's thread.

use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::SimpleQueryRow;

use super::keeper::{Asked, Claim, granted, left};
use super::look;
use super::pool::unreadable;
use super::sql::Scope;
use crate::backends::postgres::cancel::Cancel;
use crate::backends::postgres::connect::NoAnswer;
use crate::machine::{Answer, Push};

/// Number of cancel requests for a wait, and how long to wait after each.
const CANCELS: u32 = 3;
const CANCEL_AGAIN: Duration = Duration::from_secs(1);

/// Waits for the lock until the request is released or abandoned.
pub(super) async fn wait(mut claim: Claim<'_>) -> Asked<'_> {
    let doing = "wait for a lock";
    let look = look::statement(claim.says.common.version, Some(claim.says.key));
    let ahead = match claim.link.line.ask(&look).await {
        Ok(rows) => look::busy(&rows).queued_ahead,
        Err(none) => return claim.undone(none, doing),
    };
    let request = claim.request;
    request.push(Push::Queued { seq: request.seq, position: ahead });
    let (statement, cancel) = (claim.says.wait(&claim.note), claim.link.line.cancel());
    let answer = {
        let mut waiting = pin!(claim.link.line.wait_for(&statement));
        tokio::select! {
            answer = &mut waiting => Ok(answer),
            () = request.over() => Err(cancelled(&cancel, waiting).await),
        }
    };
    let rows = match answer {
        Ok(Ok(rows)) => rows,
        Ok(Err(none)) => return claim.undone(none, doing),
        // The lock may have been granted before or during the cancel (madelson #147).
        Err(true) => return forget(claim).await,
        Err(false) => return claim.doubt(),
    };
    match claim.says.waited(&rows) {
        Some(tried) => match claim.pooled(&tried) {
            Some(pooled) => pooled,
            None => granted(claim, tried).await,
        },
        None => Asked::Not(Ok(Answer::Refused(unreadable(doing)))),
    }
}

type Rows = Result<Vec<SimpleQueryRow>, NoAnswer>;

/// Cancels a wait. Returns whether the statement has ended; only then may another one follow.
async fn cancelled(cancel: &Cancel, mut waiting: Pin<&mut impl Future<Output = Rows>>) -> bool {
    for _ in 0..CANCELS {
        // The statement may have ended meanwhile; then its answer arrives at once.
        if let Err(why) = cancel.send().await {
            tracing::debug!(why, "the server can't be asked to give up a wait");
        }
        match timeout(CANCEL_AGAIN, &mut waiting).await {
            Ok(Ok(_) | Err(NoAnswer::Refused(_))) => return true,
            Ok(Err(_)) => return false,
            // The cancel request arrived before the statement, or not at all.
            Err(_) => {}
        }
    }
    false
}

/// Releases a lock that a cancelled wait was granted, and closes its connection: a late cancel could hit its next
/// statement.
async fn forget(mut claim: Claim<'_>) -> Asked<'_> {
    let clear = match claim.says.common.scope {
        Scope::Session => "select pg_catalog.pg_advisory_unlock_all()",
        Scope::Transaction => "rollback",
    };
    match claim.link.line.ask(clear).await {
        Ok(_) => left(),
        Err(_) => claim.doubt(),
    }
}
