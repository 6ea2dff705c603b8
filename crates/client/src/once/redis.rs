//! Records in Redis.

use std::fmt;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, cmd};

use super::{OnceRecord, OnceStore, prefixed};

/// Records in Redis, each under the key `lockkeeper:once:KEY`: the attempt, a line feed, and the outcome.
///
/// A record is as durable as that Redis: a fail-over to a replica, or a restart without `appendfsync always`,
/// can lose the latest records, and their work is then repeated.
#[derive(Clone)]
pub struct RedisRecords<C> {
    connection: C,
    keep: Option<Duration>,
}

impl<C> RedisRecords<C> {
    /// Records over this connection, which is cloned for each call: a
    /// [`RedisConnection`](crate::backends::RedisConnection), or a connection of the client library, whose
    /// replies have no size limit: a `MultiplexedConnection`, a `ConnectionManager`, or a cluster connection.
    pub fn new(connection: C) -> Self {
        Self { connection, keep: None }
    }

    /// Deletes each record after this time; at least 1 ms.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Self {
        Self { keep: Some(time.max(Duration::from_millis(1))), ..self }
    }
}

impl<C> fmt::Debug for RedisRecords<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone + Send + Sync> OnceStore for RedisRecords<C> {
    type Error = RedisError;

    async fn get(&self, key: &str) -> Result<Option<OnceRecord>, RedisError> {
        let found: Option<Vec<u8>> =
            cmd("GET").arg(prefixed(key)).query_async(&mut self.connection.clone()).await?;
        let invalid = || RedisError::from((ErrorKind::UnexpectedReturnType, "the key has no record"));
        found.map(|bytes| OnceRecord::from_bytes(&bytes).ok_or_else(invalid)).transpose()
    }

    async fn put(&self, key: &str, record: &OnceRecord) -> Result<OnceRecord, RedisError> {
        let mut set = cmd("SET");
        set.arg(prefixed(key)).arg(record.to_bytes()).arg("NX");
        if let Some(keep) = self.keep {
            set.arg("PX").arg(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        }
        let is_set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        match is_set {
            Some(_) => Ok(record.clone()),
            // The earlier record has expired between the two commands: this one then counts as recorded, and
            // as expired.
            None => Ok(self.get(key).await?.unwrap_or_else(|| record.clone())),
        }
    }
}
