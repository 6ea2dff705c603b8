//! The end of the log in memory, as raft-rs wants to see it. What is on disk is the storage's matter.

use std::cell::Cell;
use std::collections::VecDeque;

use lockkeeper_wire::store;
use raft::prelude::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, StorageError};

use super::convert::{from_stored, to_conf_state};
use super::lag::Pin;
use super::{Position, Start};

/// Room for so many entries is kept when there are none.
const ENTRIES_KEPT: usize = 64;

pub(super) struct Tail {
    pub(super) conf_state: ConfState,
    pub(super) hard_state: HardState,
    /// The entry before the first one here.
    before: Position,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Applied entries that are kept for followers which lag a little, in bytes. A node alone keeps none.
    keep: usize,
    /// What followers that lag will need.
    pins: [Option<Pin>; 2],
    /// What may be sent to a follower that lags behind `before`: a snapshot that is on the disk.
    stored: Option<(Position, store::Configuration)>,
    /// A follower was found that needs one.
    wish: Cell<bool>,
}

impl Tail {
    pub(super) fn new(start: Start) -> Self {
        let stored = start.hard_state.unwrap_or_default();
        let hard_state = HardState {
            term: stored.term,
            vote: stored.vote,
            // A snapshot holds committed entries only.
            commit: stored.commit.max(start.snapshot_index),
            ..HardState::default()
        };
        let entries: VecDeque<Entry> = start.entries.into_iter().map(from_stored).collect();
        let bytes = entries.iter().map(|entry| entry.data.len()).sum();
        Self {
            conf_state: to_conf_state(&start.configuration),
            hard_state,
            before: Position { index: start.snapshot_index, term: start.snapshot_term },
            entries,
            bytes,
            keep: start.tail_bytes,
            pins: [None; 2],
            stored: None,
            wish: Cell::new(false),
        }
    }

    fn last(&self) -> u64 {
        self.before.index + self.entries.len() as u64
    }

    pub(super) fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first() else { return };
        // A new leader's entries replace what an old one left.
        while self.last() >= first.index {
            let Some(replaced) = self.entries.pop_back() else { break };
            self.bytes -= replaced.data.len();
        }
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.entries.extend(entries);
    }

    /// A received snapshot takes the place of everything.
    pub(super) fn install(&mut self, at: Position, conf_state: ConfState) {
        self.entries.clear();
        self.bytes = 0;
        self.before = at;
        self.conf_state = conf_state;
        self.hard_state.commit = at.index;
        self.stored = None;
    }

    /// Lets go of applied entries beyond what may be kept.
    pub(super) fn trim(&mut self, applied: u64) {
        let alone = self.conf_state.voters.len() + self.conf_state.learners.len() <= 1
            && self.conf_state.voters_outgoing.is_empty();
        let keep = if alone { 0 } else { self.keep };
        while self.bytes > keep && self.before.index < applied {
            let is_needed = |pin: &Pin| self.before.index >= pin.after && self.bytes <= pin.bytes_max;
            if self.pins.iter().flatten().any(is_needed) {
                break;
            }
            let Some(first) = self.entries.pop_front() else { return };
            self.bytes -= first.data.len();
            self.before = Position { index: first.index, term: first.term };
        }
        if self.entries.is_empty() {
            self.entries.shrink_to(ENTRIES_KEPT);
        }
    }

    /// Keeps what is needed.
    pub(super) fn pin(&mut self, pins: [Option<Pin>; 2]) {
        self.pins = pins;
    }

    /// A snapshot is on the disk, and may be sent.
    pub(super) fn stored(&mut self, at: Position, configuration: store::Configuration) {
        self.stored = Some((at, configuration));
    }

    /// The entry before the first one here.
    pub(super) fn start(&self) -> u64 {
        self.before.index
    }

    /// The last entry in the snapshot that may be sent.
    pub(super) fn stored_index(&self) -> u64 {
        self.stored.as_ref().map_or(0, |(at, _)| at.index)
    }

    /// Whether a follower was found, since this was asked last, that needs a snapshot which isn't there.
    pub(super) fn take_wish(&self) -> bool {
        self.wish.take()
    }
}

impl raft::Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let (skip, take) = (low - self.before.index - 1, high.saturating_sub(low));
        let mut size = 0;
        let fits = |entry: &&Entry| {
            let first = size == 0;
            size += entry.data.len() as u64 + 1;
            first || size <= max
        };
        Ok(self.entries.iter().skip(skip as usize).take(take as usize).take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.index {
            return Ok(self.before.term);
        }
        if index < self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.get((index - self.before.index - 1) as usize);
        entry.map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// Only its place: the snapshot itself goes from the disk by a lane of its own. One that ends before the first entry here, or
    /// that doesn't know the node that asks, would only be asked for again.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let fits = |at: &Position, configuration: &store::Configuration| {
            let known = [
                &configuration.voters,
                &configuration.learners,
                &configuration.voters_outgoing,
                &configuration.learners_next,
            ];
            at.index >= self.before.index.max(request_index) && known.iter().any(|ids| ids.contains(&to))
        };
        match &self.stored {
            Some((at, configuration)) if fits(at, configuration) => {
                let mut snapshot = Snapshot::default();
                let metadata = snapshot.mut_metadata();
                metadata.index = at.index;
                metadata.term = at.term;
                metadata.set_conf_state(to_conf_state(configuration));
                Ok(snapshot)
            }
            _ => {
                self.wish.set(true);
                Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}
