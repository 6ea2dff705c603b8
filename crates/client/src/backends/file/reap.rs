//! Finding the dead: whose session file is no longer flocked, and which closed holds are over.
//!
//! Whoever needs a lock does this for the record in front of him; nobody does it for everyone.

use std::collections::BTreeMap;
use std::fs::File;

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, Effects, Seq, SessionId, Table, Token};

use super::os::Fault;
use super::record::Record;
use super::session_file::{Life, Tag, bury, probe};
use super::state::{State, is_held};
use super::store::Store;

/// What a look at a record found.
#[derive(Default)]
pub(super) struct Looked {
    dead: Vec<(SessionId, Tag)>,
    /// Pipes of the living, to wait for their end.
    pub(super) alive: BTreeMap<SessionId, File>,
    due: Vec<Token>,
}

impl Looked {
    pub(super) fn is_clean(&self) -> bool {
        self.dead.is_empty() && self.due.is_empty()
    }

    /// Ends what was found to be over, by the table's rules: lock-delay and `keep_closed` apply.
    pub(super) fn reap(&self, table: &mut Table, effects: &mut Effects) {
        for &(session, _) in &self.dead {
            let _ = table.apply_whole(Command::ExpireSession { session }, effects);
        }
        for &token in &self.due {
            let _ = table.apply_whole(Command::EndDelay { token }, effects);
        }
    }

    /// After that is written, the dead sessions' files go.
    pub(super) fn bury(&self, store: &Store) {
        for &(_, tag) in &self.dead {
            bury(store, tag);
        }
    }
}

/// Looks at `sessions` of a record (but not at our own, which lives) and at its closed holds.
pub(super) fn look(
    store: &Store,
    record: &Record,
    own: Option<Tag>,
    sessions: impl IntoIterator<Item = SessionId>,
) -> Result<Looked, Fault> {
    let mut looked = Looked::default();
    for session in sessions {
        let Some(tag) = record.state().tag(session).filter(|tag| Some(*tag) != own) else { continue };
        if looked.alive.contains_key(&session) || looked.dead.iter().any(|&(dead, _)| dead == session) {
            continue;
        }
        match probe(store, tag)? {
            Life::Alive(pipe) => {
                looked.alive.insert(session, pipe);
            }
            Life::Dead => looked.dead.push((session, tag)),
        }
    }
    looked.due = record.state().closed().filter(|(_, left)| left.is_zero()).map(|(token, _)| token).collect();
    Ok(looked)
}

/// Ends everything in a record that is over.
pub(super) fn reap_all(store: &Store, record: &mut Record) -> Result<(), Fault> {
    let everyone: Vec<SessionId> = record.state().table.sessions.iter().map(|session| session.id).collect();
    let looked = look(store, record, None, everyone)?;
    if !looked.is_clean() {
        record.commit(|table, effects| looked.reap(table, effects), |()| true)?;
        looked.bury(store);
    }
    Ok(())
}

/// Sessions that hold.
pub(super) fn holders(state: &State) -> impl Iterator<Item = SessionId> {
    state
        .table
        .requests
        .iter()
        .filter(|request| is_held(request))
        .filter_map(|request| Some(request.owner?.0))
}

/// Sessions that wait, in the order of the queue.
pub(super) fn waiters(state: &State) -> impl DoubleEndedIterator<Item = (SessionId, Seq)> {
    let waits = |phase: &Phase| matches!(phase, Phase::Waiting { .. });
    state
        .table
        .requests
        .iter()
        .filter(move |request| waits(&request.phase))
        .filter_map(|request| request.owner)
}
