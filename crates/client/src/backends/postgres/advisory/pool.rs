//! The connections of a client: one for each hold and waiter, kept for the next when it is over, and one for questions.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_postgres::{Notification, SimpleQueryRow};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::note::IDLE;
use super::server::{PID, transaction_pooler};
use super::sql::{Common, Scope, channel, prepare, prepare_session};
use crate::backends::postgres::connect::{Connection, Connector, NoAnswer};
use crate::error::{BackendError, BackendErrorKind};

/// How long an idle connection is kept: each is a process of the server. Making one costs more than a hundred locks, so
/// that as many are kept as were in use at once within that time.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// A connection that may hold.
pub(super) struct Link {
    pub(super) connection: Connection,
    /// The server process behind it. Of a transaction's it is known only within the transaction.
    pub(super) pid: Option<Pid>,
    /// What is asked for every lock is prepared there: no pooler lies between.
    pub(super) prepared: bool,
    /// What is notified on it: breaks.
    pub(super) notices: UnboundedReceiver<Notification>,
}

/// A server process that one link has for itself.
pub(super) struct Pid {
    pub(super) number: i32,
    /// When it began: after a fail-over or a restart numbers come again, while an old link may not know of its end yet.
    began: String,
    taken: Taken,
}

/// What is not in use, and since when.
type Idle<T> = Arc<Mutex<VecDeque<(Instant, T)>>>;
type Taken = Arc<Mutex<BTreeSet<(i32, String)>>>;

impl Drop for Pid {
    fn drop(&mut self) {
        self.taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&(self.number, std::mem::take(&mut self.began)));
    }
}

/// Makes links, and keeps those that certainly hold nothing.
pub(super) struct Pool {
    connector: Connector,
    common: Common,
    most: usize,
    slots: Arc<Semaphore>,
    /// Those that were in use last are at the end.
    idle: Idle<Link>,
    /// The server processes behind the links of sessions.
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

    /// The right to one connection.
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

    /// An idle connection, or a new one.
    ///
    /// # Errors
    /// As those of a new connection.
    pub(super) async fn take(&self) -> Result<Link, BackendError> {
        while let Some((_, link)) = self.idle().pop_back() {
            if !link.connection.is_ended() {
                return Ok(link);
            }
        }
        let (notify, notices) = unbounded_channel();
        let notify = (self.common.scope == Scope::Session).then_some(notify);
        let connection = self.connector.connect(IDLE, notify).await?;
        let (pid, prepared) = self.prepare(&connection).await?;
        Ok(Link { connection, pid, prepared, notices })
    }

    /// Whose server process it is, as far as one can be its own, and whether anything is prepared there.
    async fn prepare(&self, connection: &Connection) -> Result<(Option<Pid>, bool), BackendError> {
        let doing = "prepare a connection for locks";
        let ask = async |sql: &str| connection.ask(sql).await.map_err(|none| none.explained(doing));
        let in_session = self.common.scope == Scope::Session;
        let rows =
            ask(&if in_session { prepare_session(self.common.version) } else { PID.to_owned() }).await?;
        let row = rows.last().ok_or_else(|| unreadable(doing))?;
        let number: i32 = row.get(0).and_then(|pid| pid.parse().ok()).ok_or_else(|| unreadable(doing))?;
        let prepared = connection.process().await == Some(number);
        let mut further = String::new();
        if in_session {
            further = format!("listen {}; ", channel(number));
        }
        if prepared {
            further += &prepare(&self.common);
        }
        ask(&further).await?;
        if !in_session {
            return Ok((None, prepared));
        }
        let began = row.get(1).ok_or_else(|| unreadable(doing))?.to_owned();
        Ok((Some(self.own(number, began)?), prepared))
    }

    /// Two connections with one server process are two clients of a pooler, and the locks of one are those of the other:
    /// what `try_the_way` could not find when the client was made.
    fn own(&self, number: i32, began: String) -> Result<Pid, BackendError> {
        if !self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert((number, began.clone())) {
            return Err(transaction_pooler().into());
        }
        Ok(Pid { number, began, taken: self.taken.clone() })
    }

    /// Takes back a link that certainly holds nothing.
    pub(super) fn put(&self, link: Link) {
        if !link.connection.is_ended() {
            self.idle().push_back((Instant::now(), link));
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Instant, Link)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends what was idle for too long, until `stop`.
async fn sweep<T>(idle: Idle<T>, stop: CancellationToken) {
    while timeout(IDLE_FOR / 4, stop.cancelled()).await.is_err() {
        let now = Instant::now();
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| now - *since < IDLE_FOR);
    }
}

/// One connection for questions, which never holds anything; made anew when it has ended.
pub(super) struct Desk {
    connector: Connector,
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

impl Desk {
    pub(super) fn new(connector: Connector) -> Self {
        Self { connector, connection: tokio::sync::Mutex::default() }
    }

    /// The rows of statements that may be executed twice: a connection that ended meanwhile is made anew once.
    ///
    /// # Errors
    /// The server is out of reach, silent, or refuses; `doing` says for people what was tried.
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

/// An answer that makes no sense.
pub(super) fn unreadable(doing: &str) -> BackendError {
    let what = format!("the server's answer can't be read when asked to {doing}; is it PostgreSQL?");
    BackendError::new(BackendErrorKind::Operator, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_idle_for_long_is_ended_and_nothing_else() {
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
