//! The statements of lease rows, and the decoding of their rows.
//!
//! - Each statement is a transaction of its own (autocommit), so a client that stops half-way leaves nothing
//!   locked, and a change is answered after its commit.
//! - Time is the server's, read at the beginning of a statement (`UTC_TIMESTAMP(6)`). A statement that waited
//!   for a row has an older time than the change it waited for: so it finds a hold live for longer, never
//!   shorter; and a hold that was released has a time long ago, not the time of its release.
//! - Reads that decide are locking reads: they see the last commit, and a proxy that splits reads from writes
//!   sends them to the primary.
//! - Subqueries of changes are locking reads at REPEATABLE READ. `gone` says so once more: an attempt that
//!   arrives late either finds the mark, or makes the statement that writes the mark wait until it has ended.

use std::time::Duration;

use lockkeeper_backend::{BackendError, HolderInfo, HolderState, LockInfo, WaiterInfo, decode_meta};
use lockkeeper_core::{LockName, ModeKind, Token};
use mysql_async::Row;

use crate::lane::{column, names, text};

/// An expression: what a token is at least (P2), microseconds since 2026-01-01 UTC. So tokens rise also after
/// a lock's row was deleted, as long as the server's clock is not set back.
macro_rules! floor {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '2026-01-01', UTC_TIMESTAMP(6))"
    };
}

/// What a grant sets: `(id, held, closed, label, meta)`, times in µs from now. The token is the last insert
/// id.
macro_rules! grant {
    () => {
        concat!(
            "UPDATE lockkeeper_lease SET token = LAST_INSERT_ID(GREATEST(token + 1, ",
            floor!(),
            ")), id = ?, since = UTC_TIMESTAMP(6), held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, \
             shut_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ended = 0, revoked = 0, reason = '', by_whom = '', \
             label = ?, meta = ?"
        )
    };
}

/// `(… of the grant, name)`. Matches nothing if the lock isn't free, or if there may be waiters or marks of
/// finished requests (`contended`): then [`ACQUIRE_CONTENDED`] decides. A statement of its own, since the
/// server opens all tables that a statement names, needed or not.
pub(super) const ACQUIRE: &str =
    concat!(grant!(), " WHERE name = ? AND shut_until <= UTC_TIMESTAMP(6) AND contended = 0");

/// `(… of the grant, id, name, id, id)`. Matches nothing if the lock isn't free, another waiter comes first,
/// or the request was finished before.
///
/// A client sets `contended` after it has added a waiter or a mark; a grant that finds none left clears the
/// flag, while the row's lock keeps others from setting it.
pub(super) const ACQUIRE_CONTENDED: &str = concat!(
    grant!(),
    ", contended = contended = 1 AND ( \
     EXISTS (SELECT 1 FROM lockkeeper_waiter w FORCE INDEX (by_name) WHERE w.name = lockkeeper_lease.name AND w.id <> ?) \
     OR EXISTS (SELECT 1 FROM lockkeeper_gone g FORCE INDEX (by_name) WHERE g.name = lockkeeper_lease.name)) \
     WHERE name = ? AND shut_until <= UTC_TIMESTAMP(6) AND (contended = 0 OR ( \
     NOT EXISTS (SELECT 1 FROM lockkeeper_gone g WHERE g.id = ? AND g.name = lockkeeper_lease.name LOCK IN SHARE MODE) \
     AND NOT EXISTS (SELECT 1 FROM lockkeeper_waiter w FORCE INDEX (by_name) \
     WHERE w.name = lockkeeper_lease.name AND w.expires > UTC_TIMESTAMP(6) \
     AND w.ticket < COALESCE((SELECT m.ticket FROM lockkeeper_waiter m WHERE m.id = ?), 9223372036854775807))))"
);

/// `(name)`: a waiter or a mark of a finished request was added. Makes the row if there is none, so that a
/// late attempt of the finished request meets the flag whoever would have made the row.
pub(super) const CONTENDED: &str =
    "INSERT INTO lockkeeper_lease (name, contended) VALUES (?, 1) ON DUPLICATE KEY UPDATE contended = 1";

/// `(name)`.
pub(super) const CREATE: &str = "INSERT IGNORE INTO lockkeeper_lease (name) VALUES (?)";

/// `(id, id, id, id, name)`: why a request was not granted the lock: [`Blocked`].
pub(super) const BLOCKED: &str = "SELECT l.id, l.token, l.label, l.held_until > UTC_TIMESTAMP(6), \
     TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.shut_until), \
     EXISTS (SELECT 1 FROM lockkeeper_gone g WHERE g.id = ?), \
     EXISTS (SELECT 1 FROM lockkeeper_waiter m WHERE m.id = ?), \
     (SELECT COUNT(*) FROM lockkeeper_waiter w FORCE INDEX (by_name) WHERE w.name = l.name AND w.expires > UTC_TIMESTAMP(6) \
     AND w.ticket < COALESCE((SELECT m.ticket FROM lockkeeper_waiter m WHERE m.id = ?), 9223372036854775807)), \
     (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(w.expires)) FROM lockkeeper_waiter w \
     WHERE w.name = l.name AND w.expires > UTC_TIMESTAMP(6) \
     AND w.ticket < COALESCE((SELECT m.ticket FROM lockkeeper_waiter m WHERE m.id = ?), 9223372036854775807)), \
     l.contended FROM lockkeeper_lease l WHERE l.name = ? FOR UPDATE";

/// `(name, id, ttl, label, meta, id, ttl)`.
pub(super) const WAIT: &str = "INSERT INTO lockkeeper_waiter (name, id, expires, label, meta) \
     SELECT ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?, ? FROM DUAL \
     WHERE NOT EXISTS (SELECT 1 FROM lockkeeper_gone WHERE id = ? LOCK IN SHARE MODE) \
     ON DUPLICATE KEY UPDATE expires = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

/// `(id)`.
pub(super) const LEAVE: &str = "DELETE FROM lockkeeper_waiter WHERE id = ?";

/// `(id, name, for, for)`: a mark of a finished request, kept for this time.
pub(super) const MARK_GONE: &str = "INSERT INTO lockkeeper_gone (id, name, expires) \
     VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) \
     ON DUPLICATE KEY UPDATE expires = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

/// `(keep, keep, name, id)`: the last insert id is 1 for a release, 2 for the end of a broken hold.
pub(super) const RELEASE: &str = "UPDATE lockkeeper_lease SET ended = LAST_INSERT_ID(1 + revoked), \
     held_until = '2000-01-01', \
     shut_until = IF(? > 0, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, '2000-01-01') \
     WHERE name = ? AND id = ? AND held_until > UTC_TIMESTAMP(6)";

/// `(name, id)`: how the last hold ended, if it was this request's.
pub(super) const ENDED: &str = "SELECT ended FROM lockkeeper_lease WHERE name = ? AND id = ? FOR UPDATE";

/// `(reason, by, name, token)`.
pub(super) const REVOKE: &str = "UPDATE lockkeeper_lease SET reason = IF(revoked, reason, ?), \
     by_whom = IF(revoked, by_whom, ?), revoked = 1 \
     WHERE name = ? AND token = ? AND held_until > UTC_TIMESTAMP(6)";

/// `(reason, by, name, token)`.
pub(super) const BREAK_NOW: &str = "UPDATE lockkeeper_lease SET ended = 2, revoked = 1, reason = ?, by_whom = ?, \
     held_until = '2000-01-01', shut_until = '2000-01-01' \
     WHERE name = ? AND token = ? AND shut_until > UTC_TIMESTAMP(6)";

/// `(name)`: the token of the last hold, whether it is live, whether the lock is closed, whether the hold is
/// broken.
pub(super) const CURRENT: &str = "SELECT token, held_until > UTC_TIMESTAMP(6), shut_until > UTC_TIMESTAMP(6), revoked \
     FROM lockkeeper_lease WHERE name = ? FOR UPDATE";

pub(super) const FLOOR: &str = concat!("SELECT ", floor!());

/// The holds of these names: [`add_holds`].
pub(super) fn holds(prefix: Option<&LockName>, below: bool) -> (String, Vec<mysql_async::Value>) {
    let (condition, values) = names(prefix, below);
    let sql = format!(
        "SELECT name, token, label, meta, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), \
         held_until > UTC_TIMESTAMP(6), revoked, reason, by_whom, \
         TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), shut_until) \
         FROM lockkeeper_lease WHERE {condition} AND shut_until > UTC_TIMESTAMP(6) ORDER BY name"
    );
    (sql, values)
}

/// The waiters of these names: [`add_waiters`].
pub(super) fn waiters(prefix: Option<&LockName>, below: bool) -> (String, Vec<mysql_async::Value>) {
    let (condition, values) = names(prefix, below);
    let sql = format!(
        "SELECT name, label, meta FROM lockkeeper_waiter WHERE {condition} AND expires > UTC_TIMESTAMP(6) \
         ORDER BY name, ticket"
    );
    (sql, values)
}

/// Why [`ACQUIRE`] has not granted the lock to a request: the lock's last hold, and the request's position
/// in the queue.
pub(super) struct Blocked {
    /// The request that has the last hold.
    pub(super) id: Vec<u8>,
    pub(super) token: i64,
    pub(super) label: String,
    /// Whether the last hold is live.
    pub(super) held: bool,
    /// The time until the hold has expired and the lock is no longer closed; `None` if that time has passed.
    pub(super) left: Option<Duration>,
    /// Whether this request was finished before: it must not be granted any more.
    pub(super) is_gone: bool,
    /// Whether this request is in the queue.
    pub(super) waits: bool,
    /// The number of waiters before this request.
    pub(super) ahead: u64,
    /// The time until the first of these waiters expires.
    pub(super) ahead_left: Option<Duration>,
    /// Whether the lock's row is marked as contended.
    pub(super) contended: bool,
}

impl Blocked {
    pub(super) fn of(row: &Row) -> Result<Self, BackendError> {
        let left: i64 = column(row, 4)?;
        let ahead_left: Option<i64> = column(row, 8)?;
        Ok(Self {
            id: column(row, 0)?,
            token: column(row, 1)?,
            label: text(column(row, 2)?),
            held: column(row, 3)?,
            left: (left > 0).then(|| micros(left)),
            is_gone: column(row, 5)?,
            waits: column(row, 6)?,
            ahead: column(row, 7)?,
            ahead_left: ahead_left.map(micros),
            contended: column(row, 9)?,
        })
    }
}

/// Adds the holds to the locks of their names.
pub(super) fn add_holds(locks: &mut Vec<LockInfo>, rows: &[Row]) -> Result<(), BackendError> {
    for row in rows {
        let Some(lock) = lock_of(locks, row)? else { continue };
        let (held, revoked): (bool, bool) = (column(row, 5)?, column(row, 6)?);
        let age: i64 = column(row, 4)?;
        let label = text(column(row, 2)?);
        let state = match (held, revoked) {
            (false, _) => HolderState::Closed { left: micros(column(row, 9)?) },
            (true, false) => HolderState::Held,
            (true, true) => HolderState::Revoked { reason: text(column(row, 7)?), by: text(column(row, 8)?) },
        };
        lock.hold_count += 1;
        lock.holds.push(HolderInfo {
            token: token(column(row, 1)?),
            held_for: Some(micros(age)),
            meta: decode_meta(&column::<Vec<u8>>(row, 3)?),
            state,
            ..HolderInfo::exclusive(if held { label } else { String::new() })
        });
    }
    Ok(())
}

/// Adds the waiters to the locks of their names, at most `shown` for each lock.
pub(super) fn add_waiters(locks: &mut Vec<LockInfo>, rows: &[Row], shown: usize) -> Result<(), BackendError> {
    for row in rows {
        let Some(lock) = lock_of(locks, row)? else { continue };
        lock.waiter_count += 1;
        if lock.waiters.len() < shown {
            let (label, meta) = (text(column(row, 1)?), decode_meta(&column::<Vec<u8>>(row, 2)?));
            lock.waiters.push(WaiterInfo::new(label, ModeKind::Exclusive, meta));
        }
    }
    Ok(())
}

/// The lock of a row, in the order of names. `None`: a name that this library has not written.
fn lock_of<'a>(locks: &'a mut Vec<LockInfo>, row: &Row) -> Result<Option<&'a mut LockInfo>, BackendError> {
    let name = text(column(row, 0)?);
    let Ok(name) = LockName::parse(&name) else { return Ok(None) };
    let at = match locks.binary_search_by(|lock| lock.name.cmp(&name)) {
        Ok(at) => at,
        Err(at) => {
            locks.insert(at, LockInfo::free(name));
            at
        }
    };
    Ok(locks.get_mut(at))
}

pub(super) fn token(value: i64) -> Option<Token> {
    u64::try_from(value).ok().and_then(Token::new)
}

pub(super) fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}
