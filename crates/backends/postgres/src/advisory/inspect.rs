//! Inspection of locks through the server's own views, and breaks of other clients' holds.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_backend::{
    BackendError, BackendErrorKind, BreakOrder, Broken, Busy, HolderInfo, HolderState, LockInfo, WaiterInfo,
    decode_meta,
};
use lockkeeper_core::{LockName, ModeKind, Token, TokenStatus};
use postgres_protocol::escape::escape_literal;
use tokio_postgres::SimpleQueryRow;

use super::connection::QueryConnection;
use super::note::{Contact, Held, Letter, Note, Revocation};
use super::shared::Shared;
use super::sql::{IN_THIS_DATABASE, is_locked, unreadable};
use crate::keys::{AdvisoryKey, PgKey};

/// Maximum number of waiters listed.
const WAITERS_SHOWN: usize = 100;
/// Limit for each text in the notification of a break; a notification carries at most 8000 bytes.
const LETTER_TEXT_BYTES: usize = 1000;
/// The first version with the start of a wait (`pg_locks.waitstart`).
const WAITSTART_SINCE: u32 = 140_000;
/// How long a break waits for a holder that does not listen, as after the loss of its query connection, and
/// the interval of checks.
const BREAK_POLL: Duration = Duration::from_millis(5);
const LISTENS_WITHIN: Duration = Duration::from_secs(5);

/// A row of `pg_locks`, joined with `pg_stat_activity`.
pub(super) struct Seen {
    pid: i32,
    granted: bool,
    mode: ModeKind,
    key: AdvisoryKey,
    held: Option<Held>,
    note: Option<Note>,
    /// Display name of a connection that is not of this library.
    stranger: String,
    /// The server's clock, in seconds of the Unix epoch.
    now: u64,
}

/// The statement whose rows are [`Seen`]: holders first, then waiters in their order.
pub(super) fn statement(version: u32, key: Option<AdvisoryKey>) -> String {
    let which = key.map_or_else(|| IN_THIS_DATABASE.to_owned(), is_locked);
    let order = if version >= WAITSTART_SINCE { "l.waitstart" } else { "a.query_start" };
    format!(
        "select l.pid, l.granted, l.mode, l.classid, l.objid, l.objsubid, a.application_name, a.usename, a.query, \
         extract(epoch from pg_catalog.clock_timestamp())::bigint \
         from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a using (pid) where {which} \
         order by l.classid, l.objid, l.objsubid, l.granted desc, {order}, l.pid"
    )
}

impl Seen {
    pub(super) fn read(row: &SimpleQueryRow) -> Option<Self> {
        let text = |column: usize| row.try_get(column).ok().flatten();
        let number = |column: usize| text(column)?.parse::<u32>().ok();
        let name = text(6).unwrap_or_default();
        let (pid, granted) = (text(0)?.parse().ok()?, text(1)? == "t");
        Some(Self {
            pid,
            granted,
            mode: if text(2)? == "ShareLock" { ModeKind::Shared } else { ModeKind::Exclusive },
            key: AdvisoryKey::from_pg_locks(number(3)?, number(4)?, text(5)?.parse().ok()?),
            held: Held::read(name),
            note: text(8).and_then(Note::read),
            stranger: match (name, text(7)) {
                ("", None) => format!("process {pid} of the server"),
                ("", Some(user)) => format!("{user} (process {pid} of the server)"),
                (name, _) => format!("{name} (process {pid} of the server)"),
            },
            now: text(9)?.parse().ok()?,
        })
    }

    fn owner(&self) -> String {
        let owner = self.note.as_ref().map(|note| note.owner.clone()).filter(|owner| !owner.is_empty());
        owner.unwrap_or_else(|| self.stranger.clone())
    }

    fn meta(&self) -> Vec<(String, String)> {
        self.note.as_ref().map(|note| decode_meta(note.meta.as_bytes())).unwrap_or_default()
    }

    fn token(&self) -> Option<Token> {
        self.held.filter(|_| self.granted)?.token.and_then(Token::new)
    }

    fn holder(&self) -> HolderInfo {
        let revoked = self.note.as_ref().and_then(|note| note.revoked.clone());
        HolderInfo {
            token: self.token(),
            mode: self.mode,
            held_for: self.held.map(|held| Duration::from_secs(self.now.saturating_sub(held.since))),
            state: match revoked {
                Some(Revocation { reason, by, .. }) => HolderState::Revoked { reason, by },
                None => HolderState::Held,
            },
            meta: self.meta(),
            ..HolderInfo::exclusive(self.owner())
        }
    }
}

/// The first holder, and the number of waiters.
pub(super) fn busy(rows: &[SimpleQueryRow]) -> Busy {
    let seen: Vec<Seen> = rows.iter().filter_map(Seen::read).collect();
    let holder = seen.iter().find(|seen| seen.granted).map(Seen::owner);
    Busy { holder, queued_ahead: seen.iter().filter(|seen| !seen.granted).count() as u64 }
}

fn info(name: LockName, seen: &[Seen]) -> LockInfo {
    let mut holders: Vec<HolderInfo> = seen.iter().filter(|seen| seen.granted).map(Seen::holder).collect();
    holders.sort_by_key(|holder| holder.token);
    let waiting = || seen.iter().filter(|seen| !seen.granted);
    let waiters = waiting().take(WAITERS_SHOWN);
    let waiter = |seen: &Seen| WaiterInfo::new(seen.owner(), seen.mode, seen.meta());
    LockInfo {
        waiter_count: waiting().count(),
        waiters: waiters.map(waiter).collect(),
        ..LockInfo::held_by(name, holders)
    }
}

async fn seen(shared: &Shared, key: Option<AdvisoryKey>) -> Result<Vec<Seen>, BackendError> {
    let rows = shared.queries.ask(&statement(shared.common.version, key), "look at its locks").await?;
    rows.iter().map(|row| Seen::read(row).ok_or_else(|| unreadable("look at its locks"))).collect()
}

pub(super) async fn inspect(shared: &Shared, name: LockName) -> Result<LockInfo, BackendError> {
    let key = shared.key_of(&name).await?;
    let seen = seen(shared, Some(key)).await?;
    Ok(info(name, &seen))
}

/// Lists locks that clients of this library hold or wait for: only their notes contain names. With `key=raw`,
/// where the key is the name, lists all advisory locks.
pub(super) async fn list(shared: &Shared, prefix: Option<LockName>) -> Result<Vec<LockInfo>, BackendError> {
    let mut by_key: BTreeMap<AdvisoryKey, Vec<Seen>> = BTreeMap::new();
    for seen in seen(shared, None).await? {
        by_key.entry(seen.key).or_default().push(seen);
    }
    let mut locks = Vec::new();
    for (key, seen) in by_key {
        let said = seen.iter().filter_map(|seen| Some(seen.note.as_ref()?.name.as_str()));
        let mut names: Vec<LockName> = said.filter_map(|name| LockName::parse(name).ok()).collect();
        if shared.key == PgKey::Raw {
            names.extend(LockName::parse(&key.to_string()));
        }
        names.sort_unstable();
        // Two names with one key exclude each other: both are shown as held.
        names.dedup();
        let wanted = |name: &LockName| {
            prefix.as_ref().is_none_or(|prefix| prefix == name || prefix.is_above(name.as_str()))
        };
        locks.extend(names.into_iter().filter(wanted).map(|name| info(name, &seen)));
    }
    locks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(locks)
}

fn live(seen: &[Seen]) -> Vec<Token> {
    let mut live: Vec<Token> = seen.iter().filter_map(Seen::token).collect();
    live.sort_unstable();
    live
}

pub(super) async fn check_token(
    shared: &Shared,
    name: LockName,
    token: u64,
) -> Result<TokenStatus, BackendError> {
    let doing = "read the sequence `lockkeeper.token`";
    let last = "select case when is_called then last_value else last_value - 1 end from lockkeeper.token";
    let rows = shared.queries.ask(last, doing).await?;
    let last: u64 = rows.first().and_then(|row| row.get(0)?.parse().ok()).ok_or_else(|| unreadable(doing))?;
    if Token::new(token).is_none() || token > last {
        return Ok(TokenStatus::NeverIssued);
    }
    let key = shared.key_of(&name).await?;
    let live = live(&seen(shared, Some(key)).await?);
    Ok(if live.iter().any(|live| live.get() == token) {
        TokenStatus::Current
    } else {
        TokenStatus::NotCurrent { live }
    })
}

/// Breaks a hold: notifies the holder's connection, or with `now` terminates the server process that has the
/// lock.
pub(super) async fn break_hold(shared: &Shared, order: BreakOrder) -> Result<Broken, BackendError> {
    let key = shared.key_of(&order.name).await?;
    let found = seen(shared, Some(key)).await?;
    let Some(holder) = found.iter().find(|seen| seen.token() == Some(order.token)) else {
        return Ok(Broken::NotCurrent { live: live(&found) });
    };
    if !order.now {
        let Some(note) = &holder.note else {
            let what = "what the holder's connection says is not shown, and only who sees it may ask it to stop: use the \
                        holder's role, or `grant pg_read_all_stats` to this one, or break it with `now`";
            return Err(BackendError::new(BackendErrorKind::Operator, what));
        };
        return notify(&shared.queries, &note.contact, &order, holder.pid).await;
    }
    tracing::warn!(
        name = order.name.as_str(),
        token = order.token.get(),
        reason = order.reason,
        by = order.by,
        "ends the server process that holds a lock"
    );
    let which = format!("pid = {} and {}", holder.pid, Held::is_worn(order.token.get()));
    shared.queries.end_process(&which).await?;
    Ok(Broken::Done)
}

/// Notifies the holder's client, once its query connection listens.
async fn notify(
    queries: &QueryConnection,
    contact: &Contact,
    order: &BreakOrder,
    pid: i32,
) -> Result<Broken, BackendError> {
    let notify = format!(
        "select holds, listens, case when holds and listens then pg_catalog.pg_notify({}, {}) is not null end from \
         (select exists (select from pg_catalog.pg_stat_activity where pid = {pid} and {}) as holds, \
         exists (select from pg_catalog.pg_stat_activity where application_name = {}) as listens offset 0) as found",
        escape_literal(&contact.channel()),
        escape_literal(&letter(order, &contact.key)),
        Held::is_worn(order.token.get()),
        escape_literal(&contact.monitor()),
    );
    let doing = "tell the holder";
    let since = tokio::time::Instant::now();
    loop {
        let rows = queries.ask(&notify, doing).await?;
        let row = rows.first().ok_or_else(|| unreadable(doing))?;
        if row.get(0) != Some("t") || row.get(1) == Some("t") {
            return Ok(Broken::Done);
        }
        if since.elapsed() > LISTENS_WITHIN {
            let what = "the holder's client is not connected to receive the break; break it with `now`";
            return Err(BackendError::new(BackendErrorKind::Operator, what));
        }
        tokio::time::sleep(BREAK_POLL).await;
    }
}

fn letter(order: &BreakOrder, key: &str) -> String {
    let cut = |text: &str| {
        let end = (0..=LETTER_TEXT_BYTES.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
        text[..end.unwrap_or(0)].to_owned()
    };
    let revocation = Revocation { token: order.token.get(), reason: cut(&order.reason), by: cut(&order.by) };
    serde_json::to_string(&Letter { key: key.to_owned(), revocation }).unwrap_or_default()
}
