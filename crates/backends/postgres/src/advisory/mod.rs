//! `lock=session`: PostgreSQL's advisory locks, each on a connection of its own.
//!
//! The server holds the queue and the lock, and ends a hold with its connection. There is no ttl and no
//! table, and only tokens need setup. User documentation: `docs/backends/postgres-session.md`.
//!
//! Each file uses only files above it:
//!
//! | file | content |
//! | --- | --- |
//! | `note`, `sql` | what connections show to others, as comments and names; the statements and their rows |
//! | `connection` | the connections for locks and the query connection; they know of no request |
//! | `request` | one acquire and its hold: the state that its calls share |
//! | `monitor` | detects losses, receives breaks |
//! | `shared` | what all sessions of a client share |
//! | `server`, `inspect` | checks of the server and its settings; inspection and breaks |
//! | `hold`, `wait`, `acquire` | a grant and what becomes of it; a place in the server's queue; one try |
//! | `session` | turns the library's calls into requests |
//!
//! - A request takes a connection from a pool, on its caller's runtime (`connection`, `acquire`): one
//!   statement tries the lock, draws the token, and shows the owner (`sql`, `note`). If the lock is not
//!   free, the request waits in the server's queue (`wait`). A grant becomes a `Hold` (`hold`).
//! - A request's acquire, its release and its loss may run on different threads at the same time; the
//!   request's stage (`request`) determines which of them takes effect.
//! - A connection returns to the pool only if it certainly holds nothing. In any doubt it is closed, never
//!   reused (DistributedLock issue 147), and its server process is terminated by a statement on the query
//!   connection.
//! - The query connection belongs to the lease thread. On it the monitor (`monitor`) probes all holds of
//!   the client with one query, and listens for breaks; so a caller's runtime that stalls misses neither a
//!   loss nor a break. If a caller's runtime ends, its connections end, and so do the holds on them.
//! - Only the simple protocol is used, one message per round trip, so that any pooler in session mode
//!   works.

mod acquire;
mod connection;
mod hold;
mod inspect;
mod monitor;
mod note;
mod request;
mod server;
mod session;
mod shared;
mod sql;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::{LeaseThread, Pool, PoolLimits};
use lockkeeper_backend::{
    Backend, BackendError, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError, Fencing, Finding,
    LockInfo, Promise, Promises, Push, Reach, Spec, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use super::connect::Connector;
use super::keys;
use super::settings::{Settings, duration};
use connection::{IDLE_FOR, LockConnector, QueryConnection};
use monitor::Monitor;
use note::Contact;
pub(super) use server::{gives_tokens, is_held_and_fences};
use session::AdvisoryConn;
use shared::Shared;
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
    let on_end = {
        let monitor = monitor.clone();
        Arc::new(move |id: &str, why: &str| monitor.connection_ended(id, why))
    };
    let lock_connector = LockConnector { connector, common, on_end, keepalive, taken: Arc::default() };
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
        _stop: stop.clone().drop_guard(),
    });
    lease_thread.run(Box::pin(async move {
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
        queue_limit: false,
        keep_closed: false,
        lock_delay: false,
        inspect: true,
        watch: false,
        // A break identifies the hold by its token.
        break_hold: tokens,
        break_now: tokens,
        values: false,
        downgrade: false,
        cached: false,
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

impl Backend for Advisory {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.shared.queries.lease_thread().clone())
    }

    fn session(&self, _spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(AdvisoryConn::new(self.shared.clone(), label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(inspect::inspect(&self.shared, name))
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(inspect::list(&self.shared, prefix))
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(inspect::check_token(&self.shared, name, token.get()))
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(inspect::break_hold(&self.shared, order))
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(server::findings(&self.shared))
    }
}
