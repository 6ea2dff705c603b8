//! Deadlocks (K2): all small graphs of holds and waits, and the bound of the search.

use std::collections::BTreeMap;

use lockkeeper_core::limits::DEADLOCK_LISTED_MAX;
use lockkeeper_core::{
    Acquire, Command, Cycle, Effects, IfBusy, LockName, Mode, OpenSession, Rejection, Reply, Seq, SessionId,
    Table, Token,
};
use lockkeeper_corpus::size;

/// A table with one session. All requests are of that session: who asks does not matter.
struct Asking {
    table: Table,
    session: SessionId,
    seq: u64,
}

impl Asking {
    fn new() -> Self {
        let mut table = Table::new(1);
        let open = OpenSession {
            secret_hash: [1; 32],
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: "x".repeat(256).into(),
            identity: Box::default(),
        };
        let Reply::Opened { session } = table.apply(Command::OpenSession(open), &mut Effects::new()) else {
            panic!("a session can be opened")
        };
        Self { table, session, seq: 0 }
    }

    fn acquire(&mut self, names: Vec<LockName>, mode: Mode, holding: Vec<Token>) -> Reply {
        self.seq += 1;
        let acquire = Acquire {
            session: self.session,
            seq: Seq(self.seq),
            done_through: Seq(self.seq - 1),
            names,
            mode,
            subtree: false,
            if_busy: IfBusy::WAIT,
            keep_closed_ms: 0,
            value: Box::default(),
            meta: Box::default(),
            spare_tokens: 0,
            holding: holding.into(),
        };
        let command = Command::Acquire(acquire);
        let (before, visits_max) = (self.table.visits(), command.visits_max_with(1));
        let reply = self.table.apply(command, &mut Effects::new());
        let visits = self.table.visits() - before;
        assert!(visits <= visits_max, "{visits} entries were visited, {visits_max} are allowed");
        reply
    }

    fn hold(&mut self, name: &str, mode: Mode) -> Token {
        match self.acquire(vec![parse(name)], mode, Vec::new()) {
            Reply::Granted(grant) => grant.token,
            other => panic!("{other:?}"),
        }
    }

    fn finish(&mut self, target: u64) {
        self.seq += 1;
        let (seq, done_through) = (Seq(self.seq), Seq(self.seq - 1));
        let finish = Command::Finish { session: self.session, seq, target: Seq(target), done_through };
        let reply = self.table.apply(finish, &mut Effects::new());
        assert!(matches!(reply, Reply::Finished(_)), "{reply:?}");
    }
}

fn parse(name: &str) -> LockName {
    LockName::parse(name).expect("a legal name")
}

fn cycle(reply: Reply) -> Option<Cycle> {
    match reply {
        Reply::Refused(Rejection::Deadlock { cycle }) => Some(cycle),
        _ => None,
    }
}

/// A request of the plain model: its names and the holds that it declares are sets of bits.
#[derive(Clone, Copy)]
struct Plain {
    names: u8,
    shared: bool,
    waits: bool,
    declares: u8,
}

impl Plain {
    fn conflicts(self, other: Self) -> bool {
        self.names & other.names != 0 && !(self.shared && other.shared)
    }
}

/// Whether the last request, a wait, can be reached from itself. The first three are the holds that can be
/// declared, and all are in the order of their arrival.
fn has_cycle(requests: &[Plain]) -> bool {
    let new = requests.len() - 1;
    let next = |at: usize| -> u32 {
        let one = requests[at];
        let goes_on_after = |other: usize| match one.waits {
            true => one.conflicts(requests[other]) && (!requests[other].waits || other < at),
            false => at < 3 && requests[other].waits && requests[other].declares >> at & 1 == 1,
        };
        (0..requests.len()).filter(|&other| other != at && goes_on_after(other)).map(|other| 1 << other).sum()
    };
    let mut reached = next(new);
    loop {
        let more = (0..=new).filter(|at| reached >> at & 1 == 1).fold(reached, |all, at| all | next(at));
        if more >> new & 1 == 1 || more == reached {
            return more >> new & 1 == 1;
        }
        reached = more;
    }
}

/// Holds of three names, and every sequence of requests behind them: for one or two names, exclusive or
/// shared, with every set of declared holds.
struct Graphs {
    asking: Asking,
    tokens: Vec<Token>,
    requests: Vec<Plain>,
    /// Graphs without and with a cycle.
    found: [u64; 2],
    names: &'static [u8],
}

impl Graphs {
    fn extend(&mut self, depth: usize) {
        if depth == 0 {
            return;
        }
        for &names in self.names {
            for shared in [false, true] {
                for declares in 0..8 {
                    self.add(Plain { names, shared, waits: true, declares }, depth);
                }
            }
        }
    }

    fn add(&mut self, mut new: Plain, depth: usize) {
        new.waits = self.requests.iter().any(|other| new.conflicts(*other));
        self.requests.push(new);
        let names = bits(new.names).map(|bit| parse(["a", "b", "c"][bit])).collect();
        let holding = bits(new.declares).map(|bit| self.tokens[bit]).collect();
        let mode = if new.shared { Mode::Shared } else { Mode::Exclusive };
        let reply = self.asking.acquire(names, mode, holding);
        let target = self.asking.seq;
        let is_refused = match reply {
            Reply::Granted(_) => {
                assert!(!new.waits);
                false
            }
            Reply::Queued { .. } => {
                assert!(
                    !has_cycle(&self.requests),
                    "no cycle was found in {:?}",
                    self.asking.table.snapshot()
                );
                false
            }
            Reply::Refused(Rejection::Deadlock { .. }) => {
                assert!(has_cycle(&self.requests), "a cycle was seen in {:?}", self.asking.table.snapshot());
                true
            }
            other => panic!("{other:?}"),
        };
        self.found[usize::from(is_refused)] += 1;
        if !is_refused {
            self.extend(depth - 1);
            self.asking.finish(target);
        }
        self.requests.pop();
    }
}

fn bits(set: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |bit| set >> bit & 1 == 1)
}

#[test]
fn every_small_graph_is_judged_rightly() {
    let mut found = [0, 0];
    for shared_holds in 0..8_u8 {
        let mut asking = Asking::new();
        let (mut tokens, mut requests) = (Vec::new(), Vec::new());
        for (bit, name) in ["a", "b", "c"].into_iter().enumerate() {
            let shared = shared_holds >> bit & 1 == 1;
            tokens.push(asking.hold(name, if shared { Mode::Shared } else { Mode::Exclusive }));
            requests.push(Plain { names: 1 << bit, shared, waits: false, declares: 0 });
        }
        // Names are alike, so the long graphs need not have all pairs of them.
        let names: &[u8] = size(&[1, 2, 4], &[1, 2, 4, 3], &[1, 2, 4, 3, 5, 6]);
        let mut graphs = Graphs { asking, tokens, requests, found: [0, 0], names };
        graphs.extend(3);
        for (sum, more) in found.iter_mut().zip(graphs.found) {
            *sum += more;
        }
    }
    eprintln!("{} graphs without a cycle, {} with one", found[0], found[1]);
    assert!(found.iter().all(|&count| count > 10_000), "{found:?}");
}

/// A wait for a lock that is at the end of a chain of locks, each held by one that waits for the next.
fn chain(asking: &mut Asking, name: &str, waits: usize) -> (Token, LockName) {
    let tokens: Vec<Token> =
        (0..=waits).map(|link| asking.hold(&format!("{name}/{link}"), Mode::Exclusive)).collect();
    for (link, &token) in tokens[..waits].iter().enumerate() {
        let next = parse(&format!("{name}/{}", link + 1));
        let queued = asking.acquire(vec![next], Mode::Exclusive, vec![token]);
        assert!(matches!(queued, Reply::Queued { .. }), "{queued:?}");
    }
    (tokens[waits], parse(&format!("{name}/0")))
}

#[test]
fn chains_in_a_crowd_are_followed_to_their_ends() {
    let mut asking = Asking::new();
    for number in 0..size(10, 100, 100) {
        let (last, first) = chain(&mut asking, &format!("chain{number}"), 100);
        let cycle = cycle(asking.acquire(vec![first], Mode::Exclusive, vec![last])).expect("a cycle");
        assert_eq!((cycle.requests.len(), cycle.left_out), (DEADLOCK_LISTED_MAX, 202 - DEADLOCK_LISTED_MAX));
        assert!(cycle.to_string().len() < 10 << 10, "{cycle}");
        assert_eq!(cycle.requests.last().and_then(|last| last.token), Some(last));
    }
}

/// Beyond the bound of the search, a wait queues although it never ends.
#[test]
fn search_has_a_bound() {
    let mut asking = Asking::new();
    let (last, first) = chain(&mut asking, "long", 200);
    let reply = asking.acquire(vec![first], Mode::Exclusive, vec![last]);
    assert!(matches!(reply, Reply::Queued { .. }), "{reply:?}");
}

/// All waits of one queue have the same before them, which is visited once.
#[test]
fn long_queue_is_visited_once() {
    let mut asking = Asking::new();
    let tokens = ["a", "b"].map(|name| asking.hold(name, Mode::Exclusive));
    for _ in 0..200 {
        let queued = asking.acquire(vec![parse("a")], Mode::Exclusive, Vec::new());
        assert!(matches!(queued, Reply::Queued { .. }), "{queued:?}");
    }
    let queued = asking.acquire(vec![parse("b")], Mode::Exclusive, vec![tokens[0]]);
    assert!(matches!(queued, Reply::Queued { .. }), "{queued:?}");
    let cycle = cycle(asking.acquire(vec![parse("a")], Mode::Shared, vec![tokens[1]]));
    assert!(cycle.is_some_and(|cycle| cycle.requests.len() == 4), "not the shortest cycle");
}

/// Of many readers one wants to write: its own hold is found, wherever it is among the others.
#[test]
fn upgrade_among_many_readers_is_refused() {
    let mut asking = Asking::new();
    let tokens: Vec<Token> = (0..5_000).map(|_| asking.hold("a", Mode::Shared)).collect();
    let mut texts = BTreeMap::new();
    for token in [tokens[0], tokens[3_000], tokens[4_999]] {
        let cycle = cycle(asking.acquire(vec![parse("a")], Mode::Exclusive, vec![token])).expect("a cycle");
        texts.insert(token, cycle.to_string());
    }
    assert_eq!(texts.len(), 3);
    assert!(texts.iter().all(|(token, text)| text.contains(&format!("with token {token}"))), "{texts:?}");
}
