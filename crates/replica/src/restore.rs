//! What becomes of a table when a backup of it is restored.
//!
//! Responsible for: nothing of the old cluster's life goes on. Its sessions ended with it, as by silence: a lock-delay that
//! a client asked for stays, since its work may still be under way. Waiters leave first, or the end of one session would
//! grant a lock to another that is about to end. And no token that the old cluster issued, before the backup or after it,
//! is issued again (P2).

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, LockName, Reply, Seq, Table, WalkState};
use lockkeeper_wire::store::Founding;

use crate::disk::Disk;
use crate::storage::{self, Existing, OpenError, Options};

/// Items written at one stretch.
const ITEMS_PER_PIECE: usize = 4096;

/// What was dropped from a table, and what stays.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Sessions that were ended: their ids with their labels.
    pub sessions: Vec<(u64, String)>,
    /// How many holds were ended with them.
    pub holds: usize,
    /// How many waiters were sent away.
    pub waiters: usize,
    /// What stays closed, and for how long from the first leader's start, in milliseconds.
    pub closed: Vec<(Vec<LockName>, u64)>,
    /// How many stored numbers of permits stay.
    pub limits: usize,
}

/// Ends everything that ended with the old cluster; tokens go on above `tokens_above`.
///
/// # Errors
/// The table's own words, if tokens can't start there.
pub fn end_old_life(table: &mut Table, tokens_above: u64) -> Result<Dropped, String> {
    let before = table.snapshot();
    let mut dropped = Dropped {
        sessions: before.sessions.iter().map(|session| (session.id.0, session.label.to_string())).collect(),
        ..Dropped::default()
    };
    // Effects and answers are for clients, and nobody is left to be told.
    let mut unheard = Vec::new();
    for request in &before.requests {
        match (&request.phase, request.owner) {
            (Phase::Waiting { .. }, Some((session, target))) => {
                let (seq, done_through) = (Seq(target.0.saturating_add(1)), Seq(0));
                let _ = table.apply(Command::Finish { session, seq, target, done_through }, &mut unheard);
                dropped.waiters += 1;
            }
            (Phase::Held { .. } | Phase::Revoked { .. }, _) => dropped.holds += 1,
            _ => {}
        }
    }
    for session in &before.sessions {
        let _ = table.apply(Command::ExpireSession { session: session.id }, &mut unheard);
    }
    match table.apply(Command::RaiseTokens { above: tokens_above }, &mut unheard) {
        Reply::Done => {}
        Reply::Refused(why) => return Err(why.to_string()),
        other => return Err(format!("the table answered {other:?} when its tokens were raised")),
    }
    let after = table.snapshot();
    dropped.limits = after.limits.iter().filter(|limit| limit.stored).count();
    dropped.closed = after
        .requests
        .into_iter()
        .filter_map(|request| match request.phase {
            Phase::Closed { ms, .. } => Some((request.names, ms)),
            _ => None,
        })
        .collect();
    Ok(dropped)
}

/// Writes `table` into an empty directory, as the first entry of the cluster that `founding` founds.
///
/// # Errors
/// As [`storage::restore`]. What was written of it then is refused by a start.
pub fn write<D: Disk>(
    disk: &D,
    options: Options,
    founding: &Founding,
    table: &mut Table,
) -> Result<Existing<D>, OpenError> {
    // One that a caller began is of no use to it any more.
    table.abandon_walk();
    let began = table.begin_walk();
    let digest = std::cell::Cell::new(0);
    let mut is_over = began.is_err();
    let pieces = std::iter::from_fn(|| {
        if is_over {
            return None;
        }
        let mut piece = Vec::new();
        match table.walk_piece(ITEMS_PER_PIECE, &mut piece) {
            WalkState::Continue => {}
            WalkState::Done { digest: found } => {
                digest.set(found);
                is_over = true;
            }
            WalkState::NoWalk => return None,
        }
        Some(piece)
    });
    storage::restore(disk, options, founding, pieces, || digest.get().to_le_bytes().to_vec())
}
