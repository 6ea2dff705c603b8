//! An acquire: one name after another, each in steps under its record's flock, with waits in between.
//!
//! A step never awaits, so an acquire's future can only be dropped between two steps. A `Finish` can always
//! clean up what the steps so far have done.

use std::fs::File;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_backend::{Answer, BackendError, Busy, CallError, Granted, Push};
use lockkeeper_core::snapshot::{Phase, RequestState};
use lockkeeper_core::{
    Acquire, Command, Effects, IfBusy, PermitGrant, Rejection, Reply, Seq, SessionId, Table, limits,
};

use super::os::{OsError, jitter};
use super::reap::{check_sessions, holders, waiters};
use super::record::Record;
use super::session::{FileRequest, FileSession};
use super::state::is_held;
use super::{finish, reactor, unsupported_subtree};

/// A waiter checks again after at most this time, in case every wake-up was lost: their sender was stopped,
/// or the pipe was full.
const SAFETY_NET: Duration = Duration::from_secs(4);
/// Shortest and longest interval between attempts while a program other than Lockkeeper has flocked the hold
/// file: its unlock sends no event.
const FOREIGN_POLL_MIN: Duration = Duration::from_millis(1);
const FOREIGN_POLL_MAX: Duration = Duration::from_millis(250);

/// The result of one step.
enum AcquireStep {
    /// The name is acquired.
    Taken,
    Waiting {
        position: u64,
        /// Pipes of the sessions whose end may lead to a grant.
        pipes: Vec<File>,
        /// Time until a closed hold ends.
        closed: Option<Duration>,
    },
    /// Granted by the record, but a program other than Lockkeeper has the flock.
    Foreign,
    Busy(Busy),
    Refused(BackendError),
    Revoked,
    /// The request is over: it was finished meanwhile, or its entry in the record was ended.
    Over,
}

pub(super) async fn acquire(
    session: &Arc<FileSession>,
    request: &Arc<FileRequest>,
) -> Result<Answer, CallError> {
    let answer = match take_all(session, request).await {
        Ok(answer) => answer,
        Err(OsError::Gone) => {
            session.lose();
            return Ok(Answer::SessionGone);
        }
        Err(OsError::Stuck(error)) => {
            tracing::warn!(%error, "an acquire will be tried again");
            let sent = request.progress().parts.iter().any(|part| part.seq.is_some());
            return Err(CallError::new(sent));
        }
        Err(OsError::Error(error)) => Answer::Refused(error),
    };
    if let Answer::Busy(_) | Answer::Refused(_) = answer {
        // The client sends no Finish for a request that was busy or refused.
        if let Err(fault) = finish::end_parts(session, request).await {
            let error = BackendError::from(fault);
            tracing::warn!(%error, "what a failed acquire had taken could not be given back yet");
            return Err(CallError::IN_DOUBT);
        }
        session.ended(request, lockkeeper_core::End::NotAcquired, request.seq);
    }
    Ok(answer)
}

async fn take_all(session: &Arc<FileSession>, request: &Arc<FileRequest>) -> Result<Answer, OsError> {
    let count = request.acquire.names.len();
    if count == 0 || count > limits::NAMES_PER_REQUEST_MAX {
        return Ok(Answer::Refused(Rejection::NameCount { count }.into()));
    }
    if request.acquire.subtree {
        return Ok(Answer::Refused(unsupported_subtree().into()));
    }
    for index in 0..request.names.len() {
        let mut foreign = FOREIGN_POLL_MIN;
        let mut pushed = None;
        loop {
            let found = {
                let mut record = Record::open(&session.store, &request.names[index]).await?;
                step(session, request, index, &mut record)?
            };
            match found {
                AcquireStep::Taken => break,
                AcquireStep::Over => return Ok(Answer::Finished(lockkeeper_core::End::Gone)),
                AcquireStep::Revoked => return Ok(Answer::Revoked),
                AcquireStep::Refused(error) => return Ok(Answer::Refused(error)),
                AcquireStep::Busy(busy) => return Ok(Answer::Busy(busy)),
                AcquireStep::Foreign if !request.acquire.wait => {
                    let holder =
                        Some("a program that is not Lockkeeper (a flock on the hold file)".to_owned());
                    return Ok(Answer::Busy(Busy { holder, queued_ahead: 0 }));
                }
                AcquireStep::Foreign => {
                    push_queued(session, request, &mut pushed, 0);
                    wait(request, Vec::new(), jitter(foreign)).await;
                    foreign = (foreign * 2).min(FOREIGN_POLL_MAX);
                }
                AcquireStep::Waiting { position, pipes, closed } => {
                    push_queued(session, request, &mut pushed, position);
                    let longest = jitter(SAFETY_NET);
                    wait(request, pipes, closed.map_or(longest, |closed| closed.min(longest))).await;
                }
            }
        }
    }
    settle(session, request).await
}

fn push_queued(session: &FileSession, request: &FileRequest, pushed: &mut Option<u64>, position: u64) {
    if pushed.is_none() {
        *pushed = Some(position);
        let _ = session.pushes.send(Push::Queued { seq: request.seq, position });
    }
}

/// Waits for a notification, the end of one of the watched sessions, or `at_most`.
async fn wait(request: &FileRequest, pipes: Vec<File>, at_most: Duration) {
    let mut ends: Vec<_> = pipes.into_iter().map(|pipe| Box::pin(reactor::hang_up(pipe))).collect();
    let any_end = std::future::poll_fn(move |cx| {
        let ended = ends.iter_mut().any(|end| end.as_mut().poll(cx).is_ready());
        if ended { Poll::Ready(()) } else { Poll::Pending }
    });
    tokio::select! {
        () = request.news.notified() => {}
        () = any_end => {}
        () = reactor::sleep(at_most.max(Duration::from_millis(1))) => {}
    }
}

/// All names are acquired: the highest token becomes the token of the request, and each record stores it.
async fn settle(session: &Arc<FileSession>, request: &Arc<FileRequest>) -> Result<Answer, OsError> {
    let parts = request.progress().parts.clone();
    let Some(returned) = parts.iter().filter_map(|part| part.token).max() else {
        return Ok(Answer::Finished(lockkeeper_core::End::Gone));
    };
    for (part, name) in parts.iter().zip(&request.names) {
        let (Some(token), Some(seq)) = (part.token, part.seq) else { continue };
        if token == returned {
            continue;
        }
        let mut record = Record::open(&session.store, name).await?;
        let phase = record.state().request(session.file.tag, seq).map(|found| found.phase.clone());
        match phase {
            Some(Phase::Held { .. }) => record.store_returned(token, returned)?,
            _ => return Ok(Answer::Revoked),
        }
    }
    let mut progress = request.progress();
    if request.is_over() {
        return Ok(Answer::Finished(lockkeeper_core::End::Gone));
    }
    progress.granted = true;
    let permits = progress.parts.iter().filter_map(|part| part.permit).collect();
    Ok(Answer::Granted(Granted { token: Some(returned), permits, spare_tokens: 0 }))
}

/// One step for the name at `index`: adds the request to the record if it is not there yet, and takes the
/// flock if the record has granted it. Otherwise ends dead sessions in its way, or returns what it waits for.
fn step(
    session: &FileSession,
    request: &Arc<FileRequest>,
    index: usize,
    record: &mut Record,
) -> Result<AcquireStep, OsError> {
    let mut progress = request.progress();
    if request.is_over() {
        return Ok(AcquireStep::Over);
    }
    let tag = session.file.tag;
    let place = progress.parts[index].seq.filter(|&seq| record.state().request(tag, seq).is_some());
    let seq = match place {
        Some(seq) => seq,
        // A request that was granted once is never queued again without the holder's knowledge.
        None if progress.granted => return Ok(AcquireStep::Over),
        None => {
            // The request is new, or its entry was lost with a damaged record; it is added to the record, in
            // the latter case again.
            if let Some(lost) = progress.parts[index].seq {
                session.leave(lost);
            }
            let seq = session.enter(request);
            progress.parts[index].seq = Some(seq);
            match enter(session, request, index, seq, record)? {
                Reply::Granted(_) | Reply::Queued { .. } => seq,
                Reply::Busy { holder, queued_ahead } => {
                    let holder = holder.map(|holder| record.state().label(holder));
                    return Ok(AcquireStep::Busy(Busy { holder, queued_ahead }));
                }
                Reply::Refused(rejection) => return Ok(AcquireStep::Refused(rejection.into())),
                _ => return Ok(AcquireStep::Over),
            }
        }
    };
    loop {
        let Some(found) = record.state().request(tag, seq).cloned() else { return Ok(AcquireStep::Over) };
        let Some(owner) = found.owner else { return Ok(AcquireStep::Over) };
        if is_held(&found) {
            let part = &mut progress.parts[index];
            part.permit = permit_of(record, &found);
            return Ok(match found.phase {
                // A retry (P7-a): the flock is held already, on a file that excludes others only while it is
                // there.
                Phase::Held { .. } if !part.hold_is_there(&session.store, &request.names[index]) => {
                    AcquireStep::Over
                }
                Phase::Held { .. } if part.hold.is_some() => AcquireStep::Taken,
                Phase::Held { token, .. } => {
                    match record.take_hold(found.mode, part.permit.map(|permit| permit.slot))? {
                        Some(hold) => {
                            part.token = Some(token);
                            part.hold = Some(Arc::new(hold));
                            AcquireStep::Taken
                        }
                        None => AcquireStep::Foreign,
                    }
                }
                _ => AcquireStep::Revoked,
            });
        }
        let watched = record.state().watched().remove(&owner).unwrap_or_default();
        // Holders are checked too: the waiter before this one, which watches them, may be stopped and miss
        // their end.
        let whom: Vec<SessionId> = watched.iter().copied().chain(holders(record.state())).collect();
        let mut check = check_sessions(&session.store, record, Some(tag), whom)?;
        if check.is_clean() {
            let pipes = watched.iter().filter_map(|id| check.alive.remove(id)).collect();
            let closed = record.state().closed().map(|(_, left)| left).min();
            return Ok(AcquireStep::Waiting { position: position(record, owner)?, pipes, closed });
        }
        record.commit(|table, effects| check.reap(table, effects), |()| true)?;
        check.bury(&session.store);
    }
}

/// Applies the acquire to the table. If it is not granted at once, the sessions of the holders and of the
/// last waiter (of all waiters, for an acquire that does not wait) are checked first, dead ones are ended,
/// and it is applied again.
fn enter(
    session: &FileSession,
    request: &FileRequest,
    index: usize,
    seq: Seq,
    record: &mut Record,
) -> Result<Reply, OsError> {
    let acquire = &request.acquire;
    let ask = |table: &mut Table, effects: &mut Effects| {
        let opened = table.apply_whole(Command::OpenSession(session.opening()), effects);
        let Reply::Opened { session: id } = opened else { return opened };
        let acquire = Acquire {
            session: id,
            seq,
            // Earlier answers are kept by the session, not by the record.
            done_through: Seq(seq.0 - 1),
            names: vec![request.names[index].clone()],
            mode: acquire.mode,
            subtree: false,
            if_busy: if acquire.wait { IfBusy::WAIT } else { IfBusy::Fail },
            keep_closed_ms: u64::try_from(acquire.keep_closed.as_millis()).unwrap_or(u64::MAX),
            value: Box::default(),
            meta: acquire.meta.clone(),
            spare_tokens: 0,
            holding: Box::default(),
        };
        table.apply_whole(Command::Acquire(acquire), effects)
    };
    if let Some(granted) = record.commit(ask, |reply| matches!(reply, Reply::Granted(_)))? {
        return Ok(granted);
    }
    let waiting: Vec<SessionId> = waiters(record.state()).map(|(id, _)| id).collect();
    let last = if acquire.wait { waiting.len().saturating_sub(1) } else { 0 };
    let whom: Vec<SessionId> = holders(record.state()).chain(waiting[last..].iter().copied()).collect();
    let check = check_sessions(&session.store, record, Some(session.file.tag), whom)?;
    let entered = record.commit(
        |table, effects| {
            check.reap(table, effects);
            ask(table, effects)
        },
        |_| true,
    )?;
    check.bury(&session.store);
    Ok(entered.unwrap_or(Reply::SessionGone))
}

fn position(record: &Record, (session, seq): (SessionId, Seq)) -> Result<u64, OsError> {
    match record.table()?.request(session, seq) {
        Some(Reply::Queued { position, .. }) => Ok(position),
        _ => Ok(0),
    }
}

fn permit_of(record: &Record, found: &RequestState) -> Option<PermitGrant> {
    let (Phase::Held { slots, .. } | Phase::Revoked { slots, .. }) = &found.phase else { return None };
    let limit = record.state().table.limits.iter().find(|limit| limit.name == *record.name());
    Some(PermitGrant { slot: *slots.first()?, limit: limit.map_or(0, |limit| limit.limit) })
}
