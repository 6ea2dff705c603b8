//! Snapshots of the table: as plain data at once, or in pieces by a snapshot iterator while commands are
//! applied between the pieces.
//!
//! The iterator (`SnapshotIterator`) writes every table entry in its state at the start of the snapshot. It
//! writes requests and limits in the order of their indexes in the slabs, so readers of the stream must sort
//! them by ticket and name. Before a command changes a table entry that the iterator has not reached, the
//! entry's store (`requests`, `session`, `names`, `work`) encodes the old state into a copy-on-write buffer
//! (`copy_on_write`), which is written out later. An entry is saved at most once per snapshot, and a command
//! changes a bounded number of entries (M2), so the cost for one command is bounded. A session with all its
//! kept answers is one entry.

use super::Table;
use super::copy_on_write::SnapshotWriter;
use super::names::{NameNode, NodeId};
use crate::snapshot::items::{Digest, Header, put_end, put_header};
use crate::snapshot::{LimitState, RequestState, Snapshot};
use crate::types::SessionId;

/// Result of writing a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum SnapshotProgress {
    /// More pieces follow.
    Continue,
    /// The end of the stream was written, and the snapshot is complete.
    Done {
        /// The table's [`Snapshot::digest`] at the start of the snapshot.
        digest: u128,
    },
    /// No snapshot is in progress, and nothing was written. A driver gets this result too if it has replaced
    /// the table by a restored one during a snapshot.
    NoWalk,
}

/// The error if a snapshot is begun while another one is in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a walk over the table is under way; write it to its end or abandon it before another is begun")]
pub struct SnapshotUnderWay;

/// The part of the snapshot iterator that is not in the stores; each store has its own position.
pub(super) struct SnapshotIterator {
    /// The header as of the start of the snapshot; `None` once written.
    header: Option<Header>,
    digest: Digest,
}

impl Table {
    /// Begins a snapshot of the current state, written in pieces while commands are applied. Takes a few
    /// microseconds, and one bit of memory per slab entry of requests and names until the snapshot is
    /// complete.
    ///
    /// # Errors
    /// [`SnapshotUnderWay`] if a snapshot is already in progress; it continues unchanged.
    pub fn begin_snapshot(&mut self) -> Result<(), SnapshotUnderWay> {
        if self.walk.is_some() {
            return Err(SnapshotUnderWay);
        }
        self.unpassed.begin_walk();
        self.requests.begin_walk();
        self.sessions.begin_walk(SessionId(self.last_session));
        self.names.begin_walk();
        self.walk = Some(SnapshotIterator { header: Some(self.header()), digest: Digest::default() });
        Ok(())
    }

    /// Appends the next piece of the snapshot stream to `out`: about `budget_items` items, where 0 counts
    /// as 1. A long item counts as several (one for each name, each kept answer and each 128 bytes), and 16
    /// slab entries that are skipped or vacant count as one item, so that all pieces take about the same
    /// time: a millisecond for a budget of 5,000 (figures in docs/benchmarks.md). Items are not split: a
    /// session with very many kept answers is written at once, and so are 64 KiB of saved old states.
    ///
    /// A [`Restorer`](crate::Restorer) and [`Snapshot::decode`] read the concatenation of all pieces.
    pub fn snapshot_piece(&mut self, budget_items: usize, out: &mut Vec<u8>) -> SnapshotProgress {
        let Some(mut walk) = self.walk.take() else { return SnapshotProgress::NoWalk };
        if let Some(header) = walk.header.take() {
            walk.digest += put_header(out, &header);
        }
        let mut pen = SnapshotWriter::new(budget_items, out, &mut walk.digest);
        // The copy-on-write buffers come first, to free their memory early.
        let is_done = self.unpassed.write_saved(&mut pen)
            && self.requests.write_saved(&mut pen)
            && self.sessions.write_saved(&mut pen)
            && self.names.write_saved(&mut pen)
            && self.unpassed.walk_on(&mut pen)
            && self.sessions.walk_on(&mut pen)
            && self.requests.walk_on(&self.names, &mut pen)
            && self.names.walk_on(&mut pen);
        if !is_done {
            self.walk = Some(walk);
            return SnapshotProgress::Continue;
        }
        put_end(out, walk.digest);
        self.abandon_snapshot();
        SnapshotProgress::Done { digest: walk.digest.0 }
    }

    /// Cancels the snapshot in progress, if any. The pieces written so far are useless.
    pub fn abandon_snapshot(&mut self) {
        self.walk = None;
        self.unpassed.end_walk();
        self.requests.end_walk();
        self.sessions.end_walk();
        self.names.end_walk();
    }

    /// Whether a snapshot is in progress.
    #[must_use]
    pub fn is_snapshot_under_way(&self) -> bool {
        self.walk.is_some()
    }

    fn header(&self) -> Header {
        Header {
            rules: self.rules,
            last_token: self.last_token,
            last_ticket: self.last_ticket,
            last_session: self.last_session,
            clock: self.clock,
        }
    }

    /// The whole table in canonical order (E2), built at once. For small tables and tests.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut requests: Vec<RequestState> =
            self.requests.iter().map(|(_, request)| request.view(&self.names).into_state()).collect();
        requests.sort_unstable_by_key(|request| request.ticket);
        let limit_state = |(id, node): (NodeId, &NameNode)| {
            let limit = node.here.limit()?;
            Some(LimitState { name: self.names.name(id), limit: limit.number, stored: limit.stored })
        };
        let mut limits: Vec<LimitState> = self.names.all().filter_map(limit_state).collect();
        limits.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let Header { rules, last_token, last_ticket, last_session, clock } = self.header();
        Snapshot {
            rules,
            last_token,
            last_ticket,
            last_session,
            clock,
            sessions: self.sessions.iter().map(|(id, session)| session.state(id)).collect(),
            requests,
            limits,
            ending: self.sessions.ending().collect(),
            freed: self.unpassed.states().collect(),
        }
    }
}
