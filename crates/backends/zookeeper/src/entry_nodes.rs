//! The nodes of this client's lease-store entries, and what each entry waits for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_backend::leased::{EndedEntries, EntryId};
use tokio::sync::oneshot;
use zookeeper_client::SessionId;

/// A contender's node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) path: String,
    /// The transaction that created it: the token.
    pub(super) czxid: i64,
    /// Version of its data, which a break changes.
    pub(super) version: i32,
}

/// An entry's node in a lock's queue.
#[derive(Clone, Debug)]
pub(super) struct EntryNode {
    /// The ZooKeeper session of the node, which is ephemeral.
    pub(super) session: SessionId,
    /// Part of the node's name: finds the node if the answer to its creation was lost.
    pub(super) guid: String,
    /// `None` until the node is known to exist.
    pub(super) node: Option<Node>,
    pub(super) holds: bool,
}

#[derive(Default)]
pub(super) struct EntryNodes {
    state: Mutex<EntryNodesState>,
    /// The GUIDs whose nodes are being deleted in the background.
    sweeping: Arc<Mutex<HashSet<String>>>,
}

#[derive(Default)]
struct EntryNodesState {
    of_entries: HashMap<EntryId, WatchedNode>,
    ended: EndedEntries,
}

/// Marks a GUID as being swept until it is dropped.
pub(super) struct Sweeping(Arc<Mutex<HashSet<String>>>, String);

impl Drop for Sweeping {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// What a waiter waits for, as of its latest read of the queue.
#[derive(Clone, Debug)]
pub(super) struct RestingWait {
    /// The watched nodes, each with the version of its data.
    pub(super) awaited: Vec<(String, i32)>,
    /// How many waiters are ahead.
    pub(super) ahead: u64,
}

struct WatchedNode {
    entry_node: EntryNode,
    /// Set while the entry's watch has not fired.
    wait: Option<RestingWait>,
    /// Cancels the entry's watch when dropped.
    _watch: Option<oneshot::Sender<()>>,
}

impl EntryNodes {
    fn state(&self) -> MutexGuard<'_, EntryNodesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry's GUID and node in this session, or a new GUID. `None` if the entry was ended.
    pub(super) fn begin(&self, entry: &EntryId, session: SessionId) -> Option<(String, Option<Node>)> {
        let mut state = self.state();
        if state.ended.contains(entry) {
            return None;
        }
        let known = state.of_entries.get(entry).filter(|known| known.entry_node.session == session);
        if let Some(WatchedNode { entry_node, .. }) = known {
            return Some((entry_node.guid.clone(), entry_node.node.clone()));
        }
        let guid = guid(entry);
        let entry_node = EntryNode { session, guid: guid.clone(), node: None, holds: false };
        state.of_entries.insert(entry.clone(), WatchedNode { entry_node, wait: None, _watch: None });
        Some((guid, None))
    }

    /// Stores the entry's node. `false`: the entry was ended.
    #[must_use]
    pub(super) fn set(&self, entry: &EntryId, node: Node) -> bool {
        self.state().of_entries.get_mut(entry).map(|known| known.entry_node.node = Some(node)).is_some()
    }

    /// Records that the entry waits. The receiver ends when its watch is not needed any more.
    pub(super) fn wait(&self, entry: &EntryId, wait: RestingWait) -> oneshot::Receiver<()> {
        self.watch(entry, Some(wait))
    }

    /// What the entry waits for; `None` if it has to read the queue.
    pub(super) fn wait_of(&self, entry: &EntryId) -> Option<RestingWait> {
        self.state().of_entries.get(entry)?.wait.clone()
    }

    /// Records that the entry has to read the queue: its watch has fired, or its own node is gone.
    pub(super) fn end_wait(&self, entry: &EntryId) {
        if let Some(known) = self.state().of_entries.get_mut(entry) {
            known.wait = None;
        }
    }

    /// Records that the entry holds.
    pub(super) fn hold(&self, entry: &EntryId) -> oneshot::Receiver<()> {
        self.watch(entry, None)
    }

    fn watch(&self, entry: &EntryId, wait: Option<RestingWait>) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        if let Some(known) = self.state().of_entries.get_mut(entry) {
            known.entry_node.holds = wait.is_none();
            known.wait = wait;
            known._watch = Some(sender);
        }
        receiver
    }

    /// The GUID of the entry's node.
    pub(super) fn guid_of(&self, entry: &EntryId) -> Option<String> {
        self.state().of_entries.get(entry).map(|known| known.entry_node.guid.clone())
    }

    /// The entry's node in this session.
    pub(super) fn node(&self, entry: &EntryId, session: SessionId) -> Option<Node> {
        let state = self.state();
        state
            .of_entries
            .get(entry)
            .filter(|known| known.entry_node.session == session)?
            .entry_node
            .node
            .clone()
    }

    /// Removes the entry, and cancels its watch.
    pub(super) fn take(&self, entry: &EntryId) -> Option<EntryNode> {
        self.state().of_entries.remove(entry).map(|known| known.entry_node)
    }

    /// As [`Self::take`], for an entry that is ended. `doubt`: an attempt may be waiting for a session,
    /// perhaps a later one than the entry's; it will not begin any more.
    pub(super) fn end(&self, entry: &EntryId, doubt: bool) -> Option<EntryNode> {
        let mut state = self.state();
        if doubt {
            state.ended.record(entry);
        }
        state.of_entries.remove(entry).map(|known| known.entry_node)
    }

    /// Restores a removed entry, unless it has a new node by now.
    pub(super) fn put_back(&self, entry: &EntryId, entry_node: EntryNode) {
        self.state().of_entries.entry(entry.clone()).or_insert(WatchedNode {
            entry_node,
            wait: None,
            _watch: None,
        });
    }

    /// Marks a GUID as being swept; `None` if it is being swept already.
    pub(super) fn begin_sweep(&self, guid: &str) -> Option<Sweeping> {
        let is_new = self.sweeping.lock().unwrap_or_else(PoisonError::into_inner).insert(guid.to_owned());
        is_new.then(|| Sweeping(self.sweeping.clone(), guid.to_owned()))
    }

    /// The entries of a session that has ended.
    pub(super) fn of_session(&self, session: SessionId) -> Vec<EntryId> {
        let state = self.state();
        let its = state.of_entries.iter().filter(|(_, known)| known.entry_node.session == session);
        its.map(|(entry, _)| entry.clone()).collect()
    }
}

/// A GUID in Curator's form, derived from the entry's unique id: 24 random digits, and the 8 digits of the
/// entry's number.
fn guid(entry: &EntryId) -> String {
    let (session, seq) = entry.0.split_once('-').unwrap_or((&entry.0, "0"));
    let seq: u64 = seq.parse().unwrap_or_default();
    let digits = format!("{:0<24}{:08x}", session.get(..24).unwrap_or(session), seq & 0xffff_ffff);
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attempt that waits for the next session would create a node that nobody deletes.
    #[test]
    fn entry_that_is_ended_with_an_attempt_under_way_begins_in_no_other_session() {
        let entry_nodes = EntryNodes::default();
        let entry = EntryId("0123456789abcdef0123456789abcdef-1".to_owned());
        assert!(entry_nodes.begin(&entry, SessionId(1)).is_some());
        assert!(entry_nodes.end(&entry, true).is_some());
        assert!(entry_nodes.begin(&entry, SessionId(2)).is_none());
    }

    #[test]
    fn guids_have_curators_form_and_differ_by_entry() {
        let first = guid(&EntryId("0123456789abcdef0123456789abcdef-1".to_owned()));
        assert_eq!(first, "01234567-89ab-cdef-0123-456700000001");
        assert_ne!(first, guid(&EntryId("0123456789abcdef0123456789abcdef-2".to_owned())));
    }
}
