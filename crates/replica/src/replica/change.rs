//! Changes of members: from the log into the configuration.

use lockkeeper_wire::store;
use prost::Message;

use super::{Fatal, Replica};
use crate::engine::Committed;

impl Replica {
    /// A change that a majority has, and whose being committed is durable here.
    pub(super) fn commit_members(&mut self, committed: &Committed) -> Result<(), Fatal> {
        let index = committed.at.index;
        let unknown = |why: String| {
            Fatal(format!(
                "the change of members in log entry {index} can't be applied ({why}); upgrade this node"
            ))
        };
        let data = committed.data.as_ref();
        let change = store::ConfChange::decode(data).map_err(|error| unknown(error.to_string()))?;
        let change = change.context.as_ref();
        let change = store::MembersChange::decode(change).map_err(|error| unknown(error.to_string()))?;
        let configuration = self.engine.apply_change(&change).map_err(unknown)?;
        self.members.apply(index, &change, configuration);
        for member in self.members.nodes.values() {
            self.clients.entry(member.node).or_insert_with(|| member.client_address.clone());
        }
        Ok(())
    }
}
