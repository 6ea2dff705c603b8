//! All requests: who may change one, and what a walk is owed for it.

use std::collections::BTreeSet;
use std::ops::Index;

use slab::Slab;

use super::ahead::{Pen, SlabAhead};
use super::names::Names;
use super::request::{Request, RequestId, insert};
use crate::snapshot::items::put_request;

/// The requests of a table. They are read by index and changed only through the methods here, which save the old
/// state for a walk that is under way and note the names for whoever watches; so the changers take the names.
#[derive(Default)]
pub(super) struct Requests {
    slab: Slab<Request>,
    walk: Option<Box<SlabAhead>>,
    /// Names whose requests have changed; `None` while nobody watches.
    changes: Option<BTreeSet<Box<str>>>,
}

impl Index<usize> for Requests {
    type Output = Request;

    fn index(&self, index: usize) -> &Request {
        &self.slab[index]
    }
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// In the order in which they lie in memory: only for sums, sorting and checks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.slab.iter().map(|(id, request)| (id as RequestId, request))
    }

    pub(super) fn insert(&mut self, request: Request, names: &Names) -> RequestId {
        let id = insert(&mut self.slab, request);
        self.note(id, names);
        if let Some(walk) = &mut self.walk {
            // Where it is now, there was nothing to save.
            walk.note(id);
        }
        id
    }

    pub(super) fn get_mut(&mut self, id: RequestId, names: &Names) -> &mut Request {
        self.preserve(id, names);
        &mut self.slab[id as usize]
    }

    /// Its names must still be there.
    pub(super) fn remove(&mut self, id: RequestId, names: &Names) {
        self.preserve(id, names);
        self.slab.remove(id as usize);
    }

    /// Begins or ends noting what changes.
    pub(super) fn watch(&mut self, watched: bool) {
        match (watched, &self.changes) {
            (true, None) => self.changes = Some(BTreeSet::new()),
            (false, Some(_)) => self.changes = None,
            _ => {}
        }
    }

    pub(super) fn take_changes(&mut self) -> BTreeSet<Box<str>> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note(&mut self, id: RequestId, names: &Names) {
        if let Some(changes) = &mut self.changes {
            let nodes = self.slab[id as usize].nodes.as_slice();
            changes.extend(nodes.iter().map(|&node| names.get(node).name.clone()));
        }
    }

    fn preserve(&mut self, id: RequestId, names: &Names) {
        self.note(id, names);
        if let Some(walk) = &mut self.walk
            && walk.note(id)
        {
            let request = &self.slab[id as usize];
            walk.saved.save(|out| put_request(out, request.view(names)));
        }
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = Some(Box::new(SlabAhead::new(self.slab.capacity())));
    }

    /// Goes on with the walk; whether it has passed them all.
    pub(super) fn walk_on(&mut self, names: &Names, pen: &mut Pen<'_>) -> bool {
        let Some(walk) = &mut self.walk else { return true };
        while let Some(id) = walk.next(pen) {
            if let Some(request) = self.slab.get(id as usize) {
                let parts = request.nodes.as_slice().len();
                pen.put(parts, |out| put_request(out, request.view(names)));
            }
        }
        walk.is_done()
    }

    /// Writes what was saved; whether that was all.
    pub(super) fn write_saved(&mut self, pen: &mut Pen<'_>) -> bool {
        self.walk.as_mut().is_none_or(|walk| walk.saved.write(pen))
    }

    pub(super) fn end_walk(&mut self) {
        self.walk = None;
    }
}
