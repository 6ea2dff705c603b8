//! A fence in SQLite: marks in the caller's own database, raised in the transaction that they guard.
//!
//! Creates the marks table, and takes SQLite's write lock before it reads a mark. The rule is
//! [`Marks::check`], run in this process: SQLite allows one writer at a time across all processes, so no
//! other check can run in between.
//!
//! ```
//! use lockkeeper_fence::{Section, Token, sqlite as fence};
//! use rusqlite::TransactionBehavior::Immediate;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let token = Token::MIN;
//! # let mut database = rusqlite::Connection::open_in_memory()?;
//! # database.execute_batch("CREATE TABLE stock (id INTEGER, pieces INTEGER); INSERT INTO stock VALUES (3, 5)")?;
//! fence::install(&database)?; // once: CREATE TABLE IF NOT EXISTS lockkeeper_fence_marks
//! let section = Section::exclusive(token); // the token of the guard
//! fence::enter(&mut database, "stock", section)?; // committed: no lower token writes from here on
//! let pieces: i64 = database.query_row("SELECT pieces FROM stock WHERE id = 3", [], |row| row.get(0))?;
//! let transaction = database.transaction_with_behavior(Immediate)?;
//! fence::write(&transaction, "stock", section)?; // first, then the write
//! transaction.execute("UPDATE stock SET pieces = ?1 WHERE id = 3", [pieces - 1])?;
//! transaction.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! Durability. Marks always survive a killed process. Power loss: [`enter`] commits with `synchronous =
//! EXTRA` whatever the connection's setting. If the mark already has the section's token, from a transaction
//! with a lower setting, `enter` writes it again and so makes it durable. A caller's own transaction is as
//! durable as its connection (see [`check`]): FULL suffices with WAL, but not with a rollback journal, whose
//! removal only EXTRA syncs. An in-memory database keeps its marks until it is closed, which suits tests.
//! Network filesystems are not supported: their locks may not exclude other hosts, as SQLite's documentation
//! warns.
//!
//! The system's library is linked (Debian: `libsqlite3-dev`); to link a bundled one, enable the feature
//! `bundled` of rusqlite in your own `Cargo.toml`.

/// The client library whose connections the fence takes.
pub use rusqlite;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};

use lockkeeper_core::Token;

use crate::resource::{BadResource, checked};
use crate::rule::{Action, Marks, Passed, Refused, Section};
pub use crate::sqlite_marks::SCHEMA_SQL;
use crate::sqlite_marks::{self, BASE, Change, DELETE, DELETE_ALL, DamagedRow, LOCK, PUT, READ, changes};

/// The `PRAGMA synchronous` level that makes a commit durable in every journal mode.
const EXTRA: u8 = 3;

/// Why a call at a SQLite fence failed.
///
/// After any of these errors, roll back the transaction in which it happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteError {
    /// The rule refused the section; nothing was written.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid resource name.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// Another connection held the write lock for longer than `busy_timeout`; or it committed a write after
    /// the first read of this transaction, which began as DEFERRED.
    #[error(
        "another connection is writing, or wrote since this transaction first read; nothing was done: roll back and try \
         again. Begin transactions that write as IMMEDIATE, and raise busy_timeout if writers take long"
    )]
    Busy(#[source] rusqlite::Error),
    /// The database has no marks table.
    #[error(
        "this database has no table lockkeeper_fence_marks; call `lockkeeper_fence::sqlite::install` once"
    )]
    NotInstalled(#[source] rusqlite::Error),
    /// A row of the marks has values that no fence writes.
    #[error("{}", row.text(resource))]
    MarksCorrupt {
        /// The resource.
        resource: String,
        /// The row.
        row: DamagedRow,
    },
    /// `enter` was called while a transaction was open on the connection.
    #[error(
        "enter was called with a transaction open on this connection; commit it first, or use `enter_within` as the first \
         statement of a transaction that holds all of the section"
    )]
    InTransaction,
    /// SQLite returned an error.
    #[error("SQLite did not carry out {doing}")]
    Database {
        /// The operation.
        doing: &'static str,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
}

/// The connection's settings that matter for marks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Findings {
    /// `PRAGMA synchronous`: 0 off, 1 normal, 2 full, 3 extra. [`enter`] raises lower levels to 3 for its own
    /// commit.
    pub synchronous: u8,
    /// `PRAGMA journal_mode`: `wal`, `delete`, …
    pub journal_mode: String,
    /// Whether the database is in memory, or a temporary file: its marks are lost when it is closed.
    pub in_memory: bool,
}

impl Findings {
    /// Settings that weaken durability, one sentence each; empty if there are none.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.in_memory {
            found.push(
                "the database is in memory: its marks end with this connection; open a file".to_owned(),
            );
        }
        // With a rollback journal, removing the journal is the commit, and only EXTRA syncs the directory
        // after the removal.
        let enough = if self.journal_mode == "wal" { 2 } else { EXTRA };
        if self.synchronous < enough && !self.in_memory {
            found.push(format!(
                "PRAGMA synchronous = {} with journal_mode = {}: a power loss may take back transactions that were \
                 committed, and marks that only they raised; set it to EXTRA (3), or to FULL (2) with WAL",
                self.synchronous, self.journal_mode
            ));
        }
        if ["off", "memory"].contains(&self.journal_mode.as_str()) && !self.in_memory {
            found.push(format!(
                "PRAGMA journal_mode = {}: a killed process may leave the database damaged; set it to WAL or DELETE",
                self.journal_mode
            ));
        }
        found
    }
}

/// Creates the marks table if it is missing.
///
/// # Errors
/// [`SqliteError::Busy`], [`SqliteError::Database`].
pub fn install(connection: &Connection) -> Result<(), SqliteError> {
    connection.execute_batch(SCHEMA_SQL).map_err(|error| means("SCHEMA_SQL", error))
}

/// Checks that the marks table exists, and returns the connection's settings.
///
/// # Errors
/// [`SqliteError::NotInstalled`], [`SqliteError::Database`].
pub fn check(connection: &Connection) -> Result<Findings, SqliteError> {
    let failed = |error| means("the look at its settings", error);
    connection.prepare_cached(READ).map_err(failed)?;
    Ok(Findings {
        synchronous: synchronous(connection)?,
        journal_mode: connection
            .pragma_query_value(None, "journal_mode", |row| row.get(0))
            .map_err(failed)?,
        in_memory: connection.path().is_none_or(|path| path.is_empty() || path == ":memory:"),
    })
}

/// Raises the marks of `resource`, durably. Call it before the section reads the data that it will write.
///
/// # Errors
/// [`Refused::Stale`] if a later section has passed: stop. [`SqliteError::Resource`],
/// [`SqliteError::InTransaction`], [`SqliteError::Busy`], [`SqliteError::NotInstalled`],
/// [`SqliteError::MarksCorrupt`], [`SqliteError::Database`].
pub fn enter(connection: &mut Connection, resource: &str, section: Section) -> Result<(), SqliteError> {
    if !connection.is_autocommit() {
        return Err(SqliteError::InTransaction);
    }
    let before = synchronous(connection)?;
    if before >= EXTRA {
        return enter_synced(connection, resource, section);
    }
    let set = |connection: &Connection, to: u8| {
        connection.pragma_update(None, "synchronous", to).map_err(|error| means("PRAGMA synchronous", error))
    };
    set(connection, EXTRA)?;
    let entered = enter_synced(connection, resource, section);
    set(connection, before)?;
    entered
}

fn enter_synced(connection: &mut Connection, resource: &str, section: Section) -> Result<(), SqliteError> {
    let doing = "the transaction of an enter";
    let failed = |error| means(doing, error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    pass(&transaction, Action::Enter, resource, section)?;
    transaction.commit().map_err(failed)
}

/// [`enter`] as the first statement of a transaction that contains the whole section, both its reads and its
/// writes. All other writers of the database wait until the transaction ends, and so do other sections.
///
/// # Errors
/// As `enter`, except [`SqliteError::InTransaction`].
pub fn enter_within(
    transaction: &Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), SqliteError> {
    pass(transaction, Action::Enter, resource, section)
}

/// Checks the section. Must be the first statement of a transaction that writes. All writes of the
/// transaction take effect with its commit, or none.
///
/// # Errors
/// [`Refused::Stale`], [`Refused::SharedWrite`]: roll back, nothing was written. [`SqliteError::Busy`], most
/// likely if the transaction began as DEFERRED. [`SqliteError::Resource`], [`SqliteError::NotInstalled`],
/// [`SqliteError::MarksCorrupt`], [`SqliteError::Database`].
pub fn write(transaction: &Transaction<'_>, resource: &str, section: Section) -> Result<(), SqliteError> {
    pass(transaction, Action::Write, resource, section)
}

/// As [`write()`], but each token passes only once, and `enter` is not needed: for an effect that does not
/// depend on anything read before, executed at most once per grant (rule F-d). The token counts as used only
/// if the transaction commits.
///
/// # Errors
/// As `write`, and [`Refused::Repeated`] for a token that has passed before.
pub fn check_once(
    transaction: &Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), SqliteError> {
    pass(transaction, Action::CheckOnce, resource, section)
}

/// The current marks; the default ones if the resource was never seen.
///
/// # Errors
/// [`SqliteError::Resource`], [`SqliteError::NotInstalled`], [`SqliteError::MarksCorrupt`],
/// [`SqliteError::Database`].
pub fn marks(connection: &Connection, resource: &str) -> Result<Marks, SqliteError> {
    checked(resource)?;
    load(connection, resource)
}

/// Sets all marks of `resource` to `to`, higher or **lower**: for the move to a lock service whose tokens are
/// lower. Stop all writers first: a holder of an old token would pass the lowered mark.
///
/// # Errors
/// [`SqliteError::Resource`], [`SqliteError::Busy`], [`SqliteError::NotInstalled`],
/// [`SqliteError::Database`].
pub fn reset(connection: &mut Connection, resource: &str, to: Token) -> Result<(), SqliteError> {
    checked(resource)?;
    let failed = |error| means("the reset of the marks", error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    transaction.execute(DELETE_ALL, [resource]).map_err(failed)?;
    make(&transaction, resource, sqlite_marks::base(to))?;
    transaction.commit().map_err(failed)
}

fn pass(
    transaction: &Transaction<'_>,
    action: Action,
    resource: &str,
    section: Section,
) -> Result<(), SqliteError> {
    checked(resource)?;
    transaction
        .prepare_cached(LOCK)
        .and_then(|mut statement| {
            statement.execute(params![resource, section.slot().map_or(BASE, i64::from)])
        })
        .map_err(|error| means("the check of the fence", error))?;
    let before = load(transaction, resource)?;
    let mut after = before.clone();
    let (Passed::Raised | Passed::Unchanged) = after.check(action, section)?;
    changes(&before, &after).into_iter().try_for_each(|change| make(transaction, resource, change))
}

fn load(connection: &Connection, resource: &str) -> Result<Marks, SqliteError> {
    let failed = |error| means("the look at the marks", error);
    let mut statement = connection.prepare_cached(READ).map_err(failed)?;
    let rows = statement.query_map([resource], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let rows: Vec<_> = rows.and_then(Iterator::collect).map_err(failed)?;
    sqlite_marks::marks(rows).map_err(|row| SqliteError::MarksCorrupt { resource: resource.to_owned(), row })
}

fn make(transaction: &Transaction<'_>, resource: &str, change: Change) -> Result<(), SqliteError> {
    let made = match change {
        Change::Put { slot, any, writer } => transaction
            .prepare_cached(PUT)
            .and_then(|mut statement| statement.execute(params![resource, slot, any, writer])),
        Change::Delete { slot } => transaction
            .prepare_cached(DELETE)
            .and_then(|mut statement| statement.execute(params![resource, slot])),
    };
    made.map(drop).map_err(|error| means("the marks", error))
}

fn synchronous(connection: &Connection) -> Result<u8, SqliteError> {
    connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .optional()
        .map(Option::unwrap_or_default)
        .map_err(|error| means("PRAGMA synchronous", error))
}

fn means(doing: &'static str, error: rusqlite::Error) -> SqliteError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SqliteError::Busy(error),
        // Recognized by its text, since the error variant depends on rusqlite features, which the caller
        // chooses.
        _ if error.to_string().contains("no such table: lockkeeper_fence_marks") => {
            SqliteError::NotInstalled(error)
        }
        _ => SqliteError::Database { doing, source: error },
    }
}
