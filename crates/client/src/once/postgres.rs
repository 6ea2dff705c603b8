//! Records in PostgreSQL.

use std::sync::Arc;

use tokio_postgres::{Client, Error, GenericClient, Row};

use super::{OnceRecord, OnceStore};

/// Records in a table of PostgreSQL. To remove old ones: `DELETE FROM lockkeeper_once WHERE recorded_at < …`.
///
/// A record survives a power loss with `synchronous_commit` on, as it is by default.
#[derive(Clone, Debug)]
pub struct PostgresRecords {
    client: Arc<Client>,
}

impl PostgresRecords {
    /// The table, which [`Self::install`] creates.
    pub const SCHEMA_SQL: &str = "CREATE TABLE IF NOT EXISTS lockkeeper_once (
    key         text PRIMARY KEY,
    attempt     text NOT NULL,
    outcome     bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
)";

    /// Records over this connection.
    #[must_use]
    pub fn new(client: Arc<Client>) -> Self {
        Self { client }
    }

    /// Creates the table unless it exists.
    ///
    /// # Errors
    /// The server's.
    pub async fn install(&self) -> Result<(), Error> {
        self.client.batch_execute(Self::SCHEMA_SQL).await
    }

    /// Stores the record within a transaction of the work, so that it is committed or rolled back with the
    /// work. `false`: the key has a record already, so roll back. Waits for a concurrent transaction that
    /// stores a record of this key.
    ///
    /// # Errors
    /// The server's.
    pub async fn put_in(
        transaction: &impl GenericClient,
        key: &str,
        record: &OnceRecord,
    ) -> Result<bool, Error> {
        let insert =
            "INSERT INTO lockkeeper_once (key, attempt, outcome) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
        Ok(transaction.execute(insert, &[&key, &record.attempt, &record.outcome]).await? == 1)
    }
}

fn record(row: &Row) -> Result<OnceRecord, Error> {
    Ok(OnceRecord { attempt: row.try_get(0)?, outcome: row.try_get(1)? })
}

impl OnceStore for PostgresRecords {
    type Error = Error;

    async fn get(&self, key: &str) -> Result<Option<OnceRecord>, Error> {
        let select = "SELECT attempt, outcome FROM lockkeeper_once WHERE key = $1";
        self.client.query_opt(select, &[&key]).await?.as_ref().map(record).transpose()
    }

    async fn put(&self, key: &str, new: &OnceRecord) -> Result<OnceRecord, Error> {
        // One statement: the row that is there afterwards, whoever wrote it. The update changes nothing.
        let upsert = "INSERT INTO lockkeeper_once (key, attempt, outcome) VALUES ($1, $2, $3)
            ON CONFLICT (key) DO UPDATE SET key = excluded.key RETURNING attempt, outcome";
        record(&self.client.query_one(upsert, &[&key, &new.attempt, &new.outcome]).await?)
    }
}
