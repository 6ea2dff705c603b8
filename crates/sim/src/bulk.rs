//! Snapshot transfers between nodes. A transfer arrives completely or not at all, and its sender receives the
//! result.

use std::collections::BTreeMap;

use lockkeeper_wire::peer::{Hello, SnapshotOffer};
use lockkeeper_wire::store::SnapshotTail;

use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening, Id};

/// A sender that has no result after this time gives up the transfer.
const GIVES_UP_AFTER: Nanos = 12 * SECOND;

/// Id of one snapshot transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BulkId(u64);

#[derive(Clone)]
pub(crate) struct Bulk {
    /// The run (start count) of the sender's process.
    pub(crate) from_run: u64,
    /// The sender's handshake.
    pub(crate) hello: Hello,
    pub(crate) offer: SnapshotOffer,
    pub(crate) pieces: Vec<Vec<u8>>,
    pub(crate) tail: SnapshotTail,
}

#[derive(Default)]
pub(crate) struct Bulks {
    open: BTreeMap<BulkId, Bulk>,
    last: u64,
}

impl Bulks {
    pub(crate) fn get(&self, id: BulkId) -> Option<&Bulk> {
        self.open.get(&id)
    }

    /// Removes a transfer whose result is delivered.
    pub(crate) fn take(&mut self, id: BulkId) -> Option<Bulk> {
        self.open.remove(&id)
    }
}

impl Core {
    pub(crate) fn send_bulk(&mut self, bulk: Bulk) {
        self.bulks.last += 1;
        let id = BulkId(self.bulks.last);
        self.bulks.open.insert(id, bulk);
        let pause = self.dice.spread(MS, 2 * SECOND);
        self.after(pause, Happening::BulkArrives(id));
        self.after(GIVES_UP_AFTER, Happening::BulkSettles(id, false));
    }

    /// Schedules the result for the sender. If several are scheduled, only the first counts.
    pub(crate) fn settle_bulk(&mut self, id: BulkId, arrived: bool) {
        let pause = self.dice.spread(MS / 10, 20 * MS);
        self.after(pause, Happening::BulkSettles(id, arrived));
    }

    /// Makes all transfers to a node fail, because its process has ended.
    pub(crate) fn bulks_gone(&mut self, node: Id) {
        let to_it = self.bulks.open.iter().filter(|(_, bulk)| bulk.offer.to == node);
        let to_it: Vec<BulkId> = to_it.map(|(&id, _)| id).collect();
        for id in to_it {
            self.settle_bulk(id, false);
        }
    }

    /// Whether packets pass in both directions between two nodes.
    pub(crate) fn is_open(&self, one: Id, other: Id) -> bool {
        !self.peers.is_cut(one, other, self.now) && !self.peers.is_cut(other, one, self.now)
    }
}
