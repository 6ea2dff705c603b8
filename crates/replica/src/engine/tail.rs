//! The in-memory end of the log as raft-rs' storage. The log on disk is in `storage`.

use std::cell::Cell;
use std::collections::VecDeque;

use lockkeeper_wire::store;
use raft::prelude::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, StorageError};

use super::convert::{from_stored, to_conf_state};
use super::lag::Pin;
use super::{Position, Start};

/// Capacity that the buffer keeps while it has no entries.
const ENTRIES_KEPT: usize = 64;

pub(super) struct Tail {
    pub(super) conf_state: ConfState,
    pub(super) hard_state: HardState,
    /// Index and term of the entry before the first one in memory.
    before: Position,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes of applied entries kept for followers that lag a little. A single-node cluster keeps none.
    keep: usize,
    /// Retention for followers that lag more; see [`Lag::pins`](super::lag::Lag::pins).
    pins: [Option<Pin>; 2],
    /// The snapshot on disk. It can be sent to a follower that needs entries which are no longer in memory.
    stored: Option<(Position, store::Configuration)>,
    /// Whether a follower needs a snapshot that is not stored.
    wish: Cell<bool>,
}

impl Tail {
    pub(super) fn new(start: Start) -> Self {
        let stored = start.hard_state.unwrap_or_default();
        let hard_state = HardState {
            term: stored.term,
            vote: stored.vote,
            // All entries of a snapshot are committed.
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
        // A new leader's entries replace uncommitted ones of an earlier leader.
        while self.last() >= first.index {
            let Some(replaced) = self.entries.pop_back() else { break };
            self.bytes -= replaced.data.len();
        }
        self.bytes += entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        self.entries.extend(entries);
    }

    /// Replaces all entries by a received snapshot.
    pub(super) fn install(&mut self, at: Position, conf_state: ConfState) {
        self.entries.clear();
        self.bytes = 0;
        self.before = at;
        self.conf_state = conf_state;
        self.hard_state.commit = at.index;
        self.stored = None;
    }

    /// Drops applied entries beyond the retention.
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

    /// Sets the retention for lagging followers.
    pub(super) fn pin(&mut self, pins: [Option<Pin>; 2]) {
        self.pins = pins;
    }

    /// Sets the snapshot that is stored on disk and can be sent.
    pub(super) fn stored(&mut self, at: Position, configuration: store::Configuration) {
        self.stored = Some((at, configuration));
    }

    /// Index before the first entry in memory.
    pub(super) fn start(&self) -> u64 {
        self.before.index
    }

    /// Index of the last entry in the stored snapshot.
    pub(super) fn stored_index(&self) -> u64 {
        self.stored.as_ref().map_or(0, |(at, _)| at.index)
    }

    /// Whether a follower has needed a snapshot that is not stored since the last call.
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

    /// Returns metadata only: the snapshot itself is sent from disk over a separate connection. Requests a
    /// new snapshot instead if none is stored, or if the stored one ends before `request_index`, leaves a gap
    /// before the first entry in memory, or does not list the follower in its configuration: after installing
    /// it, the follower would need another snapshot.
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
