//! Who a node is to others before they talk, and whom it knows: the production rules of who is let in, and a member's
//! view of the cluster.

use std::collections::BTreeSet;

use lockkeeper_replica::Members;
use lockkeeper_replica::founder::Identity;
use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::Founding;

use super::Node;
use super::start::client_address;
use crate::clock::MS;
use crate::core::{Core, Id};

/// What a member knows of the cluster.
pub(super) struct Directory {
    founding: Founding,
    /// As it has applied.
    pub(super) members: Members,
    /// By others, who have applied more. To be reached too: this node's vote can be what they wait for.
    news: Members,
    /// Whom it reaches, or tries to.
    dialled: BTreeSet<Id>,
}

impl Directory {
    pub(super) fn new(founding: Founding, members: Members) -> Self {
        Self { founding, members, news: Members::default(), dialled: BTreeSet::new() }
    }

    /// The others that are to be reached.
    fn others(&self) -> BTreeSet<Id> {
        let news = (self.news.at > self.members.at).then_some(&self.news.nodes);
        let nodes = news.into_iter().flatten().chain(&self.members.nodes).map(|(&node, _)| node);
        nodes.filter(|node| *node != self.founding.node && !self.members.removed.contains_key(node)).collect()
    }
}

impl Node {
    /// Whether it has data, and runs on them.
    pub(crate) fn is_member(&self) -> bool {
        self.process.is_some()
    }

    /// Whether it takes no part any more, as far as another one knows.
    pub(crate) fn has_removed(&self, other: Id) -> bool {
        self.process.as_ref().is_some_and(|process| process.directory.members.removed.contains_key(&other))
    }

    /// Whether any of these is one that it would reach.
    pub(crate) fn knows_any(&self, of: &[Id]) -> bool {
        let others = self.process.as_ref().map(|process| process.directory.others());
        others.is_none_or(|others| of.iter().any(|node| others.contains(node)))
    }

    /// Whether it still wants to reach that one; 0 is whoever is there.
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

    /// What a connection of it is for.
    pub(crate) fn lane(&self) -> Lane {
        if self.is_member() { Lane::Messages } else { Lane::Greeting }
    }

    /// What it says at the begin of a connection.
    pub(crate) fn hello(&self, to: Id, lane: Lane) -> Option<Hello> {
        match (&self.process, &self.forming) {
            (Some(process), _) => {
                let client_address = client_address(self.id);
                let identity = Identity {
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

    /// Whether it talks to the one who says this.
    pub(crate) fn admit(&mut self, core: &mut Core, hello: &Hello) -> Result<(), Refusal> {
        let Some(process) = &mut self.process else { return self.hears(core, hello) };
        let identity = Identity {
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

    /// Its answer to a greeting; `None`: it is gone before it could answer.
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

    /// It hears why it is not talked to. If it has no place in the cluster, it ends.
    pub(crate) fn is_refused(&mut self, core: &mut Core, by: Id, refusal: &Refusal) {
        let is_final = matches!(refusal.code(), RefusalCode::Wiped | RefusalCode::Removed);
        if is_final && refusal.node == self.id {
            core.note(format_args!("node {} is refused by node {by}: {}", self.id, refusal.text));
            self.ends(core);
        }
    }

    /// It reaches whom it knows and has not reached yet.
    pub(super) fn greet(&mut self, core: &mut Core) {
        let Some(process) = &mut self.process else { return };
        for to in process.directory.others() {
            if process.directory.dialled.insert(to) {
                let pause = core.dice.spread(MS / 10, 20 * MS);
                core.dial(self.id, self.run, to, pause);
            }
        }
    }

    /// It has applied a change of the members, or heard of another address.
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
