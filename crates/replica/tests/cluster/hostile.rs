//! Messages that no correct peer with a sound disk sends. The engine would panic on some of them, so they
//! must not reach it.

use std::time::Duration;

use lockkeeper_core::Table;
use lockkeeper_replica::{Answer, Event, LostEntries, Question, Received, TICK};
use lockkeeper_wire::peer::{PeerKind, PeerMessage, SnapshotOffer, TableDigest};
use lockkeeper_wire::store::{Configuration, Entry, Member, Members, SnapshotHead};

use crate::harness::World;

impl World {
    /// Waits until a leader commits one more entry.
    fn works(&mut self, limit: u32) {
        let name: lockkeeper_core::LockName = "permits".parse().expect("a name");
        self.until("the cluster works", |world| {
            let leader = world.leader();
            let question = Question::SetLimit { name: name.clone(), limit: Some(limit) };
            (world.ask(leader, question) == Some(Answer::LimitSet)).then_some(())
        });
    }

    /// Removes at least so many last entries from the disk of a crashed node, as if the disk had confirmed
    /// syncs that it did not do.
    fn loses(&mut self, id: u64, entries: usize) {
        let records = &mut self.nodes.get_mut(&id).expect("it is there").records;
        let mut lost = 0;
        while lost < entries {
            lost += records.pop().expect("it has so many").entries.len();
        }
    }

    fn lost(&self) -> Vec<(u64, LostEntries)> {
        self.nodes.iter().filter_map(|(id, node)| Some((*id, node.lost?))).collect()
    }
}

#[test]
fn follower_with_lost_entries_stops_and_the_others_continue() {
    let mut world = World::new(3);
    let leader = world.leader();
    (1..=8).for_each(|limit| world.works(limit));
    world.pass(Duration::from_secs(1));
    let [loser, other] = world.others(leader)[..] else { panic!("there are three") };
    let last = world.node(loser).applied_index();
    world.crash(loser);
    world.loses(loser, 3);
    world.restart(loser);
    let lost = world.until("it notices", |world| world.nodes[&loser].lost);
    assert_eq!((lost.peer, lost.last), (leader, last - 3));
    assert!(lost.acknowledged > lost.last && lost.acknowledged <= last, "{lost:?}, {last}");
    world.works(9);
    assert_eq!(world.lost().len(), 1);
    assert_eq!((world.leader(), world.nodes[&other].lost), (leader, None));
}

/// Two of three nodes lose the same entries, and elect one of themselves before they are connected to the
/// third.
#[test]
fn leader_with_lost_entries_stops_and_the_intact_node_continues() {
    let mut world = World::new(3);
    let healthy = world.leader();
    (1..=8).for_each(|limit| world.works(limit));
    world.pass(Duration::from_secs(1));
    let losers = world.others(healthy);
    for id in [1, 2, 3] {
        world.crash(id);
    }
    losers.iter().for_each(|id| world.loses(*id, 3));
    losers.iter().for_each(|id| world.restart(*id));
    let elected = world.leader();
    assert!(losers.contains(&elected));
    world.restart(healthy);
    world.until("the leader notices", |world| world.nodes[&elected].lost);
    assert_eq!(world.nodes[&elected].lost.map(|lost| lost.peer), Some(healthy));
    assert_eq!(world.nodes[&healthy].lost, None);
}

/// Numbers from a seed (SplitMix64).
struct HostileNumbers(u64);

impl HostileNumbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number near a plausible value, near an overflow, or anywhere.
    fn number(&mut self, near: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1..=3 => near.wrapping_add(self.below(5)).wrapping_sub(2),
            4 => 1 << self.below(64),
            5 => (1_u64 << self.below(64)).wrapping_sub(1),
            6 => u64::MAX - self.below(3),
            _ => self.next(),
        }
    }

    fn message(&mut self, world: &World, from: u64, to: u64) -> PeerMessage {
        let node = world.node(to);
        let (term, last) = (node.term(), node.applied_index());
        let mut message = PeerMessage {
            from: if self.below(20) == 0 { self.number(from) } else { from },
            to,
            term: self.number(term),
            log_term: self.number(term),
            index: self.number(last),
            commit: self.number(last),
            commit_term: self.number(term),
            reject: self.below(2) == 0,
            reject_hint: self.number(last),
            context: vec![7; self.below(34) as usize],
            request_snapshot: if self.below(4) == 0 { self.number(last) } else { 0 },
            snapshot_at: self.number(last),
            digest: (self.below(2) == 0).then(|| TableDigest {
                index: self.number(last),
                high: self.next(),
                low: self.next(),
                format: self.number(1),
            }),
            ..PeerMessage::default()
        };
        message.kind = self.below(11) as i32;
        if self.below(3) == 0 {
            message.context = b"CampaignTransfer".to_vec();
        }
        let mut index = message.index;
        for _ in 0..self.below(3) {
            index = index.wrapping_add(1);
            let entry = Entry { index, term: self.number(term), kind: 1, data: Vec::new().into() };
            message.entries.push(entry);
        }
        message
    }

    fn snapshot(&mut self, world: &mut World, from: u64, to: u64) -> Event {
        let node = world.node(to);
        let (term, last) = (node.term(), node.applied_index());
        let mut ids = || -> Vec<u64> { (0..self.below(4)).map(|_| self.number(2)).collect() };
        let configuration =
            Configuration { voters: ids(), learners: ids(), voters_outgoing: ids(), learners_next: ids() };
        let nodes = configuration.voters.iter().map(|node| Member { node: *node, ..Member::default() });
        let members = Members {
            at: self.number(last),
            nodes: nodes.collect(),
            configuration: Some(configuration),
            ..Members::default()
        };
        let (index, head_term) = (self.number(last), self.number(term));
        let head = SnapshotHead { index, term: head_term, rules: 1, members: Some(members) };
        world.nodes.get_mut(&to).expect("it runs").sealed = Some((head.clone(), Vec::new()));
        let offer = SnapshotOffer { from, to, term: self.number(term), head: Some(head), bytes: 0 };
        Event::SnapshotReceived(Box::new(Received { offer, table: Table::new(0), bytes: 0 }))
    }
}

/// An attacker at a member's address sends arbitrary numbers, to receivers in all roles. A node may conclude
/// that its disk has lost entries and stop for that reason; no message may stop it otherwise or make it
/// panic.
#[test]
fn hostile_numbers_in_peer_messages_never_panic() {
    let (mut lost, mut whole) = (0, 0);
    for seed in 0..400 {
        let mut rng = HostileNumbers(seed);
        let mut world = World::new(3);
        world.leader();
        (1..=3).for_each(|limit| world.works(limit));
        for _ in 0..60 {
            let to = 1 + rng.below(3);
            let from = 1 + (to + rng.below(2)) % 3;
            if world.nodes[&to].lost.is_some() || world.nodes[&to].wrong.is_some() {
                continue;
            }
            let event = match rng.below(12) {
                0 => rng.snapshot(&mut world, from, to),
                _ => Event::Peer(vec![rng.message(&world, from, to)]),
            };
            world.turn(to, vec![event]);
            match rng.below(4) {
                0 => world.deliver(),
                1 => world.pass(TICK * rng.below(30) as u32),
                _ => {}
            }
        }
        if world.lost().is_empty() {
            whole += 1;
        } else {
            lost += 1;
        }
    }
    assert!(lost > 10 && whole > 10, "{lost} runs with a stop, {whole} without");
}

/// One node's term is so far ahead that a single message may not raise the others to it. All nodes still
/// reach one term.
#[test]
fn forged_terms_converge() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.works(1);
    let astray = world.others(leader)[0];
    for _ in 0..5 {
        let mut vote = PeerMessage { from: leader, to: astray, term: u64::MAX, ..PeerMessage::default() };
        vote.set_kind(PeerKind::Vote);
        vote.context = b"CampaignTransfer".to_vec();
        world.turn(astray, vec![Event::Peer(vec![vote])]);
    }
    assert!(world.node(astray).term() > 4 << 32, "{}", world.node(astray).term());
    world.works(2);
    world.until("all are of one term", |world| {
        let terms = [1, 2, 3].map(|id| world.node(id).term());
        (terms == [terms[0]; 3]).then_some(())
    });
    world.works(3);
    assert_eq!(world.lost(), []);
}

/// A leader that waited for a named entry that is never appended would take no snapshots, and its log would
/// grow without bound.
#[test]
fn unreachable_named_entry_does_not_block_snapshots() {
    let mut world = World::new(3);
    for id in [1, 2, 3] {
        world.crash(id);
        world.nodes.get_mut(&id).expect("it is there").snapshot_after = 1_600;
        world.restart(id);
    }
    let leader = world.leader();
    for to in world.others(leader) {
        let (term, commit) = (world.node(leader).term(), 0);
        let mut named = PeerMessage { from: leader, to, term, commit, ..PeerMessage::default() };
        named.set_kind(PeerKind::Heartbeat);
        named.snapshot_at = u64::MAX;
        world.turn(to, vec![Event::Peer(vec![named])]);
    }
    let to = world.others(leader)[0];
    let _ = world.ask(leader, Question::Transfer { to: Some(to) });
    world.until("it leads", |world| (world.leader() == to).then_some(()));
    (1..=30).for_each(|limit| world.works(limit));
    assert!(world.nodes[&to].stored.is_some(), "the new leader has taken none");
}
