//! Connections to the server: made and carried on the backend's own thread, so that a blocked runtime of the caller's
//! neither loses them nor hears late that they are lost.
//!
//! Also what the server's refusals mean for a user: every error names the host and what to do.

use std::error::Error as _;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error, Notification, SimpleQueryMessage, SimpleQueryRow};
use tokio_util::sync::CancellationToken;

use super::cancel::cancel;
use super::direct::process_of;
use super::settings::{Server, Settings, TlsMode};
use super::tls::{Tls, tls};
use crate::error::{BackendError, BackendErrorKind};
use crate::worker::{self, Worker};

/// One thread for all Postgres clients of the process.
static IO: worker::Shared = worker::Shared::new();

/// Makes connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    settings: Arc<Settings>,
    tls: Tls,
    worker: Worker,
}

/// A connection. Dropping it ends it.
pub(super) struct Connection {
    client: Client,
    tls: Tls,
    timeout: Duration,
    server: Server,
    end: Arc<End>,
}

/// How a connection ended, once it has.
#[derive(Default)]
struct End {
    ended: CancellationToken,
    why: OnceLock<String>,
}

/// Why a statement has no answer to show.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server refused it; the connection goes on.
    Refused(Error),
    /// The connection ended. The statement may have been executed.
    Ended(String),
    /// Nothing came for so long. The statement may have been executed, or still be.
    Silent(Duration),
}

impl Connector {
    /// # Errors
    /// TLS that can't be set up; a thread that can't be started.
    pub(super) fn new(settings: Settings) -> Result<Self, BackendError> {
        let tls = tls(&settings)?;
        let worker = IO.get("lockkeeper-postgres").map_err(|error| {
            let what = format!("the thread for connections can't be started: {error}");
            BackendError::new(BackendErrorKind::Operator, what)
        })?;
        Ok(Self { settings: Arc::new(settings), tls, worker })
    }

    /// The thread of the connections.
    pub(super) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// A connection to the first host that has one to give. `label` is what the server shows as `application_name`;
    /// `notices` hears what is notified on it. May be polled anywhere.
    ///
    /// # Errors
    /// What each host said; [`BackendErrorKind::Unreachable`] if one may answer later.
    pub(super) async fn connect(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (done, made) = oneshot::channel();
        let (this, label) = (self.clone(), label.to_owned());
        self.worker.run(Box::pin(async move {
            let (connection, carry) = match this.first_of_all(&label, notices).await {
                Ok(made) => made,
                Err(error) => return drop(done.send(Err(error))),
            };
            // If nobody waits for it any more, its client is dropped here, which ends it.
            drop(done.send(Ok(connection)));
            carry.await;
        }));
        made.await.unwrap_or_else(|_| {
            let what = "the thread of the connections has ended";
            Err(BackendError::new(BackendErrorKind::Operator, what))
        })
    }

    /// As [`Self::connect`], but carried by the runtime on which it is awaited: what is asked on it crosses to no other
    /// thread. It ends with that runtime.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) async fn connect_here(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (connection, carry) = self.first_of_all(label, notices).await?;
        tokio::spawn(carry);
        Ok(connection)
    }

    async fn first_of_all(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<(Connection, impl Future<Output = ()> + use<>), BackendError> {
        let mut errors = Vec::new();
        for server in &self.settings.servers {
            match self.one(server, label, notices.clone()).await {
                Ok(made) => return Ok(made),
                Err(error) => errors.push(error),
            }
        }
        let unreachable = errors.iter().any(|error| error.kind == BackendErrorKind::Unreachable);
        let first = errors.swap_remove(0);
        if errors.is_empty() {
            return Err(first);
        }
        let kind = if unreachable { BackendErrorKind::Unreachable } else { first.kind };
        let others: String = errors.iter().map(|error| format!("; {error}")).collect();
        Err(BackendError::new(kind, format!("no host of the address can be used: {first}{others}")))
    }

    async fn one(
        &self,
        server: &Server,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<(Connection, impl Future<Output = ()> + use<>), BackendError> {
        let mut config = server.config.clone();
        config.application_name(label);
        let limit = self.settings.timeout;
        // A server that stands still takes the connection, and never says a word.
        let connected = tokio::time::timeout(limit, config.connect(self.tls.clone())).await;
        let (client, mut carried) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(explain(&error, server, &self.settings)),
            Err(_) => {
                let what = format!(
                    "the server at {} did not answer within {limit:?}: check that it is well, or raise `timeout=`",
                    server.shown
                );
                return Err(BackendError::new(BackendErrorKind::Unreachable, what));
            }
        };
        let end = Arc::new(End::default());
        let connection = Connection {
            client,
            tls: self.tls.clone(),
            timeout: limit,
            server: server.clone(),
            end: end.clone(),
        };
        let carry = async move {
            let why = loop {
                match poll_fn(|context| carried.poll_message(context)).await {
                    Some(Ok(AsyncMessage::Notification(notice))) => {
                        if let Some(notices) = &notices {
                            // Who listened is gone, and the connection soon.
                            let _ = notices.send(notice);
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break chain(&error),
                    None => break "closed".to_owned(),
                }
            };
            // Whoever hears of the end finds the reason.
            let _ = end.why.set(why);
            end.ended.cancel();
        };
        Ok((connection, carry))
    }
}

impl Connection {
    /// The client, for statements of one's own.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Fires when the connection has ended, however.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.end.ended
    }

    pub(super) fn is_ended(&self) -> bool {
        self.end.ended.is_cancelled() || self.client.is_closed()
    }

    /// Why it ended, once it has.
    pub(super) fn why_ended(&self) -> &str {
        self.end.why.get().map_or("closed", String::as_str)
    }

    /// `host:port`, for people.
    pub(super) fn server(&self) -> &str {
        &self.server.shown
    }

    /// Runs statements in the simple protocol, which every pooler understands, and returns the rows of all. They wait
    /// for as long as they like.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn wait_for(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        match self.client.simple_query(sql).await {
            Ok(messages) => Ok(messages
                .into_iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row),
                    _ => None,
                })
                .collect()),
            // What the server says as it ends a connection reaches the statement that was under way.
            Err(error) if error.as_db_error().is_some() && !ends_the_connection(&error) => {
                Err(NoAnswer::Refused(error))
            }
            Err(error) => Err(NoAnswer::Ended(chain(&error))),
        }
    }

    /// As [`Self::wait_for`], for at most `limit`, whatever becomes of the statement then.
    pub(super) async fn ask_within(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        match tokio::time::timeout(limit, self.wait_for(sql)).await {
            Ok(answer) => answer,
            Err(_) => Err(NoAnswer::Silent(limit)),
        }
    }

    /// As [`Self::ask_within`], within the address' `timeout=`.
    pub(super) async fn ask(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        self.ask_within(sql, self.timeout).await
    }

    /// The server process that the other side named when the connection was made; a pooler invents one.
    pub(super) async fn process(&self) -> Option<i32> {
        process_of(&self.client.cancel_token()).await
    }

    /// Asks the server to give up the statement that is under way. Whether it did shows in the statement's answer; a
    /// request that is late may hit the next statement. Must run on the connections' thread.
    pub(super) async fn cancel(&self) -> Result<(), String> {
        let token = self.client.cancel_token();
        match tokio::time::timeout(self.timeout, cancel(&token, &self.server, self.tls.clone())).await {
            Ok(cancelled) => cancelled,
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }
}

impl NoAnswer {
    /// The error for people; `doing` says what was tried, as in "look at a lock".
    pub(super) fn explained(self, doing: &str) -> BackendError {
        match self {
            Self::Refused(error) => refused(&error, doing),
            Self::Ended(why) => BackendError::new(
                BackendErrorKind::Unreachable,
                format!("the connection ended ({why}) while trying to {doing}"),
            ),
            Self::Silent(limit) => BackendError::new(
                BackendErrorKind::Unreachable,
                format!("the server did not answer within {limit:?} when asked to {doing}"),
            ),
        }
    }

    /// What the server called the refusal.
    pub(super) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Refused(error) => error.code(),
            _ => None,
        }
    }
}

/// Whether the server ends the connection with this error.
fn ends_the_connection(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| matches!(error.severity(), "FATAL" | "PANIC"))
}

/// A statement that the server refused, for people.
fn refused(error: &Error, doing: &str) -> BackendError {
    let privilege = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let kind = if privilege { BackendErrorKind::Operator } else { BackendErrorKind::Refused };
    let instead =
        if privilege { "; `lockkeeper postgres init URL --role NAME` grants what is needed" } else { "" };
    BackendError::new(kind, format!("the server refuses to {doing}: {}{instead}", chain(error)))
}

/// The words of an error and of all below it.
pub(super) fn chain(error: &Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut words = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        words = format!("{words}: {error}");
        below = error.source();
    }
    words
}

/// What a connection that could not be made means, and what to do.
fn explain(error: &Error, server: &Server, settings: &Settings) -> BackendError {
    use BackendErrorKind::{Operator, Refused, Unreachable};
    let (at, said) = (&server.shown, chain(error));
    let (user, database) = (settings.user(), settings.database());
    let code = error.code().cloned();
    let (kind, what) = match code {
        Some(SqlState::INVALID_PASSWORD) => (
            Refused,
            format!("the server at {at} refuses the password of the user {user}: check both in the address"),
        ),
        Some(SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            let wants_tls = said.contains("no encryption") || said.contains("SSL off");
            let tls = if wants_tls { ", or asks for TLS: add `sslmode=require`" } else { "" };
            (
                Refused,
                format!(
                    "the server at {at} does not let the user {user} into the database {database}: {said}; its \
                     pg_hba.conf has no line for it{tls}"
                ),
            )
        }
        Some(SqlState::INVALID_CATALOG_NAME) => (
            Refused,
            format!(
                "the server at {at} has no database {database}: create it, or name another in the address"
            ),
        ),
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => (
            Operator,
            format!("the user {user} may not use the database {database} at {at}: {said}; grant it CONNECT"),
        ),
        Some(SqlState::TOO_MANY_CONNECTIONS) => (
            Operator,
            format!(
                "the server at {at} has no connection left: {said}; raise its max_connections, or lower \
                 `connections=` in the addresses of its clients"
            ),
        ),
        Some(_) => (Unreachable, format!("the server at {at} refuses connections: {said}")),
        None if error.to_string().contains("TLS") && said.contains("does not support TLS") => (
            Refused,
            format!(
                "the address asks for TLS, but the server at {at} offers none: set `ssl = on` there, or say \
                 `sslmode=disable` where the way is safe"
            ),
        ),
        None if error.to_string().contains("TLS") => {
            let verify = settings.tls == TlsMode::VerifyFull;
            let hint = if verify { "; `tls-ca=FILE` names whom to trust" } else { "" };
            (Refused, format!("no TLS with the server at {at}: {said}{hint}"))
        }
        None if said.contains("does not allow writes") => (
            Unreachable,
            format!(
                "the server at {at} is read-only (a standby, or default_transaction_read_only): its locks would \
                 exclude nobody; name the primary"
            ),
        ),
        None if said.contains("password missing") => (
            Refused,
            format!("the server at {at} wants a password for the user {user}: `postgres://user:password@…`"),
        ),
        None => (
            Unreachable,
            format!(
                "no PostgreSQL server answers at {at}: {said}; check host and port, and that it is running"
            ),
        ),
    };
    BackendError::new(kind, what)
}
