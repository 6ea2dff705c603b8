//! The Postgres fence on connections of `sqlx`.
//!
//! sqlx keeps prepared statements in the session. Behind a transaction pooler set
//! `statement_cache_capacity(0)`, which sqlx needs there for any statement.
//!
//! ```no_run
//! use lockkeeper_fence::{Section, Token, postgres::{PostgresError, sqlx as fence}};
//!
//! # async fn take(pool: &sqlx::PgPool, token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let section = Section::exclusive(token); // the token of the guard
//! fence::enter(pool, "stock", section).await?; // committed: no lower token writes from here on
//! let pieces: i32 = sqlx::query_scalar("SELECT pieces FROM stock WHERE id = 3").fetch_one(pool).await?;
//! let mut transaction = pool.begin().await?;
//! fence::write(&mut transaction, "stock", section).await?; // first, then the write
//! sqlx::query("UPDATE stock SET pieces = $1 WHERE id = 3").bind(pieces - 1).execute(&mut *transaction).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```

/// The client library whose connections the fence takes.
pub use ::sqlx;
use ::sqlx::error::BoxDynError;
use ::sqlx::postgres::{PgArguments, PgDatabaseError, PgExecutor};
use ::sqlx::{Arguments, Encode, Error, PgConnection, Postgres, Transaction, Type};
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
pub async fn install(executor: impl PgExecutor<'_>) -> Result<(), PostgresError> {
    let applied = ::sqlx::raw_sql(SCHEMA_SQL).execute(executor).await;
    applied.map(drop).map_err(|error| means(Action::Enter, "SCHEMA_SQL", error))
}

/// Checks that this role can keep marks in this database, and returns the server's settings.
///
/// # Errors
/// [`PostgresError::NotInstalled`], [`PostgresError::OtherVersion`], [`PostgresError::Replica`],
/// [`PostgresError::Database`].
pub async fn check(executor: impl PgExecutor<'_>) -> Result<Findings, PostgresError> {
    type Row = (String, bool, String, String, bool, i32);
    let (version, fsync, commit, standbys, in_recovery, schema): Row = ::sqlx::query_as(SETTINGS)
        .fetch_one(executor)
        .await
        .map_err(|error| means(Action::Enter, "the look at its settings", error))?;
    found((version, fsync, commit, standbys), in_recovery, schema)
}

/// Raises the marks of `resource`. Call it before the section reads the data that it will write.
///
/// With a pool, or a connection outside a transaction, the mark is committed when this returns. With a
/// transaction (pass `&mut *transaction`) this must be its first statement, and the section's reads and
/// writes must all be in that transaction: then other sections wait for its end instead of being refused (a
/// stalled section blocks them, until `idle_in_transaction_session_timeout` if that is set).
///
/// # Errors
/// [`Refused::Stale`] if a later section has passed: stop. [`PostgresError::TryAgain`] at REPEATABLE READ and
/// above, or after a deadlock. [`PostgresError::Resource`], [`PostgresError::NotInstalled`],
/// [`PostgresError::Replica`]. [`PostgresError::Database`]: unknown whether the mark rose; entering again
/// with the same token is harmless.
pub async fn enter(
    executor: impl PgExecutor<'_>,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(executor, Action::Enter, resource, section).await
}

/// Checks the section. Must be the first statement of a transaction that writes; until that transaction ends,
/// other checks of this resource wait, except those of permits of other slots. All writes of the transaction
/// take effect with its commit, or none.
///
/// # Errors
/// [`Refused::Stale`], [`Refused::SharedWrite`]: roll back, nothing was written. [`PostgresError::TryAgain`]
/// at REPEATABLE READ and above, or after a deadlock. [`PostgresError::Resource`],
/// [`PostgresError::NotInstalled`], [`PostgresError::Replica`], [`PostgresError::Database`].
pub async fn write(
    transaction: &mut Transaction<'_, Postgres>,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(&mut **transaction, Action::Write, resource, section).await
}

/// As [`write()`], but each token passes only once, and `enter` is not needed: for an effect that does not
/// depend on anything read before, executed at most once per grant (rule F-d). The token counts as used only
/// if the transaction commits.
///
/// # Errors
/// As `write`, and [`Refused::Repeated`] for a token that has passed before.
pub async fn check_once(
    transaction: &mut Transaction<'_, Postgres>,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    pass(&mut **transaction, Action::CheckOnce, resource, section).await
}

/// The current marks; the default ones if the resource was never seen.
///
/// # Errors
/// [`PostgresError::Resource`], [`PostgresError::NotInstalled`], [`PostgresError::MarksCorrupt`],
/// [`PostgresError::Database`].
pub async fn marks(executor: impl PgExecutor<'_>, resource: &str) -> Result<Marks, PostgresError> {
    checked(resource)?;
    let rows: Vec<(i32, i64, i64)> = ::sqlx::query_as(READ_MARKS)
        .bind(resource)
        .fetch_all(executor)
        .await
        .map_err(|error| means(Action::Enter, "the look at the marks", error))?;
    marks_of(resource, rows.into_iter())
}

/// Sets all marks of `resource` to `to`, higher or **lower**: for the move to a lock service whose tokens are
/// lower. Stop all writers first: a holder of an old token would pass the lowered mark. Needs EXECUTE on
/// `reset_marks`, which [`grants_sql`](super::grants_sql) deliberately omits.
///
/// # Errors
/// [`PostgresError::Resource`], [`PostgresError::NotInstalled`], [`PostgresError::Replica`],
/// [`PostgresError::Database`].
pub async fn reset(executor: impl PgExecutor<'_>, resource: &str, to: Token) -> Result<(), PostgresError> {
    checked(resource)?;
    let asked = ::sqlx::query(RESET).bind(resource).bind(bigint(to)).execute(executor).await;
    asked.map(drop).map_err(|error| means(Action::Enter, "the reset of the marks", error))
}

/// As [`enter`], for one row of a table with a fence column: raises the mark of the row.
///
/// # Errors
/// [`Refused::Stale`], [`PostgresError::RowAbsent`], [`PostgresError::ColumnNull`],
/// [`PostgresError::ColumnOutOfRange`], [`PostgresError::NoRowMatched`], [`PostgresError::ExclusiveOnly`],
/// [`PostgresError::TryAgain`], [`PostgresError::Replica`], [`PostgresError::Database`].
pub async fn enter_row<K>(
    connection: &mut PgConnection,
    column: &Column,
    key: &K,
    section: Section,
) -> Result<(), PostgresError>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Sync,
{
    update(connection, column, Action::Enter, &column.enter_sql(), key, section, |_| Ok(())).await
}

/// Writes one row of a table with a fence column, and checks its mark: `set` is the `SET` clause, and
/// `parameters` adds its parameters, from `$3` on. Check and effect are one statement, so no transaction is
/// needed.
///
/// ```no_run
/// # use lockkeeper_fence::{Section, postgres::{Column, PostgresError, sqlx::write_row}};
/// # async fn pay(connection: &mut sqlx::PgConnection, section: Section) -> Result<(), PostgresError> {
/// use sqlx::Arguments;
/// let orders = Column::new("orders", "id", "fence");
/// write_row(connection, &orders, &42_i64, section, "state = $3", |parameters| parameters.add("paid")).await
/// # }
/// ```
///
/// # Errors
/// As [`enter_row`].
pub async fn write_row<K>(
    connection: &mut PgConnection,
    column: &Column,
    key: &K,
    section: Section,
    set: &str,
    parameters: impl FnOnce(&mut PgArguments) -> Result<(), BoxDynError>,
) -> Result<(), PostgresError>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Sync,
{
    update(connection, column, Action::Write, &column.write_sql(set), key, section, parameters).await
}

/// As [`write_row`], but each token passes only once per row, and `enter` is not needed (rule F-d).
///
/// # Errors
/// As [`enter_row`], and [`Refused::Repeated`] for a token that has passed before.
pub async fn write_row_once<K>(
    connection: &mut PgConnection,
    column: &Column,
    key: &K,
    section: Section,
    set: &str,
    parameters: impl FnOnce(&mut PgArguments) -> Result<(), BoxDynError>,
) -> Result<(), PostgresError>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Sync,
{
    let sql = column.write_once_sql(set);
    update(connection, column, Action::CheckOnce, &sql, key, section, parameters).await
}

/// Returns the refusal if `error`, from one of the caller's own statements, was raised by the trigger of
/// `guard_table`.
#[must_use]
pub fn refusal(error: &Error) -> Option<Refused> {
    reported(error).refused(Action::Write)
}

async fn pass(
    executor: impl PgExecutor<'_>,
    action: Action,
    resource: &str,
    section: Section,
) -> Result<(), PostgresError> {
    let arguments = arguments(resource, section)?;
    let asked = ::sqlx::query(call(action))
        .bind(arguments.resource)
        .bind(arguments.mode)
        .bind(arguments.slot)
        .bind(arguments.token)
        .execute(executor)
        .await;
    asked.map(drop).map_err(|error| means(action, "the check of the fence", error))
}

async fn update<K>(
    connection: &mut PgConnection,
    column: &Column,
    action: Action,
    sql: &str,
    key: &K,
    section: Section,
    parameters: impl FnOnce(&mut PgArguments) -> Result<(), BoxDynError>,
) -> Result<(), PostgresError>
where
    K: for<'q> Encode<'q, Postgres> + Type<Postgres> + Sync,
{
    let token = column.token(section)?;
    let doing = "the fenced update";
    let mut all = PgArguments::default();
    let added = all.add(key).and_then(|()| all.add(token)).and_then(|()| parameters(&mut all));
    added.map_err(|source| PostgresError::Database { doing, source })?;
    let failed = |error| means(action, doing, error);
    let written = ::sqlx::query_with(sql, all).execute(&mut *connection).await.map_err(failed)?;
    if written.rows_affected() > 0 {
        return Ok(());
    }
    let mark_sql = column.mark_sql();
    let mark = ::sqlx::query_scalar(&mark_sql).bind(key).fetch_optional(connection).await.map_err(failed)?;
    Err(column.why_no_row(action, section, mark))
}

fn reported(error: &Error) -> Reported<'_> {
    let db = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    Reported {
        sqlstate: db.map(PgDatabaseError::code),
        message: db.map_or("", PgDatabaseError::message),
        detail: db.and_then(PgDatabaseError::detail),
    }
}

fn means(action: Action, doing: &'static str, error: Error) -> PostgresError {
    reported(&error).verdict(action).of(doing, error.into())
}
