//! `layout=shedlock`: lease rows in the table of `ShedLock`, by the statements of its provider that uses the
//! database's time, so that its users and ours exclude each other.
//!
//! The table has no column for a request's id, only `locked_by`, the holder's name. Our holds put the
//! request's id first in it, then a space and the note, so that a renewal or a release affects its own hold
//! only.
//!
//! A row is free once `lock_until` is in the past. `ShedLock` writes `UTC_TIMESTAMP(3)` to a `TIMESTAMP`
//! column, which the server converts by the session's time zone: a session with another time zone would read
//! another time. So our sessions keep the server's default time zone.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::io::LeaseThread;
use lockkeeper_backend::leased::{
    Attempt, Entry, LeasedConn, Note, Renewed, Store, Tried, Wakes, shown_holder,
};
use lockkeeper_backend::{
    Backend, BackendError, BackendErrorKind, BoxFuture, Busy, CallError, Capabilities, Conn, ConnectError,
    Fencing, Finding, Granted, LockInfo, Promise, Promises, Push, Spec, Url,
};
use lockkeeper_core::{End, LockName, ModeKind};
use mysql_async::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::store::{again, us};
use super::{CONNECTIONS, CONNECTIONS_MOST, RENEWALS};
use crate::IO;
use crate::answer::{StatementFailure, explained};
use crate::connect::MySqlConnector;
use crate::findings;
use crate::lane::{CallLane, Done, LaneCall, SERVER_IDLE_S, column};
use crate::settings::{Settings, connections};

/// The length of `name` and of `locked_by` in the table that `ShedLock` recommends, in characters.
const NAME_LENGTH: usize = 64;
const HOLDER_LENGTH: usize = 255;
/// `UTC_TIMESTAMP(3)` cuts off up to this much of the time.
const RESOLUTION: Duration = Duration::from_millis(1);

/// `(ttl, holder, name)`, in µs.
const UPDATE: &str = "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), \
     locked_at = UTC_TIMESTAMP(3), locked_by = ? WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)";
/// `(name, ttl, holder)`.
const INSERT: &str = "INSERT IGNORE INTO shedlock (name, lock_until, locked_at, locked_by) \
     VALUES (?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?)";
/// `(ttl, name, id)`.
const EXTEND: &str = "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)) \
     WHERE name = ? AND locked_by LIKE CONCAT(?, ' %') AND lock_until > UTC_TIMESTAMP(3)";
/// `(name, id)`.
const UNLOCK: &str = "UPDATE shedlock SET lock_until = UTC_TIMESTAMP(3) \
     WHERE name = ? AND locked_by LIKE CONCAT(?, ' %') AND lock_until > UTC_TIMESTAMP(3)";
/// `(name)`: the holder, and how long it may hold at most.
const HOLDER: &str = "SELECT locked_by, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), lock_until) FROM shedlock \
     WHERE name = ? FOR UPDATE";
/// All holds.
const HOLDS: &str = "SELECT name, locked_by, TIMESTAMPDIFF(MICROSECOND, locked_at, UTC_TIMESTAMP(3)) FROM shedlock \
     WHERE lock_until > UTC_TIMESTAMP(3) ORDER BY name";

static CAPABILITIES: Capabilities = Capabilities {
    ttl: true,
    wait: true,
    inspect: true,
    promises: Promises {
        exclusion: Promise::KeptIf(
            "no replica takes over that lacks the last commits, or whose clock is ahead",
        ),
        rising_tokens: Promise::NotKept("the table of ShedLock has no tokens"),
        fenced_sections: Promise::NotKept("the table of ShedLock has no tokens"),
        client_gives_up_first: Promise::KeptIf("the server's clock is not stepped forward"),
        confirmed_keep_alives: Promise::KeptIf("no replica takes over that lacks the last commits"),
        harmless_retries: Promise::KeptIf(
            "no attempt arrives after its request was finished; else nobody holds for a ttl",
        ),
        first_come_first_served: Promise::NotKept("waiters try again after random pauses"),
        survives_stalls: Promise::NotKept("holds expire while the database stands still"),
        durable: Promise::KeptIf("`innodb_flush_log_at_trx_commit` is 1"),
        ..Promises::ALL_KEPT
    },
    ..Capabilities::minimal(
        "mysql",
        Fencing::None {
            why: "the table of ShedLock has no tokens",
            instead: "use `lock=row` without `layout=`, which does not exclude ShedLock",
        },
    )
};

struct ShedLockBackend {
    store: Arc<ShedLockStore>,
    lease_thread: LeaseThread,
}

struct ShedLockStore {
    calls: CallLane,
    renewals: CallLane,
    limit: Duration,
}

/// Connects to `mysql://…?layout=shedlock`.
///
/// # Errors
/// A bad address; an unreachable or read-only server; no table `shedlock`.
pub(crate) async fn connect(url: &Url) -> Result<Arc<dyn Backend>, ConnectError> {
    let settings = Settings::of(url, &["connections", "layout"])?;
    let most = connections(url, CONNECTIONS, CONNECTIONS_MOST)?;
    let limit = settings.timeout;
    let connector = MySqlConnector::new(settings, SERVER_IDLE_S);
    let lease_thread = IO.get("lockkeeper-mysql")?;
    let lane = |most| CallLane::new(connector.clone(), most, &lease_thread);
    let store = Arc::new(ShedLockStore { calls: lane(most), renewals: lane(RENEWALS), limit });
    store.calls.open().await?;
    store.ask("read the table of ShedLock", HOLDER, vec!["".into()]).await?;
    Ok(Arc::new(ShedLockBackend { store, lease_thread }))
}

impl Backend for ShedLockBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn lease_thread(&self) -> Option<LeaseThread> {
        Some(self.lease_thread.clone())
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        LeasedConn::new(self.store.clone(), Wakes::default(), spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo, BackendError>> {
        Box::pin(async move {
            let held = self.store.held().await?;
            let found = held.into_iter().find(|lock| lock.name == name);
            Ok(found.unwrap_or_else(|| LockInfo::free(name)))
        })
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<'_, Result<Vec<LockInfo>, BackendError>> {
        Box::pin(async move {
            let mut held = self.store.held().await?;
            held.retain(|lock| {
                prefix.as_ref().is_none_or(|of| *of == lock.name || of.is_above(lock.name.as_str()))
            });
            Ok(held)
        })
    }

    fn findings(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        Box::pin(findings::of_rows(&self.store.calls, self.store.limit))
    }
}

impl ShedLockStore {
    async fn try_to_hold(&self, attempt: &Attempt) -> Result<Tried, StatementFailure> {
        let entry = &attempt.entry;
        let name = entry.name.as_str();
        if name.chars().count() > NAME_LENGTH {
            let what =
                format!("`{name}` is too long for the table of ShedLock: at most {NAME_LENGTH} characters");
            return Ok(Tried::Refused(BackendError::new(BackendErrorKind::Refused, what)));
        }
        let held = || Ok(Tried::Granted(Granted::default()));
        let (ttl, holder) = (us(entry.ttl + RESOLUTION), holder(attempt));
        let mut call = self.calls.call(entry.limit()).await?;
        if !attempt.first && extends(&mut call, name, &entry.id.0, ttl).await? {
            return held();
        }
        let params = vec![ttl.into(), holder.as_str().into(), name.into()];
        if call.run("acquire", UPDATE, params).await?.matched > 0 {
            return held();
        }
        let params = vec![name.into(), ttl.into(), holder.as_str().into()];
        if call.run("acquire", INSERT, params).await.map_err(StatementFailure::in_doubt)?.matched > 0 {
            return held();
        }
        let found =
            call.run("acquire", HOLDER, vec![name.into()]).await.map_err(StatementFailure::in_doubt)?;
        let found = found.rows.first().map(|row| Ok((column(row, 0)?, column(row, 1)?))).transpose();
        let (by, left): (String, i64) = found.map_err(StatementFailure::Refused)?.unwrap_or_default();
        if attempt.wait {
            let left = u64::try_from(left).ok().map(Duration::from_micros);
            return Ok(Tried::Waits { ahead: 0, again: again(entry.ttl, 0, left) });
        }
        let holder = (left > 0).then(|| owner(by).0);
        Ok(Tried::Busy(Busy { holder, queued_ahead: 0 }))
    }

    async fn renew_all(&self, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, StatementFailure> {
        let mut renewed = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut call = self.renewals.call(entry.limit()).await?;
            let extended =
                extends(&mut call, entry.name.as_str(), &entry.id.0, us(entry.ttl + RESOLUTION)).await?;
            renewed.push(if extended { Renewed::Kept } else { Renewed::Gone });
        }
        Ok(renewed)
    }

    async fn end(&self, entry: &Entry) -> Result<End, StatementFailure> {
        let name = entry.name.as_str();
        let mut call = self.calls.call(entry.limit()).await?;
        let done = call.run("release", UNLOCK, vec![name.into(), entry.id.0.as_str().into()]).await?;
        Ok(if done.matched > 0 { End::Released } else { End::Gone })
    }

    async fn held(&self) -> Result<Vec<LockInfo>, BackendError> {
        let found = self.ask("look at locks", HOLDS, Vec::new()).await?;
        let mut locks = Vec::new();
        for row in &found.rows {
            let name: String = column(row, 0)?;
            let Ok(name) = LockName::parse(&name) else { continue };
            let (by, age): (String, i64) = (column(row, 1)?, column(row, 2)?);
            let (owner, note) = owner(by);
            let mut holder = shown_holder(None, ModeKind::Exclusive, owner, note, None);
            holder.held_for = u64::try_from(age).ok().map(Duration::from_micros);
            locks.push(LockInfo::held_by(name, vec![holder]));
        }
        Ok(locks)
    }

    async fn ask(&self, doing: &str, sql: &str, params: Vec<Value>) -> Result<Done, BackendError> {
        self.calls.ask(self.limit, doing, sql, params).await.map_err(|failure| explained(failure, doing))
    }
}

impl Store for ShedLockStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_to_hold(&attempt).await.or_else(StatementFailure::of_attempt) })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move { self.renew_all(&entries).await.map_err(StatementFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.renewals.trouble().or_else(|| self.calls.trouble()).map(|error| error.to_string())
    }

    fn finish(&self, entry: Arc<Entry>, _doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry).await.map_err(StatementFailure::of_repeated) })
    }
}

/// Extends a hold of this request; whether it holds.
async fn extends(call: &mut LaneCall<'_>, name: &str, id: &str, ttl: i64) -> Result<bool, StatementFailure> {
    Ok(call.run("renew", EXTEND, vec![ttl.into(), name.into(), id.into()]).await?.matched > 0)
}

/// The value of `locked_by`: the request's id and its note. A long note has no meta data, or is left out.
fn holder(attempt: &Attempt) -> String {
    let of = |owner: &str, meta: &[u8]| {
        let meta = String::from_utf8_lossy(meta).into_owned();
        let note = Note { owner: owner.to_owned(), meta, ..Note::default() };
        format!("{} {}", attempt.entry.id, String::from_utf8_lossy(&note.bytes()))
    };
    let candidates = [of(&attempt.label, &attempt.meta), of(&attempt.label, b"")];
    let fits = candidates.into_iter().find(|holder| holder.chars().count() <= HOLDER_LENGTH);
    fits.unwrap_or_else(|| of("", b""))
}

/// Who holds, and the note if it is one of ours.
fn owner(locked_by: String) -> (String, Option<Note>) {
    let note = locked_by.split_once(' ').and_then(|(_, note)| Note::read(note.as_bytes()));
    (note.as_ref().map_or(locked_by, |note| note.owner.clone()), note)
}
