//! Membership changes: proposed at an operator's request or by the leader itself, applied by every node.
//!
//! Responsible for: one change at a time; a learner becomes a voter only once it has caught up; every leader
//! completes the removals that earlier leaders began (until a removal is completed, each commit needs a
//! majority of the old voters and one of the new voters); no leader removes itself, since raft-rs would let
//! it go on leading a cluster of which it is no member; and a voter that is removed goes on voting until the
//! others report that they have removed it.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::Command;
use lockkeeper_wire::store::{self, Leave, Member};
use lockkeeper_wire::v1;
use prost::Message;

use super::{Fatal, Origin, Proposal, Replica};
use crate::engine::{Committed, ELECTION_TICKS, Position};
use crate::event::{Answer, AskId, Output};
use crate::members::{Change, Members, Rejected};
use crate::mutant::Mutant;

/// A learner that lacks at most this many entries becomes a voter: it receives these within milliseconds.
const CAUGHT_UP: u64 = 1_000;

#[derive(Default)]
pub(super) struct Changes {
    /// The change that this leader has proposed and that is not applied yet, and the call that waits for it.
    in_flight: Option<(Position, Option<AskId>, Change)>,
    /// Changes to be checked again: a new leader has not received responses from all voters yet, or the
    /// engine replaced the proposed change by an empty entry.
    waiting: Vec<(AskId, Change)>,
    /// Newest rules version supported by each connected peer.
    rules: BTreeMap<u64, u32>,
    /// The rules version that this leader proposed last; 0 if none.
    raised: u32,
}

impl Changes {
    pub(super) fn peer_up(&mut self, node: u64, rules_max: u32) {
        self.rules.insert(node, rules_max);
    }

    pub(super) fn peer_down(&mut self, node: u64) {
        self.rules.remove(&node);
    }

    /// Forgets the proposed change, whose fate the next leader decides; returns the calls that waited.
    pub(super) fn step_down(&mut self) -> Vec<AskId> {
        self.raised = 0;
        let in_flight = self.in_flight.take().and_then(|(_, ask, _)| ask);
        in_flight.into_iter().chain(self.waiting.drain(..).map(|(ask, _)| ask)).collect()
    }
}

impl Replica {
    /// Handles an operator's change.
    pub(super) fn change_asked(&mut self, ask: AskId, change: Change) {
        if self.members.has_made(&change) {
            return self.outputs.push(Output::Answer(ask, Answer::Changed));
        }
        let checked = match self.changes.in_flight {
            Some(_) => Err(Rejected::UnderWay),
            None => self.members.check(&change, &self.active()),
        };
        match checked {
            Ok(()) => {}
            // To remove a leader, its leadership is transferred first. So this node may have led for a moment
            // only, and some voters have not responded to it yet.
            Err(Rejected::NoMajority { .. }) if self.leads_newly() => {
                return self.changes.waiting.push((ask, change));
            }
            Err(why) => return self.refuse_ask(ask, why.to_string()),
        }
        if change == Change::Remove(self.config.node) {
            return self.hand_over_first(ask);
        }
        if !self.propose_change(change, Some(ask)) {
            self.refuse_ask(ask, "leadership is being handed over; try again in a second".to_owned());
        }
    }

    fn propose_change(&mut self, change: Change, ask: Option<AskId>) -> bool {
        let proposed = self.engine.change(&store::MembersChange { what: Some(change.clone()) });
        self.changes.in_flight = proposed.map(|at| (at, ask, change));
        proposed.is_some()
    }

    pub(super) fn refuse_ask(&mut self, ask: AskId, text: String) {
        let refused = v1::Refused { code: v1::RefusedCode::Operator.into(), text, ..v1::Refused::default() };
        self.outputs.push(Output::Answer(ask, Answer::Refused(refused)));
    }

    /// Whether this node has led for less than an election time-out, so that a peer's silence means nothing
    /// yet.
    pub(super) fn leads_newly(&self) -> bool {
        self.lead.is_ready() && self.clock.now() < self.config.tick * ELECTION_TICKS as u32
    }

    /// The nodes that respond to this leader, and this leader itself.
    fn active(&self) -> BTreeSet<u64> {
        let others = self.engine.progress().into_iter().filter(|it| it.is_active).map(|it| it.node);
        others.chain([self.config.node]).collect()
    }

    /// The members that this leader does not hear. Empty unless this node leads, and shortly after its
    /// election.
    #[must_use]
    pub fn silent(&self) -> BTreeSet<u64> {
        if !self.lead.is_ready() || self.leads_newly() {
            return BTreeSet::new();
        }
        self.engine.progress().into_iter().filter(|it| !it.is_active).map(|it| it.node).collect()
    }

    /// Retries waiting changes. Then proposes the changes that no operator requests: promotions of learners,
    /// ends of joint configurations, and newer rules. They follow from the members, the followers' progress
    /// and the connected peers, so a new leader continues them by itself.
    pub(super) fn tend_members(&mut self) {
        for (ask, change) in std::mem::take(&mut self.changes.waiting) {
            self.change_asked(ask, change);
        }
        if self.changes.in_flight.is_some() {
            return;
        }
        if self.members.is_joint() {
            if !self.members.is_leaving(self.config.node) && !self.is(Mutant::NeverLeavesJoint) {
                self.propose_change(Change::Leave(Leave {}), None);
            }
        } else if !self.members.configuration.learners.is_empty() {
            let last = self.engine.last_index();
            let mut progress = self.engine.progress().into_iter();
            let caught_up = progress.find(|it| {
                let is_near = it.matched > 0 && it.matched + CAUGHT_UP >= last;
                it.is_learner && it.is_active && !it.waits_for_snapshot && is_near
            });
            if let Some(it) = caught_up {
                self.propose_change(Change::Promote(it.node), None);
            }
        }
        self.raise_rules();
    }

    /// Whether the next entry to apply ends the removal of this node, a voter. The node does not apply it, so
    /// it remains a voter of the joint configuration until the other nodes refuse it and its process stops.
    /// If it stopped by itself, and a power cut made the others forget that the entry is committed, they
    /// would need its vote for ever.
    pub(super) fn waits_to_be_removed(&self) -> bool {
        // A joint configuration allows no change but the one that ends it.
        self.turn.is_next_of_members() && self.members.is_leaving(self.config.node)
    }

    /// Raises the rules version once every other member, learners included, is connected and supports it
    /// (V1).
    fn raise_rules(&mut self) {
        let (present, newest) = (self.table.rules().max(self.changes.raised), self.config.rules);
        if present >= newest {
            return;
        }
        let known = |node: &u64| match *node {
            node if node == self.config.node || self.is(Mutant::RulesRaisedUnasked) => newest,
            node => self.changes.rules.get(&node).copied().unwrap_or(0),
        };
        let version = self.members.nodes.keys().map(known).min().unwrap_or(0).min(newest);
        if version > present {
            self.changes.raised = version;
            self.queue.push_back(Proposal::new(Command::RaiseRules { version }, Origin::Leader));
        }
    }

    /// Applies a membership change whose commit is durable on this node.
    pub(super) fn commit_members(&mut self, committed: &Committed) -> Result<(), Fatal> {
        let index = committed.at.index;
        let unknown = |why: String| {
            Fatal(format!(
                "the change of members in log entry {index} can't be applied ({why}); upgrade this node"
            ))
        };
        let data = committed.data.as_ref();
        let change = store::ConfChange::decode(data).map_err(|error| unknown(error.to_string()))?;
        let change = change.context.as_ref();
        let change = store::MembersChange::decode(change).map_err(|error| unknown(error.to_string()))?;
        let configuration = self.engine.apply_change(&change).map_err(unknown)?;
        let mut members = self.members.clone();
        members.apply(index, &change, configuration);
        self.set_members(members);
        Ok(())
    }

    /// To be called for every applied entry: answers the call for the change in flight once the entry at the
    /// change's index is applied.
    pub(super) fn settle_change(&mut self, committed: &Committed) {
        let reached = |(at, ..): &mut (Position, _, _)| at.index <= committed.at.index;
        let Some((at, ask, change)) = self.changes.in_flight.take_if(reached) else { return };
        let Some(ask) = ask else { return };
        if at == committed.at && committed.is_members {
            self.outputs.push(Output::Answer(ask, Answer::Changed));
        } else {
            // The engine replaced the change by an empty entry, since it did not count all entries from
            // before this leader's election as applied yet. By the next turn it does. If one of them began a
            // removal, the retry is refused as `UnderWay`.
            self.changes.waiting.push((ask, change));
        }
    }

    /// Replaces the members.
    pub(super) fn set_members(&mut self, members: Members) {
        self.members = members;
        self.checks.set_members(|node| self.members.nodes.contains_key(&node));
        self.disk_room.set_members(|node| self.members.nodes.contains_key(&node));
        for member in self.members.nodes.values() {
            self.clients.entry(member.node).or_insert_with(|| member.client_address.clone());
        }
        self.clients.retain(|node, _| self.members.nodes.contains_key(node));
        self.tell_members();
    }

    /// Outputs the members with their known client addresses, for the code that manages connections.
    pub(super) fn tell_members(&mut self) {
        let mut members = self.members.clone();
        for (node, member) in &mut members.nodes {
            if let Some(address) = self.clients.get(node) {
                member.client_address.clone_from(address);
            }
        }
        self.outputs.push(Output::Members(members));
    }

    /// Whether a majority of the voters knows the commit of the last change. A removed node may be destroyed
    /// only then: voters that don't know it need the removed node's vote.
    fn is_change_known(&self) -> bool {
        let (voters, at) = (&self.members.configuration.voters, self.members.at);
        let progress = self.engine.progress();
        let knows = |voter: &&u64| {
            **voter == self.config.node || progress.iter().any(|it| it.node == **voter && it.committed >= at)
        };
        2 * voters.iter().filter(knows).count() > voters.len()
    }

    /// The members, by id. Only a leader knows their progress.
    pub(super) fn member_list(&self) -> Vec<v1::ClusterNode> {
        let progress = self.engine.progress();
        let node = |member: &Member| {
            let node = member.node;
            let it = progress.iter().find(|it| it.node == node);
            let part = match () {
                () if self.members.is_learner(node) => v1::NodePart::Learner,
                () if self.members.is_leaving(node) => v1::NodePart::Leaving,
                () => v1::NodePart::Voter,
            };
            let is_self = node == self.config.node;
            let client_address = self.clients.get(&node).unwrap_or(&member.client_address);
            v1::ClusterNode {
                node,
                peer_address: member.peer_address.clone(),
                client_address: client_address.clone(),
                part: part.into(),
                answers: is_self || it.is_some_and(|it| it.is_active),
                matched: if is_self { self.engine.last_index() } else { it.map_or(0, |it| it.matched) },
                receives_snapshot: it.is_some_and(|it| it.waits_for_snapshot),
                // Known to those who connect to it.
                data_lost: false,
            }
        };
        self.members.nodes.values().map(node).collect()
    }

    pub(super) fn members_status(&self) -> v1::MembersResponse {
        v1::MembersResponse {
            nodes: self.member_list(),
            leader: self.config.node,
            term: self.engine.term(),
            last: self.engine.last_index(),
            changing: self.members.is_joint() || self.changes.in_flight.is_some() || !self.is_change_known(),
            removed: self.members.removed.keys().copied().collect(),
        }
    }
}
