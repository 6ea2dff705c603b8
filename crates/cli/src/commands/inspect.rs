//! `ls`, `show` and `watch`: who holds, who waits.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::{LockInfo, LockName};
use serde_json::{Value, json};

use crate::args::{Ls, Show};
use crate::exit::{Failure, INTERNAL, OK};
use crate::guardian::{Signal, Signals};
use crate::output::{self, holder_text, lock_json};
use crate::settings;

/// How often `watch` looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn ls(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "ls").await?;
    let list = locks.list(prefix.as_ref()).await?;
    if args.json {
        output::json(&list.iter().map(lock_json).collect())?;
        return Ok(OK);
    }
    for info in list {
        output::line(summary(&info))?;
    }
    Ok(OK)
}

fn summary(info: &LockInfo) -> String {
    let holders: Vec<String> = info.holders.iter().map(holder_text).collect();
    let mut text =
        format!("{}  {}", info.name, if holders.is_empty() { "free".to_owned() } else { holders.join("; ") });
    if info.waiter_count > 0 {
        text += &format!("  ({} waiting)", info.waiter_count);
    }
    if let Some(limit) = info.limit {
        text += &format!("  ({} of {limit} permits taken)", info.holders.len());
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
    if let Some(limit) = info.limit {
        output::line(format!("  permits: {} of {limit} taken", info.holders.len()))?;
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        output::line(format!("  {}. in the queue: {}, {}", place + 1, waiter.mode, waiter.owner))?;
    }
    if info.waiter_count > info.waiters.len() {
        output::line(format!("  and {} more wait", info.waiter_count - info.waiters.len()))?;
    }
    Ok(OK)
}

/// The state first, then changes. Looks four times a second; what begins and ends in between is not seen, but a
/// holder that came and went shows in the next token.
pub(super) async fn watch(args: Ls) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "watch").await?;
    let mut known: BTreeMap<LockName, (LockInfo, String)> = BTreeMap::new();
    let mut first = true;
    let mut signals =
        Signals::install().map_err(|error| Failure::system(INTERNAL, "cannot listen to signals", &error))?;
    loop {
        let mut now: BTreeMap<LockName, (LockInfo, String)> = BTreeMap::new();
        for info in locks.list(prefix.as_ref()).await? {
            let key = fingerprint(&info);
            now.insert(info.name.clone(), (info, key));
        }
        for (name, (info, key)) in &now {
            if known.get(name).is_none_or(|(_, before)| before != key) {
                tell(&args, if first { "state" } else { "changed" }, name, Some(info))?;
            }
        }
        for name in known.keys().filter(|name| !now.contains_key(*name)) {
            tell(&args, "vacant", name, None)?;
        }
        known = now;
        first = false;
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = ended(&mut signals) => return Ok(OK),
        }
    }
}

/// Somebody has seen enough.
async fn ended(signals: &mut Signals) {
    use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    while !matches!(signals.next().await.signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {}
}

/// What must differ for a change to be worth a line: not the ages.
fn fingerprint(info: &LockInfo) -> String {
    let holders: Vec<_> = info
        .holders
        .iter()
        .map(|holder| (holder.token, std::mem::discriminant(&holder.state), holder.mode))
        .collect();
    format!("{holders:?} {} {:?}", info.waiter_count, info.limit)
}

fn tell(args: &Ls, event: &str, name: &LockName, info: Option<&LockInfo>) -> Result<(), Failure> {
    if args.json {
        let lock = info.map_or(Value::Null, lock_json);
        return output::json(&json!({ "event": event, "name": name.as_str(), "lock": lock }));
    }
    match info {
        Some(info) => output::line(summary(info)),
        None => output::line(format!("{name}  free")),
    }
}
