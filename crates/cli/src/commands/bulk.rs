//! `sessions end`, and `break` of many holds: a list of what would end, a confirmation, then one call for
//! each.
//!
//! A call to the service ends one session or hold, which bounds its work. The selection is made from the
//! lists when the command begins: sessions and holds that begin later are not affected.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write, stderr, stdin};

use lockkeeper::{
    BackendError, BreakOrder, Broken, EndSessionOrder, EndedSession, HolderInfo, HolderState, LockInfo,
    LockName, Locks, SessionInfo, Token,
};
use lockkeeper_http::view::{BreakView, EndedSessionView};
use serde::Serialize;

use super::inspect::list_sessions;
use super::operate::operator;
use crate::args::{Break, SessionsEnd};
use crate::exit::{Failure, NO, OK, USAGE};
use crate::output::{self, client, human};
use crate::settings;
use crate::table::Table;
use crate::view;

/// Whether a label has these words: `root@web1 pid 7: sh` has `web1` and `pid 7`, but not `web`.
fn has_words(label: &str, words: &str) -> bool {
    output::contains_words(label, words, |char| char.is_alphanumeric() || "-_.".contains(char))
}

/// Asks a person to type the number of things that end; without a terminal, `--yes` has to say so.
fn confirm(count: usize, what: &str, consequence: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !stdin().is_terminal() {
        let why = format!(
            "{count} {what} would end, and nobody is here to confirm it: add --yes, or --dry-run to list them"
        );
        return Err(Failure::new(USAGE, why));
    }
    let mut typed = String::new();
    // If the question can't be shown, its answer does not fit.
    let _ = write!(stderr(), "This ends {count} {what}. {consequence}\nType {count} to confirm: ");
    let _ = stderr().flush();
    let read = stdin().read_line(&mut typed);
    if read.is_ok() && typed.trim() == count.to_string() {
        return Ok(());
    }
    Err(Failure::new(NO, format!("not confirmed, so nothing was ended: {:?} is not {count}", typed.trim())))
}

fn is_selected(session: &SessionInfo, args: &SessionsEnd) -> bool {
    (args.ids.is_empty() || args.ids.contains(&session.id))
        && args.label.as_ref().is_none_or(|words| has_words(&session.label, words))
        && args.identity.as_ref().is_none_or(|identity| session.identity == *identity)
}

pub(super) async fn end_sessions(args: SessionsEnd) -> Result<u8, Failure> {
    let url = settings::service_url(args.service.locks.as_deref())?;
    let locks = settings::connect(&url, "sessions end").await?;
    let mut sessions = locks.sessions().await?;
    sessions.retain(|session| is_selected(session, &args));
    if args.dry_run {
        list_sessions(&sessions, args.json)?;
        if !args.json {
            let requests: u64 = sessions.iter().map(|session| session.requests).sum();
            output::say(format_args!("{} session(s) with {requests} request(s) would end", sessions.len()));
        }
        return Ok(OK);
    }
    if sessions.is_empty() {
        return nothing(args.json, "no live session is selected");
    }
    if !args.yes {
        list_sessions(&sessions, false)?;
    }
    let longest = sessions.iter().map(|session| session.left).max().unwrap_or_default();
    let consequence = format!(
        "Their locks are free at once (or after their lock-delay). A client that lives may use what it has locked for \
         up to {}: only fencing tokens protect the resource then.",
        human(longest)
    );
    confirm(sessions.len(), "session(s)", &consequence, args.yes)?;
    let reason = args.reason.unwrap_or_default();
    let by = args.by.unwrap_or_else(operator);
    let mut ended = Vec::new();
    let ending: Result<(), BackendError> = async {
        for session in &sessions {
            let (session, reason, by) = (session.id, reason.clone(), by.clone());
            let result = locks.end_session(EndSessionOrder { session, reason, by, now: args.now }).await?;
            if result == EndedSession::Attached && !args.json {
                output::say(format_args!("session {session}: {result}"));
            }
            ended.push((session, result));
        }
        Ok(())
    }
    .await;
    let count = |wanted| ended.iter().filter(|(_, result)| *result == wanted).count();
    let left = sessions.len() - count(EndedSession::Done) - count(EndedSession::Gone);
    if args.json {
        let views: Vec<EndedSessionView> =
            ended.iter().map(|(session, result)| view::ended(*session, *result)).collect();
        output::json(&views)?;
    } else {
        output::line(format!(
            "{} ended, {} gone already, {left} left",
            count(EndedSession::Done),
            count(EndedSession::Gone)
        ))?;
    }
    // An error comes after the report of the sessions that have ended.
    ending?;
    Ok(if left == 0 { OK } else { NO })
}

fn nothing(json: bool, why: &str) -> Result<u8, Failure> {
    if json {
        output::json(&[(); 0])?;
    } else {
        output::say(why);
    }
    Ok(NO)
}

/// A selected hold. A hold of several names is selected once.
struct Selected {
    name: LockName,
    token: Token,
    holder: HolderInfo,
}

/// One line of `--json`.
#[derive(Serialize)]
struct SelectedView<'a> {
    name: &'a str,
    token: u64,
    label: &'a str,
    identity: &'a str,
    /// Absent: this is a dry run.
    #[serde(flatten)]
    broken: Option<BreakView>,
}

impl Selected {
    fn view(&self, broken: Option<&Broken>) -> SelectedView<'_> {
        SelectedView {
            name: self.name.as_str(),
            token: self.token.get(),
            label: &self.holder.label,
            identity: &self.holder.identity,
            broken: broken.map(view::broken),
        }
    }
}

/// The holds at and below `prefix` whose holder's label has the words, and whether a lock has more holds than
/// one answer lists. Closed holds have no holder; without `now` they can't be opened, so they are left out.
async fn select(
    locks: &Locks,
    prefix: Option<&LockName>,
    words: Option<&str>,
    now: bool,
) -> Result<(Vec<Selected>, bool), Failure> {
    let above = above(locks, prefix).await?;
    let (mut seen, mut found, mut has_more) = (above, Vec::new(), false);
    for mut lock in locks.list(prefix.map(LockName::as_str)).await? {
        if lock.holds.len() < lock.hold_count {
            lock = locks.inspect(&lock.name).await?;
            has_more |= lock.holds.len() < lock.hold_count;
        }
        let LockInfo { name, holds, .. } = lock;
        for holder in holds {
            let is_open = !matches!(holder.state, HolderState::Closed { .. });
            let is_wanted = match words {
                Some(words) => has_words(&holder.label, words),
                None => is_open || now,
            };
            if let Some(token) = holder.token
                && is_wanted
                && seen.insert(token)
            {
                found.push(Selected { name: name.clone(), token, holder });
            }
        }
    }
    Ok((found, has_more))
}

/// The tokens of the holds above the prefix that cover it as subtrees: those are not below it.
async fn above(locks: &Locks, prefix: Option<&LockName>) -> Result<BTreeSet<Token>, Failure> {
    let parent = prefix.and_then(|prefix| prefix.as_str().rsplit_once('/')).map(|(parent, _)| parent);
    let Some(parent) = parent else { return Ok(BTreeSet::new()) };
    let lock = locks.inspect(&settings::lock_name(parent.as_ref())?).await?;
    Ok(lock.holds.into_iter().filter(|holder| holder.subtree).filter_map(|holder| holder.token).collect())
}

pub(super) async fn break_holds(args: Break) -> Result<u8, Failure> {
    let prefix = args.prefix.as_deref().map(settings::lock_name).transpose()?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let locks = settings::connect(&url, "break").await?;
    let (holds, has_more) = select(&locks, prefix.as_ref(), args.holder.as_deref(), args.now).await?;
    if args.dry_run {
        list_holds(&holds, args.json)?;
        if !args.json {
            output::say(format_args!("{} hold(s) would be broken", holds.len()));
        }
        return Ok(OK);
    }
    if holds.is_empty() {
        return nothing(args.json, "no hold is selected");
    }
    if !args.yes {
        list_holds(&holds, false)?;
    }
    let consequence = if args.now {
        "The locks are free at once, while their holders may be working: only fencing tokens protect the resource then."
    } else {
        "Each holder is told to stop, and keeps its lock until it has, or for its ttl."
    };
    confirm(holds.len(), "hold(s)", consequence, args.yes)?;
    let by = args.by.unwrap_or_else(operator);
    let reason = args.reason.unwrap_or_default();
    let mut results = Vec::new();
    let breaking: Result<(), BackendError> = async {
        for hold in &holds {
            let (name, token, reason, by) = (hold.name.clone(), hold.token, reason.clone(), by.clone());
            results.push(locks.break_hold(BreakOrder { name, token, reason, by, now: args.now }).await?);
        }
        Ok(())
    }
    .await;
    let done = results.iter().filter(|broken| **broken == Broken::Done).count();
    if args.json {
        let views = holds.iter().zip(&results).map(|(hold, broken)| hold.view(Some(broken)));
        output::json(&views.collect::<Vec<_>>())?;
    } else {
        let how = if args.now { "broken" } else { "told to stop" };
        let over = results.len() - done;
        let more = if has_more { "; more holds are left: repeat the command" } else { "" };
        output::line(format!("{done} {how}, {over} over already{more}"))?;
    }
    // An error comes after the report of the broken holds.
    breaking?;
    Ok(if has_more { NO } else { OK })
}

fn list_holds(holds: &[Selected], json: bool) -> Result<u8, Failure> {
    if json {
        output::json(&holds.iter().map(|hold| hold.view(None)).collect::<Vec<_>>())?;
        return Ok(OK);
    }
    let mut table = Table::new(["NAME", "TOKEN", "OWNER", "HELD FOR"]);
    for Selected { name, token, holder } in holds {
        table.row([
            name.to_string(),
            token.to_string(),
            client(&holder.label, &holder.identity),
            holder.held_for.map(human).unwrap_or_default(),
        ]);
    }
    table.print()?;
    Ok(OK)
}

#[cfg(test)]
mod tests {
    use super::has_words;

    #[test]
    fn label_is_selected_by_whole_words() {
        let label = "root@web1 pid 71: backup.sh";
        for words in ["web1", "root@web1", "pid 71", "backup.sh", label] {
            assert!(has_words(label, words), "{words}");
        }
        for words in ["web", "eb1", "pid 7", "backup", "web11", ""] {
            assert!(!has_words(label, words), "{words}");
        }
        assert!(has_words("web1-b, web1", "web1"));
    }
}
