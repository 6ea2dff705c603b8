//! The network: frames over streams. Each direction of a stream keeps its order, as TCP does; streams among each other
//! don't. A stream may break for one side and not, or later, for the other; what was sent may be held back for long; and
//! all that was sent on one may arrive once more on another.

use std::collections::BTreeMap;

use lockkeeper_replica::StreamId;
use lockkeeper_wire::v1;

use crate::clock::{MS, Nanos, SECOND};
use crate::core::{Core, Happening, Id};
use crate::scenario::Fault;

/// From a client to a node.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    Open,
    Frame(Vec<v1::ClientItem>),
    /// The client is seen to close: by itself, or by whatever is between.
    Closed,
}

/// From a node to a client.
#[derive(Clone, Debug)]
pub(crate) enum Down {
    Items(Vec<v1::ServerItem>),
    End(v1::StreamEnd),
    Closed,
}

/// One stream between a client and a node.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) client: usize,
    pub(crate) life: u64,
    pub(crate) node: Id,
    /// Nobody listens to it: it repeats what was sent on another.
    pub(crate) is_ghost: bool,
    /// The run of the node that accepted it.
    pub(crate) run: Option<u64>,
    up_at: Nanos,
    down_at: Nanos,
    /// Nothing passes any more.
    is_cut: bool,
    /// The client has closed it, or seen it close.
    pub(crate) is_over: bool,
    /// What was sent, for a ghost to repeat.
    sent: Vec<Up>,
}

pub(crate) struct Net {
    pub(crate) lines: BTreeMap<StreamId, Line>,
    next: u64,
    /// Until when what a client and its node send each other is held back.
    held: Vec<Nanos>,
}

impl Net {
    pub(crate) fn new(clients: usize) -> Self {
        // Two more places: the fresh client of the end, and the one by hand.
        Self { lines: BTreeMap::new(), next: 1, held: vec![0; clients + 2] }
    }

    pub(crate) fn hold(&mut self, client: usize, until: Nanos) {
        self.held[client] = until;
    }

    /// Nothing passes on a stream any more.
    pub(crate) fn cut_line(&mut self, stream: StreamId) {
        if let Some(line) = self.lines.get_mut(&stream) {
            line.is_cut = true;
        }
    }

    pub(crate) fn heal(&mut self) {
        self.held.fill(0);
    }

    /// The streams that are open for somebody.
    pub(crate) fn open_lines(&self) -> Vec<StreamId> {
        let open = self.lines.iter().filter(|(_, line)| !line.is_over && !line.is_ghost);
        open.map(|(&id, _)| id).collect()
    }
}

/// Frames that a ghost repeats at most.
const GHOST_FRAMES: usize = 6;

impl Core {
    fn latency(&mut self) -> Nanos {
        let (low, high) = self.scenario.latency;
        self.dice.spread(low, high)
    }

    pub(crate) fn open_line(&mut self, client: usize, life: u64, node: Id, is_ghost: bool) -> StreamId {
        let stream = StreamId(self.net.next);
        self.net.next += 1;
        let line = Line {
            client,
            life,
            node,
            is_ghost,
            run: None,
            up_at: 0,
            down_at: 0,
            is_cut: false,
            is_over: false,
            sent: Vec::new(),
        };
        self.net.lines.insert(stream, line);
        self.send_up(stream, Up::Open);
        stream
    }

    pub(crate) fn send_up(&mut self, stream: StreamId, packet: Up) {
        let latency = self.latency();
        let ghosts = self.has(Fault::Ghost);
        let Some(line) = self.net.lines.get_mut(&stream) else { return };
        if ghosts && !line.is_ghost && line.sent.len() < GHOST_FRAMES {
            line.sent.push(packet.clone());
        }
        let at = (self.now + latency).max(line.up_at + 1).max(self.net.held[line.client]);
        line.up_at = at;
        self.at(at, Happening::ToNode(stream, packet));
    }

    pub(crate) fn send_down(&mut self, stream: StreamId, packet: Down) {
        let latency = self.latency();
        let Some(line) = self.net.lines.get_mut(&stream) else { return };
        let at = (self.now + latency).max(line.down_at + 1).max(self.net.held[line.client]);
        line.down_at = at;
        self.at(at, Happening::ToClient(stream, packet));
    }

    /// The client closes a stream.
    pub(crate) fn hang_up(&mut self, stream: StreamId) {
        if let Some(line) = self.net.lines.get_mut(&stream)
            && !std::mem::replace(&mut line.is_over, true)
        {
            self.send_up(stream, Up::Closed);
        }
    }

    /// Whether a packet gets through now.
    pub(crate) fn passes(&self, stream: StreamId) -> bool {
        self.net.lines.get(&stream).is_some_and(|line| !line.is_cut)
    }

    /// Something between the two breaks a stream; each side sees it at its own time, or never.
    pub(crate) fn break_line(&mut self, stream: StreamId) {
        let Some(line) = self.net.lines.get_mut(&stream) else { return };
        line.is_cut = true;
        if self.dice.chance(70) {
            let at = self.dice.spread(MS, SECOND);
            self.after(at, Happening::ToNode(stream, Up::Closed));
        }
        if self.dice.chance(70) {
            let at = self.dice.spread(MS, SECOND);
            self.after(at, Happening::ToClient(stream, Down::Closed));
        }
    }

    /// All that was sent on a stream arrives once more, on a stream of its own.
    pub(crate) fn haunt(&mut self, stream: StreamId) {
        let Some(line) = self.net.lines.get(&stream) else { return };
        let (client, life, node, sent) = (line.client, line.life, line.node, line.sent.clone());
        let ghost = self.open_line(client, life, node, true);
        let mut pause = 0;
        for packet in sent.into_iter().filter(|packet| !matches!(packet, Up::Open)) {
            pause += self.dice.spread(MS, 2 * SECOND);
            self.after(pause, Happening::ToNode(ghost, packet));
        }
    }

    /// A node is gone: the streams that it had are too. A client hears so at once where only the process died.
    pub(crate) fn node_gone(&mut self, node: Id, run: u64, says_so: bool) {
        let of_it = |line: &Line| line.node == node && line.run == Some(run) && !line.is_over;
        let lines = self.net.lines.iter().filter(|(_, line)| of_it(line));
        let lines: Vec<StreamId> = lines.map(|(&id, _)| id).collect();
        for stream in lines {
            if says_so {
                self.send_down(stream, Down::Closed);
            }
        }
    }
}
