//! The addresses of simulated nodes.

use crate::core::Id;

/// The address at which a node serves clients.
pub(crate) fn client_address(node: Id) -> String {
    format!("node-{node}:{}", lockkeeper_wire::DEFAULT_PORT)
}

/// The address at which a node listens to its peers.
pub(super) fn peer_address(node: Id) -> String {
    format!("node-{node}:{}", lockkeeper_wire::DEFAULT_PEER_PORT)
}

/// The node that has this client address.
pub(crate) fn node_at(address: &str) -> Option<Id> {
    address.strip_prefix("node-")?.split(':').next()?.parse().ok()
}
