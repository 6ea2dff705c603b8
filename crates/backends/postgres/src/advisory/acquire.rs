//! The first stage of a request: one try. Runs on the caller's runtime.

use std::sync::Arc;

use lockkeeper_backend::{Answer, BackendError, BackendErrorKind, CallError};
use lockkeeper_core::Mode;

use super::hold::granted;
use super::inspect;
use super::note::{Badge, Note};
use super::request::{Acquired, AdvisoryRequest, Claim, left};
use super::shared::Shared;
use super::sql::{Statements, Tried, unreadable};
use super::wait::wait;

/// An acquire in progress. If it is dropped without an answer (its runtime has ended), the acquire has
/// failed.
pub(super) struct Unanswered(pub(super) Arc<AdvisoryRequest>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.end_acquire(Err(CallError::IN_DOUBT));
    }
}

/// Tries the lock, and waits for it if requested.
pub(super) async fn acquire(shared: Arc<Shared>, unanswered: Unanswered) -> Acquired {
    let request = unanswered.0.clone();
    let prepared = tokio::select! {
        biased;
        () = request.over.cancelled() => Ok(None),
        prepared = prepare(&shared, &request) => prepared.map(Some),
    };
    let answer = match prepared {
        Ok(Some(claim)) => try_lock(&shared, claim).await,
        Ok(None) => left(),
        Err(error) => failed(error),
    };
    request.end_acquire(answer.clone());
    answer
}

/// Gets a connection, and builds the request's statements.
async fn prepare(shared: &Shared, request: &Arc<AdvisoryRequest>) -> Result<Claim, BackendError> {
    let acquire = &request.acquire;
    let key = shared.key_of(request.name()).await?;
    let used = shared.pool.alone().await?;
    let note = Note {
        contact: shared.contact.clone(),
        name: request.name().as_str().to_owned(),
        owner: request.label.to_string(),
        meta: String::from_utf8_lossy(&acquire.meta).into_owned(),
        revoked: None,
    };
    let says = Statements {
        common: shared.common,
        key,
        shared: acquire.mode == Mode::Shared,
        badge: Badge::new(&used.id, &request.label),
        direct: used.direct,
    };
    Ok(Claim { queries: shared.queries.clone(), request: request.clone(), used, says, note, left: None })
}

async fn try_lock(shared: &Shared, mut claim: Claim) -> Acquired {
    let left_behind = claim.used.left();
    if !claim.request.begin(left_behind.clone()) {
        return left();
    }
    claim.left = Some(left_behind);
    let doing = "take a lock";
    let rows = match claim.used.connection.ask(&claim.says.try_lock(&claim.note)).await {
        Ok(rows) => rows,
        Err(none) => return claim.unanswered(none, doing),
    };
    let Some(tried) = Tried::read(&rows) else { return claim.refused(unreadable(doing)) };
    if tried.held || tried.before {
        return granted(shared, claim, &tried);
    }
    if let Some(refused) = claim.is_foreign(&tried) {
        return claim.refused(refused);
    }
    match claim.request.acquire.wait {
        true => wait(shared, claim).await,
        false => busy(claim).await,
    }
}

/// The answer to an acquire that found the lock held and does not wait: the current holder and the number of
/// waiters.
async fn busy(claim: Claim) -> Acquired {
    let query = inspect::statement(claim.says.common.version, Some(claim.says.key));
    match claim.used.connection.ask(&format!("{}{query}", claim.says.give_up())).await {
        Ok(rows) => {
            claim.put_back();
            Ok(Answer::Busy(inspect::busy(&rows)))
        }
        Err(none) => claim.unanswered(none, "look at a lock"),
    }
}

fn failed(error: BackendError) -> Acquired {
    match error.kind {
        BackendErrorKind::Unreachable => {
            tracing::debug!("{error}");
            Err(CallError::NOT_SENT)
        }
        _ => Ok(Answer::Refused(error)),
    }
}
