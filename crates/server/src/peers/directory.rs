//! What a member of a cluster says of itself, and whom it knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::limits;
use lockkeeper_replica::Members;
use lockkeeper_replica::founder::Identity;
use lockkeeper_wire::peer::{Hello, Lane, Refusal};
use lockkeeper_wire::store::Founding;
use tokio::sync::watch;

use super::greet::Greeter;

/// A member's view of the cluster. Told by the replica's thread, read by the front's.
#[derive(Debug)]
pub(crate) struct Directory {
    founding: Founding,
    client_address: String,
    known: watch::Sender<Known>,
}

/// Who takes part.
#[derive(Clone, Default, Debug)]
struct Known {
    /// As this node has applied.
    members: Members,
    /// The rules of its table.
    rules: u32,
    /// By others, who have applied more. To be reached too: this node's vote can be what they wait for.
    news: Members,
}

impl Directory {
    pub(crate) fn new(founding: Founding, client_address: String, members: Members, rules: u32) -> Arc<Self> {
        let (known, _) = watch::channel(Known { members, rules, news: Members::default() });
        Arc::new(Self { founding, client_address, known })
    }

    /// This node.
    pub(crate) fn node(&self) -> u64 {
        self.founding.node
    }

    /// The replica has applied a change of the members, or of the table's rules.
    pub(crate) fn applied(&self, members: &Members, rules: u32) {
        self.known.send_modify(|known| {
            known.members = members.clone();
            known.rules = rules;
        });
    }

    /// Where the other nodes are, by id.
    pub(super) fn addresses(&self) -> BTreeMap<u64, String> {
        let known = self.known.borrow();
        let news = (known.news.at > known.members.at).then_some(&known.news.nodes);
        let nodes = news.into_iter().flatten().chain(&known.members.nodes);
        let is_removed = |node: &u64| known.members.removed.contains_key(node);
        nodes
            .filter(|(node, member)| {
                **node != self.founding.node && !member.peer_address.is_empty() && !is_removed(node)
            })
            .map(|(node, member)| (*node, member.peer_address.clone()))
            .collect()
    }

    /// For waiting until the addresses change.
    pub(super) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.known.subscribe()
    }
}

impl Greeter for Directory {
    fn hello(&self, to: u64, lane: Lane) -> Hello {
        let known = self.known.borrow();
        self.identity(&known).hello(to, lane)
    }

    fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let known = self.known.borrow();
        self.identity(&known).admit(hello)?;
        let news = hello.members.as_ref().filter(|theirs| theirs.at > known.members.at.max(known.news.at));
        if let Some(news) = news.cloned() {
            drop(known);
            self.known.send_modify(|known| known.news = news.into());
        }
        Ok(())
    }
}

impl Directory {
    fn identity<'a>(&'a self, known: &'a Known) -> Identity<'a> {
        Identity {
            founding: &self.founding,
            members: &known.members,
            rules: known.rules,
            rules_max: limits::RULES_VERSION,
            client_address: &self.client_address,
        }
    }
}
