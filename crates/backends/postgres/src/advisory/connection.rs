//! The connections of a client: one for each hold and waiter, in a pool, and one for queries.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lockkeeper_backend::io::{Connect, LeaseThread};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, Unsupported};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Notification, SimpleQueryRow};

use super::note::{Contact, IDLE, is_worn, random};
use super::sql::{Common, is_process, prepare_session, unreadable};
use crate::connect::{Connection, Connector, NoAnswer};

/// A connection that can hold a lock.
pub(super) struct LockConnection {
    /// Shared with a call that verifies the hold while it may be released.
    pub(super) connection: Arc<Connection>,
    pub(super) process: Process,
    /// Whether it leads to the server process itself, without a pooler.
    pub(super) direct: bool,
    /// 48 random bits that identify this connection, so that its orphaned server process can be terminated.
    pub(super) id: String,
}

/// A server process used by one connection only.
pub(super) struct Process {
    pub(super) pid: i32,
    /// Its start time.
    pub(super) began: String,
    taken: Taken,
}

type Taken = Arc<Mutex<BTreeSet<(i32, String)>>>;

impl Drop for Process {
    fn drop(&mut self) {
        let process = (self.pid, std::mem::take(&mut self.began));
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&process);
    }
}

impl LockConnection {
    /// Condition on `pg_stat_activity` that selects the server process that this connection may leave behind.
    pub(super) fn left(&self) -> String {
        match self.direct {
            true => is_process(self.process.pid, &self.process.began),
            // Behind a pooler the process may serve another client by now; the badge identifies it.
            false => is_worn(&self.id),
        }
    }
}

/// Is called with the id of a [`LockConnection`] that has ended, and the reason.
pub(super) type OnEnd = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Opens connections that can hold a lock.
#[derive(Clone)]
pub(super) struct LockConnector {
    pub(super) connector: Connector,
    pub(super) common: Common,
    pub(super) on_end: OnEnd,
    /// The interval of signs of life on each connection.
    pub(super) keepalive: Duration,
    /// The server processes of all connections.
    pub(super) taken: Taken,
}

impl Connect for LockConnector {
    type Connection = LockConnection;

    fn connect(&self) -> BoxFuture<'static, Result<LockConnection, BackendError>> {
        let this = self.clone();
        Box::pin(async move { this.open().await })
    }

    fn is_usable(&self, connection: &LockConnection) -> bool {
        !connection.connection.is_ended()
    }
}

impl LockConnector {
    /// # Errors
    /// The server is unreachable, silent, or refuses; or a transaction pooler was detected.
    async fn open(&self) -> Result<LockConnection, BackendError> {
        let doing = "prepare a connection for locks";
        let connection = Arc::new(self.connector.connect_here(IDLE, None).await?);
        let rows = connection.ask(&prepare_session(self.common.version)).await;
        let rows = rows.map_err(|none| none.explained(doing))?;
        let row = rows.last().ok_or_else(|| unreadable(doing))?;
        let pid: i32 = row.get(0).and_then(|pid| pid.parse().ok()).ok_or_else(|| unreadable(doing))?;
        let process = self.own(pid, row.get(1).ok_or_else(|| unreadable(doing))?.to_owned())?;
        let direct = connection.process().await == Some(pid);
        if direct {
            connection.ask(&self.common.prepare()).await.map_err(|none| none.explained(doing))?;
        }
        let id = random()?;
        let (on_end, ended) = (self.on_end.clone(), connection.ended().clone());
        let report = EndReport { on_end, id: id.clone(), connection: Arc::downgrade(&connection) };
        let keepalive = self.keepalive;
        tokio::spawn(async move {
            while timeout(keepalive, ended.cancelled()).await.is_err() {
                let Some(connection) = report.connection.upgrade() else { break };
                connection.send_sign_of_life().await;
            }
            drop(report);
        });
        Ok(LockConnection { connection, process, direct, id })
    }

    /// Registers the server process of a connection. Two connections with one server process are two clients
    /// of a pooler and share their locks; this detects poolers that `server::check` missed when the client
    /// was opened.
    fn own(&self, pid: i32, began: String) -> Result<Process, BackendError> {
        if !self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert((pid, began.clone())) {
            return Err(transaction_pooler().into());
        }
        Ok(Process { pid, began, taken: self.taken.clone() })
    }
}

/// Reports the end of a connection on drop, which happens also when the runtime ends.
struct EndReport {
    on_end: OnEnd,
    id: String,
    connection: Weak<Connection>,
}

impl Drop for EndReport {
    fn drop(&mut self) {
        // If the connection was dropped, its user closed it: nothing to report.
        if let Some(connection) = self.connection.upgrade() {
            let why = connection.why_ended().unwrap_or_else(|| "its runtime has ended".to_owned());
            (self.on_end)(&self.id, &why);
        }
    }
}

/// How long a terminated process may take to exit, and the interval of checks.
const END_WITHIN: Duration = Duration::from_secs(5);
const END_POLL: Duration = Duration::from_millis(5);

/// The query connection, on the lease thread: it never holds a lock, listens for breaks, and is reopened when
/// it has ended.
pub(super) struct QueryConnection {
    connector: Connector,
    contact: Contact,
    notices: UnboundedSender<Notification>,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl QueryConnection {
    pub(super) fn new(
        connector: Connector,
        contact: Contact,
        notices: UnboundedSender<Notification>,
    ) -> Self {
        Self { connector, contact, notices, connection: tokio::sync::Mutex::default() }
    }

    /// The thread that the connection belongs to.
    pub(super) fn lease_thread(&self) -> &LeaseThread {
        self.connector.lease_thread()
    }

    /// Runs statements that are safe to execute twice, and returns their rows. If the connection has ended,
    /// retries once on a new one.
    ///
    /// # Errors
    /// The server is unreachable, silent, or refuses; `doing` names the operation in the error.
    pub(super) async fn ask(&self, sql: &str, doing: &str) -> Result<Vec<SimpleQueryRow>, BackendError> {
        let connection = self.connection().await?;
        match connection.ask(sql).await {
            Ok(rows) => return Ok(rows),
            Err(NoAnswer::Ended(_)) => self.close(&connection).await,
            Err(silent @ NoAnswer::Silent(_)) => {
                self.close(&connection).await;
                return Err(silent.explained(doing));
            }
            Err(refused) => return Err(refused.explained(doing)),
        }
        let connection = self.connection().await?;
        connection.ask(sql).await.map_err(|none| none.explained(doing))
    }

    /// The open connection, or a new one.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_ended()) {
            return Ok(connection.clone());
        }
        let doing = "listen for breaks";
        let opened = self.connector.connect(IDLE, Some(self.notices.clone())).await?;
        // LISTEN must have succeeded before the name is set: the name shows to other clients that this
        // connection listens.
        for statement in [self.contact.listen(), self.contact.show()] {
            opened.ask(&statement).await.map_err(|none| none.explained(doing))?;
        }
        let opened = Arc::new(opened);
        *kept = Some(opened.clone());
        Ok(opened)
    }

    /// Terminates the server processes that match a condition on `pg_stat_activity`, and waits until they are
    /// gone.
    pub(super) async fn end_process(&self, which: &str) -> Result<(), BackendError> {
        let doing = "end a server process";
        // Behind a transaction pooler this may terminate the process that executes it; `ask` then reconnects
        // and repeats it.
        let end = format!(
            "select pg_catalog.pg_terminate_backend(pid) from pg_catalog.pg_stat_activity where {which}"
        );
        let since = Instant::now();
        while !self.ask(&end, doing).await?.is_empty() {
            if since.elapsed() > END_WITHIN {
                let what =
                    format!("the server was told to {doing}, but it was still there {END_WITHIN:?} later");
                return Err(BackendError::new(BackendErrorKind::Operator, what));
            }
            sleep(END_POLL).await;
        }
        Ok(())
    }

    /// Closes the connection, unless it was replaced by another one.
    pub(super) async fn close(&self, connection: &Arc<Connection>) {
        let mut kept = self.connection.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, connection)) {
            *kept = None;
        }
    }
}

/// How long an idle connection is kept. Each is a process of the server, but to open one costs more than a
/// hundred acquires. So the pool keeps as many connections as were in use at once within this time.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(60);

/// The error for `lock=session` through a transaction pooler.
pub(super) fn transaction_pooler() -> Unsupported {
    Unsupported {
        backend: "postgres",
        what: "hold a session's locks here",
        why: "a transaction pooler lies between (PgBouncer with pool_mode=transaction or statement, or its like): it hands the \
              server's session to somebody else after every statement, and the lock with it",
        instead: "use `lock=row`, or connect to the server itself; for work in one transaction of your own, `lock_in_transaction`",
    }
}
