//! The checks of `/livez` and `/readyz`. None of them asks the replica or the disk, so that a probe is
//! answered at once, and costs nothing, whoever sends it.

use lockkeeper_wire::v1::DiskState;

use super::Calls;
use crate::inbox::ReplicaStatus;

impl Calls {
    /// The process works as long as its replica's thread has not ended.
    pub(in crate::front) fn live(&self) -> Vec<(&'static str, bool)> {
        vec![("replica", *self.replica.state().borrow() != ReplicaStatus::Ended)]
    }

    /// Whether this node can serve clients: it knows the leader, is a member, has room on its disk, and
    /// does not stop.
    pub(in crate::front) fn ready(&self) -> Vec<(&'static str, bool)> {
        let state = *self.replica.state().borrow();
        let is_member = self.directory.get().is_none_or(|directory| directory.is_member(directory.node()));
        let disk = self.about.disk.reading().map(|reading| reading.state);
        vec![
            ("leader", matches!(state, ReplicaStatus::Ready | ReplicaStatus::Following { .. })),
            ("member", is_member),
            ("disk", disk.is_some_and(|state| state != DiskState::Full)),
            ("serving", !self.replica.is_leaving()),
        ]
    }
}
