//! Connections to the server. Shared connections have a driver task, on the backend's own thread or on the runtime that
//! opened them. A connection that holds a lock is a [`Line`] instead, which its user drives.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_postgres::{Client, Notification, SimpleQueryRow};
use tokio_util::sync::CancellationToken;

pub(super) use super::answer::{NoAnswer, chain};
use super::answer::{answered_by, explain, rows};
use super::cancel::Cancel;
use super::carried::Carried;
use super::dial::dial;
use super::line::Line;
use super::settings::{Server, Settings};
use super::tls::{Tls, tls};
use crate::error::{BackendError, BackendErrorKind};
use crate::io::{LeaseThread, SharedLeaseThread};

/// One thread for all PostgreSQL clients of the process.
static IO: SharedLeaseThread = SharedLeaseThread::new();

/// Opens connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    settings: Arc<Settings>,
    tls: Tls,
    worker: LeaseThread,
}

/// A connection with a driver task, so that calls can share it. Closed on drop.
pub(super) struct Connection {
    client: Client,
    timeout: Duration,
    cancel: Cancel,
    end: Arc<End>,
}

/// The end of a connection, with its reason.
#[derive(Default)]
struct End {
    ended: CancellationToken,
    why: OnceLock<String>,
}

impl Connector {
    /// # Errors
    /// TLS can't be set up, or the thread can't be started.
    pub(super) fn new(settings: Settings) -> Result<Self, BackendError> {
        let tls = tls(&settings)?;
        let worker = IO.get("lockkeeper-postgres").map_err(|error| {
            let what = format!("the thread for connections can't be started: {error}");
            BackendError::new(BackendErrorKind::Operator, what)
        })?;
        Ok(Self { settings: Arc::new(settings), tls, worker })
    }

    /// The thread that drives the connections.
    pub(super) fn worker(&self) -> &LeaseThread {
        &self.worker
    }

    /// Connects to the first host that accepts; the backend's thread drives the connection. `label` becomes the
    /// `application_name`; `notices` receives notifications. May be awaited on any runtime.
    ///
    /// # Errors
    /// The errors of all hosts; [`BackendErrorKind::Unreachable`] if one may answer later.
    pub(super) async fn connect(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (done, made) = oneshot::channel();
        let (this, label) = (self.clone(), label.to_owned());
        self.worker.run(Box::pin(async move {
            let (connection, carry) = match this.first_of_all(&label).await {
                Ok(made) => made.driven(notices),
                Err(error) => return drop(done.send(Err(error))),
            };
            // If the caller is gone, the client is dropped here, which closes the connection.
            drop(done.send(Ok(connection)));
            carry.await;
        }));
        made.await.unwrap_or_else(|_| Err(thread_has_ended()))
    }

    /// Like [`Self::connect`], but the current runtime drives the connection, so that statements cross to no other
    /// thread. The connection ends with that runtime.
    ///
    /// # Errors
    /// Like [`Self::connect`].
    pub(super) async fn connect_here(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (connection, carry) = self.first_of_all(label).await?.driven(notices);
        tokio::spawn(carry);
        Ok(connection)
    }

    /// Like [`Self::connect`], but without a driver task: its user drives it.
    ///
    /// # Errors
    /// Like [`Self::connect`].
    pub(super) async fn line(&self, label: &str) -> Result<Line, BackendError> {
        let (done, made) = oneshot::channel();
        let (this, label) = (self.clone(), label.to_owned());
        self.worker.run(Box::pin(async move {
            let made = this.first_of_all(&label).await;
            let line = made.map(|made| Line::new(made.client, made.carried, made.cancel, this.worker));
            // If the caller is gone, the line is closed here.
            drop(done.send(line));
        }));
        made.await.unwrap_or_else(|_| Err(thread_has_ended()))
    }

    async fn first_of_all(&self, label: &str) -> Result<Made, BackendError> {
        let mut errors = Vec::new();
        for server in &self.settings.servers {
            match self.one(server, label).await {
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

    async fn one(&self, server: &Server, label: &str) -> Result<Made, BackendError> {
        let mut config = server.config.clone();
        config.application_name(label);
        let limit = self.settings.timeout;
        // A stalled server accepts TCP connections and never answers.
        match tokio::time::timeout(limit, dial(&config, self.tls.clone())).await {
            Ok(Ok((client, carried))) => {
                let (token, tls) = (client.cancel_token(), self.tls.clone());
                let cancel = Cancel::new(token, server.clone(), tls, limit);
                Ok(Made { client, carried, cancel })
            }
            Ok(Err(error)) => Err(explain(error, server, &self.settings)),
            Err(_) => {
                let what = format!(
                    "the server at {} did not answer within {limit:?}: check that it is well, or raise `timeout=`",
                    server.shown
                );
                Err(BackendError::new(BackendErrorKind::Unreachable, what))
            }
        }
    }
}

fn thread_has_ended() -> BackendError {
    BackendError::new(BackendErrorKind::Operator, "the thread of the connections has ended")
}

/// A newly opened connection.
struct Made {
    client: Client,
    carried: Carried,
    cancel: Cancel,
}

impl Made {
    /// Splits it into the connection, and a future that drives it until the connection is dropped or ends.
    fn driven(
        self,
        notices: Option<UnboundedSender<Notification>>,
    ) -> (Connection, impl Future<Output = ()> + use<>) {
        let end = Arc::new(End::default());
        let Self { client, carried, cancel } = self;
        let connection = Connection { client, timeout: cancel.timeout(), cancel, end: end.clone() };
        let carry = async move {
            let heard = |notice| {
                if let Some(notices) = &notices {
                    // The receiver is gone, and soon the connection will be.
                    let _ = notices.send(notice);
                }
            };
            // Set before `ended` fires, so that observers of the end find the reason.
            let _ = end.why.set(carried.carry(heard).await);
            end.ended.cancel();
        };
        (connection, carry)
    }
}

impl Connection {
    /// The client, for statements that need more than [`Self::ask`].
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Cancelled when the connection has ended, for any reason.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.end.ended
    }

    pub(super) fn is_ended(&self) -> bool {
        self.end.ended.is_cancelled() || self.client.is_closed()
    }

    /// Runs statements in the simple protocol, which every pooler supports, and returns the rows of all. Returns within
    /// the address' `timeout=`; after a timeout the statements may still be running.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        match tokio::time::timeout(self.timeout, self.client.simple_query(sql)).await {
            Ok(answer) => answered_by(Ok(answer)).map(rows),
            Err(_) => Err(NoAnswer::Silent(self.timeout)),
        }
    }

    /// Requests cancellation of the running statement. The statement's answer shows whether that took effect; a late
    /// request may hit the next statement. Must run on the connections' thread.
    pub(super) async fn cancel(&self) -> Result<(), String> {
        self.cancel.send().await
    }
}
