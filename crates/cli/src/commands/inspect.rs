//! `ls`, `show` and `sessions`: holders, waiters, and live sessions.

use lockkeeper::{HolderState, LockInfo, LockName, SessionInfo};

use crate::args::{Ls, Sessions, Show};
use crate::exit::{Failure, OK};
use crate::output::{self, holder_text, human, mode_text, state_text};
use crate::settings;
use crate::table::Table;
use crate::view;

pub(super) async fn ls(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "ls").await?;
    let list = locks.list(prefix.as_ref().map(LockName::as_str)).await?;
    if args.json {
        output::json(&list.iter().map(view::lock).collect::<Vec<_>>())?;
        return Ok(OK);
    }
    if list.is_empty() {
        output::say("no locks in use");
        return Ok(OK);
    }
    let mut table = Table::new(["NAME", "TOKEN", "MODE", "OWNER", "HELD FOR", "WAITING", "NOTE"]);
    list.iter().for_each(|info| rows(info, &mut table));
    table.print()?;
    Ok(OK)
}

/// A row for each holder of a lock; for a lock without holders, one row.
fn rows(info: &LockInfo, table: &mut Table) {
    let waiting = if info.waiter_count == 0 { String::new() } else { info.waiter_count.to_string() };
    let limit = info.permits.map(|limit| format!("{} of {limit} permits taken", info.hold_count));
    let mut first = [info.name.to_string(), waiting, limit.unwrap_or_default()];
    for holder in &info.holds {
        let meta = holder.meta.iter().map(|(key, value)| format!("{key}={value}"));
        let [name, waiting, limit] = std::mem::take(&mut first);
        let notes = [limit].into_iter().filter(|note| !note.is_empty()).chain(state_text(holder)).chain(meta);
        let row = [
            name,
            holder.token.map(|token| token.to_string()).unwrap_or_default(),
            mode_text(holder),
            output::client(&holder.label, &holder.identity),
            holder.held_for.map(human).unwrap_or_default(),
            waiting,
            notes.collect::<Vec<_>>().join(", "),
        ];
        if matches!(holder.state, HolderState::Revoked { .. }) { table.bad_row(row) } else { table.row(row) }
    }
    let more = info.hold_count - info.holds.len().min(info.hold_count);
    if info.holds.is_empty() || more > 0 {
        let [name, waiting, limit] = first;
        let state = if more > 0 { format!("and {more} more") } else { "free".to_owned() };
        table.row([name, String::new(), state, String::new(), String::new(), waiting, limit]);
    }
}

/// Formats a lock on one line.
pub(super) fn summary(info: &LockInfo) -> String {
    let holders: Vec<String> = info.holds.iter().map(holder_text).collect();
    let mut text =
        format!("{}  {}", info.name, if holders.is_empty() { "free".to_owned() } else { holders.join("; ") });
    if info.hold_count > info.holds.len() {
        text += &format!("; and {} more", info.hold_count - info.holds.len());
    }
    if info.waiter_count > 0 {
        text += &format!("  ({} waiting)", info.waiter_count);
    }
    if let Some(limit) = info.permits {
        text += &format!("  ({} of {limit} permits taken)", info.hold_count);
    }
    text
}

pub(super) async fn show(args: Show) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let info = settings::connect(&url, "show").await?.inspect(&name).await?;
    if args.json {
        output::json(&view::lock(&info))?;
        return Ok(OK);
    }
    output::line(format!("{name}{}", if info.holds.is_empty() { ": not held" } else { "" }))?;
    for holder in &info.holds {
        output::line(format!("  {}", holder_text(holder)))?;
    }
    if info.hold_count > info.holds.len() {
        output::line(format!("  and {} more hold it", info.hold_count - info.holds.len()))?;
    }
    if let Some(limit) = info.permits {
        output::line(format!("  permits: {} of {limit} taken", info.hold_count))?;
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        let client = output::client(&waiter.label, &waiter.identity);
        let waiting =
            waiter.waiting_for.map(|waiting| format!(", for {}", human(waiting))).unwrap_or_default();
        let since = waiter.since.map(output::since_text).unwrap_or_default();
        output::line(format!("  {}. in the queue: {}, {client}{waiting}{since}", place + 1, waiter.mode))?;
    }
    if info.waiter_count > info.waiters.len() {
        output::line(format!("  and {} more wait", info.waiter_count - info.waiters.len()))?;
    }
    Ok(OK)
}

pub(super) async fn sessions(args: Sessions) -> Result<u8, Failure> {
    let url = settings::service_url(args.service.locks.as_deref())?;
    let sessions = settings::connect(&url, "sessions").await?.sessions().await?;
    if sessions.is_empty() && !args.json {
        output::say("no sessions");
        return Ok(OK);
    }
    list_sessions(&sessions, args.json)
}

/// Prints sessions, as a table or as JSON.
pub(super) fn list_sessions(sessions: &[SessionInfo], json: bool) -> Result<u8, Failure> {
    if json {
        output::json(&sessions.iter().map(view::session).collect::<Vec<_>>())?;
        return Ok(OK);
    }
    let mut table = Table::new(["ID", "OWNER", "REQUESTS", "TTL", "LEFT", "NOTE"]);
    for session in sessions {
        table.row([
            session.id.to_string(),
            output::client(&session.label, &session.identity),
            session.requests.to_string(),
            human(session.ttl),
            human(session.left),
            session_note(session),
        ]);
    }
    table.print()?;
    Ok(OK)
}

fn session_note(session: &SessionInfo) -> String {
    let mut notes = Vec::new();
    if !session.lock_delay.is_zero() {
        notes.push(format!("lock-delay {}", human(session.lock_delay)));
    }
    if !session.linger.is_zero() {
        notes.push(format!("linger {}", human(session.linger)));
    }
    if !session.attached {
        notes.push("not connected".to_owned());
    }
    notes.join(", ")
}
