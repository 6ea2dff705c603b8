//! Snapshots for log compaction, written in bounded pieces while commands go on, and sent to lagging
//! followers.

use lockkeeper_core::SnapshotProgress;
use lockkeeper_wire::peer::SnapshotOffer;
use lockkeeper_wire::{store, v1};

use super::Replica;
use crate::engine::Position;
use crate::event::{Answer, AskId, Output, SnapshotStep};

/// Items per piece: some 2 ms of work, so that a piece delays heartbeats and keep-alives only a little.
pub const ITEMS_PER_PIECE: usize = 4096;
/// The leader names log entries after which every node takes a snapshot. If it names none, a follower takes a
/// snapshot by itself once its log exceeds the threshold by `1 / PATIENCE` of it.
const PATIENCE: u64 = 4;

/// When a snapshot is due, and the state of the one in progress.
#[derive(Default)]
pub(super) struct Snapshots {
    /// Bytes on disk of the records written since the last snapshot, or since the last failed attempt. A
    /// record takes whole sectors: where each request has one of its own, this is many times its size.
    logged: u64,
    /// Size of the last snapshot in bytes; 0 after a restart. Before the next one is due, the log must grow
    /// by at least this much, so that snapshots cost at most about as many written bytes as the log.
    size: u64,
    /// The last stored snapshot, if any.
    stored: Option<store::SnapshotHead>,
    under_way: Option<RunningSnapshot>,
    /// Backup calls that are answered by the next snapshot. It is begun for them as soon as none is in
    /// progress.
    wanted_by: Vec<AskId>,
}

struct RunningSnapshot {
    head: store::SnapshotHead,
    logged_before: u64,
    pieces: u64,
    bytes: u64,
    /// Whether a step was sent to the disk and is not reported done.
    is_busy: bool,
    stage: SnapshotStage,
    /// Calls that are answered when the snapshot is stored; the next field is the token counter for that
    /// answer.
    wanted_by: Vec<AskId>,
    last_token: u64,
    /// Whether the leader has named the snapshot's entry, so that all nodes take a snapshot after it.
    is_named: bool,
}

enum SnapshotStage {
    Pieces,
    Tail {
        digest: u128,
    },
    Finishing,
    /// Abandoned, since the table has been replaced. The next snapshot begins only once the step in progress
    /// is reported: reports have no number, so a late one would be taken for that of a later step.
    GivenUp,
}

impl Snapshots {
    /// `logged`: bytes on disk of the records after the last snapshot.
    pub(super) fn new(logged: u64) -> Self {
        Self { logged, ..Self::default() }
    }

    /// Index of the last entry in the stored snapshot; 0 without one.
    pub(super) fn stored(&self) -> u64 {
        self.stored.as_ref().map_or(0, |head| head.index)
    }

    /// To be called when a received snapshot has replaced log and table. Abandons the snapshot in progress,
    /// and returns the calls that waited for it.
    pub(super) fn installed(&mut self, bytes: u64) -> Vec<AskId> {
        (self.size, self.logged) = (bytes, 0);
        let Some(mut it) = self.under_way.take() else { return Vec::new() };
        let waited = std::mem::take(&mut it.wanted_by);
        if it.is_busy {
            it.stage = SnapshotStage::GivenUp;
            self.under_way = Some(it);
        }
        waited
    }

    /// Counts the bytes on disk of records of the log.
    pub(super) fn logged(&mut self, bytes: u64) {
        self.logged += bytes;
    }

    /// Whether the event loop should begin or continue a snapshot at once.
    pub(super) fn is_due(&self) -> bool {
        self.under_way.as_ref().map_or(!self.wanted_by.is_empty(), |it| !it.is_busy)
    }

    /// Drops a cancelled call.
    pub(super) fn forget(&mut self, ask: AskId) {
        let under_way = self.under_way.as_mut().map(|it| &mut it.wanted_by);
        for asks in under_way.into_iter().chain([&mut self.wanted_by]) {
            asks.retain(|other| *other != ask);
        }
    }
}

impl Replica {
    /// Begins a snapshot or does its next step, if one is due.
    pub(super) fn snapshot_step(&mut self) {
        if self.snapshots.under_way.is_none() {
            if !self.may_begin_snapshot() {
                return;
            }
            let helps = self.would_help();
            if helps || !self.snapshots.wanted_by.is_empty() || self.is_snapshot_due() {
                self.begin_snapshot(false, helps);
            }
            return;
        }
        let Some(it) = self.snapshots.under_way.as_mut().filter(|it| !it.is_busy) else { return };
        let step = match it.stage {
            SnapshotStage::Pieces => {
                let mut piece = Vec::new();
                match self.table.snapshot_piece(ITEMS_PER_PIECE, &mut piece) {
                    SnapshotProgress::Continue => {}
                    SnapshotProgress::Done { digest } => {
                        if it.is_named {
                            self.checks.taken(it.head.index, digest, self.now);
                        }
                        it.stage = SnapshotStage::Tail { digest };
                    }
                    // Can't happen: only this module starts snapshot iterators of this table, and when the
                    // table is replaced, its snapshot is abandoned.
                    SnapshotProgress::NoWalk => return self.snapshot_failed(),
                }
                it.pieces += 1;
                it.bytes += piece.len() as u64;
                SnapshotStep::Piece(piece)
            }
            SnapshotStage::Tail { digest } => {
                it.stage = SnapshotStage::Finishing;
                let digest = digest.to_le_bytes().to_vec();
                SnapshotStep::Finish(store::SnapshotTail { pieces: it.pieces, bytes: it.bytes, digest })
            }
            SnapshotStage::Finishing | SnapshotStage::GivenUp => return,
        };
        it.is_busy = true;
        self.outputs.push(Output::Snapshot(step));
    }

    /// Head of a snapshot of the table in its present state.
    pub(super) fn snapshot_head(&self) -> store::SnapshotHead {
        store::SnapshotHead {
            index: self.applied.index,
            term: self.applied.term,
            rules: self.table.rules(),
            members: Some((&self.members).into()),
        }
    }

    /// Whether a follower needs a snapshot, and one taken now would help it more than the stored one. Clears
    /// the engine's request.
    fn would_help(&self) -> bool {
        self.engine.take_snapshot_wish() && self.applied.index > self.snapshots.stored()
    }

    /// Whether this node begins a snapshot now because its log has grown enough. A leader with followers does
    /// not: it names a later entry, after which all nodes take a snapshot. It also names one if differing
    /// tables must be compared again.
    fn is_snapshot_due(&mut self) -> bool {
        let after = self.config.snapshot_after.max(self.snapshots.size);
        let is_leader = self.engine.is_leader();
        if self.snapshots.logged < after && !(is_leader && self.must_compare_again()) {
            return false;
        }
        if self.members.nodes.len() < 2 {
            return true;
        }
        if is_leader {
            self.checks.name(self.engine.last_index() + 1, self.applied.index);
            return false;
        }
        self.snapshots.logged >= after.saturating_add(after / PATIENCE)
    }

    /// To be called after each applied entry: begins a snapshot if the leader has named this entry.
    pub(super) fn begin_named_snapshot(&mut self) {
        let is_reached = self.checks.is_reached(self.applied.index);
        if is_reached && self.snapshots.under_way.is_none() && self.may_begin_snapshot() {
            let helps = self.would_help();
            self.begin_snapshot(true, helps);
        }
    }

    /// Whether the table has no partly applied entry: a restart from its snapshot would apply that entry's
    /// commands twice.
    fn may_begin_snapshot(&self) -> bool {
        self.turn.begun().is_none()
    }

    fn begin_snapshot(&mut self, is_named: bool, helps: bool) {
        if self.table.begin_snapshot().is_err() {
            return;
        }
        if helps {
            // The entries after this snapshot must be kept from now on, or they would be gone when the
            // follower has received it.
            self.engine.snapshot_begun(self.applied.index);
        }
        let head = self.snapshot_head();
        self.snapshots.under_way = Some(RunningSnapshot {
            head: head.clone(),
            logged_before: self.snapshots.logged,
            pieces: 0,
            bytes: 0,
            is_busy: true,
            stage: SnapshotStage::Pieces,
            wanted_by: std::mem::take(&mut self.snapshots.wanted_by),
            last_token: self.table.last_token(),
            is_named,
        });
        self.outputs.push(Output::Snapshot(SnapshotStep::Begin(head)));
    }

    /// Requests a snapshot for the backup call `ask`, after a quorum read for this call. A snapshot in
    /// progress may be older than answers that the caller has received, so another one is begun after it.
    pub(super) fn want_snapshot(&mut self, ask: AskId) {
        self.snapshots.wanted_by.push(ask);
    }

    pub(super) fn snapshot_step_done(&mut self) {
        let Some(mut it) = self.snapshots.under_way.take() else { return };
        match it.stage {
            SnapshotStage::GivenUp => {}
            SnapshotStage::Pieces | SnapshotStage::Tail { .. } => {
                it.is_busy = false;
                self.snapshots.under_way = Some(it);
            }
            SnapshotStage::Finishing => {
                let stored = Answer::BackupStored { index: it.head.index, last_token: it.last_token };
                for ask in it.wanted_by {
                    self.outputs.push(Output::Answer(ask, stored.clone()));
                }
                self.snapshots.logged -= it.logged_before;
                self.snapshots.size = it.bytes;
                self.outputs.push(Output::Compact(it.head.index));
                self.snapshot_stored(it.head);
            }
        }
    }

    /// Reports a stored snapshot to the engine: it can be sent to followers. Clears the engine's request,
    /// since the followers that caused it can be sent this snapshot. If it does not suit a follower, the
    /// engine requests another one.
    pub(super) fn snapshot_stored(&mut self, head: store::SnapshotHead) {
        let at = Position { index: head.index, term: head.term };
        let configuration = head.members.as_ref().and_then(|members| members.configuration.clone());
        self.engine.snapshot_stored(at, configuration.unwrap_or_default());
        self.engine.take_snapshot_wish();
        self.snapshots.stored = Some(head);
    }

    /// Sends the stored snapshot to these followers.
    pub(super) fn send_snapshots(&mut self, to: Vec<u64>) {
        for to in to {
            let offer = SnapshotOffer {
                to,
                from: self.config.node,
                term: self.engine.term(),
                head: self.snapshots.stored.clone(),
                bytes: self.snapshots.size,
            };
            self.outputs.push(Output::SendSnapshot(Box::new(offer)));
        }
    }

    /// Abandons the snapshot in progress. The next one is taken once the log has grown as much again, or for
    /// a follower or a backup that needs one.
    pub(super) fn snapshot_failed(&mut self) {
        self.table.abandon_snapshot();
        let failed = self.snapshots.under_way.take();
        for ask in failed.into_iter().flat_map(|it| it.wanted_by) {
            let refused = v1::Refused {
                code: v1::RefusedCode::Operator.into(),
                text: "the node could not store a snapshot of its table, from which a backup is made: its log says why; \
                       see to that, then try again"
                    .to_owned(),
                secret_prefix: 0,
            };
            self.outputs.push(Output::Answer(ask, Answer::Refused(refused)));
        }
        self.snapshots.logged = 0;
    }
}
