//! Who takes part in the cluster, as the log says, and which changes of that are refused.
//!
//! Not part of the table, whose digest is over locks; every snapshot's head carries it.
//!
//! A new node follows as a learner until it has caught up, then it votes. One is removed by joint consensus (majorities
//! with and without it), and a `Leave` ends that. All of it is pure: every node that applies the same entries has the
//! same members.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_wire::store::{self, Configuration, Founding, Member};

/// A change of the members. One at a time: the next is proposed once the last is applied.
#[doc(inline)]
pub use lockkeeper_wire::store::members_change::What as Change;

/// Most nodes of a cluster, learners included: every entry goes to each of them.
pub const NODES_MAX: usize = 15;
/// The bytes of an incarnation.
const INCARNATION_BYTES: usize = 16;

/// The members of a cluster after some entry of the log.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Members {
    /// The last entry that changed them; 0: as founded.
    pub at: u64,
    /// Everyone who takes part, by id.
    pub nodes: BTreeMap<u64, Member>,
    /// Who votes.
    pub configuration: Configuration,
    /// The incarnations of those who took part once, by id. Ids never come back.
    pub removed: BTreeMap<u64, Vec<u8>>,
}

/// Why a change is refused. Nothing was proposed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// Ids count from 1.
    #[error("node 0 can't be: nodes are numbered from 1")]
    Zero,
    /// The id was used by a node that is gone.
    #[error(
        "node {node} was removed, and ids never come back: what it voted for may still be under way. Give the new node an \
         id that was never used, as in `--node {next}`"
    )]
    Removed {
        /// The id.
        node: u64,
        /// One that is free.
        next: u64,
    },
    /// There is such a node already.
    #[error("node {node} is a member already, with the data that it has now; there is nothing to do")]
    Known {
        /// The id.
        node: u64,
    },
    /// There is such a node already, and it isn't the one that is to be added.
    #[error(
        "node {node} is a member already, with other data. If those are gone: `lockkeeper cluster remove {node}`, then add \
         the new node under an id that was never used, as in `--node {next}`"
    )]
    Another {
        /// The id.
        node: u64,
        /// One that is free.
        next: u64,
    },
    /// Its data directory is a copy of another member's, or it is that member under another id.
    #[error(
        "the data directory of node {node} is that of node {of}: each node needs one of its own, that was empty when it \
         was first started"
    )]
    Copy {
        /// The id.
        node: u64,
        /// Whose data they are.
        of: u64,
    },
    /// What it says of itself makes no sense.
    #[error("node {node} can't be added: {what}")]
    Malformed {
        /// The id.
        node: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Another member listens there.
    #[error("node {of} has the address `{address}` already; give node {node} one of its own")]
    AddressTaken {
        /// The id.
        node: u64,
        /// Who has it.
        of: u64,
        /// The address.
        address: String,
    },
    /// There are as many as there may be.
    #[error("the cluster has {NODES_MAX} nodes, more are not allowed; remove one first")]
    Full,
    /// There is no such node.
    #[error("node {node} is no member of this cluster; `lockkeeper cluster status` lists them")]
    Unknown {
        /// The id.
        node: u64,
    },
    /// It votes already.
    #[error("node {node} is no learner")]
    NotLearner {
        /// The id.
        node: u64,
    },
    /// Somebody must vote.
    #[error("node {node} is the only voter: a cluster without one can do nothing. Add another node first")]
    LastVoter {
        /// The id.
        node: u64,
    },
    /// The cluster would stand still.
    #[error(
        "without node {node}, {active} of {voters} voters would answer, and {needed} are needed: the cluster would stand \
         still. Bring another node back first, or add one"
    )]
    NoMajority {
        /// Who was to go.
        node: u64,
        /// How many of the rest answer.
        active: usize,
        /// How many they are.
        voters: usize,
        /// A majority of them.
        needed: usize,
    },
    /// Another change isn't over.
    #[error(
        "another change of the members is under way, and there is one at a time; try again when it is over"
    )]
    UnderWay,
    /// Nothing is to be ended.
    #[error("no removal is under way")]
    NotJoint,
}

impl Members {
    /// As they were when the cluster was founded: all of them vote.
    #[must_use]
    pub fn founded(founding: &Founding) -> Self {
        let nodes: BTreeMap<u64, Member> =
            founding.members.iter().map(|member| (member.node, member.clone())).collect();
        let configuration =
            Configuration { voters: nodes.keys().copied().collect(), ..Configuration::default() };
        Self { at: 0, nodes, configuration, removed: BTreeMap::new() }
    }

    /// After a change that the log holds at `index`, with the configuration that the consensus made of it.
    pub(crate) fn apply(&mut self, index: u64, change: &store::MembersChange, configuration: Configuration) {
        match &change.what {
            Some(Change::Add(member)) => drop(self.nodes.insert(member.node, member.clone())),
            // It takes part until its end is complete: until then its vote may be needed.
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

    /// Whether the node votes, now or until the change that goes on is over.
    #[must_use]
    pub fn votes(&self, node: u64) -> bool {
        self.configuration.voters.contains(&node) || self.configuration.voters_outgoing.contains(&node)
    }

    /// Whether a change has begun that is not over.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.configuration.voters_outgoing.is_empty()
    }

    /// Whether the node follows without a vote.
    #[must_use]
    pub fn is_learner(&self, node: u64) -> bool {
        self.configuration.learners.contains(&node)
    }

    /// Whether the node is on its way out.
    #[must_use]
    pub fn is_leaving(&self, node: u64) -> bool {
        let Configuration { voters, learners, .. } = &self.configuration;
        self.nodes.contains_key(&node) && !voters.contains(&node) && !learners.contains(&node)
    }

    /// The least id above all that were ever used.
    fn next_id(&self) -> u64 {
        let highest = self.nodes.keys().chain(self.removed.keys()).max().copied().unwrap_or(0);
        highest.saturating_add(1)
    }

    /// Whether the change was made already: whoever asks again has not heard the answer.
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

    /// Whether the change may be proposed. `active` are the nodes that have lately answered this leader, itself among
    /// them.
    ///
    /// # Errors
    /// [`Rejected`]: why not, and what to do.
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
