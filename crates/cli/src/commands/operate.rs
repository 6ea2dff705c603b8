//! `break`, `set-limit` and `check-token`: operations on locks and tokens for operators.

use std::time::{Duration, Instant};

use lockkeeper::{BreakOrder, Broken, HolderInfo, HolderState, LockName, Locks, Token, TokenStatus};
use lockkeeper_http::view::BreakView;
use serde::Serialize;
use serde_json::json;

use crate::args::{Break, CheckToken, SetLimit};
use crate::exit::{BUSY, Failure, NO, OK};
use crate::output;
use crate::settings;
use crate::view;

/// The interval at which `break --wait` checks whether the hold has ended.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The name of the user who runs this program.
pub(super) fn operator() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map_or_else(|| "unknown".to_owned(), |user| user.name)
}

pub(super) async fn break_hold(args: Break) -> Result<u8, Failure> {
    let (Some(name), Some(token)) = (args.name, args.token) else {
        unreachable!("the arguments have a name with a token, or select holds");
    };
    let name = settings::lock_name(&name)?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "break").await?;
    let by = args.by.unwrap_or_else(operator);
    let order =
        BreakOrder { name: name.clone(), token, reason: args.reason.unwrap_or_default(), by, now: args.now };
    let broken = locks.break_hold(order).await?;
    let is_over = match args.wait {
        Some(limit) if broken == Broken::Done => Some(until_over(&locks, &name, token, limit).await?),
        _ => None,
    };
    let done = broken == Broken::Done;
    if args.json {
        output::json(&BrokenView { broken: view::broken(&broken), over: is_over })?;
    } else if !done {
        output::say(format_args!("{name}: {broken}"));
    } else {
        output::line(match is_over {
            Some(true) => "its hold has ended",
            Some(false) => "told its holder to stop, and it has not yet; `lockkeeper show` tells when it has",
            None if args.now => "broken",
            None => "told its holder to stop; the lock is free when it has",
        })?;
    }
    Ok(match (done, is_over) {
        (false, _) => NO,
        (true, Some(false)) => BUSY,
        (true, _) => OK,
    })
}

/// What a break has done.
#[derive(Serialize)]
struct BrokenView {
    #[serde(flatten)]
    broken: BreakView,
    /// With `--wait`: whether the hold has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<bool>,
}

/// Polls until the hold with this token has ended, at most for `limit`. Returns whether it has. Searches the
/// holders for the token, since the token is no longer current once the break has begun.
async fn until_over(locks: &Locks, name: &LockName, token: Token, limit: Duration) -> Result<bool, Failure> {
    let end = Instant::now() + limit;
    loop {
        let lock = locks.inspect(name).await?;
        let has =
            |it: &HolderInfo| it.token == Some(token) && !matches!(it.state, HolderState::Closed { .. });
        if !lock.holds.iter().any(has) {
            return Ok(true);
        }
        if Instant::now() + POLL_EVERY > end {
            return Ok(false);
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
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
    if args.json {
        output::json(&view::token(&status))?;
    } else if live.is_empty() {
        output::line(says)?;
    } else {
        let live: Vec<String> = live.iter().map(Token::to_string).collect();
        output::line(format!("{says}; live tokens: {}", live.join(", ")))?;
    }
    Ok(if status == TokenStatus::Current { OK } else { NO })
}

pub(super) async fn set_limit(args: SetLimit) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    let url = settings::service_url(args.service.locks.as_deref())?;
    let permits = args.permits.0;
    settings::connect(&url, "set-limit").await?.set_limit(&name, permits).await?;
    if args.json {
        output::json(&json!({ "name": name.as_str(), "permits": permits }))?;
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
