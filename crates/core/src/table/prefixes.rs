//! How many holds and waiters the names below a prefix have: for metrics.

use super::Table;
use super::crowd::Class;
use super::names::NodeId;
use crate::name::LockName;

/// Holds and waiters by the first segments of their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixLoad {
    /// The first segments of the names, or a whole name that has no more.
    pub prefix: LockName,
    /// The holds of these names, including closed ones; a hold of several of them counts for each.
    pub holds: u64,
    /// The waiters at these names; a waiter at several of them counts once or more.
    pub waiters: u64,
}

impl Table {
    /// The load of one prefix of [`Table::loads`] with so many `segments`; zeros if no such name is in use.
    #[must_use]
    pub fn load_of(&self, prefix: &LockName, segments: usize) -> PrefixLoad {
        let with_below = prefix.segments() >= segments;
        let node = self.names.find(prefix.as_str());
        let (holds, waiters) = node.map_or((0, 0), |node| self.load(node, with_below));
        PrefixLoad { prefix: prefix.clone(), holds, waiters }
    }

    /// The names in use, joined by their first segments: names of fewer stand for themselves only. In no
    /// particular order. The work is bounded by `places`, a number of names and prefixes, so some may be
    /// missing.
    #[must_use]
    pub fn loads(&self, segments: usize, places: usize) -> Vec<PrefixLoad> {
        let top = self.names.top(segments).take(places);
        let loads = top.map(|(node, depth)| {
            let (holds, waiters) = self.load(node, depth == segments);
            PrefixLoad { prefix: self.names.name(node), holds, waiters }
        });
        loads.filter(|load| load.holds + load.waiters > 0).collect()
    }

    fn load(&self, node: NodeId, with_below: bool) -> (u64, u64) {
        let node = self.names.get(node);
        let here = node.here.count_holds(&Class::ALL, &self.requests);
        let (holds, waiters) = match with_below {
            true => (node.below.all as usize, node.count_waiting_below()),
            false => (0, 0),
        };
        ((here + holds) as u64, (node.here.count_waiting() + waiters) as u64)
    }
}
