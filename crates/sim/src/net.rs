//! The network between clients and nodes: frames on streams. Each direction of a stream keeps its order, as
//! in TCP; there is no order between streams. When a stream breaks, both sides detect it at different times,
//! or only one, or neither. Packets may be delayed for long, and the first frames of a stream may be replayed
//! on another stream.

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
    /// A call, on a stream of its own; its answers come on this stream.
    Call(Box<v1::SessionCallRequest>),
    /// The node reads the end of the stream: the client closed it, or the network did.
    Closed,
}

/// From a node to a client.
#[derive(Clone, Debug)]
pub(crate) enum Down {
    Items(Vec<v1::ServerItem>),
    Called {
        response: v1::SessionCallResponse,
        /// Another answer may follow.
        waits: bool,
    },
    End(v1::StreamEnd),
    Closed,
}

/// One stream between a client and a node.
#[derive(Clone, Debug)]
pub(crate) struct SimStream {
    pub(crate) client: usize,
    pub(crate) life: u64,
    pub(crate) node: Id,
    /// A replay of another stream: nothing that the node sends on it is delivered.
    pub(crate) is_ghost: bool,
    /// It carries one call instead of frames.
    pub(crate) is_call: bool,
    /// The run (start count) of the node process that accepted the stream.
    pub(crate) run: Option<u64>,
    up_at: Nanos,
    down_at: Nanos,
    /// All packets are dropped from now on, except the notices that the stream is closed.
    is_cut: bool,
    /// The client has closed the stream, has learned that it is closed, or has crashed.
    pub(crate) is_over: bool,
    /// The first packets sent, kept for a replay.
    sent: Vec<Up>,
}

pub(crate) struct Net {
    pub(crate) lines: BTreeMap<StreamId, SimStream>,
    next: u64,
    /// For each client, the time until which packets in both directions are held back.
    held: Vec<Nanos>,
}

impl Net {
    pub(crate) fn new(clients: usize) -> Self {
        // Two more slots: the probe client at the end of the run, and the raw protocol client.
        Self { lines: BTreeMap::new(), next: 1, held: vec![0; clients + 2] }
    }

    pub(crate) fn hold(&mut self, client: usize, until: Nanos) {
        self.held[client] = until;
    }

    /// Drops all packets of a stream from now on, except the notices that it is closed.
    pub(crate) fn cut_line(&mut self, stream: StreamId) {
        if let Some(line) = self.lines.get_mut(&stream) {
            line.is_cut = true;
        }
    }

    pub(crate) fn heal(&mut self) {
        self.held.fill(0);
    }

    /// Streams that the client considers open, without replays.
    pub(crate) fn open_lines(&self) -> Vec<StreamId> {
        let open = self.lines.iter().filter(|(_, line)| !line.is_over && !line.is_ghost);
        open.map(|(&id, _)| id).collect()
    }
}

/// The number of packets kept for a replay, including the opening packet, which is not repeated.
const GHOST_FRAMES: usize = 6;

impl Core {
    fn latency(&mut self) -> Nanos {
        let (low, high) = self.scenario.latency;
        self.dice.spread(low, high)
    }

    pub(crate) fn open_line(&mut self, client: usize, life: u64, node: Id, is_ghost: bool) -> StreamId {
        let stream = self.add_line(client, life, node, is_ghost, false);
        self.send_up(stream, Up::Open);
        stream
    }

    /// Sends a call to a node.
    pub(crate) fn call(
        &mut self,
        client: usize,
        life: u64,
        node: Id,
        call: v1::SessionCallRequest,
    ) -> StreamId {
        let stream = self.add_line(client, life, node, false, true);
        self.send_up(stream, Up::Call(Box::new(call)));
        stream
    }

    fn add_line(&mut self, client: usize, life: u64, node: Id, is_ghost: bool, is_call: bool) -> StreamId {
        let stream = StreamId(self.net.next);
        self.net.next += 1;
        let line = SimStream {
            client,
            life,
            node,
            is_ghost,
            is_call,
            run: None,
            up_at: 0,
            down_at: 0,
            is_cut: false,
            is_over: false,
            sent: Vec::new(),
        };
        self.net.lines.insert(stream, line);
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

    /// Closes a stream on the client's behalf.
    pub(crate) fn hang_up(&mut self, stream: StreamId) {
        if let Some(line) = self.net.lines.get_mut(&stream)
            && !std::mem::replace(&mut line.is_over, true)
        {
            self.send_up(stream, Up::Closed);
        }
    }

    /// Whether packets on the stream still arrive.
    pub(crate) fn passes(&self, stream: StreamId) -> bool {
        self.net.lines.get(&stream).is_some_and(|line| !line.is_cut)
    }

    /// Breaks a stream. Each side detects that at a time of its own, or never.
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

    /// Replays the first packets of a stream on a new stream.
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

    /// Ends the streams of a node process that has ended. With `says_so`, clients receive a close at once;
    /// otherwise only in reply to their next packet.
    pub(crate) fn node_gone(&mut self, node: Id, run: u64, says_so: bool) {
        let of_it = |line: &SimStream| line.node == node && line.run == Some(run) && !line.is_over;
        let lines = self.net.lines.iter().filter(|(_, line)| of_it(line));
        let lines: Vec<StreamId> = lines.map(|(&id, _)| id).collect();
        for stream in lines {
            if says_so {
                self.send_down(stream, Down::Closed);
            }
        }
    }
}
