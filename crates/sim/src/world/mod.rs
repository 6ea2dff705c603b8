//! The simulated world: nodes, clients and protected resources, the event loop, and the checks after each
//! event.
//!
//! `faults.rs` and `chains.rs`: fault injection. `operator.rs`: membership changes. `meet.rs`: handshakes
//! between nodes. `ending.rs`: the checks after the last fault.

mod chains;
mod ending;
mod faults;
mod meet;
mod operator;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::client::SimClient;
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening, Id};
use crate::mutants::{Mutant, MutantLocation};
use crate::net::{Down, Up};
use crate::node::SimNode;
use crate::oracle::{BrokenPromise, Coverage};
use crate::raw_client::RawClient;
use crate::resource::{Checks, Resources};
use ending::SettlingStage;
use operator::Operator;

/// A run with more events than this is considered a livelock.
const EVENTS_MAX: u64 = 5_000_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// The first broken promise.
    pub failure: Option<BrokenPromise>,
    /// Hash of the trace: equal for equal runs.
    pub hash: u64,
    /// Number of events processed.
    pub events: u64,
    /// Virtual time at the end of the run, in nanoseconds.
    pub virtual_nanos: u64,
    /// Counters of the events observed.
    pub seen: Coverage,
    /// The trace, if it was requested.
    pub lines: Vec<String>,
}

struct World {
    core: Core,
    nodes: Vec<SimNode>,
    clients: Vec<SimClient>,
    hand: Option<RawClient>,
    resources: Resources,
    operator: Operator,
    ending: SettlingStage,
    ending_by: Nanos,
    /// The number of requests that operators have sent; also the id of the last one.
    asks: u64,
    /// The applied index at the last check of the guards.
    compared: u64,
}

/// Runs the simulation of a seed.
#[must_use]
pub fn run(seed: u64, mutant: Option<Mutant>, keep_trace: bool) -> RunReport {
    let mut core = Core::new(seed, mutant.map(|mutant| mutant.location), keep_trace);
    let checks = match core.mutant {
        Some(MutantLocation::NoFence) => Checks::Nothing,
        Some(MutantLocation::FenceWithoutEnter) => Checks::WriteOnly,
        _ => Checks::EnterAndWrite,
    };
    let nodes = (1..=core.scenario.nodes).map(|id| SimNode::new(&mut core, id, true)).collect();
    let hand = core.scenario.has_hand.then(|| RawClient::new(&mut core));
    let mut world = World {
        core,
        nodes,
        clients: Vec::new(),
        hand,
        resources: Resources::new(checks),
        operator: Operator::default(),
        ending: SettlingStage::Answers,
        ending_by: 0,
        asks: 0,
        compared: 0,
    };
    world.begin();
    let mut events = 0;
    while world.core.oracle.failure.is_none()
        && world.ending != SettlingStage::Done
        && let Some(happening) = world.core.next()
    {
        events += 1;
        if events > EVENTS_MAX {
            world.core.broken("P7", "the world does not come to rest: 5,000,000 events");
            break;
        }
        let is_of_client = happening.is_of_client();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.happen(happening))) {
            // In production a panic ends the process, and its next run might panic again. Panics of clients
            // and of the simulator are reported here as well.
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            world.core.broken("P10", &format!("a node panics: {text}"));
        }
        let applied = world.core.oracle.history.applied();
        if is_of_client || applied != world.compared {
            world.compared = applied;
            world.check_guards();
        }
    }
    let mut seen = world.core.oracle.seen;
    seen.fenced = world.resources.refused;
    seen.written = world.resources.written;
    seen.overwritten = world.resources.lost;
    seen.elections = world.core.oracle.elections();
    let virtual_nanos = world.core.now;
    let failure = world.core.oracle.failure.take();
    let (hash, _, lines) = world.core.trace.finish();
    RunReport { seed, failure, hash, events, virtual_nanos, seen, lines }
}

impl World {
    fn begin(&mut self) {
        let at_once = self.core.dice.chance(60);
        for node in 1..=self.core.scenario.nodes {
            let pause = if at_once { 0 } else { self.core.dice.spread(MS, 2 * SECOND) };
            self.core.after(pause, Happening::NodeStarts { node });
        }
        self.core.after(SECOND, Happening::OperatorActs);
        for index in 0..self.core.scenario.clients {
            let client = SimClient::new(&mut self.core, index, 1);
            self.clients.push(client);
            self.employ(index);
        }
        if self.hand.is_some() {
            self.core.after(MS, Happening::HandActs);
        }
        self.core.at(self.core.scenario.safety, Happening::FaultsEnd);
        self.core.after(SECOND / 10, Happening::Faults);
    }

    /// Starts the callers of a client.
    fn employ(&mut self, index: usize) {
        for _ in 0..self.core.scenario.concurrency {
            let pause = self.core.dice.spread(MS, SECOND);
            let life = self.clients[index].life;
            self.core.after(pause, Happening::NextJob { client: index, life });
        }
    }

    fn happen(&mut self, happening: Happening) {
        let core = &mut self.core;
        if happening.is_traced() {
            core.note(format_args!("{happening:?}"));
        }
        match happening {
            Happening::ToNode(stream, packet) => {
                if matches!(packet, Up::Closed) {
                    self.closed_at_node(stream);
                } else if !self.core.passes(stream) {
                    return;
                }
                let Some(node) = self.core.net.lines.get(&stream).map(|line| line.node) else { return };
                self.nodes[at(node)].arrives(&mut self.core, stream, packet);
            }
            Happening::ToClient(stream, packet) => {
                let Some(line) = core.net.lines.get(&stream) else { return };
                let passes = core.passes(stream) || matches!(packet, Down::Closed);
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
            Happening::NodeTurn { node, run } => self.nodes[at(node)].turn(core, run),
            Happening::NodeReads { node, run, stream } => self.nodes[at(node)].reads(core, run, stream),
            Happening::NodeWrote { node, run } => self.nodes[at(node)].wrote(core, run),
            Happening::NodeStored { node, run } => self.nodes[at(node)].stored(core, run),
            Happening::NodeStarts { node } => {
                let it = &mut self.nodes[at(node)];
                if !it.is_up() && !it.is_gone {
                    it.start(core);
                }
            }
            Happening::NodeFounds { node, run } => self.nodes[at(node)].founds(core, run),
            Happening::NodeWiped { node } => {
                if core.is_stormy {
                    self.wipe(node);
                }
            }
            Happening::NodeStops { node } => {
                if core.is_stormy {
                    self.nodes[at(node)].stops(core);
                    let pause = core.dice.spread(20 * MS, SECOND);
                    core.after(pause, Happening::NodeRestarts { node });
                }
            }
            Happening::NodeRestarts { node } => {
                let goes = core.is_stormy || self.nodes[at(node)].is_stopping();
                if goes && self.nodes[at(node)].is_up() {
                    self.nodes[at(node)].crash(core, false);
                    let pause = core.dice.spread(5 * MS, SECOND / 2);
                    core.after(pause, Happening::NodeStarts { node });
                }
            }
            Happening::NodeDies { node, power } => {
                if core.is_stormy && self.nodes[at(node)].is_up() {
                    self.nodes[at(node)].crash(core, power);
                }
            }
            Happening::Cut { from, to, until } => {
                if core.is_stormy {
                    core.cut(from, to, until);
                }
            }
            Happening::PeerDials { from, run, to } => self.dials(from, run, to),
            Happening::HelloArrives { from, run, to, any, hello } => {
                self.hello_arrives(from, run, to, any, &hello);
            }
            Happening::HelloAnswered { from, run, to, to_run, any, answer } => {
                self.hello_answered((from, run), (to, to_run), any, *answer);
            }
            Happening::PeerArrives(link) => self.peer_arrives(link),
            Happening::PeerCloses { node, run, link } => {
                if self.nodes[at(node)].run == run
                    && let Some(peer) = core.link_closed(node, link)
                {
                    self.nodes[at(node)].peer_lost(core, peer, link);
                }
            }
            Happening::BulkArrives(bulk) => {
                let Some((from, to, hello)) =
                    core.bulks.get(bulk).map(|it| (it.offer.from, it.offer.to, it.hello.clone()))
                else {
                    return;
                };
                let there = &mut self.nodes[at(to)];
                let is_there = core.is_open(from, to) && there.answers(core.now);
                if is_there && matches!(there.welcomes(core, &hello), Some(Ok(_))) {
                    there.receives(core, bulk);
                } else {
                    core.settle_bulk(bulk, false);
                }
            }
            Happening::BulkSettles(bulk, arrived) => {
                if let Some(bulk) = core.bulks.take(bulk)
                    && self.nodes[at(bulk.offer.from)].run == bulk.from_run
                {
                    self.nodes[at(bulk.offer.from)].bulk_settled(core, bulk.offer.to, arrived);
                }
            }
            Happening::PeerBreaks(link) => core.break_link(link),
            Happening::HandActs => {
                if let Some(hand) = &mut self.hand {
                    hand.acts(core);
                }
            }
            Happening::HandLives => {
                if let Some(hand) = &mut self.hand {
                    hand.lives(core);
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
                    self.clients[client] = SimClient::new(&mut self.core, client, life);
                    self.employ(client);
                }
            }
            Happening::OperatorActs => self.operator_acts(),
            Happening::Faults => self.fault(),
            Happening::FaultsEnd => self.calm(),
            Happening::Settled => self.settle(),
        }
    }

    fn client(&self, client: usize, life: u64) -> Option<usize> {
        let known = self.clients.get(client)?;
        (known.is_alive && known.life == life).then_some(client)
    }

    /// As [`Self::client`]; an event of a paused client is postponed to the end of its pause.
    fn running(&mut self, client: usize, life: u64, happening: &Happening) -> Option<usize> {
        let client = self.client(client, life)?;
        if self.clients[client].is_paused(&self.core) {
            self.core.at(self.clients[client].paused_until, happening.clone());
            return None;
        }
        Some(client)
    }

    /// To be called when a node reads the end of a stream. If the client has neither closed the stream nor
    /// found it closed, or the stream is a replay, its sessions are the one exception to P5 (`linger`).
    fn closed_at_node(&mut self, stream: lockkeeper_replica::StreamId) {
        let Some(line) = self.core.net.lines.get(&stream) else { return };
        if line.is_over && !line.is_ghost {
            return;
        }
        let node = line.node;
        self.core.oracle.closed_between(node, stream);
    }

    /// P4, P5: no guard reports "held" after its hold has ended. Since the table never grants a lock to two
    /// sessions, this implies P1 for clients.
    fn check_guards(&mut self) {
        let history = &mut self.core.oracle.history;
        if !history.tries.is_empty() {
            history.look_at_tries(&SimClient::all_idle(&self.clients));
        }
        let mut wrong = None;
        for client in self.clients.iter().filter(|client| client.is_alive) {
            for job in client.holding().filter(|job| client.says_held(&self.core, job)) {
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
}

fn at(node: Id) -> usize {
    node as usize - 1
}
