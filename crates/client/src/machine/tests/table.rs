//! The machine against the real table, over a network that loses, delays and duplicates messages, with
//! clients' clocks whose rates differ from the service's by up to 0.9 %.
//!
//! Around the table, the service is a stub: it applies calls, and expires sessions that were silent for their
//! ttl on its own clock.

use std::collections::{BTreeMap, VecDeque};

use lockkeeper_core as core;
use lockkeeper_core::{Command, Effect, IfBusy, LockName, Mode, Reply, SessionId, Table};
use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const CLIENTS: usize = 3;

/// One client with its clock, and its messages in flight in both directions, in order.
struct Client {
    machine: Machine,
    /// Rate of the client's clock, in thousandths of the service's rate.
    rate: u64,
    session: Option<SessionId>,
    secret: [u8; 32],
    up: VecDeque<(CallId, CallKind)>,
    down: VecDeque<Event>,
    /// Calls of waiting acquires, until the table has granted or ended them.
    waiting: BTreeMap<Seq, CallId>,
    wanted: BTreeMap<Key, &'static str>,
    outcomes: BTreeMap<Key, u32>,
    held: BTreeMap<Key, u64>,
    cut_off: bool,
}

struct World {
    now_ms: u64,
    table: Table,
    deadlines: BTreeMap<SessionId, u64>,
    clients: Vec<Client>,
    last_token: BTreeMap<&'static str, u64>,
    next_key: u64,
    grants: usize,
}

const NAMES: [&str; 2] = ["a", "b"];

impl World {
    fn new() -> Self {
        let client = |index: usize| Client {
            machine: Machine::new(spec()),
            rate: [1000, 991, 1009][index],
            session: None,
            secret: [index as u8 + 1; 32],
            up: VecDeque::new(),
            down: VecDeque::new(),
            waiting: BTreeMap::new(),
            wanted: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            held: BTreeMap::new(),
            cut_off: false,
        };
        Self {
            now_ms: 1_000_000,
            table: Table::new(0),
            deadlines: BTreeMap::new(),
            clients: (0..CLIENTS).map(client).collect(),
            last_token: BTreeMap::new(),
            next_key: 1,
            grants: 0,
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
                Output::Call { call, kind, .. } => client.up.push_back((call, kind)),
                Output::Granted { key, grant } => {
                    *client.outcomes.entry(key).or_default() += 1;
                    let token = grant.token.expect("the table gives tokens").get();
                    client.held.insert(key, token);
                    let name = client.wanted[&key];
                    let last = self.last_token.insert(name, token).unwrap_or(0);
                    assert!(token > last, "token {token} of {name} after {last} (P2)");
                    self.grants += 1;
                }
                Output::NotAcquired { key, .. } => *client.outcomes.entry(key).or_default() += 1,
                Output::Lost { key, .. } | Output::Released { key, .. } => drop(client.held.remove(&key)),
                Output::Recalled { .. } | Output::Attached(_) => {}
                Output::LeaseDeadline(_) | Output::Queued { .. } => {}
            }
        }
        self.check();
    }

    /// P1 with P5: at no moment do two clients hold one lock, each by its own clock.
    fn check(&self) {
        for name in NAMES {
            let holders = (0..CLIENTS).flat_map(|who| {
                let client = &self.clients[who];
                let now = self.clock(who);
                let has_lease = client.machine.lease_deadline.is_some_and(|until| now < until);
                let held = client.held.keys().filter(move |key| has_lease && client.wanted[key] == name);
                held.map(move |key| (who, *key))
            });
            let holders: Vec<_> = holders.collect();
            assert!(holders.len() <= 1, "{name} is held by {holders:?} at {}", self.now_ms);
        }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let mut effects = Vec::new();
        let reply = self.table.apply_whole(command, &mut effects);
        for effect in effects {
            match effect {
                Effect::SessionEnded { session } => {
                    self.deadlines.remove(&session);
                    if let Some(client) = self.clients.iter_mut().find(|c| c.session == Some(session)) {
                        for (_, call) in std::mem::take(&mut client.waiting) {
                            client.down.push_back(Event::Answered { call, answer: Answer::SessionGone });
                        }
                    }
                }
                Effect::Granted { session, seq, grant } => {
                    if let Some(client) = self.clients.iter_mut().find(|c| c.session == Some(session))
                        && let Some(call) = client.waiting.remove(&seq)
                    {
                        let answer = granted(grant.token.get());
                        client.down.push_back(Event::Answered { call, answer });
                    }
                }
                _ => {}
            }
        }
        reply
    }

    /// Delivers a client's next call to the service: `twice`, if it is to be duplicated. If `lose`, the
    /// answer is lost.
    fn arrive(&mut self, who: usize, lose: bool, twice: bool) {
        let Some((call, kind)) = self.clients[who].up.pop_front() else { return };
        let answer = self.execute(who, call, &kind);
        if twice && !matches!(kind, CallKind::Open { .. } | CallKind::Close) {
            // The duplicate's answer is discarded.
            let _ = self.execute(who, CallId(0), &kind);
        }
        match answer {
            _ if lose => {
                self.clients[who].waiting.retain(|_, waits| *waits != call);
                self.clients[who].down.push_back(Event::Failed { call, sent: true });
            }
            Some(answer) => self.clients[who].down.push_back(Event::Answered { call, answer }),
            None => {}
        }
    }

    fn execute(&mut self, who: usize, call: CallId, kind: &CallKind) -> Option<Answer> {
        if let CallKind::Open { fresh } = kind {
            let client = &mut self.clients[who];
            if *fresh {
                // Call ids are never reused, so the secret is new each time; the remaining bytes identify the
                // client.
                client.secret[..8].copy_from_slice(&call.0.to_le_bytes());
                client.waiting.clear();
            }
            let secret_hash = client.secret;
            let ttl_ms = TTL.as_millis() as u64;
            let open = core::OpenSession {
                secret_hash,
                ttl_ms,
                lock_delay_ms: 0,
                linger_ms: 0,
                label: "c".into(),
                identity: "".into(),
            };
            let Reply::Opened { session } = self.apply(Command::OpenSession(open)) else {
                panic!("not opened")
            };
            self.clients[who].session = Some(session);
            self.deadlines.insert(session, self.now_ms + ttl_ms);
            return Some(Answer::Opened);
        }
        let session = self.clients[who].session?;
        let reply = match kind.clone() {
            CallKind::Open { .. } => return None,
            CallKind::KeepAlive => {
                if self.table.session(session).is_none() {
                    return Some(Answer::SessionGone);
                }
                self.deadlines.insert(session, self.now_ms + TTL.as_millis() as u64);
                return Some(Answer::KeptAlive);
            }
            CallKind::Close => {
                let _ = self.apply(Command::CloseSession { session });
                return Some(Answer::Closed);
            }
            CallKind::Settle { seq, target, done_through } => {
                self.apply(Command::Settle { session, seq, target, done_through })
            }
            CallKind::Finish { seq, target, done_through } => {
                self.clients[who].waiting.remove(&target);
                self.apply(Command::Finish { session, seq, target, done_through })
            }
            CallKind::Acquire { key, seq, done_through, .. } => {
                let name: LockName = self.clients[who].wanted[&key].parse().expect("a good name");
                self.apply(Command::Acquire(core::Acquire {
                    session,
                    seq,
                    done_through,
                    names: vec![name],
                    mode: Mode::Exclusive,
                    subtree: false,
                    if_busy: IfBusy::WAIT,
                    keep_closed_ms: 0,
                    value: Box::default(),
                    meta: Box::default(),
                    spare_tokens: 0,
                    holding: Box::default(),
                }))
            }
        };
        Some(match reply {
            Reply::Granted(grant) => granted(grant.token.get()),
            Reply::Finished(end) => Answer::Finished(end),
            Reply::Revoked { .. } => Answer::Revoked,
            Reply::Queued { position, .. } => {
                if let CallKind::Acquire { seq, .. } = kind {
                    if call != CallId(0) {
                        self.clients[who].waiting.insert(*seq, call);
                    }
                    self.clients[who].down.push_back(Event::Pushed(Push::Queued { seq: *seq, position }));
                }
                return None;
            }
            Reply::SessionGone => Answer::SessionGone,
            other => panic!("{other:?}"),
        })
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
            }
            let silent: Vec<SessionId> =
                self.deadlines.iter().filter(|(_, at)| **at <= self.now_ms).map(|(id, _)| *id).collect();
            for session in silent {
                let _ = self.apply(Command::ExpireSession { session });
            }
        }
    }

    fn deliver(&mut self, who: usize) {
        if let Some(event) = self.clients[who].down.pop_front() {
            self.feed(who, event);
        }
    }

    fn act(&mut self, (what, who, number): (u8, usize, u8)) {
        let name = NAMES[usize::from(number) % NAMES.len()];
        match what {
            0..=2 => {
                let key = Key(self.next_key);
                self.next_key += 1;
                self.clients[who].wanted.insert(key, name);
                let limit = Duration::from_secs(5);
                let wait_until = (number % 3 == 0).then(|| self.clock(who) + limit);
                self.feed(who, Event::Acquire { key, limits: AcquireLimits { wait_until, ..limits() } });
            }
            3 => self.give_back(who, number, true),
            4 => self.give_back(who, number, false),
            5..=9 => self.arrive(who, number % 8 == 0, number % 8 == 1),
            10..=14 => self.deliver(who),
            15 => self.pass(u64::from(number) * 20),
            _ if self.clients[who].cut_off => self.clients[who].cut_off = false,
            // The client's next call is lost.
            _ => {
                if let Some((call, _)) = self.clients[who].up.pop_front() {
                    self.clients[who].down.push_back(Event::Failed { call, sent: number % 2 == 0 });
                }
            }
        }
    }

    fn give_back(&mut self, who: usize, number: u8, release: bool) {
        let held: Vec<Key> = self.clients[who].held.keys().copied().collect();
        let open: Vec<Key> = self.clients[who]
            .wanted
            .keys()
            .filter(|key| !self.clients[who].outcomes.contains_key(key))
            .copied()
            .collect();
        if release && !held.is_empty() {
            let key = held[usize::from(number) % held.len()];
            self.clients[who].held.remove(&key);
            self.feed(who, Event::Release { key });
        } else if !release && !open.is_empty() {
            let key = open[usize::from(number) % open.len()];
            // An abandoned request must not get an outcome: it is counted as having its one already, so that
            // `settle` finds another.
            self.clients[who].outcomes.insert(key, 1);
            self.feed(who, Event::Abandon { key });
        }
    }

    /// The network loses nothing any more, and all holds are released. In the end each request has had one
    /// outcome, and the table is empty.
    fn settle(&mut self) {
        for _ in 0..400 {
            for who in 0..CLIENTS {
                while !(self.clients[who].up.is_empty() && self.clients[who].down.is_empty()) {
                    self.arrive(who, false, false);
                    self.deliver(who);
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
        }
        assert!(self.table.names_in_use(None).is_empty(), "an orphan: {:?}", self.table.names_in_use(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_orphan_is_left_and_no_lock_has_two_holders(
        acts in prop::collection::vec((0..18u8, 0..CLIENTS, any::<u8>()), 1..150)
    ) {
        let mut world = World::new();
        acts.into_iter().for_each(|act| world.act(act));
        world.settle();
    }
}
