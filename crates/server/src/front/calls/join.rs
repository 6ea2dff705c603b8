//! Identifies a node that is to be added. Runs on the leader.

use lockkeeper_wire::store::Member;
use lockkeeper_wire::v1;
use tonic::Status;

use super::Calls;
use crate::peers::who_waits;

impl Calls {
    /// Returns the node that waits at this address to be added.
    ///
    /// # Errors
    /// The arguments are no id and address, this node has no peer address, or the node there does not answer,
    /// has another id, or belongs to a cluster.
    pub(super) async fn candidate(&self, new: v1::NewNode) -> Result<Member, Status> {
        let v1::NewNode { node, peer_address } = new;
        let is_address = peer_address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        if node == 0 || !is_address {
            return Err(Status::invalid_argument(format!(
                "`{node}={peer_address}` is no node: give its id, 1 or more, and where it listens to other nodes, as in \
                 `4=db4.example:5626`"
            )));
        }
        let Some(directory) = self.directory.get() else {
            return Err(Status::failed_precondition(
                "this node was started without `--peer-listen`, so no other node can reach it: start it with \
                 `--peer-listen HOST:PORT`, then add others",
            ));
        };
        who_waits(directory, node, &peer_address).await.map_err(Status::failed_precondition)
    }
}
