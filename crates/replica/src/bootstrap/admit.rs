//! Admission of peers by a member of a cluster. Both sides of every connection check the other's hello before
//! any consensus message.

use std::collections::BTreeMap;

use lockkeeper_wire::peer::{Hello, Lane, Refusal, RefusalCode};
use lockkeeper_wire::store::{Founding, Member};

use super::refusals::{gone, malformed, not_a_member, not_added, refusal, removed, too_old};
use super::{ID_BYTES, PROTOCOL};
use crate::members::{Members, NODES_MAX};

/// The identity of a cluster member: the source of its hello, and the basis of its admission checks.
#[derive(Clone, Copy, Debug)]
pub struct NodeIdentity<'a> {
    /// The bootstrap record.
    pub founding: &'a Founding,
    /// The members of the cluster, up to the last entry that this node has applied.
    pub members: &'a Members,
    /// The rules version that the table uses now.
    pub rules: u32,
    /// The newest rules version that this software supports.
    pub rules_max: u32,
    /// The address at which this node serves clients.
    pub client_address: &'a str,
}

impl NodeIdentity<'_> {
    /// The hello (first handshake message) for a connection to node `to`. 0 is for any node at the address.
    #[must_use]
    pub fn hello(&self, to: u64, lane: Lane) -> Hello {
        Hello {
            protocol: PROTOCOL,
            cluster: self.founding.cluster.clone(),
            node: self.founding.node,
            incarnation: self.founding.incarnation.clone(),
            to,
            candidate: None,
            founding: Some(self.founding.clone()),
            members: Some(self.members.into()),
            rules_max: self.rules_max,
            lane: lane.into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            client_address: self.client_address.to_owned(),
            ..Hello::default()
        }
    }

    /// Checks the hello of a peer.
    ///
    /// # Errors
    /// The reason for the refusal, and what to do.
    pub fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let node = hello.node;
        let own = Member {
            node: self.founding.node,
            incarnation: self.founding.incarnation.clone(),
            ..Member::default()
        };
        check(hello, &own)?;
        let is_member = !hello.cluster.is_empty();
        if is_member && hello.cluster != self.founding.cluster {
            let text = format!(
                "node {node} belongs to another cluster than node {}: an address leads to another cluster, or data \
                 directories were exchanged",
                own.node
            );
            return Err(refusal(RefusalCode::Stranger, text));
        }
        if self.members.removed.contains_key(&node) {
            return Err(removed(node));
        }
        if hello.rules_max < self.rules {
            return Err(too_old(node, hello.rules_max, self.rules));
        }
        match (self.members.nodes.get(&node), &hello.candidate) {
            (Some(known), _) if known.incarnation != hello.incarnation => Err(gone(node)),
            // A member may send no cluster id: it may not have learned yet that its cluster was bootstrapped,
            // or that it was added.
            (Some(_), _) => Ok(()),
            (None, Some(candidate)) if !is_member => Err(not_added(candidate)),
            (None, _) if self.is_behind(hello) => Ok(()),
            (None, _) => Err(not_a_member(node)),
        }
    }

    /// Whether the peer was added after the last membership change that this node has applied; refusing such
    /// a peer could cost the cluster its majority. As proof, its hello must contain the incarnation of every
    /// node that this node knows, present or removed: only members receive those. A real member can't prove
    /// more than this to a node that lags.
    fn is_behind(&self, hello: &Hello) -> bool {
        let Some(theirs) = &hello.members else { return false };
        let shown: BTreeMap<u64, &[u8]> = theirs.nodes.iter().map(|it| (it.node, &*it.incarnation)).collect();
        let gone: BTreeMap<u64, &[u8]> =
            theirs.removed.iter().map(|it| (it.node, &*it.incarnation)).collect();
        let Members { nodes, removed, at, .. } = self.members;
        let shows = |node: &u64, incarnation: &[u8]| shown.get(node).or(gone.get(node)) == Some(&incarnation);
        theirs.at > *at
            && theirs.nodes.len() <= NODES_MAX
            && shown.get(&hello.node) == Some(&&*hello.incarnation)
            && nodes.iter().all(|(node, member)| shows(node, &member.incarnation))
            && removed.iter().all(|(node, incarnation)| gone.get(node) == Some(&&**incarnation))
    }
}

/// Checks that a hello is well-formed and addressed to this node.
pub(super) fn check(hello: &Hello, own: &Member) -> Result<(), Refusal> {
    let (node, me) = (hello.node, own.node);
    if hello.protocol != PROTOCOL {
        let text = format!(
            "node {node} (release {}) speaks version {} of the peers' protocol, node {me} version {PROTOCOL}: upgrade one \
             release at a time, and all nodes before the next one",
            hello.version, hello.protocol
        );
        return Err(refusal(RefusalCode::Version, text));
    }
    if node == 0 || hello.incarnation.len() != ID_BYTES {
        return Err(malformed(hello));
    }
    if hello.to != 0 && hello.to != me {
        let text = format!(
            "this is node {me}, node {} was asked for: node {node} was given an address that leads to another node",
            hello.to
        );
        return Err(refusal(RefusalCode::Stranger, text));
    }
    if node == me {
        let text = if hello.incarnation == own.incarnation {
            format!("node {me} has reached itself: an address of another node leads back to it")
        } else {
            format!("two nodes call themselves {me}: give each its own `--node`")
        };
        return Err(refusal(RefusalCode::Stranger, text));
    }
    Ok(())
}
