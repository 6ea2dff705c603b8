//! Snapshots sent to nodes that lag behind the start of the leader's log.

use std::time::Duration;

use lockkeeper_replica::mutant::Mutant;
use lockkeeper_replica::{Answer, Change, Event, Question, StreamId};
use lockkeeper_wire::peer::SnapshotOffer;
use lockkeeper_wire::v1;

use crate::harness::{World, member};
use crate::items::{acquire, finish, granted};

const SECOND: Duration = Duration::from_secs(1);

/// Three nodes that keep no applied entries in memory, and a client of the leader that counts its seqs.
struct Busy {
    world: World,
    leader: u64,
    stream: StreamId,
    session: u64,
    seq: u64,
}

impl Busy {
    fn new(mutant: Option<Mutant>) -> Self {
        let mut world = World::new(3);
        for id in 1..=3 {
            world.crash(id);
            let node = world.nodes.get_mut(&id).expect("it is there");
            (node.tail_bytes, node.mutant) = (0, mutant);
            world.restart(id);
        }
        let leader = world.leader();
        let stream = world.stream(leader, 1);
        let session = world.open(leader, stream, 1, 60_000, 0);
        Self { world, leader, stream, session, seq: 0 }
    }

    /// Acquires and releases a lock; partitioned nodes don't receive the entries.
    fn work(&mut self) {
        self.seq += 2;
        let (target, name) = (self.seq - 1, format!("lock{}", self.seq));
        let items = vec![acquire(self.session, target, &name, false), finish(self.session, self.seq, target)];
        self.world.send(self.leader, self.stream, items);
    }

    /// A cluster in which one follower needs entries that the leader no longer has in memory.
    fn with_a_laggard(mutant: Option<Mutant>) -> (Self, u64) {
        let mut busy = Self::new(mutant);
        let laggard = busy.world.others(busy.leader)[0];
        busy.world.cut_off(laggard);
        busy.world.pass(SECOND);
        busy.stream = busy.world.stream(busy.leader, 2);
        busy.session = busy.world.open(busy.leader, busy.stream, 2, 60_000, 0);
        busy.seq = 0;
        for _ in 0..20 {
            busy.work();
        }
        busy.world.heal();
        (busy, laggard)
    }

    fn offer(&mut self) -> SnapshotOffer {
        let leader = self.leader;
        self.world.until("that a snapshot is sent", |world| world.nodes.get_mut(&leader)?.offers.pop())
    }

    fn digest(&self, id: u64) -> u128 {
        self.world.node(id).table().snapshot().digest()
    }

    fn catches_up(&mut self, id: u64) {
        let leader = self.leader;
        self.world.until("that it has caught up", |world| {
            (world.node(id).applied_index() == world.node(leader).applied_index()).then_some(())
        });
        assert_eq!(self.digest(id), self.digest(leader));
    }
}

#[test]
fn laggard_gets_a_snapshot_then_log_entries() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    let offer = busy.offer();
    assert_eq!(offer.to, laggard);
    busy.world.carry(offer);
    busy.catches_up(laggard);
    busy.work();
    busy.catches_up(laggard);
    assert!(busy.world.nodes[&busy.leader].offers.is_empty(), "one was enough");
    // The follower restarts from the received snapshot.
    busy.world.crash(laggard);
    busy.world.restart(laggard);
    busy.catches_up(laggard);
    // The follower can lead from that state.
    busy.world.crash(busy.leader);
    let next = busy.world.leader();
    assert_ne!(next, busy.leader);
}

/// Before a campaign, the engine scans the committed entries that it takes for unapplied. A snapshot has
/// replaced those, so the engine must count them as applied.
#[test]
fn node_can_campaign_right_after_installing_a_snapshot() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    let offer = busy.offer();
    let index = offer.head.as_ref().expect("a head").index;
    busy.world.carry(offer);
    busy.world
        .until("that it is installed", |world| (world.node(laggard).applied_index() >= index).then_some(()));
    let term = busy.world.node(laggard).term();
    busy.world.cut_off(laggard);
    busy.world.pass(SECOND);
    assert_eq!(
        busy.world.node(laggard).leader(),
        0,
        "it has begun to look for another leader than that of term {term}"
    );
    busy.world.heal();
    busy.catches_up(laggard);
}

/// The stored snapshot is older than the entry that added the node. The node would ignore such a snapshot,
/// and would be sent it again and again.
#[test]
fn new_node_gets_a_snapshot_with_its_membership() {
    let mut busy = Busy::new(None);
    let leader = busy.leader;
    for id in 1..=3 {
        busy.world.crash(id);
        busy.world.nodes.get_mut(&id).expect("it is there").snapshot_after = 4_000;
        busy.world.restart(id);
    }
    busy.leader = busy.world.leader();
    busy.stream = busy.world.stream(busy.leader, 3);
    busy.session = busy.world.open(busy.leader, busy.stream, 3, 60_000, 0);
    busy.seq = 0;
    for _ in 0..40 {
        busy.work();
    }
    let stored = busy.world.nodes[&busy.leader].stored.clone().expect("a snapshot was taken").0;
    assert!(stored.index > 0, "{leader}");
    busy.world.nodes.get_mut(&busy.leader).expect("it is there").offers.clear();

    busy.world.join(4, (1..=3).map(member).collect());
    let added = busy.world.ask(busy.leader, Question::Change(Change::Add(member(4))));
    assert_eq!(added, Some(Answer::Changed));
    let offer = busy.offer();
    let head = offer.head.clone().expect("a head");
    assert!(head.members.expect("members").nodes.iter().any(|member| member.node == 4));
    assert!(head.index > stored.index);
    busy.world.carry(offer);
    busy.catches_up(4);
    let leader = busy.leader;
    busy.world.until("its vote", |world| world.node(leader).members().votes(4).then_some(()));
    assert!(busy.world.nodes[&4].unused.is_empty());
}

/// Entries dropped while the snapshot was in transit would require another snapshot, and so on.
#[test]
fn entries_after_a_snapshot_are_kept_until_it_arrives() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    let offer = busy.offer();
    for _ in 0..50 {
        busy.work();
        busy.world.tick();
    }
    busy.world.carry(offer);
    busy.catches_up(laggard);
    assert!(busy.world.nodes[&busy.leader].offers.is_empty(), "one was enough");
    // From here on no entries are kept: a node that lags again needs another snapshot.
    busy.world.pass(SECOND);
    busy.world.cut_off(laggard);
    busy.world.pass(SECOND);
    busy.work();
    busy.world.heal();
    busy.catches_up_by_any_means(laggard);
}

impl Busy {
    fn catches_up_by_any_means(&mut self, id: u64) {
        let leader = self.leader;
        self.world.until_carrying("that it has caught up", |world| {
            (world.node(id).applied_index() == world.node(leader).applied_index()).then_some(())
        });
    }
}

/// As in `entries_after_a_snapshot_are_kept_until_it_arrives`, with the retention of entries disabled.
#[test]
fn unpinned_entries_cause_endless_snapshots() {
    let (mut busy, laggard) = Busy::with_a_laggard(Some(Mutant::TailNotPinned));
    for _ in 0..3 {
        let offer = busy.offer();
        assert_eq!(offer.to, laggard);
        for _ in 0..5 {
            busy.work();
        }
        busy.world.carry(offer);
    }
}

/// A table must not go back: tokens would be issued twice (P2).
#[test]
fn outdated_snapshot_is_not_installed() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    let offer = busy.offer();
    busy.world.carry(offer.clone());
    busy.catches_up(laggard);
    for _ in 0..5 {
        busy.work();
    }
    busy.world.pass(SECOND);
    let (before, index) = (busy.digest(laggard), busy.world.node(laggard).applied_index());
    busy.world.carry(offer.clone());
    assert_eq!((busy.digest(laggard), busy.world.node(laggard).applied_index()), (before, index));
    let head = offer.head.expect("a head");
    assert_eq!(busy.world.nodes[&laggard].unused, [head.index]);
    busy.work();
    busy.catches_up(laggard);
}

#[test]
fn lost_snapshot_is_sent_again() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    for _ in 0..3 {
        let offer = busy.offer();
        busy.world.turn(busy.leader, vec![Event::SnapshotSent { to: offer.to, arrived: false }]);
    }
    let offer = busy.offer();
    busy.world.carry(offer);
    busy.catches_up(laggard);
}

#[test]
fn deposed_leaders_snapshot_is_not_installed() {
    let (mut busy, laggard) = Busy::with_a_laggard(None);
    let offer = busy.offer();
    let first = busy.leader;
    busy.world.crash(first);
    // Both remaining nodes are needed for a majority, and the one that lags needs the other one's snapshot.
    let second = busy.world.until_carrying("another leader", |world| {
        let mut others = world.others(first).into_iter();
        others.find(|id| world.node(*id).is_ready())
    });
    assert_ne!(second, laggard, "it lacked what was committed");
    let stream = busy.world.stream(second, 9);
    let session = busy.world.open(second, stream, 9, 60_000, 0);
    let token = granted(&busy.world.send(second, stream, vec![acquire(session, 1, "z", false)]));
    assert!(token.is_some());
    busy.world.restart(first);
    busy.leader = second;
    let applied = busy.world.node(laggard).applied_index();
    busy.world.carry(offer);
    assert_eq!(busy.world.node(laggard).applied_index(), applied);
    busy.catches_up_by_any_means(laggard);
    assert_eq!(busy.digest(laggard), busy.digest(second));
}

/// As in `outdated_snapshot_is_not_installed`, with the check of the snapshot's age disabled.
#[test]
fn snapshot_accepted_unchecked_sets_the_table_back() {
    let (mut busy, laggard) = Busy::with_a_laggard(Some(Mutant::SnapshotGoesBack));
    let offer = busy.offer();
    busy.world.carry(offer.clone());
    busy.catches_up(laggard);
    for _ in 0..5 {
        busy.work();
    }
    busy.world.pass(SECOND);
    busy.world.carry(offer);
    assert_ne!(busy.digest(laggard), busy.digest(busy.leader));
}

/// Only the leader and a node that lags are running. Nothing that the leader proposes, not even a `Resume`,
/// is committed before that node has caught up. So the leader must be able to take a snapshot of a table that
/// has a backlog.
#[test]
fn leader_with_a_backlog_can_send_a_snapshot() {
    let mut busy = Busy::new(None);
    let others = busy.world.others(busy.leader);
    let (laggard, next) = (others[0], others[1]);
    busy.world.cut_off(laggard);
    let seqs: Vec<u64> = (1..=40_000).collect();
    for part in seqs.chunks(1_000) {
        let held = part.iter().map(|&seq| acquire(busy.session, seq, &format!("held/{seq}"), false));
        busy.world.send(busy.leader, busy.stream, held.collect());
    }
    // The leader crashes before it has worked off the backlog of this command.
    let what = Some(v1::client_item::What::Close(v1::CloseSession {}));
    let close = v1::ClientItem { session: busy.session, what };
    busy.world.say(busy.leader, busy.stream, vec![close]);
    let has_backlog = |world: &World| world.node(next).table().has_backlog();
    for _ in 0..100 {
        let turn = if busy.world.arrive(next) { busy.leader } else { next };
        if has_backlog(&busy.world) {
            break;
        }
        busy.world.arrive(turn);
        busy.world.turn(busy.leader, Vec::new());
    }
    assert!(has_backlog(&busy.world), "the follower has applied the end of the session");
    busy.world.crash(busy.leader);
    assert!(has_backlog(&busy.world));
    busy.world.heal();
    busy.leader = busy.world.until_carrying("a leader", |world| {
        [laggard, next].into_iter().find(|&id| world.node(id).is_ready())
    });
    assert_eq!(busy.leader, next);
    busy.world.until_carrying("that nothing is left", |world| {
        (world.node(next).table().request_count() == 0 && !world.node(next).table().has_backlog())
            .then_some(())
    });
    busy.catches_up(laggard);
}
