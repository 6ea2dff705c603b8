//! Streams and calls that come while no living leader is known: they wait for one, since an election takes less time
//! than a client's way round all nodes does.
//!
//! Bounded in number, bytes and time: a node that is cut off from the majority must not keep its clients from it. Who
//! has waited in vain is told to go elsewhere, and no leader is named: the one that was is most likely dead.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::StreamEndReason;

use super::propose::size;
use super::{Lead, Replica};
use crate::event::{Answer, AskId, Event, Output, Question, StreamId};
use crate::mutant::Mutant;

/// How long one waits, in ticks: some elections. A second, unless the network is slow.
const PATIENCE_TICKS: u32 = 50;
/// How many may wait, and how many bytes they may have said meanwhile.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: usize = 8 << 20;
/// What anything takes beside its text.
const FIXED: usize = 64;

/// Someone who waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    Stream(StreamId),
    Ask(AskId),
}

#[derive(Default)]
pub(super) struct Parked {
    /// In the order in which all of it came, with the time. What was said by those who wait no more is dropped when it
    /// comes to the front.
    events: VecDeque<(Duration, Event)>,
    bytes: usize,
    waiting: BTreeSet<Who>,
}

impl Parked {
    /// Takes a word of one who comes or who waits. `Some`: there is no room; this one is to go elsewhere.
    fn push(&mut self, now: Duration, event: Event) -> Option<Who> {
        let (who, comes) = match &event {
            Event::StreamOpened(stream) => (Who::Stream(*stream), true),
            Event::Frame(stream, _) => (Who::Stream(*stream), false),
            Event::Asked(ask, _) => (Who::Ask(*ask), true),
            _ => return None,
        };
        if !comes && !self.waiting.contains(&who) {
            // It was told already.
            return None;
        }
        if self.bytes + bytes(&event) > BYTES_MAX || (comes && self.waiting.len() >= WAITING_MAX) {
            self.waiting.remove(&who);
            return Some(who);
        }
        self.bytes += bytes(&event);
        self.waiting.insert(who);
        self.events.push_back((now, event));
        None
    }

    fn leaves(&mut self, who: Who) {
        self.waiting.remove(&who);
    }

    /// Those who came too long ago.
    fn take_late(&mut self, now: Duration, patience: Duration) -> Vec<Who> {
        let mut late = Vec::new();
        while let Some((since, event)) = self.events.front() {
            let who = who(event).filter(|who| self.waiting.contains(who));
            if who.is_some() && now < *since + patience {
                break;
            }
            // The first word of one who waits is its coming.
            late.extend(who.filter(|who| self.waiting.remove(who)));
            if let Some((_, event)) = self.events.pop_front() {
                self.bytes -= bytes(&event);
            }
        }
        late
    }

    /// All that was said by those who still wait, in its order; nobody waits then.
    fn take(&mut self) -> Vec<Event> {
        let Self { events, waiting, .. } = std::mem::take(self);
        let waits = |event: &Event| who(event).is_some_and(|who| waiting.contains(&who));
        events.into_iter().map(|(_, event)| event).filter(waits).collect()
    }

    /// Nobody waits any more: who did?
    fn take_waiting(&mut self) -> BTreeSet<Who> {
        std::mem::take(self).waiting
    }
}

fn who(event: &Event) -> Option<Who> {
    match event {
        Event::StreamOpened(stream) | Event::Frame(stream, _) => Some(Who::Stream(*stream)),
        Event::Asked(ask, _) => Some(Who::Ask(*ask)),
        _ => None,
    }
}

fn bytes(event: &Event) -> usize {
    let of = |request: &Request| match request {
        Request::Command { command, .. } => size(command),
        Request::Open(open) => FIXED + open.label.len(),
        _ => FIXED,
    };
    match event {
        Event::Frame(_, requests) => FIXED + requests.iter().map(of).sum::<usize>(),
        _ => FIXED,
    }
}

impl Replica {
    /// The other node that leads and that was heard of lately: within the least time-out of elections, and over
    /// connections that have not broken since. `None` also while this node leads itself.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let leader = self.engine.leader();
        let lives = self.engine.hears_leader() && !self.unreachable.contains(&leader);
        (lives && leader != self.config.node).then_some(leader)
    }

    /// A peer can be reached, and says where it serves clients.
    pub(super) fn peer_up(&mut self, node: u64, client_address: String) {
        self.unreachable.remove(&node);
        if self.clients.get(&node) != Some(&client_address) {
            self.clients.insert(node, client_address);
            self.addresses_seen += 1;
            self.tell_members();
        }
    }

    /// A killed process is noticed by this some hundred milliseconds before its silence tells.
    pub(super) fn peer_down(&mut self, node: u64) {
        self.unreachable.insert(node);
        self.engine.lost(node);
    }

    /// What a client says to a node that does not lead.
    pub(super) fn without_lead(&mut self, event: Event) {
        match event {
            Event::StreamClosed { stream, by_client } => {
                // What it had said was never handled: no session has been here, and none is let go of.
                self.parked.leaves(Who::Stream(stream));
                self.stream_closed(stream, by_client);
            }
            Event::Dropped(ask) => {
                self.parked.leaves(Who::Ask(ask));
                self.dropped(ask);
            }
            Event::Asked(ask, question @ Question::CheckToken { .. })
                if self.is(Mutant::FollowerAnswersCheckToken) =>
            {
                self.answer(ask, question);
            }
            event if self.follows().is_none() => {
                if let Some(who) = self.parked.push(self.now, event) {
                    self.send_away(who);
                }
            }
            Event::StreamOpened(stream) => self.send_away(Who::Stream(stream)),
            Event::Asked(ask, _) => self.send_away(Who::Ask(ask)),
            // Its stream is told, or is about to be.
            _ => {}
        }
    }

    /// Those who wait go on as soon as anybody is known to lead, and elsewhere when they have waited long enough.
    pub(super) fn settle_parked(&mut self) {
        if self.parked.events.is_empty() {
            return;
        }
        if self.lead != Lead::No {
            self.parked.take().into_iter().for_each(|event| self.handle(event));
        } else if self.follows().is_some() {
            self.end_parked();
        } else {
            let late = self.parked.take_late(self.now, self.config.tick * PATIENCE_TICKS);
            late.into_iter().for_each(|who| self.send_away(who));
        }
    }

    /// Nobody waits here any more.
    pub(super) fn end_parked(&mut self) {
        self.parked.take_waiting().into_iter().for_each(|who| self.send_away(who));
    }

    fn send_away(&mut self, who: Who) {
        let leader = self.follows();
        self.outputs.push(match who {
            Who::Stream(stream) => {
                let text = if leader.is_some() {
                    "this node does not lead"
                } else {
                    "this node does not lead, and knows of none that does"
                };
                Output::EndStream(stream, self.stream_end(StreamEndReason::NotLeader, text))
            }
            Who::Ask(ask) => Output::Answer(ask, Answer::NotLeader { leader: leader.unwrap_or(0) }),
        });
    }
}

#[cfg(test)]
mod tests;
