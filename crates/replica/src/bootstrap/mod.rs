//! Cluster bootstrap: how nodes without data form one cluster, and which connections a node accepts.
//!
//! Responsible for: a static list of nodes never becomes two clusters (P1, P2), and lost data are never taken
//! for an empty data directory (P10). Pure: the caller sends and receives the messages, and makes state
//! durable before it is sent.
//!
//! Bootstrap has three steps; each is durable before the node announces it:
//!
//! 1. *Candidate*: the node draws a random id for its data directory, the *incarnation*, and announces it.
//! 2. *Promise*: it has received a candidate from every other node of its list, and promises to form a
//!    cluster with exactly these incarnations, and never with others.
//! 3. *Founded*: every node of the list has made the same promise. The bootstrap record is a function of the
//!    candidates, so all nodes write the same record; a late node receives the record from another node and
//!    writes it then.
//!
//! It is not enough that every node has reported an empty directory, because a report can be outdated.
//! Example: node 1 receives the report of node 3; node 3 forms a cluster with 1 and 2, and serves; the disk
//! of node 2 is wiped; node 1 receives its first report from node 2, and forms a second cluster from this
//! report and node 3's old one. Nodes 1 and 2 are a majority without the locks that node 3 has granted. A
//! node makes only one promise, which excludes this.

mod admit;
mod refusals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hmac_sha256::Hash;
use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::{Candidate, Founding, Listed, Member};

use crate::members::Members;
pub use admit::NodeIdentity;
use admit::check;
pub use refusals::not_reached;
use refusals::{gone, gone_while_founding, malformed, not_added, refusal, removed, too_old};

/// The version of the protocol between peers.
pub const PROTOCOL: u32 = 1;

/// The length of cluster ids and incarnations, in bytes.
const ID_BYTES: usize = 16;

/// The bootstrap state machine of a node without a bootstrap record.
#[derive(Clone, PartialEq, Debug)]
pub struct Bootstrap {
    own: Candidate,
    /// The latest candidate received from each other node of the list.
    heard: BTreeMap<u64, Candidate>,
    /// Whether a node that its cluster refuses for good waits for a new id, instead of stopping.
    rejoins: bool,
    /// The cluster has refused this node for good.
    is_lost: bool,
    /// The member that the cluster believes to be at this node's address.
    known_as: Option<u64>,
}

/// The next action of a node without a bootstrap record.
#[derive(Clone, PartialEq, Debug)]
pub enum BootstrapStep {
    /// Connect to the missing nodes repeatedly. If none is missing, wait to be added to a cluster.
    Wait {
        /// Nodes whose candidate this node has not received; after its own promise: nodes whose promise it
        /// has not received.
        missing: Vec<u64>,
    },
    /// Replace the stored candidate by this one, which has made its promise or has a new id, durably; then
    /// pass it to [`Bootstrap::promised`].
    Promise(Candidate),
    /// Write this bootstrap record durably; then the node is a member.
    Found(Founding),
    /// Send this refusal to the peer; the state is unchanged.
    Refuse(Refusal),
    /// Stop: with these data, the node can't become a member of the cluster that it was to form or to join.
    Stop(Refusal),
}

impl Bootstrap {
    /// Starts with `own`, which must be durable.
    #[must_use]
    pub fn new(own: Candidate) -> Self {
        Self { own, heard: BTreeMap::new(), rejoins: false, is_lost: false, known_as: None }
    }

    /// As [`Bootstrap::new`]. If the cluster refuses this node for good, since its data are gone or it was
    /// removed, the node waits until a member calls it by an id that was never used, and takes that id. So
    /// does a node that founds no cluster, from the beginning: another node may have had its id.
    #[must_use]
    pub fn rejoining(own: Candidate) -> Self {
        let is_lost = own.nodes.is_empty();
        Self { rejoins: true, is_lost, ..Self::new(own) }
    }

    /// To be called when the cluster has refused this node for good. Returns whether the node waits for a new
    /// id; otherwise it has to stop.
    ///
    /// A node that has promised to form a cluster stops: others may depend on its promise.
    pub fn refused_for_good(&mut self) -> bool {
        self.is_lost = self.rejoins && !has_promised(&self.own);
        self.is_lost
    }

    /// See [`Bootstrap::rejoining`].
    #[must_use]
    pub fn rejoins(&self) -> bool {
        self.rejoins
    }

    /// Whether this node waits for a new id.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// The member that the cluster believes to be at this node's address: the id by which members have called
    /// it.
    #[must_use]
    pub fn known_as(&self) -> Option<u64> {
        self.known_as
    }

    /// This node's own candidate state.
    #[must_use]
    pub fn own(&self) -> &Candidate {
        &self.own
    }

    /// The hello for a connection to node `to`; 0: to whichever node has the address.
    #[must_use]
    pub fn hello(&self, to: u64, lane: Lane) -> Hello {
        let member = member(&self.own);
        Hello {
            protocol: PROTOCOL,
            node: member.node,
            incarnation: member.incarnation.clone(),
            to,
            client_address: member.client_address.clone(),
            candidate: Some(self.own.clone()),
            rules_max: self.own.rules,
            lane: lane.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Hello::default()
        }
    }

    /// To be called once `own`, with a promise or a new id, is durable.
    pub fn promised(&mut self, own: Candidate) {
        self.own = own;
        self.is_lost = false;
    }

    /// Returns the next action in the current state.
    #[must_use]
    pub fn step(&self) -> BootstrapStep {
        if self.is_lost {
            return BootstrapStep::Wait { missing: Vec::new() };
        }
        let me = member(&self.own).node;
        let is_missing = |listed: &&Listed| {
            listed.node != me
                && self.heard.get(&listed.node).is_none_or(|it| has_promised(&self.own) && !has_promised(it))
        };
        let missing: Vec<u64> = self.own.nodes.iter().filter(is_missing).map(|listed| listed.node).collect();
        if !missing.is_empty() || self.own.nodes.is_empty() {
            return BootstrapStep::Wait { missing };
        }
        let all = || self.heard.values().chain([&self.own]);
        if !has_promised(&self.own) {
            let incarnations: BTreeMap<u64, &Vec<u8>> =
                all().map(member).map(|member| (member.node, &member.incarnation)).collect();
            let mut own = self.own.clone();
            for listed in &mut own.nodes {
                listed.incarnation = incarnations.get(&listed.node).copied().cloned().unwrap_or_default();
            }
            return BootstrapStep::Promise(own);
        }
        BootstrapStep::Found(founding(all(), &self.own))
    }

    /// Handles the hello of another node, on a connection that either side opened.
    pub fn heard(&mut self, hello: &Hello) -> BootstrapStep {
        if let Some(renamed) = self.renamed(hello) {
            return BootstrapStep::Promise(renamed);
        }
        if let Some(members) = hello.members.as_ref().filter(|_| self.rejoins) {
            let is_known = members.nodes.iter().any(|member| member.node == hello.to);
            self.known_as = Some(hello.to).filter(|_| is_known).or(self.known_as);
        }
        let own = member(&self.own);
        if let Err(refusal) = check(hello, own) {
            return BootstrapStep::Refuse(refusal);
        }
        match (&hello.founding, &hello.candidate) {
            (Some(founding), _) => self.heard_member(hello, founding),
            (None, Some(candidate)) => self.heard_candidate(hello, candidate),
            (None, None) => BootstrapStep::Refuse(malformed(hello)),
        }
    }

    /// This node under the id by which a member calls it, if the node waits for an id and that one was never
    /// used. It joins like any new node then: its promise to found a cluster, which it has not made, is void.
    fn renamed(&self, hello: &Hello) -> Option<Candidate> {
        let founding = hello.founding.as_ref().filter(|_| self.is_lost && hello.protocol == PROTOCOL)?;
        let members = Members::from(hello.members.clone()?);
        let is_member = hello.cluster.len() == ID_BYTES
            && founding.cluster == hello.cluster
            && members.nodes.contains_key(&hello.node);
        let last = members.nodes.keys().chain(members.removed.keys()).max().copied()?;
        (is_member && hello.to > last).then(|| Candidate {
            member: Some(Member { node: hello.to, ..member(&self.own).clone() }),
            nodes: Vec::new(),
            ..self.own.clone()
        })
    }

    fn heard_candidate(&mut self, hello: &Hello, candidate: &Candidate) -> BootstrapStep {
        let (own, node) = (member(&self.own), hello.node);
        let said = candidate.member.as_ref();
        if said.is_none_or(|said| (said.node, &said.incarnation) != (node, &hello.incarnation)) {
            return BootstrapStep::Refuse(malformed(hello));
        }
        if self.own.nodes.is_empty() {
            let text = format!(
                "node {} waits to be added to a cluster (`--join`), it founds none: node {node} must not list it in \
                 `--cluster`",
                own.node
            );
            return BootstrapStep::Refuse(refusal(RefusalCode::Stranger, text));
        }
        if let Some(difference) = difference(&self.own, candidate) {
            let text = format!(
                "nodes {} and {node} were told to found different clusters: {difference}; start all founders with the \
                 same `--cluster`",
                own.node
            );
            return BootstrapStep::Refuse(refusal(RefusalCode::Stranger, text));
        }
        if !self.own.nodes.iter().any(|listed| listed.node == node) {
            let text =
                format!("node {node} is not in the list of nodes that found this cluster (`--cluster`)");
            return BootstrapStep::Refuse(refusal(RefusalCode::Stranger, text));
        }
        for (ours, theirs) in self.own.nodes.iter().zip(&candidate.nodes) {
            // The list of a candidate contains incarnations only after its promise.
            if theirs.node == own.node
                && !theirs.incarnation.is_empty()
                && theirs.incarnation != own.incarnation
            {
                return BootstrapStep::Stop(gone_while_founding(own.node));
            }
            if has_promised(&self.own) {
                if ours.node == node && ours.incarnation != hello.incarnation {
                    return BootstrapStep::Refuse(gone_while_founding(node));
                }
                if !theirs.incarnation.is_empty() && theirs.incarnation != ours.incarnation {
                    return BootstrapStep::Refuse(gone_while_founding(theirs.node));
                }
            } else if !theirs.incarnation.is_empty()
                && self.heard.get(&theirs.node).is_some_and(|it| member(it).incarnation != theirs.incarnation)
            {
                // One of the two incarnations is outdated. Drops the known candidate, and waits for a hello
                // of that node itself.
                self.heard.remove(&theirs.node);
            }
        }
        self.heard.insert(node, candidate.clone());
        self.step()
    }

    fn heard_member(&self, hello: &Hello, founding: &Founding) -> BootstrapStep {
        let own = member(&self.own);
        if hello.cluster.len() != ID_BYTES || founding.cluster != hello.cluster {
            return BootstrapStep::Refuse(malformed(hello));
        }
        let members = hello.members.clone().map_or_else(|| Members::founded(founding), Members::from);
        if members.removed.contains_key(&own.node) {
            return BootstrapStep::Stop(removed(own.node));
        }
        let Some(known) = members.nodes.get(&own.node) else {
            // A node that waits to be added answers every peer with its candidate: `cluster add` depends on
            // that.
            return match self.own.nodes.is_empty() {
                true => self.step(),
                // It founds nothing any more, and joins that cluster.
                false if self.rejoins => BootstrapStep::Stop(not_added(&self.own)),
                false => BootstrapStep::Refuse(not_added(&self.own)),
            };
        };
        let founder = founding.members.iter().find(|founder| founder.node == own.node);
        // Every node of the bootstrap has made a promise. If this node's promise is missing, its data are a
        // copy from before the promise.
        let has_forgotten = founder.is_some() && cluster(&promise(&self.own)) != founding.cluster;
        if known.incarnation != own.incarnation || has_forgotten {
            return BootstrapStep::Stop(gone(own.node));
        }
        if founding.rules > self.own.rules {
            return BootstrapStep::Stop(too_old(own.node, self.own.rules, founding.rules));
        }
        BootstrapStep::Found(Founding {
            node: own.node,
            incarnation: own.incarnation.clone(),
            ..founding.clone()
        })
    }
}

fn member(candidate: &Candidate) -> &Member {
    static NOBODY: Member = Member {
        node: 0,
        incarnation: Vec::new(),
        peer_address: String::new(),
        client_address: String::new(),
    };
    candidate.member.as_ref().unwrap_or(&NOBODY)
}

fn has_promised(candidate: &Candidate) -> bool {
    !candidate.nodes.is_empty() && candidate.nodes.iter().all(|listed| !listed.incarnation.is_empty())
}

/// The incarnations with which a candidate has promised to form a cluster; empty without a promise.
fn promise(candidate: &Candidate) -> BTreeMap<u64, Vec<u8>> {
    let nodes = candidate.nodes.iter().filter(|_| has_promised(candidate));
    nodes.map(|listed| (listed.node, listed.incarnation.clone())).collect()
}

/// Derives the cluster id from the incarnations of the nodes that form the cluster.
fn cluster(of: &BTreeMap<u64, Vec<u8>>) -> Vec<u8> {
    let mut hasher = Hash::new();
    for (node, incarnation) in of {
        hasher.update(node.to_be_bytes());
        hasher.update(incarnation);
    }
    hasher.finalize()[..ID_BYTES].to_vec()
}

/// The bootstrap record of these candidates, for the node `own`. All nodes write the same record, except for
/// the node's own id and incarnation.
fn founding<'a>(of: impl Iterator<Item = &'a Candidate>, own: &Candidate) -> Founding {
    let of: BTreeMap<u64, &Candidate> = of.map(|candidate| (member(candidate).node, candidate)).collect();
    Founding {
        cluster: cluster(&promise(own)),
        node: member(own).node,
        incarnation: member(own).incarnation.clone(),
        members: of.values().map(|candidate| member(candidate).clone()).collect(),
        tokens_above: of.values().map(|candidate| candidate.tokens_above).max().unwrap_or_default(),
        // The highest version that all bootstrap nodes support; they may run different releases.
        rules: of.values().map(|candidate| candidate.rules).min().unwrap_or_default(),
    }
}

/// Describes the first difference between the node lists of two candidates.
fn difference(ours: &Candidate, theirs: &Candidate) -> Option<String> {
    let list = |candidate: &Candidate| -> BTreeMap<u64, String> {
        candidate.nodes.iter().map(|listed| (listed.node, listed.peer_address.clone())).collect()
    };
    let (ours_are, theirs_are) = (list(ours), list(theirs));
    let (we, they) = (member(ours).node, member(theirs).node);
    let ids = ours_are.keys().chain(theirs_are.keys());
    ids.min_by_key(|id| (ours_are.get(id) == theirs_are.get(id), **id)).and_then(|id| {
        match (ours_are.get(id), theirs_are.get(id)) {
            (Some(ours), Some(theirs)) if ours == theirs => None,
            (Some(ours), Some(theirs)) => {
                Some(format!("node {id} is `{ours}` for node {we}, and `{theirs}` for node {they}"))
            }
            (Some(_), None) => Some(format!("node {id} is in the list of node {we} only")),
            (None, _) => Some(format!("node {id} is in the list of node {they} only")),
        }
    })
}
