//! Snapshots in pieces, so that the log can be cut: one bounded piece of work a turn, while commands go on. And whom a
//! stored one is sent to.

use lockkeeper_core::WalkState;
use lockkeeper_wire::peer::SnapshotOffer;
use lockkeeper_wire::{store, v1};

use super::Replica;
use crate::engine::Position;
use crate::event::{Answer, AskId, Output, SnapshotStep};

/// Items written at one stretch: some 2 ms of work, less than half of what the design allows.
pub const ITEMS_PER_PIECE: usize = 4096;
/// A node that follows lets the leader name the entry after which it takes its next snapshot. It takes one by itself once its log is
/// longer than it should be by this part.
const PATIENCE: u64 = 4;

/// When a snapshot is due, and how far the present one has come.
#[derive(Default)]
pub(super) struct Snapshots {
    /// What the log took since the last one.
    logged: u64,
    /// How large the last one was: a larger table waits longer, so that writing it stays a small share of all writing.
    size: u64,
    /// The last one, where there is one.
    stored: Option<store::SnapshotHead>,
    under_way: Option<UnderWay>,
    /// Who asked for one that is begun from now on.
    wanted_by: Vec<AskId>,
}

struct UnderWay {
    head: store::SnapshotHead,
    logged_before: u64,
    pieces: u64,
    bytes: u64,
    /// Whether a step is out and not reported done.
    is_busy: bool,
    stage: Stage,
    /// Who is told when it is stored, and what of it.
    wanted_by: Vec<AskId>,
    last_token: u64,
    /// Whether the leader has named its entry, so that others have one of the same.
    is_named: bool,
}

enum Stage {
    Pieces,
    Tail {
        digest: u128,
    },
    Finishing,
    /// Its table is no more. Another one begins once the step that is out is reported: a report has no number, and must
    /// not be taken for that of a later step.
    GivenUp,
}

impl Snapshots {
    /// The last entry in the stored one; 0 without.
    pub(super) fn stored(&self) -> u64 {
        self.stored.as_ref().map_or(0, |head| head.index)
    }

    /// One that was received has taken the place of all there was. Returns who waited for the one under way.
    pub(super) fn installed(&mut self, bytes: u64) -> Vec<AskId> {
        (self.size, self.logged) = (bytes, 0);
        let Some(mut it) = self.under_way.take() else { return Vec::new() };
        let waited = std::mem::take(&mut it.wanted_by);
        if it.is_busy {
            it.stage = Stage::GivenUp;
            self.under_way = Some(it);
        }
        waited
    }

    /// An entry was applied, also one that a restart found.
    pub(super) fn logged(&mut self, bytes: usize) {
        self.logged += bytes as u64;
    }

    /// Whether the loop should go on with it at once.
    pub(super) fn is_due(&self) -> bool {
        self.under_way.as_ref().map_or(!self.wanted_by.is_empty(), |it| !it.is_busy)
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(&mut self, ask: AskId) {
        let under_way = self.under_way.as_mut().map(|it| &mut it.wanted_by);
        for asks in under_way.into_iter().chain([&mut self.wanted_by]) {
            asks.retain(|other| *other != ask);
        }
    }
}

impl Replica {
    /// One step, if it is time for one.
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
            Stage::Pieces => {
                let mut piece = Vec::new();
                match self.table.walk_piece(ITEMS_PER_PIECE, &mut piece) {
                    WalkState::Continue => {}
                    WalkState::Done { digest } => {
                        if it.is_named {
                            self.checks.taken(it.head.index, digest, self.now);
                        }
                        it.stage = Stage::Tail { digest };
                    }
                    // Nothing but this module walks, and a table is never replaced while it does.
                    WalkState::NoWalk => return self.snapshot_failed(),
                }
                it.pieces += 1;
                it.bytes += piece.len() as u64;
                SnapshotStep::Piece(piece)
            }
            Stage::Tail { digest } => {
                it.stage = Stage::Finishing;
                let digest = digest.to_le_bytes().to_vec();
                SnapshotStep::Finish(store::SnapshotTail { pieces: it.pieces, bytes: it.bytes, digest })
            }
            Stage::Finishing | Stage::GivenUp => return,
        };
        it.is_busy = true;
        self.outputs.push(Output::Snapshot(step));
    }

    /// Of a snapshot of the table as it is now.
    pub(super) fn snapshot_head(&self) -> store::SnapshotHead {
        store::SnapshotHead {
            index: self.applied.index,
            term: self.applied.term,
            rules: self.table.rules(),
            members: Some((&self.members).into()),
        }
    }

    /// Whether a follower lags too far behind for the log, and what is stored would not help it. Asked once for each.
    fn would_help(&self) -> bool {
        self.engine.take_snapshot_wish() && self.applied.index > self.snapshots.stored()
    }

    /// Whether the log is long enough. Where there are other nodes, the leader names the entry after which it and they take one,
    /// instead of beginning at once.
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

    /// After an entry was applied: whether it is the one that the leader has named.
    pub(super) fn begin_named_snapshot(&mut self) {
        let is_reached = self.checks.is_reached(self.applied.index);
        if is_reached && self.snapshots.under_way.is_none() && self.may_begin_snapshot() {
            let helps = self.would_help();
            self.begin_snapshot(true, helps);
        }
    }

    /// Whether the table is that of the last applied entry: not while a part of the next one is in it, which a restart
    /// would apply a second time.
    fn may_begin_snapshot(&self) -> bool {
        self.turn.begun().is_none()
    }

    fn begin_snapshot(&mut self, is_named: bool, helps: bool) {
        if self.table.begin_walk().is_err() {
            return;
        }
        if helps {
            // From its very beginning: what comes after it would be gone by the time it has arrived.
            self.engine.snapshot_begun(self.applied.index);
        }
        let head = self.snapshot_head();
        self.snapshots.under_way = Some(UnderWay {
            head: head.clone(),
            logged_before: self.snapshots.logged,
            pieces: 0,
            bytes: 0,
            is_busy: true,
            stage: Stage::Pieces,
            wanted_by: std::mem::take(&mut self.snapshots.wanted_by),
            last_token: self.table.last_token(),
            is_named,
        });
        self.outputs.push(Output::Snapshot(SnapshotStep::Begin(head)));
    }

    /// A backup is wanted by one whose question a quorum has confirmed: a snapshot that is under way may be older than what
    /// that one was told, so another is begun after it.
    pub(super) fn want_snapshot(&mut self, ask: AskId) {
        self.snapshots.wanted_by.push(ask);
    }

    pub(super) fn snapshot_step_done(&mut self) {
        let Some(mut it) = self.snapshots.under_way.take() else { return };
        match it.stage {
            Stage::GivenUp => {}
            Stage::Pieces | Stage::Tail { .. } => {
                it.is_busy = false;
                self.snapshots.under_way = Some(it);
            }
            Stage::Finishing => {
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

    /// It may be sent to whoever needs one, and there is no wish but by those whom it does not help.
    pub(super) fn snapshot_stored(&mut self, head: store::SnapshotHead) {
        let at = Position { index: head.index, term: head.term };
        let configuration = head.members.as_ref().and_then(|members| members.configuration.clone());
        self.engine.snapshot_stored(at, configuration.unwrap_or_default());
        self.engine.take_snapshot_wish();
        self.snapshots.stored = Some(head);
    }

    /// The engine wants followers to get the stored snapshot.
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

    /// Another is taken after as much log again, or when a follower needs one.
    pub(super) fn snapshot_failed(&mut self) {
        self.table.abandon_walk();
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
