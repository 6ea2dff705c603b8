//! `restore`: creates a new cluster of one node from a backup, and reports which old sessions and locks are
//! dropped.

use std::time::{Duration, SystemTime};

use lockkeeper_server::backup::{Restore as Order, RestoreError, Restored, restore as restore_to};
use serde_json::json;

use super::backup::contents_json;
use super::operate::operator;
use super::serve;
use crate::args::Restore;
use crate::exit::{CANNOT_CREATE, CONFIG, Failure, IO, OK, chain, code_below};
use crate::output;

/// The largest number of sessions, and of closed holds, that the text output names.
const NAMED_MAX: usize = 10;

pub(super) fn restore(args: Restore) -> Result<u8, Failure> {
    let data = std::path::absolute(&args.data).unwrap_or_else(|_| args.data.clone());
    let order = Order {
        file: args.file,
        data,
        node: args.node,
        tokens_above: args.tokens_above,
        audit: args.audit,
        by: operator(),
        now: SystemTime::now(),
    };
    let restored = restore_to(&order).map_err(failure)?;
    if args.json {
        say_json(&order, &restored)?
    } else {
        say(&order, &restored)?
    }
    Ok(OK)
}

fn say_json(order: &Order, restored: &Restored) -> Result<(), Failure> {
    let dropped = &restored.dropped;
    let sessions = dropped.sessions.iter().map(|(id, label)| json!({ "session": id, "label": label }));
    let closed = dropped.closed.iter().map(|(names, ms)| {
        json!({ "names": names.iter().map(|name| name.as_str()).collect::<Vec<_>>(), "closed_for_ms": ms })
    });
    output::json(&json!({
        "data": order.data.to_string_lossy(),
        "cluster": restored.cluster,
        "node": order.node,
        "tokens_above": restored.tokens_above,
        "backup": contents_json(&restored.contents),
        "dropped": {
            "sessions": sessions.collect::<Vec<_>>(),
            "holds": dropped.holds,
            "waiters": dropped.waiters,
        },
        "closed": closed.collect::<Vec<_>>(),
        "limits": dropped.limits,
    }))
}

fn say(order: &Order, restored: &Restored) -> Result<(), Failure> {
    let (dropped, contents) = (&restored.dropped, &restored.contents);
    output::line(format!(
        "{}: node {} of the new cluster {}, from the backup of cluster {}",
        order.data.display(),
        order.node,
        restored.cluster,
        contents.cluster
    ))?;
    output::line(format!(
        "tokens go on above {}; in the backup they were at {}",
        restored.tokens_above, contents.last_token
    ))?;
    output::line(format!(
        "gone: {} sessions, {} holds, {} waiters; whoever held a lock must acquire it anew",
        dropped.sessions.len(),
        dropped.holds,
        dropped.waiters
    ))?;
    for (id, label) in dropped.sessions.iter().take(NAMED_MAX) {
        output::line(format!("  session {id}: {label}"))?;
    }
    more(dropped.sessions.len())?;
    output::line(format!(
        "kept: {} stored numbers of permits; {} locks stay closed, counted from the first start",
        dropped.limits,
        dropped.closed.len()
    ))?;
    for (names, ms) in dropped.closed.iter().take(NAMED_MAX) {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        output::line(format!("  {} for {}", names.join(", "), output::human(Duration::from_millis(*ms))))?;
    }
    more(dropped.closed.len())
}

fn more(count: usize) -> Result<(), Failure> {
    match count.checked_sub(NAMED_MAX) {
        None | Some(0) => Ok(()),
        Some(more) => output::line(format!("  and {more} more; --json names them all")),
    }
}

fn failure(error: RestoreError) -> Failure {
    let code = match error {
        RestoreError::Node(error) => return serve::failure(error),
        RestoreError::ClockBehind { .. } => CONFIG,
        RestoreError::NotEmpty { .. } => CANNOT_CREATE,
        _ => code_below(&error).unwrap_or(IO),
    };
    Failure::new(code, chain(&error))
}
