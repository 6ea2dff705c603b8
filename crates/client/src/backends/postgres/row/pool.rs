//! Connections that calls share: few, made when they are needed, made anew when they end.
//!
//! A statement goes to the connection with the fewest under way, behind those if all are busy: each is short, and a whole
//! transaction. A call that crosses to another thread and back costs more than what it asks for, so each runtime has
//! connections of its own; but one that must not depend on a caller's runtime is on the backend's thread
//! ([`Pool::listening`]). Nothing is kept in a connection but prepared statements, and those only where no transaction pooler
//! lies between ([`Pool::is_direct`]): before PgBouncer 1.21 they end up on another's connection.

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

/// Until it is tried again to connect, after the first failure and after many.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Cheap to clone; clones are the same connections.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    connector: Connector,
    most: usize,
    /// A channel on which each connection listens, and who is told what is said there.
    listens: Option<(String, UnboundedSender<Notification>)>,
    direct: Arc<AtomicBool>,
    state: Mutex<State>,
    /// A connection was made, or could not be.
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
    /// Where it is carried; `None` is the backend's thread.
    runtime: Option<Id>,
    /// It said nothing for too long, or can't write any more.
    given_up: CancellationToken,
    under_way: AtomicUsize,
    prepared: [OnceCell<tokio_postgres::Statement>; COUNT],
}

/// Why a call brought no rows.
#[derive(Debug)]
pub(super) enum Failure {
    /// There was no connection to send it on.
    NotSent(BackendError),
    /// It was sent.
    NoAnswer(NoAnswer),
}

impl Failure {
    /// Whether it may have been executed, or may still be (P12). What the server refused was undone.
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
    /// At most `most` connections on the runtimes of whoever asks; none is made yet. Whether they are `direct` is found
    /// out elsewhere.
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

    /// Whether no transaction pooler lies between, as far as is known.
    pub(super) fn is_direct(&self) -> bool {
        self.0.direct.load(Ordering::Relaxed)
    }

    /// Makes the first connection.
    ///
    /// # Errors
    /// What the server, or the way there, said.
    pub(super) async fn open(&self) -> Result<(), BackendError> {
        let link = self.0.make().await?;
        self.0.state().links.push(Arc::new(link));
        Ok(())
    }

    /// Whether a connection is there already.
    pub(super) fn has_link(&self) -> bool {
        self.0.state().links.iter().any(|link| link.is_usable())
    }

    /// What was wrong last, if nothing went well since.
    pub(super) fn trouble(&self) -> Option<String> {
        self.0.state().error.as_ref().map(ToString::to_string)
    }

    /// A connection, as soon as there is one.
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
    /// [`Failure`]. A connection that said nothing for so long is given up.
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
                // A pooler after all: what was prepared on one connection is missing on the next, or there twice.
                Ok(Err(why)) if prepared && is_about_preparing(&why) => {
                    self.0.direct.store(false, Ordering::Relaxed);
                    prepared = false;
                }
                Ok(Err(why)) => break why,
                Err(_) => break NoAnswer::Silent(limit),
            }
            drop(under_way);
        };
        // A standby may have been the primary when the connection was made.
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

    /// The runtime whose connections serve the caller.
    fn here(&self) -> Option<Id> {
        self.listens.is_none().then(|| Handle::current().id())
    }

    /// The connection here with the least to do; while all are busy another is made. If there is none: when to look
    /// again.
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
            // Other runtimes have them all, and this one is not in use.
            state.links.swap_remove(idle);
        }
        let now = Instant::now();
        let opens = state.links.len() + state.opening < self.most && state.not_before <= now;
        state.opening += usize::from(opens);
        let look_again =
            if state.opening > 0 { now + PAUSES.1 } else { state.not_before.max(now + PAUSES.0) };
        let others = || state.links.iter().min_by_key(load).cloned();
        let link = if state.opening == 0 { idlest.or_else(others) } else { idlest };
        // A runtime that is ending drops it at once, and that takes the lock again.
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

    /// Nothing new goes to this connection. What it is at, if anything, is cancelled: a statement that waits for a row
    /// which somebody has locked by hand must not leave a connection behind for each time that it is tried.
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

/// A connection that is being made; also over when its runtime ends.
struct Opening(Arc<Inner>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.state().opening -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Link {
    fn is_usable(&self) -> bool {
        // Also where its runtime has ended, which takes along who would say that it has.
        !self.given_up.is_cancelled() && !self.connection.client().is_closed()
    }

    /// Resolves when it has ended, or was given up.
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

/// What the server says as it ends a connection may reach a statement that was executed.
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

/// Counts a statement for as long as somebody waits for it.
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
