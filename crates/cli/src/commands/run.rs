//! `lockkeeper run`: takes the lock, hands the command to the guardian, and releases when nothing is left of it.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use lockkeeper::{
    AcquireError, BootInstant, Guard, Lock, LockName, Locks, LossCause, ReleaseError, Unfenced, Wait,
};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::args::Run;
use crate::exit::{Failure, INTERNAL, NOT_EXECUTABLE, NOT_FOUND, USAGE, chain};
use crate::guardian::{Event, Guarded, Outcome, Received, Signal, Signals, SpawnError, Spec};
use crate::settings;

/// Where nothing expires: from SIGTERM to SIGKILL.
const GRACE_WITHOUT_TTL: Duration = Duration::from_secs(5);
/// How long a goodbye to the lock service may take. What is not said then, the ttl says.
const GOODBYE: Duration = Duration::from_secs(2);

/// What `--status-file` tells.
struct Status {
    outcome: &'static str,
    name: String,
    token: Option<u64>,
    slot: Option<u32>,
    command: Option<Outcome>,
    lost: Option<LossCause>,
}

pub(super) async fn run(args: Run) -> Result<u8, Failure> {
    let mut status = Status {
        outcome: "failed",
        name: args.name.to_string_lossy().into_owned(),
        token: None,
        slot: None,
        command: None,
        lost: None,
    };
    let result = work(&args, &mut status).await;
    if let Some(path) = &args.status_file {
        write_status(path, &status)?;
    }
    result
}

async fn work(args: &Run, status: &mut Status) -> Result<u8, Failure> {
    let name = settings::lock_name(&args.name)?;
    // Before the wait: a signal must find us ready, and end the wait.
    let mut signals =
        Signals::install().map_err(|error| Failure::new(INTERNAL, format!("no signals: {error}")))?;
    let url = settings::locks_url(args.service.locks.as_deref(), args.service.local)?;
    let purpose: Vec<_> = args.argv.iter().map(|word| word.to_string_lossy()).collect();
    let locks = settings::connect(&url, &purpose.join(" ")).await?;
    let grace = args.grace.unwrap_or(if locks.capabilities().ttl { args.ttl / 6 } else { GRACE_WITHOUT_TTL });
    let lock = lock(args, &locks, &name, grace)?;

    let waited = tokio::select! {
        result = acquire(&locks, &name, &lock) => Ok(result),
        signal = fatal(&mut signals) => Err(signal),
    };
    let acquired = match waited {
        Ok(acquired) => acquired,
        Err(signal) => {
            // Leave the queue before we leave.
            let _ = locks.shutdown(GOODBYE).await;
            return Ok(128 + signal as u8);
        }
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(error @ (AcquireError::Busy(_) | AcquireError::TimedOut { .. })) => {
            let timed_out = matches!(error, AcquireError::TimedOut { .. });
            status.outcome = if timed_out { "timed-out" } else { "busy" };
            return Err(Failure::new(args.busy_exit, format!("`{name}`: {}", chain(&error))));
        }
        Err(error) => return Err(error.into()),
    };
    status.token = guard.token_hint().map(lockkeeper::Token::get);
    status.slot = guard.slot();

    let mut guarded = match Guarded::spawn(spec(args, &name, &guard, grace)).await {
        Ok(guarded) => guarded,
        Err(error) => {
            let _ = guard.release().await;
            let _ = locks.shutdown(GOODBYE).await;
            let code = match error {
                SpawnError::NotFound { .. } => NOT_FOUND,
                SpawnError::NotExecutable { .. } => NOT_EXECUTABLE,
                _ => INTERNAL,
            };
            return Err(Failure::new(code, chain(&error)));
        }
    };
    let lost = supervise(&name, &mut guarded, &guard, &mut signals, grace, status).await;
    finish(args, locks, &name, guard, lost, status).await
}

/// The lock with all its options.
fn lock(args: &Run, locks: &Locks, name: &LockName, grace: Duration) -> Result<Lock<Unfenced>, Failure> {
    let lock = match args.permit {
        _ if args.shared => locks.rw(name).read(),
        None => locks.mutex(name),
        Some(Some(of)) => locks.semaphore(name, of),
        Some(None) => locks.semaphore_in_force(name),
    };
    let wait = match (args.try_, args.wait) {
        (true, _) => Wait::No,
        (false, Some(wait)) => Wait::For(wait),
        (false, None) => Wait::Forever,
    };
    let mut lock = lock.ttl(args.ttl).wait(wait).max_hold(args.max_hold).grace(grace);
    if let Some(keep_closed) = args.keep_closed {
        lock = lock.keep_closed(keep_closed);
    }
    if let Some(lock_delay) = args.lock_delay {
        lock = lock.lock_delay(lock_delay);
    }
    for pair in &args.meta {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::new(USAGE, format!("--meta is `{pair}`; write KEY=VALUE")));
        };
        lock = lock.meta(key, value);
    }
    Ok(lock)
}

/// Waits for the lock. On a terminal, one line says who is in the way.
async fn acquire(
    locks: &Locks,
    name: &LockName,
    lock: &Lock<Unfenced>,
) -> Result<Guard<Unfenced>, AcquireError> {
    let mut acquiring = std::pin::pin!(lock.acquire());
    if !std::io::stderr().is_terminal() {
        return acquiring.await;
    }
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, but an uncontended lock is granted before it would be of use.
    tokio::select! {
        biased;
        done = &mut acquiring => return done,
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
    }
    loop {
        tokio::select! {
            done = &mut acquiring => {
                eprint!("\r\x1b[K");
                let _ = std::io::stderr().flush();
                return done;
            }
            _ = tick.tick() => {
                if let Ok(info) = locks.inspect(name).await {
                    let holder = info.holders.first().map(crate::output::holder_text);
                    let holder = holder.unwrap_or_else(|| "nobody holds it".to_owned());
                    let waiting = info.waiter_count;
                    eprint!("\r\x1b[Kwaiting for `{name}` ({waiting} in the queue): {holder}");
                    let _ = std::io::stderr().flush();
                }
            }
        }
    }
}

/// The next signal that asks this program to end.
async fn fatal(signals: &mut Signals) -> Signal {
    loop {
        let Received { signal, .. } = signals.next().await;
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
            return signal;
        }
    }
}

fn spec(args: &Run, name: &LockName, guard: &Guard<Unfenced>, grace: Duration) -> Spec {
    let text = |value: String| Some(OsString::from(value));
    Spec {
        argv: args.argv.clone(),
        env: vec![
            ("LOCKKEEPER_NAME".into(), text(name.to_string())),
            ("LOCKKEEPER_TOKEN".into(), guard.token_hint().and_then(|token| text(token.to_string()))),
            ("LOCKKEEPER_SLOT".into(), guard.slot().and_then(|slot| text(slot.to_string()))),
        ],
        lock_fds: guard.descriptors(),
        // A hold that is lost already has a deadline that has passed.
        valid_until: guard
            .valid_until()
            .unwrap_or(Some(BootInstant::from_nanos(0)))
            .map(BootInstant::as_nanos),
        grace,
    }
}

/// Until nothing is left of the command: hears the guardian, signals, and the lock. Says why it was lost, if it was.
async fn supervise(
    name: &LockName,
    guarded: &mut Guarded,
    guard: &Guard<Unfenced>,
    signals: &mut Signals,
    grace: Duration,
    status: &mut Status,
) -> Option<LossCause> {
    let lost = guard.lost();
    let mut told_loss = false;
    let mut terminated = false;
    let leased = matches!(guard.valid_until(), Ok(Some(_)));
    // The deadline moves with each acknowledged keep-alive; the guardian must hear of it before it gets near.
    let mut tick =
        tokio::time::interval((grace / 2).clamp(Duration::from_millis(20), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told_until = None;
    loop {
        tokio::select! {
            event = guarded.next() => match event {
                Event::Stopped => guarded.stop_too(),
                Event::Exited(outcome) => status.command = Some(outcome),
                Event::LeftBehind { total, pids } => {
                    let some: Vec<String> = pids.iter().take(5).map(i32::to_string).collect();
                    eprintln!(
                        "lockkeeper: the command has ended, {total} of its processes live on ({}{}): `{name}` stays \
                         held until they end; SIGTERM to this process ({}) ends them",
                        some.join(", "),
                        if pids.len() > 5 { ", …" } else { "" },
                        std::process::id(),
                    );
                }
                Event::Terminating(_) => terminated = true,
                Event::Gone { .. } | Event::GuardianDied => break,
            },
            received = signals.next() => guarded.relay(received),
            () = lost.cancelled(), if !told_loss => {
                told_loss = true;
                let cause = guard.loss().unwrap_or(LossCause::Expired);
                eprintln!("lockkeeper: `{name}` was lost: {cause}; ending the command");
                // Within three quarters of the grace: the library gives the hold back when the grace is over.
                let by = BootInstant::now() + grace * 3 / 4;
                guarded.end(by.as_nanos());
            }
            _ = tick.tick(), if leased => {
                if let Ok(Some(until)) = guard.valid_until()
                    && told_until != Some(until)
                {
                    guarded.set_valid_until(until.as_nanos());
                    told_until = Some(until);
                }
            }
        }
    }
    // The guardian ends a job before its lock is lost: that it had to is a loss, whatever the clock says by now.
    let ended_early =
        terminated && status.command.is_some_and(|outcome| matches!(outcome, Outcome::Signal(_)));
    guard.loss().or((ended_early && leased).then_some(LossCause::Expired)).filter(|_| terminated || told_loss)
}

/// Releases, and settles the exit code.
async fn finish(
    args: &Run,
    locks: Locks,
    name: &LockName,
    guard: Guard<Unfenced>,
    lost: Option<LossCause>,
    status: &mut Status,
) -> Result<u8, Failure> {
    let released = guard.release().await;
    let _ = locks.shutdown(GOODBYE).await;
    let lost = match released {
        Err(ReleaseError::AlreadyLost(cause)) => lost.or(Some(cause)),
        Err(ReleaseError::Ambiguous) => {
            eprintln!(
                "lockkeeper: the release of `{name}` was not answered; it is free at the latest after its ttl"
            );
            lost
        }
        _ => lost,
    };
    status.lost = lost;
    if let Some(cause) = lost {
        status.outcome = "lost";
        return Err(Failure::new(
            args.lost_exit,
            format!("`{name}` was lost while the command ran: {cause}"),
        ));
    }
    status.outcome = "ran";
    Ok(status.command.map_or(INTERNAL, Outcome::exit_code))
}

/// Written beside and renamed, so that nobody reads half of it.
fn write_status(path: &Path, status: &Status) -> Result<(), Failure> {
    let (code, signal) = match status.command {
        Some(Outcome::Code(code)) => (Some(code), None),
        Some(Outcome::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let value: Value = json!({
        "outcome": status.outcome,
        "name": status.name,
        "token": status.token,
        "slot": status.slot,
        "exit_code": code,
        "signal": signal,
        "lost": status.lost.map(LossCause::as_str),
    });
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".lockkeeper-status").tempfile_in(dir)?;
        writeln!(file, "{value}")?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write()
        .map_err(|error| Failure::new(crate::exit::IO, format!("--status-file {}: {error}", path.display())))
}
