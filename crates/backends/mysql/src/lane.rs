//! Runs statements on a pool of connections, each within the time limit of its call.
//!
//! A statement is a whole transaction, and a connection has no state beyond its session variables, so that
//! any connection does for any statement.

use std::time::Duration;

use lockkeeper_backend::io::{Connect, LeaseThread, Pool, PoolLimits, Used};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, CallError};
use lockkeeper_core::LockName;
use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Error, Row, Value};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use std::sync::{Mutex, PoisonError};

use crate::answer::{StatementFailure, failed, stays_usable};
use crate::connect::MySqlConnector;

/// How long a connection without calls is kept.
const IDLE: Duration = Duration::from_secs(300);
/// How long the server keeps it, in seconds: longer.
pub(crate) const SERVER_IDLE_S: u64 = 900;

/// A pool whose users wait for their turn.
pub(crate) struct CallLane {
    pool: Pool<LaneConnector>,
    turns: Semaphore,
    most: usize,
}

struct LaneConnector(MySqlConnector);

/// Empty while a call uses the connection, and for good if the call was dropped or has failed.
type Slot = Mutex<Option<Conn>>;

/// A connection in use by one call.
pub(crate) struct LaneCall<'a> {
    lane: &'a CallLane,
    used: Used<LaneConnector>,
    conn: Option<Conn>,
    limit: Duration,
    until: Instant,
    _turn: SemaphorePermit<'a>,
}

/// The result of a statement.
pub(crate) struct Done {
    pub(crate) rows: Vec<Row>,
    /// The number of rows that a change has matched.
    pub(crate) matched: u64,
    /// The value of `LAST_INSERT_ID(…)`, if the statement has set it.
    pub(crate) last_id: u64,
}

impl Connect for LaneConnector {
    type Connection = Slot;

    fn connect(&self) -> BoxFuture<'static, Result<Slot, BackendError>> {
        let connector = self.0.clone();
        Box::pin(async move { Ok(Mutex::new(Some(connector.open().await?.conn))) })
    }

    fn is_usable(&self, slot: &Slot) -> bool {
        slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl CallLane {
    /// At most `most` connections, opened on demand.
    pub(crate) fn new(connector: MySqlConnector, most: usize, lease_thread: &LeaseThread) -> Self {
        let limits = PoolLimits { shared_each: 0, total: most, idle: IDLE };
        let pool = Pool::new(LaneConnector(connector), limits, lease_thread);
        Self { pool, turns: Semaphore::new(most), most }
    }

    /// Opens the first connection.
    ///
    /// # Errors
    /// The error of the server or of the connection attempt.
    pub(crate) async fn open(&self) -> Result<(), BackendError> {
        self.pool.alone().await.map(drop)
    }

    /// The last error of opening a connection, or the last time limit that passed, unless a connection was
    /// opened since.
    pub(crate) fn trouble(&self) -> Option<BackendError> {
        self.pool.trouble()
    }

    /// A connection for statements that all together may last for `limit` from now on.
    ///
    /// # Errors
    /// There is no connection in time. Nothing was sent.
    pub(crate) async fn call(&self, limit: Duration) -> Result<LaneCall<'_>, StatementFailure> {
        let until = Instant::now() + limit;
        let opening = async {
            // Never closed.
            let turn = self.turns.acquire().await.map_err(|_| no_connection(limit))?;
            self.pool.alone().await.map(|used| (turn, used))
        };
        let opened = timeout_at(until, opening).await;
        let opened = opened.unwrap_or_else(|_| Err(self.trouble().unwrap_or_else(|| no_connection(limit))));
        let (turn, used) = opened.map_err(|error| StatementFailure::Silent(CallError::refused(error)))?;
        let conn = used.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(LaneCall { lane: self, used, conn, limit, until, _turn: turn })
    }
}

impl CallLane {
    /// Runs a statement that users wait for. A read whose connection turns out to be closed, for example by a
    /// server that was restarted, is run again on another one; a change is not, since its first run may have
    /// had its effect.
    ///
    /// # Errors
    /// The error of the server, or there was no answer within `limit`.
    pub(crate) async fn ask(
        &self,
        limit: Duration,
        doing: &str,
        sql: &str,
        params: Vec<Value>,
    ) -> Result<Done, StatementFailure> {
        let until = Instant::now() + limit;
        // Each run finds another closed connection, until one is opened.
        let mut again = self.most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.call(left).await?.run(doing, sql, params.clone()).await {
                Err(StatementFailure::Silent(_))
                    if again > 0 && sql.starts_with("SELECT") && Instant::now() < until =>
                {
                    again -= 1;
                }
                answer => return answer,
            }
        }
    }
}

fn no_connection(limit: Duration) -> BackendError {
    let what = format!("there was no connection to the database within {limit:?}; raise `connections=`");
    BackendError::new(BackendErrorKind::Unreachable, what)
}

impl LaneCall<'_> {
    /// Runs a statement. `doing` is the operation, for errors.
    ///
    /// # Errors
    /// [`StatementFailure`]. Without an answer the connection is closed.
    pub(crate) async fn run(
        &mut self,
        doing: &str,
        sql: &str,
        params: Vec<Value>,
    ) -> Result<Done, StatementFailure> {
        let Some(mut conn) = self.conn.take() else { return Err(StatementFailure::NOT_DONE) };
        let Ok(answer) = timeout_at(self.until, execute(&mut conn, sql, params)).await else {
            let what = format!("the database did not answer within {:?}", self.limit);
            self.lane.pool.set_trouble(BackendError::new(BackendErrorKind::Unreachable, what));
            return Err(StatementFailure::IN_DOUBT);
        };
        match answer {
            Ok(done) => {
                self.conn = Some(conn);
                Ok(done)
            }
            Err(error) => {
                tracing::debug!(%error, doing, "mysql: a statement has failed");
                if matches!(&error, Error::Server(error) if stays_usable(error)) {
                    self.conn = Some(conn);
                }
                Err(failed(&error, doing))
            }
        }
    }
}

impl Drop for LaneCall<'_> {
    fn drop(&mut self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = self.conn.take();
    }
}

async fn execute(conn: &mut Conn, sql: &str, params: Vec<Value>) -> Result<Done, Error> {
    let mut result = conn.exec_iter(sql, params).await?;
    let rows = result.collect().await?;
    let (matched, last_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    result.drop_result().await?;
    Ok(Done { rows, matched, last_id })
}

/// Reads a column.
///
/// # Errors
/// The column is missing or has another type: the tables are not those of this program.
pub(crate) fn column<T: FromValue>(row: &Row, at: usize) -> Result<T, BackendError> {
    let value = row.get_opt(at).and_then(Result::ok);
    value.ok_or_else(|| {
        let what =
            format!("column {at} of an answer can't be read: the tables are not those of this program");
        BackendError::new(BackendErrorKind::Operator, what)
    })
}

/// Question marks for a list of values.
pub(crate) fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// A condition on the column `name`, with its parameters: one name, or also those below it, or all.
pub(crate) fn names(prefix: Option<&LockName>, below: bool) -> (&'static str, Vec<Value>) {
    match prefix {
        None => ("1 = 1", Vec::new()),
        Some(name) if !below => ("name = ?", vec![name.as_str().into()]),
        Some(name) => (
            "(name = ? OR name > ? AND name < ?)",
            // `0` follows `/`.
            vec![name.as_str().into(), format!("{name}/").into(), format!("{name}0").into()],
        ),
    }
}

/// A text column: bytes of any client.
pub(crate) fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
