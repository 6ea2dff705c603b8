//! Waits for the lock until it is granted, the wait limit is over, or a signal arrives. Shows a progress line on a
//! terminal.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{AcquireError, Busy, Guard, HolderState, Lock, LockName, Locks, Unfenced};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::exit::Failure;
use crate::guardian::{Signal, Signals};
use crate::output;
use crate::progress::ProgressLine;

/// The outcome of the wait.
pub(super) enum Waited {
    Acquired(Guard<Unfenced>),
    Busy(Busy),
    TimedOut(Duration),
    Interrupted(Signal),
}

/// The delay before the progress line is shown, so that a short wait shows no line that disappears at once.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// The delay before the wait is reported without a terminal: short waits must not fill logs.
const FIRST_REPORT: Duration = Duration::from_secs(2);
/// The interval between two updates of the progress line, and the time limit for fetching its text.
const LOOKS: Duration = Duration::from_secs(1);

/// The queue position while it is not known yet.
const UNKNOWN: u64 = u64::MAX;

pub(super) async fn acquire(
    locks: &Locks,
    lock: &Lock<Unfenced>,
    name: &LockName,
    signals: &mut Signals,
    verbose: bool,
) -> Result<Waited, Failure> {
    let ahead = Arc::new(AtomicU64::new(UNKNOWN));
    let lock = lock.clone().on_queued({
        let ahead = ahead.clone();
        move |waiters| ahead.store(waiters, Ordering::Relaxed)
    });
    let on_terminal = stderr().is_terminal();
    let mut line: Option<ProgressLine> = None;
    let first = if on_terminal || verbose { FIRST_LOOK } else { FIRST_REPORT };
    let mut looks = interval_at(Instant::now() + first, LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = true;
    let acquiring = lock.acquire();
    tokio::pin!(acquiring);
    loop {
        tokio::select! {
            // A grant that is available takes precedence over a signal, so that the lock is released in the normal
            // way.
            biased;
            acquired = &mut acquiring => {
                // Clears the line before anything else is written to the terminal.
                drop(line);
                return match acquired {
                    Ok(guard) => Ok(Waited::Acquired(guard)),
                    Err(AcquireError::Busy(busy)) => Ok(Waited::Busy(busy)),
                    Err(AcquireError::TimedOut { waited }) => Ok(Waited::TimedOut(waited)),
                    Err(error) => Err(error.into()),
                };
            }
            received = signals.next() => {
                if matches!(received.signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
                    return Ok(Waited::Interrupted(received.signal));
                }
            }
            _ = looks.tick(), if reports => {
                let text = tokio::select! {
                    biased;
                    text = describe(locks, name, ahead.load(Ordering::Relaxed)) => text,
                    // While the text is being fetched, this loop does not notice a grant. So the fetch has a time
                    // limit.
                    () = tokio::time::sleep(LOOKS) => {
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

/// The text of the progress line: queue position, holder, and time since the holder's grant.
async fn describe(locks: &Locks, name: &LockName, ahead: u64) -> String {
    let mut text = format!("waiting for `{}`", name.as_str());
    if ahead != UNKNOWN {
        text = format!("{text}, {} in the queue", ordinal(ahead.saturating_add(1)));
    }
    // Details that are not available are left out, since the wait itself continues.
    let Ok(lock) = locks.inspect(name).await else { return text };
    match lock.holders.as_slice() {
        [] => text,
        [holder] => format!("{text}: {}", output::holder_text(holder)),
        [holder, rest @ ..] => format!("{text}: {} and {} more", output::holder_text(holder), rest.len()),
    }
}

/// Why the lock is not free. If nobody holds it, the lock service is asked for the reason.
pub(super) async fn why_busy(locks: &Locks, name: &LockName, busy: &Busy) -> String {
    if busy.holder.is_none()
        && let Ok(Ok(lock)) = tokio::time::timeout(LOOKS, locks.inspect(name)).await
        && let Some(closed) = lock.holders.iter().find_map(|holder| match holder.state {
            HolderState::Closed { .. } => output::state_text(&holder.state),
            _ => None,
        })
    {
        return closed;
    }
    busy.to_string()
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
    use super::*;

    #[test]
    fn ordinals() {
        let shown = [1, 2, 3, 4, 11, 12, 13, 21, 111].map(ordinal);
        assert_eq!(shown, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th"]);
    }
}
