//! Fault injection.

use lockkeeper_core::{Break, LockName, Page, Token};
use lockkeeper_replica::{AskId, Question};

use super::{World, at};
use crate::clock::{DRIFT_PPM_MAX, MS, SECOND};
use crate::core::{Happening, Id};
use crate::node::Arm;
use crate::scenario::Fault;

impl World {
    pub(super) fn fault(&mut self) {
        if !self.core.is_stormy || self.core.scenario.faults.is_empty() {
            return;
        }
        let ttl = self.core.scenario.ttl_max;
        let fault = self.core.dice.pick(&self.core.scenario.faults.clone());
        let client = self.core.dice.below(self.clients.len() as u64) as usize;
        let node = self.core.dice.pick(&self.core.present.clone());
        self.core.note(format_args!("fault {fault:?}, client {client}, node {node}"));
        let leader = self.leader().unwrap_or(node);
        let now = self.core.now;
        let dice = &mut self.core.dice;
        match fault {
            Fault::NodeCrash => {
                let power = dice.chance(60);
                if self.nodes[at(node)].is_up() {
                    self.nodes[at(node)].crash(&mut self.core, power);
                }
            }
            Fault::NodeStall => self.nodes[at(node)].stop_until(now, now + dice.spread(5 * MS, 6 * ttl)),
            Fault::ReadStall => self.nodes[at(node)].unread_until(now + dice.spread(5 * MS, 3 * ttl)),
            Fault::FailedSync => self.nodes[at(node)].fail_sync(),
            // While the scenario has this fault, each write is slow at random, so there is nothing to inject
            // here.
            Fault::SlowDisk => {}
            Fault::Partition => {
                let until = now + dice.spread(50 * MS, 4 * ttl);
                for other in self.core.others(node) {
                    self.core.cut(node, other, until);
                    self.core.cut(other, node, until);
                }
            }
            Fault::OneWay => {
                let until = now + dice.spread(50 * MS, 4 * ttl);
                if let Some(other) = self.another(node) {
                    self.core.cut(node, other, until);
                }
            }
            Fault::PeerBreak => {
                let links = self.core.peers.all();
                if !links.is_empty() {
                    let link = self.core.dice.pick(&links);
                    self.core.break_link(link);
                }
            }
            Fault::LeaderStall => {
                let until = now + dice.spread(50 * MS, 3 * ttl);
                if self.core.dice.chance(30) {
                    self.nodes[at(leader)].stop_loop_until(now, until);
                } else {
                    self.nodes[at(leader)].stop_until(now, until);
                }
            }
            Fault::LeaderCrash => {
                let power = dice.chance(60);
                if self.nodes[at(leader)].is_up() {
                    self.nodes[at(leader)].crash(&mut self.core, power);
                }
            }
            Fault::Rolling => {
                let mut pause = 0;
                for node in self.core.present.clone() {
                    let happening = match self.core.dice.chance(60) {
                        true => Happening::NodeStops { node },
                        false => Happening::NodeRestarts { node },
                    };
                    self.core.after(pause, happening);
                    pause += self.core.dice.spread(100 * MS, 2 * SECOND);
                }
            }
            Fault::StreamBreak => {
                let lines = self.core.net.open_lines();
                if !lines.is_empty() {
                    let line = self.core.dice.pick(&lines);
                    self.core.break_line(line);
                    // Often as part of an outage: packets of the next stream are delayed, too.
                    let until = now + self.core.dice.within(50 * MS, 3 * ttl);
                    if self.core.dice.chance(60)
                        && let Some(line) = self.core.net.lines.get(&line)
                    {
                        let client = line.client;
                        self.core.net.hold(client, until);
                    }
                }
            }
            Fault::HangUp => {
                let lines = self.core.net.open_lines();
                if !lines.is_empty() {
                    let stream = self.core.dice.pick(&lines);
                    if let Some(line) = self.core.net.lines.get(&stream) {
                        self.nodes[at(line.node)].hang_up(&mut self.core, stream);
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
                    self.nodes[at(node)].clock.drift(now, ppm);
                } else {
                    self.clients[client].clock.drift(now, ppm);
                }
            }
            Fault::Transfer => {
                let to = dice.chance(60).then_some(node);
                self.asks += 1;
                let ask = AskId(self.asks);
                self.nodes[at(leader)].ask(&mut self.core, ask, Question::Transfer { to });
            }
            Fault::StuckTransfer => self.stick(leader),
            Fault::DiskLost => self.wipe(node),
            Fault::WipedVoter => self.wipe_voter(leader),
            Fault::TwoRemovals => self.remove_two(leader),
            Fault::LostVote => self.lose_vote(leader),
            Fault::RoundInFlight => self.nodes[at(leader)].arm(Arm::RoundInFlight),
            Fault::BreakAndCrash => self.break_and_crash(leader),
            Fault::JustLate => self.just_late(leader),
            Fault::Outage => self.outage(client),
            Fault::Operator => self.operate(node),
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

    /// The leader that is ready to serve, if there is one.
    fn leader(&self) -> Option<Id> {
        self.nodes.iter().find(|node| node.is_ready()).map(|node| node.id)
    }

    pub(super) fn another(&mut self, node: Id) -> Option<Id> {
        let others = self.core.others(node);
        (!others.is_empty()).then(|| self.core.dice.pick(&others))
    }

    fn operate(&mut self, node: Id) {
        let name: LockName = self.core.dice.pick(&self.core.scenario.names.clone());
        let holds = self.core.oracle.history.table().describe(&name, Page::first(10)).holds;
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
            7 => Question::Describe { name, page: Page::first(10) },
            8 => Question::CheckToken { name, token: tokens.first().map_or(1, |token| token.get()) },
            _ => Question::Sessions { max: 10, after: 0 },
        };
        self.asks += 1;
        let ask = AskId(self.asks);
        self.nodes[at(node)].ask(&mut self.core, ask, question);
    }
}
