//! Who holds and who waits, for users; breaks.

use lockkeeper_backend::{
    BackendError, BreakOrder, Broken, HolderInfo, HolderState, LockInfo, WaiterInfo, decode_meta,
};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use mysql_async::{Row, Value};
use serde_json::Value as Json;

use super::SessionShared;
use super::held::literal;
use crate::answer::explained;
use crate::lane::{Done, column, names, text};

/// Whether the row's connection holds the row's lock.
const IS_LIVE: &str = "COALESCE(IS_USED_LOCK(CONVERT(lock_key USING utf8mb4)) = connection, 0)";
/// The statements of waiters, as seen by this user: its own, and those of others with the privilege PROCESS.
const WAITERS: &str = "SELECT INFO FROM information_schema.PROCESSLIST WHERE INFO LIKE '/*lockkeeper {%' ORDER BY TIME DESC, ID";

impl SessionShared {
    /// Runs a statement once, on a connection that holds nothing.
    pub(super) async fn ask(&self, doing: &str, sql: &str, params: Vec<Value>) -> Result<Done, BackendError> {
        self.queries.ask(self.timeout, doing, sql, params).await.map_err(|failure| explained(failure, doing))
    }
}

/// The notes of the waiters, of one lock or of all.
pub(super) async fn waiters(shared: &SessionShared, key: Option<&str>) -> Result<Vec<Json>, BackendError> {
    let found = shared.ask("look at waiters", WAITERS, Vec::new()).await?;
    let note = |row: &Row| {
        let text: String = column(row, 0).ok()?;
        let (note, _) = text.strip_prefix("/*lockkeeper ")?.split_once("*/")?;
        serde_json::from_str(note).ok()
    };
    let notes = found.rows.iter().filter_map(note);
    Ok(notes.filter(|note: &Json| key.is_none_or(|key| note["key"].as_str() == Some(key))).collect())
}

/// Who holds one lock: its label, or the number of its connection if it is another program.
pub(super) async fn holder(
    shared: &SessionShared,
    name: &str,
    key: &str,
) -> Result<Option<String>, BackendError> {
    if shared.has_table {
        let sql = format!("SELECT label FROM lockkeeper_session WHERE name = ? AND {IS_LIVE}");
        let found = shared.ask("look at a lock", &sql, vec![name.into()]).await?;
        if let Some(row) = found.rows.first() {
            return Ok(Some(text(column(row, 0)?)));
        }
    }
    let sql = format!("SELECT IS_USED_LOCK({})", literal(key));
    let found = shared.ask("look at a lock", &sql, Vec::new()).await?;
    let connection: Option<u64> = found.rows.first().map_or(Ok(None), |row| column(row, 0))?;
    Ok(connection.map(|connection| format!("connection {connection}")))
}

/// The locks of one name, or also of those below it, or of all: those that somebody of ours holds or waits
/// for, and, for one name, what others hold.
pub(super) async fn look(
    shared: &SessionShared,
    prefix: Option<&LockName>,
    below: bool,
) -> Result<Vec<LockInfo>, BackendError> {
    let (condition, params) = names(prefix, below);
    let sql = format!(
        "SELECT name, token, label, meta, TIMESTAMPDIFF(MICROSECOND, since, UTC_TIMESTAMP(6)), revoked \
         FROM lockkeeper_session WHERE {condition} AND {IS_LIVE} ORDER BY name"
    );
    let found = shared.ask("look at locks", &sql, params).await?;
    let mut locks: Vec<LockInfo> = Vec::new();
    for row in &found.rows {
        let Ok(name) = LockName::parse(&text(column(row, 0)?)) else { continue };
        let (token, age, revoked): (u64, u64, bool) = (column(row, 1)?, column(row, 4)?, column(row, 5)?);
        let held = HolderInfo {
            token: Token::new(token),
            held_for: Some(std::time::Duration::from_micros(age)),
            meta: decode_meta(&column::<Vec<u8>>(row, 3)?),
            state: match revoked {
                true => HolderState::Revoked { reason: String::new(), by: String::new() },
                false => HolderState::Held,
            },
            ..HolderInfo::exclusive(text(column(row, 2)?))
        };
        locks.push(LockInfo::held_by(name, vec![held]));
    }
    if let (Some(name), false, true) = (prefix, below, locks.is_empty())
        && let Some(other) = holder(shared, name.as_str(), &shared.key.key(name.as_str())?).await?
    {
        locks.push(LockInfo::held_by(name.clone(), vec![HolderInfo::exclusive(other)]));
    }
    let covers = |name: &LockName| match prefix {
        None => true,
        Some(of) => name == of || below && of.is_above(name.as_str()),
    };
    for note in waiters(shared, None).await? {
        let (Some(name), Some(owner)) = (note["name"].as_str(), note["owner"].as_str()) else { continue };
        let Ok(name) = LockName::parse(name) else { continue };
        // With another `key=` it is another lock.
        if !covers(&name) || shared.key.key(name.as_str()).ok().as_deref() != note["key"].as_str() {
            continue;
        }
        let at = locks.iter().position(|lock| lock.name == name).unwrap_or_else(|| {
            locks.push(LockInfo::free(name));
            locks.len() - 1
        });
        let meta = decode_meta(note["meta"].as_str().unwrap_or("").as_bytes());
        locks[at].waiter_count += 1;
        locks[at].waiters.push(WaiterInfo::new(owner.to_owned(), ModeKind::Exclusive, meta));
    }
    locks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(locks)
}

/// The last token of a name, and the connection of its live hold.
struct Last {
    token: u64,
    connection: u64,
    is_live: bool,
    revoked: bool,
}

async fn last(shared: &SessionShared, name: &LockName) -> Result<Option<Last>, BackendError> {
    let sql = format!("SELECT token, connection, {IS_LIVE}, revoked FROM lockkeeper_session WHERE name = ?");
    let found = shared.ask("look at a token", &sql, vec![name.as_str().into()]).await?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    Ok(Some(Last {
        token: column(row, 0)?,
        connection: column(row, 1)?,
        is_live: column(row, 2)?,
        revoked: column(row, 3)?,
    }))
}

impl Last {
    fn live(&self) -> Option<Token> {
        Token::new(self.token).filter(|_| self.is_live && !self.revoked)
    }
}

pub(super) async fn check_token(
    shared: &SessionShared,
    name: &LockName,
    token: Token,
) -> Result<TokenStatus, BackendError> {
    let last = last(shared, name).await?;
    let live = last.as_ref().and_then(Last::live);
    Ok(match last {
        _ if live == Some(token) => TokenStatus::Current,
        Some(last) if token.get() <= last.token => {
            TokenStatus::NotCurrent { live: live.into_iter().collect() }
        }
        _ => TokenStatus::NeverIssued,
    })
}

/// With `now` the server ends the holder's connection. Without, the holder finds out by its next probe.
pub(super) async fn break_hold(shared: &SessionShared, order: &BreakOrder) -> Result<Broken, BackendError> {
    let (name, token) = (&order.name, order.token.get());
    let last = last(shared, name).await?;
    let Some(last) = last.as_ref().filter(|last| last.is_live && last.token == token) else {
        let live = last.as_ref().and_then(Last::live).into_iter().collect();
        return Ok(Broken::NotCurrent { live });
    };
    let (by, reason) = (&order.by, &order.reason);
    tracing::warn!(name = name.as_str(), token, by, reason, "a hold is broken");
    if order.now {
        shared.ask("break a hold", &format!("KILL {}", last.connection), Vec::new()).await?;
    } else {
        let sql = "UPDATE lockkeeper_session SET revoked = 1 WHERE name = ? AND token = ?";
        shared.ask("break a hold", sql, vec![name.as_str().into(), token.into()]).await?;
    }
    Ok(Broken::Done)
}
