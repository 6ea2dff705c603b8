//! The Postgres fence on connections of `tokio_postgres`.
//!
//! `enter`, `write` and `check_once` take one round trip each, with an unnamed statement: this leaves no
//! state in the session, so transaction poolers work. The calls for a [`Column`] (`enter_row`, …) prepare a
//! named statement first, which takes a further round trip.
//!
//! ```no_run
//! use lockkeeper_fence::{Section, Token, postgres::{PostgresError, tokio_postgres as fence}};
//!
//! # async fn take(client: &mut tokio_postgres::Client, token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let section = Section::exclusive(token); // the token of the guard
//! fence::enter(client, "stock", section).await?; // committed: no lower token writes from here on
//! let pieces: i32 = client.query_one("SELECT pieces FROM stock WHERE id = 3", &[]).await?.get(0);
//! let transaction = client.transaction().await?;
//! fence::write(&transaction, "stock", section).await?; // first, then the write
//! transaction.execute("UPDATE stock SET pieces = $1 WHERE id = 3", &[&(pieces - 1)]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

/// The client library whose connections the fence takes.
pub use ::tokio_postgres;
use ::tokio_postgres::types::{ToSql, Type};
use ::tokio_postgres::{Error, GenericClient, Transaction};
use lockkeeper_core::Token;

use super::error::PostgresError;
use super::reported::Reported;
use super::{
    Column, Findings, READ_MARKS, RESET, SCHEMA_SQL, SETTINGS, arguments, bigint, call, found, marks_of,
};
use crate::resource::checked;
use crate::rule::{Action, Marks, Refused, Section};

/// Applies [`SCHEMA_SQL`], as the role that will own the marks. Idempotent.
///
/// # Errors
/// [`PostgresError::Database`], most likely for a missing right to create a schema.
pub async fn install<C: GenericClient + Sync>(client: &C) -> Result<(), PostgresError> {
    client.batch_execute(SCHEMA_SQL).await.map_err(|error| means(Action::Enter, "SCHEMA_SQL", error))
}

/// Checks that this role can keep marks in this database, and returns the server's settings.
///
/// # Errors
/// [`PostgresError::NotInstalled`], [`PostgresError::OtherVersion`], [`PostgresError::Replica`],
/// [`PostgresError::Database`].
pub async fn check<C: GenericClient + Sync>(client: &C) -> Result<Findings, PostgresError> {
    let failed = |error| means(Action::Enter, "the look at its settings", error);
    let row = client.query_typed_one(SETTINGS, &[]).await.map_err(failed)?;
    found((row.get(0), row.get(1), row.get(2), row.get(3)), row.get(4), row.get(5))
}

/// Raises the marks of `resource`. Call it before the section reads the data that it will write.
///
/// With a `Client` the mark is committed when this returns. With a `Transaction` this must be its first
/// statement, and the section's reads and writes must all be in that transaction: then other sections wait
/// for its end instead of being refused (a stalled section blocks them, until
/// `idle_in_transaction_session_timeout` if that is set).
///
/// # Errors
/// [`Refused::Stale`] if a later section has passed: stop. [`PostgresError::TryAgain`] at REPEATABLE READ and
/// above, or after a deadlock. [`PostgresError::Resource`], [`PostgresError::NotInstalled`],
/// [`PostgresError::Replica`]. [`PostgresError::Database`]: unknown whether the mark rose; entering again
/// with the same token is harmless.
pub async fn enter<C: GenericClient + Sync>(
    client: &C,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(client, Action::Enter, resource, section).await
}

/// Checks the section. Must be the first statement of a transaction that writes; until that transaction ends,
/// other checks of this resource wait, except those of permits of other slots. All writes of the transaction
/// take effect with its commit, or none.
///
/// The check may be pipelined with the next statement, which saves a round trip:
/// `tokio::join!(write(&transaction, …), transaction.execute(…))`, with the check first. If the check
/// refuses, the transaction is aborted, so the server does not execute the other statement either.
///
/// # Errors
/// [`Refused::Stale`], [`Refused::SharedWrite`]: roll back, nothing was written. [`PostgresError::TryAgain`]
/// at REPEATABLE READ and above, or after a deadlock. [`PostgresError::Resource`],
/// [`PostgresError::NotInstalled`], [`PostgresError::Replica`], [`PostgresError::Database`].
pub async fn write(
    transaction: &Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(transaction, Action::Write, resource, section).await
}

/// As [`write()`], but each token passes only once, and `enter` is not needed: for an effect that does not
/// depend on anything read before, executed at most once per grant (rule F-d). The token counts as used only
/// if the transaction commits.
///
/// # Errors
/// As `write`, and [`Refused::Repeated`] for a token that has passed before.
pub async fn check_once(
    transaction: &Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(transaction, Action::CheckOnce, resource, section).await
}

/// The current marks; the default ones if the resource was never seen.
///
/// # Errors
/// [`PostgresError::Resource`], [`PostgresError::NotInstalled`], [`PostgresError::MarksCorrupt`],
/// [`PostgresError::Database`].
pub async fn marks<C: GenericClient + Sync>(client: &C, resource: &str) -> Result<Marks, PostgresError> {
    checked(resource)?;
    let failed = |error| means(Action::Enter, "the look at the marks", error);
    let rows = client.query_typed(READ_MARKS, &[(&resource, Type::TEXT)]).await.map_err(failed)?;
    marks_of(resource, rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))))
}

/// Sets all marks of `resource` to `to`, higher or **lower**: for the move to a lock service whose tokens are
/// lower. Stop all writers first: a holder of an old token would pass the lowered mark. Needs EXECUTE on
/// `reset_marks`, which [`grants_sql`](super::grants_sql) deliberately omits.
///
/// # Errors
/// [`PostgresError::Resource`], [`PostgresError::NotInstalled`], [`PostgresError::Replica`],
/// [`PostgresError::Database`].
pub async fn reset<C: GenericClient + Sync>(
    client: &C,
    resource: &str,
    to: Token,
) -> Result<(), PostgresError> {
    checked(resource)?;
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&resource, Type::TEXT), (&bigint(to), Type::INT8)];
    let asked = client.query_typed(RESET, &parameters).await;
    asked.map(drop).map_err(|error| means(Action::Enter, "the reset of the marks", error))
}

/// As [`enter`], for one row of a table with a fence column: raises the mark of the row.
///
/// # Errors
/// [`Refused::Stale`], [`PostgresError::RowAbsent`], [`PostgresError::ColumnNull`],
/// [`PostgresError::ColumnOutOfRange`], [`PostgresError::NoRowMatched`], [`PostgresError::ExclusiveOnly`],
/// [`PostgresError::TryAgain`], [`PostgresError::Replica`], [`PostgresError::Database`].
pub async fn enter_row<C: GenericClient + Sync>(
    client: &C,
    column: &Column,
    key: &(dyn ToSql + Sync),
    section: Section,
) -> Result<(), PostgresError> {
    update(client, column, Action::Enter, &column.enter_sql(), key, section, &[]).await
}

/// Writes one row of a table with a fence column, and checks its mark: `set` is the `SET` clause, with
/// `parameters` from `$3` on. Check and effect are one statement, so no transaction is needed.
///
/// # Errors
/// As [`enter_row`].
pub async fn write_row<C: GenericClient + Sync>(
    client: &C,
    column: &Column,
    key: &(dyn ToSql + Sync),
    section: Section,
    set: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), PostgresError> {
    update(client, column, Action::Write, &column.write_sql(set), key, section, parameters).await
}

/// As [`write_row`], but each token passes only once per row, and `enter` is not needed (rule F-d).
///
/// # Errors
/// As [`enter_row`], and [`Refused::Repeated`] for a token that has passed before.
pub async fn write_row_once<C: GenericClient + Sync>(
    client: &C,
    column: &Column,
    key: &(dyn ToSql + Sync),
    section: Section,
    set: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), PostgresError> {
    update(client, column, Action::CheckOnce, &column.write_once_sql(set), key, section, parameters).await
}

/// Returns the refusal if `error`, from one of the caller's own statements, was raised by the trigger of
/// `guard_table`.
#[must_use]
pub fn refusal(error: &Error) -> Option<Refused> {
    reported(error).refused(Action::Write)
}

async fn pass<C: GenericClient + Sync>(
    client: &C,
    action: Action,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    let arguments = arguments(resource, section)?;
    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
        (&arguments.resource, Type::TEXT),
        (&arguments.mode, Type::TEXT),
        (&arguments.slot, Type::INT4),
        (&arguments.token, Type::INT8),
    ];
    let asked = client.query_typed(call(action), &parameters).await;
    asked.map(drop).map_err(|error| means(action, "the check of the fence", error))
}

async fn update<C: GenericClient + Sync>(
    client: &C,
    column: &Column,
    action: Action,
    sql: &str,
    key: &(dyn ToSql + Sync),
    section: Section,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), PostgresError> {
    let token = column.token(section)?;
    let failed = |error| means(action, "the fenced update", error);
    let mut all: Vec<&(dyn ToSql + Sync)> = vec![key, &token];
    all.extend(parameters);
    if client.execute(sql, &all).await.map_err(failed)? > 0 {
        return Ok(());
    }
    let row = client.query_opt(&column.mark_sql(), &[key]).await.map_err(failed)?;
    let mark = row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
    Err(column.why_no_row(action, section, mark))
}

fn reported(error: &Error) -> Reported<'_> {
    let db = error.as_db_error();
    Reported {
        sqlstate: db.map(|db| db.code().code()),
        message: db.map_or("", |db| db.message()),
        detail: db.and_then(|db| db.detail()),
    }
}

fn means(action: Action, doing: &'static str, error: Error) -> PostgresError {
    reported(&error).verdict(action).of(doing, error.into())
}
