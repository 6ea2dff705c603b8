//! One connection that holds or waits, and its statements.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use lockkeeper_backend::{BackendError, BackendErrorKind, CallError, Unsupported};
use lockkeeper_core::Token;
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Error, Value};
use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::SessionShared;
use crate::answer::{StatementFailure, failed};
use crate::connect::{MySqlConnector, OpenedConnection};

/// How long a connection that holds nothing is kept, at most: less than the server keeps it.
const IDLE: Duration = Duration::from_secs(20);
/// The longest single wait, in seconds. A waiter then waits anew, and finds out whether its connection lives.
const WAIT_S: u64 = 60;

/// A connection that holds nothing.
pub(super) struct Idle {
    opened: OpenedConnection,
    since: Instant,
}

/// A connection of one request.
pub(super) struct HeldConnection {
    opened: OpenedConnection,
    /// Whether another request has used it before: the server may have closed it since.
    was_idle: bool,
    pub(super) room: OwnedSemaphorePermit,
}

/// Opens a connection, and refuses a proxy in between.
///
/// # Errors
/// There is none, or a proxy answers in place of the server.
pub(super) async fn open(connector: &MySqlConnector) -> Result<OpenedConnection, BackendError> {
    let opened = connector.open().await?;
    // The protocol has the lower half of the number.
    if opened.id & u64::from(u32::MAX) == u64::from(opened.conn.id()) {
        return Ok(opened);
    }
    Err(Unsupported {
        backend: "mysql",
        what: "hold a lock of a connection through a proxy",
        why: "the connection has another number at the server than the one with which it was opened, so that a proxy \
              (ProxySQL, MaxScale) lies in between, which gives one client's connection to another, and its locks with it",
        instead: "name the server itself in the address, or use `lock=row`",
    }
    .into())
}

/// A connection for one request: an idle one, or a new one.
///
/// # Errors
/// All connections are in use, or the error of opening one. Nothing was sent.
pub(super) async fn take(shared: &SessionShared) -> Result<HeldConnection, StatementFailure> {
    let Ok(room) = shared.room.clone().try_acquire_owned() else {
        let what = format!(
            "all {} connections of this client are in use, and each hold and each wait needs one of its own: release some, \
             or raise `connections=` and the server's max_connections",
            shared.connections
        );
        return Err(StatementFailure::Refused(BackendError::new(BackendErrorKind::LimitReached, what)));
    };
    let idle = {
        let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle| idle.since.elapsed() < IDLE);
        idle.pop()
    };
    if let Some(Idle { opened, .. }) = idle {
        return Ok(HeldConnection { opened, was_idle: true, room });
    }
    new(shared, room).await
}

async fn new(shared: &SessionShared, room: OwnedSemaphorePermit) -> Result<HeldConnection, StatementFailure> {
    let opened = open(&shared.connector).await.map_err(|error| match error.kind {
        BackendErrorKind::Unsupported => StatementFailure::Refused(error),
        _ => StatementFailure::Silent(CallError::refused(error)),
    })?;
    Ok(HeldConnection { opened, was_idle: false, room })
}

impl HeldConnection {
    /// The connection's number at the server.
    pub(super) fn id(&self) -> u64 {
        self.opened.id
    }

    /// Tries once; whether it holds. An idle connection that the server has closed held nothing, and is
    /// replaced by a new one.
    ///
    /// # Errors
    /// [`StatementFailure`]. `self` must not be used again, here and below.
    pub(super) async fn try_lock(
        mut self,
        shared: &SessionShared,
        key: &str,
    ) -> Result<(Self, bool), StatementFailure> {
        let sql = format!("SELECT GET_LOCK({}, 0)", literal(key));
        let tried = self.within(shared.timeout, "lock", &sql).await;
        let got: Option<Option<i64>> = match tried {
            Err(StatementFailure::Silent(error)) if self.was_idle && error.refusal.is_some() => {
                self = new(shared, self.room).await?;
                self.within(shared.timeout, "lock", &sql).await?
            }
            tried => tried?,
        };
        Ok((self, got.flatten() == Some(1)))
    }

    /// Waits in the server's queue; others see `note` there.
    ///
    /// # Errors
    /// [`StatementFailure`].
    pub(super) async fn wait(
        &mut self,
        shared: &SessionShared,
        key: &str,
        note: &Json,
    ) -> Result<(), StatementFailure> {
        // A comment can't contain its own end; JSON may escape the slash.
        let note = note.to_string().replace("*/", "*\\/");
        let sql = format!("/*lockkeeper {note}*/ SELECT GET_LOCK({}, {WAIT_S})", literal(key));
        loop {
            let limit = Duration::from_secs(WAIT_S) + shared.timeout;
            let got: Option<Option<i64>> = self.within(limit, "wait for a lock", &sql).await?;
            if got.flatten() == Some(1) {
                return Ok(());
            }
        }
    }

    /// Draws a token for the hold, and shows who holds. Committed when this returns.
    ///
    /// # Errors
    /// [`StatementFailure`].
    pub(super) async fn draw(
        &mut self,
        shared: &SessionShared,
        (name, key): (&str, &str),
        label: &str,
        meta: &[u8],
    ) -> Result<Option<Token>, StatementFailure> {
        const DRAW: &str = "UPDATE lockkeeper_session SET token = LAST_INSERT_ID(GREATEST(token + 1, \
             TIMESTAMPDIFF(MICROSECOND, '2026-01-01', UTC_TIMESTAMP(6)))), lock_key = ?, \
             connection = CONNECTION_ID() + 0, since = UTC_TIMESTAMP(6), revoked = 0, label = ?, meta = ? WHERE name = ?";
        const CREATE: &str = "INSERT IGNORE INTO lockkeeper_session (name, lock_key) VALUES (?, ?)";
        let conn = &mut self.opened.conn;
        let drawing = async {
            loop {
                let values: Vec<Value> = vec![key.into(), label.as_bytes().into(), meta.into(), name.into()];
                conn.exec_drop(DRAW, values).await?;
                if conn.affected_rows() > 0 {
                    return Ok(conn.last_insert_id().unwrap_or(0));
                }
                conn.exec_drop(CREATE, (name, key)).await?;
            }
        };
        let token = limited(shared.timeout, "draw a token", drawing).await?;
        Ok(Token::new(token))
    }

    /// Asks the server whether the connection holds the lock, and whether an operator has broken the hold.
    ///
    /// # Errors
    /// Why the hold counts as lost.
    pub(super) async fn check(
        &mut self,
        shared: &SessionShared,
        key: &str,
        token: Option<Token>,
    ) -> Result<bool, String> {
        let revoked = match token {
            Some(token) => format!(
                "EXISTS (SELECT 1 FROM lockkeeper_session WHERE token = {token} AND connection = {} AND revoked = 1)",
                self.opened.id
            ),
            None => "0".to_owned(),
        };
        let sql = format!("SELECT IS_USED_LOCK({}) = CONNECTION_ID() + 0, {revoked}", literal(key));
        let limit = shared.probe.max(Duration::from_secs(1));
        let found: Result<Option<(Option<bool>, bool)>, StatementFailure> =
            self.within(limit, "verify a hold", &sql).await;
        match found {
            Ok(Some((Some(true), revoked))) => Ok(revoked),
            Ok(_) => Err("the server does not know this connection as the holder".to_owned()),
            Err(failure) => Err(crate::answer::explained(failure, "verify a hold").to_string()),
        }
    }

    /// Releases the lock; whether it was held. The connection becomes an idle one.
    ///
    /// # Errors
    /// [`StatementFailure`].
    pub(super) async fn release(
        &mut self,
        shared: &SessionShared,
        key: &str,
    ) -> Result<bool, StatementFailure> {
        let sql = format!("SELECT RELEASE_LOCK({})", literal(key));
        let released: Option<Option<i64>> = self.within(shared.timeout, "release a lock", &sql).await?;
        Ok(released.flatten() == Some(1))
    }

    /// Returns a connection that certainly holds nothing.
    pub(super) fn put_back(self, shared: &SessionShared) {
        let idle = Idle { opened: self.opened, since: Instant::now() };
        shared.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
    }

    async fn within<T: FromRow + Send + 'static>(
        &mut self,
        limit: Duration,
        doing: &str,
        sql: &str,
    ) -> Result<Option<T>, StatementFailure> {
        limited(limit, doing, self.opened.conn.query_first(sql)).await
    }
}

async fn limited<T>(
    limit: Duration,
    doing: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, StatementFailure> {
    match timeout(limit, work).await {
        Ok(done) => done.map_err(|error| failed(&error, doing)),
        Err(_) => Err(StatementFailure::IN_DOUBT),
    }
}

/// A name as SQL, with any characters.
pub(super) fn literal(key: &str) -> String {
    format!("CONVERT(x'{}' USING utf8mb4)", lockkeeper_backend::hex(key.as_bytes()))
}

/// What a waiter shows.
pub(super) fn note(key: &str, name: &str, label: &str, meta: &[u8]) -> Json {
    json!({ "key": key, "name": name, "owner": label, "meta": String::from_utf8_lossy(meta) })
}
