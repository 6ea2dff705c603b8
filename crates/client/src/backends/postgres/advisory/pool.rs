//! The connections of a client: one for each hold and waiter, reused afterwards, and one for queries.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::LockName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_postgres::{SimpleQueryRow, Statement};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::note::{IDLE, Note, is_worn, random};
use super::server::transaction_pooler;
use super::sql::{
    Common, Scope, Statements, Tried, channel, is_process, prepare, prepare_session, process, unlock_prepared,
};
use crate::backends::postgres::connect::{Connection, Connector, NoAnswer};
use crate::backends::postgres::line::Line;
use crate::error::{BackendError, BackendErrorKind};

/// How long an idle connection is kept; each is a process of the server. Opening one costs more than a hundred locks,
/// so the pool keeps as many as were in use at once within this time.
const IDLE_FOR: Duration = Duration::from_secs(60);
/// A connection used within this time is assumed alive; any other is checked before reuse, since the end of an idle
/// connection is not reported.
const FRESH_FOR: Duration = Duration::from_millis(20);

/// A connection that can hold a lock.
pub(super) struct Link {
    pub(super) line: Line,
    /// Its server process, if it has one of its own.
    pub(super) process: Option<Process>,
    /// Whether it leads to the server process itself, without a pooler.
    pub(super) direct: bool,
    /// The prepared statement that releases a session's lock.
    pub(super) unlock: Option<Statement>,
    /// The last try on this connection.
    usual: Option<Usual>,
    /// 48 random bits that identify this connection, so that its orphaned server process can be terminated.
    pub(super) id: String,
    /// 48 further random bits, which a break must present.
    pub(super) key: String,
}

/// A server process used by one link only.
pub(super) struct Process {
    pub(super) pid: i32,
    /// Its start time: pids repeat after a fail-over or a restart, while an old link may not have noticed its end yet.
    began: String,
    taken: Taken,
}

/// Idle items, each with the time of its last use.
type Idle<T> = Arc<Mutex<VecDeque<(Instant, T)>>>;
type Taken = Arc<Mutex<BTreeSet<(i32, String)>>>;

impl Drop for Process {
    fn drop(&mut self) {
        self.taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(self.pid, std::mem::take(&mut self.began)));
    }
}

/// The statement that tries one lock on one connection.
struct Usual {
    name: LockName,
    sql: String,
    /// Prepared when the same statement runs for the second time in a row.
    prepared: Option<Statement>,
}

impl Link {
    /// Tries a lock. Planning such a statement costs the server more than executing it, so a repeated one is prepared
    /// in the protocol, including the comment that shows its owner.
    ///
    /// # Errors
    /// [`NoAnswer`]. `Ok(None)` is an unreadable answer.
    pub(super) async fn try_lock(
        &mut self,
        name: &LockName,
        says: &Statements,
        note: &Note,
    ) -> Result<Option<Tried>, NoAnswer> {
        let repeated = says.repeated_try(note);
        let is_repeated = |usual: &&mut Usual| repeated.as_ref() == Some(&usual.sql);
        let Some(usual) = self.usual.as_mut().filter(is_repeated) else {
            self.usual = repeated.map(|sql| Usual { name: name.clone(), sql, prepared: None });
            return Ok(says.tried(&self.line.ask(&says.try_lock(note)).await?));
        };
        let prepared = match &usual.prepared {
            Some(prepared) => prepared,
            None => usual.prepared.insert(self.line.prepare(&usual.sql).await?),
        };
        let rows = self.line.run(prepared, &[]).await?;
        Ok(rows.first().and_then(Tried::of_repeated))
    }

    /// Condition on `pg_stat_activity` that selects the server process that this connection may leave behind.
    pub(super) fn left(&self) -> String {
        match &self.process {
            Some(process) if self.direct => is_process(process.pid, &process.began),
            // Behind a pooler the process may serve another client by now; the badge identifies it.
            _ => is_worn(&self.id),
        }
    }
}

/// Opens links, and keeps idle ones that certainly hold nothing.
pub(super) struct Pool {
    connector: Connector,
    common: Common,
    most: usize,
    slots: Arc<Semaphore>,
    /// Most recently used last.
    idle: Idle<Box<Link>>,
    /// The server processes of all links.
    taken: Taken,
    _sweeping: DropGuard,
}

impl Pool {
    pub(super) fn new(connector: Connector, common: Common, most: usize) -> Self {
        let (slots, idle, stop) = (Arc::new(Semaphore::new(most)), Arc::default(), CancellationToken::new());
        let _sweeping = stop.clone().drop_guard();
        connector.worker().run(Box::pin(sweep(Arc::clone(&idle), stop)));
        Self { connector, common, most, slots, idle, taken: Arc::default(), _sweeping }
    }

    /// Reserves one connection.
    ///
    /// # Errors
    /// All are in use.
    pub(super) fn slot(&self) -> Result<OwnedSemaphorePermit, BackendError> {
        self.slots.clone().try_acquire_owned().map_err(|_| {
            let what = format!(
                "all {} connections of this client hold locks or wait for them, and each needs one of its own: \
                 release some, or raise `connections=` and the server's max_connections",
                self.most
            );
            BackendError::new(BackendErrorKind::Refused, what)
        })
    }

    /// Takes an idle connection, if any: the one that has just tried this lock, else the most recently used.
    pub(super) fn take(&self, name: &LockName) -> Option<Box<Link>> {
        let knows = |(since, link): &(Instant, Box<Link>)| {
            link.usual.as_ref().is_some_and(|usual| usual.name == *name) && since.elapsed() < FRESH_FOR
        };
        loop {
            let (since, mut link) = {
                let mut idle = self.idle();
                let last = idle.len().checked_sub(1)?;
                let at = idle.iter().rposition(knows).unwrap_or(last);
                idle.remove(at)?
            };
            if since.elapsed() < FRESH_FOR || link.line.look() {
                return Some(link);
            }
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The server is unreachable, silent, or refuses; or a transaction pooler was detected.
    pub(super) async fn make(&self) -> Result<Box<Link>, BackendError> {
        let doing = "prepare a connection for locks";
        let mut line = self.connector.line(IDLE).await?;
        let in_session = self.common.scope == Scope::Session;
        let first = if in_session { prepare_session(self.common.version) } else { process() };
        let rows = line.ask(&first).await.map_err(|none| none.explained(doing))?;
        let row = rows.last().ok_or_else(|| unreadable(doing))?;
        let pid: i32 = row.get(0).and_then(|pid| pid.parse().ok()).ok_or_else(|| unreadable(doing))?;
        let direct = line.cancel().process().await == Some(pid);
        // Through a pooler, a transaction's process is known only within the transaction.
        let process = match in_session || direct {
            true => Some(self.own(pid, row.get(1).ok_or_else(|| unreadable(doing))?.to_owned())?),
            false => None,
        };
        let mut further = String::new();
        if in_session {
            further = format!("listen {}; ", channel(pid));
        }
        if direct {
            further += &prepare(&self.common);
        }
        line.ask(&further).await.map_err(|none| none.explained(doing))?;
        let mut unlock = None;
        if direct && in_session {
            let prepared = line.prepare(&unlock_prepared(&self.common)).await;
            unlock = Some(prepared.map_err(|none| none.explained(doing))?);
        }
        let no_random_bytes = |error| {
            let what = format!("the system gives no random bytes: {error}");
            BackendError::new(BackendErrorKind::Operator, what)
        };
        let (id, key) = (random().map_err(no_random_bytes)?, random().map_err(no_random_bytes)?);
        Ok(Box::new(Link { line, process, direct, unlock, usual: None, id, key }))
    }

    /// Registers the server process of a link. Two connections with one server process are two clients of a pooler and
    /// share their locks; this detects poolers that `try_the_way` missed when the client was opened.
    fn own(&self, pid: i32, began: String) -> Result<Process, BackendError> {
        if !self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert((pid, began.clone())) {
            return Err(transaction_pooler().into());
        }
        Ok(Process { pid, began, taken: self.taken.clone() })
    }

    /// Returns a link that certainly holds nothing.
    pub(super) fn put(&self, mut link: Box<Link>) {
        link.line.forget_notices();
        self.idle().push_back((Instant::now(), link));
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Instant, Box<Link>)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that were idle for too long, until `stop`.
async fn sweep<T>(idle: Idle<T>, stop: CancellationToken) {
    while timeout(IDLE_FOR / 4, stop.cancelled()).await.is_err() {
        let now = Instant::now();
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| now - *since < IDLE_FOR);
    }
}

/// The query connection: never holds a lock, and is reopened when it has ended.
pub(super) struct Desk {
    connector: Connector,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl Desk {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, connection: tokio::sync::Mutex::default() }
    }

    /// Runs statements that are safe to execute twice, and returns their rows. If the connection has ended, retries
    /// once on a new one.
    ///
    /// # Errors
    /// The server is unreachable, silent, or refuses; `doing` names the operation in the error.
    pub(super) async fn ask(&self, sql: &str, doing: &str) -> Result<Vec<SimpleQueryRow>, BackendError> {
        let connection = self.connection().await?;
        match connection.ask(sql).await {
            Ok(rows) => return Ok(rows),
            Err(NoAnswer::Ended(_)) => self.drop_it(&connection).await,
            Err(silent @ NoAnswer::Silent(_)) => {
                self.drop_it(&connection).await;
                return Err(silent.explained(doing));
            }
            Err(refused) => return Err(refused.explained(doing)),
        }
        let connection = self.connection().await?;
        connection.ask(sql).await.map_err(|none| none.explained(doing))
    }

    async fn connection(&self) -> Result<Arc<Connection>, BackendError> {
        let mut kept = self.connection.lock().await;
        match &*kept {
            Some(connection) if !connection.is_ended() => Ok(connection.clone()),
            _ => {
                let made = Arc::new(self.connector.connect(IDLE, None).await?);
                *kept = Some(made.clone());
                Ok(made)
            }
        }
    }

    async fn drop_it(&self, connection: &Arc<Connection>) {
        let mut kept = self.connection.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, connection)) {
            *kept = None;
        }
    }
}

/// The error for an unreadable answer.
pub(super) fn unreadable(doing: &str) -> BackendError {
    let what = format!("the server's answer can't be read when asked to {doing}; is it PostgreSQL?");
    BackendError::new(BackendErrorKind::Operator, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_connections_idle_for_too_long_are_closed() {
        let idle = Idle::default();
        let kept = || idle.lock().unwrap().iter().map(|(_, name)| *name).collect::<Vec<_>>();
        let stop = CancellationToken::new();
        let sweeping = tokio::spawn(sweep(idle.clone(), stop.clone()));
        idle.lock().unwrap().push_back((Instant::now(), "early"));
        tokio::time::sleep(IDLE_FOR / 2).await;
        idle.lock().unwrap().push_back((Instant::now(), "late"));
        assert_eq!(kept(), ["early", "late"]);
        tokio::time::sleep(IDLE_FOR * 4 / 5).await;
        assert_eq!(kept(), ["late"]);
        tokio::time::sleep(IDLE_FOR).await;
        assert!(kept().is_empty());
        stop.cancel();
        sweeping.await.unwrap();
    }
}
