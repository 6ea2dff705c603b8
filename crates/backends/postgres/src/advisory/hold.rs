//! What happens to a granted request: it is verified, broken, lost, or released.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{Answer, CallError};
use lockkeeper_core::End;
use tokio::time::timeout;

use super::connection::transaction_pooler;
use super::monitor::{Watched, answer_within};
use super::request::{Acquired, AdvisoryRequest, Claim, Hold, Stage, TERMINATED_WITHIN, terminate};
use super::shared::Shared;
use super::sql::{Tried, is_holder, unreadable};

/// Time limit of a statement on a connection of another runtime, which may have stalled.
const ELSEWHERE: Duration = Duration::from_secs(1);
/// How long an abandoned acquire may take to end by itself.
const ABANDON_WITHIN: Duration = Duration::from_secs(2);

/// Handles a try or a wait after which the server process has the lock. Refuses the lock if the process had
/// it before, or if another process answered.
pub(super) fn granted(shared: &Shared, mut claim: Claim, tried: &Tried) -> Acquired {
    if tried.before || claim.is_foreign(tried).is_some() {
        // Behind a transaction pooler, the server process keeps the lock while it serves other clients. The
        // claim's drop terminates it.
        claim.left = Some(is_holder(tried.pid, claim.says.key));
        return Ok(Answer::Refused(transaction_pooler().into()));
    }
    if claim.says.common.tokens && tried.token.is_none() {
        return claim.refused(unreadable("draw a token"));
    }
    Ok(begin(shared, claim, tried))
}

/// Registers the hold, and returns the answer to its acquire.
fn begin(shared: &Shared, claim: Claim, tried: &Tried) -> Answer {
    let (request, id) = (claim.request.clone(), claim.used.id.clone());
    let connection = claim.used.connection.clone();
    let watched = Watched {
        connection: id.clone(),
        pid: claim.used.process.pid,
        began: claim.used.process.began.clone(),
        key: claim.says.key,
        shared: claim.says.shared,
        token: tried.token,
        request: request.clone(),
    };
    let hold = Hold { claim, token: tried.token, number: shared.monitor.number() };
    let (granted, number) = (hold.granted(), hold.number);
    request.hold(hold);
    shared.monitor.watch(number, watched);
    if connection.is_ended() {
        // The connection's end may have been reported before the hold was watched.
        shared.monitor.connection_ended(&id, "its connection has ended");
    }
    Answer::Granted(granted)
}

/// Asks the server whether the lock is still held (P7-a). The statement runs on the hold's own connection,
/// which also detects a transaction pooler, or on the query connection if the hold's connection belongs to
/// another runtime.
pub(super) async fn verify(shared: &Shared, request: &AdvisoryRequest) -> Result<Answer, CallError> {
    let held = request.with_hold(|hold| {
        let Claim { note, says, used, .. } = &hold.claim;
        let own = used.is_here().then(|| (used.connection.clone(), says.verify(note)));
        (hold.granted(), hold.number, used.process.pid, own)
    });
    let Some((granted, number, pid, own)) = held else { return Ok(Answer::Finished(End::Gone)) };
    let Some((connection, statement)) = own else {
        shared.monitor.probe(Some(number)).await;
        let is_held = request.with_hold(|_| ()).is_some();
        return Ok(if is_held { Answer::Granted(granted) } else { Answer::Finished(End::Gone) });
    };
    let why = match connection.ask_within(&statement, answer_within(shared.probe)).await {
        Ok(rows) => {
            let row = rows.last();
            let text = |column: usize| row.and_then(|row| row.get(column));
            if text(0) == Some(pid.to_string().as_str()) && text(1) == Some("t") {
                return Ok(Answer::Granted(granted));
            }
            "the server does not know this connection as a holder; a pooler that gives one client's server process to \
             another (pool_mode=transaction) is the likely cause"
                .to_owned()
        }
        Err(none) => none.explained("verify a hold").to_string(),
    };
    shared.monitor.lose(number, &why);
    Ok(Answer::Finished(End::Gone))
}

/// Ends a request in any stage: releases its hold, or abandons its acquire.
pub(super) async fn finish(shared: Arc<Shared>, request: Arc<AdvisoryRequest>) -> Result<End, CallError> {
    request.over.cancel();
    let mut stages = request.stages();
    loop {
        if let Some(hold) = request.take_hold(Stage::Releasing) {
            return release(&shared, &request, *hold).await;
        }
        let left = match &*stages.borrow_and_update() {
            Stage::Over(end) => return Ok(*end),
            Stage::InDoubt => return Err(CallError::IN_DOUBT),
            Stage::Acquiring(left) => Some(left.clone()),
            // Granted since `take_hold` above.
            Stage::Held(_) => continue,
            Stage::Releasing => None,
        };
        match left {
            None => drop(stages.changed().await),
            Some(left) => {
                if timeout(ABANDON_WITHIN, stages.changed()).await.is_err() {
                    return abandon(&shared, &request, left).await;
                }
            }
        }
    }
}

/// Gives up an acquire whose runtime does not run. If the runtime continues later, the acquire sends nothing
/// more, since it is over, or finds its server process terminated.
async fn abandon(shared: &Shared, request: &AdvisoryRequest, left: Option<String>) -> Result<End, CallError> {
    let Some(left) = left else { return Ok(End::Left) };
    match timeout(TERMINATED_WITHIN, terminate(&shared.queries, request, &left)).await {
        Ok(true) => Ok(End::Left),
        _ => Err(CallError::IN_DOUBT),
    }
}

async fn release(shared: &Shared, request: &AdvisoryRequest, hold: Hold) -> Result<End, CallError> {
    let Hold { mut claim, number, .. } = hold;
    shared.monitor.forget(number);
    let is_here = claim.used.is_here();
    let limit = if is_here { shared.timeout } else { ELSEWHERE };
    match claim.used.connection.ask_within(&claim.says.unlock(), limit).await {
        Ok(rows) if rows.first().and_then(|row| row.get(0)) == Some("t") => {
            claim.put_back();
            request.end(End::Released);
            Ok(End::Released)
        }
        Ok(_) => {
            let name = request.name().as_str();
            tracing::warn!(
                name,
                "a lock was not held any more when it was released; is there a transaction pooler?"
            );
            // Behind a pooler, the process may serve another client by now, under that client's application
            // name. So `is_holder` identifies the process by the lock that it still has.
            claim.left = Some(is_holder(claim.used.process.pid, claim.says.key));
            request.end(End::Gone);
            Ok(End::Gone)
        }
        Err(none) => {
            let why = none.explained("release a lock");
            tracing::debug!("{why}");
            let in_doubt = CallError { sent: true, ..CallError::refused(why) };
            let mut stages = request.stages();
            drop(claim);
            if is_here {
                return Err(in_doubt);
            }
            let over = stages.wait_for(|stage| matches!(stage, Stage::Over(_)));
            match timeout(TERMINATED_WITHIN, over).await {
                Ok(Ok(_)) => Ok(End::Released),
                _ => Err(in_doubt),
            }
        }
    }
}
