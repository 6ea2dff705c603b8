//! The store of all requests, with change tracking for snapshots and watchers.

use std::collections::BTreeSet;
use std::ops::{Bound, Index};

use slab::Slab;

use super::copy_on_write::{SlabCursor, SnapshotWriter};
use super::names::Names;
use super::request::{RequestEntry, RequestId, insert};
use super::usage::{AccountId, RequestUsage, Usage};
use super::work::Visits;
use crate::name::LockName;
use crate::snapshot::items::put_request;

/// The requests of a table. They are read by index and changed only through these methods, which save the old
/// state for a snapshot in progress and record the changed names for watchers. That is why the changing
/// methods take `names`.
#[derive(Default)]
pub(super) struct Requests {
    slab: Slab<RequestEntry>,
    walk: Option<Box<SlabCursor>>,
    visits: Visits,
    /// Sum of [`RequestEntry::bytes`].
    bytes: u64,
    usage: RequestUsage,
    /// The usage of all.
    usage_in_all: Usage,
    /// Names whose requests or limits have changed; `None` without a watcher.
    changes: Option<BTreeSet<LockName>>,
    /// The name that was returned last. The next call continues after it, so that a name that changes
    /// constantly doesn't starve the others.
    taken: Option<LockName>,
}

impl Index<usize> for Requests {
    type Output = RequestEntry;

    fn index(&self, index: usize) -> &RequestEntry {
        self.visits.add(1);
        &self.slab[index]
    }
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// All requests, in the order of their ids, which differs between replicas: only for sums, sorting and
    /// checks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &RequestEntry)> {
        self.slab.iter().map(|(id, request)| (id as RequestId, request))
    }

    /// The requests in `count` slab entries from index `from`, and the index after these, if any.
    pub(super) fn part(
        &self,
        from: usize,
        count: usize,
    ) -> (impl Iterator<Item = (usize, &RequestEntry)>, Option<usize>) {
        let end = from.saturating_add(count).min(self.slab.capacity());
        let requests = (from..end).filter_map(|place| Some((place, self.slab.get(place)?)));
        (requests, (end < self.slab.capacity()).then_some(end))
    }

    pub(super) fn insert(&mut self, request: RequestEntry, names: &Names) -> RequestId {
        self.bytes += request.bytes();
        self.count(request.account, request.usage());
        let id = insert(&mut self.slab, request);
        self.note(id, names);
        if let Some(walk) = &mut self.walk {
            // There is no old state to save, since the slab entry was vacant. `note` makes the iterator skip
            // the new request.
            walk.note(id);
        }
        id
    }

    /// Changes a request; its names must stay the same.
    pub(super) fn edit<T>(
        &mut self,
        id: RequestId,
        names: &Names,
        change: impl FnOnce(&mut RequestEntry) -> T,
    ) -> T {
        self.preserve(id, names);
        let request = &mut self.slab[id as usize];
        let (account, before) = (request.account, request.usage());
        let result = change(request);
        let after = request.usage();
        self.bytes = self.bytes - before.bytes + after.bytes;
        if before != after {
            self.discount(account, before);
            self.count(account, after);
        }
        result
    }

    /// Removes a request. Its names must still be in the tree.
    pub(super) fn remove(&mut self, id: RequestId, names: &Names) {
        self.preserve(id, names);
        let request = self.slab.remove(id as usize);
        self.bytes -= request.bytes();
        self.discount(request.account, request.usage());
    }

    /// Counts a restored request for the account of its session.
    pub(super) fn assign(&mut self, id: RequestId, account: AccountId) {
        let request = &mut self.slab[id as usize];
        let usage = request.usage();
        self.usage.subtract(request.account, usage);
        request.account = account;
        self.usage.add(account, usage);
    }

    fn count(&mut self, account: AccountId, usage: Usage) {
        self.usage.add(account, usage);
        self.usage_in_all = self.usage_in_all.plus(usage);
    }

    fn discount(&mut self, account: AccountId, usage: Usage) {
        self.usage.subtract(account, usage);
        self.usage_in_all = self.usage_in_all.minus(usage);
    }

    pub(super) fn usage(&self) -> &RequestUsage {
        &self.usage
    }

    pub(super) fn usage_in_all(&self) -> Usage {
        self.usage_in_all
    }

    /// Sum of [`RequestEntry::bytes`].
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Starts or stops recording changed names.
    pub(super) fn watch(&mut self, watched: bool) {
        match (watched, &self.changes) {
            (true, None) => self.changes = Some(BTreeSet::new()),
            (false, Some(_)) => self.changes = None,
            _ => {}
        }
    }

    pub(super) fn take_changes(&mut self, max: usize) -> Vec<LockName> {
        let Some(changes) = &mut self.changes else { return Vec::new() };
        let mut names = Vec::new();
        while names.len() < max {
            let after = self.taken.take().map_or(Bound::Unbounded, Bound::Excluded);
            let next = changes.range((after, Bound::Unbounded)).next().or(changes.first()).cloned();
            let Some(name) = next else { break };
            changes.remove(&name);
            self.taken = Some(name.clone());
            names.push(name);
        }
        names
    }

    pub(super) fn has_changes(&self) -> bool {
        self.changes.as_ref().is_some_and(|changes| !changes.is_empty())
    }

    pub(super) fn visits(&self) -> &Visits {
        &self.visits
    }

    /// Records that something else has changed at a name, for the watchers.
    pub(super) fn note_name(&mut self, name: &LockName) {
        if let Some(changes) = &mut self.changes {
            changes.insert(name.clone());
        }
    }

    fn note(&mut self, id: RequestId, names: &Names) {
        if let Some(changes) = &mut self.changes {
            let nodes = self.slab[id as usize].nodes.as_slice();
            changes.extend(nodes.iter().map(|&node| names.name(node)));
        }
    }

    fn preserve(&mut self, id: RequestId, names: &Names) {
        self.visits.add(1);
        self.note(id, names);
        if let Some(walk) = &mut self.walk
            && walk.note(id)
        {
            let request = &self.slab[id as usize];
            walk.saved.save(|out| put_request(out, request.view(names)));
        }
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(SlabCursor::new(self.slab.capacity())));
    }

    /// Advances the snapshot iterator; returns true when done.
    pub(super) fn walk_on(&mut self, names: &Names, pen: &mut SnapshotWriter<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        while let Some(id) = walk.next(pen) {
            if let Some(request) = self.slab.get(id as usize) {
                let parts = request.nodes.as_slice().len();
                pen.put(parts, |out| put_request(out, request.view(names)));
            }
        }
        walk.is_done()
    }

    /// Writes out the copy-on-write buffer; returns true once it is empty.
    pub(super) fn write_saved(&mut self, pen: &mut SnapshotWriter<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }
}
