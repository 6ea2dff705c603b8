//! Connections to the server. They are made on the backend's own thread; there, or where they were asked for, those are
//! driven that calls share. What holds a lock has a [`Line`] instead, which whoever needs it drives.

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

/// A connection that has a driver, so that calls can share it. Dropping it ends it.
pub(super) struct Connection {
    client: Client,
    timeout: Duration,
    cancel: Cancel,
    end: Arc<End>,
}

/// How a connection ended, once it has.
#[derive(Default)]
struct End {
    ended: CancellationToken,
    why: OnceLock<String>,
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

    /// A connection to the first host that has one to give, driven by the backend's thread. `label` is what the server
    /// shows as `application_name`; `notices` hears what is notified on it. May be polled anywhere.
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
            let (connection, carry) = match this.first_of_all(&label).await {
                Ok(made) => made.driven(notices),
                Err(error) => return drop(done.send(Err(error))),
            };
            // If nobody waits for it any more, its client is dropped here, which ends it.
            drop(done.send(Ok(connection)));
            carry.await;
        }));
        made.await.unwrap_or_else(|_| Err(thread_has_ended()))
    }

    /// As [`Self::connect`], but driven by the runtime on which it is awaited: what is asked on it crosses to no other
    /// thread. It ends with that runtime.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) async fn connect_here(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (connection, carry) = self.first_of_all(label).await?.driven(notices);
        tokio::spawn(carry);
        Ok(connection)
    }

    /// As [`Self::connect`], but without a driver: whoever uses it drives it.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub(super) async fn line(&self, label: &str) -> Result<Line, BackendError> {
        let (done, made) = oneshot::channel();
        let (this, label) = (self.clone(), label.to_owned());
        self.worker.run(Box::pin(async move {
            let made = this.first_of_all(&label).await;
            let line = made.map(|made| Line::new(made.client, made.carried, made.cancel, this.worker));
            // If nobody waits for it any more, it ends here.
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
        // A server that stands still takes the connection, and never says a word.
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

/// A connection as it was made.
struct Made {
    client: Client,
    carried: Carried,
    cancel: Cancel,
}

impl Made {
    /// Its two halves, of which the second drives it until the first is dropped, or until it ends.
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
                    // Who listened is gone, and the connection soon.
                    let _ = notices.send(notice);
                }
            };
            // Whoever hears of the end finds the reason.
            let _ = end.why.set(carried.carry(heard).await);
            end.ended.cancel();
        };
        (connection, carry)
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

    /// Runs statements in the simple protocol, which every pooler understands, and returns the rows of all, within the
    /// address' `timeout=`, whatever becomes of them then.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        match tokio::time::timeout(self.timeout, self.client.simple_query(sql)).await {
            Ok(answer) => answered_by(Ok(answer)).map(rows),
            Err(_) => Err(NoAnswer::Silent(self.timeout)),
        }
    }

    /// Asks the server to give up the statement that is under way. Whether it did shows in the statement's answer; a
    /// request that is late may hit the next statement. Must run on the connections' thread.
    pub(super) async fn cancel(&self) -> Result<(), String> {
        self.cancel.send().await
    }
}
