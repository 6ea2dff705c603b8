//! The tree of names in use: finds a name by one hash probe and knows what lies above and below it.
//!
//! Responsible for the nodes' life, and for what is counted and indexed along a path. Nothing here is ever iterated in
//! hash order: the hash only finds, order comes from tickets and from names.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::Hasher;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use slab::Slab;

use super::ahead::{Pen, SlabAhead};
use super::crowd::Here;
use super::request::{RequestId, insert};
use super::work::Visits;
use crate::name::{self, LockName};
use crate::snapshot::items::put_limit;
use crate::types::Ticket;

/// Index of a [`Node`]. Reused after the node is gone.
pub(super) type NodeId = u32;
const NONE: NodeId = NodeId::MAX;

/// A name that is held, waited for or limited, or that has such a name below it.
pub(super) struct Node {
    /// The last segment of the name. What comes before it is the parent's name, so a deep name costs its own length.
    segment: Box<str>,
    /// Of the whole name: an index that grows asks for all of them, and a million names lie all over the memory.
    hash: u32,
    parent: NodeId,
    first_child: NodeId,
    next: NodeId,
    prev: NodeId,
    /// Holds strictly below, counted once per name of a request.
    pub(super) below: HoldsBelow,
    waiting_below: Option<Box<WaitersBelow>>,
    pub(super) here: Here,
}

/// Counters over the names strictly below a node.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct HoldsBelow {
    /// Closed ones too.
    pub(super) all: u32,
    /// Those of them that are not shared.
    pub(super) unshared: u32,
}

/// The requests that wait strictly below a node, by ticket, so that a subtree finds the first of them at once.
#[derive(Default)]
pub(super) struct WaitersBelow {
    shared: ByTicketBelow,
    unshared: ByTicketBelow,
}

/// With the number of names that the request has below the node.
pub(super) type ByTicketBelow = BTreeMap<Ticket, (RequestId, u32)>;

impl WaitersBelow {
    fn of(&self, shared: bool) -> &ByTicketBelow {
        if shared { &self.shared } else { &self.unshared }
    }
}

pub(super) struct Names {
    nodes: Slab<Node>,
    index: HashTable<NodeId>,
    /// Makes the hash unpredictable to clients, who choose names. It decides no outcome.
    hash_seed: u64,
    walk: Option<Box<SlabAhead>>,
    visits: Visits,
}

impl Names {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { nodes: Slab::new(), index: HashTable::new(), hash_seed, walk: None, visits: Visits::default() }
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeId> {
        self.find_hashed(name, hash(self.hash_seed, name))
    }

    fn find_hashed(&self, name: &str, hash: u32) -> Option<NodeId> {
        self.index.find(spread(hash), |&id| self.is_named(id, name)).copied()
    }

    /// Compares from the last segment up.
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

    /// How many segments the name of a node has.
    pub(super) fn segments(&self, id: NodeId) -> usize {
        1 + self.above(id).count()
    }

    /// The node of a name, made with everything above it if it isn't there.
    pub(super) fn intern(&mut self, name: &str) -> NodeId {
        let hash = hash(self.hash_seed, name);
        if let Some(id) = self.find_hashed(name, hash) {
            return id;
        }
        let above = name::parent(name);
        let segment = above.map_or(name, |above| &name[above.len() + 1..]);
        let parent = above.map_or(NONE, |above| self.intern(above));
        let next = if parent == NONE { NONE } else { self.nodes[parent as usize].first_child };
        self.visits.add(1);
        let id = insert(
            &mut self.nodes,
            Node {
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
        if parent != NONE {
            self.nodes[parent as usize].first_child = id;
        }
        let nodes = &self.nodes;
        self.index.insert_unique(spread(hash), id, |&id| spread(nodes[id as usize].hash));
        id
    }

    /// Forgets a node that is not in use, and everything above it that is thereby unused too.
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
        self.visits.add(1);
        &self.nodes[id as usize]
    }

    /// Names and waiters looked at so far, for the bound on a command's work (M2).
    pub(super) fn visits(&self) -> &Visits {
        &self.visits
    }

    /// The only way to change who is at a name; its limit may change with any of them (L3), so a walk that is under
    /// way gets the limit as it was.
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
        self.walk = Some(Box::new(SlabAhead::new(self.nodes.capacity())));
    }

    /// Goes on with the walk over the limits; whether it has passed them all.
    pub(super) fn walk_on(&mut self, pen: &mut Pen<'_>) -> bool {
        let Some(mut walk) = self.walk.take() else { return true };
        while let Some(id) = walk.next(pen) {
            // A node that was forgotten had no limit. One that is new here and has a limit was changed.
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
            let node = (found != NONE).then(|| self.get(found))?;
            at = node.parent;
            Some((found, node))
        })
    }

    /// The nodes strictly below, each once, in no order that may decide anything.
    pub(super) fn below(&self, top: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
        let mut at = self.nodes[top as usize].first_child;
        std::iter::from_fn(move || {
            let found = at;
            let node = (found != NONE).then(|| self.get(found))?;
            at = if node.first_child != NONE { node.first_child } else { self.after(found, top) };
            Some((found, node))
        })
    }

    /// The next node of a walk below `top` once everything below `id` was seen.
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

    /// Counts one name of a hold in, or out of, all nodes above it.
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

    /// Enters one name of a waiter at all nodes above it.
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

    /// Takes one name of a waiter back from all nodes above it.
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

    /// The requests of one kind that wait strictly below a node; `None` where there are none of either kind.
    pub(super) fn waiting_below(&self, id: NodeId, shared: bool) -> Option<&ByTicketBelow> {
        self.get(id).waiting_below.as_ref().map(|below| below.of(shared))
    }

    /// The nodes in the next `count` places of memory from place `from` on, and the place after them, if there is one. A
    /// node keeps its place as long as it lives.
    pub(super) fn part(
        &self,
        from: usize,
        count: usize,
    ) -> (impl Iterator<Item = (NodeId, &Node)>, Option<usize>) {
        let end = from.saturating_add(count).min(self.nodes.capacity());
        let nodes = (from..end).filter_map(|place| Some((place as NodeId, self.nodes.get(place)?)));
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
