//! Calls to the database: each is one statement, within a time limit, on a connection that many calls use at
//! once.
//!
//! Statements are pipelined, as each is short and a whole transaction. A pooled connection has no state
//! except prepared statements, and these are used only without a transaction pooler in between: before
//! version 1.21, PgBouncer may execute a prepared statement in another server process than the one that
//! prepared it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Notification, Row};
use tokio_util::sync::CancellationToken;

use super::calls::Statement;
use crate::answer::answered_by;
use crate::connect::{Connection, Connector, NoAnswer};

/// How long a connection without calls is kept.
const IDLE: Duration = Duration::from_secs(300);

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Runs statements on a pool of connections, which belong to the callers' runtimes.
pub(super) struct Database {
    connector: Connector,
    pool: Pool<RowConnector>,
    /// Whether a notification has confirmed that no transaction pooler lies in between. False again once a
    /// prepared statement is missing.
    direct: AtomicBool,
}

/// Opens the connections of the pool.
struct RowConnector(Connector);

/// One connection.
pub(super) struct RowConnection {
    connection: Arc<Connection>,
    /// Cancelled when the connection did not answer in time, or its server can't write any more.
    given_up: CancellationToken,
    prepared: Mutex<HashMap<&'static str, tokio_postgres::Statement>>,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) enum RowFailure {
    /// The statement was not sent, for lack of a connection.
    NotSent(BackendError),
    /// The statement was sent, or may have been.
    NoAnswer(NoAnswer),
}

impl RowFailure {
    /// Whether the statement may have been executed, or may still be running (P12). A refused statement was
    /// rolled back.
    pub(super) fn may_have_arrived(&self) -> bool {
        matches!(self, Self::NoAnswer(NoAnswer::Ended(_) | NoAnswer::Silent(_)))
    }

    pub(super) fn explained(self, doing: &str) -> BackendError {
        match self {
            Self::NotSent(error) => error,
            Self::NoAnswer(why) => why.explained(doing),
        }
    }

    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::NotSent(_) => None,
            Self::NoAnswer(why) => why.code(),
        }
    }
}

impl Connect for RowConnector {
    type Connection = RowConnection;

    fn connect(&self) -> BoxFuture<'static, Result<RowConnection, BackendError>> {
        let connector = self.0.clone();
        Box::pin(async move { RowConnection::open(&connector, None).await })
    }

    fn is_usable(&self, connection: &RowConnection) -> bool {
        connection.is_usable()
    }
}

impl Database {
    /// A pool of at most `most` connections, opened on demand. The listening connection is additional.
    pub(super) fn new(connector: Connector, most: usize) -> Self {
        let limits = PoolLimits { shared_each: most, total: most, idle: IDLE };
        let pool = Pool::new(RowConnector(connector.clone()), limits, connector.lease_thread());
        Self { connector, pool, direct: AtomicBool::new(false) }
    }

    /// Opens the first connection.
    ///
    /// # Errors
    /// The error of the server or of the connection attempt.
    pub(super) async fn open(&self) -> Result<(), BackendError> {
        self.pool.alone().await.map(drop)
    }

    pub(super) fn lease_thread(&self) -> &LeaseThread {
        self.connector.lease_thread()
    }

    /// Opens a connection on the current runtime, outside of the pool, that listens on `channel`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) async fn listening(
        &self,
        channel: &str,
        notices: UnboundedSender<Notification>,
    ) -> Result<RowConnection, BackendError> {
        let connection = RowConnection::open(&self.connector, Some(notices)).await?;
        let listen = connection.connection.ask(&format!("LISTEN {channel}")).await;
        listen.map(|_| connection).map_err(|why| why.explained("listen for wake-ups"))
    }

    /// The last error of opening a connection, or the last time limit that passed, unless a connection was
    /// opened since.
    pub(super) fn trouble(&self) -> Option<BackendError> {
        self.pool.trouble()
    }

    /// Called when a notification has arrived: statements may be prepared from now on.
    pub(super) fn set_direct(&self) {
        self.direct.store(true, Ordering::Relaxed);
    }

    /// Runs a statement, within `limit` from now.
    ///
    /// # Errors
    /// [`RowFailure`]. A connection that does not answer within `limit` is abandoned.
    pub(super) async fn call(
        &self,
        limit: Duration,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, RowFailure> {
        self.call_on(None, limit, statement, params).await
    }

    /// As [`Self::call`], on the connection `own` if there is one, and otherwise on one of the pool.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) async fn call_on(
        &self,
        own: Option<&RowConnection>,
        limit: Duration,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, RowFailure> {
        let until = Instant::now() + limit;
        let shared;
        let connection = match own {
            Some(own) => own,
            None => {
                shared =
                    timeout_at(until, self.pool.shared()).await.map_err(|_| self.no_connection(limit))?;
                &*shared
            }
        };
        let answer = timeout_at(until, self.rows(connection, statement, params)).await;
        let why = match answer.unwrap_or(Err(NoAnswer::Silent(limit))) {
            Ok(rows) => return Ok(rows),
            Err(why) => why,
        };
        if matches!(why, NoAnswer::Silent(_)) {
            let what = format!("the database did not answer within {limit:?}");
            self.pool.set_trouble(BackendError::new(BackendErrorKind::Unreachable, what));
        }
        // A READ ONLY error means that the connection's server was demoted from primary to standby.
        if matches!(why, NoAnswer::Silent(_)) || why.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            connection.give_up(self.lease_thread());
        }
        Err(RowFailure::NoAnswer(why))
    }

    fn no_connection(&self, limit: Duration) -> RowFailure {
        RowFailure::NotSent(self.trouble().unwrap_or_else(|| {
            let what = format!("there was no connection to the database within {limit:?}");
            BackendError::new(BackendErrorKind::Unreachable, what)
        }))
    }

    async fn rows(
        &self,
        connection: &RowConnection,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, NoAnswer> {
        if self.direct.load(Ordering::Relaxed) {
            match connection.run_prepared(statement, params).await {
                // There is a pooler after all: the statement is prepared in one server process, and missing
                // or prepared already in another.
                Err(error) if is_about_preparing(&error) => self.direct.store(false, Ordering::Relaxed),
                rows => return answered_by(rows),
            }
        }
        answered_by(connection.run(statement, params).await)
    }
}

impl RowConnection {
    /// Opens a connection on the current runtime.
    async fn open(
        connector: &Connector,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Self, BackendError> {
        let connection = Arc::new(connector.connect_here("lockkeeper", notices).await?);
        Ok(Self { connection, given_up: CancellationToken::new(), prepared: Mutex::default() })
    }

    fn is_usable(&self) -> bool {
        !self.given_up.is_cancelled() && !self.connection.is_ended()
    }

    /// Resolves when the connection was abandoned.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Marks this connection as unusable for further calls, and cancels its running statement. Otherwise,
    /// while an operator's lock blocks a row, each retry would leave behind one more connection whose
    /// statement waits for that row.
    fn give_up(&self, lease_thread: &LeaseThread) {
        if self.given_up.is_cancelled() {
            return;
        }
        self.given_up.cancel();
        let connection = self.connection.clone();
        lease_thread.run(Box::pin(async move {
            if let Err(why) = connection.cancel().await {
                tracing::debug!(why, "postgres: a statement could not be cancelled");
            }
        }));
    }

    async fn run(&self, statement: &Statement, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let typed = params.iter().copied().zip(statement.types.iter().cloned());
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = typed.collect();
        self.connection.client().query_typed(statement.sql, &typed).await
    }

    async fn run_prepared(&self, statement: &Statement, params: Params<'_>) -> Result<Vec<Row>, Error> {
        let client = self.connection.client();
        let prepared = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let known = prepared().get(statement.sql).cloned();
        let known = match known {
            Some(known) => known,
            None => {
                let new = client.prepare_typed(statement.sql, statement.types).await?;
                prepared().entry(statement.sql).or_insert(new).clone()
            }
        };
        client.query(&known, params).await
    }
}

fn is_about_preparing(error: &Error) -> bool {
    [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT]
        .iter()
        .any(|code| error.code() == Some(code))
}
