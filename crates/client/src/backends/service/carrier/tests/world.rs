//! Machines and carriers against the real table. Streams are cut, with frames lost or delivered late; answers
//! and pushes overtake each other; holds are broken; clocks run 0.9 % too slow or too fast.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::{AcquireRequest, CallId, HoldChange};
use lockkeeper_wire::v1::{self, server_item::What as Says};
use proptest::prelude::*;

use super::peer::Peer;
use super::*;
use crate::machine::{AcquireLimits, CallKind, Event, Key, Machine, Output};

const MS: u64 = 1_000_000;
const CLIENTS: usize = 3;
const NAMES: [&str; 2] = ["a", "b"];

/// A message in flight to the service.
enum Up {
    Frame(Vec<v1::ClientItem>),
    /// The client closed the stream.
    Closed,
}

struct Client {
    machine: Machine,
    carrier: Carrier<CallId>,
    session: SessionKey,
    spec: Spec,
    secrets: u8,
    opened: bool,
    /// Rate of its clock, in thousandths of the true rate.
    rate: u64,
    up: BTreeMap<StreamId, VecDeque<Up>>,
    down: VecDeque<(StreamId, Vec<v1::ServerItem>)>,
    /// Unanswered calls; each is answered at most once.
    calls: BTreeMap<CallId, SessionKey>,
    /// In flight from the carrier to the machine: answers in any order (many tasks), pushes in order.
    answers: Vec<(CallId, Result<Answer, CallError>)>,
    pushes: VecDeque<(SessionKey, Push)>,
    lease_deadline: Option<BootInstant>,
    wanted: BTreeMap<Key, (&'static str, Arc<AcquireRequest>)>,
    outcomes: BTreeMap<Key, u32>,
    held: BTreeMap<Key, u64>,
    reachable: bool,
    /// Whether the client is about to close its latest stream.
    closes: bool,
}

struct World {
    now_ms: u64,
    peer: Peer,
    clients: Vec<Client>,
    last_token: BTreeMap<&'static str, u64>,
    next_key: u64,
    grants: usize,
    resent: u64,
}

impl Client {
    fn new(index: usize) -> Self {
        // One of the clients uses `linger`.
        let linger = Duration::from_secs(u64::from(index == 2));
        let spec = Spec { linger, ..spec() };
        let mut carrier = Carrier::new();
        let session = carrier.add(spec, "c", Secret([index as u8 + 1; 16]));
        Self {
            machine: Machine::new(spec),
            carrier,
            session,
            spec,
            secrets: 0,
            opened: false,
            rate: [1000, 991, 1009][index],
            up: BTreeMap::new(),
            down: VecDeque::new(),
            calls: BTreeMap::new(),
            answers: Vec::new(),
            pushes: VecDeque::new(),
            lease_deadline: None,
            wanted: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            held: BTreeMap::new(),
            reachable: true,
            closes: false,
        }
    }

    fn to_call(&self, kind: CallKind) -> Call {
        match kind {
            CallKind::Open { fresh } => Call::Open { fresh },
            CallKind::KeepAlive => Call::KeepAlive,
            CallKind::Acquire { key, seq, done_through, wait_left } => {
                Call::Acquire { seq, done_through, request: self.wanted[&key].1.clone(), wait_left }
            }
            CallKind::Finish { seq, target, done_through } => Call::Finish { seq, target, done_through },
            CallKind::Settle { seq, target, done_through } => {
                Call::Change { seq, target, done_through, change: HoldChange::Settle }
            }
            CallKind::Close => Call::Close,
        }
    }

    /// Performs the carrier's outcomes.
    fn take(&mut self, out: Vec<CarrierOutput<CallId>>) {
        for outcome in out {
            match outcome {
                CarrierOutput::Resolved(call, result) => {
                    self.calls.remove(&call).unwrap_or_else(|| panic!("{call:?} is resolved twice"));
                    self.answers.push((call, result));
                }
                CarrierOutput::Push(session, push) => self.pushes.push_back((session, push)),
                CarrierOutput::EndStream(ending) => {
                    assert!(!matches!(ending, StreamEnding::Garbage(_)), "{ending:?}");
                    self.closes = matches!(ending, StreamEnding::Silent);
                }
                CarrierOutput::Dropped(call) => drop(self.calls.remove(&call)),
                CarrierOutput::Nodes(_) => panic!("this service tells none"),
            }
        }
    }
}

impl World {
    fn new() -> Self {
        let now_ms = 1_000_000;
        Self {
            now_ms,
            peer: Peer::new(now_ms),
            clients: (0..CLIENTS).map(Client::new).collect(),
            last_token: BTreeMap::new(),
            next_key: 1,
            grants: 0,
            resent: 0,
        }
    }

    fn clock(&self, who: usize) -> BootInstant {
        BootInstant::from_nanos(self.now_ms * self.clients[who].rate / 1000 * MS)
    }

    fn feed(&mut self, who: usize, event: Event) {
        let now = self.clock(who);
        let mut out = Vec::new();
        self.clients[who].machine.handle(now, event, &mut out);
        for output in out {
            let client = &mut self.clients[who];
            match output {
                Output::Call { call, kind, .. } => {
                    if kind == (CallKind::Open { fresh: true }) && std::mem::replace(&mut client.opened, true)
                    {
                        let old = client.session;
                        client.carrier.remove(old, &mut Vec::new());
                        client.calls.retain(|_, session| *session != old);
                        client.secrets += 1;
                        let mut secret = [who as u8 + 1; 16];
                        secret[0] = client.secrets + 100;
                        client.session = client.carrier.add(client.spec, "c", Secret(secret));
                    }
                    client.calls.insert(call, client.session);
                    let mut outcomes = Vec::new();
                    let call_ = client.to_call(kind);
                    client.carrier.submit(now, client.session, call_, call, &mut outcomes);
                    client.take(outcomes);
                }
                Output::Granted { key, grant } => {
                    *client.outcomes.entry(key).or_default() += 1;
                    let token = grant.token.expect("the table gives tokens").get();
                    client.held.insert(key, token);
                    let name = client.wanted[&key].0;
                    let last = self.last_token.insert(name, token).unwrap_or(0);
                    assert!(token > last, "token {token} of {name} after {last} (P2)");
                    self.grants += 1;
                }
                Output::NotAcquired { key, .. } => *client.outcomes.entry(key).or_default() += 1,
                Output::Recalled { .. } | Output::Attached(_) => {}
                Output::Lost { key, .. } | Output::Released { key, .. } => drop(client.held.remove(&key)),
                Output::LeaseDeadline(until) => client.lease_deadline = until,
                Output::Queued { .. } => {}
            }
        }
        self.check();
    }

    /// P1 with P5: at no moment do two clients hold one lock, each by its own clock.
    fn check(&self) {
        for name in NAMES {
            let holders = (0..CLIENTS).flat_map(|who| {
                let client = &self.clients[who];
                let has_lease = client.lease_deadline.is_some_and(|until| self.clock(who) < until);
                let held = client.held.keys().filter(move |key| has_lease && client.wanted[key].0 == name);
                held.map(move |key| (who, *key))
            });
            let holders: Vec<_> = holders.collect();
            assert!(holders.len() <= 1, "{name} is held by {holders:?} at {}", self.now_ms);
        }
    }

    fn act(&mut self, (what, who, number): (u8, usize, u8)) {
        match what {
            0..=2 => self.acquire(who, number),
            3 => self.give_back(who, number, true),
            4 => self.give_back(who, number, false),
            5..=8 => (0..=number % 4).for_each(|_| {
                self.connect(who);
                self.send(who);
                self.arrive(who, usize::from(number));
            }),
            9..=12 => (0..=number % 4).for_each(|_| self.deliver(who)),
            13..=16 => (0..=number % 4).for_each(|_| self.hear(who, usize::from(number))),
            17 => self.cut(who, usize::from(number % 4), usize::from(number / 64)),
            18 => self.pass(u64::from(number) * 8),
            19 => self.peer.break_it(NAMES[usize::from(number) % NAMES.len()]),
            20 => self.announce(who),
            _ => self.clients[who].reachable = !number.is_multiple_of(4),
        }
    }

    fn acquire(&mut self, who: usize, number: u8) {
        let name = NAMES[usize::from(number) % NAMES.len()];
        let key = Key(self.next_key);
        self.next_key += 1;
        let wanted = AcquireRequest::exclusive(vec![name.parse().expect("a good name")]);
        self.clients[who].wanted.insert(key, (name, Arc::new(wanted)));
        let wait_until = number.is_multiple_of(3).then(|| self.clock(who) + Duration::from_secs(5));
        let grace = Duration::from_secs(2);
        let limits =
            AcquireLimits { wait_until, patience: None, min_validity: Duration::ZERO, max_hold: None, grace };
        self.feed(who, Event::Acquire { key, limits });
    }

    fn give_back(&mut self, who: usize, number: u8, release: bool) {
        let client = &self.clients[who];
        let held: Vec<Key> = client.held.keys().copied().collect();
        let open: Vec<Key> =
            client.wanted.keys().filter(|key| !client.outcomes.contains_key(key)).copied().collect();
        if release && !held.is_empty() {
            let key = held[usize::from(number) % held.len()];
            self.clients[who].held.remove(&key);
            self.feed(who, Event::Release { key });
        } else if !release && !open.is_empty() {
            let key = open[usize::from(number) % open.len()];
            // An abandoned request gets no outcome from the machine; this counts as its only one.
            self.clients[who].outcomes.insert(key, 1);
            self.feed(who, Event::Abandon { key });
        }
    }

    fn connect(&mut self, who: usize) {
        let now = self.clock(who);
        let client = &mut self.clients[who];
        if client.reachable && client.carrier.stream().is_none() && client.carrier.wants_stream() {
            let stream = client.carrier.begin_stream(now);
            client.up.insert(stream, VecDeque::new());
        }
    }

    fn send(&mut self, who: usize) {
        let client = &mut self.clients[who];
        if let Some(stream) = client.carrier.stream() {
            let items = client.carrier.take_frame(stream);
            if !items.is_empty() {
                client.up.entry(stream).or_default().push_back(Up::Frame(items));
            }
        }
    }

    /// Delivers the next message of one of a client's streams to the service; ended streams included.
    fn arrive(&mut self, who: usize, which: usize) {
        let client = &mut self.clients[who];
        if client.up.is_empty() {
            return;
        }
        let stream = *client.up.keys().nth(which % client.up.len()).expect("counted");
        match client.up.get_mut(&stream).and_then(VecDeque::pop_front) {
            Some(Up::Frame(items)) => self.peer.frame((who, stream), items),
            Some(Up::Closed) => {
                self.peer.closed((who, stream), true);
                client.up.remove(&stream);
            }
            None => {}
        }
        self.collect();
    }

    /// Moves the service's output into the network.
    fn collect(&mut self) {
        for ((who, stream), items) in std::mem::take(&mut self.peer.down) {
            if self.clients[who].up.contains_key(&stream) {
                self.clients[who].down.push_back((stream, items));
            }
        }
    }

    fn deliver(&mut self, who: usize) {
        let now = self.clock(who);
        let client = &mut self.clients[who];
        if let Some((stream, items)) = client.down.pop_front() {
            let mut out = Vec::new();
            client.carrier.received(now, stream, items, &mut out);
            client.take(out);
        }
    }

    /// Closes a stream after its sessions have processed their pushes. In production that order is given
    /// because both happen on one thread.
    fn close(&mut self, who: usize) {
        if !std::mem::take(&mut self.clients[who].closes) {
            return;
        }
        while let Some((session, push)) = self.clients[who].pushes.pop_front() {
            if session == self.clients[who].session {
                self.feed(who, Event::Pushed(push));
            }
        }
        if let Some(mut latest) = self.clients[who].up.last_entry() {
            latest.get_mut().push_back(Up::Closed);
        }
    }

    /// Delivers the next push, or one of the answers, to the machine.
    fn hear(&mut self, who: usize, which: usize) {
        let client = &mut self.clients[who];
        if (which.is_multiple_of(2) || client.answers.is_empty())
            && let Some((session, push)) = client.pushes.pop_front()
        {
            if session == client.session {
                self.feed(who, Event::Pushed(push));
            }
        } else if !client.answers.is_empty() {
            let (call, result) = client.answers.remove(which / 2 % client.answers.len());
            self.feed(
                who,
                match result {
                    Ok(answer) => Event::Answered { call, answer },
                    Err(CallError { sent, .. }) => Event::Failed { call, sent },
                },
            );
        }
    }

    /// The client sees its stream end; the last frames of both sides are lost.
    fn cut(&mut self, who: usize, lost_up: usize, lost_down: usize) {
        let now = self.clock(who);
        let client = &mut self.clients[who];
        let Some(stream) = client.carrier.stream() else { return };
        let mut out = Vec::new();
        client.carrier.stream_lost(now, stream, &mut out);
        client.take(out);
        let up = client.up.entry(stream).or_default();
        up.truncate(up.len().saturating_sub(lost_up));
        client.closes = true;
        client.down.truncate(client.down.len().saturating_sub(lost_down));
        self.close(who);
    }

    /// The service announces the end of a stream, after its earlier items.
    fn announce(&mut self, who: usize) {
        let Some(stream) = self.clients[who].carrier.stream() else { return };
        let end = v1::StreamEnd { reason: StreamEndReason::NotLeader.into(), ..v1::StreamEnd::default() };
        let item = v1::ServerItem { session: 0, seq: 0, what: Some(Says::StreamEnd(end)) };
        self.clients[who].down.push_back((stream, vec![item]));
        self.peer.closed((who, stream), false);
        self.clients[who].up.remove(&stream);
    }

    /// Advances time in small steps and fires every timer: first the clients', then the service's.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            self.now_ms += 50;
            for who in 0..CLIENTS {
                let now = self.clock(who);
                if self.clients[who].machine.next_wake().is_some_and(|at| now >= at) {
                    self.feed(who, Event::Wake);
                }
                let client = &mut self.clients[who];
                if client.carrier.next_wake().is_some_and(|at| now >= at) {
                    let mut out = Vec::new();
                    client.carrier.wake(now, &mut out);
                    client.take(out);
                    assert!(client.carrier.next_wake().is_none_or(|at| now < at), "a busy loop");
                    self.close(who);
                }
            }
            self.peer.pass(self.now_ms);
            self.collect();
        }
    }

    /// The network heals and all holds are released; the table must be empty in the end.
    fn settle(&mut self) {
        for _ in 0..600 {
            for who in 0..CLIENTS {
                self.clients[who].reachable = true;
                self.connect(who);
                for _ in 0..20 {
                    self.send(who);
                    for stream in 0..self.clients[who].up.len() {
                        self.arrive(who, stream);
                    }
                    self.deliver(who);
                    self.hear(who, 0);
                    self.hear(who, 1);
                }
                for key in self.clients[who].held.keys().copied().collect::<Vec<_>>() {
                    self.clients[who].held.remove(&key);
                    self.feed(who, Event::Release { key });
                }
            }
            self.pass(100);
        }
        for client in &self.clients {
            for key in client.wanted.keys() {
                assert_eq!(client.outcomes.get(key), Some(&1), "{key:?} has one outcome");
            }
            assert!(client.machine.is_idle());
            self.resent += client.carrier.seen().resent;
        }
        let left = self.peer.table.names_in_use(None);
        assert!(left.is_empty(), "an orphan: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_orphan_is_left_and_no_lock_has_two_holders(
        acts in prop::collection::vec((0..22u8, 0..CLIENTS, any::<u8>()), 1..250)
    ) {
        let mut world = World::new();
        acts.into_iter().for_each(|act| world.act(act));
        world.settle();
    }
}

/// Checks that the world exercises the rules: locks are granted, and commands are sent again on later
/// streams.
#[test]
fn the_world_grants_and_resends_often() {
    let mut world = World::new();
    let mut number = 7u32;
    for _ in 0..4000 {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (what, who) = ((number >> 24) % 22, (number >> 16) as usize % CLIENTS);
        world.act((what as u8, who, (number >> 8) as u8));
    }
    world.settle();
    assert!(world.grants > 30, "{} grants", world.grants);
    assert!(world.resent > 20, "{} commands sent again", world.resent);
}
