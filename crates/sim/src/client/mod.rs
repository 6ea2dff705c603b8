//! A client: the production state machine for each session, the production carrier for its one connection,
//! and callers that acquire locks. Only the tasks, timers and sockets around them are simulated.
//!
//! `job.rs`: the callers. `caching.rs`: sections that begin with a cached hold, and recalls.

mod caching;
mod job;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::BootInstant;
use lockkeeper::LossCause;
use lockkeeper::simulation::{
    AcquireRequest, Addresses, Cache, Call, CallId, CallKind, Carrier, CarrierOutput, Event, HoldChange, Key,
    Machine, Output, Push, SessionKey, Spec, StreamEnding, StreamId as Carried,
};
use lockkeeper_core::Seq;
use lockkeeper_replica::StreamId;
use lockkeeper_wire::request::Secret;
use lockkeeper_wire::v1::StreamEndReason;

use crate::clock::{DriftingClock, MS, Nanos};
use crate::core::{Core, Happening};
use crate::mutants::MutantLocation;
use crate::net::Down;
use crate::node::{client_address, node_at};
use caching::CachedHold;
pub(crate) use job::{Job, JobState};

/// Identifies a call to the carrier: session index and call.
type Handle = (usize, CallId);

pub(crate) struct SimClient {
    pub(crate) index: usize,
    /// How often the client has started; events of earlier lives are dropped.
    pub(crate) life: u64,
    pub(crate) clock: DriftingClock,
    /// The client is paused until this time.
    pub(crate) paused_until: Nanos,
    pub(crate) is_alive: bool,
    pub(crate) sessions: Vec<SimSession>,
    carrier: Carrier<Handle>,
    stream: Option<(Carried, StreamId)>,
    is_connecting: bool,
    addresses: Addresses,
    /// Whether an item was received on the present stream.
    has_worked: bool,
    wake_at: Option<Nanos>,
    /// Packets that arrived while the client was paused.
    socket: VecDeque<(StreamId, Down)>,
    pub(crate) jobs: BTreeMap<u64, Job>,
    /// Keys of the jobs that hold their locks.
    holding: BTreeSet<u64>,
    next_key: u64,
}

pub(crate) struct SimSession {
    pub(crate) machine: Machine,
    carried: SessionKey,
    spec: Spec,
    is_opened: bool,
    /// The lease deadline of the session's guards.
    lease_deadline: Option<BootInstant>,
    requests: BTreeMap<Key, Arc<AcquireRequest>>,
    /// The production cache of the session.
    cache: Cache<()>,
    /// What the session knows of its cached holds, by the key of the request, until they are over.
    cached: BTreeMap<Key, CachedHold>,
    /// How often each acquire was sent, for the mutant that renumbers retries.
    sent: BTreeMap<Seq, u64>,
}

impl SimClient {
    pub(crate) fn new(core: &mut Core, index: usize, life: u64) -> Self {
        let drift = core.scenario.drift;
        let ppm = core.dice.within(0, 2 * drift as u64) as i64 - drift;
        let ppm = if core.is(MutantLocation::DriftBeyondMargin) { -50_000 } else { ppm };
        let origin = core.dice.within(1_000 * MS, 1_000_000_000 * MS);
        let mut carrier = Carrier::new();
        let sessions = core.scenario.specs.clone().into_iter();
        let sessions = sessions.enumerate().map(|(number, spec)| SimSession {
            machine: Machine::new(spec),
            carried: carrier.add(spec, &label(index, number), Secret(core.dice.secret())),
            spec,
            is_opened: false,
            lease_deadline: None,
            requests: BTreeMap::new(),
            cache: Cache::default(),
            cached: BTreeMap::new(),
            sent: BTreeMap::new(),
        });
        let sessions = sessions.collect();
        // Some clients are configured with one node, and learn the others from it.
        let known = core.dice.pick(&core.present);
        let all = core.dice.chance(70);
        let addresses = core.present.iter().copied().filter(|&node| all || node == known);
        let addresses: Vec<String> = addresses.map(client_address).collect();
        Self {
            index,
            life,
            clock: DriftingClock::new(origin, ppm),
            paused_until: 0,
            is_alive: true,
            sessions,
            carrier,
            stream: None,
            is_connecting: false,
            addresses: Addresses::named(addresses.iter().map(String::as_str), core.dice.u64()),
            has_worked: false,
            wake_at: None,
            socket: VecDeque::new(),
            jobs: BTreeMap::new(),
            holding: BTreeSet::new(),
            next_key: 1,
        }
    }

    /// Pauses the client until a time.
    pub(crate) fn pause(&mut self, core: &mut Core, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
        let until = self.paused_until;
        self.wake_at = Some(until);
        core.at(until, Happening::ClientWakes { client: self.index, life: self.life });
    }

    /// Ends the pause of the client.
    pub(crate) fn resume(&mut self, core: &mut Core) {
        self.paused_until = 0;
        self.wake_at = None;
        self.wakes(core);
    }

    pub(crate) fn is_paused(&self, core: &Core) -> bool {
        core.now < self.paused_until
    }

    /// Replaces the client's list of nodes, as its user would: all nodes on the old list may have been
    /// removed.
    pub(crate) fn receives_nodes(&mut self, core: &mut Core) {
        let addresses: Vec<String> = core.present.iter().copied().map(client_address).collect();
        self.addresses = Addresses::named(addresses.iter().map(String::as_str), core.dice.u64());
    }

    /// The present stream, by the id that the nodes use.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.stream.map(|(_, stream)| stream)
    }

    /// The jobs that hold their locks.
    pub(crate) fn holding(&self) -> impl Iterator<Item = &Job> {
        self.holding.iter().filter_map(|key| self.jobs.get(key))
    }

    /// Records in the address list whether the stream that has just ended ever worked.
    fn counts(&mut self) {
        if std::mem::take(&mut self.has_worked) {
            self.addresses.worked();
        }
        self.addresses.failed();
    }

    /// Passes an event to a session's state machine, and carries out all actions that follow.
    pub(crate) fn feed(&mut self, core: &mut Core, session: usize, event: Event) {
        self.run(core, VecDeque::from([(session, event)]));
    }

    fn run(&mut self, core: &mut Core, mut events: VecDeque<(usize, Event)>) {
        let mut outputs = Vec::new();
        while let Some((session, event)) = events.pop_front() {
            core.note(format_args!("client {} machine {session} <- {event:?}", self.index));
            let now = self.clock.instant(core.now);
            self.sessions[session].machine.handle(now, event, &mut outputs);
            for output in outputs.drain(..) {
                self.perform(core, session, output, &mut events);
            }
        }
        self.flush(core);
    }

    fn perform(
        &mut self,
        core: &mut Core,
        index: usize,
        output: Output,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        let now = self.clock.instant(core.now);
        let session = &mut self.sessions[index];
        match output {
            Output::Call { call, kind, .. } => {
                if kind == (CallKind::Open { fresh: true }) && std::mem::replace(&mut session.is_opened, true)
                {
                    self.carrier.remove(session.carried, &mut Vec::new());
                    let label = label(self.index, index);
                    session.carried = self.carrier.add(session.spec, &label, Secret(core.dice.secret()));
                    session.sent.clear();
                }
                if let CallKind::Acquire { key, seq, .. } = kind {
                    core.oracle.history.tries.sent((self.index, self.life, key.0), seq);
                }
                let Some(content) = session.call(kind, core.is(MutantLocation::RetryRenumbered)) else {
                    return;
                };
                let mut outcomes = Vec::new();
                self.carrier.submit(now, session.carried, content, (index, call), &mut outcomes);
                self.outcomes(core, outcomes, events);
            }
            Output::LeaseDeadline(until) => {
                let from_receipt = core.is(MutantLocation::DeadlineFromReceipt);
                let late = session.spec.ttl.filter(|_| from_receipt).map(|ttl| now + ttl * 99 / 100);
                session.lease_deadline = until.map(|until| late.unwrap_or(until));
                session.cache.lease_until(session.lease_deadline);
            }
            Output::Attached(attached) => session.cache.attached(attached),
            Output::Queued { key, .. } => self.queued(core, key, events),
            Output::Granted { key, grant } => self.granted(core, key, grant, events),
            Output::NotAcquired { key, why } => self.not_acquired(core, key, &why),
            Output::Released { key, how } => self.released(core, key, how),
            Output::Recalled { key } => self.recalled(core, index, key, events),
            Output::Lost { key, cause } => {
                core.oracle.seen.lost += 1;
                let ignored = core.is(MutantLocation::LossIgnored)
                    || (core.is(MutantLocation::DeadlineFromReceipt) && cause == LossCause::Expired);
                if !ignored {
                    self.lost(core, index, key, events);
                }
            }
        }
    }

    fn outcomes(
        &mut self,
        core: &mut Core,
        outcomes: Vec<CarrierOutput<Handle>>,
        events: &mut VecDeque<(usize, Event)>,
    ) {
        for outcome in outcomes {
            match outcome {
                CarrierOutput::Resolved((session, call), Ok(answer)) => {
                    events.push_back((session, Event::Answered { call, answer }));
                }
                CarrierOutput::Resolved((session, call), Err(error)) => {
                    events.push_back((session, Event::Failed { call, sent: error.sent }));
                }
                CarrierOutput::Push(key, Push::Detached { at, .. })
                    if core.is(MutantLocation::DetachUnheard) =>
                {
                    self.pushed(key, Push::Detached { at, announced: true }, events);
                }
                CarrierOutput::Push(key, push) => self.pushed(key, push, events),
                CarrierOutput::EndStream(ending) => {
                    core.note(format_args!("client {} ends its stream: {ending:?}", self.index));
                    if let Some((_, stream)) = self.stream.take() {
                        core.hang_up(stream);
                        self.counts();
                    }
                    if let StreamEnding::Announced {
                        reason: StreamEndReason::NotLeader, leader, term, ..
                    } = ending
                    {
                        self.addresses.leader_is(leader.as_deref(), term);
                    }
                }
                CarrierOutput::Dropped(_) => {}
                CarrierOutput::Nodes(nodes) => self.addresses.learn(nodes.iter().map(String::as_str)),
            }
        }
    }

    fn pushed(&self, key: SessionKey, push: Push, events: &mut VecDeque<(usize, Event)>) {
        if let Some(session) = self.sessions.iter().position(|session| session.carried == key) {
            events.push_back((session, Event::Pushed(push)));
        }
    }

    /// Handles a packet: reads it now, or once the client's pause ends.
    pub(crate) fn arrives(&mut self, core: &mut Core, stream: StreamId, packet: Down) {
        self.socket.push_back((stream, packet));
        if !self.is_paused(core) {
            self.read(core);
        }
    }

    fn read(&mut self, core: &mut Core) {
        while let Some((stream, packet)) = self.socket.pop_front() {
            if let Some(line) = core.net.lines.get_mut(&stream)
                && matches!(packet, Down::Closed)
            {
                line.is_over = true;
            }
            let Some((carried, _)) = self.stream.filter(|&(_, present)| present == stream) else { continue };
            let now = self.clock.instant(core.now);
            let (mut outcomes, mut events) = (Vec::new(), VecDeque::new());
            match packet {
                Down::Items(items) => {
                    self.has_worked = true;
                    self.carrier.received(now, carried, items, &mut outcomes);
                }
                Down::End(end) => {
                    let what = Some(lockkeeper_wire::v1::server_item::What::StreamEnd(end));
                    let item = lockkeeper_wire::v1::ServerItem { session: 0, seq: 0, what };
                    self.carrier.received(now, carried, vec![item], &mut outcomes);
                }
                // This client makes no calls.
                Down::Called { .. } => {}
                Down::Closed => {
                    self.stream = None;
                    self.counts();
                    self.carrier.stream_lost(now, carried, &mut outcomes);
                }
            }
            self.outcomes(core, outcomes, &mut events);
            self.run(core, events);
        }
    }

    /// Fires timers, before or after the input that has arrived is read, at random: production has no fixed
    /// order either.
    pub(crate) fn wakes(&mut self, core: &mut Core) {
        // The event of a timer that was rescheduled is stale.
        if self.is_paused(core) || self.wake_at.is_some_and(|planned| planned > core.now) {
            return;
        }
        self.wake_at = None;
        if core.dice.chance(50) {
            self.read(core);
        }
        let now = self.clock.instant(core.now);
        let (mut outcomes, mut events) = (Vec::new(), VecDeque::new());
        self.carrier.wake(now, &mut outcomes);
        self.outcomes(core, outcomes, &mut events);
        for (session, it) in self.sessions.iter().enumerate() {
            if it.machine.next_wake().is_some_and(|at| at <= now) {
                events.push_back((session, Event::Wake));
            }
        }
        self.release_due(core, now, &mut events);
        self.run(core, events);
        self.read(core);
    }

    pub(crate) fn connects(&mut self, core: &mut Core) {
        self.is_connecting = false;
        if self.stream.is_none() && self.carrier.wants_stream() {
            let carried = self.carrier.begin_stream(self.clock.instant(core.now));
            let Some(node) = node_at(&self.addresses.take().to_string()) else { return };
            self.stream = Some((carried, core.open_line(self.index, self.life, node, false)));
        }
        self.flush(core);
    }

    /// Sends pending frames and schedules the next wake-up.
    fn flush(&mut self, core: &mut Core) {
        if let Some((carried, stream)) = self.stream {
            loop {
                let frame = self.carrier.take_frame(carried);
                if frame.is_empty() {
                    break;
                }
                core.send_up(stream, crate::net::Up::Frame(frame));
            }
        } else if self.carrier.wants_stream() && !self.is_connecting {
            self.is_connecting = true;
            let limit = self.carrier.least_ttl().map_or(1_000 * MS, |ttl| ttl.as_nanos() as Nanos / 12);
            let pause = self.addresses.pause(Duration::from_nanos(limit), core.dice.u64());
            let pause = pause.as_nanos() as Nanos;
            let connecting = core.dice.spread(50_000, 2 * MS);
            core.after(pause + connecting, Happening::ClientConnects { client: self.index, life: self.life });
        }
        let machines = self.sessions.iter().filter_map(|session| session.machine.next_wake());
        let caches = self.sessions.iter().filter_map(|session| session.cache.next_due());
        let wake = machines.chain(caches).chain(self.carrier.next_wake()).min();
        if let Some(wake) = wake.filter(|wake| *wake < BootInstant::MAX) {
            let at = self.clock.when(wake.as_nanos()).max(core.now + 1).max(self.paused_until);
            if self.wake_at.is_none_or(|planned| at < planned || planned <= core.now) {
                self.wake_at = Some(at);
                core.at(at, Happening::ClientWakes { client: self.index, life: self.life });
            }
        }
    }

    /// Ends the client's process. With `says_so`, its operating system closes the stream.
    pub(crate) fn dies(&mut self, core: &mut Core, says_so: bool) {
        self.is_alive = false;
        if let Some((_, stream)) = self.stream.take() {
            if says_so {
                core.hang_up(stream);
            } else if let Some(line) = core.net.lines.get_mut(&stream) {
                line.is_over = true;
            }
        }
    }

    /// Whether the guard of a job reports "held" now (P5).
    pub(crate) fn says_held(&self, core: &Core, job: &Job) -> bool {
        let now = self.clock.instant(core.now);
        job.state == JobState::Held
            && !job.is_lost
            && self.sessions[job.session].lease_deadline.is_some_and(|until| now < until)
    }

    /// Whether all jobs are over, and no session has pending work.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_alive
            || (self.jobs.values().all(|job| job.state == JobState::Over)
                && self.sessions.iter().all(|session| session.machine.is_idle()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.is_alive || self.sessions.iter().all(|session| session.machine.is_closed())
    }

    pub(crate) fn shut_down(&mut self, core: &mut Core) {
        for session in 0..self.sessions.len() {
            self.sessions[session].cache.stop();
            self.feed(core, session, Event::Shutdown);
        }
    }
}

impl SimSession {
    fn call(&mut self, kind: CallKind, renumbers: bool) -> Option<Call> {
        Some(match kind {
            CallKind::Open { fresh } => Call::Open { fresh },
            CallKind::KeepAlive => Call::KeepAlive,
            CallKind::Acquire { key, seq, done_through, wait_left } => {
                let tries = self.sent.entry(seq).or_default();
                let seq = if renumbers { Seq(seq.0 + *tries) } else { seq };
                *tries += 1;
                Call::Acquire { seq, done_through, request: self.requests.get(&key)?.clone(), wait_left }
            }
            CallKind::Finish { seq, target, done_through } => Call::Finish { seq, target, done_through },
            CallKind::Settle { seq, target, done_through } => {
                Call::Change { seq, target, done_through, change: HoldChange::Settle }
            }
            CallKind::Close => Call::Close,
        })
    }
}

/// The label of a client's session, by which the oracle knows its requests.
fn label(client: usize, session: usize) -> String {
    format!("client {client}/{session}")
}
