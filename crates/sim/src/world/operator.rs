//! The operator: adds and removes nodes as `docs/operating.md` describes, one change at a time, and retries a
//! change until it is complete. A node whose disk is lost is removed, and another node is added with a new
//! id.
//!
//! Invariant: at any time, the cluster survives the disks that are lost, whether or not the pending change
//! takes effect.

use std::collections::BTreeSet;

use lockkeeper_replica::{Answer, AskId, Change, Question};
use lockkeeper_wire::store::Member;
use lockkeeper_wire::v1;

use super::{World, at};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Happening, Id};
use crate::node::SimNode;

/// Largest number of voters.
const VOTERS_MAX: usize = 5;
/// The largest number of disks lost in one run.
const WIPES_MAX: u64 = 4;
/// A request without an answer for this long is sent again.
const PATIENCE: Nanos = 3 * SECOND;

#[derive(Default)]
pub(super) struct Operator {
    /// The membership change that the operator is making.
    wish: Option<Wish>,
    /// The change has taken effect; the operator still has to check that it is complete.
    is_made: bool,
    /// The pending request, and when it times out.
    asked: Option<(AskId, Nanos)>,
    /// The leader named by the last `NotLeader` answer.
    leader: Option<Id>,
    /// The number of nodes that the operator still has to add, to replace removed ones.
    owed: u64,
    wipes: u64,
    /// The nodes to remove next, in reverse order.
    pub(super) plan: Vec<Id>,
    /// `(node, ally)`: once the plan is carried out, `node` loses power, and can then reach only `ally`.
    pub(super) trap: Option<(Id, Id)>,
}

#[derive(Clone, PartialEq, Debug)]
enum Wish {
    /// The node to add, and the identity that it has reported itself.
    Add(Id, Option<Member>),
    Remove(Id),
}

impl Wish {
    fn node(&self) -> Id {
        match self {
            Self::Add(node, _) | Self::Remove(node) => *node,
        }
    }
}

impl World {
    /// Members whose disks are lost.
    fn wiped(&self) -> BTreeSet<Id> {
        let members = self.core.members.nodes.keys().copied();
        members.filter(|&node| self.nodes[at(node)].is_wiped).collect()
    }

    /// Whether the membership has settled: no change is under way, no member's disk is lost, and no removed
    /// node that could learn of its removal still runs.
    pub(super) fn is_settled(&self) -> bool {
        let stays = |node: &&SimNode| {
            let is_removed = self.core.members.removed.contains_key(&node.id);
            is_removed && node.is_up() && node.believes(&self.core.present)
        };
        self.operator.wish.is_none() && self.wiped().is_empty() && !self.nodes.iter().any(|node| stays(&node))
    }

    /// Whether no change is under way and no member's disk is lost.
    pub(super) fn is_idle(&self) -> bool {
        self.operator.wish.is_none() && self.wiped().is_empty()
    }

    /// Describes the change under way for a failure report.
    pub(super) fn operator_does(&self) -> String {
        format!("the operator wants {:?}, made {}", self.operator.wish, self.operator.is_made)
    }

    /// Whether a majority keeps its data if these disks are lost, both with and without the node that is
    /// being added or removed.
    fn survives(&self, wiped: &BTreeSet<Id>, changing: Option<Id>) -> bool {
        let it = &self.core.members.configuration;
        let lives = |voters: &BTreeSet<Id>| 2 * voters.difference(wiped).count() > voters.len();
        [&it.voters, &it.voters_outgoing].into_iter().filter(|voters| !voters.is_empty()).all(|voters| {
            let with: BTreeSet<Id> = voters.iter().copied().chain(changing).collect();
            let without = with.iter().copied().filter(|node| Some(*node) != changing).collect();
            let now = voters.iter().copied().collect();
            [with, without, now].iter().filter(|voters| !voters.is_empty()).all(lives)
        })
    }

    /// Wipes the disk of a voter, unless the cluster could not survive that. Voters that have never had the
    /// bootstrap record count as lost: their data can't replace those of a lost disk.
    pub(super) fn wipe(&mut self, node: Id) {
        let voters = &self.core.members.configuration.voters;
        let mut lost = self.wiped();
        let is_news = voters.contains(&node) && lost.insert(node);
        lost.extend(voters.iter().filter(|voter| !self.nodes[at(**voter)].has_record()));
        let changing = self.operator.wish.as_ref().map(Wish::node);
        if is_news && self.operator.wipes < WIPES_MAX && self.survives(&lost, changing) {
            self.operator.wipes += 1;
            self.nodes[at(node)].wipe(&mut self.core);
        }
    }

    pub(super) fn operator_acts(&mut self) {
        let pause = self.core.dice.spread(20 * MS, SECOND / 2);
        self.core.after(pause, Happening::OperatorActs);
        if self.core.members.nodes.is_empty() {
            return;
        }
        if let Some(answer) = self.core.answer.take() {
            self.operator.asked = None;
            self.core.awaited = None;
            self.operator_hears(answer);
        }
        match self.operator.asked {
            Some((_, until)) if self.core.now < until => {}
            _ => self.operator_asks(),
        }
    }

    /// Chooses the next change to make, if any.
    fn choose(&mut self) -> Option<Wish> {
        if let Some(node) = self.wiped().first() {
            return Some(Wish::Remove(*node));
        }
        let voters = self.core.members.configuration.voters.clone();
        while let Some(node) = self.operator.plan.pop() {
            if voters.len() > 1 && voters.contains(&node) {
                self.operator.owed += 1;
                return Some(Wish::Remove(node));
            }
        }
        if let Some((node, ally)) = self.operator.trap.take() {
            self.spring(node, ally);
        }
        if !self.core.is_stormy {
            return None;
        }
        let is_owed = self.operator.owed > 0;
        let chance = if is_owed { 60 } else { self.core.scenario.changes };
        if !self.core.dice.chance(chance) {
            return None;
        }
        let adds = is_owed || voters.len() == 1 || self.core.dice.chance(50);
        if !adds {
            let node = self.core.dice.pick(&voters);
            self.operator.owed += u64::from(self.core.dice.chance(60));
            return Some(Wish::Remove(node));
        }
        self.operator.owed = self.operator.owed.saturating_sub(1);
        (voters.len() < VOTERS_MAX).then(|| Wish::Add(self.another_node(), None))
    }

    /// Adds a node with an empty disk and an unused id.
    fn another_node(&mut self) -> Id {
        let id = self.nodes.len() as Id + 1;
        let node = SimNode::new(&mut self.core, id, false);
        self.nodes.push(node);
        self.core.present.push(id);
        self.core.oracle.joins();
        self.core.after(MS, Happening::NodeStarts { node: id });
        id
    }

    fn operator_asks(&mut self) {
        if self.operator.wish.is_none() {
            self.operator.wish = self.choose();
            self.operator.is_made = false;
            if let Some(wish) = &self.operator.wish {
                self.core.note(format_args!("the operator wants to {wish:?}"));
            }
        }
        let question = match &mut self.operator.wish {
            None => return,
            Some(_) if self.operator.is_made => Question::Members,
            Some(Wish::Remove(node)) => Question::Change(Change::Remove(*node)),
            Some(Wish::Add(node, member)) => {
                if member.is_none() {
                    *member = self.nodes[at(*node)].candidate();
                }
                let Some(member) = member.clone() else { return };
                Question::Change(Change::Add(member))
            }
        };
        let known = self.operator.leader.take().filter(|node| self.nodes[at(*node)].is_member());
        let asked = known.unwrap_or_else(|| self.core.dice.pick(&self.core.present.clone()));
        if !self.nodes[at(asked)].is_member() {
            return;
        }
        self.asks += 1;
        let ask = AskId(self.asks);
        self.operator.asked = Some((ask, self.core.now + PATIENCE));
        self.core.awaited = Some(ask);
        self.nodes[at(asked)].ask(&mut self.core, ask, question);
    }

    fn operator_hears(&mut self, answer: Answer) {
        match answer {
            Answer::Changed => self.operator.is_made = true,
            Answer::NotLeader { leader } => {
                self.operator.leader = Some(leader).filter(|leader| *leader != 0);
            }
            Answer::Members(members) => {
                let Some(wish) = &self.operator.wish else { return };
                let part = members.nodes.iter().find(|it| it.node == wish.node()).map(v1::ClusterNode::part);
                let is_over = match wish {
                    Wish::Add(..) => part == Some(v1::NodePart::Voter),
                    Wish::Remove(_) => part.is_none(),
                };
                if is_over && !members.changing {
                    self.is_over();
                }
            }
            // Any other answer is a failure; the change is retried.
            _ => {}
        }
    }

    /// To be called when the change is complete.
    fn is_over(&mut self) {
        let Some(Wish::Remove(node)) = self.operator.wish.take() else { return };
        self.core.present.retain(|other| *other != node);
        let was_wiped = self.nodes[at(node)].is_wiped;
        self.operator.owed += u64::from(was_wiped);
        // The operator stops some removed nodes at once; the others learn of their removal by themselves.
        let is_trap = self.operator.trap.is_some();
        if was_wiped || (!is_trap && self.core.dice.chance(40)) {
            self.nodes[at(node)].retires(&mut self.core);
        }
    }

    /// Cuts off two removed nodes from all nodes except each other, and restarts one of them by a power cut.
    fn spring(&mut self, node: Id, ally: Id) {
        let now = self.core.now;
        let until = now + self.core.dice.within(2 * SECOND, 5 * SECOND);
        self.core.peers.join(node, ally);
        for other in self.core.present.clone() {
            for it in [node, ally].into_iter().filter(|it| *it != other) {
                self.core.cut(it, other, until);
                self.core.cut(other, it, until);
            }
        }
        if self.nodes[at(node)].is_up() {
            self.nodes[at(node)].crash(&mut self.core, true);
        }
    }
}
