//! The tree of names in use, with an index that finds a name by one hash lookup.
//!
//! This module creates and removes nodes, and maintains the counters and indexes along a path. Nothing
//! iterates in hash order: the hash is only for lookup, and order comes from tickets and names.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use slab::Slab;

use super::copy_on_write::{SlabCursor, SnapshotWriter};
use super::crowd::Here;
use super::request::{RequestId, insert};
use super::work::Visits;
use crate::name::{self, LockName};
use crate::snapshot::items::put_limit;
use crate::types::Ticket;

/// Index of a [`NameNode`]. Reused after the node is removed.
pub(super) type NodeId = u32;
const NONE: NodeId = NodeId::MAX;

/// A name that has a hold, a waiter or a limit (its number of permits), or a prefix of such a name.
pub(super) struct NameNode {
    /// The last segment of the name. The node's ancestors store the other segments, so a deep name costs only
    /// its own length.
    segment: Box<str>,
    /// Hash of the whole name. Stored because growing the index needs the hash of every name: computing the
    /// hashes again would read up to a million names that are spread over the memory.
    hash: u32,
    parent: NodeId,
    first_child: NodeId,
    next: NodeId,
    prev: NodeId,
    /// Holds strictly below this name, counted once for each name of a request.
    pub(super) below: HoldsBelow,
    waiting_below: Option<Box<WaitersBelow>>,
    pub(super) here: Here,
}

/// Counters of holds strictly below a node.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct HoldsBelow {
    /// All holds, including closed ones.
    pub(super) all: u32,
    /// Holds whose mode is not shared.
    pub(super) unshared: u32,
}

/// Requests that wait strictly below a node, by ticket: a subtree request finds the first of them without a
/// scan.
#[derive(Default)]
pub(super) struct WaitersBelow {
    shared: ByTicketBelow,
    unshared: ByTicketBelow,
}

/// The request, and how many of its names are below the node.
pub(super) type ByTicketBelow = BTreeMap<Ticket, (RequestId, u32)>;

impl NameNode {
    /// The number of requests that wait strictly below this name.
    pub(super) fn count_waiting_below(&self) -> usize {
        self.waiting_below.as_ref().map_or(0, |below| below.shared.len() + below.unshared.len())
    }
}

impl WaitersBelow {
    fn of(&self, shared: bool) -> &ByTicketBelow {
        if shared { &self.shared } else { &self.unshared }
    }
}

pub(super) struct Names {
    nodes: Slab<NameNode>,
    /// The names of one segment are siblings, as those below a node are.
    first_root: NodeId,
    index: HashTable<NodeId>,
    /// Makes hashes unpredictable to clients, who choose names. Affects no result.
    hash_seed: u64,
    walk: Option<Box<SlabCursor>>,
    visits: Visits,
}

impl Names {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self {
            nodes: Slab::new(),
            first_root: NONE,
            index: HashTable::new(),
            hash_seed,
            walk: None,
            visits: Visits::default(),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeId> {
        self.find_hashed(name, hash(self.hash_seed, name))
    }

    fn find_hashed(&self, name: &str, hash: u32) -> Option<NodeId> {
        self.index.find(spread(hash), |&id| self.is_named(id, name)).copied()
    }

    /// Whether the node has this name. Compares segments from the last to the first.
    fn is_named(&self, mut id: NodeId, mut name: &str) -> bool {
        loop {
            let node = self.get(id);
            let Some(before) = name.strip_suffix(&*node.segment) else { return false };
            match before.strip_suffix('/') {
                Some(above) if node.parent != NONE => (id, name) = (node.parent, above),
                _ => return node.parent == NONE && before.is_empty(),
            }
        }
    }

    /// The whole name of a node.
    pub(super) fn name(&self, id: NodeId) -> LockName {
        let node = self.get(id);
        if node.parent == NONE {
            return LockName::trusted(node.segment.clone());
        }
        let bytes = self.above(id).map(|(_, above)| above.segment.len() + 1).sum::<usize>();
        let mut segments: Vec<&str> = self.above(id).map(|(_, above)| &*above.segment).collect();
        segments.reverse();
        let mut name = String::with_capacity(bytes + node.segment.len());
        for segment in segments {
            name.push_str(segment);
            name.push('/');
        }
        name.push_str(&node.segment);
        LockName::trusted(name)
    }

    /// Number of segments in the node's name.
    pub(super) fn segments(&self, id: NodeId) -> usize {
        1 + self.above(id).count()
    }

    /// Returns the node of a name. Creates it, with all its ancestors, if it does not exist.
    pub(super) fn intern(&mut self, name: &str) -> NodeId {
        let hash = hash(self.hash_seed, name);
        if let Some(id) = self.find_hashed(name, hash) {
            return id;
        }
        let above = name::parent(name);
        let segment = above.map_or(name, |above| &name[above.len() + 1..]);
        let parent = above.map_or(NONE, |above| self.intern(above));
        let next = if parent == NONE { self.first_root } else { self.nodes[parent as usize].first_child };
        self.visits.add(1);
        let id = insert(
            &mut self.nodes,
            NameNode {
                segment: segment.into(),
                hash,
                parent,
                first_child: NONE,
                next,
                prev: NONE,
                below: HoldsBelow::default(),
                waiting_below: None,
                here: Here::Idle,
            },
        );
        if next != NONE {
            self.nodes[next as usize].prev = id;
        }
        if parent == NONE {
            self.first_root = id;
        } else {
            self.nodes[parent as usize].first_child = id;
        }
        let nodes = &self.nodes;
        self.index.insert_unique(spread(hash), id, |&id| spread(nodes[id as usize].hash));
        id
    }

    /// Removes a node that is not in use, and its ancestors that become unused.
    pub(super) fn forget_if_idle(&mut self, mut id: NodeId) {
        loop {
            self.visits.add(1);
            let Some(node) = self.nodes.get(id as usize) else { return };
            if node.first_child != NONE || !matches!(node.here, Here::Idle) {
                return;
            }
            let entry = self.index.find_entry(spread(node.hash), |&other| other == id);
            if let Ok(entry) = entry {
                entry.remove();
            }
            let node = self.nodes.remove(id as usize);
            if node.next != NONE {
                self.nodes[node.next as usize].prev = node.prev;
            }
            if node.prev != NONE {
                self.nodes[node.prev as usize].next = node.next;
            } else if node.parent == NONE {
                self.first_root = node.next;
            } else {
                self.nodes[node.parent as usize].first_child = node.next;
            }
            if node.parent == NONE {
                return;
            }
            id = node.parent;
        }
    }

    pub(super) fn get(&self, id: NodeId) -> &NameNode {
        self.visits.add(1);
        &self.nodes[id as usize]
    }

    /// The count of visited names and waiters, for the bound on a command's work (M2).
    pub(super) fn visits(&self) -> &Visits {
        &self.visits
    }

    /// The only mutable access to a name's state. Any change may alter the name's limit (L3), so the old
    /// limit is saved first if a snapshot is in progress.
    pub(super) fn here_mut(&mut self, id: NodeId) -> &mut Here {
        self.visits.add(1);
        if let Some(walk) = &mut self.walk
            && walk.note(id)
            && let Some(limit) = self.nodes[id as usize].here.limit()
        {
            let name = self.name(id);
            if let Some(walk) = &mut self.walk {
                walk.saved.save(|out| put_limit(out, name.as_str(), limit.number, limit.stored));
            }
        }
        &mut self.nodes[id as usize].here
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(SlabCursor::new(self.nodes.capacity())));
    }

    /// Advances the snapshot iterator over the limits; returns true when done.
    pub(super) fn walk_on(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        let Some(mut walk) = self.walk.take() else { return true };
        while let Some(id) = walk.next(pen) {
            // Nodes removed or inserted since the start need no extra check: `here_mut` has recorded every
            // node whose limit may have changed.
            if let Some(node) = self.nodes.get(id as usize)
                && let Some(limit) = node.here.limit()
            {
                let name = self.name(id);
                pen.put(1, |out| put_limit(out, name.as_str(), limit.number, limit.stored));
            }
        }
        let is_done = walk.is_done();
        self.walk = Some(walk);
        is_done
    }

    /// Writes out the copy-on-write buffer of limits; returns true once it is empty.
    pub(super) fn write_saved(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }

    /// The node's ancestors, nearest first.
    pub(super) fn above(&self, id: NodeId) -> impl Iterator<Item = (NodeId, &NameNode)> {
        let mut at = self.nodes[id as usize].parent;
        std::iter::from_fn(move || {
            let found = at;
            let node = (found != NONE).then(|| self.get(found))?;
            at = node.parent;
            Some((found, node))
        })
    }

    /// The first `segments` segments of the node's name; the node itself if it has no more.
    pub(super) fn prefix(&self, id: NodeId, segments: usize) -> NodeId {
        self.visits.add(1);
        // One goes up from the node while another, which is so many segments ahead, reaches the first one.
        let ahead = self.above(id).skip(segments.saturating_sub(1));
        ahead.zip(self.above(id)).last().map_or(id, |(_, (prefix, _))| prefix)
    }

    /// All nodes strictly below `top`, each once. The order differs between replicas, so only informational
    /// results may depend on it.
    pub(super) fn below(&self, top: NodeId) -> impl Iterator<Item = (NodeId, &NameNode)> {
        let mut at = self.nodes[top as usize].first_child;
        std::iter::from_fn(move || {
            let found = at;
            let node = (found != NONE).then(|| self.get(found))?;
            at = if node.first_child != NONE { node.first_child } else { self.after(found, top) };
            Some((found, node))
        })
    }

    /// The names of at most so many segments, each once; see [`Names::below`] for the order. The nodes below
    /// them are not visited.
    pub(super) fn top(&self, segments: usize) -> impl Iterator<Item = (NodeId, usize)> {
        let (mut at, mut depth) = (self.first_root, 1);
        std::iter::from_fn(move || {
            let found = (at != NONE && segments > 0).then_some((at, depth))?;
            let mut node = self.get(at);
            if node.first_child != NONE && depth < segments {
                (at, depth) = (node.first_child, depth + 1);
                return Some(found);
            }
            while node.next == NONE && node.parent != NONE {
                node = self.get(node.parent);
                depth -= 1;
            }
            at = node.next;
            Some(found)
        })
    }

    /// The successor of `id` in the traversal below `top`, after all nodes below `id`.
    fn after(&self, mut id: NodeId, top: NodeId) -> NodeId {
        loop {
            let node = self.get(id);
            if node.next != NONE {
                return node.next;
            }
            if node.parent == top {
                return NONE;
            }
            id = node.parent;
        }
    }

    /// Adds one name of a hold to the counters of all ancestors, or subtracts it, according to `sign`.
    pub(super) fn count_above(&mut self, id: NodeId, shared: bool, sign: i32) {
        let mut at = self.nodes[id as usize].parent;
        while at != NONE {
            self.visits.add(1);
            let node = &mut self.nodes[at as usize];
            let add = |counter: &mut u32| *counter = counter.wrapping_add_signed(sign);
            add(&mut node.below.all);
            if !shared {
                add(&mut node.below.unshared);
            }
            at = node.parent;
        }
    }

    /// Adds one name of a waiter to the indexes of all ancestors.
    pub(super) fn wait_above(&mut self, id: NodeId, ticket: Ticket, request: RequestId, shared: bool) {
        let mut at = self.nodes[id as usize].parent;
        while at != NONE {
            self.visits.add(1);
            let node = &mut self.nodes[at as usize];
            let below = node.waiting_below.get_or_insert_default();
            let by_ticket = if shared { &mut below.shared } else { &mut below.unshared };
            by_ticket.entry(ticket).or_insert((request, 0)).1 += 1;
            at = node.parent;
        }
    }

    /// Removes one name of a waiter from the indexes of all ancestors.
    pub(super) fn wait_above_no_more(&mut self, id: NodeId, ticket: Ticket, shared: bool) {
        let mut at = self.nodes[id as usize].parent;
        while at != NONE {
            self.visits.add(1);
            let node = &mut self.nodes[at as usize];
            at = node.parent;
            let Some(below) = &mut node.waiting_below else { continue };
            let by_ticket = if shared { &mut below.shared } else { &mut below.unshared };
            if let Entry::Occupied(mut entry) = by_ticket.entry(ticket) {
                entry.get_mut().1 -= 1;
                if entry.get().1 == 0 {
                    entry.remove();
                }
            }
            if below.shared.is_empty() && below.unshared.is_empty() {
                node.waiting_below = None;
            }
        }
    }

    /// The shared or unshared requests that wait strictly below a node; `None` if no request waits below it.
    pub(super) fn waiting_below(&self, id: NodeId, shared: bool) -> Option<&ByTicketBelow> {
        self.get(id).waiting_below.as_ref().map(|below| below.of(shared))
    }

    /// The nodes in `count` slab entries from index `from`, and the index after these, if any. A node never
    /// changes its index.
    pub(super) fn part(
        &self,
        from: usize,
        count: usize,
    ) -> (impl Iterator<Item = (NodeId, &NameNode)>, Option<usize>) {
        let end = from.saturating_add(count).min(self.nodes.capacity());
        let nodes = (from..end).filter_map(|place| Some((place as NodeId, self.nodes.get(place)?)));
        (nodes, (end < self.nodes.capacity()).then_some(end))
    }

    /// All nodes, in the order of their ids, which differs between replicas: only for sums, sorting and
    /// checks.
    pub(super) fn all(&self) -> impl Iterator<Item = (NodeId, &NameNode)> {
        self.nodes.iter().map(|(id, node)| (id as NodeId, node))
    }
}

/// Uses half of the hash, which suffices for lookup: of a million names, a few hundred have the same 32 bits
/// as another name.
fn hash(seed: u64, name: &str) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(seed, !seed);
    hasher.write(name.as_bytes());
    hasher.finish() as u32
}

/// The index takes the bucket from the low bits of a 64-bit hash and the tag from the high ones, so both
/// halves get the hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
