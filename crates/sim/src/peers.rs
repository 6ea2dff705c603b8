//! The network between nodes: one link for each ordered pair of nodes, on which frames keep their order, as
//! in TCP.
//!
//! The sender opens a link, and only if both directions are open. While a direction is cut, frames wait. If
//! the cut lasts longer than a connection survives, or the link breaks, the last frames are lost, and each
//! side detects the break at a different time. This module does not read the content of frames.

use std::collections::{BTreeMap, VecDeque};

use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening, Id};

/// Id of one connection. It distinguishes the events of an earlier connection from those of a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LinkId(pub(crate) u64);

/// A connection ends when sent data stays unacknowledged for this long (`TCP_USER_TIMEOUT`).
const UNACKNOWLEDGED_MAX: Nanos = SECOND;

/// A connection from one node to another, in use or being closed.
pub(crate) struct SimPeerConnection {
    pub(crate) from: Id,
    pub(crate) to: Id,
    /// The run (start count) of each side's process.
    from_run: u64,
    pub(crate) to_run: u64,
    /// Frames that were sent and have not arrived.
    frames: VecDeque<Vec<u8>>,
    /// The arrival time of the last frame.
    at: Nanos,
    /// All frames that are sent from now on are lost, even if the sender has not detected the break.
    is_broken: bool,
}

#[derive(Default)]
pub(crate) struct Peers {
    links: BTreeMap<LinkId, SimPeerConnection>,
    /// The link in use, by (sender, receiver).
    in_use: BTreeMap<(Id, Id), LinkId>,
    /// Traffic from the first node to the second is held back until this time.
    cuts: BTreeMap<(Id, Id), Nanos>,
    last: u64,
}

impl Peers {
    pub(crate) fn link(&self, id: LinkId) -> Option<&SimPeerConnection> {
        self.links.get(&id)
    }

    pub(crate) fn is_up(&self, from: Id, to: Id) -> bool {
        self.in_use.contains_key(&(from, to))
    }

    /// The links in use.
    pub(crate) fn all(&self) -> Vec<LinkId> {
        self.in_use.values().copied().collect()
    }

    pub(crate) fn is_cut(&self, from: Id, to: Id, now: Nanos) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| *until > now)
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Ends the cuts between two nodes, in both directions.
    pub(crate) fn join(&mut self, one: Id, other: Id) {
        self.cuts.remove(&(one, other));
        self.cuts.remove(&(other, one));
    }
}

impl Core {
    pub(crate) fn peer_latency(&mut self) -> Nanos {
        let (low, high) = self.scenario.peer_latency;
        self.dice.spread(low, high)
    }

    /// Schedules a connection attempt after `pause`.
    pub(crate) fn dial(&mut self, from: Id, run: u64, to: Id, pause: Nanos) {
        self.after(pause, Happening::PeerDials { from, run, to });
    }

    /// Opens a connection, which replaces an older one. Returns false if either direction is cut.
    pub(crate) fn connect(&mut self, (from, from_run): (Id, u64), (to, to_run): (Id, u64)) -> bool {
        if !self.is_open(from, to) {
            return false;
        }
        self.peers.last += 1;
        let id = LinkId(self.peers.last);
        let at = self.now + 2 * self.peer_latency();
        let link =
            SimPeerConnection { from, to, from_run, to_run, frames: VecDeque::new(), at, is_broken: false };
        self.peers.links.insert(id, link);
        self.peers.in_use.insert((from, to), id);
        true
    }

    /// Sends a frame. Returns false if there is no link.
    pub(crate) fn send_peer(&mut self, from: Id, to: Id, frame: Vec<u8>) -> bool {
        let Some(&id) = self.peers.in_use.get(&(from, to)) else { return false };
        let latency = self.peer_latency();
        let Some(link) = self.peers.links.get_mut(&id) else { return false };
        if link.is_broken {
            return true;
        }
        link.at = (self.now + latency).max(link.at + 1);
        link.frames.push_back(frame);
        let at = link.at;
        self.at(at, Happening::PeerArrives(id));
        true
    }

    /// Takes the next frame of a link. Returns `None` if a cut holds the frame back, or if it is lost.
    pub(crate) fn next_frame(&mut self, id: LinkId) -> Option<Vec<u8>> {
        let link = self.peers.links.get_mut(&id)?;
        if let Some(until) = self.peers.cuts.get(&(link.from, link.to)).copied().filter(|it| *it > self.now) {
            link.at = link.at.max(until) + 1;
            let at = link.at;
            self.at(at, Happening::PeerArrives(id));
            return None;
        }
        link.frames.pop_front()
    }

    /// Cuts one direction for a while. A connection that would have to wait for too long breaks.
    pub(crate) fn cut(&mut self, from: Id, to: Id, until: Nanos) {
        let known = self.peers.cuts.entry((from, to)).or_default();
        *known = until.max(*known);
        if until < self.now + UNACKNOWLEDGED_MAX {
            return;
        }
        // Each connection needs both directions: one carries data, the other acknowledgements.
        for pair in [(from, to), (to, from)] {
            if let Some(&id) = self.peers.in_use.get(&pair) {
                let pause = UNACKNOWLEDGED_MAX + self.dice.spread(MS, UNACKNOWLEDGED_MAX);
                self.after(pause, Happening::PeerBreaks(id));
            }
        }
    }

    /// Breaks a link: a random number of its last frames are lost, and each side detects the break at a
    /// different time.
    pub(crate) fn break_link(&mut self, id: LinkId) {
        let Some(link) = self.peers.links.get_mut(&id).filter(|link| !link.is_broken) else { return };
        link.is_broken = true;
        let kept = self.dice.below(link.frames.len() as u64 + 1) as usize;
        link.frames.truncate(kept);
        let (from, from_run, to, to_run, last) = (link.from, link.from_run, link.to, link.to_run, link.at);
        self.close_for(from, from_run, id, self.now);
        self.close_for(to, to_run, id, last);
    }

    /// Breaks all connections on which `node` sends, and drops their frames. The node detects that soon.
    pub(crate) fn lose_sent(&mut self, node: Id) {
        let from_it = self.peers.in_use.iter().filter(|((from, _), _)| *from == node);
        let from_it: Vec<LinkId> = from_it.map(|(_, &id)| id).collect();
        for id in from_it {
            let Some(link) = self.peers.links.get_mut(&id) else { continue };
            link.is_broken = true;
            link.frames.clear();
            let (from, run) = (link.from, link.from_run);
            let pause = self.dice.within(MS / 2, 5 * MS);
            self.after(pause, Happening::PeerCloses { node: from, run, link: id });
        }
    }

    /// Closes the links between two nodes, because one of them has removed the other.
    pub(crate) fn part(&mut self, one: Id, other: Id) {
        for pair in [(one, other), (other, one)] {
            if let Some(&id) = self.peers.in_use.get(&pair) {
                self.break_link(id);
            }
        }
    }

    fn close_for(&mut self, node: Id, run: u64, link: LinkId, not_before: Nanos) {
        let pause = self.dice.spread(MS / 10, SECOND);
        self.at(not_before.max(self.now + pause), Happening::PeerCloses { node, run, link });
    }

    /// To be called when a node detects that a link is closed. Returns the peer, unless the link has been
    /// replaced.
    pub(crate) fn link_closed(&mut self, node: Id, id: LinkId) -> Option<Id> {
        let link = self.peers.links.get(&id)?;
        let (from, to) = (link.from, link.to);
        let in_use = self.peers.in_use.get(&(from, to)).copied();
        if node == from {
            return (in_use == Some(id)).then(|| {
                self.peers.in_use.remove(&(from, to));
                to
            });
        }
        in_use.is_none_or(|it| it == id).then_some(from)
    }

    /// Closes the links of a node whose process has ended. Frames that it has sent still arrive; after a
    /// power cut some of the last ones are lost. Its peers detect the end soon, or after a power cut only
    /// after the time-out.
    pub(crate) fn links_gone(&mut self, node: Id, power: bool) {
        self.peers.in_use.retain(|(from, _), _| *from != node);
        let whole =
            self.peers.links.iter().filter(|(_, it)| !it.is_broken && (it.from == node || it.to == node));
        let whole: Vec<LinkId> = whole.map(|(&id, _)| id).collect();
        let wait = if power { UNACKNOWLEDGED_MAX } else { 0 };
        for id in whole {
            let Some(link) = self.peers.links.get_mut(&id) else { continue };
            link.is_broken = true;
            let (from, from_run, to, to_run, last) =
                (link.from, link.from_run, link.to, link.to_run, link.at);
            if from == node {
                if power {
                    let kept = self.dice.below(link.frames.len() as u64 + 1) as usize;
                    link.frames.truncate(kept);
                }
                self.close_for(to, to_run, id, last.max(self.now + wait));
            } else {
                link.frames.clear();
                self.close_for(from, from_run, id, self.now + wait);
            }
        }
    }

    /// To be called when a node has started: senders whose connections led to an earlier run of it receive a
    /// close.
    pub(crate) fn node_listens(&mut self, node: Id) {
        let stale = self.peers.in_use.iter().filter(|((_, to), _)| *to == node).map(|(_, id)| *id);
        let stale: Vec<(LinkId, Id, u64)> = stale
            .filter_map(|id| self.peers.links.get(&id).map(|link| (id, link.from, link.from_run)))
            .collect();
        for (id, from, from_run) in stale {
            self.close_for(from, from_run, id, self.now);
        }
    }
}
