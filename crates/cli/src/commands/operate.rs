//! `break`, `set-limit` and `check-token`: operations on locks and tokens for operators.

use lockkeeper::{BreakOrder, Broken, TokenStatus};
use serde_json::json;

use crate::args::{Break, CheckToken, SetLimit};
use crate::exit::{Failure, NO, OK};
use crate::output;
use crate::settings;

pub(super) async fn break_hold(args: Break) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "break").await?;
    let by = args.by.unwrap_or_else(|| {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
        user.map_or_else(|| "unknown".to_owned(), |user| user.name)
    });
    let order = BreakOrder { name, token: args.token, reason: args.reason, by, now: args.now };
    let broken = locks.break_hold(order).await?;
    let live: Vec<u64> = match &broken {
        Broken::NotCurrent { live } => live.iter().map(|token| token.get()).collect(),
        _ => Vec::new(),
    };
    let done = broken == Broken::Done;
    if args.json {
        output::json(&json!({ "broken": done, "says": broken.to_string(), "live_tokens": live }))?;
    } else if done && !args.now {
        output::line("told its holder to stop; the lock is free when it has")?;
    } else {
        output::line(broken.to_string())?;
    }
    Ok(if done { OK } else { NO })
}

pub(super) async fn check_token(args: CheckToken) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let status = settings::connect(&url, "check-token").await?.check_token(&name, args.token).await?;
    let (says, live) = match &status {
        TokenStatus::Current => ("current", Vec::new()),
        TokenStatus::NotCurrent { live } => ("not current", live.clone()),
        TokenStatus::NeverIssued => ("never issued", Vec::new()),
    };
    let live: Vec<u64> = live.iter().map(|token| token.get()).collect();
    if args.json {
        output::json(&json!({ "status": says, "live_tokens": live }))?;
    } else if live.is_empty() {
        output::line(says)?;
    } else {
        let live: Vec<String> = live.iter().map(u64::to_string).collect();
        output::line(format!("{says}; live tokens: {}", live.join(", ")))?;
    }
    Ok(if status == TokenStatus::Current { OK } else { NO })
}

pub(super) async fn set_limit(args: SetLimit) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let permits = args.permits.0;
    settings::connect(&url, "set-limit").await?.set_limit(&name, permits).await?;
    if args.json {
        output::json(&json!({ "name": name.as_str(), "limit": permits }))?;
    } else {
        output::line(match permits {
            Some(permits) => format!("{name}: {permits} permits from now on, whatever others ask for"),
            None => {
                format!("{name}: no number is stored any more; who takes a permit says how many there are")
            }
        })?;
    }
    Ok(OK)
}
