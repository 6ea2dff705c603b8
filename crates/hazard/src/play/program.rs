//! The program that uses the lock, and the resource that it works on: acquire, read, work, check, write,
//! release.

use lockkeeper::machine::Event;
use lockkeeper_core::ModeKind;
use lockkeeper_fence::Section;

use super::words::{refusal, shown};
use super::{Happening, LATENCY_MS, Play};
use crate::client::Client;
use crate::process::{Arrival, Process, ProgramState, ResourceAnswer};
use crate::resource::{BalanceRead, withdrawals_text};
use crate::settings::{Fence, Pause};
use crate::trace::{Lane, MessageKind, Phase, SpanKind, StepKind};

/// How often a program tries before it gives up for good.
const ATTEMPTS_MAX: u64 = 4;

impl Play<'_> {
    /// Asks for the lock.
    pub(super) fn request_lock(&mut self, index: usize) {
        if self.processes[index].key.0 == ATTEMPTS_MAX {
            return self.ends(index, StepKind::Ended, "gives up for good", Phase::GaveUp);
        }
        self.record_step(index, StepKind::Ordinary, "wants the lock");
        self.recorder.phase(Phase::Asks);
        let request = self.processes[index].next_request();
        self.feed(index, request);
    }

    /// The program reaches a point at which it may be paused.
    pub(super) fn reaches(&mut self, index: usize, point: Pause) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        let stops = process.client == Client::A && point == settings.pause && settings.pause_ms > 0;
        if !stops || std::mem::replace(&mut process.has_paused, true) {
            return self.continues(index, point);
        }
        let until = self.now + settings.pause_ms;
        process.paused_until = Some(until);
        self.at(until, Happening::Resume(index, point));
        self.recorder.begin(self.lane(index), SpanKind::Paused, None);
        let text = format!("stands still for {}: a long GC pause, a suspended VM", shown(settings.pause_ms));
        self.record_step(index, StepKind::Fault, text);
    }

    /// Ends a pause. The program runs its next instruction first, without a check; only then does the library
    /// process the events that arrived during the pause.
    pub(super) fn resume(&mut self, index: usize, from: Pause) {
        self.processes[index].paused_until = None;
        self.recorder.end(self.lane(index), SpanKind::Paused);
        self.record_step(index, StepKind::Fault, "goes on, and knows nothing of it");
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
                self.processes[index].state = ProgramState::Reading;
                self.reads(index);
            }
            (Pause::BeforeWork, ProgramState::Working(reading)) => {
                let text = match self.processes[index].mode {
                    ModeKind::Shared => {
                        format!("works with {} for {}", reading.balance, shown(self.settings.work_ms))
                    }
                    _ => {
                        format!("works for {}: is {} enough?", shown(self.settings.work_ms), reading.balance)
                    }
                };
                self.record_step(index, StepKind::Ordinary, text);
                self.at(self.now + self.settings.work_ms, Happening::HasWorked(index));
            }
            (Pause::BeforeCheck, ProgramState::Working(_)) => {
                if self.processes[index].is_valid(self.now) {
                    self.record_step(index, StepKind::Ordinary, "checks its lease: valid by its clock");
                    self.reaches(index, Pause::BeforeWrite);
                } else {
                    self.record_step(index, StepKind::Ended, "checks its lease: it is over, so it stops");
                    self.starts_again(index);
                }
            }
            (Pause::BeforeWrite, ProgramState::Working(reading)) => self.writes(index, reading),
            (Pause::BeforeWork | Pause::BeforeCheck | Pause::BeforeWrite, _) => {}
        }
    }

    pub(super) fn has_worked(&mut self, index: usize) {
        let process = &mut self.processes[index];
        match (process.state, process.mode) {
            (ProgramState::Working(reading), ModeKind::Shared) => {
                process.state = ProgramState::ReadingAgain(reading);
                self.reads(index);
            }
            (ProgramState::Working(_), _) => self.reaches(index, Pause::BeforeCheck),
            _ => {}
        }
    }

    fn reads(&mut self, index: usize) {
        let process = &self.processes[index];
        let section = process.section();
        // A second read is in the same section, which has entered already.
        let enters = self.settings.fence == Fence::Enter && process.state == ProgramState::Reading;
        let section = section.filter(|_| enters);
        let text = match section {
            Some(section) => format!("enter with token {}, and read", section.token()),
            None => "read".to_owned(),
        };
        let arrives = self.now + LATENCY_MS;
        self.recorder.message((self.lane(index), Lane::Resource), arrives, text, MessageKind::Read);
        self.at(arrives, Happening::Read(index, section));
    }

    fn writes(&mut self, index: usize, reading: BalanceRead) {
        let settings = self.settings;
        let process = &mut self.processes[index];
        let is_first = !std::mem::replace(&mut process.has_written, true) && process.client == Client::A;
        process.state = ProgramState::Writing;
        let (section, balance) = (process.section(), reading.balance - process.amount);
        let with = |section: Section| format!(" with token {}", section.token());
        let text = format!("write {balance}{}", section.map_or_else(String::new, with));
        let delay = if is_first { settings.write_delay_ms } else { 0 };
        let arrives = self.now + LATENCY_MS + delay;
        self.recorder.message((self.lane(index), Lane::Resource), arrives, text, MessageKind::Write);
        self.record_step(index, StepKind::Ordinary, format!("sends its write of {balance}"));
        if delay > 0 {
            let text = format!("its write is held up in the network for {}", shown(delay));
            self.record_step(index, StepKind::Fault, text);
        }
        self.at(arrives, Happening::Write(index, section, reading));
        if is_first && settings.crash {
            self.dies(index);
        }
    }

    fn dies(&mut self, index: usize) {
        let lane = self.lane(index);
        self.record_step(index, StepKind::Fault, "its process is killed");
        self.recorder.phase(Phase::Dead);
        self.recorder.end(lane, SpanKind::Believes);
        self.recorder.begin(lane, SpanKind::Dead, None);
        self.processes[index].state = ProgramState::Dead;
        let arrives = self.arrival(self.processes[index].client);
        self.recorder.message((lane, Lane::Locks), arrives, "connection closed", MessageKind::Session);
        self.at(arrives, Happening::Disconnects(index));
    }

    fn starts_again(&mut self, index: usize) {
        self.recorder.end(self.lane(index), SpanKind::Believes);
        let key = self.processes[index].key;
        self.processes[index].state = ProgramState::NotStarted;
        self.feed(index, Event::Abandon { key });
        self.request_lock(index);
    }

    /// The program ends, and its client library shuts down.
    pub(super) fn ends(&mut self, index: usize, kind: StepKind, text: &str, phase: Phase) {
        let process = &mut self.processes[index];
        if process.is_over() {
            return;
        }
        process.state = ProgramState::Finished;
        self.recorder.end(self.lane(index), SpanKind::Believes);
        self.record_step(index, kind, text);
        self.recorder.phase(phase);
        self.feed(index, Event::Shutdown);
    }

    pub(super) fn arrived(&mut self, index: usize, arrival: Arrival) {
        if self.processes[index].state == ProgramState::Dead {
            return;
        }
        let answer = match arrival {
            Arrival::FromLocks(event) => return self.feed(index, event),
            Arrival::FromResource(answer) => answer,
        };
        match (answer, self.processes[index].state) {
            (ResourceAnswer::Balance(reading), ProgramState::Reading) => {
                self.processes[index].state = ProgramState::Working(reading);
                self.record_step(index, StepKind::Ordinary, format!("has read {}", reading.balance));
                self.reaches(index, Pause::BeforeWork);
            }
            (ResourceAnswer::Balance(again), ProgramState::ReadingAgain(first)) => {
                let same = again.balance == first.balance;
                let text = match same {
                    true => format!("reads {} again, as it must be under its lock", again.balance),
                    false => format!(
                        "reads {} now, and has read {} before, under one lock",
                        again.balance, first.balance
                    ),
                };
                self.record_step(index, if same { StepKind::Ordinary } else { StepKind::Damage }, text);
                if !same {
                    self.torn = Some((self.lane(index), first.balance, again.balance));
                }
                self.releases(index);
            }
            (ResourceAnswer::Written, ProgramState::Writing) => {
                self.record_step(index, StepKind::Ordinary, "its write is acknowledged");
                self.releases(index);
            }
            (ResourceAnswer::Refused, ProgramState::Reading | ProgramState::Writing) => {
                self.record_step(
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
        self.processes[index].state = ProgramState::Releasing;
        self.record_step(index, StepKind::Ordinary, "releases the lock");
        self.recorder.phase(Phase::Releases);
        let key = self.processes[index].key;
        self.feed(index, Event::Release { key });
    }

    pub(super) fn is_read(&mut self, index: usize, section: Option<Section>) {
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

    pub(super) fn is_written(&mut self, index: usize, section: Option<Section>, reading: BalanceRead) {
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
                let text = format!("{name} writes {balance}: {} is lost", withdrawals_text(&lost));
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
        self.recorder.message((Lane::Resource, self.lane(index)), arrives, text, MessageKind::Answer);
        self.at(arrives, Happening::Arrives(index, Arrival::FromResource(answer)));
    }
}
