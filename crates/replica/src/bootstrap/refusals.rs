//! The refusals of peer connections. Their texts contain the operator's next step.
//!
//! Anyone who can connect receives these texts, so they contain no cluster id and no incarnation: with those
//! a stranger could pass for a member.

use lockkeeper_wire::peer::{Hello, Refusal, RefusalCode};
use lockkeeper_wire::store::{Candidate, Member};

use super::member;

pub(super) fn refusal(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code: code.into(), text: text.into(), node: 0 }
}

/// A refusal about a node that has lost its place in the cluster. `node` stops when it receives this; other
/// nodes don't.
fn no_place(node: u64, code: RefusalCode, text: String) -> Refusal {
    Refusal { node, ..refusal(code, text) }
}

pub(super) fn malformed(hello: &Hello) -> Refusal {
    let text =
        format!("the greeting of node {} (release `{}`) contradicts itself", hello.node, hello.version);
    refusal(RefusalCode::Version, text)
}

pub(super) fn gone(node: u64) -> Refusal {
    let text = format!(
        "node {node}'s data are gone: start it with `--rejoin`, then `lockkeeper cluster replace {node}` takes it in under \
         a new id. The cluster knows another data directory of node {node}; without what that one held it could help to \
         undo what was acknowledged"
    );
    no_place(node, RefusalCode::Wiped, text)
}

pub(super) fn gone_while_founding(node: u64) -> Refusal {
    let text = format!(
        "node {node}'s data are gone, while its cluster was being founded. If no node serves yet, empty the data \
         directories of all of them and start again; else `lockkeeper cluster remove {node}`, then add it under a new id"
    );
    no_place(node, RefusalCode::Wiped, text)
}

/// The refusal for a node that was removed.
#[must_use]
pub(super) fn removed(node: u64) -> Refusal {
    let text = format!(
        "node {node} was removed from the cluster, and ids never come back. To take part again it needs a new id and an \
         empty data directory: `lockkeeper cluster add`"
    );
    no_place(node, RefusalCode::Removed, text)
}

pub(super) fn not_added(candidate: &Candidate) -> Refusal {
    let Member { node, peer_address, .. } = member(candidate);
    if candidate.nodes.is_empty() {
        let text = format!(
            "node {node} is not added yet to this cluster: `lockkeeper cluster add {node}={peer_address}`"
        );
        return refusal(RefusalCode::Later, text);
    }
    let text = format!(
        "this cluster was founded without node {node}: start it with `--join` instead of `--cluster`, then \
         `lockkeeper cluster add {node}={peer_address}`"
    );
    Refusal { node: *node, ..refusal(RefusalCode::Stranger, text) }
}

pub(super) fn not_a_member(node: u64) -> Refusal {
    let text = format!("node {node} is no member of this cluster, as far as this node knows");
    refusal(RefusalCode::Later, text)
}

/// The refusal for a node that connects before the receiver has connected to it at the address that the
/// receiver has for it.
#[must_use]
pub fn not_reached(node: u64) -> Refusal {
    let text = format!("node {node} is let in once it was reached at its own address: that is tried at once");
    refusal(RefusalCode::Later, text)
}

pub(super) fn too_old(node: u64, known: u32, needed: u32) -> Refusal {
    let text = format!(
        "node {node} knows the rules of the table up to version {known}, the cluster uses version {needed}: start it with \
         the release of the other nodes"
    );
    refusal(RefusalCode::Version, text)
}
