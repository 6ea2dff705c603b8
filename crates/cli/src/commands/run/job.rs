//! Supervises the running command from the wrapper (this process): handles events of the guardian (the
//! process that starts the command and ends it by the lock's deadline), events of the lock, and signals that
//! this process receives.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    BootInstant, Capabilities, Guard, HolderState, LockName, Locks, LossCause, Lost, Mode, Reach, Unfenced,
};
use tokio::time::{Instant, sleep_until, timeout};

use super::leadership::{Leadership, ShownLeadership};
use super::outage::OutageReport;
use super::{RunEnd, held};
use crate::args::JobArgs;
use crate::guardian::{
    CommandEnd, Epilogue, Guarded, GuardianEvent, Left, Reason, Signal, SpawnError, Spec, boot_now, ends,
};
use crate::output::say;

/// Time limit for asking the lock service who broke a hold.
const BREAK_QUERY: Duration = Duration::from_secs(1);

/// Limits on the command's run time.
pub(super) struct Limits {
    /// The deadline that `--max-hold` sets: `--max-hold` plus the grace after the grant (`CLOCK_BOOTTIME`,
    /// ns). The guardian sends SIGTERM one grace before, when `--max-hold` is over, and SIGKILL shortly
    /// before the deadline.
    latest: Option<u64>,
    grace: Duration,
    /// How long the command may take to end after a signal.
    stop_after: Option<Duration>,
    /// Where `elect` shows that the command runs.
    shown: Option<Arc<Leadership>>,
}

impl Limits {
    /// The limits of a hold that was granted just now: `--max-hold` counts from this call.
    pub(super) fn from_now(args: &JobArgs, grace: Duration, shown: Option<Arc<Leadership>>) -> Self {
        let latest = |max| boot_now().saturating_add(nanos(max)).saturating_add(nanos(grace));
        Self { latest: args.max_hold.map(latest), grace, stop_after: args.stop_after, shown }
    }

    /// The guardian's deadline: the end of the lease, or of `--max-hold` plus the grace if that is earlier.
    fn deadline(&self, lease: Option<BootInstant>) -> Option<u64> {
        [lease.map(BootInstant::as_nanos), self.latest].into_iter().flatten().min()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Which lock a command runs under.
#[derive(Clone, Copy)]
pub(super) struct LockOf<'a> {
    pub(super) url: &'a str,
    pub(super) name: &'a LockName,
    pub(super) mode: Mode,
    pub(super) partition: Option<u32>,
}

/// The guardian's input for a command under this hold.
///
/// # Errors
/// [`Lost`] if the lock is already lost.
pub(super) fn spec(
    argv: Vec<OsString>,
    lock: LockOf<'_>,
    guard: &Guard<Unfenced>,
    limits: &Limits,
    left: Left,
    epilogue: Option<Epilogue>,
) -> Result<Spec, Lost> {
    let text = |value: Option<String>| value.map(Into::into);
    // Variables that don't apply to this hold are removed, since the wrapper itself may run under another
    // lock.
    let env = vec![
        ("LOCKKEEPER_NAME".into(), Some(lock.name.as_str().into())),
        ("LOCKKEEPER_TOKEN".into(), text(guard.token_hint().map(|token| token.to_string()))),
        ("LOCKKEEPER_SLOT".into(), text(guard.slot().map(|slot| slot.to_string()))),
        ("LOCKKEEPER_PARTITION".into(), text(lock.partition.map(|index| index.to_string()))),
        (held::VARIABLE.into(), Some(held::with(lock, guard))),
    ];
    #[cfg(feature = "otlp")]
    let env = super::traces::with_span(env);
    Ok(Spec {
        argv,
        env,
        lock_fds: guard.descriptors(),
        valid_until: limits.deadline(guard.valid_until()?),
        grace: limits.grace,
        left,
        epilogue,
    })
}

/// How the guardian frees the lock if this process is killed: by an audited break of this very hold (P4),
/// after it has ended the command and all its descendants. Otherwise others would wait until the lease has
/// ended.
///
/// `None` if the lock is freed otherwise, or must stay closed (`stays_closed`).
pub(super) fn epilogue(
    stays_closed: bool,
    url: &str,
    name: &LockName,
    capabilities: &Capabilities,
    guard: &Guard<Unfenced>,
) -> Option<Epilogue> {
    let is_possible = capabilities.ttl && capabilities.break_now && capabilities.reach == Reach::Network;
    let token = guard.token_hint().filter(|_| is_possible && !stays_closed)?.to_string();
    let by = format!("the guardian of process {}", std::process::id());
    let reason = "that process was killed, and its job has ended";
    let arguments =
        ["break", "--token", &token, "--now", "--by", &by, "--reason", reason, "--", name.as_str()]
            .map(OsString::from);
    Some(Epilogue { arguments: arguments.to_vec(), url: url.into() })
}

/// Who broke the hold, and why: as the loss said, or else as the lock service still shows it.
async fn broken(locks: &Locks, name: &LockName, guard: &Guard<Unfenced>) -> Option<String> {
    if let Some(notice) = guard.valid_until().err().and_then(|lost| lost.broken) {
        return Some(format!("{} broke it: {:?}", notice.by, notice.reason));
    }
    let info = timeout(BREAK_QUERY, locks.inspect(name)).await.ok()?.ok()?;
    let holder = info.holds.into_iter().find(|holder| holder.token == guard.token_hint())?;
    match holder.state {
        HolderState::Revoked { reason, by } => Some(format!("{by} broke it: {reason:?}")),
        _ => None,
    }
}

/// Runs the command until its last descendant has ended, and relays signals to it. `next_signal` must be
/// cancel-safe.
pub(super) async fn supervise(
    spec: Spec,
    locks: &Locks,
    lock: &LockName,
    guard: &Guard<Unfenced>,
    limits: &Limits,
    mut next_signal: impl AsyncFnMut() -> Signal,
) -> Result<RunEnd, SpawnError> {
    let name = lock.as_str();
    let left = spec.left;
    let mut told_until = spec.valid_until;
    let mut guarded = Guarded::spawn(spec).await?;
    let mut shown = ShownLeadership::begin(limits.shown.as_deref(), nanos(limits.grace));
    shown.until(told_until);
    let mut outcome: Option<CommandEnd> = None;
    let mut lost: Option<(LossCause, String)> = None;
    let (mut stop_at, mut is_stopped) = (None, false);
    let signalled = guard.lost();
    let mut outage = OutageReport::default();
    let mut trouble: Option<Arc<str>> = None;
    // The lease deadline that this loop has last seen. Initially `None`, so that the first
    // `valid_until_changes` returns at once, with any renewal that came during the spawn.
    let mut lease = None;
    loop {
        tokio::select! {
            event = guarded.next() => match event {
                GuardianEvent::Stopped => guarded.stop_too(),
                GuardianEvent::Exited(how) => {
                    shown.over();
                    outcome = Some(how);
                }
                GuardianEvent::LeftBehind { total, pids } => left_behind(name, total, &pids, left),
                GuardianEvent::Terminating(Reason::ValidUntil) => {
                    shown.over();
                    let held_too_long = told_until.is_some() && told_until == limits.latest;
                    let (cause, text) = if held_too_long {
                        (LossCause::MaxHold, "--max-hold is over".to_owned())
                    } else {
                        let why = guard.trouble().map(|why| format!(": {why}")).unwrap_or_default();
                        (LossCause::Expired, format!("its lease is about to end without a renewal{why}"))
                    };
                    say(format_args!("`{name}`: {text}; ending the command"));
                    lost.get_or_insert((cause, text));
                }
                GuardianEvent::Terminating(Reason::Asked | Reason::WrapperGone) => {}
                GuardianEvent::Gone { .. } => return Ok(match (lost, outcome) {
                    (Some((cause, why)), command) => RunEnd::Lost { cause, why, command },
                    (None, Some(outcome)) => RunEnd::Ran(outcome),
                    (None, None) => RunEnd::GuardianDied,
                }),
                GuardianEvent::GuardianDied => {
                    say(format_args!("the guardian of `{name}` was killed; the command and all it started were ended"));
                    return Ok(RunEnd::GuardianDied);
                }
            },
            () = signalled.cancelled(), if lost.is_none() => {
                shown.over();
                let loss = guard.valid_until().err();
                let cause = loss.as_ref().map_or(LossCause::Expired, |loss| loss.cause);
                // Only a break leaves the holder time to stop: in the other cases another client may hold the
                // lock already.
                let grace = if cause == LossCause::Broken { nanos(limits.grace) } else { 0 };
                guarded.end(boot_now().saturating_add(grace));
                let text = if cause == LossCause::Broken { broken(locks, lock, guard).await } else { None };
                let text = text.unwrap_or_else(|| loss.map_or_else(|| cause.to_string(), |loss| loss.why()));
                say(format_args!("the lock `{name}` was lost: {text}; ending the command"));
                lost = Some((cause, text));
            }
            now = guard.trouble_changes(trouble.as_deref()), if lost.is_none() => {
                trouble = now;
                match &trouble {
                    Some(trouble) => outage.failed(&format!("`{name}`: its lease is not renewed: {trouble}")),
                    None => outage.over(),
                }
            }
            received = next_signal() => {
                if ends(received) {
                    shown.over();
                }
                if let Some(limit) = limits.stop_after.filter(|_| ends(received)) {
                    stop_at.get_or_insert(Instant::now() + limit);
                }
                guarded.relay(received);
            }
            () = sleep_until(stop_at.unwrap_or_else(Instant::now)), if stop_at.is_some() && !is_stopped => {
                is_stopped = true;
                say(format_args!("`{name}`: --stop-after is over; killing the command"));
                guarded.end(boot_now());
            }
            // Each renewal is sent to the guardian at once, since SIGTERM could come too early otherwise:
            // with the longest grace (half the ttl), SIGTERM is due only about 15 % of the ttl after the
            // keep-alive at a third of the ttl. After a loss nothing more is sent, so the guardian ends the
            // command by the deadline that it knows.
            Ok(until) = guard.valid_until_changes(lease), if lost.is_none() => {
                lease = until;
                if let Some(until) = limits.deadline(until).filter(|until| Some(*until) != told_until) {
                    told_until = Some(until);
                    guarded.set_valid_until(until);
                    shown.until(told_until);
                }
            }
        }
    }
}

fn left_behind(name: &str, total: u32, pids: &[i32], left: Left) {
    let shown: Vec<String> = pids.iter().take(5).map(i32::to_string).collect();
    let more = if pids.len() > shown.len() { ", …" } else { "" };
    let what = match left {
        Left::End => "they are being ended".to_owned(),
        Left::Wait => {
            format!("`{name}` is held until the last has ended; SIGTERM or Ctrl-C ends them; see --left")
        }
        Left::Release => format!("they run on without `{name}`"),
    };
    say(format_args!("the command has ended, but left {total} running ({}{more}); {what}", shown.join(", ")));
}
