//! What a walk must not lose: the old state of entries that it has not passed yet and that commands change.
//!
//! Each store of entries (requests, sessions, names) has one of these while a walk is under way, and asks it in the
//! few methods through which its entries can be changed at all. So no rule of the table has to remember the walk, and
//! without a walk the price is one branch. Beside the store, not in its entries: a held lock takes no byte more.

use std::collections::{BTreeSet, VecDeque};

use crate::snapshot::items::Digest;
use crate::types::SessionId;

/// Items of old states, until the walk writes them out.
///
/// In chunks, so that neither writing nor freeing much of it at once takes long: one command may change all there is.
#[derive(Default)]
pub(super) struct Saved {
    chunks: VecDeque<Vec<u8>>,
    digest: Digest,
}

/// A chunk that has reached this size, in bytes, gets no further item.
const CHUNK_BYTES: usize = 1 << 16;

impl Saved {
    pub(super) fn save(&mut self, put: impl FnOnce(&mut Vec<u8>) -> Digest) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() >= CHUNK_BYTES) {
            self.chunks.push_back(Vec::new());
        }
        if let Some(chunk) = self.chunks.back_mut() {
            self.digest += put(chunk);
        }
    }

    /// Writes out what was saved; whether that was all.
    pub(super) fn write(&mut self, pen: &mut Pen<'_>) -> bool {
        *pen.digest += std::mem::take(&mut self.digest);
        while !pen.is_spent() {
            let Some(chunk) = self.chunks.pop_front() else { return true };
            pen.copy(&chunk);
        }
        self.chunks.is_empty()
    }
}

/// Where a walk writes, and how much it may do yet before it must let others on.
pub(super) struct Pen<'a> {
    out: &'a mut Vec<u8>,
    digest: &'a mut Digest,
    /// In sixteenths of an item.
    left: usize,
}

/// What an ordinary item costs of [`Pen::left`].
const ITEM: usize = 16;

impl<'a> Pen<'a> {
    pub(super) fn new(budget_items: usize, out: &'a mut Vec<u8>, digest: &'a mut Digest) -> Self {
        Self { out, digest, left: budget_items.max(1).saturating_mul(ITEM) }
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }

    fn spend(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// An entry was looked at; it may be vacant, or saved before.
    fn look(&mut self) {
        self.spend(1);
    }

    /// Writes an item that consists of so many `parts`, each to be fetched from somewhere in memory. A long one counts
    /// as several.
    pub(super) fn put(&mut self, parts: usize, put: impl FnOnce(&mut Vec<u8>) -> Digest) {
        let before = self.out.len();
        *self.digest += put(self.out);
        self.spend(ITEM * parts + (self.out.len() - before) / (128 / ITEM));
    }

    /// Items that are encoded already cost little but their length.
    fn copy(&mut self, items: &[u8]) {
        self.out.extend_from_slice(items);
        self.spend(1 + items.len() / 16);
    }
}

/// For entries that lie in a slab.
pub(super) struct SlabAhead {
    /// The next entry to look at.
    next: u32,
    /// Entries from here on are new.
    end: u32,
    /// A bit for each entry that is not what it was when the walk began: saved, or new in a place that was vacant.
    changed: Vec<u64>,
    pub(super) saved: Saved,
}

impl SlabAhead {
    pub(super) fn new(places: usize) -> Self {
        Self { next: 0, end: places as u32, changed: vec![0; places.div_ceil(64)], saved: Saved::default() }
    }

    /// Notes that an entry is about to change. Whether it must be saved: its first change, ahead of the walk.
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

    /// The next place whose entry, if there is one, is still what it was; `None` at the end, or when the pen is spent.
    pub(super) fn next(&mut self, pen: &mut Pen<'_>) -> Option<u32> {
        while self.next < self.end && !pen.is_spent() {
            let id = self.next;
            self.next += 1;
            pen.look();
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

/// For sessions, which have their ids as order.
pub(super) struct SessionsAhead {
    /// The last one passed.
    passed: SessionId,
    /// Sessions above it are new.
    last: SessionId,
    changed: BTreeSet<SessionId>,
    pub(super) saved: Saved,
}

impl SessionsAhead {
    pub(super) fn new(last: SessionId) -> Self {
        Self { passed: SessionId(0), last, changed: BTreeSet::new(), saved: Saved::default() }
    }

    /// As [`SlabAhead::note`].
    pub(super) fn note(&mut self, id: SessionId) -> bool {
        id > self.passed && id <= self.last && self.changed.insert(id)
    }

    /// Those that are still to be looked at.
    pub(super) fn range(&self) -> (std::ops::Bound<SessionId>, std::ops::Bound<SessionId>) {
        (std::ops::Bound::Excluded(self.passed), std::ops::Bound::Included(self.last))
    }

    /// Passes a session; whether it is still what it was.
    pub(super) fn pass(&mut self, id: SessionId, pen: &mut Pen<'_>) -> bool {
        pen.look();
        self.passed = id;
        !self.changed.remove(&id)
    }

    pub(super) fn pass_all(&mut self) {
        self.passed = self.last;
    }
}

/// For freed names, which leave in the order of their numbers.
pub(super) struct FreedAhead {
    /// The next one to write.
    next: u64,
    /// Those from here on are new.
    end: u64,
    pub(super) saved: Saved,
}

impl FreedAhead {
    pub(super) fn new(end: u64) -> Self {
        Self { next: 0, end, saved: Saved::default() }
    }

    /// Notes that the first one leaves. Whether it must be saved: the walk has not come to it.
    pub(super) fn note(&mut self, number: u64) -> bool {
        let is_ahead = (self.next..self.end).contains(&number);
        if is_ahead {
            self.next = number + 1;
        }
        is_ahead
    }

    /// Those that are still to be written.
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
