//! `lock=session`: locks of a connection by `GET_LOCK`, each on a connection of its own.
//!
//! The server ends a hold with its connection. There is no ttl. Without the table of `schema.sql` there are
//! no tokens, and nobody is shown.
//!
//! | file | content |
//! | --- | --- |
//! | [`keys`] | the names of `GET_LOCK` |
//! | [`held`] | one connection that holds or waits, and its statements |
//! | [`request`] | one acquire and its hold: a task of the lease thread |
//! | [`conn`] | turns the library's calls into messages to these tasks |
//! | [`inspect`] | who holds and waits; breaks |
//!
//! All connections belong to the lease thread: holds outlive their caller's runtime, and are probed while
//! that stalls. The server is set to close a connection on which no probe arrives ([`server_idle_s`]): so the
//! lock of a machine that has vanished is freed in that time, and not by the server's TCP after hours.

mod conn;
mod held;
mod inspect;
mod keys;
mod request;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::{
    Backend, BackendError, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError, Fencing, Finding,
    LockInfo, Promise, Promises, Push, Spec, Unsupported, Url,
};
use lockkeeper_core::{LockName, Token, TokenStatus};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use self::conn::SessionConn;
use self::held::Idle;
use self::keys::KeyRule;
use crate::IO;
use crate::answer::{NO_TABLE, StatementFailure, explained};
use crate::connect::{MySqlConnector, seconds};
use crate::findings;
use crate::lane::CallLane;
use crate::settings::{Settings, connections, duration};

/// The table for tokens, and for who holds. Made by an operator, where tokens are wanted.
pub const SCHEMA_SQL: &str = include_str!("schema.sql");

/// Default of `connections=`: the most that hold or wait at once.
const CONNECTIONS: usize = 64;
const CONNECTIONS_MOST: usize = 10_000;
/// Connections that ask questions, in addition.
const QUERIES: usize = 2;
/// Default of `probe=`: the interval at which holds are probed, and its bounds in ms.
const PROBE: Duration = Duration::from_secs(2);
const PROBES: (u64, u64) = (100, 600_000);

/// What all sessions of a client share.
struct SessionShared {
    key: KeyRule,
    probe: Duration,
    timeout: Duration,
    /// Whether the table is there.
    has_table: bool,
    connector: MySqlConnector,
    /// The connections that may still hold or wait.
    room: Arc<Semaphore>,
    connections: usize,
    idle: Mutex<Vec<Idle>>,
    queries: CallLane,
    lease_thread: LeaseThread,
}

struct SessionBackend {
    capabilities: Capabilities,
    shared: Arc<SessionShared>,
}

/// After this time without a probe the server closes a connection, in seconds.
fn server_idle_s(probe: Duration) -> u64 {
    seconds(probe * 5).max(30)
}

/// Connects to `mysql://…?lock=session`.
///
/// # Errors
/// A bad address; an unreachable or read-only server; a Galera cluster; a proxy in between.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::of(url, &["connections", "key", "probe"])?;
    let connections = connections(url, CONNECTIONS, CONNECTIONS_MOST)?;
    let probe = duration(url, "probe", PROBE, PROBES, "a time from `100ms` to `10min`")?;
    let key: KeyRule = url.parameter("key", keys::WANTED)?.unwrap_or_default();
    let timeout = settings.timeout;
    let connector = MySqlConnector::new(settings, server_idle_s(probe));
    let lease_thread = IO.get("lockkeeper-mysql")?;
    let first = held::open(&connector).await?;
    if connector.server().is_galera {
        return Err(Unsupported {
            backend: "mysql",
            what: "hold a lock of a connection in a Galera cluster",
            why: "its nodes don't tell each other of GET_LOCK, and MariaDB refuses it there",
            instead: "use `lock=row`, with one node in the addresses of all clients",
        }
        .into());
    }
    drop(first);
    let queries = CallLane::new(connector.clone(), QUERIES, &lease_thread);
    let has_table = has_table(&queries, timeout).await?;
    let shared = Arc::new(SessionShared {
        key,
        probe,
        timeout,
        has_table,
        connector,
        room: Arc::new(Semaphore::new(connections)),
        connections,
        idle: Mutex::default(),
        queries,
        lease_thread,
    });
    Ok(Arc::new(SessionBackend { capabilities: capabilities(has_table), shared }))
}

async fn has_table(queries: &CallLane, limit: Duration) -> Result<bool, BackendError> {
    const DOING: &str = "look for the table of tokens";
    let mut call = queries.call(limit).await.map_err(|failure| explained(failure, DOING))?;
    match call.run(DOING, "SELECT token FROM lockkeeper_session WHERE name = ''", Vec::new()).await {
        Ok(_) => Ok(true),
        Err(StatementFailure::Refused(error)) if error.message.contains(&format!("(error {NO_TABLE})")) => {
            Ok(false)
        }
        Err(failure) => Err(explained(failure, DOING)),
    }
}

const NO_TOKENS: Promise = Promise::NotKept("without the table `lockkeeper_session` there are no tokens");

fn capabilities(has_table: bool) -> Capabilities {
    let fencing = match has_table {
        true => Fencing::Tokens {
            source: "the table `lockkeeper_session`, by the rule max(last + 1, µs of the server's clock)",
        },
        false => Fencing::None {
            why: "GET_LOCK gives none, and the table `lockkeeper_session` is not there",
            instead: "make the table (docs/backends/mysql-session.md), or use `lock=row`",
        },
    };
    Capabilities {
        wait: true,
        inspect: has_table,
        // A break identifies the hold by its token.
        break_hold: has_table,
        break_now: has_table,
        promises: Promises {
            exclusion: Promise::KeptIf(
                "everybody uses the same primary: a server that takes over knows of no lock of a connection",
            ),
            rising_tokens: if has_table {
                Promise::KeptIf(
                    "the server's clock is not set back before a backup is restored or a replica takes over",
                )
            } else {
                NO_TOKENS
            },
            fenced_sections: if has_table { Promise::KeptIf("the resource has a fence") } else { NO_TOKENS },
            client_gives_up_first: Promise::NotKept(
                "the server frees a lock with its connection; the holder finds out by a probe, later",
            ),
            first_come_first_served: Promise::NotKept("the server promises no order of waiters"),
            survives_stalls: Promise::NotKept(
                "a server that does not answer a probe in time is taken for one out of reach, and the hold for lost",
            ),
            durable: Promise::NotKept(
                "a hold ends with its connection, so that none outlives a restart of the server",
            ),
            ..Promises::ALL_KEPT
        },
        ..Capabilities::minimal("mysql", fencing)
    }
}

impl Backend for SessionBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.shared.lease_thread.clone())
    }

    fn session(&self, _spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(SessionConn::new(self.shared.clone(), label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move {
            if !self.shared.has_table {
                return Err(self.capabilities.lacks_tokens("show who holds and waits").into());
            }
            let mut found = inspect::look(&self.shared, Some(&name), false).await?;
            Ok(found.pop().unwrap_or_else(|| LockInfo::free(name)))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            if !self.shared.has_table {
                return Err(self.capabilities.lacks_tokens("list locks").into());
            }
            inspect::look(&self.shared, prefix.as_ref(), true).await
        })
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move { inspect::check_token(&self.shared, &name, token).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move { inspect::break_hold(&self.shared, &order).await })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(async move {
            let settings = self.shared.ask("read the settings", findings::SETTINGS, Vec::new()).await?;
            Ok(findings::of_sessions(&settings.rows, self.shared.has_table, server_idle_s(self.shared.probe)))
        })
    }
}
