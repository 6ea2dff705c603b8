//! Faults that strike at a certain moment of a node's execution, which random timing would almost never hit.

use lockkeeper_wire::peer::PeerFrame;
use lockkeeper_wire::store::Record;

use super::SimNode;
use crate::clock::{MS, Nanos};
use crate::core::{Core, Happening};

/// A fault that waits until a certain moment of its node's execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arm {
    /// Power fails while the node writes its vote for another node. That other node can't reach it for a
    /// while.
    LostVote,
    /// The process, or only its event loop, is stopped right after it has sent the entries that serve as the
    /// quorum read for a keep-alive. When it continues, it receives the answers, and for a while nothing that
    /// was sent later.
    RoundInFlight,
    /// The first transmission of each new entry is lost, for as long as this fault is armed.
    EntriesLost,
    /// Right after the node has proposed the expiry of a session, the connections on which it sends the
    /// proposal break, and keep-alives of the raw protocol client arrive.
    SlowEnd,
}

impl SimNode {
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

    /// To be called before each write. `ends`: the record proposes the expiry of a session.
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

    /// To be called for each frame that the node sends to a peer.
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
        // The entries of a turn serve as the quorum read for its keep-alives. Heartbeats would not do here: a
        // leader that was stopped sends new ones afterwards.
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
