//! The world: the node, its clients and what they protect; what happens to them, and what must come of it.

use lockkeeper_core::{Break, LockName, Token};
use lockkeeper_replica::Question;

use crate::client::Client;
use crate::clock::{DRIFT_PPM_MAX, MS, Nanos, SECOND};
use crate::core::{Core, Happening};
use crate::hand::Hand;
use crate::mutants::{Mutant, Place};
use crate::net::Up;
use crate::node::Node;
use crate::oracle::{Failure, Seen};
use crate::resource::{Checks, Resources};
use crate::scenario::Fault;

/// A run that does not end by itself has lost its way.
const EVENTS_MAX: u64 = 5_000_000;
/// How often the world looks whether all has come to an end.
const LOOK_EVERY: Nanos = 50 * MS;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first promise that was broken.
    pub failure: Option<Failure>,
    /// Equal for equal runs.
    pub hash: u64,
    /// Events that happened.
    pub events: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_nanos: u64,
    /// How much was seen.
    pub seen: Seen,
    /// What happened, if that was asked for.
    pub lines: Vec<String>,
}

/// Where the run stands after the faults have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// Every caller gets its answer, and nothing is left on its way (P7).
    Answers,
    /// The clients have gone; nothing of them is left in the table.
    Leaving,
    /// A fresh client gets every lock.
    Fresh,
    /// It leaves too.
    Gone,
    Done,
}

struct World {
    core: Core,
    node: Node,
    clients: Vec<Client>,
    hand: Option<Hand>,
    resources: Resources,
    ending: Ending,
    ending_by: Nanos,
}

/// Runs the world of a seed.
#[must_use]
pub fn run(seed: u64, mutant: Option<Mutant>, keep_trace: bool) -> Report {
    let mut core = Core::new(seed, mutant.map(|mutant| mutant.place), keep_trace);
    let checks = match core.mutant {
        Some(Place::NoFence) => Checks::Nothing,
        Some(Place::FenceWithoutEnter) => Checks::WriteOnly,
        _ => Checks::EnterAndWrite,
    };
    let node = Node::new(&mut core);
    let hand = core.scenario.has_hand.then(|| Hand::new(&mut core));
    let mut world = World {
        core,
        node,
        clients: Vec::new(),
        hand,
        resources: Resources::new(checks),
        ending: Ending::Answers,
        ending_by: 0,
    };
    world.begin();
    let mut events = 0;
    while world.core.oracle.failure.is_none()
        && world.ending != Ending::Done
        && let Some(happening) = world.core.next()
    {
        events += 1;
        if events > EVENTS_MAX {
            world.core.broken("P7", "the world does not come to rest: 5,000,000 events");
            break;
        }
        world.happen(happening);
        world.check_guards();
    }
    let mut seen = world.core.oracle.seen;
    seen.fenced = world.resources.refused;
    seen.written = world.resources.written;
    let virtual_nanos = world.core.now;
    let failure = world.core.oracle.failure.take();
    let (hash, _, lines) = world.core.trace.finish();
    Report { seed, failure, hash, events, virtual_nanos, seen, lines }
}

impl World {
    fn begin(&mut self) {
        self.node.start(&mut self.core);
        for index in 0..self.core.scenario.clients {
            let client = Client::new(&mut self.core, index, 1);
            self.clients.push(client);
            self.employ(index);
        }
        if self.hand.is_some() {
            self.core.after(MS, Happening::HandActs);
        }
        self.core.at(self.core.scenario.safety, Happening::FaultsEnd);
        self.core.after(SECOND / 10, Happening::Faults);
    }

    /// Callers come to a client.
    fn employ(&mut self, index: usize) {
        for _ in 0..self.core.scenario.concurrency {
            let pause = self.core.dice.spread(MS, SECOND);
            let life = self.clients[index].life;
            self.core.after(pause, Happening::NextJob { client: index, life });
        }
    }

    fn happen(&mut self, happening: Happening) {
        let core = &mut self.core;
        match &happening {
            // Often, and of no interest.
            Happening::NodeReads { .. } | Happening::Settled => {}
            other => core.note(format_args!("{other:?}")),
        }
        match happening {
            Happening::ToNode(stream, packet) => {
                if matches!(packet, Up::Closed) {
                    self.closed_at_node(stream);
                } else if !self.core.passes(stream) {
                    return;
                }
                self.node.arrives(&mut self.core, stream, packet);
            }
            Happening::ToClient(stream, packet) => {
                let Some(line) = core.net.lines.get(&stream) else { return };
                let passes = core.passes(stream) || matches!(packet, crate::net::Down::Closed);
                let (client, life) = (line.client, line.life);
                let hears = passes && !line.is_ghost;
                if client == core.scenario.clients + 1 {
                    if let Some(hand) = self.hand.as_mut().filter(|_| hears) {
                        hand.arrives(core, stream, packet);
                    }
                } else if hears && let Some(client) = self.client(client, life) {
                    self.clients[client].arrives(&mut self.core, stream, packet);
                }
            }
            Happening::NodeTurn { run } => self.node.turn(core, run),
            Happening::NodeReads { run, stream } => self.node.reads(core, run, stream),
            Happening::NodeWrote { run } => self.node.wrote(core, run),
            Happening::NodeStored { run } => self.node.stored(core, run),
            Happening::NodeStarts => {
                if !self.node.is_up() {
                    self.node.start(core);
                }
            }
            Happening::HandActs => {
                if let Some(hand) = &mut self.hand {
                    hand.acts(core);
                }
            }
            Happening::ClientWakes { client, life } => {
                if let Some(client) = self.client(client, life) {
                    self.clients[client].wakes(&mut self.core);
                }
            }
            Happening::ClientConnects { client, life } => {
                if let Some(client) = self.running(client, life, &happening) {
                    self.clients[client].connects(&mut self.core);
                }
            }
            Happening::JobStep { client, life, key } => {
                if let Some(client) = self.running(client, life, &happening) {
                    self.clients[client].step(&mut self.core, &mut self.resources, key);
                }
            }
            Happening::NextJob { client, life } => {
                if let Some(client) = self.running(client, life, &happening)
                    && self.core.is_stormy
                {
                    self.clients[client].begin_job(&mut self.core);
                }
            }
            Happening::ClientStarts { client } => {
                if self.core.is_stormy {
                    let life = self.clients[client].life + 1;
                    self.clients[client] = Client::new(&mut self.core, client, life);
                    self.employ(client);
                }
            }
            Happening::Faults => self.fault(),
            Happening::FaultsEnd => self.calm(),
            Happening::Settled => self.settle(),
        }
    }

    fn client(&self, client: usize, life: u64) -> Option<usize> {
        let known = self.clients.get(client)?;
        (known.is_alive && known.life == life).then_some(client)
    }

    /// As [`Self::client`]; what happens to a paused one happens when it goes on.
    fn running(&mut self, client: usize, life: u64, happening: &Happening) -> Option<usize> {
        let client = self.client(client, life)?;
        if self.clients[client].is_paused(&self.core) {
            self.core.at(self.clients[client].paused_until, happening.clone());
            return None;
        }
        Some(client)
    }

    /// The service reads a close that its client did not make, or knows nothing of yet: the one exception to P5 (linger).
    fn closed_at_node(&mut self, stream: lockkeeper_replica::StreamId) {
        let Some(line) = self.core.net.lines.get(&stream) else { return };
        if line.is_over && !line.is_ghost {
            return;
        }
        let silence = &mut self.core.oracle.silence;
        let sessions = silence.carried_by(stream);
        silence.excused.extend(sessions);
    }

    /// P4, P5: what a guard says is so. P1 in the eyes of the clients follows: the table grants nothing twice.
    fn check_guards(&mut self) {
        let mut wrong = None;
        for client in self.clients.iter().filter(|client| client.is_alive) {
            for job in client.jobs.values().filter(|job| client.says_held(&self.core, job)) {
                let Some(token) = job.token else { continue };
                let oracle = &self.core.oracle;
                let Some(hold) = oracle.history.hold(token) else {
                    wrong = Some(("P1", format!("client {} holds token {token} of nobody", client.index)));
                    continue;
                };
                let Some(ended) = &hold.ended else { continue };
                if !hold.is_excused {
                    let promise = if ended.starts_with("ExpireSession") { "P5" } else { "P4" };
                    let what = format!(
                        "the guard of client {} {:?} says held, and token {token} ({}/{}) was ended by {ended}",
                        client.index, job.key, hold.session, hold.seq
                    );
                    wrong = Some((promise, what));
                }
            }
        }
        if let Some((promise, what)) = wrong {
            self.core.broken(promise, &what);
        }
    }

    fn fault(&mut self) {
        if !self.core.is_stormy || self.core.scenario.faults.is_empty() {
            return;
        }
        let ttl = self.core.scenario.ttl_max;
        let fault = self.core.dice.pick(&self.core.scenario.faults.clone());
        let client = self.core.dice.below(self.clients.len() as u64) as usize;
        self.core.note(format_args!("fault {fault:?}, client {client}"));
        let now = self.core.now;
        let dice = &mut self.core.dice;
        match fault {
            Fault::NodeCrash => {
                let power = dice.chance(60);
                if self.node.is_up() {
                    self.node.crash(&mut self.core, power);
                }
            }
            Fault::NodeStall => self.node.stop_until(now + dice.spread(5 * MS, 6 * ttl)),
            Fault::ReadStall => self.node.unread_until(now + dice.spread(5 * MS, 3 * ttl)),
            Fault::FailedSync => self.node.fail_sync(),
            // Each write is slow or not by itself.
            Fault::SlowDisk => {}
            Fault::StreamBreak => {
                let lines = self.core.net.open_lines();
                if !lines.is_empty() {
                    let line = self.core.dice.pick(&lines);
                    self.core.break_line(line);
                    // An outage, at times: the next stream does not get through either.
                    let until = now + self.core.dice.within(50 * MS, 3 * ttl);
                    if self.core.dice.chance(60)
                        && let Some(line) = self.core.net.lines.get(&line)
                    {
                        let client = line.client;
                        self.core.net.hold(client, until);
                    }
                }
            }
            Fault::Delay => {
                let until = now + dice.spread(5 * MS, 2 * ttl);
                self.core.net.hold(client, until);
            }
            Fault::ClientPause => {
                let until = now + dice.spread(5 * MS, 4 * ttl);
                self.clients[client].pause(&mut self.core, until);
            }
            Fault::ClientCrash => {
                let says_so = dice.chance(60);
                let pause = dice.spread(MS, 2 * ttl);
                if self.clients[client].is_alive {
                    self.clients[client].dies(&mut self.core, says_so);
                    self.core.after(pause, Happening::ClientStarts { client });
                }
            }
            Fault::ClockDrift => {
                let ppm = dice.within(0, 2 * DRIFT_PPM_MAX as u64) as i64 - DRIFT_PPM_MAX;
                if dice.chance(30) {
                    self.node.clock.drift(now, ppm);
                } else {
                    self.clients[client].clock.drift(now, ppm);
                }
            }
            Fault::Operator => self.operate(),
            Fault::Ghost => {
                if let Some(stream) = self.clients[client].stream() {
                    self.core.haunt(stream);
                }
            }
        }
        let every = self.core.scenario.fault_every;
        let pause = self.core.dice.spread(every / 8, 2 * every);
        self.core.after(pause, Happening::Faults);
    }

    fn operate(&mut self) {
        let name: LockName = self.core.dice.pick(&self.core.scenario.names.clone());
        let holds = self.core.oracle.history.table().describe(&name, 10).holds;
        let tokens: Vec<Token> = holds.iter().map(|hold| hold.token).collect();
        let dice = &mut self.core.dice;
        let question = match dice.below(10) {
            0..=5 if !tokens.is_empty() => Question::Break(Break {
                name,
                token: dice.pick(&tokens),
                reason: "the simulator wants it".into(),
                by: "operator".into(),
                now: dice.chance(20),
            }),
            0..=6 => {
                let limit = dice.chance(60).then(|| dice.within(1, 3) as u32);
                Question::SetLimit { name, limit }
            }
            7 => Question::Describe { name, waiters_max: 10 },
            8 => Question::CheckToken { name, token: tokens.first().map_or(1, |token| token.get()) },
            _ => Question::Sessions { max: 10, after: 0 },
        };
        self.node.ask(&mut self.core, question);
    }

    /// The faults end. From here on everything must come to an end.
    fn calm(&mut self) {
        self.core.is_stormy = false;
        self.core.net.heal();
        self.node.heal(&mut self.core);
        for client in self.clients.iter_mut().filter(|client| client.is_alive) {
            client.resume(&mut self.core);
        }
        self.end_by(Ending::Answers, 100 * self.core.scenario.ttl_max + 120 * SECOND);
        self.core.after(LOOK_EVERY, Happening::Settled);
    }

    fn end_by(&mut self, ending: Ending, within: Nanos) {
        self.core.note(format_args!("{ending:?}"));
        self.ending = ending;
        self.ending_by = self.core.now + within;
    }

    fn settle(&mut self) {
        let ttl = self.core.scenario.ttl_max;
        let table = self.core.oracle.history.table();
        let is_empty = table.request_count() == 0 && table.sessions().next().is_none();
        let idle = self.clients.iter().all(Client::is_idle) && self.hand.as_ref().is_none_or(Hand::is_over);
        let closed = self.clients.iter().all(Client::is_closed);
        match self.ending {
            Ending::Answers if idle => {
                self.clients.iter_mut().for_each(|client| client.shut_down(&mut self.core));
                self.end_by(Ending::Leaving, 8 * ttl + 20 * SECOND);
            }
            Ending::Leaving if closed && is_empty => {
                let index = self.clients.len();
                let mut fresh = Client::new(&mut self.core, index, 1);
                for name in self.core.scenario.names.clone() {
                    fresh.begin_probe(&mut self.core, name);
                }
                self.clients.push(fresh);
                self.end_by(Ending::Fresh, 4 * ttl + 20 * SECOND);
            }
            Ending::Fresh if idle => {
                self.clients.iter_mut().for_each(|client| client.shut_down(&mut self.core));
                self.end_by(Ending::Gone, 4 * ttl + 20 * SECOND);
            }
            Ending::Gone if closed && is_empty => return self.end_by(Ending::Done, 0),
            _ if self.core.now > self.ending_by => {
                let what = self.unsettled();
                return self.core.broken("P7", &what);
            }
            _ => {}
        }
        self.core.after(LOOK_EVERY, Happening::Settled);
    }

    /// What has not come to an end, in words.
    fn unsettled(&self) -> String {
        let table = self.core.oracle.history.table();
        let waiting: Vec<String> = self
            .clients
            .iter()
            .filter(|client| !client.is_idle())
            .map(|client| {
                let jobs = client.jobs.values().filter(|job| job.state != crate::client::State::Over);
                let jobs: Vec<_> = jobs.map(|job| (job.key, job.state)).collect();
                format!("client {}: {jobs:?}", client.index)
            })
            .collect();
        let sessions: Vec<_> = table.sessions().map(|it| (it.id, it.label, it.requests)).collect();
        let in_use = self.core.oracle.history.in_use();
        format!(
            "without faults, {:?} does not come to an end: {waiting:?}; sessions {sessions:?}; in use {in_use:?}",
            self.ending
        )
    }
}
