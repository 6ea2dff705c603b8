//! Shared connections: a few, opened on demand and replaced when they end.
//!
//! A statement goes to the connection with the fewest statements in flight; if all are busy it is pipelined behind
//! them, as each statement is short and a whole transaction. Crossing to another thread and back costs more than the
//! statement, so each runtime has its own connections. A connection that must not depend on a caller's runtime runs on
//! the backend's thread ([`Pool::listening`]). The only connection state is prepared statements, and only without a
//! transaction pooler in between ([`Pool::is_direct`]): before PgBouncer 1.21 they end up on another client's
//! connection.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, OnceCell};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Notification, Row};
use tokio_util::sync::CancellationToken;

use super::calls::{COUNT, Statement};
use crate::backends::postgres::connect::{Connection, Connector, NoAnswer, chain};
use crate::error::{BackendError, BackendErrorKind};

/// Minimum and maximum pause between failed attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Clones share the same connections.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    connector: Connector,
    most: usize,
    /// The channel on which each connection listens, and the receiver of its notifications.
    listens: Option<(String, UnboundedSender<Notification>)>,
    direct: Arc<AtomicBool>,
    state: Mutex<State>,
    /// Notified when a connection was opened, or an attempt failed.
    changed: Notify,
}

struct State {
    links: Vec<Arc<Link>>,
    opening: usize,
    pause: Duration,
    not_before: Instant,
    error: Option<BackendError>,
}

/// One connection.
pub(super) struct Link {
    connection: Connection,
    /// The runtime that drives it; `None` is the backend's thread.
    runtime: Option<Id>,
    /// Cancelled when it did not answer in time or can't write any more.
    given_up: CancellationToken,
    under_way: AtomicUsize,
    prepared: [OnceCell<tokio_postgres::Statement>; COUNT],
}

/// Why a call returned no rows.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was not sent, for lack of a connection.
    NotSent(BackendError),
    /// It was sent.
    NoAnswer(NoAnswer),
}

impl Failure {
    /// Whether it may have been executed, or may still be running (P12). A refused statement was rolled back.
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

impl Pool {
    /// At most `most` connections, on their callers' runtimes, opened on demand. The listener determines `direct`.
    pub(super) fn new(connector: Connector, most: usize, direct: Arc<AtomicBool>) -> Self {
        Self::with(connector, most, None, direct)
    }

    /// One connection on the backend's thread, which listens on a channel.
    pub(super) fn listening(
        connector: Connector,
        channel: String,
        notices: UnboundedSender<Notification>,
        direct: Arc<AtomicBool>,
    ) -> Self {
        Self::with(connector, 1, Some((channel, notices)), direct)
    }

    fn with(
        connector: Connector,
        most: usize,
        listens: Option<(String, UnboundedSender<Notification>)>,
        direct: Arc<AtomicBool>,
    ) -> Self {
        let state =
            State { links: Vec::new(), opening: 0, pause: PAUSES.0, not_before: Instant::now(), error: None };
        Self(Arc::new(Inner {
            connector,
            most,
            listens,
            direct,
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// Whether notifications have confirmed that no transaction pooler lies in between.
    pub(super) fn is_direct(&self) -> bool {
        self.0.direct.load(Ordering::Relaxed)
    }

    /// Opens the first connection.
    ///
    /// # Errors
    /// The error of the server or of the connection attempt.
    pub(super) async fn open(&self) -> Result<(), BackendError> {
        let link = self.0.make().await?;
        self.0.state().links.push(Arc::new(link));
        Ok(())
    }

    /// Whether a usable connection is open.
    pub(super) fn has_link(&self) -> bool {
        self.0.state().links.iter().any(|link| link.is_usable())
    }

    /// The last error, unless a connection was opened since.
    pub(super) fn trouble(&self) -> Option<String> {
        self.0.state().error.as_ref().map(ToString::to_string)
    }

    /// Waits for a usable connection.
    pub(super) async fn link(&self) -> Arc<Link> {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.0.pick() {
                Ok(link) => return link,
                Err(look_again) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(look_again) => {}
                    }
                }
            }
        }
    }

    /// Runs a statement, within `limit` from now.
    ///
    /// # Errors
    /// [`Failure`]. A connection that does not answer within `limit` is abandoned.
    pub(super) async fn call(
        &self,
        limit: Duration,
        statement: &Statement,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let until = Instant::now() + limit;
        let at_once = self.0.pick().ok();
        let link = match at_once {
            Some(link) => Ok(link),
            None => timeout_at(until, self.link()).await,
        };
        let Ok(link) = link else {
            let error = self.0.state().error.clone().unwrap_or_else(|| {
                let what = format!("there was no connection to the database within {limit:?}");
                BackendError::new(BackendErrorKind::Unreachable, what)
            });
            return Err(Failure::NotSent(error));
        };
        let mut prepared = self.is_direct();
        let why = loop {
            let under_way = UnderWay::begin(&link);
            match timeout_at(until, link.rows(statement, params, prepared)).await {
                Ok(Ok(rows)) => return Ok(rows),
                // There is a pooler after all: the statement prepared on one connection is missing or a duplicate on
                // another.
                Ok(Err(why)) if prepared && is_about_preparing(&why) => {
                    self.0.direct.store(false, Ordering::Relaxed);
                    prepared = false;
                }
                Ok(Err(why)) => break why,
                Err(_) => break NoAnswer::Silent(limit),
            }
            drop(under_way);
        };
        // A READ ONLY error means that the connection's server was demoted from primary to standby.
        if matches!(why, NoAnswer::Silent(_)) {
            let what = format!("the database did not answer within {limit:?}");
            self.0.state().error = Some(BackendError::new(BackendErrorKind::Unreachable, what));
        }
        if matches!(why, NoAnswer::Silent(_)) || why.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
            self.0.give_up(link);
        }
        Err(Failure::NoAnswer(why))
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime whose connections serve the caller; `None` for the backend's thread.
    fn here(&self) -> Option<Id> {
        self.listens.is_none().then(|| Handle::current().id())
    }

    /// The least busy connection of this runtime. If all of them are busy, also opens another one. `Err`: when to check
    /// again, if there is none.
    fn pick(self: &Arc<Self>) -> Result<Arc<Link>, Instant> {
        let here = self.here();
        let load = |link: &&Arc<Link>| link.under_way.load(Ordering::Relaxed);
        let mut state = self.state();
        let idlest = loop {
            let ours = state.links.iter().filter(|link| link.runtime == here);
            let Some(idlest) = ours.min_by_key(load).cloned() else { break None };
            if idlest.is_usable() {
                break Some(idlest);
            }
            state.links.retain(|link| link.is_usable());
        };
        if idlest.as_ref().is_some_and(|link| load(&link) == 0) {
            return idlest.ok_or(state.not_before);
        }
        state.links.retain(|link| link.is_usable());
        if idlest.is_none()
            && state.links.len() + state.opening >= self.most
            && let Some(idle) = state.links.iter().position(|link| load(&link) == 0)
        {
            // Other runtimes have all the connections; this one is idle, so close it to make room.
            state.links.swap_remove(idle);
        }
        let now = Instant::now();
        let opens = state.links.len() + state.opening < self.most && state.not_before <= now;
        state.opening += usize::from(opens);
        let look_again =
            if state.opening > 0 { now + PAUSES.1 } else { state.not_before.max(now + PAUSES.0) };
        let others = || state.links.iter().min_by_key(load).cloned();
        let link = if state.opening == 0 { idlest.or_else(others) } else { idlest };
        // `spawn` on a runtime that is shutting down drops the task at once, and that drop takes this lock again.
        drop(state);
        if opens {
            let opening = Opening(self.clone());
            let open = async move { opening.0.made(opening.0.make().await) };
            match here {
                Some(_) => drop(tokio::spawn(open)),
                None => self.connector.worker().run(Box::pin(open)),
            }
        }
        link.ok_or(look_again)
    }

    /// Sends no further statements to this connection, and cancels the statement in flight: if an operator's lock
    /// blocks a row, each retry would otherwise leave a connection behind.
    fn give_up(&self, link: Arc<Link>) {
        if !link.given_up.is_cancelled() {
            link.given_up.cancel();
            self.connector.worker().run(Box::pin(async move {
                if let Err(why) = link.connection.cancel().await {
                    tracing::debug!(why, "postgres: a statement could not be cancelled");
                }
            }));
        }
    }

    fn made(&self, made: Result<Link, BackendError>) {
        let mut state = self.state();
        match made {
            Ok(link) => {
                state.links.push(Arc::new(link));
                state.pause = PAUSES.0;
                state.error = None;
            }
            Err(error) => {
                tracing::debug!(%error, "postgres: no further connection");
                state.not_before = Instant::now() + state.pause;
                state.pause = (state.pause * 2).min(PAUSES.1);
                state.error = Some(error);
            }
        }
    }

    async fn make(&self) -> Result<Link, BackendError> {
        let connection = match &self.listens {
            None => self.connector.connect_here("lockkeeper", None).await?,
            Some((channel, notices)) => {
                let connection = self.connector.connect("lockkeeper", Some(notices.clone())).await?;
                let listen = connection.ask(&format!("LISTEN {channel}")).await;
                listen.map_err(|why| why.explained("listen for wake-ups"))?;
                connection
            }
        };
        Ok(Link {
            connection,
            runtime: self.here(),
            given_up: CancellationToken::new(),
            under_way: AtomicUsize::new(0),
            prepared: Default::default(),
        })
    }
}

/// Counts a connection attempt; dropped with the task, even when the runtime shuts down.
struct Opening(Arc<Inner>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.state().opening -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Link {
    fn is_usable(&self) -> bool {
        // `is_closed` covers a runtime that has shut down: its connection task is gone and can't cancel `ended`.
        !self.given_up.is_cancelled() && !self.connection.client().is_closed()
    }

    /// Resolves when the connection has ended or was abandoned.
    pub(super) async fn over(&self) {
        tokio::select! {
            () = self.given_up.cancelled() => {}
            () = self.connection.ended().cancelled() => {}
        }
    }

    async fn rows(
        &self,
        statement: &Statement,
        params: Params<'_>,
        prepared: bool,
    ) -> Result<Vec<Row>, NoAnswer> {
        let client = self.connection.client();
        let rows = if prepared {
            let make = || client.prepare_typed(statement.sql, statement.types);
            match self.prepared[statement.place].get_or_try_init(make).await {
                Ok(prepared) => client.query(prepared, params).await,
                Err(error) => Err(error),
            }
        } else {
            let typed = params.iter().copied().zip(statement.types.iter().cloned());
            client.query_typed(statement.sql, &typed.collect::<Vec<(&(dyn ToSql + Sync), Type)>>()).await
        };
        rows.map_err(no_answer)
    }
}

/// An error with which the server ends the connection may be delivered to a statement that was executed.
fn no_answer(error: Error) -> NoAnswer {
    match error.as_db_error() {
        Some(said) if !matches!(said.severity(), "FATAL" | "PANIC") => NoAnswer::Refused(error),
        _ => NoAnswer::Ended(chain(&error)),
    }
}

fn is_about_preparing(why: &NoAnswer) -> bool {
    let code = why.code();
    code == Some(&SqlState::INVALID_SQL_STATEMENT_NAME) || code == Some(&SqlState::DUPLICATE_PSTATEMENT)
}

/// Counts a statement in flight until its caller stops waiting.
struct UnderWay<'a>(&'a Link);

impl<'a> UnderWay<'a> {
    fn begin(link: &'a Link) -> Self {
        link.under_way.fetch_add(1, Ordering::Relaxed);
        Self(link)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
