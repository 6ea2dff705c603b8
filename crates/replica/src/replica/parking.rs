//! Streams and calls that arrive while no live leader is known wait for one, since an election is faster than
//! a client's search through all nodes.
//!
//! The waiting clients are limited in number, bytes and time: a node that is partitioned from the majority
//! must not keep its clients from the majority. After the time limit a client is redirected without a
//! leader's address, since the last leader is most likely dead.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::StreamEndReason;

use super::propose::size;
use super::{Lead, Replica};
use crate::event::{Answer, AskId, CallId, CallRequest, Event, Output, Question, SessionCall, StreamId};
use crate::mutant::Mutant;

/// Maximum wait in ticks, enough for several elections: one second by default.
const PATIENCE_TICKS: u32 = 50;
/// Limits on the streams and calls that wait, and on the bytes of their requests.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: usize = 8 << 20;
/// Bytes that count for an event in addition to its variable-length fields.
const FIXED: usize = 64;

/// A stream or call that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    Stream(StreamId),
    Call(CallId),
    Ask(AskId),
}

#[derive(Default)]
pub(super) struct Parked {
    /// Events in order of arrival, with the time of arrival. Events of clients that do not wait any more are
    /// dropped when they reach the front.
    events: VecDeque<(Duration, Event)>,
    bytes: usize,
    waiting: BTreeSet<Who>,
}

impl Parked {
    /// Adds an event of a new or waiting client. Returns the client if there is no room: the caller must
    /// redirect it.
    fn push(&mut self, now: Duration, event: Event) -> Option<Who> {
        let (who, comes) = match &event {
            Event::StreamOpened { stream, .. } => (Who::Stream(*stream), true),
            Event::Frame(stream, _) => (Who::Stream(*stream), false),
            Event::Called(call, _) => (Who::Call(*call), true),
            Event::Asked(ask, _) => (Who::Ask(*ask), true),
            _ => return None,
        };
        if !comes && !self.waiting.contains(&who) {
            // The stream was redirected already.
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

    /// Removes and returns the clients that have waited too long.
    fn take_late(&mut self, now: Duration, patience: Duration) -> Vec<Who> {
        let mut late = Vec::new();
        while let Some((since, event)) = self.events.front() {
            let who = who(event).filter(|who| self.waiting.contains(who));
            if who.is_some() && now < *since + patience {
                break;
            }
            // The front event of a waiting client is its first one, so the client has waited since then.
            late.extend(who.filter(|who| self.waiting.remove(who)));
            if let Some((_, event)) = self.events.pop_front() {
                self.bytes -= bytes(&event);
            }
        }
        late
    }

    /// Takes all events of waiting clients, in their order, and clears the rest.
    fn take(&mut self) -> Vec<Event> {
        let Self { events, waiting, .. } = std::mem::take(self);
        let waits = |event: &Event| who(event).is_some_and(|who| waiting.contains(&who));
        events.into_iter().map(|(_, event)| event).filter(waits).collect()
    }

    /// Clears everything and returns the clients that waited.
    fn take_waiting(&mut self) -> BTreeSet<Who> {
        std::mem::take(self).waiting
    }
}

fn who(event: &Event) -> Option<Who> {
    match event {
        Event::StreamOpened { stream, .. } | Event::Frame(stream, _) => Some(Who::Stream(*stream)),
        Event::Called(call, _) => Some(Who::Call(*call)),
        Event::Asked(ask, _) => Some(Who::Ask(*ask)),
        _ => None,
    }
}

fn request_bytes(request: &Request) -> usize {
    match request {
        Request::Command { command, .. } => size(command),
        Request::Denied { request, refused } => request_bytes(request) + refused.text.len(),
        Request::Open(open) => FIXED + open.label.len(),
        Request::Attach { .. } | Request::KeepAlive { .. } => FIXED,
    }
}

fn call_bytes(called: &SessionCall) -> usize {
    match &called.request {
        CallRequest::Open(open) => open.label.len(),
        CallRequest::KeepAlive { poll, .. } => poll.bytes(),
        CallRequest::Command { command, .. } => size(command),
    }
}

fn bytes(event: &Event) -> usize {
    match event {
        Event::StreamOpened { identity, .. } => FIXED + identity.len(),
        Event::Called(_, called) => FIXED + called.identity.len() + call_bytes(called),
        Event::Frame(_, requests) => FIXED + requests.iter().map(request_bytes).sum::<usize>(),
        _ => FIXED,
    }
}

impl Replica {
    /// The leader, if it is another node and alive: its last message arrived within the shortest election
    /// time-out, and its connections have not broken since. `None` also while this node leads.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let leader = self.engine.leader();
        let lives = self.engine.hears_leader() && !self.unreachable.contains(&leader);
        (lives && leader != self.config.node).then_some(leader)
    }

    /// Handles a new connection to a peer.
    pub(super) fn peer_up(&mut self, node: u64, client_address: String) {
        self.unreachable.remove(&node);
        if self.clients.get(&node) != Some(&client_address) {
            self.clients.insert(node, client_address);
            self.addresses_seen += 1;
            self.tell_members();
        }
    }

    /// Handles a broken connection.
    pub(super) fn peer_down(&mut self, node: u64) {
        self.unreachable.insert(node);
        self.engine.disconnected(node);
    }

    /// Handles a client event on a node that does not lead.
    pub(super) fn without_lead(&mut self, event: Event) {
        match event {
            Event::StreamClosed { stream, cause } => {
                // The stream's requests were never handled, so it carries no session.
                self.parked.leaves(Who::Stream(stream));
                self.stream_closed(stream, cause);
            }
            Event::CallDropped(call) => {
                self.parked.leaves(Who::Call(call));
                self.call_dropped(call);
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
            Event::StreamOpened { stream, .. } => self.send_away(Who::Stream(stream)),
            Event::Called(call, _) => self.send_away(Who::Call(call)),
            Event::Asked(ask, _) => self.send_away(Who::Ask(ask)),
            // The stream was redirected, or is about to be.
            _ => {}
        }
    }

    /// Handles the waiting events once this node leads; redirects the clients once another leader is known,
    /// or once they have waited too long.
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

    /// Redirects all waiting clients.
    pub(super) fn end_parked(&mut self) {
        self.parked.take_waiting().into_iter().for_each(|who| self.send_away(who));
    }

    fn send_away(&mut self, who: Who) {
        let leader = self.follows();
        let end = || {
            let text = match leader {
                Some(_) => "this node does not lead",
                None => "this node does not lead, and knows of none that does",
            };
            self.stream_end(StreamEndReason::NotLeader, text)
        };
        self.outputs.push(match who {
            Who::Stream(stream) => Output::EndStream(stream, end()),
            Who::Call(call) => Output::CallEnded(call, end()),
            Who::Ask(ask) => Output::Answer(ask, Answer::NotLeader { leader: leader.unwrap_or(0) }),
        });
    }
}

#[cfg(test)]
mod tests;
