//! A leader's snapshot takes the place of this node's table.
//!
//! Responsible for: nothing of it counts before the consensus has said that it is news (what has arrived by appends
//! meanwhile may be newer, and a table must not go back: P2), nor before file, log and hard state say so on the disk, in
//! that order ([`Write::installs`](crate::Write::installs)).

use lockkeeper_wire::store;

use super::{Fatal, Replica};
use crate::engine::Position;
use crate::event::{Answer, Output, Received};
use crate::members::Members;
use crate::mutant::Mutant;
use crate::since::Since;

/// What of an offer is needed, if it makes sense.
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
    /// Asks the consensus whether it is news.
    pub(super) fn snapshot_received(&mut self, received: Box<Received>) {
        let (from, term) = (received.offer.from, received.offer.term);
        let index = received.offer.head.as_ref().map_or(0, |head| head.index);
        let is_news = match Offered::of(&received, self.config.node) {
            // One at a time: the engine holds one.
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

    /// It is durable: the file has its name, the log begins behind it.
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
        // The engine looks through committed entries that it takes for unapplied before it campaigns, and has not got these.
        self.engine.applied(at.index);
        self.since = Since::default();
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
