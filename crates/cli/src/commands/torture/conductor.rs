//! Injects faults at fixed points of the workers' sections. A *round* is one such fault.
//!
//! Invariant: each round has the same order of steps. A is the first worker that reaches the round's point,
//! and gets the fault there. B is the first other worker that then reaches `Point::Write`, and waits there: B
//! has acquired the lock after A, and has read the ledger. Unless A had already written (a kill at
//! `Point::Done`), A and B have read the same ledger. While the conductor waits for B, all other workers
//! continue. If no worker reaches `Point::Write` in time, the round has no B: the lock was *held through* the
//! stall.
//!
//! The *hole* of a fence that checks writes only (docs/torture.md): (1) A reads; (2) A stalls past its lease;
//! (3) B acquires, reads, and is stopped before its write; (4) A resumes and writes; the write is accepted,
//! since nothing was written with B's token yet; (5) B writes the state that it read plus its own update, so
//! A's update is lost. In a *late* round B writes before A resumes.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::crew::{Crew, Stop};
use super::journal::now;
use super::worker::Point;
use crate::args::HolderFault;
use crate::exit::{Failure, UNAVAILABLE, USAGE};
use crate::output::human;
use crate::progress::ProgressLine;

/// The time limit for a worker's next step, in addition to three ttls (and to the pause, while A stalls): far
/// longer than a healthy lock service needs.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of undisturbed sections between two rounds, per worker on average.
const QUIET: usize = 4;

/// A fault that was injected into a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Injected {
    pub(super) fault: HolderFault,
    /// The serial number of the worker that the fault was injected into.
    pub(super) serial: u32,
    /// The time of the fault, by `journal::now`.
    pub(super) at: u64,
    /// Whether another worker acquired the lock after the fault, before this worker resumed.
    pub(super) taken_over: bool,
}

/// The kind of a round.
#[derive(Clone, Copy, Debug)]
struct TortureRound {
    fault: HolderFault,
    /// The point in A's section at which the fault is injected.
    point: Point,
    /// Whether B writes before A resumes.
    late: bool,
}

/// The durations of a run.
pub(super) struct Times {
    pub(super) ttl: Duration,
    pub(super) pause: Duration,
    pub(super) duration: Duration,
}

pub(super) struct Conductor {
    pub(super) crew: Crew,
    times: Times,
    /// Whether the locks have leases, so that the lock of a stopped holder expires.
    leased: bool,
    server: Option<Pid>,
    pub(super) injected: Vec<Injected>,
}

/// All kinds of rounds for these faults.
fn rounds(faults: &[HolderFault]) -> Vec<TortureRound> {
    let all = |fault: HolderFault| {
        let at = |point, late| TortureRound { fault, point, late };
        match fault {
            HolderFault::Pause | HolderFault::Cut => {
                vec![at(Point::Write, false), at(Point::Write, true), at(Point::Read, true)]
            }
            HolderFault::Server => vec![at(Point::Write, false), at(Point::Write, true)],
            HolderFault::Kill => vec![at(Point::Read, true), at(Point::Write, true), at(Point::Done, true)],
        }
    };
    let mut seen = Vec::new();
    for fault in faults {
        if !seen.contains(fault) {
            seen.push(*fault);
        }
    }
    seen.into_iter().flat_map(all).collect()
}

/// The lock server while it is stopped. Dropping this value continues the server, also after an error. The
/// server stays stopped if this process is killed (docs/torture.md).
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Result<Self, Stop> {
        kill(pid, Signal::SIGSTOP).map_err(|errno| refused(pid, errno))?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Checks that this user may stop the lock server's process.
///
/// # Errors
/// The process can't be signalled; the message has the reason.
pub(super) fn can_signal(pid: Pid) -> Result<(), Failure> {
    kill(pid, None).map_err(|errno| refused(pid, errno))
}

fn refused(pid: Pid, errno: Errno) -> Failure {
    let why = errno.desc();
    Failure::new(
        USAGE,
        format!("--server-pid {pid} can't be stopped ({why}); give the lock server's own process"),
    )
}

impl Conductor {
    pub(super) fn new(crew: Crew, times: Times, leased: bool, server: Option<Pid>) -> Self {
        Self { crew, times, leased, server, injected: Vec::new() }
    }

    /// Runs every kind of round once, and again until the duration is over; then lets all workers finish
    /// their sections.
    pub(super) fn conduct(&mut self, faults: &[HolderFault], workers: u32) -> Result<(), Stop> {
        let end = Instant::now() + self.times.duration;
        for _ in 0..workers {
            self.crew.start()?;
        }
        let rounds = rounds(faults);
        let (begun, line) = (Instant::now(), ProgressLine::on_terminal());
        for (number, round) in rounds.iter().cycle().enumerate() {
            if number >= rounds.len() && Instant::now() >= end {
                break;
            }
            if let Some(line) = &line {
                let (passed, of) = (human(begun.elapsed()), human(self.times.duration));
                line.show(format!("{passed} of {of} or more, {} faults injected", self.injected.len()));
            }
            match round.fault {
                HolderFault::Kill => self.killed(*round)?,
                _ => self.stalled(*round)?,
            }
        }
        self.finish()
    }

    /// Lets the workers finish `QUIET` sections per worker on average, undisturbed. Then returns the first
    /// worker that reaches `point`, and leaves it waiting there.
    fn first(&mut self, point: Point) -> Result<u32, Stop> {
        let mut quiet = QUIET * self.crew.len();
        // Each step of a worker restarts the time limit, since many sections on a slow resource may take
        // long.
        while let Some((worker, at)) = self.crew.next(self.patience())? {
            if at == Point::Done {
                quiet = quiet.saturating_sub(1);
            }
            if at == point && quiet == 0 {
                return Ok(worker);
            }
            self.crew.go(worker)?;
        }
        Err(self.nobody())
    }

    fn killed(&mut self, round: TortureRound) -> Result<(), Stop> {
        let a = self.first(round.point)?;
        let at = now();
        self.crew.kill(a)?;
        let b = self.first_at(self.patience(), |_, at| at == Point::Write)?;
        self.injected.push(Injected { fault: round.fault, serial: a, at, taken_over: b.is_some() });
        match b {
            Some(b) => self.crew.go(b),
            None => Err(self.nobody()),
        }
    }

    fn stalled(&mut self, round: TortureRound) -> Result<(), Stop> {
        let a = self.first(round.point)?;
        let at = now();
        let pause_over = Instant::now() + self.times.pause;
        let patience = match round.fault {
            // The lock belongs to a connection or a descriptor, which a stopped process keeps: that no other
            // worker gets the lock is the expected result, so the wait ends with the pause.
            HolderFault::Pause if !self.leased => pause_over,
            _ => self.patience() + self.times.pause,
        };
        self.begin(round.fault, a, pause_over)?;
        let b = self.first_at(patience, |worker, at| worker != a && at == Point::Write)?;
        self.injected.push(Injected { fault: round.fault, serial: a, at, taken_over: b.is_some() });
        if let (Some(b), true) = (b, round.late) {
            self.crew.go(b)?;
            let written = self.first_at(self.patience(), |worker, at| worker == b && at == Point::Done)?;
            written.ok_or_else(|| self.nobody())?;
            self.crew.go(b)?;
        }
        self.first_at(pause_over, |_, _| false)?;
        if round.fault == HolderFault::Pause {
            self.crew.resume(a)?;
        }
        self.crew.go(a)?;
        let done = self.first_at(self.patience(), |worker, at| worker == a && at == Point::Done)?;
        done.ok_or_else(|| self.nobody())?;
        self.crew.heal(a);
        self.crew.go(a)?;
        match b {
            Some(b) if !round.late => self.crew.go(b),
            _ => Ok(()),
        }
    }

    /// Begins the stall of worker `a`. For `HolderFault::Server`: stops the lock server, waits until the
    /// pause is over, and continues the server.
    fn begin(&mut self, fault: HolderFault, a: u32, pause_over: Instant) -> Result<(), Stop> {
        match (fault, self.server) {
            (HolderFault::Pause, _) => self.crew.stop(a),
            (HolderFault::Cut, _) => {
                self.crew.cut(a);
                Ok(())
            }
            (HolderFault::Server, Some(pid)) => {
                let stopped = Stopped::new(pid)?;
                // Workers that reach a point during the pause continue, until they wait for the server.
                self.first_at(pause_over, |_, _| false)?;
                drop(stopped);
                Ok(())
            }
            (HolderFault::Server | HolderFault::Kill, _) => Ok(()),
        }
    }

    /// Lets all workers continue until one reaches a point for which `wanted` is true, and leaves that worker
    /// waiting there. `None` if no worker reaches one before `until`.
    fn first_at(
        &mut self,
        until: Instant,
        mut wanted: impl FnMut(u32, Point) -> bool,
    ) -> Result<Option<u32>, Stop> {
        while let Some((worker, point)) = self.crew.next(until)? {
            if wanted(worker, point) {
                return Ok(Some(worker));
            }
            self.crew.go(worker)?;
        }
        Ok(None)
    }

    /// Lets each worker finish its section and keeps it from starting another.
    fn finish(&mut self) -> Result<(), Stop> {
        for _ in 0..self.crew.len() {
            let idle = self.first_at(self.patience(), |_, at| at == Point::Idle)?;
            idle.ok_or_else(|| self.nobody())?;
        }
        self.crew.part();
        Ok(())
    }

    /// The instant by which the next expected step of a worker must have happened.
    fn patience(&self) -> Instant {
        Instant::now() + 3 * self.times.ttl + PATIENCE
    }

    fn nobody(&self) -> Stop {
        let waited = 3 * self.times.ttl + PATIENCE;
        let after = match self.injected.last() {
            Some(injected) => format!("after the last fault ({})", injected.fault.name()),
            None => "before the first fault".to_owned(),
        };
        Failure::new(UNAVAILABLE, format!("the workers stood still for {waited:?} {after}: nobody got the lock, or the resource did not answer")).into()
    }
}
