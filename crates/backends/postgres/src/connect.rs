//! Connections to the server: ordinary connections of `tokio_postgres`, each with a driver task, on the
//! current runtime or on the lease thread.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::{HEAD_START, LeaseThread, SharedLeaseThread, first_success};
use lockkeeper_backend::{BackendError, BackendErrorKind, Rotated};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Notification, SimpleQueryRow, Socket};
use tokio_util::sync::CancellationToken;

pub(super) use super::answer::{NoAnswer, chain};
use super::answer::{answered_by, explain, rows};
use super::direct::process_of;
use super::settings::Settings;
use super::tls::{Tls, tls};

/// One lease thread for all PostgreSQL clients of the process.
static IO: SharedLeaseThread = SharedLeaseThread::new();

/// The I/O half of a connection.
type Driver = tokio_postgres::Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>;

/// Opens connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Connector {
    settings: Arc<Settings>,
    tls: Arc<Rotated<Tls>>,
    lease_thread: LeaseThread,
    /// The address to which a connection was opened last.
    last_good: Arc<Mutex<Option<Address>>>,
}

/// One address of a server: the server's index, and the IP address if the host name has several.
type Address = (usize, Option<IpAddr>);

/// A connection. Calls can share it. Closed on drop.
pub(super) struct Connection {
    client: Client,
    timeout: Duration,
    tls: Tls,
    /// The server's `host:port`, from the URL.
    server: String,
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
        let tls = Arc::new(Rotated::new(tls(&settings)?));
        let lease_thread = IO.get("lockkeeper-postgres")?;
        Ok(Self { settings: Arc::new(settings), tls, lease_thread, last_good: Arc::default() })
    }

    /// The lease thread.
    pub(super) fn lease_thread(&self) -> &LeaseThread {
        &self.lease_thread
    }

    /// Connects to the first address that accepts, the last good one first; the connection belongs to the
    /// lease thread. `label` becomes the `application_name`; `notices` receives notifications. May be awaited
    /// on any runtime.
    ///
    /// # Errors
    /// The errors of all hosts in one. Its kind is [`BackendErrorKind::Unreachable`] if that is the kind for
    /// any host: a later attempt may succeed.
    pub(super) async fn connect(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (done, opened) = oneshot::channel();
        let (this, label) = (self.clone(), label.to_owned());
        self.lease_thread.run(Box::pin(async move {
            match this.first_of_all(&label, notices).await {
                Ok((connection, driving)) => {
                    // If the caller has stopped waiting, the send fails and drops the connection, which
                    // closes it.
                    drop(done.send(Ok(connection)));
                    driving.await;
                }
                Err(error) => drop(done.send(Err(error))),
            }
        }));
        opened.await.unwrap_or_else(|_| {
            let what = "the thread of the connections has ended";
            Err(BackendError::new(BackendErrorKind::Operator, what))
        })
    }

    /// Like [`Self::connect`], but the connection belongs to the current runtime, and ends with it.
    ///
    /// # Errors
    /// Like [`Self::connect`].
    pub(super) async fn connect_here(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<Connection, BackendError> {
        let (connection, driving) = self.first_of_all(label, notices).await?;
        tokio::spawn(driving);
        Ok(connection)
    }

    /// Returns the connection, and the future that drives it.
    async fn first_of_all(
        &self,
        label: &str,
        notices: Option<UnboundedSender<Notification>>,
    ) -> Result<(Connection, impl Future<Output = ()> + use<>), BackendError> {
        let addresses = self.addresses().await;
        let attempts = addresses.into_iter().map(|address| {
            let (this, label) = (self.clone(), label.to_owned());
            async move { Ok((address, this.one(address, &label).await?)) }
        });
        let head_start = HEAD_START.min(self.settings.connect_timeout / 3);
        let mut errors: Vec<BackendError> = match first_success(attempts, head_start).await {
            Ok((address, (connection, driver))) => {
                *self.last_good() = Some(address);
                let ended = EndOnDrop(connection.end.clone());
                return Ok((connection, drive(driver, notices, ended)));
            }
            Err(errors) => errors,
        };
        // Several addresses of one host name may fail with the same message.
        errors.dedup_by(|one, other| one.message == other.message);
        if errors.is_empty() {
            let what = "no connection is opened: this tokio runtime is shutting down";
            return Err(BackendError::new(BackendErrorKind::Operator, what));
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

    fn last_good(&self) -> MutexGuard<'_, Option<Address>> {
        self.last_good.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All addresses, in the order of attempts. A host name that can't be resolved in time is kept as a name:
    /// its attempt resolves the name again and reports the error.
    async fn addresses(&self) -> Vec<Address> {
        let mut addresses = Vec::new();
        for index in 0..self.settings.servers.len() {
            let found = match self.settings.hosts(index) {
                [Host::Tcp(name)] if name.parse::<IpAddr>().is_err() => {
                    let resolving = tokio::net::lookup_host((name.as_str(), 0));
                    let resolved = tokio::time::timeout(self.settings.connect_timeout / 3, resolving).await;
                    resolved.ok().and_then(Result::ok).map_or_else(Vec::new, Iterator::collect)
                }
                _ => Vec::new(),
            };
            match found.as_slice() {
                [] | [_] => addresses.push((index, None)),
                several => addresses.extend(several.iter().map(|address| (index, Some(address.ip())))),
            }
        }
        let last_good = *self.last_good();
        addresses.sort_by_key(|address| Some(*address) != last_good);
        addresses
    }

    async fn one(
        &self,
        (index, address): Address,
        label: &str,
    ) -> Result<(Connection, Driver), BackendError> {
        let server = &self.settings.servers[index];
        let mut config = self.settings.config(index);
        config.application_name(label);
        if let Some(address) = address {
            // The host name is kept, since TLS checks the certificate against it.
            config.hostaddr(address);
        }
        let (timeout, limit) = (self.settings.timeout, self.settings.connect_timeout);
        let tls = self.tls.latest("files of TLS", |_| tls(&self.settings));
        // tokio_postgres' `connect_timeout` covers only the TCP connection, which a stalled server still
        // accepts.
        match tokio::time::timeout(limit, config.connect(tls.clone())).await {
            Ok(Ok((client, driver))) => {
                let server = server.shown.clone();
                Ok((Connection { client, timeout, tls, server, end: Arc::default() }, driver))
            }
            Ok(Err(error)) => Err(explain(&error, server, &self.settings)),
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

/// Drives a connection until its client is dropped or the server closes it, and records why it ended. `ended`
/// is dropped with this future, also if the runtime ends first.
async fn drive(mut driver: Driver, notices: Option<UnboundedSender<Notification>>, ended: EndOnDrop) {
    let why = loop {
        match poll_fn(|context| driver.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(notice))) => {
                if let Some(notices) = &notices {
                    // Fails only if the receiver was dropped; its owner closes the connection then.
                    let _ = notices.send(notice);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => break chain(&error),
            None => break "closed".to_owned(),
        }
    };
    let _ = ended.0.why.set(why);
}

struct EndOnDrop(Arc<End>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        // Set before `ended` fires, so that observers of the end find the reason.
        self.0.why.get_or_init(|| "its runtime has ended".to_owned());
        self.0.ended.cancel();
    }
}

impl Connection {
    /// The client, for statements that need more than [`Self::ask`].
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The server's `host:port`, from the URL.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Cancelled when the connection has ended, for any reason.
    pub(super) fn ended(&self) -> &CancellationToken {
        &self.end.ended
    }

    pub(super) fn is_ended(&self) -> bool {
        self.end.ended.is_cancelled() || self.client.is_closed()
    }

    /// Why the connection has ended, as shown to users.
    pub(super) fn why_ended(&self) -> Option<String> {
        self.end.why.get().cloned()
    }

    /// Runs statements in the simple protocol, which every pooler supports, and returns all rows. Returns
    /// within the URL's `timeout=`; after a timeout the statements may still be running.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        self.ask_within(sql, self.timeout).await
    }

    /// Like [`Self::ask`], with another time limit.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn ask_within(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        let answer = tokio::time::timeout(limit, self.wait_for(sql)).await;
        answer.unwrap_or(Err(NoAnswer::Silent(limit)))
    }

    /// Like [`Self::ask`], without a time limit.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub(super) async fn wait_for(&self, sql: &str) -> Result<Vec<SimpleQueryRow>, NoAnswer> {
        match self.client.simple_query(sql).await {
            // This error says only that the connection is closed; the driver has recorded why. Other errors
            // contain their reason.
            Err(error) if error.is_closed() => {
                Err(NoAnswer::Ended(self.why_ended().unwrap_or_else(|| chain(&error))))
            }
            answer => answered_by(answer).map(rows),
        }
    }

    /// The server process that the peer reported when the connection was opened; a pooler invents one.
    pub(super) async fn process(&self) -> Option<i32> {
        process_of(&self.client.cancel_token()).await
    }

    /// Sends a message that has no effect at the server, and does not wait for the answer. Proxies count the
    /// message as activity. May be called while a statement runs: the server reads the message after the
    /// statement. Unlike an empty statement, the message does not replace the last statement in
    /// `pg_stat_activity`.
    pub(super) async fn send_sign_of_life(&self) {
        // One poll sends the message. The answer is discarded; `ended` reports the end of the connection.
        let _ = tokio::time::timeout(Duration::ZERO, self.client.check_connection()).await;
    }

    /// Requests cancellation of the running statement. The statement's answer shows whether it was cancelled.
    /// A cancel request that the server receives late may hit the connection's next statement, and
    /// `PgBouncer` may drop the request.
    ///
    /// # Errors
    /// The error, as shown to users.
    pub(super) async fn cancel(&self) -> Result<(), String> {
        let token = self.client.cancel_token();
        let cancelling = token.cancel_query(self.tls.clone());
        match tokio::time::timeout(self.timeout, cancelling).await {
            Ok(cancelled) => cancelled.map_err(|error| chain(&error)),
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }
}
