//! Connections between nodes. A connection exists only after a handshake in which both nodes have admitted
//! each other.

use lockkeeper_wire::peer::{Hello, Lane, Refusal};

use super::{World, at};
use crate::clock::{MS, SECOND};
use crate::core::{Happening, Id};
use crate::peers::LinkId;

impl World {
    /// Sends a handshake request to `to` (0: a random node), or retries later.
    pub(super) fn dials(&mut self, from: Id, run: u64, to: Id) {
        let now = self.core.now;
        if self.nodes[at(from)].run != run
            || !self.nodes[at(from)].dials(to)
            || self.core.peers.is_up(from, to)
        {
            return;
        }
        let any = to == 0;
        let others = self.core.others(from);
        let there = match any {
            true if others.is_empty() => None,
            true => Some(self.core.dice.pick(&others)),
            false => Some(to),
        };
        let there = there.filter(|&there| {
            self.nodes[at(there)].answers(now)
                && self.nodes[at(from)].answers(now)
                && self.core.is_open(from, there)
        });
        let from_it = &self.nodes[at(from)];
        let hello = there.and_then(|to| Some((to, from_it.hello(to, from_it.lane())?)));
        let Some((to, hello)) = hello else { return self.dials_again(from, run, to) };
        let latency = self.core.peer_latency();
        self.core.after(latency, Happening::HelloArrives { from, run, to, any, hello: Box::new(hello) });
    }

    fn dials_again(&mut self, from: Id, run: u64, to: Id) {
        let pause = self.core.dice.spread(20 * MS, SECOND / 2);
        self.core.dial(from, run, to, pause);
    }

    pub(super) fn hello_arrives(&mut self, from: Id, run: u64, to: Id, any: bool, hello: &Hello) {
        let is_there = self.core.is_open(from, to) && self.nodes[at(to)].answers(self.core.now);
        let to_run = self.nodes[at(to)].run;
        let answer = if is_there { self.nodes[at(to)].welcomes(&mut self.core, hello) } else { None };
        let Some(answer) = answer else {
            return self.dials_again(from, run, if any { 0 } else { to });
        };
        let latency = self.core.peer_latency();
        let answer = Box::new(answer);
        self.core.after(latency, Happening::HelloAnswered { from, run, to, to_run, any, answer });
    }

    pub(super) fn hello_answered(
        &mut self,
        (from, run): (Id, u64),
        (to, to_run): (Id, u64),
        any: bool,
        answer: Result<Hello, Refusal>,
    ) {
        if self.nodes[at(from)].run != run || !self.nodes[at(from)].is_up() {
            return;
        }
        let is_met = match answer {
            Err(refusal) => {
                self.nodes[at(from)].is_refused(&mut self.core, to, &refusal);
                false
            }
            Ok(hello) => {
                self.nodes[at(from)].admit(&mut self.core, &hello).is_ok()
                    && hello.lane() == Lane::Messages
                    && self.nodes[at(to)].run == to_run
                    && self.nodes[at(to)].is_member()
                    && self.core.connect((from, run), (to, to_run))
            }
        };
        if is_met {
            self.core.note(format_args!("node {from} reaches node {to}"));
            for (one, other) in [(from, to), (to, from)] {
                let rules = self.nodes[at(other)].rules;
                self.nodes[at(one)].peer_up(&mut self.core, other, rules);
            }
        } else if self.nodes[at(from)].is_up() {
            self.dials_again(from, run, if any { 0 } else { to });
        }
    }

    pub(super) fn peer_arrives(&mut self, link: LinkId) {
        let Some((from, to, run)) = self.core.peers.link(link).map(|it| (it.from, it.to, it.to_run)) else {
            return;
        };
        let node = &self.nodes[at(to)];
        let hears = node.run == run && !node.has_removed(from);
        if let Some(frame) = self.core.next_frame(link)
            && hears
        {
            self.nodes[at(to)].peer_arrives(&mut self.core, from, frame);
        }
    }
}
