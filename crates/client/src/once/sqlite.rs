//! Records in SQLite.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, Error, OptionalExtension, Row, params};

use super::{OnceRecord, OnceStore};

/// Records in a table of SQLite. To remove old ones: `DELETE FROM lockkeeper_once WHERE recorded_at < …`
/// (seconds since 1970).
///
/// A record is as durable as the connection's commits: it survives a power loss with `synchronous = EXTRA`,
/// or with FULL in WAL mode.
#[derive(Clone)]
pub struct SqliteRecords {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteRecords {
    /// The table, which [`Self::new`] creates.
    pub const SCHEMA_SQL: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_once (
    key         TEXT    NOT NULL PRIMARY KEY,
    attempt     TEXT    NOT NULL,
    outcome     BLOB    NOT NULL,
    recorded_at INTEGER NOT NULL DEFAULT (strftime('%s', 'now'))
) WITHOUT ROWID";

    /// Records over this connection. Creates the table unless it exists.
    ///
    /// # Errors
    /// SQLite's.
    pub fn new(connection: Connection) -> Result<Self, Error> {
        connection.execute_batch(Self::SCHEMA_SQL)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Stores the record within a transaction of the work, so that it is committed or rolled back with the
    /// work. `false`: the key has a record already, so roll back.
    ///
    /// # Errors
    /// SQLite's.
    pub fn put_in(transaction: &Connection, key: &str, record: &OnceRecord) -> Result<bool, Error> {
        let insert =
            "INSERT INTO lockkeeper_once (key, attempt, outcome) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
        Ok(transaction.execute(insert, params![key, record.attempt, record.outcome])? == 1)
    }

    /// Runs a call on a thread that may block.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
        let connection = self.connection.clone();
        let called = tokio::task::spawn_blocking(move || {
            call(&connection.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Ok(called.await??)
    }
}

impl fmt::Debug for SqliteRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteRecords").finish_non_exhaustive()
    }
}

fn record(row: &Row<'_>) -> Result<OnceRecord, Error> {
    Ok(OnceRecord { attempt: row.get(0)?, outcome: row.get(1)? })
}

const SELECT: &str = "SELECT attempt, outcome FROM lockkeeper_once WHERE key = ?1";

impl OnceStore for SqliteRecords {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    async fn get(&self, key: &str) -> Result<Option<OnceRecord>, Self::Error> {
        let key = key.to_owned();
        self.call(move |connection| connection.query_row(SELECT, [key], record).optional()).await
    }

    async fn put(&self, key: &str, new: &OnceRecord) -> Result<OnceRecord, Self::Error> {
        let (key, new) = (key.to_owned(), new.clone());
        self.call(move |connection| {
            Self::put_in(connection, &key, &new)?;
            connection.query_row(SELECT, [key], record)
        })
        .await
    }
}
