//! What enters the log, in which pieces, and when.
//!
//! A leader's disk is often done a moment before the first follower has answered. To begin the next batch right then would keep
//! this thread busy with its own disk while the answer arrives, for as long as a sync takes. So the next batch waits for the
//! commit of the one before, for up to [`HOLD`]: what arrives meanwhile goes along in one entry, and everybody syncs less
//! often. Where that was in vain, since followers are farther away, batches follow each other without waiting, but for a try
//! once in a while.

use std::time::Duration;

use lockkeeper_core::Command;
use lockkeeper_wire::entry;

use super::{Origin, Proposal, Replica};
use crate::engine::Position;
use crate::mutant::Mutant;

/// Most commands in one log entry, and most bytes of one.
const BATCH_COMMANDS_MAX: usize = 4096;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most entries proposed in one turn: a turn must end for keep-alives to be seen.
const BATCHES_MAX: usize = 4;
/// So long a batch waits at most for the one before it, from when that one is on this node's own disk.
const HOLD: Duration = Duration::from_millis(1);
/// After a wait in vain there is none for so long.
const AGAIN: Duration = Duration::from_millis(100);

/// Proposed commands, until their entry is committed or replaced.
pub(super) struct Batch {
    pub(super) at: Position,
    /// When it was proposed, and then when it was on this node's own disk.
    since: Duration,
    is_on_disk: bool,
    pub(super) proposals: Vec<Proposal>,
}

impl Replica {
    /// Until when nothing is proposed, unless what is under way is committed before. Nothing but a peer's answer can change that:
    /// a caller that waits need not look at its clients.
    #[must_use]
    pub fn held_until(&self) -> Option<Duration> {
        let last = self.in_flight.back().filter(|_| self.lead.is_ready() && self.now >= self.unheld_until)?;
        Some(last.since + HOLD).filter(|until| *until > self.now)
    }

    /// All that was proposed is on this node's disk.
    pub(super) fn batch_on_disk(&mut self) {
        if let Some(last) = self.in_flight.back_mut().filter(|last| !last.is_on_disk) {
            last.is_on_disk = true;
            last.since = self.now;
        }
    }

    /// Everything that waits goes into few log entries.
    pub(super) fn propose(&mut self) {
        self.is_refused = false;
        if self.held_until().is_some() || self.turn.has_more() {
            return;
        }
        self.resume();
        if !self.queue.is_empty() && !self.in_flight.is_empty() && self.now >= self.unheld_until {
            self.unheld_until = self.now + AGAIN;
        }
        for _ in 0..BATCHES_MAX {
            if self.queue.is_empty() {
                break;
            }
            let count = self.queue.len().min(BATCH_COMMANDS_MAX);
            let mut bytes = 0;
            let fits = |proposal: &&Proposal| {
                bytes += size(&proposal.command);
                bytes <= BATCH_BYTES_MAX
            };
            let count = self.queue.iter().take(count).take_while(fits).count().max(1);
            let data = entry::encode_batch(self.queue.iter().take(count).map(|proposal| &proposal.command));
            // Refused (a transfer is pending, the size limit is met): the whole batch stays at the head, since a gap
            // in a session's numbers is dead (R5).
            let Some(at) = self.engine.propose(data) else {
                if self.is(Mutant::DroppedBatchSkipped) {
                    self.queue.drain(..count);
                } else if self.is(Mutant::DroppedBatchLast) {
                    self.queue.rotate_left(count);
                }
                self.is_refused = true;
                self.take_back_ends();
                return;
            };
            self.rounds.ride(at);
            let proposals = self.queue.drain(..count).collect();
            self.in_flight.push_back(Batch { at, since: self.now, is_on_disk: false, proposals });
        }
        if !self.queue.is_empty() {
            self.take_back_ends();
        }
    }

    /// Proposes that the table continue with work that commands have left (M2), one piece at a time and before all that
    /// waits.
    fn resume(&mut self) {
        if self.table.has_backlog() && !self.is_resuming && !self.is(Mutant::ResumeForgotten) {
            self.is_resuming = true;
            self.queue.push_front(Proposal { command: Command::Resume, origin: Origin::Leader });
        }
    }
}

/// About how many bytes a command takes in the log.
pub(super) fn size(command: &Command) -> usize {
    const FIXED: usize = 64;
    match command {
        Command::Acquire(it) => {
            let names: usize = it.names.iter().map(|name| name.as_str().len() + 4).sum();
            FIXED + names + it.value.len() + it.meta.len()
        }
        Command::SetValue { value, .. } => FIXED + value.len(),
        Command::OpenSession(open) => FIXED + open.label.len(),
        Command::Break(order) => FIXED + order.name.as_str().len() + order.reason.len() + order.by.len(),
        Command::SetLimit { name, .. } => FIXED + name.as_str().len(),
        _ => FIXED,
    }
}
