//! Sessions at the servers, and calls on them.
//!
//! The tasks that keep a session alive run on the lease thread. Its timeout is one tick longer than the ttl
//! of its entries: see [`Ensemble::tick`].

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::StoreFailure;
use lockkeeper_backend::{BackendError, BackendErrorKind, Finding, Login};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use zookeeper_client::{Acls, Client, Connector, CreateMode, CreateOptions, Error, SessionId};

use super::settings::{Settings, ZooKeeperTls};

/// Tries of all servers: the client library limits a connection to two fifths of the session timeout, which a
/// first TLS handshake may exceed.
const OPENS_MAX: usize = 3;
/// Time limit for opening the first session, and for asking one server why it does not answer.
const OPEN_LIMIT: Duration = Duration::from_secs(10);
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// Session timeout requested for the first session: below the usual `minSessionTimeout`, so the servers grant
/// that.
const SHORT: Duration = Duration::from_secs(2);
/// Session timeout for inspections, which hold nothing.
const INSPECTION: Duration = Duration::from_secs(10);
/// Session timeout above the usual `maxSessionTimeout`, which the servers then grant; above the longest ttl.
const LONG: Duration = Duration::from_secs(2 * 3600);

/// The failure of a call; `Answered` is a definite answer, such as "no such node" or "another version".
pub(super) type ZooKeeperFailure = StoreFailure<Error>;

/// Classifies an error.
pub(super) fn failure(error: Error) -> ZooKeeperFailure {
    let refused = |kind, what: &str| {
        ZooKeeperFailure::Refused(BackendError::new(kind, format!("ZooKeeper refuses: {error}{what}")))
    };
    match error {
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => {
            refused(BackendErrorKind::Denied, "; check user and password in the URL, and the ACL of the path")
        }
        Error::QuotaExceeded => refused(BackendErrorKind::Operator, ""),
        Error::Unimplemented => refused(BackendErrorKind::Operator, "; ZooKeeper 3.6 or later is needed"),
        Error::BadArguments(_) => refused(BackendErrorKind::Refused, ""),
        Error::Throttled | Error::NotReadOnly => {
            ZooKeeperFailure::passing(format!("ZooKeeper refuses: {error}"))
        }
        // Answers about requests that may have been executed.
        Error::SessionMoved | Error::MarshallingError | Error::UnexpectedErrorCode(_) => {
            ZooKeeperFailure::passing(format!("ZooKeeper refuses: {error}")).in_doubt()
        }
        Error::NoNode | Error::NodeExists | Error::BadVersion | Error::NotEmpty => {
            ZooKeeperFailure::Answered(error)
        }
        _ => ZooKeeperFailure::IN_DOUBT,
    }
}

/// Waits for a call's answer.
pub(super) async fn by<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, ZooKeeperFailure> {
    timeout_at(deadline, call).await.map_err(|_| ZooKeeperFailure::IN_DOUBT)?.map_err(failure)
}

/// As [`by`]; `None` if there is no such node.
pub(super) async fn by_if_exists<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, ZooKeeperFailure> {
    match by(deadline, call).await {
        Ok(found) => Ok(Some(found)),
        Err(ZooKeeperFailure::Answered(Error::NoNode)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The servers, and how to open sessions there.
pub(super) struct Ensemble {
    servers: Vec<String>,
    login: Option<Login>,
    tls: Option<ZooKeeperTls>,
    /// How much earlier than its timeout after an answer the servers may expire a session: a server reports
    /// active sessions to the leader only twice per tick, and may die before its next report.
    tick: Duration,
    /// The shortest session that the servers grant.
    pub(super) shortest: Duration,
    lease_thread: LeaseThread,
}

impl Ensemble {
    /// Opens a session, to check that the servers answer and to learn their tick.
    pub(super) async fn connect(
        settings: &Settings,
        lease_thread: &LeaseThread,
    ) -> Result<Self, BackendError> {
        let mut ensemble = Self {
            servers: settings.servers.clone(),
            login: settings.login.clone(),
            tls: settings.tls.clone(),
            tick: Duration::ZERO,
            shortest: Duration::ZERO,
            lease_thread: lease_thread.clone(),
        };
        let (_, granted) = ensemble.open(SHORT).await?;
        // `minSessionTimeout` is two ticks by default.
        (ensemble.tick, ensemble.shortest) = (settings.tick.unwrap_or(granted / 2), granted);
        Ok(ensemble)
    }

    /// The limits of the ttl, for `doctor`.
    pub(super) async fn finding(&self) -> Result<Finding, BackendError> {
        let (_, longest) = self.open(LONG).await?;
        let (shortest, tick) = (self.shortest, self.tick);
        let (least, most) = (shortest.saturating_sub(tick), longest.saturating_sub(tick));
        let says = format!(
            "sessions last {shortest:?} to {longest:?} (`minSessionTimeout`, `maxSessionTimeout`), of which {tick:?} are kept in \
             reserve: a ttl above {most:?} is refused; with one below {least:?} the locks of a process that crashes stay taken for \
             {shortest:?}"
        );
        Ok(Finding { spoils: false, says })
    }

    /// The options of a node, with access for all users or for this one.
    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() })
    }

    /// The servers' names, preceded by all addresses of names that have several: the client library tries all
    /// addresses of one name within one time limit, and the first address may drop packets. Not with TLS,
    /// since certificates are for names.
    async fn addresses(&self) -> Vec<String> {
        let mut addresses = Vec::with_capacity(self.servers.len());
        for server in self.servers.iter().filter(|_| self.tls.is_none()) {
            let resolved = timeout(PROBE_LIMIT, lookup_host(server.as_str())).await;
            let found = resolved.ok().and_then(Result::ok).map_or_else(Vec::new, Iterator::collect);
            if found.len() > 1 {
                addresses.extend(found.iter().map(SocketAddr::to_string));
            }
        }
        // The names stay: the addresses may change during the session.
        addresses.extend(self.servers.iter().cloned());
        addresses
    }

    /// Opens a session, and returns it with the granted timeout.
    async fn open(&self, session_timeout: Duration) -> Result<(Client, Duration), BackendError> {
        let (sender, receiver) = oneshot::channel();
        // A server that drops packets must leave time for the others.
        let connection_timeout = (session_timeout * 2 / 5).min(OPEN_LIMIT / 4);
        let mut connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_connection_timeout(connection_timeout)
            .with_fail_eagerly();
        if let Some(login) = &self.login {
            let digest = format!("{}:{}", login.user, login.password.reveal());
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let (servers, tls) = (self.addresses().await.join(","), self.tls.clone());
        self.lease_thread.run(Box::pin(async move {
            // The session is closed if the caller has given up.
            let mut opened = connect(connector.clone(), &servers, tls.clone()).await;
            for _ in 1..OPENS_MAX {
                if sender.is_closed() || !matches!(opened, Err(Error::NoHosts | Error::Timeout)) {
                    break;
                }
                opened = connect(connector.clone(), &servers, tls.clone()).await;
            }
            let _ = sender.send(opened);
        }));
        let opened = match timeout(OPEN_LIMIT, receiver).await {
            Ok(Ok(Ok(client))) => {
                let granted = client.session_timeout();
                return Ok((client, granted));
            }
            Ok(Ok(Err(error))) => Some(error),
            Ok(Err(_)) | Err(_) => None,
        };
        if let Some(Error::AuthFailed) = opened {
            let what = "ZooKeeper refuses the login; correct user and password in the URL";
            return Err(BackendError::new(BackendErrorKind::Denied, what));
        }
        let mut reasons = Vec::with_capacity(self.servers.len());
        for server in &self.servers {
            let reason = match timeout(PROBE_LIMIT, TcpStream::connect(server)).await {
                Ok(Ok(_)) => {
                    "accepts connections, but opens no session: it has no majority, is no ZooKeeper, or wants other \
                     settings of TLS"
                        .to_owned()
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {PROBE_LIMIT:?}"),
            };
            reasons.push(format!("{server}: {reason}"));
        }
        let what = format!("no ZooKeeper server opens a session ({})", reasons.join("; "));
        Err(BackendError::new(BackendErrorKind::Unreachable, what))
    }
}

async fn connect(connector: Connector, servers: &str, tls: Option<ZooKeeperTls>) -> Result<Client, Error> {
    match tls {
        None => connector.connect(servers).await,
        #[cfg(feature = "tls")]
        Some(tls) => connector.with_tls(tls.latest()).secure_connect(servers).await,
        #[cfg(not(feature = "tls"))]
        Some(never) => match never {},
    }
}

/// One session at a time: when it has ended, the next call opens another.
pub(super) struct CurrentSession {
    pub(super) ensemble: Arc<Ensemble>,
    /// The longest time for which the session's entries outlive its last renewal. `None`: for sessions
    /// without entries, with any timeout.
    ttl: Option<Duration>,
    current: Mutex<Option<Client>>,
    trouble: std::sync::Mutex<Option<BackendError>>,
    on_end: Box<dyn Fn(SessionId) + Send + Sync>,
}

impl CurrentSession {
    /// `on_end` is called when a session has ended without being closed here.
    pub(super) fn new(
        ensemble: Arc<Ensemble>,
        ttl: Option<Duration>,
        on_end: impl Fn(SessionId) + Send + Sync + 'static,
    ) -> Self {
        Self {
            ensemble,
            ttl,
            current: Mutex::default(),
            trouble: std::sync::Mutex::default(),
            on_end: Box::new(on_end),
        }
    }

    /// The session, opened if there is none.
    pub(super) async fn client(self: &Arc<Self>, deadline: Instant) -> Result<Client, ZooKeeperFailure> {
        timeout_at(deadline, self.opened()).await.unwrap_or(Err(ZooKeeperFailure::NOT_DONE))
    }

    async fn opened(self: &Arc<Self>) -> Result<Client, ZooKeeperFailure> {
        let mut current = self.current.lock().await;
        if let Some(client) = current.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        *current = None;
        let reserve = self.ensemble.tick;
        let wanted = self.ttl.unwrap_or(INSPECTION) + reserve;
        let (client, granted) = match self.ensemble.open(wanted).await {
            Ok(opened) => opened,
            Err(error) if error.kind == BackendErrorKind::Unreachable => {
                self.set_trouble(Some(error));
                return Err(ZooKeeperFailure::NOT_DONE);
            }
            Err(error) => return Err(ZooKeeperFailure::Refused(error)),
        };
        if let Some(ttl) = self.ttl {
            // The granted timeout is rounded to milliseconds.
            if granted + Duration::from_millis(1) < wanted {
                return Err(ZooKeeperFailure::Refused(too_long(ttl, granted, reserve)));
            }
            if granted > wanted + Duration::from_millis(1) {
                tracing::warn!(
                    ?ttl,
                    ?granted,
                    "the servers' `minSessionTimeout` is longer than the ttl: if this process crashes, its locks stay taken for that long"
                );
            }
        }
        self.set_trouble(None);
        self.observe(&client);
        *current = Some(client.clone());
        Ok(client)
    }

    /// The current session, if it has not ended.
    pub(super) async fn current(&self) -> Option<Client> {
        self.current.lock().await.clone().filter(|client| !client.state().is_terminated())
    }

    /// Calls `on_end` when the session has ended.
    fn observe(self: &Arc<Self>, client: &Client) {
        let mut states = client.state_watcher();
        let (id, sessions) = (client.session_id(), Arc::downgrade(self));
        self.ensemble.lease_thread.run(Box::pin(async move {
            while !states.changed().await.is_terminated() {}
            if let Some(sessions) = sessions.upgrade() {
                (sessions.on_end)(id);
            }
        }));
    }

    pub(super) fn trouble(&self) -> Option<BackendError> {
        self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<BackendError>) {
        *self.trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = trouble;
    }

    /// Runs a task on the lease thread.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.ensemble.lease_thread.run(Box::pin(task));
    }
}

fn too_long(ttl: Duration, granted: Duration, reserve: Duration) -> BackendError {
    let most = granted.saturating_sub(reserve);
    let what = format!(
        "a ttl of {ttl:?} is too long for these servers: their sessions last {granted:?} at most (`maxSessionTimeout`), of \
         which {reserve:?} are kept in reserve; use a ttl of at most {most:?}"
    );
    BackendError::new(BackendErrorKind::Refused, what)
}
