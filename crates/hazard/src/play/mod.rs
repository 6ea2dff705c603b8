//! The play: processes, lock service and resource under virtual time.
//!
//! Every decision is made by production code: the table grants and expires, the client's machine renews and
//! finds out that its lease has ended, the fence refuses. Here are only the network, the faults and the
//! program that uses the lock; and the timers of a leader are modelled (`service.rs`).

mod program;
mod words;

use std::collections::BTreeMap;

use lockkeeper::machine::{CallId, CallKind, Event, NotAcquired, Output};
use lockkeeper_core::ModeKind;
use lockkeeper_fence::Section;

use crate::client::{Client, Sent};
use crate::locks::PlayedLocks;
use crate::outcome;
use crate::process::{Arrival, KnownHold, Process, ProgramState};
use crate::recorder::Recorder;
use crate::resource::{BalanceRead, PlayedAccount};
use crate::settings::{Others, Pause, Settings, SettingsError};
use crate::trace::{Lane, Phase, SpanKind, StepKind, Trace};
use words::{answer_text, call_text, shown};

/// Latency of a message. Longer than a real network's, so that the picture shows it.
const LATENCY_MS: u64 = 200;
/// When B and C start. A starts at 0.
const START_MS: [u64; 2] = [1_000, 1_300];
/// A play ends here at the latest.
const END_MS_MAX: u64 = 900_000;
/// Maximum events of a play. Bounds the work for settings with which the processes retry often.
const HAPPENINGS_MAX: usize = 50_000;

/// Simulates these settings.
///
/// Deterministic: the same settings give the same trace. Takes a few milliseconds.
///
/// # Errors
/// [`SettingsError::Together`]: the settings do not fit together.
pub fn play(settings: &Settings) -> Result<Trace, SettingsError> {
    settings.check()?;
    let mut play = Play::new(settings);
    play.run();
    Ok(play.finish())
}

struct Play<'settings> {
    settings: &'settings Settings,
    now: u64,
    queue: BTreeMap<(u64, usize), Happening>,
    /// Number of events queued so far; the second part of the key, which orders events of the same time.
    queued: usize,
    locks: PlayedLocks,
    locks_wake_ms: Option<u64>,
    resource: PlayedAccount,
    processes: Vec<Process>,
    /// A reader has read two different balances under one lock: the reader, the first and the second.
    torn: Option<(Lane, i64, i64)>,
    recorder: Recorder,
}

enum Happening {
    Start(usize),
    Wakes(usize),
    Resume(usize, Pause),
    HasWorked(usize),
    /// For a process, from the lock service or the resource.
    Arrives(usize, Arrival),
    Call(usize, CallId, CallKind),
    Disconnects(usize),
    Read(usize, Option<Section>),
    Write(usize, Option<Section>, BalanceRead),
    LocksWake,
    ClocksStep,
    CutBegins,
    CutEnds,
}

impl<'settings> Play<'settings> {
    fn new(settings: &'settings Settings) -> Self {
        let process = |client, mode, amount| Process::new(client, mode, amount, settings);
        let mut processes = vec![process(Client::A, ModeKind::Exclusive, 30)];
        match settings.others {
            Others::Writer => processes.push(process(Client::B, ModeKind::Exclusive, 50)),
            Others::Readers => processes
                .extend([process(Client::B, ModeKind::Shared, 0), process(Client::C, ModeKind::Shared, 0)]),
        }
        let mut play = Self {
            settings,
            now: 0,
            queue: BTreeMap::new(),
            queued: 0,
            locks: PlayedLocks::new(settings),
            locks_wake_ms: None,
            resource: PlayedAccount::new(settings.fence),
            processes,
            torn: None,
            recorder: Recorder::default(),
        };
        let starts = [0].into_iter().chain(START_MS);
        for (index, at) in (0..play.processes.len()).zip(starts) {
            play.at(at, Happening::Start(index));
        }
        if settings.step_ms > 0 {
            play.at(settings.step_at_ms, Happening::ClocksStep);
        }
        if settings.cut_ms > 0 {
            play.at(settings.cut_at_ms, Happening::CutBegins);
            play.at(settings.cut_at_ms + settings.cut_ms, Happening::CutEnds);
        }
        play
    }

    fn at(&mut self, at: u64, what: Happening) {
        self.queue.insert((at, self.queued), what);
        self.queued += 1;
    }

    fn run(&mut self) {
        while let Some(((at, _), what)) = self.queue.pop_first() {
            if at > END_MS_MAX || self.queued > HAPPENINGS_MAX {
                return;
            }
            // After the end of all programs, only a delayed request to the resource can still change the
            // data.
            if self.is_over() && !is_for_resource(&what) {
                continue;
            }
            self.now = at;
            self.recorder.now = at;
            self.happens(what);
        }
    }

    /// All processes have ended.
    fn is_over(&self) -> bool {
        self.processes.iter().all(Process::is_over)
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Start(index) => self.request_lock(index),
            Happening::Wakes(index) => {
                if self.processes[index].wake_ms == Some(self.now) && self.is_running(index) {
                    self.feed(index, Event::Wake);
                }
            }
            Happening::Resume(index, from) => self.resume(index, from),
            Happening::HasWorked(index) => self.has_worked(index),
            Happening::Arrives(index, arrival) => {
                let process = &mut self.processes[index];
                if process.paused_until.is_some() {
                    process.inbox.push_back(arrival);
                } else {
                    self.arrived(index, arrival);
                }
            }
            Happening::Call(index, call, kind) => {
                let mut out = Vec::new();
                let Process { client, mode, .. } = self.processes[index];
                self.locks.call(self.now, client, mode, (call, kind), &mut out);
                self.locks_have_acted(out);
            }
            Happening::Disconnects(index) => {
                let client = self.processes[index].client;
                self.locks.disconnected(self.now, client);
                let text = format!("the connection of {} is closed", client.lane().name());
                self.note(Lane::Locks, StepKind::Ordinary, None, text);
                self.locks_have_acted(Vec::new());
            }
            Happening::Read(index, section) => self.is_read(index, section),
            Happening::Write(index, section, reading) => self.is_written(index, section, reading),
            Happening::LocksWake => {
                let mut out = Vec::new();
                for client in self.locks.fire(self.now, &mut out) {
                    let text = format!(
                        "has heard nothing of {} for too long: its session expires",
                        client.lane().name()
                    );
                    self.note(Lane::Locks, StepKind::Ended, None, text);
                }
                self.locks_have_acted(out);
            }
            Happening::ClocksStep => {
                self.locks.step_clocks(self.settings.step_ms);
                let text = format!(
                    "the clocks of three servers are set forward by {}",
                    shown(self.settings.step_ms)
                );
                self.note(Lane::Locks, StepKind::Fault, None, text);
                self.locks_have_acted(Vec::new());
            }
            Happening::CutBegins => {
                self.recorder.begin(Lane::A, SpanKind::Cut, None);
                let text = format!("does not reach the lock service for {}", shown(self.settings.cut_ms));
                self.note(Lane::A, StepKind::Fault, None, text);
            }
            Happening::CutEnds => {
                self.recorder.end(Lane::A, SpanKind::Cut);
                self.note(Lane::A, StepKind::Fault, None, "reaches the lock service again");
            }
        }
    }

    fn note(&mut self, lane: Lane, kind: StepKind, token: Option<u64>, text: impl Into<String>) {
        self.recorder.step(lane, kind, token, text);
    }

    /// A step of a process, with its token.
    fn record_step(&mut self, index: usize, kind: StepKind, text: impl Into<String>) {
        let (lane, token) = (self.lane(index), self.processes[index].token());
        self.note(lane, kind, token, text);
    }

    fn lane(&self, index: usize) -> Lane {
        self.processes[index].client.lane()
    }

    fn is_running(&self, index: usize) -> bool {
        let process = &self.processes[index];
        process.paused_until.is_none() && process.state != ProgramState::Dead
    }

    /// Sends the lock service's pending answers, and records the changes of its holds.
    fn locks_have_acted(&mut self, out: Vec<Sent>) {
        let held = self.locks.held(self.now);
        self.recorder.holds(held);
        for Sent { client, event } in out {
            let Some(index) = self.processes.iter().position(|process| process.client == client) else {
                continue;
            };
            let arrives = self.arrival(client);
            let (text, kind) = answer_text(&event);
            self.recorder.message((Lane::Locks, client.lane()), arrives, text, kind);
            self.at(arrives, Happening::Arrives(index, Arrival::FromLocks(event)));
        }
        let due = self.locks.next_due();
        if due != self.locks_wake_ms {
            self.locks_wake_ms = due;
            if let Some(due) = due {
                self.at(due.max(self.now), Happening::LocksWake);
            }
        }
    }

    /// The arrival time of a message that is sent now between a client and the lock service. A message sent
    /// during a cut arrives after the cut, since TCP retransmits it.
    fn arrival(&self, client: Client) -> u64 {
        let (from, to) = (self.settings.cut_at_ms, self.settings.cut_at_ms + self.settings.cut_ms);
        let arrives = self.now + LATENCY_MS;
        if client == Client::A && arrives >= from && self.now < to { to + LATENCY_MS } else { arrives }
    }

    fn feed(&mut self, index: usize, event: Event) {
        let process = &mut self.processes[index];
        if process.state == ProgramState::Dead {
            return;
        }
        let mut outputs = Vec::new();
        process.machine.handle(process.clock.at(self.now), event, &mut outputs);
        for output in outputs {
            self.output(index, output);
        }
        let process = &mut self.processes[index];
        process.wake_ms = process.machine.next_wake().map(|at| process.clock.time_of(at).max(self.now + 1));
        if let Some(at) = process.wake_ms {
            self.at(at, Happening::Wakes(index));
        }
    }

    fn output(&mut self, index: usize, output: Output) {
        let lane = self.lane(index);
        match output {
            Output::Call { call, kind, .. } => {
                let arrives = self.arrival(self.processes[index].client);
                let (text, of) = call_text(&kind);
                self.recorder.message((lane, Lane::Locks), arrives, text, of);
                self.at(arrives, Happening::Call(index, call, kind));
            }
            Output::LeaseDeadline(until) => self.processes[index].lease_deadline = until,
            Output::Queued { .. } => {
                self.recorder.begin(lane, SpanKind::Waits, None);
                self.record_step(index, StepKind::Ordinary, "waits: another has the lock");
                self.recorder.phase(Phase::Waits);
            }
            Output::Granted { grant, .. } => {
                self.recorder.end(lane, SpanKind::Waits);
                self.processes[index].hold = Some(KnownHold { token: grant.token, lost: None });
                let token = self.processes[index].token();
                self.recorder.begin(lane, SpanKind::Believes, token);
                let text = match token {
                    Some(token) => format!("has the lock, with token {token}"),
                    None => "has the lock; there is no token".to_owned(),
                };
                self.record_step(index, StepKind::Granted, text);
                self.recorder.phase(Phase::Holds);
                self.reaches(index, Pause::BeforeRead);
            }
            // No client of a story caches.
            Output::Recalled { .. } | Output::Attached(_) => {}
            Output::Lost { cause, .. } => {
                if let Some(hold) = &mut self.processes[index].hold {
                    hold.lost = Some(cause);
                }
                self.recorder.end(lane, SpanKind::Believes);
                self.record_step(
                    index,
                    StepKind::Ended,
                    format!("its client library finds that the lock is lost: {cause}"),
                );
            }
            Output::Released { .. } | Output::NotAcquired { why: NotAcquired::ShuttingDown, .. } => {
                self.ends(index, StepKind::Ordinary, "is done", Phase::Done);
            }
            Output::NotAcquired { .. } => {
                self.recorder.end(lane, SpanKind::Waits);
                self.record_step(index, StepKind::Ended, "does not get the lock in time, and asks again");
                self.request_lock(index);
            }
        }
    }

    fn finish(self) -> Trace {
        let outcome = outcome::of(&self.resource, self.torn, self.is_over());
        let (steps, messages, spans) = self.recorder.finish();
        let settings = self.settings.clone();
        Trace { settings, steps, messages, spans, outcome, end_ms: self.now }
    }
}

fn is_for_resource(what: &Happening) -> bool {
    matches!(what, Happening::Read(..) | Happening::Write(..))
}
