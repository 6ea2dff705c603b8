//! The tree of names in use: finds a name by one hash probe and knows what lies above and below it.
//!
//! Responsible for the nodes' life and for the counters along a path. Knows nothing of sessions or tickets. Nothing
//! here is ever iterated in hash order: the hash only finds, order comes from tickets and from names.

use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use slab::Slab;

use super::ahead::{Pen, SlabAhead};
use super::crowd::Here;
use super::request::insert;
use crate::name;
use crate::snapshot::items::put_limit;

/// Index of a [`Node`]. Reused after the node is gone.
pub(super) type NodeId = u32;
const NONE: NodeId = NodeId::MAX;

/// A name that is held, waited for or limited, or that has such a name below it.
pub(super) struct Node {
    pub(super) name: Box<str>,
    /// Of the name: an index that grows asks for all of them, and a million names lie all over the memory.
    hash: u32,
    parent: NodeId,
    first_child: NodeId,
    next: NodeId,
    prev: NodeId,
    /// What lies strictly below, counted once per name of a request.
    pub(super) below: Below,
    pub(super) here: Here,
}

/// Counters over the names strictly below a node.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Below {
    /// Holds, closed ones too.
    pub(super) holds: u32,
    /// Those of them that are not shared.
    pub(super) unshared_holds: u32,
    /// Waiters.
    pub(super) waiters: u32,
}

/// Which counters of [`Below`] one request moves.
#[derive(Clone, Copy)]
pub(super) enum Counted {
    Hold { shared: bool },
    Waiter,
}

pub(super) struct Names {
    nodes: Slab<Node>,
    index: HashTable<NodeId>,
    /// Makes the hash unpredictable to clients, who choose names. It decides no outcome.
    hash_seed: u64,
    walk: Option<Box<SlabAhead>>,
}

impl Names {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { nodes: Slab::new(), index: HashTable::new(), hash_seed, walk: None }
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeId> {
        self.find_hashed(name, hash(self.hash_seed, name))
    }

    fn find_hashed(&self, name: &str, hash: u32) -> Option<NodeId> {
        self.index.find(spread(hash), |&id| &*self.nodes[id as usize].name == name).copied()
    }

    /// The node of a name, made with everything above it if it isn't there.
    pub(super) fn intern(&mut self, name: &str) -> NodeId {
        let hash = hash(self.hash_seed, name);
        if let Some(id) = self.find_hashed(name, hash) {
            return id;
        }
        let parent = name::parent(name).map_or(NONE, |parent| self.intern(parent));
        let next = if parent == NONE { NONE } else { self.nodes[parent as usize].first_child };
        let id = insert(
            &mut self.nodes,
            Node {
                name: name.into(),
                hash,
                parent,
                first_child: NONE,
                next,
                prev: NONE,
                below: Below::default(),
                here: Here::Idle,
            },
        );
        if next != NONE {
            self.nodes[next as usize].prev = id;
        }
        if parent != NONE {
            self.nodes[parent as usize].first_child = id;
        }
        let nodes = &self.nodes;
        self.index.insert_unique(spread(hash), id, |&id| spread(nodes[id as usize].hash));
        id
    }

    /// Forgets a node that nobody uses, and everything above it that is thereby unused too.
    pub(super) fn forget_if_idle(&mut self, mut id: NodeId) {
        loop {
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
            } else if node.parent != NONE {
                self.nodes[node.parent as usize].first_child = node.next;
            }
            if node.parent == NONE {
                return;
            }
            id = node.parent;
        }
    }

    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// The only way to change who is at a name; its limit may change with any of them (L3), so a walk that is under
    /// way gets the limit as it was.
    pub(super) fn here_mut(&mut self, id: NodeId) -> &mut Here {
        let node = &mut self.nodes[id as usize];
        if let Some(walk) = &mut self.walk
            && walk.note(id)
            && let Some(limit) = node.here.limit()
        {
            walk.saved.save(|out| put_limit(out, &node.name, limit.number, limit.stored));
        }
        &mut node.here
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(SlabAhead::new(self.nodes.capacity())));
    }

    /// Goes on with the walk over the limits; whether it has passed them all.
    pub(super) fn walk_on(&mut self, pen: &mut Pen<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        while let Some(id) = walk.next(pen) {
            // A node that was forgotten had no limit. One that is new here and has a limit was changed.
            if let Some(node) = self.nodes.get(id as usize)
                && let Some(limit) = node.here.limit()
            {
                pen.put(1, |out| put_limit(out, &node.name, limit.number, limit.stored));
            }
        }
        walk.is_done()
    }

    /// Writes the limits that were saved; whether that was all.
    pub(super) fn write_saved(&mut self, pen: &mut Pen<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }

    /// The nodes above, the nearest first.
    pub(super) fn above(&self, id: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
        let mut at = self.nodes[id as usize].parent;
        std::iter::from_fn(move || {
            let found = at;
            let node = (found != NONE).then(|| &self.nodes[found as usize])?;
            at = node.parent;
            Some((found, node))
        })
    }

    /// The nodes strictly below, each once, in no order that may decide anything.
    pub(super) fn below(&self, top: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
        let mut at = self.nodes[top as usize].first_child;
        std::iter::from_fn(move || {
            let found = at;
            let node = (found != NONE).then(|| &self.nodes[found as usize])?;
            at = if node.first_child != NONE { node.first_child } else { self.after(found, top) };
            Some((found, node))
        })
    }

    /// The next node of a walk below `top` once everything below `id` was seen.
    fn after(&self, mut id: NodeId, top: NodeId) -> NodeId {
        loop {
            let node = &self.nodes[id as usize];
            if node.next != NONE {
                return node.next;
            }
            if node.parent == top {
                return NONE;
            }
            id = node.parent;
        }
    }

    /// Counts one name of a request in, or out of, all nodes above it.
    pub(super) fn count_above(&mut self, id: NodeId, counted: Counted, sign: i32) {
        let mut at = self.nodes[id as usize].parent;
        while at != NONE {
            let node = &mut self.nodes[at as usize];
            let add = |counter: &mut u32| *counter = counter.wrapping_add_signed(sign);
            match counted {
                Counted::Waiter => add(&mut node.below.waiters),
                Counted::Hold { shared } => {
                    add(&mut node.below.holds);
                    if !shared {
                        add(&mut node.below.unshared_holds);
                    }
                }
            }
            at = node.parent;
        }
    }

    /// The nodes in the next `count` places of memory from place `from` on, and the place after them, if there is one. A
    /// node keeps its place as long as it lives.
    pub(super) fn part(&self, from: usize, count: usize) -> (impl Iterator<Item = &Node>, Option<usize>) {
        let end = from.saturating_add(count).min(self.nodes.capacity());
        let nodes = (from..end).filter_map(|place| self.nodes.get(place));
        (nodes, (end < self.nodes.capacity()).then_some(end))
    }

    /// All nodes, in the order in which they lie in memory: only for sums, sorting and checks.
    pub(super) fn all(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (id as NodeId, node))
    }
}

/// Half of a hash is enough to find by: of a million names, some hundred share theirs with another.
fn hash(seed: u64, name: &str) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(seed, !seed);
    hasher.write(name.as_bytes());
    hasher.finish() as u32
}

/// The index takes a place from the lowest bits of 64 and tells neighbours apart by the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
