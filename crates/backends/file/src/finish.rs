//! Ends: a `Finish` of a hold or of a waiter, and the close of a session.

use std::sync::Arc;

use lockkeeper_backend::{Answer, BackendError, CallError};
use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Break, Command, End, LockName, Reply, Seq};

use super::names::stem;
use super::os::{OsError, die_at, unflock};
use super::record::Record;
use super::session::{FileRequest, FileSession, Part};

/// Ends a request; `seq` is the seq of the call.
pub(super) async fn finish(
    session: &FileSession,
    request: &FileRequest,
    seq: Seq,
) -> Result<Answer, CallError> {
    match end_parts(session, request).await {
        Ok(end) => {
            session.ended(request, end, seq);
            Ok(Answer::Finished(end))
        }
        Err(OsError::Gone) => {
            session.lose();
            Ok(Answer::SessionGone)
        }
        Err(fault) => {
            let error = BackendError::from(fault);
            tracing::warn!(%error, "a release failed and will be tried again");
            Err(CallError::IN_DOUBT)
        }
    }
}

/// Ends all parts of a request, the last name first. Completed parts stay ended if a later one fails.
pub(super) async fn end_parts(session: &FileSession, request: &FileRequest) -> Result<End, OsError> {
    for index in (0..request.names.len()).rev() {
        if request.progress().parts[index].seq.is_none() {
            continue;
        }
        let record = Record::open_file(&session.store, &stem(&request.names[index])).await?;
        let end = end_part(session, request, index, record)?;
        if let Some(name) = session.left_idle(&request.names[index]) {
            forget(session, &name).await?;
        }
        let mut progress = request.progress();
        progress.parts[index] = Part::default();
        progress.end = Some(worse(progress.end, end));
    }
    Ok(request.progress().end.unwrap_or(End::Gone))
}

/// Removes the files of a lock used by this session, if the lock is idle.
async fn forget(session: &FileSession, name: &LockName) -> Result<(), OsError> {
    match Record::open_file(&session.store, &stem(name)).await? {
        Some(mut record) => record.remove_if_idle(),
        None => Ok(()),
    }
}

/// The end to report for a request for several names: the worst of the ends of its parts. `a` is the worst so
/// far.
fn worse(a: Option<End>, b: End) -> End {
    let badness = |end: &End| match end {
        End::Broken => 3,
        End::Released => 2,
        End::Left => 1,
        _ => 0,
    };
    a.into_iter().chain([b]).max_by_key(badness).unwrap_or(b)
}

fn end_part(
    session: &FileSession,
    request: &FileRequest,
    index: usize,
    record: Option<Record>,
) -> Result<End, OsError> {
    // The mutex is held during a step, so this waits for a step in progress.
    let progress = request.progress();
    let (part, granted) = (progress.parts[index].clone(), progress.granted);
    let Some(seq) = part.seq else { return Ok(End::Gone) };
    // A hold whose file was deleted or replaced has excluded nobody since then.
    let excluded = part.hold_is_there(&session.store, &request.names[index]);
    // For a part that has no entry in a record: the record was damaged, and an operator deleted it. Since
    // then only the flock has excluded others.
    let forgotten = if part.hold.is_some() && excluded { End::Released } else { End::Gone };
    let Some(mut record) = record else {
        if let Some(hold) = &part.hold {
            unflock(hold).map_err(|e| OsError::operator(format!("can't give a hold's flock back: {e}")))?;
        }
        session.leave(seq);
        return Ok(forgotten);
    };
    record.keep_files();
    if let Some(hold) = &part.hold {
        record.give_back(Arc::clone(hold), part.permit.map(|permit| permit.slot))?;
        die_at("flock given back");
    }
    let tag = session.file.tag;
    let (Some(id), Some(found)) = (record.state().session(tag), record.state().request(tag, seq).cloned())
    else {
        session.leave(seq);
        return Ok(forgotten);
    };
    let name = record.name().clone();
    let own = session.next_seq();
    let end = record.commit(
        |table, effects| {
            if let (Phase::Held { token, .. } | Phase::Revoked { token, .. }, false) = (&found.phase, granted)
            {
                // The grant was never returned to the client: nothing was done under it that `keep_closed`
                // must protect (B2).
                let order =
                    Break { name: name.clone(), token: *token, reason: "".into(), by: "".into(), now: true };
                let _ = table.apply_whole(Command::Break(order), effects);
            }
            let done_through = Seq(own.0 - 1);
            table.apply_whole(Command::Finish { session: id, seq: own, target: seq, done_through }, effects)
        },
        |_| true,
    )?;
    session.leave(seq);
    Ok(match end {
        Some(Reply::Finished(_)) if !granted => End::Left,
        Some(Reply::Finished(End::Released)) if !excluded => End::Gone,
        Some(Reply::Finished(end)) => end,
        _ => forgotten,
    })
}

/// Ends a session with all its requests. If a record cannot be updated, other processes find the session dead
/// by its file.
pub(super) async fn close(session: &FileSession) {
    for request in session.requests() {
        request.call_off();
        if let Err(fault) = end_parts(session, &request).await {
            let error = BackendError::from(fault);
            tracing::warn!(%error, "a release at close failed; others find the session dead");
        }
    }
    for name in session.all_left_idle() {
        // Files left here are removed by the next `list`.
        let _ = forget(session, &name).await;
    }
    session.end();
    session.file.end(&session.store);
}
