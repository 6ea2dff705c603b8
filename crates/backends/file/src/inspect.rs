//! Operators' queries and orders: holders, waiters, the status of a token, breaks.

use std::sync::Arc;

use lockkeeper_backend::{BackendError, BackendErrorKind, BreakOrder, Broken, LockInfo};
use lockkeeper_core::{Break, Command, LockName, Page, Reply, Token, TokenStatus};

use super::names::is_record;
use super::os::{OsError, explain};
use super::reap::reap_all;
use super::record::Record;
use super::store::FileStore;

/// Maximum number of waiters in an inspection.
const WAITERS_SHOWN: usize = 100;
/// All holds and no waiters. Sizes are not limited: a record has one lock only, and only this process waits
/// for the answer.
const EVERY_HOLD: Page = Page { after: None, holds_max: usize::MAX, bytes_max: usize::MAX, waiters_max: 0 };

pub(super) async fn inspect(store: Arc<FileStore>, name: LockName) -> Result<LockInfo, OsError> {
    let mut record = Record::open(&store, &name).await?;
    describe(&store, &mut record)
}

fn describe(store: &FileStore, record: &mut Record) -> Result<LockInfo, OsError> {
    reap_all(store, record)?;
    let (table, state) = (record.table()?, record.state());
    let mut info = LockInfo::from_description(
        record.name().clone(),
        table.describe(record.name(), Page { waiters_max: WAITERS_SHOWN, ..EVERY_HOLD }),
        |session| state.label(session),
        |token, _| state.notes.get(&token?.get()).and_then(super::state::HoldNote::age),
        |token, ms| state.closed_left(token, ms),
    );
    for holder in &mut info.holds {
        holder.token = holder.token.map(|token| state.returned_token(token));
    }
    Ok(info)
}

pub(super) async fn list(store: Arc<FileStore>, prefix: Option<LockName>) -> Result<Vec<LockInfo>, OsError> {
    let path = store.path.join("locks");
    super::session_file::sweep(&store, usize::MAX);
    let entries = std::fs::read_dir(&path).map_err(|e| store.fault(explain("list", &path, e)))?;
    let mut locks = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| store.fault(explain("list", &path, e)))?;
        let file = entry.file_name();
        let Some(stem) = file.to_str().filter(|file| is_record(file)) else { continue };
        let Some(mut record) = Record::open_file(&store, stem).await? else { continue };
        let wanted = |prefix: &LockName| prefix == record.name() || prefix.is_above(record.name().as_str());
        if !prefix.as_ref().is_none_or(wanted) {
            continue;
        }
        let info = describe(&store, &mut record)?;
        if info.holds.is_empty() && info.waiter_count == 0 {
            record.remove_if_idle()?;
        } else {
            locks.push(info);
        }
    }
    locks.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(locks)
}

pub(super) async fn check_token(
    store: Arc<FileStore>,
    name: LockName,
    token: u64,
) -> Result<TokenStatus, OsError> {
    if Token::new(token).is_none() || token > store.counter.lock()?.value() {
        return Ok(TokenStatus::NeverIssued);
    }
    let mut record = Record::open(&store, &name).await?;
    reap_all(&store, &mut record)?;
    let table = record.table()?;
    // `token` is compared with the tokens that were returned to the holders. These may differ from the
    // table's.
    let held = table.describe(&name, EVERY_HOLD).holds.into_iter();
    let held = held.filter(|hold| hold.state == lockkeeper_core::HoldState::Held);
    let mut live: Vec<Token> = held.map(|hold| record.state().returned_token(hold.token)).collect();
    live.sort_unstable();
    Ok(if live.iter().any(|live| live.get() == token) {
        TokenStatus::Current
    } else {
        TokenStatus::NotCurrent { live }
    })
}

pub(super) async fn break_hold(store: Arc<FileStore>, order: BreakOrder) -> Result<Broken, OsError> {
    let mut record = Record::open(&store, &order.name).await?;
    reap_all(&store, &mut record)?;
    let state = record.state();
    let token = state.table_token(order.token);
    if order.now
        && let Some(holder) = holder_of(&record, token)
    {
        let label = state.label(holder);
        let pid = state.tag(holder).map_or(0, super::tag::Tag::pid);
        return Err(OsError::Error(BackendError::new(
            BackendErrorKind::Unsupported,
            format!(
                "`file` can't end the hold of `{}` with token {} at once: only the kernel ends a flock; kill its \
                 holder ({label}): `kill -9 {pid}`, or break it without `now`, which tells the holder to stop",
                order.name, order.token
            ),
        )));
    }
    let command =
        Break { name: order.name, token, reason: order.reason.into(), by: order.by.into(), now: order.now };
    let reply = record
        .commit(|table, effects| table.apply_whole(Command::Break(command.clone()), effects), |_| true)?;
    match reply {
        Some(Reply::NotCurrent { live }) => {
            let mut live: Vec<Token> =
                live.into_iter().map(|live| record.state().returned_token(live)).collect();
            live.sort_unstable();
            Ok(Broken::NotCurrent { live })
        }
        Some(Reply::StillClosed) => Ok(Broken::StillClosed),
        Some(Reply::Refused(rejection)) => Err(OsError::Error(rejection.into())),
        _ => Ok(Broken::Done),
    }
}

/// The session that holds with this token.
fn holder_of(record: &Record, token: Token) -> Option<lockkeeper_core::SessionId> {
    let table = record.table().ok()?;
    let holds = table.describe(record.name(), EVERY_HOLD).holds;
    holds.into_iter().find(|hold| hold.token == token).and_then(|hold| Some(hold.owner?.0))
}
