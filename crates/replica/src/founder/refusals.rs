//! Why a node is not talked to, in words that say what to do.

use std::fmt::Write;

use lockkeeper_wire::peer::{Hello, Refusal, RefusalCode};
use lockkeeper_wire::store::{Candidate, Member};

use super::member;

pub(super) fn refusal(code: RefusalCode, text: impl Into<String>) -> Refusal {
    Refusal { code: code.into(), text: text.into(), node: 0 }
}

/// Of a node that has no place in the cluster any more: it stops, and nobody else does who hears it.
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
        "node {node}'s data are gone: `lockkeeper cluster remove {node}`, then add it under a new id, with an empty data \
         directory. The cluster knows another data directory of node {node}; without what that one held it could help to \
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

/// What a node hears that was removed.
#[must_use]
pub fn removed(node: u64) -> Refusal {
    let text = format!(
        "node {node} was removed from the cluster, and ids never come back. To take part again it needs a new id and an \
         empty data directory: `lockkeeper cluster add`"
    );
    no_place(node, RefusalCode::Removed, text)
}

pub(super) fn not_added(candidate: &Candidate, cluster: &[u8]) -> Refusal {
    let Member { node, peer_address, .. } = member(candidate);
    let cluster = hex(cluster);
    if candidate.nodes.is_empty() {
        let text = format!(
            "node {node} is not added yet to cluster {cluster}: `lockkeeper cluster add {node}={peer_address}`"
        );
        return refusal(RefusalCode::Later, text);
    }
    let text = format!(
        "cluster {cluster} was founded without node {node}: start it with `--join` instead of `--cluster`, then \
         `lockkeeper cluster add {node}={peer_address}`"
    );
    refusal(RefusalCode::Stranger, text)
}

pub(super) fn not_a_member(node: u64, cluster: &[u8]) -> Refusal {
    let text = format!("node {node} is no member of cluster {}, as far as this node knows", hex(cluster));
    refusal(RefusalCode::Later, text)
}

pub(super) fn too_old(node: u64, known: u32, needed: u32) -> Refusal {
    let text = format!(
        "node {node} knows the rules of the table up to version {known}, the cluster uses version {needed}: start it with \
         the release of the other nodes"
    );
    refusal(RefusalCode::Version, text)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
