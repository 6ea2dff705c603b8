//! Copy-on-write for snapshots: saves the old state of a table entry (a request, a session, a freed name or a
//! name) that a command changes before the snapshot iterator has reached it.
//!
//! While a snapshot is in progress, each store (requests, sessions, freed names, names) has one of these
//! structures, and consults it in the few methods that can change an entry. So the rules of the table need no
//! code for snapshots, and without a snapshot the cost is one branch. The table entries themselves have no
//! field for copy-on-write.

use std::collections::{BTreeSet, VecDeque};

use crate::snapshot::items::Digest;
use crate::types::SessionId;

/// Copy-on-write buffer: the encoded items of old states, until the iterator writes them out.
///
/// Split into chunks, because commands may change all entries between two pieces of the snapshot, and writing
/// or freeing one chunk must take a short time.
#[derive(Default)]
pub(super) struct CopyOnWriteBuffer {
    chunks: VecDeque<Vec<u8>>,
    digest: Digest,
}

/// A chunk that has this many bytes gets no further item.
const CHUNK_BYTES: usize = 1 << 16;

impl CopyOnWriteBuffer {
    pub(super) fn save(&mut self, put: impl FnOnce(&mut Vec<u8>) -> Digest) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= CHUNK_BYTES) {
            self.chunks.push_back(Vec::new());
        }
        if let Some(chunk) = self.chunks.back_mut() {
            self.digest += put(chunk);
        }
    }

    /// Writes chunks until the budget is spent; returns true once the buffer is empty.
    pub(super) fn write(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        *pen.digest += std::mem::take(&mut self.digest);
        while !pen.is_spent() {
            let Some(chunk) = self.chunks.pop_front() else { return true };
            pen.copy(&chunk);
        }
        self.chunks.is_empty()
    }
}

/// Output of the snapshot iterator, with the remaining budget of the current piece.
pub(super) struct SnapshotWriter<'a> {
    out: &'a mut Vec<u8>,
    digest: &'a mut Digest,
    /// Remaining budget, in sixteenths of an item.
    left: usize,
}

/// The units of [`SnapshotWriter::left`] that each part of an item costs.
const ITEM: usize = 16;

impl<'a> SnapshotWriter<'a> {
    pub(super) fn new(budget_items: usize, out: &'a mut Vec<u8>, digest: &'a mut Digest) -> Self {
        Self { out, digest, left: budget_items.max(1).saturating_mul(ITEM) }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    fn spend(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// Charges the budget for a visited table entry that is not written: it may be vacant or already saved.
    fn skip(&mut self) {
        self.spend(1);
    }

    /// Writes an item. `parts` is the number of its names, or of a session's kept answers plus one: reading
    /// each costs a random memory access. A long item costs more of the budget.
    pub(super) fn put(&mut self, parts: usize, put: impl FnOnce(&mut Vec<u8>) -> Digest) {
        let before = self.out.len();
        *self.digest += put(self.out);
        self.spend(ITEM * parts + (self.out.len() - before) / (128 / ITEM));
    }

    /// Writes items that are encoded already, so their cost depends on their length only.
    fn copy(&mut self, items: &[u8]) {
        self.out.extend_from_slice(items);
        self.spend(1 + items.len() / 16);
    }
}

/// Iterator position and changed entries of a slab.
pub(super) struct SlabCursor {
    /// Index of the next slab entry to visit.
    next: u32,
    /// Index after the last slab entry to visit: those from here on were added after the snapshot began.
    end: u32,
    /// One bit per slab entry, set if the iterator must skip the entry: its old state was saved, or it was
    /// vacant when the snapshot began.
    changed: Vec<u64>,
    pub(super) saved: CopyOnWriteBuffer,
}

impl SlabCursor {
    pub(super) fn new(places: usize) -> Self {
        Self {
            next: 0,
            end: places as u32,
            changed: vec![0; places.div_ceil(64)],
            saved: CopyOnWriteBuffer::default(),
        }
    }

    /// Records that a slab entry is about to change. Returns true if its old state must be saved: this is the
    /// entry's first change, and the iterator has not reached it.
    pub(super) fn note(&mut self, id: u32) -> bool {
        let is_ahead = (self.next..self.end).contains(&id);
        let is_first = is_ahead && !self.is_changed(id);
        if is_first {
            self.changed[id as usize / 64] |= 1 << (id % 64);
        }
        is_first
    }

    fn is_changed(&self, id: u32) -> bool {
        self.changed[id as usize / 64] & 1 << (id % 64) != 0
    }

    /// Index of the next unchanged slab entry, which may be vacant. `None` at the end, or when the budget is
    /// spent.
    pub(super) fn next(&mut self, pen: &mut SnapshotWriter<'_>) -> Option<u32> {
        while self.next < self.end && !pen.is_spent() {
            let id = self.next;
            self.next += 1;
            pen.skip();
            if !self.is_changed(id) {
                return Some(id);
            }
        }
        None
    }

    pub(super) fn is_done(&self) -> bool {
        self.next >= self.end
    }
}

/// Iterator position and changed entries of the sessions, in the order of their ids.
pub(super) struct SessionsCursor {
    /// The last session that was visited; 0 before the first.
    passed: SessionId,
    /// Sessions with higher ids are new.
    last: SessionId,
    changed: BTreeSet<SessionId>,
    pub(super) saved: CopyOnWriteBuffer,
}

impl SessionsCursor {
    pub(super) fn new(last: SessionId) -> Self {
        Self { passed: SessionId(0), last, changed: BTreeSet::new(), saved: CopyOnWriteBuffer::default() }
    }

    /// As [`SlabCursor::note`].
    pub(super) fn note(&mut self, id: SessionId) -> bool {
        id > self.passed && id <= self.last && self.changed.insert(id)
    }

    /// The range of the sessions still to visit.
    pub(super) fn range(&self) -> (std::ops::Bound<SessionId>, std::ops::Bound<SessionId>) {
        (std::ops::Bound::Excluded(self.passed), std::ops::Bound::Included(self.last))
    }

    /// Moves past a session; returns true if it is unchanged.
    pub(super) fn pass(&mut self, id: SessionId, pen: &mut SnapshotWriter<'_>) -> bool {
        pen.skip();
        self.passed = id;
        !self.changed.remove(&id)
    }

    pub(super) fn pass_all(&mut self) {
        self.passed = self.last;
    }
}

/// Iterator position of the freed names, which are removed in the order of their numbers.
pub(super) struct FreedCursor {
    /// Number of the next freed name to write.
    next: u64,
    /// Freed names from this number on are new.
    end: u64,
    pub(super) saved: CopyOnWriteBuffer,
}

impl FreedCursor {
    pub(super) fn new(end: u64) -> Self {
        Self { next: 0, end, saved: CopyOnWriteBuffer::default() }
    }

    /// Records that the first freed name, which has this number, is removed. Returns true if the name must be
    /// saved: the iterator has not reached it.
    pub(super) fn note(&mut self, number: u64) -> bool {
        let is_ahead = (self.next..self.end).contains(&number);
        if is_ahead {
            self.next = number + 1;
        }
        is_ahead
    }

    /// The range of the freed names still to write.
    pub(super) fn range(&self) -> std::ops::Range<u64> {
        self.next..self.end
    }

    pub(super) fn pass(&mut self, number: u64) {
        self.next = number + 1;
    }

    pub(super) fn pass_all(&mut self) {
        self.next = self.end;
    }
}
