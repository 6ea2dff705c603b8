//! A cluster with in-memory disks; the test controls clock, network and every turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_core::{Restorer, Table, Usage, WallTime};
use lockkeeper_replica::mutant::Mutant;
use lockkeeper_replica::storage::record_bytes;
use lockkeeper_replica::{
    Answer, AskId, CallId, CallRequest, Config, Difference, Event, LostEntries, Members, Output, Question,
    Received, Recovered, Replica, SessionCall, SnapshotStep, StreamId, TAIL_BYTES, TICK,
};
use lockkeeper_wire::peer::{PeerKind, PeerMessage, SnapshotOffer};
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::store::{self, Founding, Member};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::server_item::What;

/// Time limit for conditions that a test waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Several nodes and the network between them.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) nodes: BTreeMap<u64, Node>,
    /// Messages in flight, by sender and receiver.
    pub(crate) wires: BTreeMap<(u64, u64), VecDeque<PeerMessage>>,
    /// Directed links whose messages are lost.
    cut: BTreeSet<(u64, u64)>,
    /// Nodes with another snapshot format: the digests that they send or receive are marked accordingly.
    pub(crate) other_format: BTreeSet<u64>,
    asks: u64,
}

/// One node. Its disk outlives its process.
pub(crate) struct Node {
    id: u64,
    founding: Founding,
    /// `None` while the node is down.
    replica: Option<Replica>,
    /// Whether the node takes no turns, as after SIGSTOP; its input waits.
    pub(crate) is_stopped: bool,
    pub(crate) records: Vec<store::Record>,
    pub(crate) stored: Option<(store::SnapshotHead, Vec<u8>)>,
    writing: Option<(store::SnapshotHead, Vec<u8>)>,
    /// A received snapshot whose file has no final name yet.
    pub(crate) sealed: Option<(store::SnapshotHead, Vec<u8>)>,
    /// Snapshots to be sent; the next field: indices of received snapshots that were not used.
    pub(crate) offers: Vec<SnapshotOffer>,
    pub(crate) unused: Vec<u64>,
    /// Reported differences; the next field: the difference that stops this node.
    pub(crate) differ: Vec<Difference>,
    pub(crate) wrong: Option<Difference>,
    /// Acknowledged entries that the node's disk has lost: the node has stopped.
    pub(crate) lost: Option<LostEntries>,
    pub(crate) snapshot_after: u64,
    pub(crate) tail_bytes: usize,
    pub(crate) mutant: Option<Mutant>,
    heard: BTreeMap<StreamId, Vec<v1::ServerItem>>,
    pub(crate) ended: BTreeMap<StreamId, v1::StreamEnd>,
    answers: BTreeMap<AskId, Answer>,
    called: BTreeMap<CallId, Vec<v1::SessionCallResponse>>,
    pub(crate) ended_calls: BTreeMap<CallId, v1::StreamEnd>,
}

impl World {
    /// Bootstraps and starts nodes 1 to `count`.
    pub(crate) fn new(count: u64) -> Self {
        let mut world = Self {
            now: Duration::from_secs(1_000),
            nodes: BTreeMap::new(),
            wires: BTreeMap::new(),
            cut: BTreeSet::new(),
            other_format: BTreeSet::new(),
            asks: 0,
        };
        let members: Vec<Member> = (1..=count).map(member).collect();
        for id in 1..=count {
            world.join(id, members.clone());
        }
        world
    }

    /// Starts a node whose bootstrap record names these members.
    pub(crate) fn join(&mut self, id: u64, members: Vec<Member>) {
        let incarnation = member(id).incarnation;
        let founding = Founding {
            cluster: vec![1; 16],
            node: id,
            incarnation,
            members,
            tokens_above: 1_000_000,
            rules: 1,
        };
        let mut node = Node {
            id,
            founding,
            replica: None,
            is_stopped: false,
            records: Vec::new(),
            stored: None,
            writing: None,
            sealed: None,
            offers: Vec::new(),
            unused: Vec::new(),
            differ: Vec::new(),
            wrong: None,
            lost: None,
            snapshot_after: u64::MAX,
            tail_bytes: TAIL_BYTES,
            mutant: None,
            heard: BTreeMap::new(),
            ended: BTreeMap::new(),
            answers: BTreeMap::new(),
            called: BTreeMap::new(),
            ended_calls: BTreeMap::new(),
        };
        node.start(self.now);
        self.nodes.insert(id, node);
    }

    pub(crate) fn node(&self, id: u64) -> &Replica {
        self.nodes[&id].replica.as_ref().expect("it runs")
    }

    /// Runs one turn of a node with exactly these events; messages in flight to it are not delivered.
    pub(crate) fn turn(&mut self, id: u64, events: Vec<Event>) {
        let (now, node) = (self.now, self.nodes.get_mut(&id).unwrap());
        for (to, mut messages) in node.turn(now, events) {
            if [id, to].iter().any(|node| self.other_format.contains(node)) {
                messages.iter_mut().flat_map(|it| &mut it.digest).for_each(|digest| digest.format += 1);
            }
            if !self.cut.contains(&(id, to)) {
                self.wires.entry((id, to)).or_default().extend(messages);
            }
        }
    }

    /// Delivers all messages in flight to this node; returns whether there were any.
    pub(crate) fn arrive(&mut self, id: u64) -> bool {
        self.arrive_if(id, |_| true)
    }

    /// Delivers the messages of these kinds in flight to this node; the rest stays in flight.
    pub(crate) fn arrive_if(&mut self, id: u64, wanted: impl Fn(PeerKind) -> bool) -> bool {
        let mut messages = Vec::new();
        for ((_, to), wire) in &mut self.wires {
            if *to == id {
                let (come, stay): (VecDeque<_>, _) =
                    wire.drain(..).partition(|message| wanted(message.kind()));
                *wire = stay;
                messages.extend(come);
            }
        }
        let any = !messages.is_empty();
        if any {
            self.turn(id, vec![Event::Peer(messages)]);
        }
        any
    }

    /// Delivers messages until none is in flight to a running node.
    pub(crate) fn deliver(&mut self) {
        for _ in 0..1_000 {
            let running: Vec<u64> = self.nodes.values().filter(|it| it.runs()).map(|it| it.id).collect();
            let arrived: Vec<bool> = running.into_iter().map(|id| self.arrive(id)).collect();
            if !arrived.contains(&true) {
                return;
            }
        }
        panic!("messages go round and round: {:?}", self.wires);
    }

    /// One tick of every running node, with all messages that result.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        let running: Vec<u64> = self.nodes.values().filter(|it| it.runs()).map(|it| it.id).collect();
        for id in running {
            self.turn(id, Vec::new());
        }
        self.deliver();
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.tick();
        }
    }

    /// Lets time pass until `found` returns a value.
    pub(crate) fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let end = self.now + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            assert!(self.now < end, "not within {PATIENCE:?}: {what}");
            self.tick();
        }
    }

    /// The ready leader of the highest term.
    pub(crate) fn leader(&mut self) -> u64 {
        self.until("a leader", |world| {
            let running = world.nodes.values().filter(|it| it.runs());
            let ready = running.filter(|it| it.replica.as_ref().is_some_and(Replica::is_ready));
            ready.max_by_key(|it| it.replica.as_ref().map_or(0, Replica::term)).map(|it| it.id)
        })
    }

    pub(crate) fn others(&self, of: u64) -> Vec<u64> {
        self.nodes.keys().copied().filter(|id| *id != of).collect()
    }

    /// Delivers a snapshot to its receiver, unless the link is cut, the receiver does not run, or the sender
    /// has replaced that snapshot. Reports the outcome to the sender.
    pub(crate) fn carry(&mut self, offer: SnapshotOffer) {
        let (from, to) = (offer.from, offer.to);
        let head = offer.head.clone().expect("an offer has a head");
        let stored = self.nodes[&from].stored.clone();
        let bytes = stored.filter(|(stored, _)| *stored == head).map(|(_, bytes)| bytes);
        let is_open = !self.cut.contains(&(from, to)) && self.nodes.get(&to).is_some_and(Node::runs);
        let bytes = bytes.filter(|_| is_open);
        let arrived = bytes.is_some();
        if let Some(bytes) = bytes {
            let mut restorer = Restorer::new(0);
            restorer.push(&bytes).unwrap();
            let table = restorer.finish().unwrap();
            let received = Received { offer, table, bytes: bytes.len() as u64 };
            self.nodes.get_mut(&to).unwrap().sealed = Some((head, bytes));
            self.turn(to, vec![Event::SnapshotReceived(Box::new(received))]);
        }
        self.turn(from, vec![Event::SnapshotSent { to, arrived }]);
    }

    /// Lets time pass until `found` returns a value; snapshots are delivered as they are sent.
    pub(crate) fn until_carrying<T>(
        &mut self,
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        self.until(what, |world| {
            let offers = world.nodes.values_mut().flat_map(|node| std::mem::take(&mut node.offers));
            let offers: Vec<SnapshotOffer> = offers.collect();
            offers.into_iter().for_each(|offer| world.carry(offer));
            found(world)
        })
    }

    /// Messages from one node to another are lost, also those in flight.
    pub(crate) fn cut_one_way(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
        self.wires.remove(&(from, to));
    }

    /// Partitions a node from all others, in both directions.
    pub(crate) fn cut_off(&mut self, id: u64) {
        for other in self.others(id) {
            self.cut_one_way(id, other);
            self.cut_one_way(other, id);
        }
    }

    /// Repairs all links. The sender of each is told that its connection broke and is established again.
    pub(crate) fn heal(&mut self) {
        for (from, to) in std::mem::take(&mut self.cut) {
            if self.nodes[&from].runs() {
                self.turn(from, vec![Event::PeerDown(to), up(to)]);
            }
        }
    }

    /// Ends the process as by kill -9: its memory and all messages in flight from and to it are lost. The
    /// other nodes see their connections to it break.
    pub(crate) fn crash(&mut self, id: u64) {
        self.nodes.get_mut(&id).unwrap().replica = None;
        self.wires.retain(|(from, to), _| *from != id && *to != id);
        for other in self.others(id) {
            if self.nodes[&other].runs() {
                self.turn(other, vec![Event::PeerDown(id)]);
            }
        }
    }

    pub(crate) fn restart(&mut self, id: u64) {
        let now = self.now;
        self.nodes.get_mut(&id).unwrap().start(now);
        for other in self.others(id) {
            if self.nodes[&other].runs() {
                self.turn(other, vec![up(id)]);
            }
        }
    }

    pub(crate) fn stop(&mut self, id: u64) {
        self.nodes.get_mut(&id).unwrap().is_stopped = true;
    }

    pub(crate) fn resume(&mut self, id: u64) {
        self.nodes.get_mut(&id).unwrap().is_stopped = false;
    }

    /// Opens a stream at a node.
    pub(crate) fn stream(&mut self, id: u64, number: u64) -> StreamId {
        let stream = StreamId(number);
        self.turn(
            id,
            vec![Event::StreamOpened { stream, identity: Box::default(), quota: Usage::UNLIMITED }],
        );
        stream
    }

    /// Sends items; returns the responses once all messages were delivered.
    pub(crate) fn send(
        &mut self,
        id: u64,
        stream: StreamId,
        items: Vec<v1::ClientItem>,
    ) -> Vec<v1::ServerItem> {
        self.say(id, stream, items);
        self.deliver();
        self.heard(id, stream)
    }

    /// Sends items in a turn of the node; delivers no messages of other nodes.
    pub(crate) fn say(&mut self, id: u64, stream: StreamId, items: Vec<v1::ClientItem>) {
        let requests = items.into_iter().map(|item| Request::try_from(item).unwrap()).collect();
        self.turn(id, vec![Event::Frame(stream, requests)]);
    }

    /// The items that a stream received since the last call, without node lists.
    /// Makes a call at this node.
    pub(crate) fn called(&mut self, id: u64, request: CallRequest) -> CallId {
        self.asks += 1;
        let call = CallId(self.asks);
        let called = SessionCall { identity: "".into(), quota: Usage::UNLIMITED, request };
        self.turn(id, vec![Event::Called(call, Box::new(called))]);
        call
    }

    /// The answers to a call since the last look.
    pub(crate) fn responses(&mut self, id: u64, call: CallId) -> Vec<v1::SessionCallResponse> {
        self.nodes.get_mut(&id).unwrap().called.remove(&call).unwrap_or_default()
    }

    pub(crate) fn heard(&mut self, id: u64, stream: StreamId) -> Vec<v1::ServerItem> {
        let mut heard = self.nodes.get_mut(&id).unwrap().heard.remove(&stream).unwrap_or_default();
        heard.retain(|item| !matches!(item.what, Some(What::Nodes(_))));
        heard
    }

    /// Opens a session with a secret made of `number`, and attaches it.
    pub(crate) fn open(&mut self, id: u64, stream: StreamId, number: u8, ttl: u64, linger: u64) -> u64 {
        let open = Open {
            secret: Secret([number; 16]),
            ttl_ms: ttl,
            lock_delay_ms: 0,
            linger_ms: linger,
            label: format!("client {number}"),
            attach: 1,
        };
        let heard = self.send(id, stream, vec![Request::Open(open).into()]);
        let [v1::ServerItem { session, what: Some(What::Opened(_)), .. }] = heard[..] else {
            panic!("not opened: {heard:?}")
        };
        session
    }

    /// Takes the answer to the call with this number.
    pub(crate) fn answer(&mut self, id: u64, ask: u64) -> Option<Answer> {
        self.nodes.get_mut(&id).unwrap().answers.remove(&AskId(ask))
    }

    /// Sends a call to a node; returns its answer if there is one once all messages were delivered.
    pub(crate) fn ask(&mut self, id: u64, question: Question) -> Option<Answer> {
        self.asks += 1;
        let ask = AskId(self.asks);
        self.turn(id, vec![Event::Asked(ask, question)]);
        self.deliver();
        self.nodes.get_mut(&id).unwrap().answers.remove(&ask)
    }
}

impl Node {
    fn runs(&self) -> bool {
        self.replica.is_some() && !self.is_stopped
    }

    fn start(&mut self, now: Duration) {
        let mut hard_state = None;
        let mut entries: Vec<store::Entry> = Vec::new();
        for record in &self.records {
            hard_state = record.hard_state.or(hard_state);
            if let Some(first) = record.entries.first() {
                entries.retain(|entry| entry.index < first.index);
            }
            entries.extend(record.entries.iter().cloned());
        }
        let (mut table, mut snapshot_index, mut snapshot_term) = (Table::new(0), 0, 0);
        let mut members = Members::founded(&self.founding);
        if let Some((head, bytes)) = &self.stored {
            let mut restorer = Restorer::new(0);
            restorer.push(bytes).unwrap();
            table = restorer.finish().unwrap();
            (snapshot_index, snapshot_term) = (head.index, head.term);
            members = head.members.clone().unwrap().into();
            entries.retain(|entry| entry.index > head.index);
        }
        let config = Config {
            node: self.id,
            tail_bytes: self.tail_bytes,
            seed: self.id,
            tokens_above: self.founding.tokens_above,
            rules: lockkeeper_core::limits::RULES_VERSION,
            tick: TICK,
            snapshot_after: self.snapshot_after,
            turn_visits_max: lockkeeper_replica::TURN_VISITS_MAX,
            ends_per_part: lockkeeper_replica::ENDS_PER_PART,
            mutant: self.mutant,
        };
        let is_after =
            |record: &&store::Record| record.entries.last().is_some_and(|entry| entry.index > snapshot_index);
        let entry_bytes = self.records.iter().filter(is_after).map(record_bytes).sum();
        let recovered =
            Recovered { table, snapshot_index, snapshot_term, members, hard_state, entries, entry_bytes };
        self.writing = None;
        self.sealed = None;
        self.offers.clear();
        self.is_stopped = false;
        self.replica = Some(Replica::start(config, recovered, now).unwrap());
    }

    fn turn(&mut self, now: Duration, events: Vec<Event>) -> Vec<(u64, Vec<PeerMessage>)> {
        let Some(mut replica) = self.replica.take() else { return Vec::new() };
        let mut sent = Vec::new();
        let mut events = events;
        loop {
            replica.begin(now, WallTime(now.as_millis() as u64 + 1_000 * self.id));
            events.drain(..).for_each(|event| replica.handle(event));
            self.lost = replica.lost_entries();
            if self.lost.is_some() {
                return sent;
            }
            while let Some(write) = replica.advance().unwrap() {
                self.outputs(replica.take_outputs(), &mut sent, &mut events);
                if let Some(index) = write.installs() {
                    self.install(index);
                }
                self.records.push(write.record().clone());
                replica.persisted(now, write.synced()).unwrap();
            }
            self.outputs(replica.take_outputs(), &mut sent, &mut events);
            if events.is_empty() && replica.next_wake() > now {
                break;
            }
        }
        // A node with a wrong table stops.
        self.replica = Some(replica).filter(|_| self.wrong.is_none());
        sent
    }

    fn outputs(
        &mut self,
        outputs: Vec<Output>,
        sent: &mut Vec<(u64, Vec<PeerMessage>)>,
        events: &mut Vec<Event>,
    ) {
        for output in outputs {
            match output {
                Output::Peer(to, messages) => sent.push((to, messages)),
                Output::Items(stream, items) => self.heard.entry(stream).or_default().extend(items),
                Output::EndStream(stream, end) => drop(self.ended.insert(stream, end)),
                Output::Called(call, response) | Output::CallWaits(call, response) => {
                    self.called.entry(call).or_default().push(response);
                }
                Output::CallEnded(call, end) => drop(self.ended_calls.insert(call, end)),
                Output::Answer(ask, answer) => drop(self.answers.insert(ask, answer)),
                Output::Drain(number) => events.push(Event::Drained(number)),
                Output::Snapshot(step) => {
                    self.store(step);
                    events.push(Event::SnapshotStepDone);
                }
                Output::Compact(_) | Output::Members(_) | Output::OverQuota(..) => {}
                Output::SendSnapshot(offer) => self.offers.push(*offer),
                Output::SnapshotUnused(index) => {
                    self.unused.push(index);
                    self.sealed = None;
                }
                Output::Differs(it) => self.differ.push(it),
                Output::Wrong(it) => self.wrong = Some(it),
            }
        }
    }

    /// Gives the received snapshot its final name, and resets the log to the snapshot's end.
    fn install(&mut self, index: u64) {
        let sealed = self.sealed.take().expect("it was received");
        assert_eq!(sealed.0.index, index, "it is that one");
        let hard_state = self.records.iter().rev().find_map(|record| record.hard_state);
        self.records = vec![store::Record { hard_state, entries: Vec::new() }];
        self.stored = Some(sealed);
    }

    fn store(&mut self, step: SnapshotStep) {
        match step {
            SnapshotStep::Begin(head) => self.writing = Some((head, Vec::new())),
            SnapshotStep::Piece(bytes) => self.writing.as_mut().unwrap().1.extend(bytes),
            SnapshotStep::Finish(_) => self.stored = self.writing.take(),
        }
    }
}

fn up(node: u64) -> Event {
    Event::PeerUp { node, rules_max: 1, client_address: member(node).client_address }
}

pub(crate) fn member(node: u64) -> Member {
    Member {
        node,
        incarnation: vec![node as u8; 16],
        peer_address: format!("peer{node}:5626"),
        client_address: format!("node{node}:5625"),
    }
}
