//! Connections to the server: those of `mysql_async`, with the session variables that locks need.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lockkeeper_backend::io::{HEAD_START, first_success};
use lockkeeper_backend::{BackendError, BackendErrorKind};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error, Opts, OptsBuilder};

use crate::answer::{chain, kind_of};
use crate::settings::{Settings, TlsMode};

/// Opens connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MySqlConnector {
    settings: Arc<Settings>,
    /// For how long the server keeps a connection on which nothing arrives, in seconds.
    idle_s: u64,
    /// The server to which a connection was opened last.
    last_good: Arc<Mutex<usize>>,
    server: Arc<OnceLock<ServerKind>>,
}

/// The kind of server, which the first connection detects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerKind {
    /// Whether it is a node of a Galera cluster.
    pub(crate) is_galera: bool,
}

/// An open connection.
pub(crate) struct OpenedConnection {
    pub(crate) conn: Conn,
    /// The server's own id of the connection. Behind a proxy, `conn.id()` is the proxy's id.
    pub(crate) id: u64,
}

impl MySqlConnector {
    pub(crate) fn new(settings: Settings, idle_s: u64) -> Self {
        Self { settings: Arc::new(settings), idle_s, last_good: Arc::default(), server: Arc::default() }
    }

    /// The kind of server that the first connection has detected. Before that, the default: not a node of a
    /// cluster.
    pub(crate) fn server(&self) -> ServerKind {
        self.server.get().copied().unwrap_or(ServerKind { is_galera: false })
    }

    /// Connects to the first server that accepts and can write, the last good one first.
    ///
    /// # Errors
    /// The errors of all hosts in one.
    pub(crate) async fn open(&self) -> Result<OpenedConnection, BackendError> {
        let last_good = *self.last_good.lock().unwrap_or_else(PoisonError::into_inner);
        let mut servers: Vec<usize> = (0..self.settings.servers()).collect();
        servers.sort_by_key(|server| *server != last_good);
        let attempts = servers.into_iter().map(|server| {
            let this = self.clone();
            async move { Ok((server, this.one(server).await?)) }
        });
        match first_success(attempts, HEAD_START.min(self.settings.timeout / 3)).await {
            Ok((server, opened)) => {
                *self.last_good.lock().unwrap_or_else(PoisonError::into_inner) = server;
                Ok(opened)
            }
            Err(errors) => Err(all_failed(errors)),
        }
    }

    async fn one(&self, server: usize) -> Result<OpenedConnection, BackendError> {
        let limit = self.settings.timeout;
        match tokio::time::timeout(limit, self.connect(server)).await {
            Ok(opened) => opened,
            Err(_) => {
                let what = format!(
                    "the server at {} did not answer within {limit:?}: check that it is well, or raise `timeout=`",
                    self.settings.shown(server)
                );
                Err(BackendError::new(BackendErrorKind::Unreachable, what))
            }
        }
    }

    async fn connect(&self, server: usize) -> Result<OpenedConnection, BackendError> {
        let explained = |error: Error| self.explained(server, &error);
        let plain = self.settings.options(server);
        let mut conn = match encrypted(&self.settings, plain.clone())? {
            None => Conn::new(Opts::from(plain)).await.map_err(explained)?,
            Some(options) => match Conn::new(Opts::from(options)).await {
                Err(Error::Driver(DriverError::NoClientSslFlagFromServer))
                    if self.settings.tls == TlsMode::Preferred =>
                {
                    Conn::new(Opts::from(plain)).await.map_err(explained)?
                }
                connected => connected.map_err(explained)?,
            },
        };
        // A sum, since a proxy answers the plain function itself, with its own number. As text: a version of
        // MariaDB has a flag that is a word.
        const ABOUT: &str = "SELECT VERSION(), CAST(@@GLOBAL.read_only AS CHAR), \
                             CAST(@@GLOBAL.innodb_read_only AS CHAR), CONNECTION_ID() + 0";
        let about: Option<(String, String, String, u64)> =
            conn.query_first(ABOUT).await.map_err(explained)?;
        let (version, read_only, innodb_read_only, id) = about.unwrap_or_default();
        let is_off = |value: &str| matches!(value, "0" | "OFF");
        if !is_off(&read_only) || !is_off(&innodb_read_only) {
            let what = format!(
                "the server at {} is read-only, probably a replica: its locks would exclude nobody; name the primary",
                self.settings.shown(server)
            );
            return Err(BackendError::new(BackendErrorKind::Unreachable, what));
        }
        let is_mariadb = version.contains("MariaDB");
        let found = match self.server.get() {
            Some(found) => *found,
            None => {
                let wsrep: Option<(String, String)> =
                    conn.query_first("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await.map_err(explained)?;
                let is_galera = wsrep.is_some_and(|(_, value)| value == "ON");
                *self.server.get_or_init(|| ServerKind { is_galera })
            }
        };
        // Statements that wait have limits of ours. A statement that waits for a row is given up soon, since
        // its client has given it up by then.
        let own_limit = if is_mariadb { "max_statement_time" } else { "max_execution_time" };
        let causal = if found.is_galera { ", wsrep_sync_wait = 7" } else { "" };
        let set = format!(
            "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 2, \
             wait_timeout = {idle}, interactive_timeout = {idle}, {own_limit} = 0{causal}",
            idle = self.idle_s
        );
        conn.query_drop(set).await.map_err(explained)?;
        let level = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
        conn.query_drop(level).await.map_err(explained)?;
        Ok(OpenedConnection { conn, id })
    }

    /// Formats a failed connection attempt for users, with the remedy.
    fn explained(&self, server: usize, error: &Error) -> BackendError {
        let (at, said) = (self.settings.shown(server), chain(error));
        let (user, database) = (self.settings.user(), &self.settings.database);
        let (kind, what) = match error {
            Error::Server(error) => {
                let remedy = match error.code {
                    1045 | 1698 => format!("check user and password of `{user}` in the address"),
                    1044 => format!("grant `{user}` the database `{database}`"),
                    1049 => format!("create the database `{database}`, or name another in the address"),
                    1040 | 1203 => {
                        "raise its max_connections, or lower `connections=` of its clients".to_owned()
                    }
                    _ => "see the server's log".to_owned(),
                };
                (kind_of(error.code), format!("the server at {at} refuses connections: {said}; {remedy}"))
            }
            Error::Driver(DriverError::NoClientSslFlagFromServer) => (
                BackendErrorKind::Refused,
                format!(
                    "the address asks for TLS, but the server at {at} offers none: configure `ssl_cert` and `ssl_key` \
                     there, or say `ssl-mode=disabled` where the way is safe"
                ),
            ),
            _ if said.contains("TLS") || said.contains("certificate") => (
                BackendErrorKind::Refused,
                format!("no TLS with the server at {at}: {said}; `tls-ca=FILE` names whom to trust"),
            ),
            _ => (
                BackendErrorKind::Unreachable,
                format!(
                    "no MySQL or MariaDB answers at {at}: {said}; check host and port, and that it is running"
                ),
            ),
        };
        BackendError::new(kind, what)
    }
}

fn all_failed(mut errors: Vec<BackendError>) -> BackendError {
    if errors.is_empty() {
        let what = "no connection is opened: this tokio runtime is shutting down";
        return BackendError::new(BackendErrorKind::Operator, what);
    }
    let unreachable = errors.iter().any(|error| error.kind == BackendErrorKind::Unreachable);
    let first = errors.swap_remove(0);
    if errors.is_empty() {
        return first;
    }
    let kind = if unreachable { BackendErrorKind::Unreachable } else { first.kind };
    let others: String = errors.iter().map(|error| format!("; {error}")).collect();
    BackendError::new(kind, format!("no host of the address can be used: {first}{others}"))
}

/// The options with TLS; `None` if it is off. The files of certificates are read again.
#[cfg(feature = "tls")]
fn encrypted(settings: &Settings, options: OptsBuilder) -> Result<Option<OptsBuilder>, BackendError> {
    use mysql_async::{ClientIdentity, SslOpts};

    if settings.tls == TlsMode::Disabled {
        return Ok(None);
    }
    // The driver takes the process-wide provider, and panics if there is none and several are compiled in.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails if another thread has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    // A file may be half written: then the one that was read first stays in use.
    let files = settings.tls_files.as_ref().map(|files| files.read_again().unwrap_or_else(|_| files.clone()));
    let files = files.as_ref();
    let checks = matches!(settings.tls, TlsMode::VerifyCa | TlsMode::VerifyIdentity);
    let roots = match files.and_then(|files| files.ca.as_ref()) {
        Some(ca) => vec![ca.clone().into_bytes().into()],
        None if checks => {
            let trusted = rustls_native_certs::load_native_certs().certs;
            trusted.into_iter().map(|certificate| certificate.to_vec().into()).collect()
        }
        None => Vec::new(),
    };
    let identity = files.and_then(|files| files.identity.clone()).map(|(certificate, key)| {
        ClientIdentity::new(certificate.into_bytes().into(), key.into_bytes().into())
    });
    let tls = SslOpts::default()
        // The verifier needs some root even if nothing is verified: then it is the driver's own list.
        .with_disable_built_in_roots(checks)
        .with_root_certs(roots)
        .with_danger_accept_invalid_certs(!checks)
        .with_danger_skip_domain_validation(settings.tls == TlsMode::VerifyCa)
        .with_client_identity(identity);
    Ok(Some(options.ssl_opts(tls)))
}

/// Without the feature nothing is encrypted; `settings` refuses addresses that require TLS.
#[cfg(not(feature = "tls"))]
fn encrypted(_settings: &Settings, _options: OptsBuilder) -> Result<Option<OptsBuilder>, BackendError> {
    Ok(None)
}

/// Whole seconds, at least one.
pub(crate) fn seconds(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).max(1) as u64
}
