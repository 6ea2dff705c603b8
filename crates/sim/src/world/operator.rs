//! The one who adds and removes nodes, as `docs/operating.md` says: one change at a time, asked again until it is known to
//! be made; a node whose disk is lost is removed, and another one is added under a new id.
//!
//! Responsible for: at no time more disks are lost than the cluster can bear, whichever of the changes under way are made.

use std::collections::BTreeSet;

use lockkeeper_replica::{Answer, AskId, Change, Question};
use lockkeeper_wire::store::Member;
use lockkeeper_wire::v1;

use super::{World, at};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Happening, Id};
use crate::node::Node;

/// More nodes than this are never wanted.
const VOTERS_MAX: usize = 5;
/// So many disks are lost in one run, at most.
const WIPES_MAX: u64 = 4;
/// Whoever hears nothing for so long asks again.
const PATIENCE: Nanos = 3 * SECOND;

#[derive(Default)]
pub(super) struct Operator {
    /// What it is about.
    wish: Option<Wish>,
    /// It is in force; whether it is over is to be seen.
    is_made: bool,
    /// What it has asked, and until when it waits.
    asked: Option<(AskId, Nanos)>,
    /// Who leads, as somebody said.
    leader: Option<Id>,
    /// Nodes that are still to be added, in the place of others.
    owed: u64,
    wipes: u64,
    /// What it is to do next.
    pub(super) plan: Vec<Id>,
    /// After the plan, this node loses its power, and hears nobody but the other one.
    pub(super) trap: Option<(Id, Id)>,
}

#[derive(Clone, PartialEq, Debug)]
enum Wish {
    /// Who it is has been heard from itself.
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
    /// The nodes that the cluster counts on, and whose disks are lost.
    fn wiped(&self) -> BTreeSet<Id> {
        let members = self.core.members.nodes.keys().copied();
        members.filter(|&node| self.nodes[at(node)].is_wiped).collect()
    }

    /// Whether everything that a member has to do is done.
    pub(super) fn is_settled(&self) -> bool {
        let stays = |node: &&Node| {
            let is_removed = self.core.members.removed.contains_key(&node.id);
            is_removed && node.is_up() && node.knows_any(&self.core.present)
        };
        self.operator.wish.is_none() && self.wiped().is_empty() && !self.nodes.iter().any(|node| stays(&node))
    }

    /// Whether nothing is begun.
    pub(super) fn is_idle(&self) -> bool {
        self.operator.wish.is_none() && self.wiped().is_empty()
    }

    /// What it is about, in words.
    pub(super) fn operator_does(&self) -> String {
        format!("the operator wants {:?}, made {}", self.operator.wish, self.operator.is_made)
    }

    /// Whether a majority keeps its data if these are lost, and the node that is being added or removed takes part or not.
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

    /// A node loses its disk, if the cluster can bear that. A founder that has not written the record yet has nothing that could
    /// stand in for a lost one.
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

    /// The next thing to do, if there is one.
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

    /// A node with an empty disk, under an id that was never used.
    fn another_node(&mut self) -> Id {
        let id = self.nodes.len() as Id + 1;
        let node = Node::new(&mut self.core, id, false);
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
            Answer::Members(told) => {
                let Some(wish) = &self.operator.wish else { return };
                let part = told.nodes.iter().find(|it| it.node == wish.node()).map(v1::ClusterNode::part);
                let is_over = match wish {
                    Wish::Add(..) => part == Some(v1::NodePart::Voter),
                    Wish::Remove(_) => part.is_none(),
                };
                if is_over && !told.changing {
                    self.is_over();
                }
            }
            // It says why; what it was about is tried again.
            _ => {}
        }
    }

    /// What it wished is done.
    fn is_over(&mut self) {
        let Some(Wish::Remove(node)) = self.operator.wish.take() else { return };
        self.core.present.retain(|other| *other != node);
        let was_wiped = self.nodes[at(node)].is_wiped;
        self.operator.owed += u64::from(was_wiped);
        // Some are stopped by whoever has removed them, others find out.
        let is_trap = self.operator.trap.is_some();
        if was_wiped || (!is_trap && self.core.dice.chance(40)) {
            self.nodes[at(node)].retires(&mut self.core);
        }
    }

    /// Two nodes that were removed meet, one after its power was gone, and nobody tells them.
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
