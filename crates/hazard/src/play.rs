//! The play: processes, lock service and resource under virtual time.
//!
//! Every decision is made by production code: the table grants and expires, the client's machine renews and finds out that
//! its lease has ended, the fence refuses. Here are only the network, the faults and the program that uses the lock.

use std::collections::BTreeMap;

use lockkeeper::simulation::{Answer, CallId, CallKind, Event, NotAcquired, Output, Push};
use lockkeeper_core::ModeKind;
use lockkeeper_fence::{Refused, Section};

use crate::locks::{Client, Locks, Sent};
use crate::outcome;
use crate::process::{Arrival, Hold, Process, ResourceAnswer, State};
use crate::recorder::Recorder;
use crate::resource::{Reading, Resource};
use crate::settings::{Fence, Others, Pause, Settings, SettingsError};
use crate::trace::{Lane, SpanKind, StepKind, Trace};

/// How long a message is on its way, in milliseconds. A real network is faster; this one is seen in the picture.
const LATENCY_MS: u64 = 200;
/// When B begins, and C. A begins at 0.
const START_MS: [u64; 2] = [1_000, 1_300];
/// How often a program tries before it gives up for good.
const ATTEMPTS_MAX: u64 = 4;
/// A play ends here at the latest.
const END_MS_MAX: u64 = 900_000;
/// The most things that happen in a play; it bounds the work if settings make the processes try again and again.
const HAPPENINGS_MAX: usize = 50_000;

/// Plays what these settings lead to.
///
/// The same settings lead to the same trace. A play takes some milliseconds at most.
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
    /// Number of things that were queued; it orders those of the same time.
    queued: usize,
    /// How many of the queued things are on their way to the resource.
    to_resource: usize,
    locks: Locks,
    locks_wake_ms: Option<u64>,
    resource: Resource,
    processes: Vec<Process>,
    /// A reader has read two balances.
    torn: Option<(Lane, i64, i64)>,
    recorder: Recorder,
}

enum Happening {
    Start(usize),
    Wakes(usize),
    GoesOn(usize, Pause),
    HasWorked(usize),
    /// For a process, from the lock service or the resource.
    Arrives(usize, Arrival),
    Call(usize, CallId, CallKind),
    Disconnects(usize),
    Read(usize, Option<Section>),
    Write(usize, Option<Section>, Reading),
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
            to_resource: 0,
            locks: Locks::new(settings),
            locks_wake_ms: None,
            resource: Resource::new(settings.fence),
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
        self.to_resource += usize::from(is_for_resource(&what));
        self.queue.insert((at, self.queued), what);
        self.queued += 1;
    }

    fn run(&mut self) {
        while let Some(((at, _), what)) = self.queue.pop_first() {
            if at > END_MS_MAX || self.queued > HAPPENINGS_MAX || self.is_over() && !is_for_resource(&what) {
                if self.is_over() && self.to_resource > 0 {
                    continue;
                }
                return;
            }
            self.now = at;
            self.recorder.now = at;
            self.to_resource -= usize::from(is_for_resource(&what));
            self.happens(what);
        }
    }

    /// All processes have ended, and nothing that they have sent can still change the data.
    fn is_over(&self) -> bool {
        self.processes.iter().all(Process::is_over)
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Start(index) => self.asks(index),
            Happening::Wakes(index) => {
                if self.processes[index].wake_ms == Some(self.now) && self.is_running(index) {
                    self.feed(index, Event::Wake);
                }
            }
            Happening::GoesOn(index, from) => self.goes_on(index, from),
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
                    "** the clocks of three servers are set forward by {}",
                    shown(self.settings.step_ms)
                );
                self.note(Lane::Locks, StepKind::Fault, None, text);
                self.locks_have_acted(Vec::new());
            }
            Happening::CutBegins => {
                self.recorder.begin(Lane::A, SpanKind::Cut, None);
                let text = format!("** does not reach the lock service for {}", shown(self.settings.cut_ms));
                self.note(Lane::A, StepKind::Fault, None, text);
            }
            Happening::CutEnds => {
                self.recorder.end(Lane::A, SpanKind::Cut);
                self.note(Lane::A, StepKind::Fault, None, "** reaches the lock service again");
            }
        }
    }

    fn note(&mut self, lane: Lane, kind: StepKind, token: Option<u64>, text: impl Into<String>) {
        self.recorder.step(lane, kind, token, text);
    }

    /// A step of a process, with its token.
    fn tell(&mut self, index: usize, kind: StepKind, text: impl Into<String>) {
        let (lane, token) = (self.lane(index), self.processes[index].token());
        self.note(lane, kind, token, text);
    }

    fn lane(&self, index: usize) -> Lane {
        self.processes[index].client.lane()
    }

    fn is_running(&self, index: usize) -> bool {
        let process = &self.processes[index];
        process.paused_until.is_none() && process.state != State::Dead
    }

    // The lock service.

    /// Sends what the lock service has to say, and records what has changed.
    fn locks_have_acted(&mut self, out: Vec<Sent>) {
        let held = self.locks.held(self.now);
        self.recorder.holds(held);
        for Sent { client, event } in out {
            let Some(index) = self.processes.iter().position(|process| process.client == client) else {
                continue;
            };
            let arrives = self.arrival(client);
            let (text, is_background) = answer_text(&event);
            self.recorder.message((Lane::Locks, client.lane()), arrives, text, is_background);
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

    /// When a message between a client and the lock service arrives that is sent now. During a cut it is sent again and
    /// again, as TCP does.
    fn arrival(&self, client: Client) -> u64 {
        let (from, to) = (self.settings.cut_at_ms, self.settings.cut_at_ms + self.settings.cut_ms);
        let arrives = self.now + LATENCY_MS;
        if client == Client::A && arrives >= from && self.now < to { to + LATENCY_MS } else { arrives }
    }

    // A client's machine.

    fn feed(&mut self, index: usize, event: Event) {
        let process = &mut self.processes[index];
        if process.state == State::Dead {
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
                let (text, is_background) = call_text(&kind);
                self.recorder.message((lane, Lane::Locks), arrives, text, is_background);
                self.at(arrives, Happening::Call(index, call, kind));
            }
            Output::LeaseDeadline(until) => self.processes[index].lease_deadline = until,
            Output::Queued { .. } => {
                self.recorder.begin(lane, SpanKind::Waits, None);
                self.tell(index, StepKind::Ordinary, "waits: another has the lock");
            }
            Output::Granted { grant, .. } => {
                self.recorder.end(lane, SpanKind::Waits);
                self.processes[index].hold = Some(Hold { token: grant.token, lost: None });
                let token = self.processes[index].token();
                self.recorder.begin(lane, SpanKind::Believes, token);
                let text = match token {
                    Some(token) => format!("has the lock, with token {token}"),
                    None => "has the lock; there is no token".to_owned(),
                };
                self.tell(index, StepKind::Granted, text);
                self.reaches(index, Pause::BeforeRead);
            }
            Output::Lost { cause, .. } => {
                if let Some(hold) = &mut self.processes[index].hold {
                    hold.lost = Some(cause);
                }
                self.recorder.end(lane, SpanKind::Believes);
                self.tell(
                    index,
                    StepKind::Ended,
                    format!("its client library finds that the lock is lost: {cause}"),
                );
            }
            Output::Released { .. } | Output::NotAcquired { why: NotAcquired::ShuttingDown, .. } => {
                self.is_done(index);
            }
            Output::NotAcquired { .. } => {
                self.recorder.end(lane, SpanKind::Waits);
                self.tell(index, StepKind::Ended, "does not get the lock in time, and asks again");
                self.asks(index);
            }
        }
    }

    // The program.

    /// Asks for the lock.
    fn asks(&mut self, index: usize) {
        if self.processes[index].key.0 == ATTEMPTS_MAX {
            self.tell(index, StepKind::Ended, "gives up for good");
            return self.is_done(index);
        }
        self.tell(index, StepKind::Ordinary, "wants the lock");
        let request = self.processes[index].next_request();
        self.feed(index, request);
    }

    /// The program comes to a point at which it may stand still.
    fn reaches(&mut self, index: usize, point: Pause) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        let stops = process.client == Client::A && point == settings.pause && settings.pause_ms > 0;
        if !stops || std::mem::replace(&mut process.has_paused, true) {
            return self.continues(index, point);
        }
        let until = self.now + settings.pause_ms;
        process.paused_until = Some(until);
        self.at(until, Happening::GoesOn(index, point));
        self.recorder.begin(self.lane(index), SpanKind::Paused, None);
        let text =
            format!("** stands still for {}: a long GC pause, a suspended VM", shown(settings.pause_ms));
        self.tell(index, StepKind::Fault, text);
    }

    /// After a pause: the program's next instruction first, which no check stands before, then what the library has missed.
    fn goes_on(&mut self, index: usize, from: Pause) {
        self.processes[index].paused_until = None;
        self.recorder.end(self.lane(index), SpanKind::Paused);
        self.tell(index, StepKind::Fault, "** goes on, and knows nothing of it");
        self.continues(index, from);
        self.feed(index, Event::Wake);
        while let Some(arrival) = self.processes[index].inbox.pop_front() {
            self.arrived(index, arrival);
        }
    }

    fn continues(&mut self, index: usize, point: Pause) {
        match (point, self.processes[index].state) {
            (Pause::Never, _) => {}
            (Pause::BeforeRead, _) => {
                self.processes[index].state = State::Reading;
                self.reads(index);
            }
            (Pause::BeforeWork, State::Working(reading)) => {
                let text = match self.processes[index].mode {
                    ModeKind::Shared => {
                        format!("works with {} for {}", reading.balance, shown(self.settings.work_ms))
                    }
                    _ => {
                        format!("works for {}: is {} enough?", shown(self.settings.work_ms), reading.balance)
                    }
                };
                self.tell(index, StepKind::Ordinary, text);
                self.at(self.now + self.settings.work_ms, Happening::HasWorked(index));
            }
            (Pause::BeforeCheck, State::Working(_)) => {
                if self.processes[index].is_valid(self.now) {
                    self.tell(index, StepKind::Ordinary, "checks its lease: valid by its clock");
                    self.reaches(index, Pause::BeforeWrite);
                } else {
                    self.tell(index, StepKind::Ended, "checks its lease: it is over, so it stops");
                    self.starts_again(index);
                }
            }
            (Pause::BeforeWrite, State::Working(reading)) => self.writes(index, reading),
            (Pause::BeforeWork | Pause::BeforeCheck | Pause::BeforeWrite, _) => {}
        }
    }

    fn has_worked(&mut self, index: usize) {
        let process = &mut self.processes[index];
        match (process.state, process.mode) {
            (State::Working(reading), ModeKind::Shared) => {
                process.state = State::ReadingAgain(reading);
                self.reads(index);
            }
            (State::Working(_), _) => self.reaches(index, Pause::BeforeCheck),
            _ => {}
        }
    }

    fn reads(&mut self, index: usize) {
        let process = &self.processes[index];
        let section = process.section();
        // Whoever reads for the second time has entered already.
        let enters = self.settings.fence == Fence::Enter && process.state == State::Reading;
        let section = section.filter(|_| enters);
        let text = match section {
            Some(section) => format!("enter with token {}, and read", section.token()),
            None => "read".to_owned(),
        };
        let arrives = self.now + LATENCY_MS;
        self.recorder.message((self.lane(index), Lane::Resource), arrives, text, false);
        self.at(arrives, Happening::Read(index, section));
    }

    fn writes(&mut self, index: usize, reading: Reading) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        let is_first = !std::mem::replace(&mut process.has_written, true) && process.client == Client::A;
        process.state = State::Writing;
        let (section, balance) = (process.section(), reading.balance - process.amount);
        let with = |section: Section| format!(" with token {}", section.token());
        let text = format!("write {balance}{}", section.map_or_else(String::new, with));
        let delay = if is_first { settings.write_delay_ms } else { 0 };
        let arrives = self.now + LATENCY_MS + delay;
        self.recorder.message((self.lane(index), Lane::Resource), arrives, text, false);
        self.tell(index, StepKind::Ordinary, format!("sends its write of {balance}"));
        if delay > 0 {
            let text = format!("** its write is held up in the network for {}", shown(delay));
            self.tell(index, StepKind::Fault, text);
        }
        self.at(arrives, Happening::Write(index, section, reading));
        if is_first && settings.crash {
            self.dies(index);
        }
    }

    fn dies(&mut self, index: usize) {
        let lane = self.lane(index);
        self.tell(index, StepKind::Fault, "** its process is killed");
        self.recorder.end(lane, SpanKind::Believes);
        self.recorder.begin(lane, SpanKind::Dead, None);
        self.processes[index].state = State::Dead;
        let arrives = self.arrival(self.processes[index].client);
        self.recorder.message((lane, Lane::Locks), arrives, "connection closed", true);
        self.at(arrives, Happening::Disconnects(index));
    }

    fn starts_again(&mut self, index: usize) {
        self.recorder.end(self.lane(index), SpanKind::Believes);
        let key = self.processes[index].key;
        self.processes[index].state = State::NotStarted;
        self.feed(index, Event::Abandon { key });
        self.asks(index);
    }

    fn is_done(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.is_over() {
            return;
        }
        process.state = State::Finished;
        self.recorder.end(self.lane(index), SpanKind::Believes);
        self.tell(index, StepKind::Ordinary, "is done");
        self.feed(index, Event::Shutdown);
    }

    fn arrived(&mut self, index: usize, arrival: Arrival) {
        if self.processes[index].state == State::Dead {
            return;
        }
        let answer = match arrival {
            Arrival::FromLocks(event) => return self.feed(index, event),
            Arrival::FromResource(answer) => answer,
        };
        match (answer, self.processes[index].state) {
            (ResourceAnswer::Balance(reading), State::Reading) => {
                self.processes[index].state = State::Working(reading);
                self.tell(index, StepKind::Ordinary, format!("has read {}", reading.balance));
                self.reaches(index, Pause::BeforeWork);
            }
            (ResourceAnswer::Balance(again), State::ReadingAgain(first)) => {
                let same = again.balance == first.balance;
                let text = match same {
                    true => format!("reads {} again, as it must be under its lock", again.balance),
                    false => format!(
                        "reads {} now, and has read {} before, under one lock",
                        again.balance, first.balance
                    ),
                };
                self.tell(index, if same { StepKind::Ordinary } else { StepKind::Damage }, text);
                if !same {
                    self.torn = Some((self.lane(index), first.balance, again.balance));
                }
                self.releases(index);
            }
            (ResourceAnswer::Written, State::Writing) => {
                self.tell(index, StepKind::Ordinary, "its write is acknowledged");
                self.releases(index);
            }
            (ResourceAnswer::Refused, State::Reading | State::Writing) => {
                self.tell(
                    index,
                    StepKind::Refused,
                    "is refused: it stops, and begins again with a new token",
                );
                self.starts_again(index);
            }
            _ => {}
        }
    }

    fn releases(&mut self, index: usize) {
        self.processes[index].state = State::Releasing;
        self.tell(index, StepKind::Ordinary, "releases the lock");
        let key = self.processes[index].key;
        self.feed(index, Event::Release { key });
    }

    // The resource.

    fn is_read(&mut self, index: usize, section: Option<Section>) {
        let name = self.lane(index).name();
        let token = section.map(|section| section.token().get());
        let answer = self.resource.read(section);
        let (kind, text, answer) = match answer {
            Ok(reading) => {
                let enters =
                    token.map_or_else(String::new, |token| format!("lets {name} enter with token {token}; "));
                let text = format!("{enters}{name} reads {}", reading.balance);
                (StepKind::Ordinary, text, ResourceAnswer::Balance(reading))
            }
            Err(refused) => (StepKind::Refused, refusal(name, refused), ResourceAnswer::Refused),
        };
        self.recorder.at_resource(kind, token, self.resource.content(), text);
        self.answers(index, answer);
    }

    fn is_written(&mut self, index: usize, section: Option<Section>, reading: Reading) {
        let Process { amount, .. } = self.processes[index];
        let lane = self.lane(index);
        let (name, token) = (lane.name(), section.map(|section| section.token().get()));
        let written = self.resource.write(lane, amount, reading, section);
        let balance = reading.balance - amount;
        let (kind, text, answer) = match written {
            Err(refused) => (StepKind::Refused, refusal(name, refused), ResourceAnswer::Refused),
            Ok(lost) if lost.is_empty() => {
                (StepKind::Ordinary, format!("{name} writes {balance}"), ResourceAnswer::Written)
            }
            Ok(lost) => {
                let lost: Vec<String> = lost
                    .iter()
                    .map(|lost| format!("{}'s withdrawal of {}", lost.by.name(), lost.amount))
                    .collect();
                let text = format!("{name} writes {balance}: {} is lost", lost.join(" and "));
                (StepKind::Damage, text, ResourceAnswer::Written)
            }
        };
        self.recorder.at_resource(kind, token, self.resource.content(), text);
        self.answers(index, answer);
    }

    fn answers(&mut self, index: usize, answer: ResourceAnswer) {
        let text = match &answer {
            ResourceAnswer::Balance(reading) => reading.balance.to_string(),
            ResourceAnswer::Written => "written".to_owned(),
            ResourceAnswer::Refused => "refused".to_owned(),
        };
        let arrives = self.now + LATENCY_MS;
        self.recorder.message((Lane::Resource, self.lane(index)), arrives, text, false);
        self.at(arrives, Happening::Arrives(index, Arrival::FromResource(answer)));
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

fn refusal(name: &str, refused: Refused) -> String {
    match refused {
        Refused::Stale { offered, highest } => {
            format!("refuses {name}: token {offered} is older than {highest}")
        }
        other => format!("refuses {name}: {other}"),
    }
}

/// What a call says, and whether it only keeps a session.
fn call_text(kind: &CallKind) -> (&'static str, bool) {
    match kind {
        CallKind::Open { .. } => ("open a session", true),
        CallKind::KeepAlive => ("keep-alive", true),
        CallKind::Acquire { .. } => ("acquire", false),
        CallKind::Finish { .. } => ("release", false),
        CallKind::Close => ("close the session", true),
    }
}

/// What an event for a machine says, and whether it is only about keeping a session.
fn answer_text(event: &Event) -> (String, bool) {
    match event {
        Event::Answered { answer: Answer::Granted(grant), .. } => {
            let token = grant.token.map_or_else(String::new, |token| format!(", token {token}"));
            (format!("granted{token}"), false)
        }
        Event::Answered { answer: Answer::Finished(_), .. } => ("released".to_owned(), false),
        Event::Pushed(Push::Queued { .. }) => ("queued".to_owned(), false),
        Event::Answered { answer: Answer::SessionGone, .. } | Event::Pushed(Push::Lost(_)) => {
            ("the session has ended".to_owned(), false)
        }
        Event::Pushed(Push::HoldLost { .. }) => ("the lock is lost".to_owned(), false),
        _ => ("confirmed".to_owned(), true),
    }
}

/// A duration for people.
pub(crate) fn shown(ms: u64) -> String {
    humantime::format_duration(std::time::Duration::from_millis(ms)).to_string()
}
