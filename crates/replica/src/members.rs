//! Cluster membership as recorded in the log, and the checks of membership changes.
//!
//! The members are part neither of the table nor of its digest; the head of every snapshot contains them.
//!
//! A new node starts as a learner; once it has caught up, it becomes a voter. A node is removed by joint
//! consensus (majorities of the old and the new configuration), which a `Leave` entry ends. The module is
//! pure: all nodes that apply the same entries have the same members.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_wire::store::{self, Configuration, Founding, Member};

/// A membership change. Changes are serialized: the next one is proposed once the last one is applied.
#[doc(inline)]
pub use lockkeeper_wire::store::members_change::What as Change;

/// Maximum number of nodes, learners included: every entry is sent to each of them.
pub const NODES_MAX: usize = 15;
/// Length of an incarnation (the random id of a data directory) in bytes.
const INCARNATION_BYTES: usize = 16;

/// The members of a cluster after an entry of the log.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Members {
    /// Index of the last entry that changed the members; 0 for the bootstrap members.
    pub at: u64,
    /// Current members by id.
    pub nodes: BTreeMap<u64, Member>,
    /// Voters and learners, also those of a joint configuration.
    pub configuration: Configuration,
    /// Incarnations of removed members by id. Ids are never reused.
    pub removed: BTreeMap<u64, Vec<u8>>,
}

/// Why a membership change is refused. Nothing was proposed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// Ids count from 1.
    #[error("node 0 can't be: nodes are numbered from 1")]
    Zero,
    /// The id belonged to a removed node.
    #[error(
        "node {node} was removed, and ids never come back: what it voted for may still be under way. Give the new node an \
         id that was never used, as in `--node {next}`"
    )]
    Removed {
        /// The id.
        node: u64,
        /// A free id.
        next: u64,
    },
    /// The node is a member already.
    #[error("node {node} is a member already, with the data that it has now; there is nothing to do")]
    Known {
        /// The id.
        node: u64,
    },
    /// A member has this id with another data directory.
    #[error(
        "node {node} is a member already, with other data. If those are gone: `lockkeeper cluster remove {node}`, then add \
         the new node under an id that was never used, as in `--node {next}`"
    )]
    Another {
        /// The id.
        node: u64,
        /// A free id.
        next: u64,
    },
    /// The node's data directory is that of another node, present or removed: a copy, or the same directory
    /// under another id.
    #[error(
        "the data directory of node {node} is that of node {of}: each node needs one of its own, that was empty when it \
         was first started"
    )]
    Copy {
        /// The id.
        node: u64,
        /// The present or removed node with the same data.
        of: u64,
    },
    /// The node's description of itself is invalid.
    #[error("node {node} can't be added: {what}")]
    Malformed {
        /// The id.
        node: u64,
        /// The error.
        what: &'static str,
    },
    /// Another member has this peer address.
    #[error("node {of} has the address `{address}` already; give node {node} one of its own")]
    AddressTaken {
        /// The id.
        node: u64,
        /// The member that has the address.
        of: u64,
        /// The address.
        address: String,
    },
    /// The cluster has [`NODES_MAX`] nodes.
    #[error("the cluster has {NODES_MAX} nodes, more are not allowed; remove one first")]
    Full,
    /// No member has this id.
    #[error("node {node} is no member of this cluster; `lockkeeper cluster status` lists them")]
    Unknown {
        /// The id.
        node: u64,
    },
    /// The node is a voter already.
    #[error("node {node} is no learner")]
    NotLearner {
        /// The id.
        node: u64,
    },
    /// The only voter can't be removed.
    #[error("node {node} is the only voter: a cluster without one can do nothing. Add another node first")]
    LastVoter {
        /// The id.
        node: u64,
    },
    /// Without this node the cluster would lose its quorum.
    #[error(
        "without node {node}, {active} of {voters} voters would answer, and {needed} are needed: the cluster would stand \
         still. Bring another node back first, or add one"
    )]
    NoMajority {
        /// The node to be removed.
        node: u64,
        /// Number of remaining voters that respond.
        active: usize,
        /// Number of remaining voters.
        voters: usize,
        /// Quorum size of the remaining voters.
        needed: usize,
    },
    /// Another change is in progress.
    #[error(
        "another change of the members is under way, and there is one at a time; try again when it is over"
    )]
    UnderWay,
    /// No joint configuration is in progress.
    #[error("no removal is under way")]
    NotJoint,
}

impl Members {
    /// The members at bootstrap: all of them are voters.
    #[must_use]
    pub fn founded(founding: &Founding) -> Self {
        let nodes: BTreeMap<u64, Member> =
            founding.members.iter().map(|member| (member.node, member.clone())).collect();
        let configuration =
            Configuration { voters: nodes.keys().copied().collect(), ..Configuration::default() };
        Self { at: 0, nodes, configuration, removed: BTreeMap::new() }
    }

    /// Applies the change in log entry `index`; `configuration` is the one that the consensus has after the
    /// change.
    pub(crate) fn apply(&mut self, index: u64, change: &store::MembersChange, configuration: Configuration) {
        match &change.what {
            Some(Change::Add(member)) => drop(self.nodes.insert(member.node, member.clone())),
            // A removed node stays in `nodes` until the joint configuration ends, since its vote may be
            // needed.
            Some(Change::Promote(_) | Change::Remove(_) | Change::Leave(_)) | None => {}
        }
        self.at = index;
        self.configuration = configuration;
        let takes_part = |node: &u64| {
            let it = &self.configuration;
            let ids = [&it.voters, &it.learners, &it.voters_outgoing, &it.learners_next];
            ids.iter().any(|ids| ids.contains(node))
        };
        let gone: Vec<u64> = self.nodes.keys().copied().filter(|node| !takes_part(node)).collect();
        for node in gone {
            if let Some(member) = self.nodes.remove(&node) {
                self.removed.insert(node, member.incarnation);
            }
        }
    }

    /// Whether the node is a voter; during a removal, in the old or in the new configuration.
    #[must_use]
    pub fn votes(&self, node: u64) -> bool {
        self.configuration.voters.contains(&node) || self.configuration.voters_outgoing.contains(&node)
    }

    /// Whether the configuration is joint: a removal has begun and not ended.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.configuration.voters_outgoing.is_empty()
    }

    /// Whether the node is a learner.
    #[must_use]
    pub fn is_learner(&self, node: u64) -> bool {
        self.configuration.learners.contains(&node)
    }

    /// Whether the node is being removed by the current joint configuration.
    #[must_use]
    pub fn is_leaving(&self, node: u64) -> bool {
        let Configuration { voters, learners, .. } = &self.configuration;
        self.nodes.contains_key(&node) && !voters.contains(&node) && !learners.contains(&node)
    }

    /// The number of members that must refuse `node` as no longer a member before it stops. Two, so that one
    /// alone can't stop it, and its removal is not forgotten if one of the two fails. One if there is only
    /// one other member, since without that one there is no majority.
    #[must_use]
    pub fn witnesses_needed(&self, node: u64) -> usize {
        self.nodes.keys().filter(|other| **other != node).count().clamp(1, 2)
    }

    /// The lowest id above all ids ever used.
    fn next_id(&self) -> u64 {
        let highest = self.nodes.keys().chain(self.removed.keys()).max().copied().unwrap_or(0);
        highest.saturating_add(1)
    }

    /// Whether the change was made already, so that a retry after a lost answer succeeds. A removal counts as
    /// made once it has begun.
    #[must_use]
    pub fn has_made(&self, change: &Change) -> bool {
        match change {
            Change::Add(member) => {
                let known = self.nodes.get(&member.node);
                known.is_some_and(|known| known.incarnation == member.incarnation)
            }
            Change::Promote(node) => self.configuration.voters.contains(node),
            Change::Remove(node) => self.removed.contains_key(node) || self.is_leaving(*node),
            Change::Leave(_) => !self.is_joint(),
        }
    }

    /// Checks whether the change may be proposed. `active` are the nodes that recently responded to this
    /// leader, and the leader itself.
    ///
    /// # Errors
    /// [`Rejected`]: the reason and a remedy.
    pub fn check(&self, change: &Change, active: &BTreeSet<u64>) -> Result<(), Rejected> {
        match change {
            Change::Leave(_) if self.is_joint() => Ok(()),
            Change::Leave(_) => Err(Rejected::NotJoint),
            _ if self.is_joint() => Err(Rejected::UnderWay),
            Change::Add(member) => self.check_add(member),
            Change::Promote(node) if self.is_learner(*node) => Ok(()),
            Change::Promote(node) => Err(Rejected::NotLearner { node: *node }),
            Change::Remove(node) => self.check_remove(*node, active),
        }
    }

    fn check_add(&self, member: &Member) -> Result<(), Rejected> {
        let Member { node, incarnation, peer_address, .. } = member;
        let (node, next) = (*node, self.next_id());
        if node == 0 {
            return Err(Rejected::Zero);
        }
        if self.removed.contains_key(&node) {
            return Err(Rejected::Removed { node, next });
        }
        if let Some(known) = self.nodes.get(&node) {
            let same = known.incarnation == *incarnation;
            return Err(if same { Rejected::Known { node } } else { Rejected::Another { node, next } });
        }
        if incarnation.len() != INCARNATION_BYTES {
            return Err(Rejected::Malformed { node, what: "its data directory has no id of 16 bytes" });
        }
        if peer_address.is_empty() {
            return Err(Rejected::Malformed { node, what: "it has no address for its peers; say HOST:PORT" });
        }
        let nodes = self.nodes.iter().map(|(of, it)| (*of, &it.incarnation));
        let mut incarnations = nodes.chain(self.removed.iter().map(|(of, it)| (*of, it)));
        if let Some((of, _)) = incarnations.find(|(_, it)| *it == incarnation) {
            return Err(Rejected::Copy { node, of });
        }
        if let Some(other) = self.nodes.values().find(|other| other.peer_address == *peer_address) {
            return Err(Rejected::AddressTaken { node, of: other.node, address: peer_address.clone() });
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(Rejected::Full);
        }
        Ok(())
    }

    fn check_remove(&self, node: u64, active: &BTreeSet<u64>) -> Result<(), Rejected> {
        if !self.nodes.contains_key(&node) {
            return Err(Rejected::Unknown { node });
        }
        if !self.votes(node) {
            return Ok(());
        }
        let rest: Vec<u64> = self.configuration.voters.iter().copied().filter(|it| *it != node).collect();
        if rest.is_empty() {
            return Err(Rejected::LastVoter { node });
        }
        let (answer, needed) = (rest.iter().filter(|it| active.contains(it)).count(), rest.len() / 2 + 1);
        if answer < needed {
            return Err(Rejected::NoMajority { node, active: answer, voters: rest.len(), needed });
        }
        Ok(())
    }
}

impl From<&Members> for store::Members {
    fn from(members: &Members) -> Self {
        let removed = members.removed.iter();
        Self {
            at: members.at,
            nodes: members.nodes.values().cloned().collect(),
            configuration: Some(members.configuration.clone()),
            removed: removed
                .map(|(&node, incarnation)| store::Removed { node, incarnation: incarnation.clone() })
                .collect(),
        }
    }
}

impl From<store::Members> for Members {
    fn from(stored: store::Members) -> Self {
        Self {
            at: stored.at,
            nodes: stored.nodes.into_iter().map(|member| (member.node, member)).collect(),
            configuration: stored.configuration.unwrap_or_default(),
            removed: stored.removed.into_iter().map(|it| (it.node, it.incarnation)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
