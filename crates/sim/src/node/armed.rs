//! Mishaps that strike at a certain moment of what a node does: chance alone would hardly ever hit it.

use lockkeeper_wire::peer::PeerFrame;
use lockkeeper_wire::store::Record;

use super::Node;
use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening};

/// What the node is waiting to be struck by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arm {
    /// The power goes while it writes for whom it votes, and the one that it votes for can't reach it for a while.
    LostVote,
    /// It stops right after it has sent what signs of life ride on, and hears nothing but the answers.
    RoundInFlight,
    /// Entries that it sends are lost when they are sent first, again and again.
    EntriesLost,
    /// The connections on which it has proposed the end of a session break, and a sign of life comes right then.
    SlowEnd,
}

impl Node {
    pub(crate) fn arm(&mut self, arm: Arm) {
        if let Some(process) = &mut self.process {
            process.arm = Some(arm);
        }
    }

    fn strikes(&mut self, core: &mut Core, arm: Arm) -> bool {
        let Some(process) = &mut self.process else { return false };
        let is_it = process.arm == Some(arm);
        if is_it {
            process.arm = None;
            core.note(format_args!("node {} is struck: {arm:?}", self.id));
        }
        is_it
    }

    /// It is about to write this; `ends` says whether it proposes the end of a session with it.
    pub(super) fn before_write(&mut self, core: &mut Core, record: &Record, ends: bool) {
        let vote = record.hard_state.as_ref().map_or(0, |state| state.vote);
        if vote != 0 && vote != self.id && self.strikes(core, Arm::LostVote) {
            core.cut(vote, self.id, core.now + 2_000 * MS);
            if let Some(process) = &mut self.process {
                process.dies_in_write = true;
            }
        }
        if ends && self.strikes(core, Arm::SlowEnd) {
            if let Some(process) = &mut self.process {
                process.loses_sent = true;
            }
            for _ in 0..3 {
                let pause = core.dice.within(MS, 60 * MS);
                core.after(pause, Happening::HandLives);
            }
        }
    }

    /// It sends this.
    pub(super) fn sends(&mut self, core: &mut Core, frame: &PeerFrame) {
        if self.process.as_mut().is_some_and(|process| std::mem::take(&mut process.loses_sent)) {
            core.lose_sent(self.id);
        }
        if let Some(process) = self.process.as_mut().filter(|it| it.arm == Some(Arm::EntriesLost)) {
            let entries = frame.messages.iter().flat_map(|it| &it.entries);
            let last = entries.map(|entry| entry.index).max().unwrap_or(0);
            if last > process.lost_entry {
                process.lost_entry = last;
                core.lose_sent(self.id);
            }
        }
        // Whoever gives a sign of life rides on the entries of that turn. Not a heartbeat: whoever has slept asks anew.
        let has_sign = self.process.as_ref().is_some_and(|process| process.has_sign);
        let asks = has_sign && frame.messages.iter().any(|it| !it.entries.is_empty());
        if asks && self.strikes(core, Arm::RoundInFlight) {
            let until: Nanos = core.now + core.dice.within(380 * MS, 800 * MS);
            if core.dice.chance(30) {
                self.stop_until(core.now, until);
            } else {
                self.stop_loop_until(core.now, until);
            }
            for other in core.others(self.id) {
                let cut = Happening::Cut { from: other, to: self.id, until: until + 500 * MS };
                core.after(50 * MS, cut);
            }
        }
    }
}
