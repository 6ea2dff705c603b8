//! Finds dead sessions, whose files are no longer flocked, and closed holds whose time is over.
//!
//! Each process checks only the record (the state file of one lock) that it is about to use; there is no
//! background process for all records.

use std::collections::BTreeMap;
use std::fs::File;

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, Effects, Seq, SessionId, Table, Token};

use super::os::OsError;
use super::record::Record;
use super::session_file::{Life, bury, probe};
use super::state::{RecordState, is_held};
use super::store::FileStore;
use super::tag::Tag;

/// The result of checking a record.
#[derive(Default)]
pub(super) struct RecordCheck {
    dead: Vec<(SessionId, Tag)>,
    /// Pipes of live sessions, to wait for their end.
    pub(super) alive: BTreeMap<SessionId, File>,
    due: Vec<Token>,
}

impl RecordCheck {
    pub(super) fn is_clean(&self) -> bool {
        self.dead.is_empty() && self.due.is_empty()
    }

    /// Ends everything found by the check, by the table's rules: lock-delay and `keep_closed` apply.
    pub(super) fn reap(&self, table: &mut Table, effects: &mut Effects) {
        for &(session, _) in &self.dead {
            let _ = table.apply_whole(Command::ExpireSession { session }, effects);
        }
        for &token in &self.due {
            let _ = table.apply_whole(Command::EndDelay { token }, effects);
        }
    }

    /// Removes the files of dead sessions, after the record was written.
    pub(super) fn bury(&self, store: &FileStore) {
        for &(_, tag) in &self.dead {
            bury(store, tag);
        }
    }
}

/// Checks `sessions` of a record (except the caller's own session, which lives) and its closed holds.
pub(super) fn check_sessions(
    store: &FileStore,
    record: &Record,
    own: Option<Tag>,
    sessions: impl IntoIterator<Item = SessionId>,
) -> Result<RecordCheck, OsError> {
    let mut check = RecordCheck::default();
    for session in sessions {
        let Some(tag) = record.state().tag(session).filter(|tag| Some(*tag) != own) else { continue };
        if check.alive.contains_key(&session) || check.dead.iter().any(|&(dead, _)| dead == session) {
            continue;
        }
        match probe(store, tag)? {
            Life::Alive(pipe) => {
                check.alive.insert(session, pipe);
            }
            Life::Dead => check.dead.push((session, tag)),
        }
    }
    check.due = record.state().closed().filter(|(_, left)| left.is_zero()).map(|(token, _)| token).collect();
    Ok(check)
}

/// Ends all dead sessions and due closed holds of a record.
pub(super) fn reap_all(store: &FileStore, record: &mut Record) -> Result<(), OsError> {
    let everyone: Vec<SessionId> = record.state().table.sessions.iter().map(|session| session.id).collect();
    let check = check_sessions(store, record, None, everyone)?;
    if !check.is_clean() {
        record.commit(|table, effects| check.reap(table, effects), |()| true)?;
        check.bury(store);
    }
    Ok(())
}

/// Sessions with a hold.
pub(super) fn holders(state: &RecordState) -> impl Iterator<Item = SessionId> {
    state
        .table
        .requests
        .iter()
        .filter(|request| is_held(request))
        .filter_map(|request| Some(request.owner?.0))
}

/// Sessions with a waiter, in the order of the queue.
pub(super) fn waiters(state: &RecordState) -> impl DoubleEndedIterator<Item = (SessionId, Seq)> {
    let waits = |phase: &Phase| matches!(phase, Phase::Waiting { .. });
    state
        .table
        .requests
        .iter()
        .filter(move |request| waits(&request.phase))
        .filter_map(|request| request.owner)
}
