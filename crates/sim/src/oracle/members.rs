//! Membership: all nodes belong to one cluster, nodes that have applied the same change have the same
//! members, and no majority lacks an acknowledged entry (P1, P10).

use std::collections::BTreeMap;

use lockkeeper_replica::Members;
use lockkeeper_wire::store::{Configuration, Founding, Member};

use super::CheckResult;
use crate::core::Id;

/// The fields of a membership that must be equal on all nodes. Addresses may differ for a while.
#[derive(PartialEq, Debug)]
struct Shape {
    nodes: BTreeMap<Id, Vec<u8>>,
    configuration: Configuration,
    removed: BTreeMap<Id, Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Taking {
    /// The bootstrap record of the first member.
    founding: Option<Founding>,
    /// Each membership, by the index of the entry that made it.
    known: BTreeMap<u64, Shape>,
    /// The configuration after the highest applied entry.
    configuration: Configuration,
}

impl Taking {
    /// Whether no node has a bootstrap record yet.
    pub(super) fn is_first(&self) -> bool {
        self.founding.is_none()
    }

    /// P1: every node that is bootstrapped or joins belongs to the same cluster.
    pub(super) fn founded(&mut self, node: Id, founding: &Founding) -> CheckResult {
        let first = self.founding.get_or_insert_with(|| founding.clone());
        let names = |of: &Founding| -> Vec<(Id, Vec<u8>)> {
            of.members.iter().map(|Member { node, incarnation, .. }| (*node, incarnation.clone())).collect()
        };
        if (&first.cluster, names(first), first.rules, first.tokens_above)
            == (&founding.cluster, names(founding), founding.rules, founding.tokens_above)
        {
            return Ok(());
        }
        Err(("P1", format!("node {node} is founded by {founding:?}, and there is a cluster of {first:?}")))
    }

    /// To be called when a node has applied `members`. `newest` is the membership after the highest entry
    /// that any node has applied.
    pub(super) fn applied(&mut self, members: &Members, newest: &Members) -> CheckResult {
        self.configuration.clone_from(&newest.configuration);
        let nodes = members.nodes.values().map(|it| (it.node, it.incarnation.clone())).collect();
        let (configuration, removed) = (members.configuration.clone(), members.removed.clone());
        let shape = Shape { nodes, configuration, removed };
        match self.known.get(&members.at) {
            Some(known) if *known != shape => {
                let what =
                    format!("after entry {} some say that {known:?} take part, others {shape:?}", members.at);
                Err(("P10", what))
            }
            Some(_) => Ok(()),
            None => {
                self.known.insert(members.at, shape);
                Ok(())
            }
        }
    }

    /// The number of membership changes.
    pub(super) fn changes(&self) -> u64 {
        self.known.keys().filter(|at| **at > 0).count() as u64
    }

    /// Whether the voters for which `is_one` returns true can't elect a leader by themselves.
    pub(super) fn is_minority(&self, is_one: impl Fn(Id) -> bool) -> bool {
        let Configuration { voters, voters_outgoing, .. } = &self.configuration;
        let of =
            |ids: &[Id]| !ids.is_empty() && 2 * ids.iter().filter(|id| is_one(**id)).count() <= ids.len();
        of(voters) || of(voters_outgoing)
    }
}
