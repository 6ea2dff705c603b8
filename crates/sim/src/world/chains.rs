//! Fault sequences. Each one provokes a failure that one rule of the replica prevents, and that independent
//! random faults would almost never produce. Some scenarios repeat one of these sequences.

use lockkeeper_core::{Break, LockName, Page, Token};
use lockkeeper_replica::{AskId, Question};

use super::{World, at};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Happening, Id};
use crate::net::{Down, Up};
use crate::node::Arm;

impl World {
    /// The leader is paused. A second node votes for a third, loses that vote in a power cut, and continues
    /// to follow the old leader.
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

    /// An operator breaks a hold, and the leader crashes soon after, perhaps before the holder learns of the
    /// break.
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

    /// The leader starts a leadership transfer to a node that is cut off.
    pub(super) fn stick(&mut self, leader: Id) {
        let Some(to) = self.another(leader) else { return };
        let until = self.core.now + self.core.dice.within(100 * MS, 700 * MS);
        self.core.cut(leader, to, until);
        self.asks += 1;
        self.nodes[at(leader)].ask(&mut self.core, AskId(self.asks), Question::Transfer { to: Some(to) });
    }

    /// One node receives nothing for a while. Then the disk of another node is lost, and the leader crashes.
    /// The lagging node and the wiped node could form a majority that lacks acknowledged entries.
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

    /// Two of three nodes are removed, one after the other. The first is cut off. The second learns the
    /// commit index from heartbeats before it receives the entries, and loses in a power cut all entries that
    /// it had not written.
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

    /// The raw protocol client stays silent until the expiry of its session is proposed.
    pub(super) fn just_late(&mut self, leader: Id) {
        if let Some(hand) = &mut self.hand {
            hand.is_silent_until(self.core.now + 6 * self.core.scenario.ttl_max);
            self.nodes[at(leader)].arm(Arm::SlowEnd);
        }
    }

    /// A client's stream breaks, and one side detects the break before the other; then the client can't
    /// reconnect for long.
    pub(super) fn outage(&mut self, client: usize) {
        let Some(stream) = self.clients[client].stream() else { return };
        let Some(line) = self.core.net.lines.get(&stream) else { return };
        let node = line.node;
        let until = self.core.now
            + self.core.dice.within(self.core.scenario.ttl_max * 3 / 4, 5 * self.core.scenario.ttl_max / 2);
        if self.core.dice.chance(60) {
            // The client detects the break first.
            self.core.net.cut_line(stream);
            let pause = self.core.dice.spread(MS / 10, 20 * MS);
            self.core.after(pause, Happening::ToClient(stream, Down::Closed));
            let later: Nanos = pause + self.core.dice.within(20 * MS, 100 * MS);
            self.core.after(later, Happening::ToNode(stream, Up::Closed));
        } else {
            // The node closes the stream, and the client does not learn of it.
            self.core.net.cut_line(stream);
            self.nodes[at(node)].hang_up(&mut self.core, stream);
        }
        self.core.net.hold(client, until);
    }
}
