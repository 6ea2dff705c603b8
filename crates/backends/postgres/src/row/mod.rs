//! `lock=row`: a hold is a row with a lease, which expires by the database's clock unless it is renewed.
//!
//! The functions in `row.sql` make all state transitions. Each call is one statement and one transaction, so
//! lease rows work through transaction poolers, and a client that stops half-way leaves nothing locked.
//! Reading order: `row.sql`, [`calls`] (bindings to its functions), [`database`] (connections), [`store`]
//! (entries, for `backends/leased`), [`listen`] (wake-ups), `operate.sql` (for operators).

mod calls;
mod database;
mod findings;
mod listen;
mod store;

use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{LeasedConn, Wakes};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BoxFuture, BreakOrder, Broken, Capabilities, Conn, ConnectError,
    Fencing, Finding, LockInfo, Promise, Promises, Push, Reach, Spec, Url,
};
use lockkeeper_core::{LockName, Rejection, Token, TokenStatus, limits};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio_postgres::error::SqlState;

use self::calls::{BREAK, CHECK_TOKEN, INSPECT, SETTINGS, VERSION_OF, broken, column, decode_locks, tokens};
use self::database::{Database, Params};
use self::listen::{Hearing, Listener, Listening};
use self::store::{RowStore, text};
use super::connect::Connector;
use super::settings::Settings;

/// DDL of the tables and functions, run by `lockkeeper postgres init`. Idempotent.
pub(super) const SCHEMA: &str = concat!(include_str!("row.sql"), "\n", include_str!("operate.sql"));

/// The lowest version of `row.sql` with which this program works.
const VERSION: i32 = 1;
const CONNECTIONS: usize = 8;
const CONNECTIONS_MOST: usize = 1000;
/// Maximum number of waiters that `inspect` lists per lock.
const WAITERS_SHOWN: i32 = 100;

/// The functions that the library calls.
const FUNCTIONS: &[&str] = &[
    "row_acquire(text, text, boolean, integer, bigint, bigint, boolean, text, bytea, text)",
    "row_renew(text[], text[], bigint[])",
    "row_finish(text, text, bigint, bigint, boolean)",
    "row_clean(integer, boolean)",
    "row_version()",
    "row_look(text, boolean, integer)",
    "row_check_token(text, bigint)",
    "row_break(text, bigint, text, text, boolean)",
];

/// The grants that `role` (already quoted) needs to use lease rows: on the functions, but not on the tables.
pub(super) fn grants(role: &str) -> String {
    let grant = |function| format!("GRANT EXECUTE ON FUNCTION lockkeeper.{function} TO {role};\n");
    let grants: String = FUNCTIONS.iter().map(grant).collect();
    format!("GRANT USAGE ON SCHEMA lockkeeper TO {role};\n{grants}")
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
    queue_limit: false,
    keep_closed: true,
    lock_delay: true,
    inspect: true,
    watch: false,
    break_hold: true,
    break_now: true,
    values: false,
    downgrade: false,
    cached: false,
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
    lease_thread: LeaseThread,
    /// The listener; taken when the first session or `findings` starts its task.
    listener: Mutex<Option<Listener>>,
}

/// Connects to `postgres://…?lock=row&connections=N`.
///
/// # Errors
/// A bad address; an unreachable database; a missing or outdated schema; a user without the privilege to use
/// it, or whose transactions don't begin as `read committed`.
pub(super) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    const WANTED: &str = "a number of connections from 1 to 1000";
    let settings = Settings::of(url, &["connections"])?;
    let most = url.parameter("connections", WANTED)?.unwrap_or(CONNECTIONS);
    if !(1..=CONNECTIONS_MOST).contains(&most) {
        return Err(url.bad_part(format!("connections={most}"), WANTED).into());
    }
    let limit = settings.timeout;
    let database = Arc::new(Database::new(Connector::new(settings)?, most));
    let (sender, listening) = watch::channel(Listening::default());
    let store = RowStore {
        database: database.clone(),
        wake: format!("{:016x}{:016x}", random(), random()),
        listening,
        limit,
        init: format!("lockkeeper postgres init {url}"),
    };
    database.open().await?;
    check(&store).await?;

    let wakes = Wakes::default();
    let lease_thread = database.lease_thread().clone();
    let channel = format!("lockkeeper_{}", store.wake);
    let listener = Listener { database, channel, wakes: wakes.clone(), listening: sender };
    let (store, listener) = (Arc::new(store), Mutex::new(Some(listener)));
    Ok(Arc::new(RowBackend { store, wakes, lease_thread, listener }))
}

/// Checks that the schema exists, has at least the version needed and is usable by this user, and that
/// transactions begin as `read committed`.
async fn check(store: &RowStore) -> Result<(), BackendError> {
    let init = &store.init;
    let rows = store.database.call(store.limit, &VERSION_OF, &[]).await.map_err(|failure| {
        if failure.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return store.explained(failure, "use lease rows");
        }
        let what = format!(
            "this user may not use the schema `lockkeeper`: let its owner run `{init} --role NAME` with the user, or \
             one of its roles, as NAME"
        );
        BackendError::new(BackendErrorKind::Denied, what)
    })?;
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
    // Without randomness, waiters poll at the same times and clients share one notification channel, which
    // costs only speed.
    getrandom::u64().unwrap_or_default()
}

impl RowBackend {
    /// Starts the listener task, if it is not running yet.
    fn listen(&self) {
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            self.lease_thread.run(Box::pin(listener.run()));
        }
    }
}

impl Backend for RowBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        self.listen();
        LeasedConn::new(self.store.clone(), self.wakes.clone(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move {
            let rows =
                self.store.ask(&INSPECT, &[&name.as_str(), &false, &WAITERS_SHOWN], "look at a lock").await?;
            Ok(decode_locks(&rows)?.pop().unwrap_or_else(|| LockInfo::free(name)))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            let prefix = prefix.as_ref().map(LockName::as_str);
            decode_locks(&self.store.ask(&INSPECT, &[&prefix, &true, &WAITERS_SHOWN], "list locks").await?)
        })
    }

    fn check_token(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<TokenStatus, BackendError>> {
        Box::pin(async move {
            let params: Params<'_> = &[&name.as_str(), &as_bigint(token)];
            let rows = self.store.ask(&CHECK_TOKEN, params, "check a token").await?;
            let issued: bool = column(rows.first(), 0)?;
            let live = tokens(rows.first(), 1)?;
            Ok(match live.contains(&token) {
                true => TokenStatus::Current,
                false if issued => TokenStatus::NotCurrent { live },
                false => TokenStatus::NeverIssued,
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
            let (reason, by) = (text(&order.reason), text(&order.by));
            let params: Params<'_> =
                &[&order.name.as_str(), &as_bigint(order.token), &reason, &by, &order.now];
            broken(&self.store.ask(&BREAK, params, "break a hold").await?)
        })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        self.listen();
        Box::pin(async move {
            let rows = self.store.ask(&SETTINGS, &[], "read the settings").await?;
            let mut listening = self.store.listening.clone();
            let known = listening.wait_for(|listening| listening.hearing != Hearing::Unknown);
            let known = tokio::time::timeout(self.store.limit, known).await;
            let hearing = known.ok().and_then(Result::ok).map_or(Hearing::Unknown, |known| known.hearing);
            findings::of(&rows, hearing)
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
        let sql = crate::schema_sql(Some("app"));
        let odd: Vec<&str> = sql.lines().filter(|line| !line.is_ascii()).collect();
        assert!(odd.is_empty(), "{odd:?}");
    }
}
