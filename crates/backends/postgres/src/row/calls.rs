//! Bindings to the functions of `row.sql`: statements and row decoding.

use std::time::Duration;

use lockkeeper_backend::{
    BackendError, BackendErrorKind, Broken, HolderInfo, HolderState, LockInfo, WaiterInfo, decode_meta,
};
use lockkeeper_core::{End, LockName, Mode, ModeKind, Token};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// A statement and the types of its parameters, so that the server need not be asked for them.
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) types: &'static [Type],
}

pub(super) const ACQUIRE: Statement = Statement {
    sql: "SELECT outcome, token, slot, permits, holder, ahead, left_ms \
          FROM lockkeeper.row_acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    types: &[
        Type::TEXT,
        Type::TEXT,
        Type::BOOL,
        Type::INT4,
        Type::INT8,
        Type::INT8,
        Type::BOOL,
        Type::TEXT,
        Type::BYTEA,
        Type::TEXT,
    ],
};

pub(super) const RENEW: Statement = Statement {
    sql: "SELECT lockkeeper.row_renew($1, $2, $3)",
    types: &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::INT8_ARRAY],
};

pub(super) const FINISH: Statement = Statement {
    sql: "SELECT lockkeeper.row_finish($1, $2, $3, $4, $5)",
    types: &[Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::BOOL],
};

pub(super) const BREAK: Statement = Statement {
    sql: "SELECT outcome, live FROM lockkeeper.row_break($1, $2, $3, $4, $5)",
    types: &[Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT, Type::BOOL],
};

pub(super) const INSPECT: Statement = Statement {
    sql: "SELECT name, token, permit, slot, owner, age_ms, state, reason, by_whom, left_ms, meta, permits, total \
          FROM lockkeeper.row_look($1, $2, $3)",
    types: &[Type::TEXT, Type::BOOL, Type::INT4],
};

pub(super) const CHECK_TOKEN: Statement = Statement {
    sql: "SELECT issued, live FROM lockkeeper.row_check_token($1, $2)",
    types: &[Type::TEXT, Type::INT8],
};

pub(super) const CLEAN: Statement =
    Statement { sql: "SELECT lockkeeper.row_clean($1, $2)", types: &[Type::INT4, Type::BOOL] };

pub(super) const NOTIFY: Statement =
    Statement { sql: "SELECT pg_notify($1, $2)", types: &[Type::TEXT, Type::TEXT] };

pub(super) const VERSION_OF: Statement = Statement {
    sql: "SELECT lockkeeper.row_version(), current_setting('transaction_isolation')",
    types: &[],
};

pub(super) const SETTINGS: Statement = Statement {
    sql: "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
          current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
          (SELECT count(*) FROM pg_stat_replication)",
    types: &[],
};

/// The result of `row_acquire`.
pub(super) struct Acquired {
    pub(super) outcome: String,
    pub(super) token: Option<i64>,
    pub(super) slot: Option<i32>,
    pub(super) permits: Option<i32>,
    pub(super) holder: Option<String>,
    pub(super) ahead: u64,
    /// The longest remaining time of what blocks the request: a hold with its closed time, or, if the lock is
    /// free, a waiter ahead.
    pub(super) left: Option<Duration>,
}

/// Reads a required column of a required row.
pub(super) fn column<'a, T: FromSql<'a>>(row: Option<&'a Row>, at: usize) -> Result<T, BackendError> {
    let not_ours = |what: String| {
        let what = format!("the functions in the schema `lockkeeper` are not those of this program: {what}");
        BackendError::new(BackendErrorKind::Operator, what)
    };
    let row = row.ok_or_else(|| not_ours("no row came".into()))?;
    row.try_get(at).map_err(|error| not_ours(error.to_string()))
}

pub(super) fn acquired(rows: &[Row]) -> Result<Acquired, BackendError> {
    let row = rows.first();
    let ahead: Option<i64> = column(row, 5)?;
    let left: Option<i64> = column(row, 6)?;
    Ok(Acquired {
        outcome: column(row, 0)?,
        token: column(row, 1)?,
        slot: column(row, 2)?,
        permits: column(row, 3)?,
        holder: column(row, 4)?,
        ahead: ahead.map_or(0, i64::unsigned_abs),
        left: left.map(millis),
    })
}

pub(super) fn finished(rows: &[Row]) -> Result<End, BackendError> {
    let end: String = column(rows.first(), 0)?;
    Ok(match end.as_str() {
        "released" => End::Released,
        "broken" => End::Broken,
        "left" => End::Left,
        _ => End::Gone,
    })
}

pub(super) fn broken(rows: &[Row]) -> Result<Broken, BackendError> {
    let outcome: String = column(rows.first(), 0)?;
    Ok(match outcome.as_str() {
        "done" => Broken::Done,
        "still-closed" => Broken::StillClosed,
        _ => Broken::NotCurrent { live: tokens(rows.first(), 1)? },
    })
}

/// The valid tokens of an array column.
pub(super) fn tokens(row: Option<&Row>, at: usize) -> Result<Vec<Token>, BackendError> {
    let live: Option<Vec<i64>> = column(row, at)?;
    Ok(live.unwrap_or_default().into_iter().filter_map(token).collect())
}

pub(super) fn token(value: i64) -> Option<Token> {
    u64::try_from(value).ok().and_then(Token::new)
}

pub(super) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Decodes the rows of `row_look`; the rows of one lock are adjacent.
pub(super) fn decode_locks(rows: &[Row]) -> Result<Vec<LockInfo>, BackendError> {
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in rows {
        let row = Some(row);
        let name: String = column(row, 0)?;
        // An invalid lock name was not written by this library.
        let Ok(name) = LockName::parse(&name) else { continue };
        if locks.last().is_none_or(|last| last.name != name) {
            locks.push(LockInfo::free(name));
        }
        let Some(lock) = locks.last_mut() else { continue };
        let permits: Option<i32> = column(row, 11)?;
        lock.permits = permits.and_then(|permits| u32::try_from(permits).ok());
        let (owner, meta): (String, Vec<u8>) = (column(row, 4)?, column(row, 10)?);
        let permit: bool = column(row, 2)?;
        let mode = if permit { ModeKind::Permit } else { ModeKind::Exclusive };
        let meta = decode_meta(&meta);
        let held: Option<i64> = column(row, 1)?;
        let Some(held) = held else {
            let total: i64 = column(row, 12)?;
            lock.waiter_count = usize::try_from(total).unwrap_or(0);
            lock.waiters.push(WaiterInfo::new(owner, mode, meta));
            continue;
        };
        let (slot, age): (i32, Option<i64>) = (column(row, 3)?, column(row, 5)?);
        let state = state(row)?;
        let owner = if matches!(state, HolderState::Closed { .. }) { String::new() } else { owner };
        lock.hold_count += 1;
        lock.holds.push(HolderInfo {
            token: token(held),
            mode,
            slot: permit.then(|| u32::try_from(slot).unwrap_or(0)),
            held_for: age.map(millis),
            meta,
            state,
            ..HolderInfo::exclusive(owner)
        });
    }
    Ok(locks)
}

fn state(row: Option<&Row>) -> Result<HolderState, BackendError> {
    let state: String = column(row, 6)?;
    Ok(match state.as_str() {
        "revoked" => {
            let (reason, by): (Option<String>, Option<String>) = (column(row, 7)?, column(row, 8)?);
            HolderState::Revoked { reason: reason.unwrap_or_default(), by: by.unwrap_or_default() }
        }
        "closed" => {
            let left: Option<i64> = column(row, 9)?;
            HolderState::Closed { left: left.map_or(Duration::ZERO, millis) }
        }
        _ => HolderState::Held,
    })
}

/// A mode as arguments of `row_acquire`: whether it is a permit, and the number of permits.
pub(super) fn mode(mode: Mode) -> (bool, Option<i32>) {
    match mode {
        Mode::Permit { of } => (true, of.and_then(|of| i32::try_from(of).ok())),
        // Shared requests were refused before (`Capabilities::shared`).
        Mode::Exclusive | Mode::Shared => (false, None),
    }
}
