//! `ls`, `show` and `sessions`: holders, waiters, and live sessions.

use lockkeeper::{LockInfo, LockName, SessionInfo};
use serde_json::{Value, json};

use crate::args::{Ls, Sessions, Show};
use crate::exit::{Failure, OK};
use crate::output::{self, holder_text, human, lock_json};
use crate::settings;

pub(super) async fn ls(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "ls").await?;
    let list = locks.list(prefix.as_ref().map(LockName::as_str)).await?;
    if args.json {
        output::json(&list.iter().map(lock_json).collect())?;
        return Ok(OK);
    }
    for info in list {
        output::line(summary(&info))?;
    }
    Ok(OK)
}

/// Formats a lock on one line.
pub(super) fn summary(info: &LockInfo) -> String {
    let holders: Vec<String> = info.holders.iter().map(holder_text).collect();
    let mut text =
        format!("{}  {}", info.name, if holders.is_empty() { "free".to_owned() } else { holders.join("; ") });
    if info.holder_count > info.holders.len() {
        text += &format!("; and {} more", info.holder_count - info.holders.len());
    }
    if info.waiter_count > 0 {
        text += &format!("  ({} waiting)", info.waiter_count);
    }
    if let Some(limit) = info.limit {
        text += &format!("  ({} of {limit} permits taken)", info.holder_count);
    }
    text
}

pub(super) async fn show(args: Show) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let info = settings::connect(&url, "show").await?.inspect(&name).await?;
    if args.json {
        output::json(&lock_json(&info))?;
        return Ok(OK);
    }
    output::line(format!("{name}{}", if info.holders.is_empty() { ": not held" } else { "" }))?;
    for holder in &info.holders {
        output::line(format!("  {}", holder_text(holder)))?;
    }
    if info.holder_count > info.holders.len() {
        output::line(format!("  and {} more hold it", info.holder_count - info.holders.len()))?;
    }
    if let Some(limit) = info.limit {
        output::line(format!("  permits: {} of {limit} taken", info.holder_count))?;
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        output::line(format!("  {}. in the queue: {}, {}", place + 1, waiter.mode, waiter.owner))?;
    }
    if info.waiter_count > info.waiters.len() {
        output::line(format!("  and {} more wait", info.waiter_count - info.waiters.len()))?;
    }
    Ok(OK)
}

pub(super) async fn sessions(args: Sessions) -> Result<u8, Failure> {
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let sessions = settings::connect(&url, "sessions").await?.sessions().await?;
    if args.json {
        output::json(&sessions.iter().map(session_json).collect())?;
        return Ok(OK);
    }
    for session in sessions {
        output::line(session_text(&session))?;
    }
    Ok(OK)
}

fn session_json(session: &SessionInfo) -> Value {
    json!({
        "id": session.id,
        "owner": session.owner,
        "ttl_ms": session.ttl.as_millis() as u64,
        "left_ms": session.left.as_millis() as u64,
        "lock_delay_ms": session.lock_delay.as_millis() as u64,
        "linger_ms": session.linger.as_millis() as u64,
        "requests": session.requests,
        "attached": session.attached,
    })
}

fn session_text(session: &SessionInfo) -> String {
    let requests = if session.requests == 1 { "request" } else { "requests" };
    let mut text = format!(
        "{}  {}: {} {requests}, ttl {}, {} left",
        session.id,
        session.owner,
        session.requests,
        human(session.ttl),
        human(session.left)
    );
    if !session.lock_delay.is_zero() {
        text += &format!(", lock-delay {}", human(session.lock_delay));
    }
    if !session.linger.is_zero() {
        text += &format!(", linger {}", human(session.linger));
    }
    if !session.attached {
        text += ", not connected";
    }
    text
}
