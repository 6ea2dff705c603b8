//! Who takes part in the cluster, as the log says.
//!
//! Not part of the table, whose digest is over locks; every snapshot's head carries it.

use std::collections::BTreeMap;

use lockkeeper_wire::store::members_change::What;
use lockkeeper_wire::store::{self, Configuration, Founding, Member};

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
            Some(What::Add(member)) => drop(self.nodes.insert(member.node, member.clone())),
            // It takes part until its end is complete: until then its vote may be needed.
            Some(What::Promote(_) | What::Remove(_) | What::Leave(_)) | None => {}
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
