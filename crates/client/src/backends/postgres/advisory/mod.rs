//! `lock=session` and `lock=transaction`: PostgreSQL's advisory locks, each on its own connection.
//!
//! The server holds the queue and the lock, and ends a hold with its connection. There is no ttl and no table, and only
//! tokens need setup. User documentation: `docs/backends/postgres-session.md` and `postgres-transaction.md`. Reading
//! order: `sql` (statements), `note` (what the server's views show), `pool` (connections), `keeper` (one request from
//! its first try to its end), `wait` and `hold` (its long-lived parts), `draws` (tokens of transactions), `request`
//! (which task polls a keeper), `session` (the calls of the library), `look` (inspection and breaks), `server`
//! (properties of the server).
//!
//! Two rules:
//! - Through a pooler only the simple protocol is used, one message per round trip, so that any pooler works.
//! - A connection in a doubtful state is closed, never reused (madelson #147). If the network was cut, its orphaned
//!   server process is searched for and terminated.

mod draws;
mod hold;
mod keeper;
mod look;
mod note;
mod pool;
mod request;
mod server;
mod session;
mod sql;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockName, TokenStatus};
use tokio::sync::mpsc::UnboundedSender;

use super::connect::Connector;
use super::keys::{self, AdvisoryKey, PgKey};
use super::settings::{LockKind, Settings, duration};
use crate::backend::{Backend, BoxFuture, BreakOrder, Broken, Conn};
use crate::capabilities::{Capabilities, Fencing, Promise, Reach};
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::info::{Finding, LockInfo};
use crate::io::LeaseThread;
use crate::machine::{Push, Spec};
use crate::url::Url;
use draws::Draws;
use pool::{Desk, Pool};
pub(super) use server::{gives_tokens, is_held_and_fences};
use session::AdvisoryConn;
pub(super) use sql::draw_in_transaction;
use sql::{Common, Scope};

/// Maximum connections that hold or wait at once (`?connections=`).
const CONNECTIONS: usize = 64;
const CONNECTIONS_MAX: usize = 10_000;
/// Probe interval of a connection that holds (`?probe=`).
const PROBE: Duration = Duration::from_secs(2);
const PROBES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// State shared by all sessions of a client.
struct Shared {
    key: PgKey,
    probe: Duration,
    connections: usize,
    common: Common,
    fencing: Fencing,
    pool: Pool,
    desk: Desk,
    draws: Draws,
    worker: LeaseThread,
}

struct Advisory {
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

/// Opens a client, if the server answers and no pooler in between breaks the locks.
pub(super) async fn connect(url: &Url, kind: LockKind) -> Result<Arc<dyn Backend>, ConnectError> {
    let scope = if kind == LockKind::Session { Scope::Session } else { Scope::Transaction };
    let settings = Settings::of(url, &["connections", "key", "probe"])?;
    let wanted = "a number of connections from 1 to 10000";
    let connections = url.parameter("connections", wanted)?.unwrap_or(CONNECTIONS);
    if !(1..=CONNECTIONS_MAX).contains(&connections) {
        return Err(url.bad_part(format!("connections={connections}"), wanted).into());
    }
    let probe = duration(url, "probe", PROBE, PROBES, "a time from `100ms` to `10min`")?;
    let key = url.parameter("key", keys::WANTED)?.unwrap_or_default();
    let connector = Connector::new(settings)?;
    let desk = Desk::new(connector.clone());
    let (common, fencing) = server::facts(&desk, scope).await?;
    server::try_the_way(&connector, &desk, scope).await?;
    let worker = connector.worker().clone();
    let draws = Draws::new(connector.clone(), common.knows_log);
    let pool = Pool::new(connector, common, connections);
    let shared = Arc::new(Shared { key, probe, connections, common, fencing, pool, desk, draws, worker });
    Ok(Arc::new(Advisory { capabilities: capabilities(scope, fencing), shared }))
}

fn capabilities(scope: Scope, fencing: Fencing) -> Capabilities {
    let tokens = matches!(fencing, Fencing::Tokens { .. });
    let in_session = scope == Scope::Session;
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
        // A break identifies the hold by its token.
        break_hold: tokens && in_session,
        break_now: tokens,
        promises: [
            Promise::KeptIf(
                "everybody uses the same primary: a server that takes over knows of no advisory lock",
            ),
            if tokens {
                Promise::KeptIf(
                    "a server that takes over has every token (synchronous replication), and a restored one is given \
                     `lockkeeper postgres init` before it is used",
                )
            } else {
                Promise::NotKept("without the sequence `lockkeeper.token` there are no tokens")
            },
            if tokens {
                Promise::KeptIf("the resource has a fence")
            } else {
                Promise::NotKept("without the sequence `lockkeeper.token` there are no tokens")
            },
            Promise::Kept,
            Promise::NotKept(
                "the server frees a lock as soon as it thinks the connection dead; its holder finds out by a probe, \
                 later",
            ),
            // There are no keep-alives to confirm.
            Promise::Kept,
            Promise::Kept,
            Promise::KeptIf(
                "a waiter counts as alive until the server finds its connection dead: one that vanished without a word \
                 is granted, and found dead half a minute later",
            ),
            Promise::NotKept(
                "a server that does not answer a probe in time is taken for one out of reach, and the holds for lost",
            ),
            Promise::NotKept(
                "a hold ends with its connection, so that none outlives a restart of the server",
            ),
            Promise::Kept,
            Promise::Kept,
        ],
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
        let rows = self.desk.ask(&format!("select {expression}"), doing).await?;
        let number = rows.first().and_then(|row| row.get(0)?.parse().ok());
        number.map(AdvisoryKey::Number).ok_or_else(|| pool::unreadable(doing))
    }
}

impl Advisory {
    fn with_shared<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> BoxFuture<Result<T, BackendError>>
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

    fn worker(&self) -> Option<LeaseThread> {
        Some(self.shared.worker.clone())
    }

    fn session(&self, _spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        Arc::new(AdvisoryConn::new(self.shared.clone(), label, pushes))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        self.with_shared(|shared| async move { look::inspect(&shared, name).await })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>> {
        self.with_shared(|shared| async move { look::list(&shared, prefix).await })
    }

    fn check_token(&self, name: LockName, token: u64) -> BoxFuture<Result<TokenStatus, BackendError>> {
        if let Fencing::None { why, instead } = self.capabilities.fencing {
            let what = "check tokens";
            let error = crate::error::Unsupported { backend: "postgres", what, why, instead };
            return Box::pin(async move { Err(error.into()) });
        }
        self.with_shared(move |shared| async move { look::check_token(&shared, name, token).await })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>> {
        let can = if order.now { self.capabilities.break_now } else { self.capabilities.break_hold };
        if !can {
            let error = self.cannot_break();
            return Box::pin(async move { Err(error.into()) });
        }
        self.with_shared(|shared| async move { look::break_hold(&shared, order).await })
    }

    fn findings(&self) -> BoxFuture<Result<Vec<Finding>, BackendError>> {
        self.with_shared(|shared| async move { server::findings(&shared).await })
    }
}

impl Advisory {
    fn cannot_break(&self) -> crate::error::Unsupported {
        let (what, why, instead) = match self.capabilities.fencing {
            Fencing::None { why, instead } => ("break a hold", why, instead),
            Fencing::Tokens { .. } => (
                "ask a holder to stop",
                "a transaction that holds can't listen",
                "break it with `now`, which ends its connection, or use `lock=session` or `lock=row`",
            ),
        };
        crate::error::Unsupported { backend: "postgres", what, why, instead }
    }
}
