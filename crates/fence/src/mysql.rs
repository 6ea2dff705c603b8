//! A fence in MySQL or MariaDB: marks in the caller's own database, raised in the transaction that they
//! guard. On connections of `mysql_async`.
//!
//! A check locks the resource's base row, until the transaction ends, and reads the marks by locking reads,
//! which see the last commit at every isolation level. Then it applies [`Marks::check`]. So other checks of a
//! resource wait, those of permits of other slots included.
//!
//! ```no_run
//! use lockkeeper_fence::{Section, Token, mysql as fence};
//! use mysql_async::prelude::Queryable;
//!
//! # type Outcome = Result<(), Box<dyn std::error::Error>>;
//! # async fn take(connection: &mut mysql_async::Conn, token: Token) -> Outcome {
//! fence::install(connection).await?; // once: CREATE TABLE IF NOT EXISTS lockkeeper_fence_marks
//! let section = Section::exclusive(token); // the token of the guard
//! fence::enter(connection, "stock", section).await?; // committed: no lower token writes from here on
//! let pieces: Option<i64> = connection.query_first("SELECT pieces FROM stock WHERE id = 3").await?;
//! let mut transaction = connection.start_transaction(Default::default()).await?;
//! fence::write(&mut transaction, "stock", section).await?; // first, then the write
//! let pieces = pieces.unwrap_or_default() - 1;
//! transaction.exec_drop("UPDATE stock SET pieces = ? WHERE id = 3", (pieces,)).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Durability. Marks survive a killed client or server. They survive a power loss with
//! `innodb_flush_log_at_trx_commit = 1`, and `sync_binlog = 1` where a binary log is written; and a fail-over
//! only to a replica that has every acknowledged commit. [`MySqlFindings`] has the server's settings. In a
//! Galera cluster, two nodes certify a check by the row that each has written: one of the transactions fails
//! with [`MySqlError::TryAgain`], or at its commit with error 1213; then run it again.

/// The client library whose connections the fence takes.
pub use mysql_async;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Transaction, TxOpts};

use lockkeeper_core::Token;

use crate::resource::{BadResource, checked};
use crate::rule::{Action, Marks, Refused, Section};
use crate::sqlite_marks::{self, Change, DamagedRow, changes};

/// The table: one row per resource (slot -1), and one per permit slot whose marks are above the base. The
/// value 0 means that no token has passed.
pub const SCHEMA_SQL: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_fence_marks (
    resource     VARBINARY(512) NOT NULL,
    slot         INT            NOT NULL,
    any_token    BIGINT         NOT NULL,
    writer_token BIGINT         NOT NULL,
    PRIMARY KEY (resource, slot)
) ENGINE = InnoDB";

/// Locks the base row, and makes it if there is none. Writes it even if no mark rises, so that two nodes of a
/// Galera cluster can't both pass.
const LOCK: &str = "INSERT INTO lockkeeper_fence_marks (resource, slot, any_token, writer_token) VALUES (?, -1, 0, 0) \
                    ON DUPLICATE KEY UPDATE any_token = any_token";
const READ: &str =
    "SELECT slot, any_token, writer_token FROM lockkeeper_fence_marks WHERE resource = ? FOR UPDATE";
const PUT: &str =
    "REPLACE INTO lockkeeper_fence_marks (resource, slot, any_token, writer_token) VALUES (?, ?, ?, ?)";
const DELETE: &str = "DELETE FROM lockkeeper_fence_marks WHERE resource = ? AND slot = ?";
const DELETE_SLOTS: &str = "DELETE FROM lockkeeper_fence_marks WHERE resource = ? AND slot >= 0";
/// Names and values; a server leaves out what it doesn't have.
const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'log_bin', 'sync_binlog', \
                        'innodb_flush_log_at_trx_commit')";

/// Why a call at a MySQL fence failed.
///
/// After any of these errors, roll back the transaction in which it happened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MySqlError {
    /// The rule refused the section; nothing was written.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text is not a valid resource name.
    #[error(transparent)]
    Resource(#[from] BadResource),
    /// A conflict with another transaction: a deadlock (1213, also a failed certification of Galera), or a
    /// row that was waited for too long (1205). No decision was made.
    #[error(
        "another transaction was in the way; nothing was done: roll back and run the whole transaction again"
    )]
    TryAgain(#[source] Error),
    /// The database has no marks table.
    #[error(
        "this database has no table lockkeeper_fence_marks; call `lockkeeper_fence::mysql::install` once"
    )]
    NotInstalled(#[source] Error),
    /// The server is a replica, or the transaction is READ ONLY.
    #[error(
        "the server is read-only, or the transaction is, so it can keep no mark; connect to the primary, and begin READ \
         WRITE"
    )]
    Replica,
    /// A row of the marks has values that no fence writes.
    #[error("{}", row.text(resource))]
    MarksCorrupt {
        /// The resource.
        resource: String,
        /// The row.
        row: DamagedRow,
    },
    /// The database returned an error, or the connection failed.
    #[error("the database did not carry out {doing}")]
    Database {
        /// The operation.
        doing: &'static str,
        /// The client library's error.
        #[source]
        source: Error,
    },
}

/// The server's settings that matter for marks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MySqlFindings {
    /// `version`: `10.11.19-MariaDB-…`, `8.4.3`.
    pub version: String,
    /// `innodb_flush_log_at_trx_commit`: with another value than 1 no commit is certain to survive a power
    /// loss.
    pub flush_log_at_commit: String,
    /// Whether the server writes a binary log, without `sync_binlog = 1`.
    pub unsynced_binlog: bool,
}

impl MySqlFindings {
    /// Settings that weaken durability, one sentence each; empty if there are none.
    #[must_use]
    pub fn weaknesses(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.flush_log_at_commit != "1" {
            found.push(format!(
                "innodb_flush_log_at_trx_commit = {}: a power loss may take back marks that were acknowledged in the last \
                 second; set it to 1",
                self.flush_log_at_commit
            ));
        }
        if self.unsynced_binlog {
            found.push(
                "sync_binlog is not 1: after a power loss, a replica may lack marks that were acknowledged; set it to 1"
                    .to_owned(),
            );
        }
        found
    }
}

/// Creates the marks table if it is missing.
///
/// # Errors
/// [`MySqlError::Database`], most likely for a missing right to create a table.
pub async fn install(connection: &mut Conn) -> Result<(), MySqlError> {
    connection.query_drop(SCHEMA_SQL).await.map_err(|error| means("SCHEMA_SQL", error))
}

/// Checks that this connection can keep marks, and returns the server's settings.
///
/// # Errors
/// [`MySqlError::NotInstalled`], [`MySqlError::Replica`], [`MySqlError::Database`].
pub async fn check(connection: &mut Conn) -> Result<MySqlFindings, MySqlError> {
    let failed = |error| means("the look at its settings", error);
    let read = "SELECT slot FROM lockkeeper_fence_marks WHERE resource = ''";
    connection.query_drop(read).await.map_err(failed)?;
    let rows: Vec<(String, String)> = connection.query(SETTINGS).await.map_err(failed)?;
    let value = |name: &str| {
        rows.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value.as_str()).to_owned()
    };
    if !matches!(value("read_only").as_str(), "OFF" | "0") {
        return Err(MySqlError::Replica);
    }
    Ok(MySqlFindings {
        version: value("version"),
        flush_log_at_commit: value("innodb_flush_log_at_trx_commit"),
        unsynced_binlog: value("log_bin") == "ON" && value("sync_binlog") != "1",
    })
}

/// Raises the marks of `resource`, in a transaction of its own. Call it before the section reads the data
/// that it will write.
///
/// # Errors
/// [`Refused::Stale`] if a later section has passed: stop. [`MySqlError::TryAgain`],
/// [`MySqlError::Resource`], [`MySqlError::NotInstalled`], [`MySqlError::Replica`],
/// [`MySqlError::MarksCorrupt`]. [`MySqlError::Database`]: unknown whether the mark rose; entering again with
/// the same token is harmless.
pub async fn enter(connection: &mut Conn, resource: &str, section: Section) -> Result<(), MySqlError> {
    let failed = |error| means("the transaction of an enter", error);
    let mut transaction = connection.start_transaction(TxOpts::default()).await.map_err(failed)?;
    match enter_within(&mut transaction, resource, section).await {
        Ok(()) => transaction.commit().await.map_err(failed),
        Err(refused) => {
            transaction.rollback().await.map_err(failed)?;
            Err(refused)
        }
    }
}

/// [`enter`] as the first statement of a transaction that contains the whole section, both its reads and its
/// writes. Other sections wait until the transaction ends.
///
/// # Errors
/// As [`enter`].
pub async fn enter_within(
    transaction: &mut Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), MySqlError> {
    pass(transaction, Action::Enter, resource, section).await
}

/// Checks the section. Must be the first statement of a transaction that writes; until that transaction ends,
/// other checks of this resource wait. All writes of the transaction take effect with its commit, or none.
///
/// # Errors
/// [`Refused::Stale`], [`Refused::SharedWrite`]: roll back, nothing was written. Otherwise as [`enter`].
pub async fn write(
    transaction: &mut Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), MySqlError> {
    pass(transaction, Action::Write, resource, section).await
}

/// As [`write()`], but each token passes only once, and `enter` is not needed: for an effect that does not
/// depend on anything read before, executed at most once per grant (rule F-d). The token counts as used only
/// if the transaction commits.
///
/// # Errors
/// As [`write()`], and [`Refused::Repeated`] for a token that has passed before.
pub async fn check_once(
    transaction: &mut Transaction<'_>,
    resource: &str,
    section: Section,
) -> Result<(), MySqlError> {
    pass(transaction, Action::CheckOnce, resource, section).await
}

/// The current marks; the default ones if the resource was never seen.
///
/// # Errors
/// [`MySqlError::Resource`], [`MySqlError::NotInstalled`], [`MySqlError::MarksCorrupt`],
/// [`MySqlError::Database`].
pub async fn marks(connection: &mut Conn, resource: &str) -> Result<Marks, MySqlError> {
    checked(resource)?;
    read(connection, resource).await
}

/// Sets all marks of `resource` to `to`, higher or **lower**: for the move to a lock service whose tokens are
/// lower. While an old holder may still write, a lower mark lets it in: stop all writers first.
///
/// # Errors
/// As [`marks()`].
pub async fn reset(connection: &mut Conn, resource: &str, to: Token) -> Result<(), MySqlError> {
    checked(resource)?;
    let failed = |error| means("a reset", error);
    let mut transaction = connection.start_transaction(TxOpts::default()).await.map_err(failed)?;
    transaction.exec_drop(LOCK, (resource,)).await.map_err(failed)?;
    transaction.exec_drop(DELETE_SLOTS, (resource,)).await.map_err(failed)?;
    make(&mut transaction, resource, sqlite_marks::base(to)).await?;
    transaction.commit().await.map_err(failed)
}

async fn pass(
    transaction: &mut Transaction<'_>,
    action: Action,
    resource: &str,
    section: Section,
) -> Result<(), MySqlError> {
    checked(resource)?;
    transaction.exec_drop(LOCK, (resource,)).await.map_err(|error| means("a check", error))?;
    let before = read(transaction, resource).await?;
    let mut after = before.clone();
    let _raised_or_not = after.check(action, section)?;
    for change in changes(&before, &after) {
        make(transaction, resource, change).await?;
    }
    Ok(())
}

async fn read(queries: &mut impl Queryable, resource: &str) -> Result<Marks, MySqlError> {
    let rows: Vec<(i64, i64, i64)> =
        queries.exec(READ, (resource,)).await.map_err(|error| means("the look at the marks", error))?;
    sqlite_marks::marks(rows).map_err(|row| MySqlError::MarksCorrupt { resource: resource.to_owned(), row })
}

async fn make(transaction: &mut Transaction<'_>, resource: &str, change: Change) -> Result<(), MySqlError> {
    let made = match change {
        Change::Put { slot, any, writer } => transaction.exec_drop(PUT, (resource, slot, any, writer)).await,
        Change::Delete { slot } => transaction.exec_drop(DELETE, (resource, slot)).await,
    };
    made.map_err(|error| means("the change of a mark", error))
}

fn means(doing: &'static str, source: Error) -> MySqlError {
    let Error::Server(error) = &source else { return MySqlError::Database { doing, source } };
    match error.code {
        1020 | 1205 | 1213 => MySqlError::TryAgain(source),
        1146 if error.message.contains("lockkeeper_fence_marks") => MySqlError::NotInstalled(source),
        1290 | 1792 | 1836 => MySqlError::Replica,
        _ => MySqlError::Database { doing, source },
    }
}
