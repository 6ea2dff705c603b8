//! Chains of mishaps: each is one that a rule of the replica was made for, and that faults by chance would hardly ever
//! bring about. Some seeds have one of them, again and again.

use lockkeeper_core::{Break, LockName, Page, Token};
use lockkeeper_replica::{AskId, Question};

use super::{World, at};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Happening, Id};
use crate::net::{Down, Up};
use crate::node::Arm;

impl World {
    /// The leader stands still, one of the others votes for the third and forgets it, and goes on with the leader.
    pub(super) fn lose_vote(&mut self, leader: Id) {
        let Some(voter) = self.another(leader) else { return };
        let now = self.core.now;
        let until = now + self.core.dice.within(300 * MS, 900 * MS);
        self.nodes[at(leader)].stop_until(now, until);
        for other in self.core.others(leader).into_iter().filter(|&other| other != voter) {
            self.core.cut(other, leader, now + 2_500 * MS);
            self.core.cut(leader, other, now + 2_500 * MS);
        }
        self.nodes[at(voter)].arm(Arm::LostVote);
    }

    /// An operator ends a hold, and the leader dies before its holder hears so.
    pub(super) fn break_and_crash(&mut self, leader: Id) {
        let table = self.core.oracle.history.table();
        let of = |name: &LockName| {
            table.describe(name, Page::first(10)).holds.first().map(|it| (name.clone(), it.token))
        };
        let holds: Vec<(LockName, Token)> = self.core.scenario.names.iter().filter_map(of).collect();
        if holds.is_empty() {
            return;
        }
        let (name, token) = self.core.dice.pick(&holds);
        let order =
            Break { name, token, reason: "the simulator wants it".into(), by: "operator".into(), now: false };
        self.asks += 1;
        self.nodes[at(leader)].ask(&mut self.core, AskId(self.asks), Question::Break(order));
        let pause = self.core.dice.spread(MS / 5, 40 * MS);
        self.core.after(pause, Happening::NodeDies { node: leader, power: true });
    }

    /// The leader hands over to a node that does not hear it.
    pub(super) fn stick(&mut self, leader: Id) {
        let Some(to) = self.another(leader) else { return };
        let until = self.core.now + self.core.dice.within(100 * MS, 700 * MS);
        self.core.cut(leader, to, until);
        self.asks += 1;
        self.nodes[at(leader)].ask(&mut self.core, AskId(self.asks), Question::Transfer { to: Some(to) });
    }

    /// One node hears nothing for a while; then another one's disk is lost, and the leader dies. Those two together know
    /// less than what was told.
    pub(super) fn wipe_voter(&mut self, leader: Id) {
        let Some(lagging) = self.another(leader) else { return };
        let others: Vec<Id> = self.core.others(leader).into_iter().filter(|it| *it != lagging).collect();
        if others.is_empty() {
            return;
        }
        let wiped = self.core.dice.pick(&others);
        let pause = self.core.dice.within(150 * MS, 900 * MS);
        for other in self.core.others(lagging) {
            self.core.cut(other, lagging, self.core.now + pause);
        }
        self.core.after(pause, Happening::NodeWiped { node: wiped });
        self.core.after(pause, Happening::NodeDies { node: leader, power: true });
    }

    /// Two of three are removed, one after the other; the first hears nothing of it, and the second is told by heartbeats
    /// before it is told by entries, and forgets in a power cut what it had not written.
    pub(super) fn remove_two(&mut self, leader: Id) {
        let mut others = self.core.others(leader);
        if others.len() != 2 || self.operator.trap.is_some() || !self.is_idle() {
            return;
        }
        if self.core.dice.chance(50) {
            others.reverse();
        }
        let [first, second] = others[..] else { return };
        for other in [leader, second] {
            self.core.cut(first, other, self.core.now + 20 * SECOND);
            self.core.cut(other, first, self.core.now + 20 * SECOND);
        }
        self.nodes[at(leader)].arm(Arm::EntriesLost);
        self.operator.plan = vec![second, first];
        self.operator.trap = Some((second, first));
    }

    /// The client by hand is silent until its session's end is proposed.
    pub(super) fn just_late(&mut self, leader: Id) {
        if let Some(hand) = &mut self.hand {
            hand.is_silent_until(self.core.now + 6 * self.core.scenario.ttl_max);
            self.nodes[at(leader)].arm(Arm::SlowEnd);
        }
    }

    /// A stream ends for one side first, and the client can't come back for long.
    pub(super) fn outage(&mut self, client: usize) {
        let Some(stream) = self.clients[client].stream() else { return };
        let Some(line) = self.core.net.lines.get(&stream) else { return };
        let node = line.node;
        let until = self.core.now
            + self.core.dice.within(self.core.scenario.ttl_max * 3 / 4, 5 * self.core.scenario.ttl_max / 2);
        if self.core.dice.chance(60) {
            // The client first.
            self.core.net.cut_line(stream);
            let pause = self.core.dice.spread(MS / 10, 20 * MS);
            self.core.after(pause, Happening::ToClient(stream, Down::Closed));
            let later: Nanos = pause + self.core.dice.within(20 * MS, 100 * MS);
            self.core.after(later, Happening::ToNode(stream, Up::Closed));
        } else {
            // The node, and the client hears nothing.
            self.core.net.cut_line(stream);
            self.nodes[at(node)].hang_up(&mut self.core, stream);
        }
        self.core.net.hold(client, until);
    }
}
