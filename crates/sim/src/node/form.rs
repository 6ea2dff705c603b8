//! Bootstrap and joining: how a node without data becomes a member. The production [`Bootstrap`] state
//! machine decides; each decision is durable before any message that depends on it is sent.

use lockkeeper_replica::bootstrap::{Bootstrap, BootstrapStep};
use lockkeeper_replica::disk::memory::Operation;
use lockkeeper_replica::storage::{self, OpenError};
use lockkeeper_wire::peer::{Hello, Lane, Refusal};
use lockkeeper_wire::store::{Candidate, Founding, Listed, Member};

use super::addresses::{client_address, peer_address};
use super::start::{OPTIONS, TOKENS_ABOVE};
use super::{EIO, SimNode};
use crate::clock::MS;
use crate::core::{Core, Happening, Id};

/// The state of a node that belongs to no cluster yet.
pub(super) struct Forming {
    founder: Bootstrap,
    /// The bootstrap record, decided but not written yet.
    decided: Option<Founding>,
}

impl Forming {
    /// Whether the node still sends handshakes to `node`; 0 means any node.
    pub(super) fn asks(&self, node: Id) -> bool {
        let nodes = &self.founder.own().nodes;
        if nodes.is_empty() { node == 0 } else { nodes.iter().any(|listed| listed.node == node) }
    }

    pub(super) fn hello(&self, to: Id, lane: Lane) -> Hello {
        let to = if self.founder.own().nodes.is_empty() { 0 } else { to };
        self.founder.hello(to, lane)
    }
}

impl SimNode {
    /// The identity that an operator uses to add the node to a cluster.
    pub(crate) fn candidate(&self) -> Option<Member> {
        self.forming.as_ref().and_then(|forming| forming.founder.own().member.clone())
    }

    /// The node's candidate record. Bootstrap nodes list each other. A joining node lists no others. Nor does
    /// a node that was bootstrapped alone and has lost its data: it must join its cluster again instead of
    /// creating another.
    pub(super) fn stands(&self, core: &Core, incarnation: Vec<u8>) -> Candidate {
        let listed = |node: Id| Listed { node, peer_address: peer_address(node), incarnation: Vec::new() };
        let founders = if self.is_founder && core.scenario.nodes > 1 { core.scenario.nodes } else { 0 };
        Candidate {
            member: Some(self.member(incarnation)),
            tokens_above: TOKENS_ABOVE,
            rules: self.rules,
            nodes: (1..=founders).map(listed).collect(),
        }
    }

    pub(super) fn member(&self, incarnation: Vec<u8>) -> Member {
        Member {
            node: self.id,
            incarnation,
            peer_address: peer_address(self.id),
            client_address: client_address(self.id),
        }
    }

    /// Stores the node's candidate record and begins to look for its cluster. `is_new`: the record is not on
    /// disk yet.
    pub(super) fn forms(&mut self, core: &mut Core, own: Candidate, is_new: bool) {
        self.may_fail(core);
        if is_new && let Err(error) = storage::stand(&self.disk, &own) {
            core.note(format_args!("node {} can't keep what it is: {error}", self.id));
            return self.crash(core, true);
        }
        self.disk.heal();
        let others: Vec<Id> =
            own.nodes.iter().map(|listed| listed.node).filter(|node| *node != self.id).collect();
        self.forming = Some(Forming { founder: Bootstrap::new(own), decided: None });
        // A next action may be possible without another message: an earlier run may have stored a promise.
        let _ = self.follow(core, |founder| founder.step());
        for to in if others.is_empty() { vec![0] } else { others } {
            let pause = core.dice.spread(MS / 10, 20 * MS);
            core.dial(self.id, self.run, to, pause);
        }
    }

    /// Handles the handshake of another node.
    pub(super) fn hears(&mut self, core: &mut Core, hello: &Hello) -> Result<(), Refusal> {
        self.follow(core, |founder| founder.heard(hello))
    }

    /// Carries out the steps of the [`Bootstrap`] state machine until it waits or is done.
    fn follow(
        &mut self,
        core: &mut Core,
        ask: impl FnOnce(&mut Bootstrap) -> BootstrapStep,
    ) -> Result<(), Refusal> {
        let Some(forming) = &mut self.forming else { return Err(Refusal::default()) };
        let mut step = ask(&mut forming.founder);
        loop {
            match step {
                BootstrapStep::Wait { .. } => return Ok(()),
                BootstrapStep::Refuse(refusal) => return Err(refusal),
                BootstrapStep::Promise(own) => {
                    core.note(format_args!("node {} promises", self.id));
                    self.may_fail(core);
                    if let Err(error) = storage::stand(&self.disk, &own) {
                        core.note(format_args!("node {} can't keep its promise: {error}", self.id));
                        self.crash(core, true);
                        return Err(Refusal::default());
                    }
                    self.disk.heal();
                    let Some(forming) = &mut self.forming else { return Err(Refusal::default()) };
                    forming.founder.promised(own);
                    step = forming.founder.step();
                }
                BootstrapStep::Found(founding) => {
                    if let Some(forming) = self.forming.as_mut().filter(|it| it.decided.is_none()) {
                        forming.decided = Some(founding);
                        let pause = core.dice.spread(MS / 10, 100 * MS);
                        core.after(pause, Happening::NodeFounds { node: self.id, run: self.run });
                    }
                    return Ok(());
                }
                BootstrapStep::Stop(refusal) => {
                    core.note(format_args!("node {} has no place: {}", self.id, refusal.text));
                    self.ends(core);
                    return Err(refusal);
                }
            }
        }
    }

    /// Writes the bootstrap record: from here on the node is a member.
    pub(crate) fn founds(&mut self, core: &mut Core, run: u64) {
        let forming = self.forming.as_mut().filter(|_| run == self.run);
        let Some(founding) = forming.and_then(|forming| forming.decided.take()) else { return };
        core.note(format_args!("node {} is founded, with {} nodes", self.id, founding.members.len()));
        self.may_fail(core);
        match storage::found(&self.disk, OPTIONS, &founding) {
            Ok(existing) => {
                self.disk.heal();
                self.forming = None;
                self.goes_on(core, existing);
            }
            Err(error @ OpenError::Io { .. }) => {
                core.note(format_args!("node {} can't be founded: {error}", self.id));
                self.crash(core, true);
            }
            Err(error) => core.broken("P10", &format!("node {} can't be founded: {error}", self.id)),
        }
    }

    /// Makes one of the next disk operations fail, at random.
    fn may_fail(&mut self, core: &mut Core) {
        if core.is_stormy && core.dice.chance(8) {
            let operations = [
                Operation::Create,
                Operation::Write,
                Operation::Sync,
                Operation::Rename,
                Operation::SyncNames,
            ];
            let (operation, after) = (core.dice.pick(&operations), core.dice.below(3));
            self.disk.fail(operation, after, EIO);
        }
    }
}
