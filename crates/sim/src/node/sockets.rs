//! A node's input: client sockets, which are read one by one, and peer sockets, which the event loop reads.

use lockkeeper_core::{Seq, Usage};
use lockkeeper_replica::{
    CallId, CallRequest, Event, Received, SessionCall, SessionPoll, StreamCloseCause, StreamId,
};
use lockkeeper_wire::request::{Request, Secret};
use lockkeeper_wire::v1;

use super::addresses::client_address;
use super::{Barrier, NodeProcess, SimNode};
use crate::bulk::BulkId;
use crate::clock::MS;
use crate::core::{Core, Happening, Id};
use crate::net::{Down, Up};
use crate::peers::LinkId;

impl SimNode {
    /// To be called when a packet arrives in a client socket.
    pub(crate) fn arrives(&mut self, core: &mut Core, stream: StreamId, packet: Up) {
        let Some(line) = core.net.lines.get_mut(&stream) else { return };
        let opens = matches!(packet, Up::Open | Up::Call(_));
        let Some(process) = self.process.as_mut() else {
            // Connection refused; the client retries.
            return core.send_down(stream, Down::Closed);
        };
        if opens {
            line.run = Some(self.run);
        } else if line.run != Some(self.run) {
            return core.send_down(stream, Down::Closed);
        }
        core.oracle.arrived(core.now, self.id, stream, &packet);
        process.sockets.entry(stream).or_default().push_back(packet);
        if process.reading.insert(stream) {
            let pause = core.dice.spread(5_000, if core.is_stormy { 10 * MS } else { MS });
            let at = (core.now + pause).max(process.unread_until);
            core.at(at, Happening::NodeReads { node: self.id, run: self.run, stream });
        }
    }

    pub(crate) fn reads(&mut self, core: &mut Core, run: u64, stream: StreamId) {
        let Some(process) = self.process.as_mut().filter(|_| run == self.run) else { return };
        let not_before = process.stopped_until.max(process.unread_until);
        if core.now < not_before {
            let pause = core.dice.spread(5_000, 10 * MS);
            let at = not_before.min(core.now + super::POLL_EVERY) + pause;
            return core.at(at, Happening::NodeReads { node: self.id, run, stream });
        }
        process.reading.remove(&stream);
        let is_call = core.net.lines.get(&stream).is_some_and(|line| line.is_call);
        for packet in process.sockets.remove(&stream).unwrap_or_default() {
            let event = match packet {
                Up::Open => Event::StreamOpened { stream, identity: Box::default(), quota: Usage::UNLIMITED },
                Up::Closed if is_call => {
                    process.polls.end(CallId(stream.0));
                    Event::CallDropped(CallId(stream.0))
                }
                Up::Closed => Event::StreamClosed { stream, cause: StreamCloseCause::Client },
                Up::Call(call) => match call_request(*call) {
                    Some(request) => {
                        process.polls.called(CallId(stream.0), &request);
                        let called = SessionCall { identity: "".into(), quota: Usage::UNLIMITED, request };
                        Event::Called(CallId(stream.0), Box::new(called))
                    }
                    None => return core.broken("P7", "the client's call is none"),
                },
                Up::Frame(items) => {
                    let requests = items.into_iter().map(Request::try_from).collect();
                    match requests {
                        Ok(requests) => Event::Frame(stream, requests),
                        Err(error) => {
                            return core.broken("P7", &format!("the client sent what is none: {error}"));
                        }
                    }
                }
            };
            process.inbox.push_back(event);
        }
        for barrier in &mut process.barriers {
            barrier.waits.remove(&stream);
        }
        process.pass_barriers();
        let pause = core.dice.within(0, 200_000);
        self.turn_soon(core, core.now + pause);
    }

    /// To be called when a frame from a peer arrives; the event loop reads it later.
    pub(crate) fn peer_arrives(&mut self, core: &mut Core, from: Id, frame: Vec<u8>) {
        let Some(process) = self.process.as_mut() else { return };
        process.frames.push_back((from, frame));
        let pause = core.dice.within(0, 100_000);
        self.turn_soon(core, core.now + pause);
    }

    /// To be called when a snapshot from a peer has arrived completely.
    pub(crate) fn receives(&mut self, core: &mut Core, id: BulkId) {
        let (Some(process), Some(bulk)) = (self.process.as_mut(), core.bulks.get(id).cloned()) else {
            return core.settle_bulk(id, false);
        };
        let index = bulk.offer.head.as_ref().map_or(0, |head| head.index);
        if process.incoming.contains_key(&index) {
            return core.settle_bulk(id, false);
        }
        match process.chores.receive(&bulk, core.scenario.budgets) {
            Ok((sealed, table)) => {
                core.note(format_args!("node {} has received snapshot {index}", self.id));
                let received = Received { offer: bulk.offer, table, bytes: sealed.bytes() };
                process.incoming.insert(index, (id, sealed));
                process.inbox.push_back(Event::SnapshotReceived(Box::new(received)));
                self.turn_soon(core, core.now);
            }
            Err(why) => {
                core.note(format_args!("node {} can't take snapshot {index}: {why}", self.id));
                core.settle_bulk(id, false);
            }
        }
    }

    /// To be called when the sender of a snapshot receives the result of its transfer.
    pub(crate) fn bulk_settled(&mut self, core: &mut Core, to: Id, arrived: bool) {
        if let Some(process) = &mut self.process {
            process.inbox.push_back(Event::SnapshotSent { to, arrived });
            self.turn_soon(core, core.now);
        }
    }

    /// To be called when a connection with a peer is open. `rules_max` is the newest rules version that the
    /// peer supports.
    pub(crate) fn peer_up(&mut self, core: &mut Core, peer: Id, rules_max: u32) {
        if let Some(process) = &mut self.process {
            let client_address = client_address(peer);
            process.inbox.push_back(Event::PeerUp { node: peer, rules_max, client_address });
            self.turn_soon(core, core.now);
        }
    }

    /// To be called when a link to or from a peer is closed.
    pub(crate) fn peer_lost(&mut self, core: &mut Core, peer: Id, link: LinkId) {
        core.note(format_args!("node {} loses node {peer} ({link:?})", self.id));
        if let Some(process) = &mut self.process {
            process.inbox.push_back(Event::PeerDown(peer));
        }
        let pause = core.dice.spread(MS, 20 * MS);
        core.dial(self.id, self.run, peer, pause);
        self.turn_soon(core, core.now);
    }
}

/// The request of a call, as the front of a node makes it.
fn call_request(call: v1::SessionCallRequest) -> Option<CallRequest> {
    let request = Request::try_from(call.item?).ok()?;
    let mut request = CallRequest::new(request, Secret::from_wire(&call.secret).ok()?)?;
    if let CallRequest::KeepAlive { poll, .. } = &mut request {
        let seqs = |list: Vec<u64>| list.into_iter().map(Seq).collect();
        let (waiting, known) = (seqs(call.waiting), seqs(call.known));
        *poll = SessionPoll { waiting, known, waits: call.poll_ms > 0 };
    }
    Some(request)
}

impl NodeProcess {
    /// Begins a drain barrier: it passes once all input that is in a client socket now was read.
    pub(super) fn begin_barrier(&mut self, number: u64) {
        let waits = self.sockets.iter().map(|(&stream, unread)| (stream, unread.len()));
        self.barriers.push(Barrier { number, waits: waits.collect() });
        self.pass_barriers();
    }

    fn pass_barriers(&mut self) {
        let (passed, left) =
            std::mem::take(&mut self.barriers).into_iter().partition(|barrier| barrier.waits.is_empty());
        self.barriers = left;
        let passed: Vec<Barrier> = passed;
        self.inbox.extend(passed.into_iter().map(|barrier| Event::Drained(barrier.number)));
    }
}
