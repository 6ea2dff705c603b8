//! Leadership transfer: at an operator's request, before this node stops or is removed, or when its disk is
//! full.
//!
//! Responsible for: streams end only once the next leader is known, so that clients connect to it directly.
//! If they ended earlier, all clients would reconnect to nodes that still name this one as the leader, and
//! back off in between.

use std::time::Duration;

use lockkeeper_wire::v1::StreamEndReason;

use super::{Lead, Replica};
use crate::engine::ELECTION_TICKS;
use crate::event::{Answer, AskId, Output};

#[derive(Default)]
pub(super) struct Handover {
    /// The target, while this node still leads.
    to: Option<u64>,
    /// Set once this node has lost the leadership: until this time, streams and calls wait for the next
    /// leader to be known.
    until: Option<Duration>,
    asks: Vec<Asker>,
    stopping: Stopping,
}

/// A call that waits for the next leader.
enum Asker {
    /// An operator's transfer.
    Transfer(AskId),
    /// A call that only the next leader can carry out.
    Other(AskId),
}

/// Progress of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Stopping {
    #[default]
    No,
    /// Leadership is being transferred first.
    HandsOver,
    /// All streams were ended.
    Done,
}

impl Replica {
    /// Whether this stopping node has ended its streams. If it led and another voter responded, it tried to
    /// transfer the leadership first.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.handover.stopping == Stopping::Done
    }

    /// The voter that is to take over: one that responds; rather one whose disk has room, then the most
    /// up-to-date one. Shortly after the election, voters that have not responded yet count too.
    fn successor(&self) -> Option<u64> {
        let (voters, newly) = (&self.members.configuration.voters, self.leads_newly());
        let progress = self.engine.progress().into_iter().filter(|it| it.is_active || newly);
        let fit = progress.filter(|it| !it.waits_for_snapshot && voters.contains(&it.node));
        fit.max_by_key(|it| (!self.disk_room.is_full_at(it.node), it.matched)).map(|it| it.node)
    }

    /// As [`Self::successor`], for a leader that could stay: only a voter whose disk has room.
    pub(super) fn successor_with_room(&self) -> Option<u64> {
        self.successor().filter(|node| !self.disk_room.is_full_at(*node))
    }

    pub(super) fn is_handing_over(&self) -> bool {
        self.handover.to.is_some()
    }

    pub(super) fn begin_handover(&mut self, to: u64) {
        self.handover.to = Some(to);
        self.engine.transfer(to);
    }

    pub(super) fn transfer_asked(&mut self, ask: AskId, to: Option<u64>) {
        let me = self.config.node;
        if to == Some(me) {
            return self.outputs.push(Output::Answer(ask, Answer::Transferred { leader: me }));
        }
        let newly = self.leads_newly();
        let answers =
            |node| self.engine.progress().iter().any(|it| it.node == node && (it.is_active || newly));
        let target = match to {
            None => self.successor_with_room().ok_or_else(|| {
                "no other voter answers and has room on its disk: bring one back, or free space, first"
                    .to_owned()
            }),
            Some(to) if !self.members.configuration.voters.contains(&to) => {
                Err(format!("node {to} is no voter; `lockkeeper cluster status` lists them"))
            }
            Some(to) if !answers(to) => Err(format!("node {to} does not answer; bring it back first")),
            Some(to) if self.disk_room.is_full_at(to) => Err(format!(
                "the disk of node {to} is full, so it can't lead for long: free space there first"
            )),
            Some(to) => Ok(to),
        };
        match target {
            // If the target is down after all, the transfer times out, and this node goes on leading.
            Ok(to) => {
                self.handover.asks.push(Asker::Transfer(ask));
                self.begin_handover(to);
            }
            Err(why) => self.refuse_ask(ask, why),
        }
    }

    /// Handles an operator's request to remove this node: transfers the leadership, then redirects the call
    /// to the next leader.
    pub(super) fn hand_over_first(&mut self, ask: AskId) {
        match self.successor() {
            Some(to) => {
                self.handover.asks.push(Asker::Other(ask));
                self.begin_handover(to);
            }
            None => {
                self.refuse_ask(ask, "this node leads, and no other voter answers, to take over".to_owned());
            }
        }
    }

    /// Transfers the leadership of a node that leads although it is being removed; the next leader completes
    /// the removal. The transfer may begin before this leader is ready: see [`Replica::waits_to_be_removed`].
    pub(super) fn hand_over_if_leaving(&mut self) {
        if self.engine.is_leader()
            && self.members.is_leaving(self.config.node)
            && self.handover.to.is_none()
            && let Some(to) = self.successor()
        {
            self.begin_handover(to);
        }
    }

    /// Begins the shutdown.
    pub(super) fn shut_down(&mut self) {
        match self.successor().filter(|_| self.lead.is_ready()) {
            Some(to) => {
                self.handover.stopping = Stopping::HandsOver;
                self.begin_handover(to);
            }
            None => self.leave(),
        }
    }

    fn leave(&mut self) {
        self.handover.stopping = Stopping::Done;
        self.end_streams(StreamEndReason::Shutdown, "this node shuts down");
    }

    /// Handles the loss of leadership. After a transfer, streams end as soon as the new leader is known, or
    /// after a time limit; otherwise at once.
    pub(super) fn leave_streams(&mut self) {
        if self.handover.to.take().is_some() {
            self.handover.until = Some(self.now + self.config.tick * 2 * ELECTION_TICKS as u32);
        } else {
            self.end_streams(StreamEndReason::NotLeader, "this node does not lead any more");
        }
    }

    /// Completes a transfer. If the engine has abandoned it, this node goes on leading. If this node has lost
    /// the leadership, its streams end and the waiting calls are answered once the next leader is known or
    /// `until` has passed.
    pub(super) fn tend_handover(&mut self) {
        if self.handover.to.is_some() && !self.engine.is_transferring() && self.engine.is_leader() {
            self.handover_failed();
        }
        let Some(until) = self.handover.until else { return };
        let leader = match self.lead {
            Lead::No => self.follows().unwrap_or(0),
            Lead::Coming(_) | Lead::Ready(_) => self.config.node,
        };
        if leader != 0 || self.now >= until {
            self.handover.until = None;
            self.end_streams(StreamEndReason::NotLeader, "this node has handed the leadership over");
            for asker in std::mem::take(&mut self.handover.asks) {
                let (ask, answer) = match asker {
                    Asker::Transfer(ask) if leader != 0 => (ask, Answer::Transferred { leader }),
                    Asker::Transfer(ask) | Asker::Other(ask) => (ask, Answer::NotLeader { leader }),
                };
                self.outputs.push(Output::Answer(ask, answer));
            }
            if self.handover.stopping == Stopping::HandsOver {
                self.leave();
            }
        }
    }

    /// Handles a transfer that the engine abandoned: this node still leads.
    fn handover_failed(&mut self) {
        let Some(to) = self.handover.to.take() else { return };
        let me = self.config.node;
        for asker in std::mem::take(&mut self.handover.asks) {
            let (Asker::Transfer(ask) | Asker::Other(ask)) = asker;
            let text = format!("node {to} did not take over in time, node {me} still leads; try again");
            self.refuse_ask(ask, text);
        }
        if self.handover.stopping == Stopping::HandsOver {
            self.leave();
        }
    }
}
