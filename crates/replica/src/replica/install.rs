//! Replaces this node's table by a snapshot received from the leader.
//!
//! Responsible for: the snapshot takes effect only once the consensus has accepted it as newer, since appends
//! that arrived during the transmission may be newer, and a table must not go back (P2); and only after the
//! snapshot's file, the log and the hard state are durable, in that order
//! ([`Write::installs`](crate::Write::installs)).

use lockkeeper_wire::store;

use super::{Fatal, Replica};
use crate::engine::Position;
use crate::event::{Answer, Output, Received};
use crate::members::Members;
use crate::mutant::Mutant;

/// The checked fields of a snapshot offer.
struct Offered<'a> {
    at: Position,
    configuration: &'a store::Configuration,
}

impl<'a> Offered<'a> {
    fn of(received: &'a Received, me: u64) -> Option<Self> {
        let offer = &received.offer;
        let head = offer.head.as_ref()?;
        let configuration = head.members.as_ref()?.configuration.as_ref()?;
        let is_sound = offer.to == me
            && offer.from != me
            && offer.term >= head.term
            && head.index > 0
            && head.term > 0
            && !configuration.voters.is_empty();
        is_sound.then_some(Self { at: Position { index: head.index, term: head.term }, configuration })
    }
}

impl Replica {
    /// Passes a received snapshot to the consensus, which decides whether it is newer.
    pub(super) fn snapshot_received(&mut self, received: Box<Received>) {
        let (from, term) = (received.offer.from, received.offer.term);
        let index = received.offer.head.as_ref().map_or(0, |head| head.index);
        let is_news = match Offered::of(&received, self.config.node) {
            // One at a time, since the engine keeps only one snapshot.
            Some(offered) if self.received.is_none() => {
                let stepped = self.engine.step_snapshot(from, term, offered.at, offered.configuration);
                stepped.is_ok() && self.engine.will_install(offered.at)
            }
            _ => false,
        };
        if is_news {
            self.received = Some(received);
        } else {
            if self.is(Mutant::SnapshotGoesBack) {
                self.table = received.table;
            }
            self.outputs.push(Output::SnapshotUnused(index));
        }
    }

    /// Replaces the table. The snapshot's file has its final name by now, and the log begins after it.
    pub(super) fn install(&mut self, at: Position) -> Result<(), Fatal> {
        let received = self.received.take().and_then(|received| {
            let head = received.offer.head?;
            let members = Members::from(head.members.clone()?);
            (head.index == at.index).then_some((head, members, received.table, received.bytes))
        });
        let Some((head, members, table, bytes)) = received else {
            return Err(Fatal(format!(
                "a snapshot of entry {} was to be installed, and there is none: a bug",
                at.index
            )));
        };
        self.table = table;
        self.applied = at;
        // Without this call, the engine would scan the entries up to this index for membership changes before
        // its next campaign, but its log no longer has them.
        self.engine.applied(at.index);
        self.in_flight.clear();
        self.turn.forget();
        self.is_resuming = false;
        let leader = self.engine.leader();
        for ask in self.snapshots.installed(bytes) {
            self.outputs.push(Output::Answer(ask, Answer::NotLeader { leader }));
        }
        self.snapshot_stored(head);
        self.outputs.push(Output::Compact(at.index));
        self.set_members(members);
        Ok(())
    }
}
