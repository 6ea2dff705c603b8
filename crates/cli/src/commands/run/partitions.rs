//! `partitions`: a member of a group that divides partitions, with a command for each partition that it owns.

use std::ffi::OsString;
use std::sync::Arc;

use lockkeeper::{Capabilities, HoldError, LockName, Locks, Mode, Partition, Unfenced};
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::outage::OutageReport;
use super::{
    JobTimes, PAUSE, RunEnd, SHUTDOWN_LIMIT, connect, given_back, install_signals, job, not_started, pause,
    with_options,
};
use crate::args::PartitionsArgs;
use crate::exit::{self, Failure};
use crate::guardian::{Left, Signal, Signals, stop_self};
use crate::output::say;
use crate::settings;

/// Capacity of the signal queue of a command.
const SIGNALS: usize = 16;

/// The state that the commands of all partitions share.
struct Group {
    args: PartitionsArgs,
    url: String,
    name: LockName,
    locks: Locks,
    times: JobTimes,
    /// This program's signals, for each command.
    signals: Sender<Signal>,
}

pub(in crate::commands) async fn partitions(args: PartitionsArgs) -> Result<u8, Failure> {
    if args.argv.is_empty() {
        let text = "no command to run; write it behind `--`, as in `NAME COUNT -- COMMAND {}`";
        return Err(Failure::new(exit::USAGE, text));
    }
    let name = settings::lock_name(&args.name)?;
    let mut signals = install_signals()?;
    let url = settings::locks_url(args.job.service.locks.as_deref(), args.job.service.local)?;
    let mut outage = OutageReport::default();
    let locks = loop {
        match connect(&args.job, &args.argv, &url).await {
            Err(failure) if failure.may_pass => outage.failed(&failure.message),
            connected => break connected?,
        }
        if let Some(code) = pause(&mut signals, PAUSE).await {
            return Ok(code);
        }
    };
    let times = JobTimes::of(&args.job, locks.capabilities())?;
    let group = Arc::new(Group { args, url, name, locks, times, signals: channel(SIGNALS).0 });
    let ended = loop {
        // All on this thread, since the future that supervises a command is not `Send`.
        match LocalSet::new().run_until(member(&group, &mut signals, &mut outage)).await {
            Ok(signal) => break Ok(128 + signal as u8),
            Err(MemberEnd::Lost(lost)) => {
                outage.over();
                say(format_args!("`{}`: {lost}; joining again", group.name.as_str()));
            }
            Err(MemberEnd::Failed(failure)) if failure.may_pass => outage.failed(&failure.message),
            Err(MemberEnd::Failed(failure)) => break Err(failure),
        }
        if let Some(code) = pause(&mut signals, PAUSE).await {
            break Ok(code);
        }
    };
    let _ = group.locks.clone().shutdown(SHUTDOWN_LIMIT).await;
    ended
}

/// Why a membership has ended, if not by a signal.
enum MemberEnd {
    /// The membership was lost, and its partitions with it.
    Lost(HoldError),
    Failed(Failure),
}

impl From<Failure> for MemberEnd {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Runs the commands of this member's partitions until a signal ends this program.
async fn member(
    group: &Arc<Group>,
    signals: &mut Signals,
    outage: &mut OutageReport,
) -> Result<Signal, MemberEnd> {
    let (options, times) = (group.args.job.clone(), group.times);
    let partitions = group
        .locks
        .partitions(&group.name, group.args.count)
        .with(move |lock| with_options(lock, &options, times));
    let mut member = tokio::select! {
        joined = partitions.join() => joined.map_err(Failure::from)?,
        signal = signals.until_end() => return Ok(signal),
    };
    let mut works = JoinSet::new();
    let ended = loop {
        tokio::select! {
            next = member.next() => match next {
                Ok(partition) => {
                    outage.over();
                    say(format_args!("`{}`: owns partition {}", group.name.as_str(), partition.index()));
                    works.spawn_local(work(group.clone(), partition, group.signals.subscribe()));
                }
                // The partitions that this member owns stay held.
                Err(HoldError::NotAcquired(error)) if error.may_pass() => {
                    outage.failed(&Failure::from(error).message);
                }
                Err(HoldError::NotAcquired(error)) => break Err(Failure::from(error).into()),
                Err(lost) => break Err(MemberEnd::Lost(lost)),
            },
            Some(done) = works.join_next() => {
                // A command that can't be started would not start on the next partition, either.
                if let Ok(Err(failure)) = done {
                    break Err(failure.into());
                }
            }
            received = signals.next() => {
                // Sending fails only while no command runs.
                if group.signals.send(received).is_err() && received == Signal::SIGTSTP {
                    stop_self();
                }
                if let Some(signal) = signals.ended_by() {
                    break Ok(signal);
                }
            }
        }
    };
    // Leaving gives the partitions up, which ends the commands that got no signal.
    let left = member.leave().await;
    while !works.is_empty() {
        tokio::select! {
            _ = works.join_next() => {}
            received = signals.next() => {
                let _ = group.signals.send(received);
            }
        }
    }
    if let (Ok(_), Err(error)) = (&ended, left) {
        say(format_args!("`{}`: {error}", group.name.as_str()));
    }
    ended
}

/// Runs the command for a partition repeatedly until the partition must be given up; then gives it up.
async fn work(
    group: Arc<Group>,
    partition: Partition<Unfenced>,
    mut signals: Receiver<Signal>,
) -> Result<(), Failure> {
    let index = partition.index();
    let name = settings::lock_name(&OsString::from(format!("{}/{index}", group.name.as_str())))?;
    let Group { args, url, locks, times, .. } = &*group;
    let argv: Vec<OsString> = args.argv.iter().map(|word| with_index(word, index)).collect();
    let ended = loop {
        let limits = job::Limits::from_now(&args.job, times.grace, None);
        let capabilities: &Capabilities = locks.capabilities();
        let epilogue = job::epilogue(args.job.lock_delay.is_some(), url, &name, capabilities, &partition);
        let lock = job::LockOf { url, name: &name, mode: Mode::Exclusive, partition: Some(index) };
        let Ok(spec) = job::spec(argv.clone(), lock, &partition, &limits, Left::Wait, epilogue) else {
            break None;
        };
        let mut is_told = false;
        let next_signal = async || {
            tokio::select! {
                () = partition.leaving(), if !is_told => {
                    is_told = true;
                    Signal::SIGTERM
                }
                Ok(received) = signals.recv() => received,
                else => std::future::pending().await,
            }
        };
        match job::supervise(spec, locks, &name, &partition, &limits, next_signal).await {
            Err(error) => break Some(Err(error)),
            Ok(RunEnd::Ran(command)) if !partition.is_leaving() => {
                let code = command.exit_code();
                say(format_args!(
                    "`{}`: the command has ended with exit code {code}; starting it again",
                    name.as_str()
                ));
            }
            Ok(end) => break Some(Ok(end)),
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = partition.leaving() => break None,
        }
    };
    let released = partition.release().await;
    let Some(ended) = ended else { return Ok(()) };
    given_back(released, &name, ended).or_else(not_started).map(|_| ())
}

/// Replaces each `{}` in the word by the partition's number.
fn with_index(word: &OsString, index: u32) -> OsString {
    match word.to_str() {
        Some(text) => text.replace("{}", &index.to_string()).into(),
        None => word.clone(),
    }
}
