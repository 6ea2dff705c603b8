//! Handshakes between nodes: the production admission rules, and a member's view of the cluster.

use std::collections::BTreeSet;

use lockkeeper_replica::Members;
use lockkeeper_replica::bootstrap::NodeIdentity;
use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::Founding;

use super::SimNode;
use super::addresses::client_address;
use crate::clock::MS;
use crate::core::{Core, Id};

/// A member's view of the cluster.
pub(super) struct Directory {
    founding: Founding,
    /// The membership as applied by this node.
    pub(super) members: Members,
    /// A membership that a peer reports as newer. Its nodes are dialled too: they may be waiting for this
    /// node's vote.
    news: Members,
    /// Nodes that are connected, or being dialled.
    dialled: BTreeSet<Id>,
    /// Members that refused this node because it is no longer a member.
    witnesses: BTreeSet<Id>,
}

impl Directory {
    pub(super) fn new(founding: Founding, members: Members) -> Self {
        Self {
            founding,
            members,
            news: Members::default(),
            dialled: BTreeSet::new(),
            witnesses: BTreeSet::new(),
        }
    }

    /// The other nodes to connect to.
    fn others(&self) -> BTreeSet<Id> {
        let news = (self.news.at > self.members.at).then_some(&self.news.nodes);
        let nodes = news.into_iter().flatten().chain(&self.members.nodes).map(|(&node, _)| node);
        nodes.filter(|node| *node != self.founding.node && !self.members.removed.contains_key(node)).collect()
    }
}

impl SimNode {
    /// Whether this node runs as a member of a cluster: its process runs, and has started from the data on
    /// its disk.
    pub(crate) fn is_member(&self) -> bool {
        self.process.is_some()
    }

    /// Whether this node has applied the removal of `other`.
    pub(crate) fn has_removed(&self, other: Id) -> bool {
        self.process.as_ref().is_some_and(|process| process.directory.members.removed.contains_key(&other))
    }

    /// Whether refusals by `nodes` suffice for this node to accept that it was removed; true if this node has
    /// not joined yet.
    pub(crate) fn believes(&self, nodes: &[Id]) -> bool {
        self.process.as_ref().is_none_or(|process| {
            let members = &process.directory.members;
            let known = nodes.iter().filter(|node| members.nodes.contains_key(node)).count();
            known >= members.witnesses_needed(self.id)
        })
    }

    /// Whether the node still tries to connect to `to`; 0 means any node.
    pub(crate) fn dials(&mut self, to: Id) -> bool {
        match (&mut self.process, &self.forming) {
            (Some(process), _) => {
                let wants = process.directory.others().contains(&to);
                if !wants {
                    process.directory.dialled.remove(&to);
                }
                wants
            }
            (None, Some(forming)) => forming.asks(to),
            (None, None) => false,
        }
    }

    /// The purpose of the connections that the node opens.
    pub(crate) fn lane(&self) -> Lane {
        if self.is_member() { Lane::Messages } else { Lane::Greeting }
    }

    /// The hello that the node sends, as a handshake request or as the reply to one; `None` if it does not
    /// run.
    pub(crate) fn hello(&self, to: Id, lane: Lane) -> Option<Hello> {
        match (&self.process, &self.forming) {
            (Some(process), _) => {
                let client_address = client_address(self.id);
                let identity = NodeIdentity {
                    founding: &process.directory.founding,
                    members: &process.directory.members,
                    rules: process.replica.table().rules(),
                    rules_max: self.rules,
                    client_address: &client_address,
                };
                Some(identity.hello(to, lane))
            }
            (None, Some(forming)) => Some(forming.hello(to, lane)),
            (None, None) => None,
        }
    }

    /// Applies the admission rules to the hello of another node.
    pub(crate) fn admit(&mut self, core: &mut Core, hello: &Hello) -> Result<(), Refusal> {
        let Some(process) = &mut self.process else { return self.hears(core, hello) };
        let identity = NodeIdentity {
            founding: &process.directory.founding,
            members: &process.directory.members,
            rules: process.replica.table().rules(),
            rules_max: self.rules,
            client_address: "",
        };
        identity.admit(hello)?;
        if let Some(theirs) = &hello.members
            && theirs.at > process.directory.members.at.max(process.directory.news.at)
        {
            process.directory.news = theirs.clone().into();
            self.greet(core);
        }
        Ok(())
    }

    /// Returns the reply to a handshake request, or `None` if the node died while handling it.
    pub(crate) fn welcomes(&mut self, core: &mut Core, hello: &Hello) -> Option<Result<Hello, Refusal>> {
        if let Err(refusal) = self.admit(core, hello) {
            return Some(Err(refusal));
        }
        let own = self.hello(hello.node, hello.lane())?;
        if hello.lane() != Lane::Greeting && !self.is_member() {
            let text = "this node is only about to become a member".to_owned();
            return Some(Err(Refusal { code: RefusalCode::Later.into(), text, ..Refusal::default() }));
        }
        Some(Ok(own))
    }

    /// Handles a refusal. Once enough members have refused this node for good, its process ends.
    pub(crate) fn is_refused(&mut self, core: &mut Core, by: Id, refusal: &Refusal) {
        let is_final = matches!(refusal.code(), RefusalCode::Wiped | RefusalCode::Removed);
        if !is_final || refusal.node != self.id {
            return;
        }
        core.note(format_args!("node {} is refused by node {by}: {}", self.id, refusal.text));
        let is_settled = self.process.as_mut().is_none_or(|process| {
            let Directory { members, witnesses, .. } = &mut process.directory;
            if members.nodes.contains_key(&by) {
                witnesses.insert(by);
            }
            witnesses.len() >= members.witnesses_needed(self.id)
        });
        if is_settled {
            self.ends(core);
        }
    }

    /// Dials the nodes of the newest known membership that are not connected or being dialled.
    pub(super) fn greet(&mut self, core: &mut Core) {
        let Some(process) = &mut self.process else { return };
        for to in process.directory.others() {
            if process.directory.dialled.insert(to) {
                let pause = core.dice.spread(MS / 10, 20 * MS);
                core.dial(self.id, self.run, to, pause);
            }
        }
    }

    /// To be called when the node has applied a membership change, or learned a changed client address.
    pub(super) fn applied_members(&mut self, core: &mut Core, members: Members) {
        core.members_are(&members);
        for gone in members.removed.keys() {
            core.part(self.id, *gone);
        }
        if let Some(process) = &mut self.process {
            process.directory.members = members;
        }
        self.greet(core);
    }
}
