//! How nodes without data become a cluster, and whom a node lets in.
//!
//! Responsible for: a static list of nodes never becomes two clusters (P1, P2), and data that are gone are never taken for
//! data that were never there (P10). Pure: what is said and heard, and what must be durable first, is the caller's.
//!
//! Founding has three steps, each durable before the next is said:
//!
//! 1. *Candidate*: a node draws the incarnation of its data directory, and says it.
//! 2. *Promise*: it has heard every other node of its list say "empty", and promises to found a cluster with exactly these
//!    incarnations, and never with others.
//! 3. *Founded*: every node of the list has promised the same. The record is a function of the candidates, so all write
//!    the same one; a node that comes late writes it when it hears of it.
//!
//! That every node was heard "empty" is not enough, since it is old news: 1 hears 3; 3 founds with 1 and 2, and serves; the
//! disk of 2 is wiped; 1 hears 2 for the first time, founds another cluster with it and with what 3 had said once, and the
//! two of them are a majority that knows nothing of the locks that 3 has granted. A promise can't be made twice.

mod admit;
mod refusals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::{Candidate, Founding, Listed, Member};
use sha2::{Digest, Sha256};

use crate::members::Members;
pub use admit::Identity;
use admit::check;
use refusals::{gone, gone_while_founding, malformed, not_added, refusal, too_old};
pub use refusals::{not_reached, removed};

/// The version of what peers say to each other.
pub const PROTOCOL: u32 = 1;

/// The length of ids of clusters and data directories, in bytes.
const ID_BYTES: usize = 16;

/// Decides what a node without a founding record does.
#[derive(Clone, PartialEq, Debug)]
pub struct Founder {
    own: Candidate,
    /// What the other nodes of the list have said, the latest of each.
    heard: BTreeMap<u64, Candidate>,
}

/// What a node without a founding record is to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// Ask these nodes, again and again. Empty: wait to be added to a cluster.
    Wait {
        /// Those that were not heard, or have not promised.
        missing: Vec<u64>,
    },
    /// Store this in place of the present candidate, durably; then give it to [`Founder::promised`].
    Promise(Candidate),
    /// Write this founding record, durably: then the node is a member.
    Found(Founding),
    /// The one who was heard is told this; nothing else changes.
    Refuse(Refusal),
    /// With these data the node becomes no member of the cluster that it was to found or to join.
    Stop(Refusal),
}

impl Founder {
    /// `own` is durable.
    #[must_use]
    pub fn new(own: Candidate) -> Self {
        Self { own, heard: BTreeMap::new() }
    }

    /// What this node says of itself.
    #[must_use]
    pub fn own(&self) -> &Candidate {
        &self.own
    }

    /// What it says at the begin of a connection to node `to`, 0 for whoever is there.
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

    /// The promise is durable.
    pub fn promised(&mut self, own: Candidate) {
        self.own = own;
    }

    /// What to do as things are.
    #[must_use]
    pub fn step(&self) -> Step {
        let me = member(&self.own).node;
        let is_missing = |listed: &&Listed| {
            listed.node != me
                && self.heard.get(&listed.node).is_none_or(|it| has_promised(&self.own) && !has_promised(it))
        };
        let missing: Vec<u64> = self.own.nodes.iter().filter(is_missing).map(|listed| listed.node).collect();
        if !missing.is_empty() || self.own.nodes.is_empty() {
            return Step::Wait { missing };
        }
        let all = || self.heard.values().chain([&self.own]);
        if !has_promised(&self.own) {
            let incarnations: BTreeMap<u64, &Vec<u8>> =
                all().map(member).map(|member| (member.node, &member.incarnation)).collect();
            let mut own = self.own.clone();
            for listed in &mut own.nodes {
                listed.incarnation = incarnations.get(&listed.node).copied().cloned().unwrap_or_default();
            }
            return Step::Promise(own);
        }
        Step::Found(founding(all(), &self.own))
    }

    /// Another node has said who it is, on a connection that either has opened.
    pub fn heard(&mut self, hello: &Hello) -> Step {
        let own = member(&self.own);
        if let Err(refusal) = check(hello, own) {
            return Step::Refuse(refusal);
        }
        match (&hello.founding, &hello.candidate) {
            (Some(founding), _) => self.heard_member(hello, founding),
            (None, Some(candidate)) => self.heard_candidate(hello, candidate),
            (None, None) => Step::Refuse(malformed(hello)),
        }
    }

    fn heard_candidate(&mut self, hello: &Hello, candidate: &Candidate) -> Step {
        let (own, node) = (member(&self.own), hello.node);
        let said = candidate.member.as_ref();
        if said.is_none_or(|said| (said.node, &said.incarnation) != (node, &hello.incarnation)) {
            return Step::Refuse(malformed(hello));
        }
        if self.own.nodes.is_empty() {
            let text = format!(
                "node {} waits to be added to a cluster (`--join`), it founds none: node {node} must not list it in \
                 `--cluster`",
                own.node
            );
            return Step::Refuse(refusal(RefusalCode::Stranger, text));
        }
        if let Some(difference) = difference(&self.own, candidate) {
            let text = format!(
                "nodes {} and {node} were told to found different clusters: {difference}; start all founders with the \
                 same `--cluster`",
                own.node
            );
            return Step::Refuse(refusal(RefusalCode::Stranger, text));
        }
        if !self.own.nodes.iter().any(|listed| listed.node == node) {
            let text =
                format!("node {node} is not in the list of nodes that found this cluster (`--cluster`)");
            return Step::Refuse(refusal(RefusalCode::Stranger, text));
        }
        for (ours, theirs) in self.own.nodes.iter().zip(&candidate.nodes) {
            // An incarnation stands there once it is promised.
            if theirs.node == own.node
                && !theirs.incarnation.is_empty()
                && theirs.incarnation != own.incarnation
            {
                return Step::Stop(gone_while_founding(own.node));
            }
            if has_promised(&self.own) {
                if ours.node == node && ours.incarnation != hello.incarnation {
                    return Step::Refuse(gone_while_founding(node));
                }
                if !theirs.incarnation.is_empty() && theirs.incarnation != ours.incarnation {
                    return Step::Refuse(gone_while_founding(theirs.node));
                }
            } else if !theirs.incarnation.is_empty()
                && self.heard.get(&theirs.node).is_some_and(|it| member(it).incarnation != theirs.incarnation)
            {
                // One of the two is old news; only that node itself knows.
                self.heard.remove(&theirs.node);
            }
        }
        self.heard.insert(node, candidate.clone());
        self.step()
    }

    fn heard_member(&self, hello: &Hello, founding: &Founding) -> Step {
        let own = member(&self.own);
        if hello.cluster.len() != ID_BYTES || founding.cluster != hello.cluster {
            return Step::Refuse(malformed(hello));
        }
        let members = hello.members.clone().map_or_else(|| Members::founded(founding), Members::from);
        if members.removed.contains_key(&own.node) {
            return Step::Stop(removed(own.node));
        }
        let Some(known) = members.nodes.get(&own.node) else {
            // One that waits to be added says so to whoever asks: that is how it is added.
            return match self.own.nodes.is_empty() {
                true => self.step(),
                false => Step::Refuse(not_added(&self.own)),
            };
        };
        let founder = founding.members.iter().find(|founder| founder.node == own.node);
        // A founder has promised: without that, these data are a copy from before.
        let has_forgotten = founder.is_some() && cluster(&promise(&self.own)) != founding.cluster;
        if known.incarnation != own.incarnation || has_forgotten {
            return Step::Stop(gone(own.node));
        }
        if founding.rules > self.own.rules {
            return Step::Stop(too_old(own.node, self.own.rules, founding.rules));
        }
        Step::Found(Founding { node: own.node, incarnation: own.incarnation.clone(), ..founding.clone() })
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

/// With whom a candidate has promised to found a cluster; empty if it has not.
fn promise(candidate: &Candidate) -> BTreeMap<u64, Vec<u8>> {
    let nodes = candidate.nodes.iter().filter(|_| has_promised(candidate));
    nodes.map(|listed| (listed.node, listed.incarnation.clone())).collect()
}

/// The id of the cluster that these incarnations found.
fn cluster(of: &BTreeMap<u64, Vec<u8>>) -> Vec<u8> {
    let mut hasher = Sha256::new();
    for (node, incarnation) in of {
        hasher.update(node.to_be_bytes());
        hasher.update(incarnation);
    }
    hasher.finalize()[..ID_BYTES].to_vec()
}

/// The record that these candidates found, for one of them: the same for all but for who it is.
fn founding<'a>(of: impl Iterator<Item = &'a Candidate>, own: &Candidate) -> Founding {
    let of: BTreeMap<u64, &Candidate> = of.map(|candidate| (member(candidate).node, candidate)).collect();
    Founding {
        cluster: cluster(&promise(own)),
        node: member(own).node,
        incarnation: member(own).incarnation.clone(),
        members: of.values().map(|candidate| member(candidate).clone()).collect(),
        tokens_above: of.values().map(|candidate| candidate.tokens_above).max().unwrap_or_default(),
        // What every founder knows (DESIGN section 5: mixed versions).
        rules: of.values().map(|candidate| candidate.rules).min().unwrap_or_default(),
    }
}

/// The first difference of two lists, in words.
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
