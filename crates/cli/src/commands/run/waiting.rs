//! Waits for the lock until it is granted, the wait limit is over, or a signal arrives. Shows a progress line
//! on a terminal.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{
    AcquireError, Busy, Guard, HolderInfo, HolderState, Lock, LockName, Locks, Unfenced, WaiterInfo,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::outage::OutageReport;
use crate::args::CommandArgs;
use crate::exit::Failure;
use crate::guardian::{Signal, Signals};
use crate::output;
use crate::progress::ProgressLine;

/// The outcome of the wait.
pub(super) enum Waited {
    Acquired(Guard<Unfenced>),
    Busy(Busy),
    /// The duration of the wait, and the refusal of the last attempt, if it was refused.
    TimedOut(Duration, Option<Arc<str>>),
    Interrupted(Signal),
    /// A newer run with `--latest` waits behind this one: its label.
    Replaced(String),
    /// An ancestor of this process has the lock. It releases the lock only after this process has ended, so a
    /// wait would never end.
    ForItself,
}

/// Verbosity of the messages about a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Talk {
    /// Nothing.
    Quiet,
    Usual,
    /// Also without a terminal, at once.
    Verbose,
}

impl Talk {
    pub(super) fn of(args: &CommandArgs) -> Self {
        match (args.quiet, args.verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Usual,
        }
    }
}

/// The delay before the progress line is shown, so that a short wait shows no line that disappears at once.
const FIRST_LINE: Duration = Duration::from_millis(200);
/// The delay before the wait is reported without a terminal: short waits must not fill logs.
const FIRST_REPORT: Duration = Duration::from_secs(2);
/// The interval between two updates of the progress line, and the time limit for fetching its text.
const REFRESH: Duration = Duration::from_secs(1);

/// The queue position while it is not known yet.
const UNKNOWN: u64 = u64::MAX;

/// The lock that is to be acquired, and the options of the wait.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) locks: &'a Locks,
    pub(super) lock: &'a Lock<Unfenced>,
    pub(super) name: &'a LockName,
    pub(super) talk: Talk,
    /// With `--latest`: what this request has in its meta data under [`LATEST`], and no other has.
    pub(super) latest: Option<&'a str>,
}

/// The key of the meta data that says that a waiter gives way to newer ones which have it, too.
pub(super) const LATEST: &str = "latest";

pub(super) async fn acquire(
    Wish { locks, lock, name, talk, latest }: Wish<'_>,
    signals: &mut Signals,
    outage: &mut OutageReport,
) -> Result<Waited, Failure> {
    let ahead = Arc::new(AtomicU64::new(UNKNOWN));
    let lock = lock.clone().on_queued({
        let ahead = ahead.clone();
        move |waiters| ahead.store(waiters, Ordering::Relaxed)
    });
    let (refused, mut refusals) = unbounded_channel();
    let lock = lock.on_refused(move |refusal| drop(refused.send(refusal.to_string())));
    let on_terminal = stderr().is_terminal();
    let mut line: Option<ProgressLine> = None;
    let first = if on_terminal || talk == Talk::Verbose { FIRST_LINE } else { FIRST_REPORT };
    let mut refreshes = interval_at(Instant::now() + first, REFRESH);
    refreshes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = talk != Talk::Quiet;
    let mut looks = interval_at(Instant::now() + REFRESH, REFRESH);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let acquiring = lock.acquire();
    tokio::pin!(acquiring);
    loop {
        tokio::select! {
            // A grant that is available takes precedence over a signal, so that the lock is released in the
            // normal way.
            biased;
            acquired = &mut acquiring => {
                // Clears the line before anything else is written to the terminal.
                drop(line);
                return match acquired {
                    Ok(guard) => Ok(Waited::Acquired(guard)),
                    Err(AcquireError::Busy(busy)) => Ok(Waited::Busy(busy)),
                    Err(AcquireError::TimedOut { waited, why }) => Ok(Waited::TimedOut(waited, why)),
                    Err(error) => Err(error.into()),
                };
            }
            signal = signals.until_end() => return Ok(Waited::Interrupted(signal)),
            Some(refusal) = refusals.recv() => {
                drop(line.take());
                outage.failed(&refusal);
            }
            _ = looks.tick(), if latest.is_some() => {
                // As below, the time in which a grant is not noticed has a limit.
                let looked = tokio::time::timeout(REFRESH, locks.inspect(name)).await;
                let waiters = looked.ok().and_then(Result::ok).map(|lock| lock.waiters).unwrap_or_default();
                if let Some(newer) = newer(&waiters, latest.unwrap_or_default()) {
                    return Ok(Waited::Replaced(newer.label.clone()));
                }
            }
            _ = refreshes.tick(), if reports => {
                let text = tokio::select! {
                    biased;
                    text = describe(locks, name, ahead.load(Ordering::Relaxed)) => text,
                    // While the text is being fetched, this loop does not notice a grant. So the fetch has a
                    // time limit.
                    () = tokio::time::sleep(REFRESH) => {
                        format!("waiting for `{}`: no answer from the lock service so far", name.as_str())
                    }
                };
                if on_terminal {
                    line.get_or_insert_with(ProgressLine::new).show(text);
                } else {
                    output::say(text);
                    reports = false;
                }
            }
        }
    }
}

/// The last marked waiter behind the one with this mark. `waiters` are the first ones of the queue: a waiter
/// that is not among them yet finds the newer ones later.
fn newer<'a>(waiters: &'a [WaiterInfo], mark: &str) -> Option<&'a WaiterInfo> {
    let marked = |waiter: &'a WaiterInfo| waiter.meta.iter().find(|(key, _)| key == LATEST).map(|(_, it)| it);
    let own = waiters.iter().position(|waiter| marked(waiter).is_some_and(|it| it == mark))?;
    waiters[own + 1..].iter().rev().find(|waiter| marked(waiter).is_some())
}

/// The text of the progress line: the holder and the time since its grant, and the place in the queue. The
/// holder comes first, since a narrow terminal cuts the line.
async fn describe(locks: &Locks, name: &LockName, ahead: u64) -> String {
    let mut text = format!("waiting for `{}`", name.as_str());
    // Details that are not available are left out, since the wait itself continues.
    if let Ok(lock) = locks.inspect(name).await
        && let Some(holder) = lock.holds.first()
    {
        text = format!("{text}, {}", held_by(holder));
        if lock.hold_count > 1 {
            text = format!("{text} and {} more", lock.hold_count - 1);
        }
    }
    if ahead != UNKNOWN {
        text = format!("{text}; {} in the queue", ordinal(ahead.saturating_add(1)));
    }
    text
}

/// `held by x, for 5s`, or why the lock is closed.
fn held_by(holder: &HolderInfo) -> String {
    if let HolderState::Closed { .. } = holder.state {
        return output::state_text(holder).unwrap_or_default();
    }
    let held_for = holder.held_for.map(|held| format!(", for {}", output::human(held))).unwrap_or_default();
    format!("held by {}{held_for}", holder.label)
}

/// Why the lock is not free. If the lock service's answer names no holder, inspects the lock.
pub(super) async fn why_busy(locks: &Locks, name: &LockName, busy: Option<&Busy>) -> Option<String> {
    if let Some(busy) = busy.filter(|busy| busy.holder.is_some()) {
        return Some(busy.to_string());
    }
    let inspected = tokio::time::timeout(REFRESH, locks.inspect(name)).await;
    let holder = inspected.ok().and_then(Result::ok).and_then(|lock| lock.holds.first().map(held_by));
    holder.or_else(|| busy.map(Busy::to_string))
}

fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use lockkeeper::Mode;

    use super::*;

    #[test]
    fn newest_waiter_that_replaces_others_is_found() {
        let waiter = |label: &str, mark: Option<&str>| {
            let meta = mark.map(|mark| (LATEST.to_owned(), mark.to_owned())).into_iter().collect();
            WaiterInfo::new(label.to_owned(), Mode::Exclusive, meta)
        };
        let queue = [
            waiter("a", Some("1")),
            waiter("b", None),
            waiter("c", Some("2")),
            waiter("d", Some("3")),
            waiter("e", None),
        ];
        let found = |mark| newer(&queue, mark).map(|it| it.label.as_str());
        assert_eq!((found("1"), found("2"), found("3"), found("4")), (Some("d"), Some("d"), None, None));
        assert_eq!(newer(&queue[..2], "1"), None, "who does not ask for it replaces nobody");
    }

    #[test]
    fn ordinals() {
        let shown = [1, 2, 3, 4, 11, 12, 13, 21, 111].map(ordinal);
        assert_eq!(shown, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th"]);
    }
}
