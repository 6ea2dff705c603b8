//! `lock=row`: a hold is a row with a lease, which expires by the database's clock unless it is renewed.
//!
//! The functions in `row.sql` make all state transitions. Each call is one statement and one transaction, so lease rows
//! work through transaction poolers, and a client that stops half-way leaves nothing locked. Reading order: `row.sql`,
//! [`calls`] (bindings to its functions), [`pool`] (connections), [`store`] (entries, for `backends/leased`),
//! `short.sql` and [`short`] (the fast path, which bypasses the functions), [`listen`] (wake-ups), `operate.sql` (for
//! operators).

mod calls;
mod findings;
mod listen;
mod pool;
mod short;
mod store;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::{LockName, Rejection, Token, TokenStatus, limits};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

use self::calls::{
    BREAK, CHECK_TOKEN, LOOK, SETTINGS, Statement, VERSION_OF, broken, column, looked, tokens, unused,
};
use self::listen::{Hearing, Listener};
use self::pool::{Params, Pool};
use self::short::ShortWay;
use self::store::{RowStore, no_schema, text};
use super::connect::Connector;
use super::settings::Settings;
use crate::backend::{Backend, BoxFuture, BreakOrder, Broken, Conn};
use crate::backends::leased::{LeasedConn, Wakes};
use crate::capabilities::{Capabilities, Fencing, Promise, Promises, Reach};
use crate::error::{BackendError, BackendErrorKind, ConnectError};
use crate::info::{Finding, LockInfo};
use crate::io::LeaseThread;
use crate::machine::{Push, Spec};
use crate::url::Url;

/// DDL of the tables and functions, run by `lockkeeper postgres init`. Idempotent.
pub(super) const SCHEMA: &str =
    concat!(include_str!("row.sql"), "\n", include_str!("short.sql"), "\n", include_str!("operate.sql"));

/// The version of `row.sql` that this program needs.
const VERSION: i32 = 1;
const CONNECTIONS: usize = 8;
const CONNECTIONS_MOST: usize = 1000;
/// Maximum number of waiters that `inspect` lists per lock.
const WAITERS_SHOWN: i32 = 100;

/// Functions needed to lock, to inspect, and to break holds.
const TO_LOCK: &[&str] = &[
    "row_acquire(text, text, boolean, integer, bigint, bigint, boolean, text, bytea, text)",
    "row_renew(text[], text[], bigint[])",
    "row_finish(text, text, bigint, bigint, boolean)",
    "row_clean(integer, boolean)",
];
const TO_LOOK: &[&str] =
    &["row_version()", "row_look(text, boolean, integer)", "row_check_token(text, bigint)"];
const TO_BREAK: &[&str] = &["row_break(text, bigint, text, text, boolean)"];

/// Privileges for the fast path, which replaces most function calls of a client that locks. Without them the client
/// calls the functions.
const BY_THE_SHORT_WAY: [(&str, &str); 3] =
    [("UPDATE", "row_take"), ("SELECT (token)", "row_take"), ("UPDATE", "row_give")];

/// The grants that `role` (already quoted) needs to use lease rows: on the functions and on the fast-path views, but
/// not on the tables.
pub(super) fn grants(role: &str) -> String {
    let functions = [TO_LOCK, TO_LOOK, TO_BREAK].concat();
    let grants = functions
        .iter()
        .map(|function| format!("GRANT EXECUTE ON FUNCTION lockkeeper.{function} TO {role};\n"));
    let mut sql = format!("GRANT USAGE ON SCHEMA lockkeeper TO {role};\n{}", grants.collect::<String>());
    for (right, view) in BY_THE_SHORT_WAY {
        sql += &format!("GRANT {right} ON lockkeeper.{view} TO {role};\n");
    }
    sql
}

static CAPABILITIES: Capabilities = Capabilities {
    backend: "postgres",
    reach: Reach::Network,
    fencing: Fencing::Tokens {
        source: "the lock's row, by the rule max(last + 1, µs of the database's clock)",
    },
    ttl: true,
    shared: false,
    permits: true,
    subtree: false,
    multi: false,
    wait: true,
    fair: true,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    break_hold: true,
    break_now: true,
    promises: Promises {
        exclusion: Promise::KeptIf(
            "no standby takes over that lacks the last commits, or whose clock is ahead",
        ),
        rising_tokens: Promise::KeptIf(
            "the database's clock is not set back before a lock's row is deleted or a backup is restored",
        ),
        fenced_sections: Promise::KeptIf("the resource has a fence"),
        client_gives_up_first: Promise::KeptIf(
            "the database's clock is not stepped forward, also not by a fail-over to a standby whose clock is ahead",
        ),
        confirmed_keep_alives: Promise::KeptIf("no standby takes over that lacks the last commits"),
        survives_stalls: Promise::NotKept("holds and waits expire while the database stands still"),
        durable: Promise::KeptIf(
            "`fsync` and `synchronous_commit` are on, and a standby that takes over has the last commits",
        ),
        ..Promises::ALL_KEPT
    },
};

/// The lease-row backend.
struct RowBackend {
    store: Arc<RowStore>,
    wakes: Wakes,
    worker: LeaseThread,
    /// Time limit for inspect, list, token check, break and findings.
    limit: Duration,
    /// The listener task; taken when the first session or `findings` starts it.
    listener: Mutex<Option<(Listener, CancellationToken)>>,
}

/// Connects to `postgres://…?lock=row&connections=N`.
///
/// # Errors
/// A bad address; an unreachable database; a missing or outdated schema; or a user without the privilege to use it.
pub(super) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    const WANTED: &str = "a number of connections from 1 to 1000";
    let settings = Settings::of(url, &["connections"])?;
    let most = url.parameter("connections", WANTED)?.unwrap_or(CONNECTIONS);
    if !(1..=CONNECTIONS_MOST).contains(&most) {
        return Err(url.bad_part(format!("connections={most}"), WANTED).into());
    }
    let limit = settings.timeout;
    let connector = Connector::new(settings)?;
    let worker = connector.worker().clone();
    let direct = Arc::new(AtomicBool::new(false));
    let pool = Pool::new(connector.clone(), most, direct.clone());
    let init = format!("lockkeeper postgres init {url}");
    pool.open().await?;
    check(&pool, limit, &init).await?;

    let wake = format!("{:016x}{:016x}", random(), random());
    let channel = format!("lockkeeper_{wake}");
    let (notices, heard) = unbounded_channel();
    let own = Pool::listening(connector, channel.clone(), notices, direct.clone());
    let wakes = Wakes::default();
    let (hearing, hears) = watch::channel(Hearing::Unknown);
    let stop = CancellationToken::new();
    let listener = Listener {
        pool: pool.clone(),
        own: own.clone(),
        channel,
        notices: heard,
        wakes: wakes.clone(),
        hearing,
        direct,
    };
    let store = RowStore {
        pool,
        own,
        wake,
        hearing: hears,
        short: ShortWay::default(),
        init,
        _listening: stop.clone().drop_guard(),
    };
    Ok(Arc::new(RowBackend {
        store: Arc::new(store),
        wakes,
        worker,
        limit,
        listener: Mutex::new(Some((listener, stop))),
    }))
}

/// Checks that the schema exists, has the right version and is usable by this user, and that transactions begin as
/// `read committed`.
async fn check(pool: &Pool, limit: Duration, init: &str) -> Result<(), BackendError> {
    let rows = match pool.call(limit, &VERSION_OF, &[]).await {
        Ok(rows) => rows,
        Err(failure) => {
            return Err(match failure.code() {
                Some(&SqlState::UNDEFINED_FUNCTION | &SqlState::INVALID_SCHEMA_NAME) => no_schema(init),
                Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                    let what = format!(
                        "this user may not use the schema `lockkeeper`: let its owner run `{init} --role NAME` with \
                         the user, or one of its roles, as NAME"
                    );
                    BackendError::new(BackendErrorKind::Operator, what)
                }
                _ => failure.explained("use lease rows"),
            });
        }
    };
    let version: i32 = column(rows.first(), 0)?;
    if version < VERSION {
        let what = format!(
            "the schema for lease rows has version {version}, this program needs {VERSION}: let its owner run \
             `{init}`; programs that use it may go on meanwhile"
        );
        return Err(BackendError::new(BackendErrorKind::Operator, what));
    }
    let isolation: String = column(rows.first(), 1)?;
    if isolation != "read committed" {
        let what = format!(
            "transactions of this user begin as `{isolation}`, lease rows need `read committed`: ALTER ROLE … SET \
             default_transaction_isolation = 'read committed'"
        );
        return Err(BackendError::new(BackendErrorKind::Operator, what));
    }
    Ok(())
}

/// 64 random bits, not for secrets.
fn random() -> u64 {
    // Without randomness waiters poll in step, which costs only speed.
    getrandom::u64().unwrap_or_default()
}

impl RowBackend {
    /// Starts the listener task, if it is not running yet.
    fn listen(&self) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((listener, stop)) = listener {
            self.worker.run(Box::pin(listener.run(stop)));
        }
    }

    /// Runs a read or a break once, without retry: its result is useless after the limit.
    async fn ask(
        store: Arc<RowStore>,
        limit: Duration,
        statement: &'static Statement,
        params: Params<'_>,
        doing: &str,
    ) -> Result<Vec<Row>, BackendError> {
        let answered = store.pool.call(limit, statement, params).await;
        answered.map_err(|failure| store.explained(failure, doing))
    }
}

impl Backend for RowBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn worker(&self) -> Option<LeaseThread> {
        Some(self.worker.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        self.listen();
        LeasedConn::new(Arc::new(self.store.clone()), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        let (store, limit) = (self.store.clone(), self.limit);
        Box::pin(async move {
            let params: Params<'_> = &[&name.as_str(), &false, &WAITERS_SHOWN];
            let rows = Self::ask(store, limit, &LOOK, params, "look at a lock").await?;
            Ok(looked(&rows)?.pop().unwrap_or_else(|| unused(name)))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>> {
        let (store, limit) = (self.store.clone(), self.limit);
        Box::pin(async move {
            let prefix = prefix.as_ref().map(LockName::as_str);
            let rows =
                Self::ask(store, limit, &LOOK, &[&prefix, &true, &WAITERS_SHOWN], "list locks").await?;
            looked(&rows)
        })
    }

    fn check_token(&self, name: LockName, token: u64) -> BoxFuture<Result<TokenStatus, BackendError>> {
        let (store, limit) = (self.store.clone(), self.limit);
        Box::pin(async move {
            let Some(token) = Token::new(token) else { return Ok(TokenStatus::NeverIssued) };
            let params: Params<'_> = &[&name.as_str(), &as_bigint(token)];
            let rows = Self::ask(store, limit, &CHECK_TOKEN, params, "check a token").await?;
            let issued: bool = column(rows.first(), 0)?;
            let live = tokens(rows.first(), 1)?;
            Ok(match live.contains(&token) {
                true => TokenStatus::Current,
                false if issued => TokenStatus::NotCurrent { live },
                false => TokenStatus::NeverIssued,
            })
        })
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>> {
        let (store, limit) = (self.store.clone(), self.limit);
        Box::pin(async move {
            for (field, said) in [("reason", &order.reason), ("by", &order.by)] {
                if said.len() > limits::LABEL_BYTES_MAX {
                    return Err(Rejection::TextTooLong { field, bytes: said.len() }.into());
                }
            }
            let (reason, by) = (text(&order.reason), text(&order.by));
            let params: Params<'_> =
                &[&order.name.as_str(), &as_bigint(order.token), &reason, &by, &order.now];
            let rows = Self::ask(store, limit, &BREAK, params, "break a hold").await?;
            broken(&rows)
        })
    }

    fn findings(&self) -> BoxFuture<Result<Vec<Finding>, BackendError>> {
        self.listen();
        let (store, limit) = (self.store.clone(), self.limit);
        Box::pin(async move {
            let rows = Self::ask(store.clone(), limit, &SETTINGS, &[], "read the settings").await?;
            let settings = findings::settings(&rows)?;
            let mut hearing = store.hearing.clone();
            let known = hearing.wait_for(|hearing| *hearing != Hearing::Unknown);
            let heard = tokio::time::timeout(limit, known).await;
            let hearing = heard.ok().and_then(Result::ok).map_or(Hearing::Unknown, |hearing| *hearing);
            Ok(findings::of(&settings, hearing))
        })
    }
}

fn as_bigint(token: Token) -> i64 {
    // Lossless: tokens are below 2^53.
    token.get() as i64
}

#[cfg(test)]
mod tests {
    /// The database encoding need not be UTF-8.
    #[test]
    fn schema_sql_is_ascii() {
        let sql = crate::backends::postgres::schema_sql(Some("app"));
        let odd: Vec<&str> = sql.lines().filter(|line| !line.is_ascii()).collect();
        assert!(odd.is_empty(), "{odd:?}");
    }
}
