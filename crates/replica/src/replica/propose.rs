//! Batching: which commands are proposed in which entry, and when.
//!
//! A leader's own sync is often done a moment before the first follower's acknowledgement arrives. A batch
//! proposed at that moment would block this thread for another sync while the acknowledgement waits. So the
//! next batch waits for the commit of the previous one, for up to [`HOLD`]: commands that arrive during the
//! wait share one entry, and all nodes sync less often. If the wait ends without a commit, because followers
//! are farther away, batches do not wait at all during the next [`AGAIN`]; afterwards one waits again.

use std::time::Duration;

use lockkeeper_core::{Command, Seq, SessionId, limits};
use lockkeeper_wire::entry;

use super::Replica;
use super::quotas::Reservation;
use crate::engine::Position;
use crate::event::{AskId, Requester};
use crate::mutant::Mutant;

/// Limits of a log entry: commands and bytes.
const BATCH_COMMANDS_MAX: usize = 4096;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of entries proposed per call of `Replica::advance`, which bounds the turn: keep-alives are
/// read only between turns.
const BATCHES_MAX: usize = 4;
/// Maximum wait of a batch for the commit of the previous one, counted from when the previous one is durable
/// on this node.
const HOLD: Duration = Duration::from_millis(1);
/// Length of the time after a wait without a commit in which batches are proposed without waiting.
const AGAIN: Duration = Duration::from_millis(100);

/// A command to be appended to the log, and the receiver of its reply.
pub(super) struct Proposal {
    pub(super) command: Command,
    pub(super) origin: Origin,
    pub(super) reserved: Option<Reservation>,
}

impl Proposal {
    /// A command that reserves nothing.
    pub(super) fn new(command: Command, origin: Origin) -> Self {
        Self { command, origin, reserved: None }
    }
}

pub(super) enum Origin {
    /// A command of a session.
    Session { from: Requester, session: SessionId, seq: Seq },
    /// Opens a session and attaches it; for a call, `attach` has no meaning. `received` is the reading of the
    /// lease clock when the request was handled; the session's deadline is at least one ttl later.
    Open { from: Requester, attach: u64, secret_prefix: u64, received: Duration },
    /// An operator's command.
    Ask(AskId),
    /// An operator's order to end a session; with `now` also while its client is attached.
    EndOrder { ask: AskId, now: bool },
    /// A command of the leader itself.
    Leader,
}

/// Proposed commands, kept until their entry is committed or replaced, or this node stops leading.
pub(super) struct Batch {
    pub(super) at: Position,
    /// When the batch was proposed or, once `is_on_disk`, when it became durable on this node.
    since: Duration,
    is_on_disk: bool,
    /// How many of the commands are not the leader's own.
    pub(super) of_clients: usize,
    pub(super) proposals: Vec<Proposal>,
}

impl Replica {
    /// Until this time nothing is proposed unless the batches in flight are committed earlier. Only a peer's
    /// message can end this wait early, so a caller that waits need not read its clients.
    #[must_use]
    pub fn held_until(&self) -> Option<Duration> {
        let last = self.in_flight.back().filter(|_| self.lead.is_ready() && self.now >= self.unheld_until)?;
        Some(last.since + HOLD).filter(|until| *until > self.now)
    }

    /// To be called when all batches proposed so far are durable on this node.
    pub(super) fn batches_on_disk(&mut self) {
        for batch in self.in_flight.iter_mut().rev().take_while(|batch| !batch.is_on_disk) {
            batch.is_on_disk = true;
            batch.since = self.now;
        }
    }

    /// The acquires in the log entries that were proposed and are not durable on this node yet: those of the
    /// [`Write`](super::Write) that [`Replica::advance`] has just returned.
    pub fn acquires_in_write(&self) -> impl Iterator<Item = (Requester, SessionId, Seq)> + '_ {
        let batches = self.in_flight.iter().rev().take_while(|batch| !batch.is_on_disk);
        batches.flat_map(|batch| &batch.proposals).filter_map(|proposal| match proposal {
            Proposal {
                command: Command::Acquire(_), origin: Origin::Session { from, session, seq }, ..
            } => Some((*from, *session, *seq)),
            _ => None,
        })
    }

    /// Proposes queued commands in as few log entries as possible, at most [`BATCHES_MAX`]. Proposes nothing
    /// while a batch must wait, or while committed entries are left to apply.
    pub(super) fn propose(&mut self) {
        self.is_refused = false;
        if self.held_until().is_some() || self.turn.has_more() {
            return;
        }
        self.judge_end_orders();
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
            let clock = self.clock_command();
            let commands = self.queue.iter().take(count).map(|proposal| &proposal.command);
            let data = entry::encode_batch(clock.iter().chain(commands));
            // The engine refuses a batch if a transfer is in progress or the size limit is reached. Then the
            // whole batch stays at the head of the queue: if later commands of a session were proposed first,
            // the skipped seqs could not be used any more (R5).
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
            let clock = clock.map(|command| Proposal::new(command, Origin::Leader));
            let proposals: Vec<Proposal> = clock.into_iter().chain(self.queue.drain(..count)).collect();
            let of_clients = proposals.iter().filter(|it| !matches!(it.origin, Origin::Leader)).count();
            self.in_flight.push_back(Batch { at, since: self.now, is_on_disk: false, of_clients, proposals });
        }
        if !self.queue.is_empty() {
            self.take_back_ends();
        }
    }

    /// The first command of the next entry: the wall clock, if the table has another time (E3).
    fn clock_command(&self) -> Option<Command> {
        let is_known = self.table.rules() >= limits::RULES_WITH_CLOCK;
        (is_known && self.table.clock() != self.wall).then_some(Command::SetClock { now: self.wall })
    }

    /// Queues a `Resume` if commands have left a backlog (M2): one at a time, ahead of all queued commands.
    fn resume(&mut self) {
        if self.table.has_backlog() && !self.is_resuming && !self.is(Mutant::ResumeForgotten) {
            self.is_resuming = true;
            self.queue.push_front(Proposal::new(Command::Resume, Origin::Leader));
        }
    }
}

/// Approximate size of a command in the log, in bytes.
pub(super) fn size(command: &Command) -> usize {
    /// Of the fields of fixed size.
    const FIXED: usize = 64;
    /// Of a name's length and tag.
    const PER_NAME: usize = 4;
    FIXED + PER_NAME * command.names().len() + command.content_bytes()
}
