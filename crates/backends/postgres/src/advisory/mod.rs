//! `lock=session`: PostgreSQL's advisory locks, each on a connection of its own.
//!
//! The server holds the queue and the lock, and ends a hold with its connection. There is no ttl and no
//! table, and only tokens need setup. User documentation: `docs/backends/postgres-session.md`.
//!
//! - A request takes a connection from a pool, on its caller's runtime (`connection`, `acquire`): one
//!   statement tries the lock, draws the token, and shows the owner (`sql`, `note`). If the lock is not free,
//!   the request waits in the server's queue (`wait`). A grant becomes a `Hold` (`hold`).
//! - `session` turns the library's calls into requests. A request's acquire, its release and its loss may run
//!   on different threads at the same time; the request's stage (`request`) determines which of them takes
//!   effect.
//! - A connection returns to the pool only if it certainly holds nothing. In any doubt it is closed, never
//!   reused (DistributedLock issue 147), and its server process is terminated by a statement on the query
//!   connection.
//! - The query connection belongs to the lease thread. On it the monitor (`monitor`) probes all holds of the
//!   client with one query, and listens for breaks; so a caller's runtime that stalls misses neither a loss
//!   nor a break. If a caller's runtime ends, its connections end, and so do the holds on them.
//! - `look` inspects and breaks; `server` checks the server and finds poolers. Only the simple protocol is
//!   used, one message per round trip, so that any pooler in session mode works.

mod acquire;
mod connection;
mod hold;
mod look;
mod monitor;
mod note;
mod request;
mod server;
mod session;
mod sql;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::{LeaseThread, Pool, PoolLimits};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Reach, Spec, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connect::Connector;
use super::keys::{self, AdvisoryKey, PgKey};
use super::settings::{Settings, duration};
use connection::{IDLE_FOR, LockConnector, QueryConnection, unreadable};
use monitor::Monitor;
use note::Contact;
pub(super) use server::{gives_tokens, is_held_and_fences};
use session::AdvisoryConn;
use sql::Common;
pub(super) use sql::draw_in_transaction;

/// Default of `?connections=`: the maximum of connections that hold or wait at once.
const CONNECTIONS: usize = 64;
const CONNECTIONS_MAX: usize = 10_000;
/// Default of `?probe=`: the interval at which holds are probed.
const PROBE: Duration = Duration::from_secs(2);
const PROBES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// Default of `?keepalive=`: the interval at which each connection that holds or waits sends something. Below
/// the idle timeouts that proxies have in practice (HAProxy's examples: 30 s to 1 min; Azure: 4 min).
const KEEPALIVE: Duration = Duration::from_secs(10);

/// State shared by all sessions of a client.
struct Shared {
    key: PgKey,
    keepalive: Duration,
    probe: Duration,
    timeout: Duration,
    connections: usize,
    common: Common,
    fencing: Fencing,
    contact: Contact,
    pool: Pool<LockConnector>,
    queries: Arc<QueryConnection>,
    monitor: Arc<Monitor>,
    lease_thread: LeaseThread,
    /// Stops the monitor.
    _stop: DropGuard,
}

struct Advisory {
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

/// Opens a client. Fails if the server does not answer, or if a pooler in between would break the locks.
pub(super) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::of(url, &["connections", "keepalive", "key", "probe"])?;
    let wanted = "a number of connections from 1 to 10000";
    let connections = url.parameter("connections", wanted)?.unwrap_or(CONNECTIONS);
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(url.bad_part(format!("connections={connections}"), wanted).into());
    }
    let probe = duration(url, "probe", PROBE, PROBES, "a time from `100ms` to `10min`")?;
    let keepalive = duration(url, "keepalive", KEEPALIVE, PROBES, "a time from `100ms` to `10min`")?;
    let key = url.parameter("key", keys::WANTED)?.unwrap_or_default();
    let timeout = settings.timeout;
    let connector = Connector::new(settings)?;
    let (common, fencing) = server::check(&connector).await?;
    let lease_thread = connector.lease_thread().clone();
    let contact = Contact::new()?;
    let (notices_in, notices) = unbounded_channel();
    let queries = Arc::new(QueryConnection::new(connector.clone(), contact.clone(), notices_in));
    queries.connection().await?;
    let monitor = Arc::new(Monitor::new(queries.clone(), probe));
    let lock_connector =
        LockConnector { connector, common, monitor: monitor.clone(), keepalive, taken: Arc::default() };
    let limits = PoolLimits { shared_each: 0, total: connections, idle: IDLE_FOR };
    let pool = Pool::new(lock_connector, limits, &lease_thread);
    let stop = CancellationToken::new();
    let shared = Arc::new(Shared {
        key,
        keepalive,
        probe,
        timeout,
        connections,
        common,
        fencing,
        contact: contact.clone(),
        pool,
        queries,
        monitor: monitor.clone(),
        lease_thread,
        _stop: stop.clone().drop_guard(),
    });
    shared.lease_thread.run(Box::pin(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = monitor.run() => {}
            () = monitor.receive(&contact, notices) => {}
        }
    }));
    Ok(Arc::new(Advisory { capabilities: capabilities(fencing), shared }))
}

fn capabilities(fencing: Fencing) -> Capabilities {
    let tokens = matches!(fencing, Fencing::Tokens { .. });
    Capabilities {
        backend: "postgres",
        reach: Reach::Network,
        fencing,
        ttl: false,
        shared: true,
        permits: false,
        subtree: false,
        multi: false,
        wait: true,
        fair: true,
        keep_closed: false,
        lock_delay: false,
        inspect: true,
        watch: false,
        // A break identifies the hold by its token.
        break_hold: tokens,
        break_now: tokens,
        values: false,
        downgrade: false,
        promises: Promises {
            exclusion: Promise::KeptIf(
                "everybody uses the same primary: a server that takes over knows of no advisory lock",
            ),
            rising_tokens: if tokens {
                Promise::KeptIf(
                    "a server that takes over has every token (synchronous replication), and a restored one is given \
                     `lockkeeper postgres init` before it is used",
                )
            } else {
                Promise::NotKept("without the sequence `lockkeeper.token` there are no tokens")
            },
            fenced_sections: if tokens {
                Promise::KeptIf("the resource has a fence")
            } else {
                Promise::NotKept("without the sequence `lockkeeper.token` there are no tokens")
            },
            client_gives_up_first: Promise::NotKept(
                "the server frees a lock as soon as it thinks the connection dead; its holder finds out by a probe, \
                 later",
            ),
            // There are no keep-alives to confirm.
            confirmed_keep_alives: Promise::Kept,
            first_come_first_served: Promise::KeptIf(
                "a waiter counts as alive until the server finds its connection dead: one that vanished without a word \
                 is granted, and found dead half a minute later",
            ),
            survives_stalls: Promise::NotKept(
                "a server that does not answer a probe in time is taken for one out of reach, and the holds for lost",
            ),
            durable: Promise::NotKept(
                "a hold ends with its connection, so that none outlives a restart of the server",
            ),
            ..Promises::ALL_KEPT
        },
    }
}

impl Shared {
    /// The advisory lock key of a name.
    async fn key_of(&self, name: &LockName) -> Result<AdvisoryKey, BackendError> {
        let Some(expression) = self.key.server_side(name.as_str()) else {
            let refused =
                |error: keys::KeyError| BackendError::new(BackendErrorKind::Refused, error.to_string());
            return self.key.key(name.as_str()).map_err(refused);
        };
        let doing = "make a key of a name";
        let rows = self.queries.ask(&format!("select {expression}"), doing).await?;
        let number = rows.first().and_then(|row| row.get(0)?.parse().ok());
        number.map(AdvisoryKey::Number).ok_or_else(|| unreadable(doing))
    }
}

impl Advisory {
    fn with_shared<T, F>(
        &self,
        work: impl FnOnce(Arc<Shared>) -> F,
    ) -> BoxFuture<'static, Result<T, BackendError>>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
        T: Send + 'static,
    {
        Box::pin(work(self.shared.clone()))
    }
}

impl Backend for Advisory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.shared.lease_thread.clone())
    }

    fn session(&self, _spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(AdvisoryConn::new(self.shared.clone(), label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'static, Result<LockInfo, BackendError>> {
        self.with_shared(|shared| async move { look::inspect(&shared, name).await })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'static, Result<Vec<LockInfo>, BackendError>> {
        self.with_shared(|shared| async move { look::list(&shared, prefix).await })
    }

    fn check_token(
        &self,
        name: LockName,
        token: Token,
    ) -> BoxFuture<'static, Result<TokenStatus, BackendError>> {
        self.with_shared(move |shared| async move { look::check_token(&shared, name, token.get()).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'static, Result<Broken, BackendError>> {
        self.with_shared(|shared| async move { look::break_hold(&shared, order).await })
    }

    fn findings(&self) -> BoxFuture<'static, Result<Vec<Finding>, BackendError>> {
        self.with_shared(|shared| async move { server::findings(&shared).await })
    }
}
