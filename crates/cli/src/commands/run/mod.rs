//! `run`: runs a command under a lock. `elect` and `partitions` do so again and again.
//!
//! Acquires the lock (`waiting`), passes the command and the deadline to the guardian (`job`), and releases
//! the lock once the command and all its descendants have ended. Chooses the exit code and writes the status
//! file. The *guardian* is a second process, which starts the command and ends it by the lock's deadline,
//! even if this process (the *wrapper*) is stopped or killed.

pub(super) mod elect;
mod held;
mod job;
mod leadership;
mod once;
mod outage;
pub(super) mod partitions;
mod status;
#[cfg(feature = "otlp")]
mod traces;
mod waiting;

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    Capabilities, Lock, LockName, Locks, LossCause, Lost, Mode, ReleaseError, Unfenced, VerifyError,
};
use tokio::time::{Instant, sleep, timeout_at};

use self::leadership::Leadership;
use self::once::CommandRecord;
use self::outage::OutageReport;
use self::status::{RunOutcome, Status, StatusFile};
use self::waiting::{Talk, Wish};
use crate::args::{JobArgs, Run};
use crate::exit::{self, Failure};
use crate::guardian::{self, Signals, SpawnError};
use crate::{output, settings};

/// The default ttl.
const TTL: Duration = Duration::from_secs(30);
/// The pause before another attempt to connect, or to acquire, after one has failed.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The default grace for locks without a lease; the library has the same default.
const GRACE_WITHOUT_LEASE: Duration = Duration::from_secs(5);
/// After a break, the library ends the hold when the hold's grace is over. That grace is this much longer
/// than the guardian's, so that the command has ended and this process has released the hold before.
const GRACE_OF_THE_HOLD: Duration = Duration::from_secs(5);
/// How much longer than the grace `--linger` must be.
const LINGER_MARGIN: Duration = Duration::from_secs(1);
/// The time limit for closing the session, which ends with the process in any case.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Why `run` ends; determines the exit code and the status file.
enum RunEnd {
    /// The command ran to its end under the lock.
    Ran(guardian::CommandEnd),
    /// The command ended with 0 after a signal had asked it to end. Its `--once-key` is not recorded: the
    /// work may be incomplete.
    LeftOpen(guardian::Signal, guardian::CommandEnd),
    /// An earlier run has recorded the `--once-key`, so the command was not run again. Contains who recorded
    /// it.
    AlreadyDone(String),
    /// The lock was not free, and no wait was requested.
    Busy(String),
    /// The lock did not become free in time.
    TimedOut(String),
    /// The lock was lost, before the command was started or while it ran.
    Lost {
        cause: LossCause,
        /// The cause, with the lock service's reason.
        why: String,
        /// The command's outcome, if there is one.
        command: Option<guardian::CommandEnd>,
    },
    /// A signal arrived during the wait.
    Interrupted(guardian::Signal),
    /// The guardian was killed; the command and all its descendants have ended.
    GuardianDied,
}

/// The hold's data for the status file.
#[derive(Default)]
struct HoldStatus {
    token: Option<u64>,
    slot: Option<u32>,
}

/// The pause before `elect` or `partitions` starts a command again after it ended by itself, or tries again
/// after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Pauses, or returns early if a signal asks this program to end. Returns the exit code if such a signal has
/// arrived, even before the call.
async fn pause(signals: &mut Signals, pause: Duration) -> Option<u8> {
    let _ = tokio::time::timeout(pause, asked_to_end(signals)).await;
    signals.ended_by().map(|signal| 128 + signal as u8)
}

/// Waits for a signal that ends this program; returns at once if one has arrived before.
async fn asked_to_end(signals: &mut Signals) {
    while signals.ended_by().is_none() {
        signals.until_end().await;
    }
}

fn install_signals() -> Result<Signals, Failure> {
    Signals::install().map_err(|error| Failure::system(exit::INTERNAL, "cannot listen to signals", &error))
}

pub(super) async fn run(mut args: Run) -> Result<u8, Failure> {
    args.command.take_name();
    if args.reenter {
        held::reenter(&args).await?;
    }
    let file = args.status_file.as_deref().map(StatusFile::prepare).transpose()?;
    let mut held = HoldStatus::default();
    // Dropped last, at the end of this function: the drop sends the remaining spans.
    #[cfg(feature = "otlp")]
    let traces = traces::start(&args);
    let end = match install_signals() {
        Ok(mut signals) => {
            let mut outage = OutageReport::default();
            let work = under_lock(&args, &mut signals, &mut outage, None, |hold| held = hold);
            #[cfg(feature = "otlp")]
            let work = traces::traced(&args, traces.as_ref(), work);
            work.await
        }
        Err(failure) => Err(failure),
    };
    let code = match &end {
        Ok(end) => end.exit_code(&args),
        Err(failure) => failure.code,
    };
    if let Ok(end) = &end
        && let Some(text) = end.text(&args, stderr().is_terminal())
    {
        output::say(text);
    }
    if let Some(file) = file {
        let name = args.command.name.to_string_lossy().into_owned();
        let mut status = Status { name, token: held.token, slot: held.slot, exit: code, ..status_of(&end) };
        if let Err(failure) = &end {
            status.error = Some(failure.message.clone());
        }
        if let Err(failure) = file.write(&status) {
            // A failed run's own exit code takes precedence over the status file's error.
            return if code == exit::OK {
                Err(failure)
            } else {
                end.map(|_| failure.report(false)).map(|_| code)
            };
        }
    }
    end.map(|_| code)
}

impl RunEnd {
    /// The message that says why the command did not run. `None` if that message is not wanted: with
    /// `--quiet`, or if a busy lock counts as a success and no terminal is attached.
    fn text(&self, args: &Run, on_terminal: bool) -> Option<&str> {
        let (text, expected) = match self {
            Self::Busy(text) | Self::TimedOut(text) => (text, args.busy_exit == exit::OK && !on_terminal),
            Self::AlreadyDone(text) => (text, false),
            _ => return None,
        };
        (!args.command.quiet && !expected).then_some(text)
    }

    fn exit_code(&self, args: &Run) -> u8 {
        match self {
            Self::Ran(outcome) => outcome.exit_code(),
            Self::AlreadyDone(_) => exit::OK,
            Self::Busy(_) | Self::TimedOut(_) => args.busy_exit,
            Self::Lost { .. } => args.command.lost_exit,
            Self::Interrupted(signal) | Self::LeftOpen(signal, _) => 128 + *signal as u8,
            Self::GuardianDied => exit::INTERNAL,
        }
    }
}

fn status_of(end: &Result<RunEnd, Failure>) -> Status {
    let (outcome, child, error) = match end {
        Ok(RunEnd::Ran(child)) => (RunOutcome::Ran, Some(*child), None),
        Ok(RunEnd::LeftOpen(signal, child)) => (RunOutcome::Ran, Some(*child), Some(left_open(*signal))),
        Ok(RunEnd::AlreadyDone(_)) => (RunOutcome::AlreadyDone, None, None),
        Ok(RunEnd::Busy(text)) => (RunOutcome::Busy, None, Some(text.clone())),
        Ok(RunEnd::TimedOut(text)) => (RunOutcome::TimedOut, None, Some(text.clone())),
        Ok(RunEnd::Lost { why, command, .. }) => (RunOutcome::Lost, *command, Some(why.clone())),
        Ok(RunEnd::Interrupted(signal)) => {
            (RunOutcome::Failed, None, Some(format!("{signal} while it waited")))
        }
        Ok(RunEnd::GuardianDied) => (RunOutcome::Failed, None, Some("the guardian was killed".to_owned())),
        Err(_) => (RunOutcome::Failed, None, None),
    };
    let lost = if let Ok(RunEnd::Lost { cause, .. }) = end { Some(*cause) } else { None };
    Status { outcome, child, lost, error, ..Status::default() }
}

/// The text about a command that a signal has interrupted before its `--once-key` was recorded.
fn left_open(signal: guardian::Signal) -> String {
    format!("{signal} came before the command had ended, so it is not recorded as done: it will run again")
}

/// Runs the command under its lock. Calls `tell` once the lock is held. With `--wait`, temporary failures are
/// retried until the end of the wait; without it, they are returned. `shown` shows while the command runs.
async fn under_lock(
    args: &Run,
    signals: &mut Signals,
    outage: &mut OutageReport,
    shown: Option<&Arc<Leadership>>,
    tell: impl FnOnce(HoldStatus),
) -> Result<RunEnd, Failure> {
    if args.command.argv.is_empty() {
        let text = "no command to run; write it behind `--`, as in `NAME -- COMMAND`";
        return Err(Failure::new(exit::USAGE, text));
    }
    let name = settings::lock_name(&args.command.name).map_err(|mut failure| {
        if args.command.name.is_empty() {
            failure.message += "; write it before the command, as in `NAME -- COMMAND`";
        }
        failure
    })?;
    let silent = args.job.service.local || args.command.quiet;
    let url = settings::locks_url(args.job.service.locks.as_deref(), silent)?;
    let record = CommandRecord::of(args, &url)?;
    if let Some(done) = already_done(record.as_ref()).await? {
        return Ok(done);
    }
    let end = args.wait.map(|limit| Instant::now() + limit);
    let locks = tokio::select! {
        connected = connect_patiently(args, &url, end, outage) => connected?,
        signal = signals.until_end() => return Ok(RunEnd::Interrupted(signal)),
    };
    let run =
        ConnectedRun { args, locks: &locks, url: &url, name: &name, end, record: record.as_ref(), shown };
    let ended = under_lock_of(run, signals, outage, tell).await;
    // Always shut down, since an abandoned session counts towards its user's quota until its ttl is over. The
    // shutdown also ends a hold whose `min_hold` is not over.
    if !matches!(ended, Ok(SessionEnd::Expires(_))) {
        let _ = locks.shutdown(SHUTDOWN_LIMIT).await;
    }
    ended.map(|(SessionEnd::Closed(end) | SessionEnd::Expires(end))| end)
}

/// Returns a random mark for the meta data of this run's request, by which the run finds its own waiter in
/// the queue.
fn latest_mark(can: &Capabilities) -> Result<String, Failure> {
    if !can.fair || !can.inspect {
        let text = "`--latest` needs a lock service with a queue; DynamoDB and Redlock have none";
        return Err(Failure::new(exit::USAGE, text));
    }
    let random = getrandom::u64()
        .map_err(|error| Failure::system(exit::INTERNAL, "cannot draw random numbers", &error.into()))?;
    Ok(format!("{random:016x}"))
}

/// How a run's session ends.
enum SessionEnd {
    Closed(RunEnd),
    /// The session is left to expire: its lock-delay covers the rest of `--min-hold`.
    Expires(RunEnd),
}

/// A run with its connection, which the caller closes.
#[derive(Clone, Copy)]
struct ConnectedRun<'a> {
    args: &'a Run,
    locks: &'a Locks,
    url: &'a str,
    name: &'a LockName,
    /// The end of `--wait`.
    end: Option<Instant>,
    /// The record of `--once-key`, if that option is set.
    record: Option<&'a CommandRecord>,
    shown: Option<&'a Arc<Leadership>>,
}

/// [`under_lock`] with a connection.
async fn under_lock_of(
    ConnectedRun { args, locks, url, name, end, record, shown }: ConnectedRun<'_>,
    signals: &mut Signals,
    outage: &mut OutageReport,
    tell: impl FnOnce(HoldStatus),
) -> Result<SessionEnd, Failure> {
    let times = JobTimes::of(&args.job, locks.capabilities())?;
    let talk = Talk::of(&args.command);
    let latest = args.latest.then(|| latest_mark(locks.capabilities())).transpose()?;
    let waited = loop {
        // The time spent on connecting counts towards `--wait`, so only the rest is left for the queue.
        let wait = end.map(|end| end.saturating_duration_since(Instant::now()));
        let lock = lock(locks, name, args, wait, times);
        let lock = held::tokens(url).into_iter().fold(lock, Lock::holding_token);
        let lock = latest.iter().fold(lock, |lock, mark| lock.meta(waiting::LATEST, mark));
        let wish = Wish { locks, lock: &lock, name, talk, latest: latest.as_deref() };
        let waited = match held::by_ancestor(url, name) {
            Some(hold) if !args.try_ => held::acquire(wish, &hold, signals, outage).await,
            _ => waiting::acquire(wish, signals, outage).await,
        };
        match waited {
            Err(failure) if is_waited_for(&failure, end) => {
                outage.failed(&failure.message);
                tokio::select! {
                    () = sleep(TRY_AGAIN) => {}
                    signal = signals.until_end() => return Ok(SessionEnd::Closed(RunEnd::Interrupted(signal))),
                }
            }
            waited => break waited?,
        }
    };
    let guard = match waited {
        waiting::Waited::Acquired(guard) => guard,
        waiting::Waited::Busy(busy) => {
            let why = waiting::why_busy(locks, name, Some(&busy)).await.unwrap_or_default();
            return Ok(SessionEnd::Closed(RunEnd::Busy(format!("`{}` is busy: {why}", name.as_str()))));
        }
        waiting::Waited::TimedOut(waited, refused) => {
            let why = match refused {
                Some(refused) => Some(refused.to_string()),
                None => waiting::why_busy(locks, name, None).await,
            };
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let text =
                format!("`{}` did not become free within {}{why}", name.as_str(), output::human(waited));
            return Ok(SessionEnd::Closed(RunEnd::TimedOut(text)));
        }
        waiting::Waited::Replaced(newer) => {
            let text = format!("`{}` is left to a newer run that waits, too: {newer}", name.as_str());
            return Ok(SessionEnd::Closed(RunEnd::Busy(text)));
        }
        waiting::Waited::ForItself => {
            let text = format!(
                "`{}` is held for the command that runs this one (LOCKKEEPER_HELD), and would be waited for until that has \
                 ended: don't take it again, run under that hold (--reenter), or take another name",
                name.as_str()
            );
            return Err(Failure::new(exit::DEADLOCK, text));
        }
        waiting::Waited::Interrupted(signal) => return Ok(SessionEnd::Closed(RunEnd::Interrupted(signal))),
    };
    outage.over();
    let held_since = Instant::now();
    if let Some(done) = already_done(record).await? {
        return Ok(SessionEnd::Closed(done));
    }
    let limits = job::Limits::from_now(&args.job, times.grace, shown.cloned());
    tell(HoldStatus { token: guard.token_hint().map(|token| token.get()), slot: guard.slot() });
    let stays_closed = args.keep_closed.is_some()
        || args.min_hold.is_some()
        || args.rate.is_some()
        || args.job.lock_delay.is_some();
    let epilogue = job::epilogue(stays_closed, url, name, locks.capabilities(), &guard);
    let argv = args.command.argv.clone();
    let lock = job::LockOf { url, name, mode: mode(args), partition: None };
    let mut ended = match job::spec(argv, lock, &guard, &limits, args.left, epilogue) {
        Ok(spec) => job::supervise(spec, locks, name, &guard, &limits, async || signals.next().await).await,
        Err(lost) => Ok(lost_by(lost, None)),
    };
    let recorded = match (record, &ended) {
        (Some(record), Ok(RunEnd::Ran(command))) if command.exit_code() == exit::OK => {
            // An exit code 0 is a success only if this process has sent no signal: many commands end with 0
            // on SIGTERM.
            match (signals.asked(), guard.verify().await) {
                (None, Err(VerifyError::Lost(lost))) => {
                    ended = Ok(lost_by(lost, Some(*command)));
                    Ok(None)
                }
                (None, _) => record.put(&once::by(args)).await,
                (Some(signal), _) => {
                    output::say(left_open(signal));
                    ended = Ok(RunEnd::LeftOpen(signal, *command));
                    Ok(None)
                }
            }
        }
        _ => Ok(None),
    };
    let is_held_longer = args.min_hold.is_some_and(|min| held_since.elapsed() < min);
    // A command that was not started has no `--min-hold`: the shutdown ends the hold.
    if ended.is_ok() || args.min_hold.is_none() {
        tokio::select! {
            released = guard.release() => ended = given_back(released, name, ended),
            // A signal ends the wait for `--min-hold`: the session is left to expire, and its lock-delay
            // covers the rest.
            () = asked_to_end(signals), if is_held_longer => {
                recorded?;
                return ended.or_else(not_started).map(SessionEnd::Expires);
            }
        }
    }
    if let Some(other) = recorded? {
        let text = format!("the command was done twice: it is recorded {other}, so the lock had been lost");
        return Err(Failure::new(args.command.lost_exit, text));
    }
    ended.or_else(not_started).map(SessionEnd::Closed)
}

/// The end of a run whose command was done before.
async fn already_done(record: Option<&CommandRecord>) -> Result<Option<RunEnd>, Failure> {
    let Some(record) = record else { return Ok(None) };
    let done = record.done_by().await?;
    Ok(done.map(|by| RunEnd::AlreadyDone(format!("not run: it was done {by}"))))
}

fn lost_by(lost: Lost, command: Option<guardian::CommandEnd>) -> RunEnd {
    RunEnd::Lost { cause: lost.cause, why: lost.why(), command }
}

/// Prints the error of a release if there is one, unless the command's outcome already implies it. If the
/// release found the hold gone, the outcome is a lost lock.
fn given_back(
    released: Result<(), ReleaseError>,
    name: &LockName,
    ended: Result<RunEnd, SpawnError>,
) -> Result<RunEnd, SpawnError> {
    match (&released, &ended) {
        (Ok(()), _) | (Err(ReleaseError::AlreadyLost(_)), Ok(RunEnd::Lost { .. }) | Err(_)) => {}
        (Err(error), _) => output::say(format_args!("`{}`: {error}", name.as_str())),
    }
    match (released, ended) {
        (Err(ReleaseError::AlreadyLost(lost)), Ok(RunEnd::Ran(command) | RunEnd::LeftOpen(_, command))) => {
            Ok(lost_by(lost, Some(command)))
        }
        (_, ended) => ended,
    }
}

/// The end of a command that could not be started.
fn not_started(error: SpawnError) -> Result<RunEnd, Failure> {
    let text = match std::error::Error::source(&error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    };
    let code = match &error {
        SpawnError::NotFound { .. } => exit::NOT_FOUND,
        SpawnError::NotExecutable { .. } | SpawnError::Other { .. } => exit::NOT_EXECUTABLE,
        SpawnError::TooLate { .. } => {
            output::say(&text);
            return Ok(RunEnd::Lost { cause: LossCause::Expired, why: text, command: None });
        }
        _ => exit::INTERNAL,
    };
    Err(Failure::new(code, text))
}

async fn connect(args: &JobArgs, argv: &[OsString], url: &str) -> Result<Locks, Failure> {
    if let Some(label) = &args.label {
        return Ok(Locks::connect_as(url, label).await?);
    }
    settings::connect(url, &program(argv)).await
}

/// The name of the command's program, without its directory.
fn program(argv: &[OsString]) -> String {
    let program = argv.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    program.to_string_lossy().into_owned()
}

/// Whether another attempt is made before the end of `--wait`.
fn is_waited_for(failure: &Failure, end: Option<Instant>) -> bool {
    failure.may_pass && end.is_some_and(|end| Instant::now() + TRY_AGAIN < end)
}

/// Connects. With `--wait`, tries again until its end: the service may be starting, or refuse for a while.
async fn connect_patiently(
    args: &Run,
    url: &str,
    end: Option<Instant>,
    outage: &mut OutageReport,
) -> Result<Locks, Failure> {
    let Some(end) = end else { return connect(&args.job, &args.command.argv, url).await };
    loop {
        match timeout_at(end, connect(&args.job, &args.command.argv, url)).await {
            Ok(Err(failure)) if is_waited_for(&failure, Some(end)) => outage.failed(&failure.message),
            Ok(connected) => return connected,
            Err(_) => {
                let limit = output::human(args.wait.unwrap_or_default());
                let text = format!("the lock service did not answer within {limit}");
                return Err(Failure::new(exit::UNAVAILABLE, text));
            }
        }
        sleep(TRY_AGAIN).await;
    }
}

fn lock(
    locks: &Locks,
    name: &LockName,
    args: &Run,
    wait: Option<Duration>,
    times: JobTimes,
) -> Lock<Unfenced> {
    let name = name.as_str();
    let lock = match (args.shared, args.permit, args.rate) {
        (true, _, _) => locks.rw(name).read(),
        (false, Some(Some(permits)), _) => locks.semaphore(name, permits),
        (false, Some(None), _) => locks.semaphore_in_force(name),
        (false, None, Some((count, per))) => locks.rate(name, count, per),
        (false, None, None) => locks.mutex(name),
    };
    let keep_closed = args.rate.map(|(_, per)| per).or(args.keep_closed);
    let wait = match (args.try_, wait) {
        (true, _) => lockkeeper::Wait::No,
        (false, Some(limit)) => lockkeeper::Wait::For(limit),
        (false, None) => lockkeeper::Wait::Forever,
    };
    let lock = lock.wait(wait).keep_closed(keep_closed.unwrap_or_default());
    let lock = args.max_waiters.into_iter().fold(lock, Lock::max_waiters);
    with_options(lock.min_hold(args.min_hold.unwrap_or_default()), &args.job, times)
}

fn mode(args: &Run) -> Mode {
    match (args.shared, args.permit) {
        (true, _) => Mode::Shared,
        (false, Some(_)) => Mode::Permit,
        (false, None) => Mode::Exclusive,
    }
}

/// The lock with the options of its job.
fn with_options(lock: Lock<Unfenced>, args: &JobArgs, times: JobTimes) -> Lock<Unfenced> {
    let lock = lock
        .ttl(times.ttl)
        // `max_hold` is not set, since the guardian enforces `--max-hold`: the library runs in this process,
        // and could not enforce the limit while this process is stopped.
        .grace(times.grace + GRACE_OF_THE_HOLD)
        .lock_delay(args.lock_delay.unwrap_or_default())
        .linger(args.linger.unwrap_or_default())
        .value(args.value.clone().unwrap_or_default());
    args.meta.iter().fold(lock, |lock, (key, value)| lock.meta(key, value))
}

/// The times that a job's options give.
#[derive(Clone, Copy)]
struct JobTimes {
    ttl: Duration,
    /// From SIGTERM to SIGKILL.
    grace: Duration,
}

impl JobTimes {
    fn of(args: &JobArgs, capabilities: &Capabilities) -> Result<Self, Failure> {
        let leased = capabilities.ttl;
        if args.ttl.is_some() && !leased {
            let text = format!(
                "--ttl is for lock services with leases, and `{}` has none: its locks end with the process that holds them",
                capabilities.backend
            );
            return Err(Failure::new(exit::USAGE, text));
        }
        let ttl = args.ttl.unwrap_or(TTL);
        let default = if leased { ttl / 6 } else { GRACE_WITHOUT_LEASE };
        let grace = args.grace.unwrap_or(default);
        // SIGTERM is due one grace before the lease deadline, and a keep-alive is sent every third of the
        // ttl. With a grace near two thirds of the ttl, SIGTERM would be due before the next keep-alive could
        // be acknowledged.
        let most = ttl / 2;
        if leased && grace > most {
            let text = format!(
                "--grace is {}, at most half the ttl ({}) is allowed; use a longer --ttl",
                output::human(grace),
                output::human(most)
            );
            return Err(Failure::new(exit::USAGE, text));
        }
        // The guardian needs the grace to end the command of a killed wrapper, and a moment more.
        let least = grace + LINGER_MARGIN;
        if let Some(linger) = args.linger
            && linger < least
        {
            let text = format!(
                "--linger is {}, at least the grace and a second ({}) are needed: the command must have ended before the lock \
                 is free; use a shorter --grace",
                output::human(linger),
                output::human(least)
            );
            return Err(Failure::new(exit::USAGE, text));
        }
        Ok(Self { ttl, grace })
    }
}
