//! `lock=row`: a hold is a row with a lease, which expires by the database's clock unless it is renewed.
//!
//! Reading order: `schema.sql`, [`sql`] (the statements), [`store`] (entries, for `leased`), [`sweep`] (rows
//! of no more use), [`shedlock`] (the same over the table of `ShedLock`).

pub(crate) mod shedlock;
mod sql;
mod store;
mod sweep;

use std::sync::Arc;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Spec, Url,
};
use lockkeeper_core::{LockName, Rejection, Token, TokenStatus, limits};
use mysql_async::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::store::RowStore;
use crate::IO;
use crate::answer::{StatementFailure, explained};
use crate::connect::MySqlConnector;
use crate::findings;
use crate::lane::{CallLane, SERVER_IDLE_S, column};
use crate::settings::{Settings, connections};

/// The tables of lease rows. They are made at connect if they are missing and the user may make them.
pub const SCHEMA_SQL: &str = include_str!("schema.sql");

const CONNECTIONS: usize = 8;
const CONNECTIONS_MOST: usize = 1000;
/// Connections for renewals, in addition.
const RENEWALS: usize = 2;
/// Maximum number of waiters that `inspect` lists for each lock.
const WAITERS_SHOWN: usize = 100;

static CAPABILITIES: Capabilities = Capabilities {
    ttl: true,
    wait: true,
    fair: true,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    break_hold: true,
    break_now: true,
    promises: Promises {
        exclusion: Promise::KeptIf(
            "no replica takes over that lacks the last commits, or whose clock is ahead; in a Galera cluster, the clocks \
             of the nodes agree",
        ),
        rising_tokens: Promise::KeptIf(
            "the server's clock is not set back before a lock's row is deleted, a backup is restored or a replica takes \
             over",
        ),
        fenced_sections: Promise::KeptIf("the resource has a fence"),
        client_gives_up_first: Promise::KeptIf(
            "the server's clock is not stepped forward, also not by a fail-over to a replica whose clock is ahead",
        ),
        confirmed_keep_alives: Promise::KeptIf("no replica takes over that lacks the last commits"),
        harmless_retries: Promise::KeptIf("all clients of a Galera cluster write through one node"),
        first_come_first_served: Promise::KeptIf("all clients of a Galera cluster write through one node"),
        survives_stalls: Promise::NotKept("holds and waits expire while the database stands still"),
        durable: Promise::KeptIf(
            "`innodb_flush_log_at_trx_commit` is 1, `sync_binlog` is 1 where a binary log is written, and a replica that \
             takes over has the last commits",
        ),
        ..Promises::ALL_KEPT
    },
    ..Capabilities::minimal(
        "mysql",
        Fencing::Tokens { source: "the lock's row, by the rule max(last + 1, µs of the server's clock)" },
    )
};

/// The lease-row backend.
struct RowBackend {
    store: Arc<RowStore>,
    wakes: Wakes,
    lease_thread: LeaseThread,
    /// Ends the sweeps.
    _stop: DropGuard,
}

/// Connects to `mysql://…?lock=row&connections=N`.
///
/// # Errors
/// A bad address; an unreachable or read-only server; missing tables that this user may not make.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::of(url, &["connections"])?;
    let most = connections(url, CONNECTIONS, CONNECTIONS_MOST)?;
    let limit = settings.timeout;
    let connector = MySqlConnector::new(settings, SERVER_IDLE_S);
    let lease_thread = IO.get("lockkeeper-mysql")?;
    let lane = |most| CallLane::new(connector.clone(), most, &lease_thread);
    let store = Arc::new(RowStore { calls: lane(most), renewals: lane(RENEWALS), limit });
    store.calls.open().await?;
    make_tables(&store).await?;
    let stop = CancellationToken::new();
    lease_thread.run(Box::pin(sweep::run(store.clone(), stop.clone())));
    Ok(Arc::new(RowBackend { store, wakes: Wakes::default(), lease_thread, _stop: stop.drop_guard() }))
}

/// Makes the tables unless they are there.
async fn make_tables(store: &RowStore) -> Result<(), BackendError> {
    const DOING: &str = "read the tables of locks";
    let params: Vec<Value> = vec!["".into(), "".into()];
    let mut call = store.calls.call(store.limit).await.map_err(|failure| explained(failure, DOING))?;
    let Err(missing) = store::run(&mut call, DOING, sql::ENDED, params).await else { return Ok(()) };
    let StatementFailure::Refused(missing) = missing else { return Err(explained(missing, DOING)) };
    if missing.kind != BackendErrorKind::Operator {
        return Err(missing);
    }
    for statement in SCHEMA_SQL.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let made = call.run("make the tables of locks", statement, Vec::new()).await;
        made.map_err(|failure| {
            let why = explained(failure, "make the tables of locks");
            let what = format!("{why}; let a user who may create tables run\n{SCHEMA_SQL}");
            BackendError::new(why.kind, what)
        })?;
    }
    Ok(())
}

impl Backend for RowBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move {
            let found = look(&self.store, Some(&name), false).await?;
            Ok(found.into_iter().next().unwrap_or_else(|| LockInfo::free(name)))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move { look(&self.store, prefix.as_ref(), true).await })
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move {
            let current = current(&self.store, &name).await?;
            let offered = as_bigint(token);
            let issued = match &current {
                Some(current) => offered <= current.token,
                None => {
                    let floor = self.store.ask("check a token", sql::FLOOR, Vec::new()).await?;
                    let floor: i64 = floor.rows.first().map_or(Ok(0), |row| column(row, 0))?;
                    offered <= floor
                }
            };
            let live = current.and_then(LastHold::live);
            Ok(match live {
                Some(live) if live == token => TokenStatus::Current,
                live if issued => TokenStatus::NotCurrent { live: live.into_iter().collect() },
                _ => TokenStatus::NeverIssued,
            })
        })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<'_, Result<Broken, BackendError>> {
        Box::pin(async move {
            for (field, said) in [("reason", &order.reason), ("by", &order.by)] {
                if said.len() > limits::LABEL_BYTES_MAX {
                    return Err(Rejection::TextTooLong { field, bytes: said.len() }.into());
                }
            }
            let token = as_bigint(order.token);
            let params: Vec<Value> = vec![
                order.reason.as_bytes().to_vec().into(),
                order.by.as_bytes().to_vec().into(),
                order.name.as_str().into(),
                token.into(),
            ];
            let statement = if order.now { sql::BREAK_NOW } else { sql::REVOKE };
            if self.store.ask("break a hold", statement, params).await?.matched > 0 {
                let (name, by) = (order.name.as_str(), &order.by);
                tracing::warn!(name, token, by, reason = order.reason, "a hold was broken");
                return Ok(Broken::Done);
            }
            let current = current(&self.store, &order.name).await?;
            Ok(match current {
                Some(current) if current.is_closed && current.token == token => Broken::StillClosed,
                current => {
                    Broken::NotCurrent { live: current.and_then(LastHold::live).into_iter().collect() }
                }
            })
        })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(findings::of_rows(&self.store.calls, self.store.limit))
    }
}

/// The holds and the waiters of one name, or also of those below it, or of all.
async fn look(
    store: &RowStore,
    prefix: Option<&LockName>,
    below: bool,
) -> Result<Vec<LockInfo>, BackendError> {
    let mut locks = Vec::new();
    let (statement, params) = sql::holds(prefix, below);
    sql::add_holds(&mut locks, &store.ask("look at locks", &statement, params).await?.rows)?;
    let (statement, params) = sql::waiters(prefix, below);
    let waiters = store.ask("look at waiters", &statement, params).await?;
    sql::add_waiters(&mut locks, &waiters.rows, WAITERS_SHOWN)?;
    Ok(locks)
}

/// A lock's last hold.
struct LastHold {
    token: i64,
    is_live: bool,
    is_closed: bool,
}

impl LastHold {
    fn live(self) -> Option<Token> {
        sql::token(self.token).filter(|_| self.is_live)
    }
}

async fn current(store: &RowStore, name: &LockName) -> Result<Option<LastHold>, BackendError> {
    let found = store.ask("look at a lock", sql::CURRENT, vec![name.as_str().into()]).await?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    let (held, closed, revoked): (bool, bool, bool) = (column(row, 1)?, column(row, 2)?, column(row, 3)?);
    Ok(Some(LastHold { token: column(row, 0)?, is_live: held && !revoked, is_closed: closed && !held }))
}

fn as_bigint(token: Token) -> i64 {
    // Lossless: tokens are below 2^53.
    token.get() as i64
}
