//! One request, from its first try to the end of its hold: its connection, and the statements on it.
//!
//! Polled by the callers' tasks (`request`) until a step takes long; from then on by the backend's thread. A connection
//! returns to the pool only if it certainly holds nothing. In any doubt it is closed, and its orphaned server process
//! is terminated.

use std::time::Duration;

use lockkeeper_core::End;
use tokio::time::{Instant, sleep};

use super::hold::{Hold, HoldEnd, Loss, is_confirmed};
use super::note::{Badge, Note};
use super::pool::{Link, unreadable};
use super::request::{Ending, Request};
use super::server::transaction_pooler;
use super::sql::{Scope, Statements, Tried, is_holder};
use super::wait::wait;
use super::{Shared, look};
use crate::backend::CallError;
use crate::backends::postgres::connect::NoAnswer;
use crate::error::{BackendError, BackendErrorKind, LossCause};
use crate::machine::{Answer, Push};

/// How long to retry the termination of an orphaned server process. After that time the server's own TCP keep-alives
/// have ended it (`prepare_session`).
const SEE_TO_FOR: Duration = Duration::from_secs(60);
const SEE_TO_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Outcome of an acquire.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once, and the largest is the usual one")]
pub(super) enum Asked<'a> {
    Held(Hold<'a>),
    /// Nothing is held, and nothing is left at the server.
    Not(Result<Answer, CallError>),
    /// Something may be left at the server; the string is a condition on `pg_stat_activity`.
    Doubt(String),
    /// A pooler executed the statement on a server process that this connection shares. The lock stays with that
    /// process; the string is a condition on `pg_stat_activity`.
    Pooled(String),
}

/// A request with its connection and its statements.
pub(super) struct Claim<'a> {
    pub(super) shared: &'a Shared,
    pub(super) request: &'a Request,
    pub(super) link: Box<Link>,
    pub(super) says: Statements,
    pub(super) note: Note,
}

/// On drop, completes the request for its callers, however the keeper ended.
struct Told<'a>(&'a Request);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.leave_open();
    }
}

/// Drives a request to its end.
pub(super) async fn keep(shared: &Shared, request: &Request) {
    let _told = Told(request);
    let slot = match shared.pool.slot() {
        Ok(slot) => slot,
        Err(error) => {
            request.answer(Ok(Answer::Refused(error)));
            return request.end(Ending::Sure(End::NotAcquired));
        }
    };
    let left = match ask(shared, request).await {
        Asked::Not(answer) => {
            // Freed before the answer: the caller may request another lock at once.
            drop(slot);
            request.answer(answer);
            return request.end(Ending::Sure(End::Left));
        }
        Asked::Doubt(left) => {
            request.answer(Err(CallError { sent: true }));
            request.end(Ending::Unsure);
            left
        }
        Asked::Pooled(left) => {
            request.answer(Ok(Answer::Refused(transaction_pooler().into())));
            request.end(Ending::Unsure);
            left
        }
        Asked::Held(hold) => {
            request.answer(Ok(Answer::Granted(hold.granted())));
            match hold.hold_on().await {
                HoldEnd::Released => {
                    drop(slot);
                    return request.end(Ending::Sure(End::Released));
                }
                HoldEnd::Gone(left) => {
                    request.end(Ending::Sure(End::Gone));
                    left
                }
                HoldEnd::Lost(Loss { why, left }) => {
                    request.push(Push::HoldLost { seq: request.seq, cause: LossCause::Disconnected });
                    request.end(Ending::Sure(End::Gone));
                    tracing::debug!(
                        name = request.wants.name.as_str(),
                        why,
                        "looks for what is left of a lost hold"
                    );
                    left
                }
                HoldEnd::Doubt(left) => {
                    request.end(Ending::Unsure);
                    left
                }
            }
        }
    };
    // The orphaned server process no longer occupies a connection of this client.
    drop(slot);
    request.lasts().await;
    let known = Box::pin(see_to(shared, request, &left)).await;
    // An end that was reported as certain stays. An orphan that could not be checked has an unknown outcome: `Gone`.
    request.settle(if known { End::Released } else { End::Gone });
}

/// Tries the lock, and waits for it if requested.
async fn ask<'a>(shared: &'a Shared, request: &'a Request) -> Asked<'a> {
    let prepared = tokio::select! {
        biased;
        () = request.over() => return left(),
        prepared = prepare(shared, request) => prepared,
    };
    let mut claim = match prepared {
        Ok(claim) => claim,
        Err(error) => return Asked::Not(failed(error)),
    };
    let doing = "take a lock";
    let tried = match claim.link.try_lock(&request.wants.name, &claim.says, &claim.note).await {
        Ok(Some(tried)) => tried,
        Ok(None) => return Asked::Not(Ok(Answer::Refused(unreadable(doing)))),
        Err(none) => return claim.undone(none, doing),
    };
    if let Some(pooled) = claim.pooled(&tried) {
        return pooled;
    }
    claim.says.began = tried.began;
    if tried.held {
        return granted(claim, tried).await;
    }
    if request.wants.wait && !request.is_over() {
        request.lasts().await;
        Box::pin(wait(claim)).await
    } else {
        claim.busy().await
    }
}

/// Gets a connection, and builds the request's statements.
async fn prepare<'a>(shared: &'a Shared, request: &'a Request) -> Result<Claim<'a>, BackendError> {
    let wants = &request.wants;
    if shared.key.is_server_side() {
        request.lasts().await;
    }
    let key = shared.key_of(&wants.name).await?;
    let link = match shared.pool.take(&wants.name) {
        Some(link) => link,
        None => {
            request.lasts().await;
            Box::pin(shared.pool.make()).await?
        }
    };
    let note = Note {
        key: link.key.clone(),
        name: wants.name.as_str().to_owned(),
        owner: wants.label.to_string(),
        meta: wants.meta.clone(),
        revoked: None,
    };
    let says = Statements {
        common: shared.common,
        key,
        shared: wants.shared,
        badge: Badge::new(&link.id, &wants.label),
        direct: link.direct,
        began: None,
    };
    Ok(Claim { shared, request, link, says, note })
}

impl<'a> Claim<'a> {
    /// The lock is held and the caller does not wait: returns the current holder.
    async fn busy(mut self) -> Asked<'a> {
        let look = look::statement(self.says.common.version, Some(self.says.key));
        match self.link.line.ask(&format!("{}{look}", self.says.give_up())).await {
            Ok(rows) => {
                self.shared.pool.put(self.link);
                Asked::Not(Ok(Answer::Busy(look::busy(&rows))))
            }
            Err(none) => self.undone(none, "look at a lock"),
        }
    }

    /// Handles a statement without a usable answer. The connection is dropped.
    pub(super) fn undone(&self, none: NoAnswer, doing: &str) -> Asked<'a> {
        match none {
            NoAnswer::Refused(_) => Asked::Not(Ok(Answer::Refused(none.explained(doing)))),
            NoAnswer::Ended(_) | NoAnswer::Silent(_) => {
                tracing::debug!("{}", none.explained(doing));
                self.doubt()
            }
        }
    }

    pub(super) fn doubt(&self) -> Asked<'a> {
        Asked::Doubt(self.link.left())
    }

    /// Detects a transaction pooler: the answer came from a server process other than the connection's own, or that
    /// process already had the lock, by another client's equally unreliable hold. What is left ends with the process.
    pub(super) fn pooled(&self, tried: &Tried) -> Option<Asked<'a>> {
        let pid = tried.pid?;
        let foreign = self.link.process.as_ref().is_some_and(|process| process.pid != pid);
        if tried.before || (foreign && tried.held) {
            return Some(Asked::Pooled(is_holder(pid, self.says.key)));
        }
        foreign.then(|| Asked::Not(Ok(Answer::Refused(transaction_pooler().into()))))
    }
}

/// The lock is held: draws a token, unless the statement returned one.
pub(super) async fn granted<'a>(mut claim: Claim<'a>, tried: Tried) -> Asked<'a> {
    let (shared, mut token) = (claim.shared, tried.token);
    let Some(pid) = tried.pid.or(claim.link.process.as_ref().map(|process| process.pid)) else {
        return Asked::Not(Ok(Answer::Refused(unreadable("take a lock"))));
    };
    let mut named = tried.named;
    if shared.common.tokens && shared.common.scope == Scope::Transaction {
        // Drawn in another transaction: a token that this one draws is durable only once it commits.
        let drawn = match shared.draws.draw().await {
            Ok(drawn) => drawn,
            Err(error) => {
                return match claim.link.line.ask("rollback").await {
                    Ok(_) => Asked::Not(failed(error)),
                    Err(_) => claim.doubt(),
                };
            }
        };
        let name = claim.says.name_with_token(&claim.note, drawn);
        let is_own = name.is_some();
        let statement = name.unwrap_or_else(|| claim.says.probe_with_token(&claim.note, drawn));
        match claim.link.line.ask(&statement).await {
            Ok(rows) if is_own || is_confirmed(&rows, pid) => {}
            Ok(_) => return claim.doubt(),
            Err(none) => return claim.undone(none, "hold a lock"),
        }
        (token, named) = (Some(drawn), true);
    }
    if shared.common.tokens && token.is_none() {
        return Asked::Not(Ok(Answer::Refused(unreadable("draw a token"))));
    }
    Asked::Held(Hold::new(claim, pid, token, named))
}

fn failed(error: BackendError) -> Result<Answer, CallError> {
    match error.kind {
        BackendErrorKind::Unreachable => {
            tracing::debug!("{error}");
            Err(CallError { sent: false })
        }
        _ => Ok(Answer::Refused(error)),
    }
}

/// The outcome of an abandoned acquire; no caller waits for it.
pub(super) fn left<'a>() -> Asked<'a> {
    Asked::Not(Ok(Answer::Finished(End::Left)))
}

/// Terminates an orphaned server process, which could take hours to detect the dead connection by itself. Returns
/// whether certainly nothing is left.
async fn see_to(shared: &Shared, request: &Request, which: &str) -> bool {
    let (mut pause, most) = SEE_TO_PAUSES;
    let since = Instant::now();
    while since.elapsed() < SEE_TO_FOR {
        match look::end_process(shared, &format!("({which}) and usename = current_user")).await {
            Ok(()) => return true,
            Err(error) => {
                tracing::debug!(name = request.wants.name.as_str(), "what is left of a request: {error}")
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(most);
    }
    tracing::warn!(
        name = request.wants.name.as_str(),
        "could not look for {SEE_TO_FOR:?} whether a lost connection still holds at the server; the server ends it when \
         its own keep-alives fail"
    );
    false
}
