//! The end of a run: after the last fault, all pending work must complete (P7).

use lockkeeper_core::{LockName, limits};

use super::{World, at};
use crate::client::{JobState, SimClient};
use crate::clock::{MS, Nanos, SECOND};
use crate::core::Happening;
use crate::node::SimNode;
use crate::raw_client::RawClient;

/// How often completion is checked.
const LOOK_EVERY: Nanos = 50 * MS;
/// Without faults a cluster elects a leader within this time, including restarts and reconnections between
/// nodes.
const LEADER_WITHIN: Nanos = 10 * SECOND;
/// The time limit for membership changes: snapshots may have to be sent, and a joining node must first be
/// found.
const MEMBERS_WITHIN: Nanos = 60 * SECOND;

/// The time limit for the backlog of commands, to which other commands may add meanwhile.
const BACKLOG_WITHIN: Nanos = 10 * SECOND;

/// The phases after the faults have ended. Each phase has a time limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SettlingStage {
    /// Waits until every member runs, and there is a leader.
    Leader,
    /// Waits until membership changes are complete: no node whose disk is lost is a member, and removed nodes
    /// have learned of their removal.
    Members,
    /// Waits until no table has a backlog (M2): all possible grants are made, and ended sessions hold nothing
    /// (P8).
    Backlog,
    /// Waits until every caller has its answer, and no request is pending (P7).
    Answers,
    /// Waits until the clients have closed their sessions, and the table contains none of them.
    Leaving,
    /// Waits until a new client has acquired every lock.
    Fresh,
    /// Waits until the new client has closed its session.
    Gone,
    /// Waits until every member has applied all entries.
    Equal,
    Done,
}

impl World {
    /// Ends the faults. From here on all pending work must complete.
    pub(super) fn calm(&mut self) {
        self.core.is_stormy = false;
        self.core.net.heal();
        self.core.peers.heal();
        for node in &mut self.nodes {
            node.heal(&mut self.core);
            if self.core.present.contains(&node.id) {
                self.core.after(20 * MS, Happening::NodeStarts { node: node.id });
            }
        }
        for client in self.clients.iter_mut().filter(|client| client.is_alive) {
            client.resume(&mut self.core);
        }
        self.end_by(SettlingStage::Leader, LEADER_WITHIN);
        self.core.after(LOOK_EVERY, Happening::Settled);
    }

    fn end_by(&mut self, ending: SettlingStage, within: Nanos) {
        self.core.note(format_args!("{ending:?}"));
        self.ending = ending;
        self.ending_by = self.core.now + within;
    }

    pub(super) fn settle(&mut self) {
        let ttl = self.core.scenario.ttl_max;
        let table = self.core.oracle.history.table();
        let is_empty = table.request_count() == 0 && table.sessions().next().is_none();
        let idle =
            self.clients.iter().all(SimClient::is_idle) && self.hand.as_ref().is_none_or(RawClient::is_over);
        let closed = self.clients.iter().all(SimClient::is_closed);
        let is_led = self.nodes.iter().any(SimNode::is_ready) && self.members().all(SimNode::is_member);
        match self.ending {
            SettlingStage::Leader if is_led => self.end_by(SettlingStage::Members, MEMBERS_WITHIN),
            SettlingStage::Members if self.is_settled() => {
                // Only now are all changes known that the faults have delayed.
                if !self.core.members.removed.is_empty() {
                    self.clients.iter_mut().for_each(|client| client.receives_nodes(&mut self.core));
                }
                self.end_by(SettlingStage::Backlog, BACKLOG_WITHIN)
            }
            SettlingStage::Backlog if !self.members().any(SimNode::has_backlog) => {
                self.core.oracle.check_queue(self.core.now);
                self.end_by(SettlingStage::Answers, 100 * ttl + 120 * SECOND);
            }
            SettlingStage::Answers if idle => {
                self.clients.iter_mut().for_each(|client| client.shut_down(&mut self.core));
                self.end_by(SettlingStage::Leaving, 8 * ttl + 20 * SECOND);
            }
            SettlingStage::Leaving if closed && is_empty => {
                let index = self.clients.len();
                let mut fresh = SimClient::new(&mut self.core, index, 1);
                for name in self.core.scenario.names.clone() {
                    fresh.begin_probe(&mut self.core, name);
                }
                self.clients.push(fresh);
                self.end_by(SettlingStage::Fresh, 4 * ttl + 20 * SECOND);
            }
            SettlingStage::Fresh if idle => {
                self.clients.iter_mut().for_each(|client| client.shut_down(&mut self.core));
                self.end_by(SettlingStage::Gone, 4 * ttl + 20 * SECOND);
            }
            SettlingStage::Gone if closed && is_empty => self.end_by(SettlingStage::Equal, 10 * SECOND),
            SettlingStage::Equal if self.is_equal() => {
                for node in &self.nodes {
                    node.compare(&mut self.core);
                }
                return self.end_by(SettlingStage::Done, 0);
            }
            _ if self.core.now > self.ending_by => {
                let what = self.unsettled();
                return self.core.broken("P7", &what);
            }
            _ => {}
        }
        self.core.after(LOOK_EVERY, Happening::Settled);
    }

    /// Whether every member has applied all entries, and the table uses the newest rules version if all
    /// members support it (V1).
    fn is_equal(&self) -> bool {
        let history = &self.core.oracle.history;
        let newest = limits::RULES_VERSION;
        let is_raised = history.table().rules() == newest || self.members().any(|node| node.rules < newest);
        let is_done = |node: &SimNode| node.applied() == Some(history.applied()) && !node.has_backlog();
        is_raised && self.members().all(is_done)
    }

    /// The members whose disks are intact.
    fn members(&self) -> impl Iterator<Item = &SimNode> {
        self.core.members.nodes.keys().map(|node| &self.nodes[at(*node)]).filter(|node| !node.is_wiped)
    }

    /// Describes the pending work for a failure report.
    fn unsettled(&self) -> String {
        let table = self.core.oracle.history.table();
        let waiting: Vec<String> = self
            .clients
            .iter()
            .filter(|client| !client.is_idle())
            .map(|client| {
                let jobs = client.jobs.values().filter(|job| job.state != JobState::Over);
                let jobs: Vec<_> = jobs.map(|job| (job.key, job.state)).collect();
                format!("client {}: {jobs:?}", client.index)
            })
            .collect();
        let sessions: Vec<_> = table.sessions().map(|it| (it.id, it.label, it.requests)).collect();
        let in_use: Vec<LockName> = self.core.oracle.history.in_use();
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| (node.id, node.is_up(), node.is_ready(), node.applied())).collect();
        format!(
            "without faults, {:?} does not come to an end: {waiting:?}; sessions {sessions:?}; in use {in_use:?}; nodes \
             (up, leads, applied) {nodes:?}; {}; {:?}",
            self.ending,
            self.operator_does(),
            self.core.members
        )
    }
}
