//! The changes to a table when a backup of it is restored.
//!
//! Responsible for: no session, hold or waiter of the old cluster stays alive. The old cluster's sessions are
//! expired and not closed, so a lock-delay that a client requested stays in force: the client's work may
//! still be running. Waiters are removed first; otherwise the expiry of one session would grant a lock to a
//! session that is about to expire. No token that the old cluster issued, before or after the backup, is
//! issued again (P2).

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, LockName, Reply, Seq, SnapshotProgress, Table};
use lockkeeper_wire::store::Founding;

use crate::disk::Disk;
use crate::storage::{self, Existing, LogOptions, OpenError};

/// The number of items per snapshot piece.
const ITEMS_PER_PIECE: usize = 4096;

/// A summary of the changes: which state was dropped, and which remains.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// The ended sessions: their ids and labels.
    pub sessions: Vec<(u64, String)>,
    /// The number of holds that ended with the sessions.
    pub holds: usize,
    /// The number of waiters that were removed.
    pub waiters: usize,
    /// The closed holds that stay: their names, and the remaining time in milliseconds, counted from the zero
    /// point of the first leader.
    pub closed: Vec<(Vec<LockName>, u64)>,
    /// The number of stored permit limits that stay.
    pub limits: usize,
}

/// Ends all sessions, holds and waiters of the old cluster, and raises the token counter to at least
/// `tokens_above`. Holds whose lock-delay applies, and those closed already, stay closed.
///
/// # Errors
/// The table's refusal, if its token counter can't be raised to `tokens_above`.
pub fn end_old_life(table: &mut Table, tokens_above: u64) -> Result<Dropped, String> {
    // Effects and replies would go to the old cluster's clients, so they are dropped.
    let mut unheard = Vec::new();
    let _ = table.apply_whole(Command::Resume, &mut unheard);
    let before = table.snapshot();
    let mut dropped = Dropped {
        sessions: before.sessions.iter().map(|session| (session.id.0, session.label.to_string())).collect(),
        ..Dropped::default()
    };
    for request in &before.requests {
        match (&request.phase, request.owner) {
            (Phase::Waiting { .. }, Some((session, target))) => {
                let (seq, done_through) = (Seq(target.0.saturating_add(1)), Seq(0));
                let _ =
                    table.apply_whole(Command::Finish { session, seq, target, done_through }, &mut unheard);
                dropped.waiters += 1;
            }
            (Phase::Held { .. } | Phase::Revoked { .. }, _) => dropped.holds += 1,
            _ => {}
        }
    }
    for session in &before.sessions {
        let _ = table.apply_whole(Command::ExpireSession { session: session.id }, &mut unheard);
    }
    match table.apply_whole(Command::RaiseTokens { above: tokens_above }, &mut unheard) {
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

/// Writes `table` into an empty directory, or over an unfinished restore, as the first entry of the cluster
/// that `founding` describes.
///
/// # Errors
/// As [`storage::restore`].
pub fn write<D: Disk>(
    disk: &D,
    options: LogOptions,
    founding: &Founding,
    table: &mut Table,
) -> Result<Existing<D>, OpenError> {
    // Otherwise a snapshot iterator that the caller has begun would make `begin_snapshot` fail.
    table.abandon_snapshot();
    let began = table.begin_snapshot();
    let digest = std::cell::Cell::new(0);
    let mut is_over = began.is_err();
    let pieces = std::iter::from_fn(|| {
        if is_over {
            return None;
        }
        let mut piece = Vec::new();
        match table.snapshot_piece(ITEMS_PER_PIECE, &mut piece) {
            SnapshotProgress::Continue => {}
            SnapshotProgress::Done { digest: found } => {
                digest.set(found);
                is_over = true;
            }
            SnapshotProgress::NoWalk => return None,
        }
        Some(piece)
    });
    storage::restore(disk, options, founding, pieces, || digest.get().to_le_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Acquire, IfBusy, Mode, OpenSession, SessionId};

    use super::*;

    /// A table, with short methods for the commands of these tests.
    struct Old(Table);

    impl Old {
        fn session(&mut self, number: u8, lock_delay_ms: u64) -> SessionId {
            let open = OpenSession {
                secret_hash: [number; 32],
                ttl_ms: 10_000,
                lock_delay_ms,
                linger_ms: 0,
                label: format!("client {number}").into(),
                identity: Box::default(),
            };
            match self.0.apply(Command::OpenSession(open), &mut Vec::new()) {
                Reply::Opened { session } => session,
                other => panic!("not opened: {other:?}"),
            }
        }

        fn acquire(&mut self, session: SessionId, seq: u64, name: &str, keep_closed_ms: u64) -> Reply {
            let acquire = Acquire {
                session,
                seq: Seq(seq),
                done_through: Seq(0),
                names: vec![LockName::parse(name).expect("a name")],
                mode: Mode::Exclusive,
                subtree: false,
                if_busy: IfBusy::WAIT,
                keep_closed_ms,
                value: Box::default(),
                meta: Box::default(),
                spare_tokens: 0,
                holding: Box::default(),
            };
            self.0.apply(Command::Acquire(acquire), &mut Vec::new())
        }
    }

    #[test]
    fn restore_drops_sessions_holds_and_waiters_and_keeps_closed_holds_and_limits() {
        let mut old = Old(Table::new(0));
        let (careful, waiting, plain) = (old.session(1, 60_000), old.session(2, 90_000), old.session(3, 0));
        let name = |name: &str| LockName::parse(name).expect("a name");
        assert!(matches!(old.acquire(careful, 1, "a", 0), Reply::Granted(_)));
        assert!(matches!(old.acquire(waiting, 1, "a", 0), Reply::Queued { .. }));
        assert!(matches!(old.acquire(plain, 1, "b", 0), Reply::Granted(_)));
        assert!(matches!(old.acquire(plain, 2, "daily", 5_000), Reply::Granted(_)));
        let limit = Command::SetLimit { name: name("gpu"), limit: Some(4) };
        assert_eq!(old.0.apply(limit, &mut Vec::new()), Reply::Done);
        let before = old.0.last_token();

        let mut table = old.0;
        let dropped = end_old_life(&mut table, 1_000).expect("a token that can be");
        let label = |number: u64| (number, format!("client {number}"));
        assert_eq!(dropped.sessions, [label(1), label(2), label(3)]);
        assert_eq!((dropped.holds, dropped.waiters, dropped.limits), (3, 1, 1));
        // The waiter's lock-delay has no effect, because it never held the lock.
        let mut closed = dropped.closed;
        closed.sort();
        assert_eq!(closed, [(vec![name("a")], 60_000), (vec![name("daily")], 5_000)]);
        assert_eq!(table.sessions().count(), 0);
        assert_eq!(table.last_token(), 1_000);
        assert!(before < 1_000);

        let mut new = Old(table);
        let session = new.session(4, 0);
        assert!(matches!(new.acquire(session, 1, "a", 0), Reply::Queued { .. }), "it is closed");
        match new.acquire(session, 2, "b", 0) {
            Reply::Granted(grant) => assert_eq!(grant.token.get(), 1_001),
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn restore_never_lowers_the_token_counter_and_refuses_an_impossible_one() {
        let mut old = Old(Table::new(0));
        let session = old.session(1, 0);
        for seq in 1..=20 {
            assert!(matches!(old.acquire(session, seq, &format!("x/{seq}"), 0), Reply::Granted(_)));
        }
        let mut table = old.0;
        assert!(end_old_life(&mut table, u64::MAX).is_err());
        end_old_life(&mut table, 3).expect("a token that can be");
        assert_eq!(table.last_token(), 20);
    }
}
