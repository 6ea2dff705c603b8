//! What happens to a granted request: it is verified, broken, lost, or released.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{Answer, CallError, Granted, LossCause, Push};
use lockkeeper_core::{End, Token};
use tokio::time::timeout;

use super::Shared;
use super::monitor::Watched;
use super::note::Revocation;
use super::request::{AdvisoryRequest, Claim, Stage, terminate};
use super::server::answer_within;
use super::sql::{Tried, is_holder};

/// Time limit of a statement on a connection of another runtime, which may have stalled.
const ELSEWHERE: Duration = Duration::from_secs(1);
/// How long an abandoned acquire may take to end by itself.
const ABANDON_WITHIN: Duration = Duration::from_secs(2);
/// How long a call waits for the end of a server process that it terminates.
pub(super) const TERMINATED_WITHIN: Duration = Duration::from_secs(5);

/// A granted request.
pub(super) struct Hold {
    claim: Claim,
    token: Option<Token>,
    /// The monitor's number of this hold.
    number: u64,
}

impl Hold {
    /// Registers the hold, and returns the answer to its acquire.
    pub(super) fn begin(claim: Claim, tried: &Tried) -> Answer {
        let (shared, request, id) = (claim.shared.clone(), claim.request.clone(), claim.used.id.clone());
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
        let hold = Self { claim, token: tried.token, number: shared.monitor.number() };
        let (granted, number) = (hold.granted(), hold.number);
        request.hold(hold);
        shared.monitor.watch(number, watched);
        if connection.is_ended() {
            // The connection's end may have been reported before the hold was watched.
            shared.monitor.connection_ended(&id, "its connection has ended");
        }
        Answer::Granted(granted)
    }

    pub(super) fn granted(&self) -> Granted {
        Granted { token: self.token, permits: Vec::new() }
    }
}

/// Handles the loss of a hold: closes its connection, and terminates its server process if that still exists.
pub(super) fn lose(request: &AdvisoryRequest, why: &str) {
    let Some(hold) = request.take_hold(Stage::Over(End::Gone)) else { return };
    tracing::warn!(
        name = request.name().as_str(),
        why,
        "the connection that held a lock is lost; the server may have freed the lock earlier"
    );
    request.push(Push::HoldLost { seq: request.seq, cause: LossCause::Disconnected, why: Some(why.into()) });
    drop(hold);
}

/// Handles a break: notifies the holder, and shows the break in the connection's note. Runs on the lease
/// thread.
pub(super) fn revoke(request: &AdvisoryRequest, revocation: Revocation) {
    let revoked = request.with_hold(|hold| {
        let Claim { note, says, used, .. } = &mut hold.claim;
        let is_first = note.revoked.is_none();
        note.revoked = Some(revocation);
        is_first.then(|| (used.connection.clone(), says.verify(note)))
    });
    let Some((connection, show)) = revoked.flatten() else { return };
    request.push(Push::Revoked { seq: request.seq, notice: None });
    tokio::spawn(async move {
        if let Err(none) = connection.ask(&show).await {
            tracing::debug!("{}", none.explained("show a break"));
        }
    });
}

/// Asks the server whether the lock is still held (P7-a). The statement runs on the hold's own connection,
/// which also detects a transaction pooler; if that connection belongs to another runtime, on the query
/// connection.
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
    match timeout(TERMINATED_WITHIN, terminate(shared, request, &left)).await {
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
            // Behind a pooler, the process may serve another client by now and have that client's name. It is
            // identified by the lock, which it still has.
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
