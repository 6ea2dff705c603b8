//! Comparison of table digests at named entries: only the node with the wrong table stops.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper_replica::mutant::Mutant;
use lockkeeper_replica::{Answer, Difference, Question};

use crate::harness::World;

/// A cluster whose nodes take snapshots often. One node may drop session labels, so that its table differs.
struct Counting {
    world: World,
    leader: u64,
    rounds: u32,
}

impl Counting {
    /// Three nodes. `leader` leads, and `wrong` builds a different table; 0: no node does.
    fn new(leader: u64, wrong: u64) -> Self {
        Self::of(3, 1_600, leader, wrong)
    }

    /// `count` nodes that take a snapshot after `snapshot_after` bytes of log.
    fn of(count: u64, snapshot_after: u64, leader: u64, wrong: u64) -> Self {
        let mut world = World::new(count);
        for id in 1..=count {
            world.crash(id);
            let node = world.nodes.get_mut(&id).expect("it is there");
            node.snapshot_after = snapshot_after;
            node.mutant = Some(Mutant::LabelsForgotten).filter(|_| id == wrong);
            world.restart(id);
        }
        let first = world.leader();
        if first != leader {
            let led = world.ask(first, Question::Transfer { to: Some(leader) });
            assert!(led.is_none_or(|led| led == Answer::Transferred { leader }));
            world.until("that it leads", |world| (world.leader() == leader).then_some(()));
        }
        let stream = world.stream(leader, 1);
        world.open(leader, stream, 1, 3_600_000, 0);
        Self { world, leader, rounds: 0 }
    }

    /// Stores a permit limit, then ticks, so that a heartbeat can carry the named entry to the followers.
    /// Only seven names are used, so that snapshots stay small and the next one is due soon.
    fn count(&mut self) {
        self.rounds += 1;
        let name = format!("permits/{}", self.rounds % 7).parse().expect("a name");
        let limit = Some(self.rounds);
        let stored = self.world.ask(self.leader, Question::SetLimit { name, limit });
        assert_eq!(stored, Some(Answer::LimitSet), "round {}", self.rounds);
        self.world.tick();
    }

    /// Proposes enough entries for one or two snapshots on every node.
    fn work(&mut self) {
        for _ in 0..30 {
            self.count();
        }
    }

    /// Works until the leader has found a difference. At that moment its next snapshot is far from due.
    fn work_until_found(&mut self) {
        while self.differ(self.leader).is_empty() {
            assert!(self.rounds < 1_000, "it must be found");
            self.count();
        }
    }

    /// Index of the last entry in a node's stored snapshot.
    fn stored(&self, id: u64) -> u64 {
        self.world.nodes[&id].stored.as_ref().map_or(0, |(head, _)| head.index)
    }

    fn differ(&self, id: u64) -> &[Difference] {
        &self.world.nodes[&id].differ
    }

    fn wrong(&self) -> Vec<u64> {
        self.world.nodes.iter().filter(|(_, node)| node.wrong.is_some()).map(|(id, _)| *id).collect()
    }
}

#[test]
fn all_nodes_take_snapshots_after_the_named_entry() {
    let mut counting = Counting::new(1, 0);
    let mut last = 0;
    for _ in 0..10 {
        counting.work();
        let stored = [1, 2, 3].map(|id| counting.stored(id));
        assert!(stored[0] > last, "{stored:?} after {last}");
        assert_eq!(stored, [stored[0]; 3]);
        last = stored[0];
    }
    counting.world.pass(Duration::from_secs(30));
    assert_eq!((counting.wrong(), counting.differ(1)), (vec![], &[][..]), "all tables are one");
}

#[test]
fn follower_with_wrong_table_stops_and_the_others_continue() {
    let mut counting = Counting::new(1, 2);
    counting.work();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    let [Difference { index, own, node: 2, theirs }] = *counting.differ(1) else {
        panic!("{:?}", counting.differ(1))
    };
    let said = Difference { index, own: theirs, node: 1, theirs: own };
    assert_eq!(counting.world.nodes[&2].wrong, Some(said), "both tell both values");
    counting.work();
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
    assert_eq!(counting.world.leader(), 1);
}

/// Two of three nodes differ from the leader: only the leader stops.
#[test]
fn leader_with_wrong_table_stops_and_another_is_elected() {
    let mut counting = Counting::new(2, 2);
    // The leader stops once both followers have sent their digests.
    counting.world.until("that it stops", |world| {
        let name = "permits".parse().expect("a name");
        let limit = Some(7);
        let stored = world.ask(2, Question::SetLimit { name, limit });
        assert!(stored.is_none_or(|stored| stored == Answer::LimitSet));
        world.nodes[&2].wrong
    });
    counting.leader = counting.world.leader();
    assert_ne!(counting.leader, 2);
    counting.work();
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}

/// A wrong leader has no advantage over a follower: when the third digest arrives late, the correct follower
/// goes on.
#[test]
fn late_third_digest_stops_only_the_wrong_leader() {
    let mut counting = Counting::new(2, 2);
    // Node 3 receives the entries and the named index, but its messages to the leader are lost.
    counting.world.cut_one_way(3, 2);
    counting.work_until_found();
    counting.world.pass(Duration::from_secs(50));
    assert_eq!(counting.wrong(), Vec::<u64>::new(), "the third may know");
    counting.world.heal();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}

#[test]
fn three_of_five_digests_stop_a_leader_but_two_do_not() {
    let mut counting = Counting::of(5, 1_600, 2, 2);
    counting.world.cut_one_way(4, 2);
    counting.world.cut_one_way(5, 2);
    counting.work_until_found();
    counting.world.pass(Duration::from_secs(50));
    let against: Vec<u64> = counting.differ(2).iter().map(|it| it.node).collect();
    assert_eq!((against, counting.wrong()), (vec![1, 3], vec![]), "two more may know");
    counting.world.heal();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}

/// One node of three is down, and one of the other two is wrong. No node stops before the third one is back
/// and was compared. The leader names an entry for that comparison long before its next snapshot would be
/// due.
fn is_settled_by_the_third(leader: u64) {
    let mut counting = Counting::of(3, 16_000, leader, 2);
    counting.world.crash(3);
    counting.work_until_found();
    let found = counting.stored(leader);
    counting.world.pass(Duration::from_secs(300));
    counting.count();
    counting.count();
    assert_eq!(counting.wrong(), Vec::<u64>::new(), "nobody can know");
    assert_eq!(counting.stored(leader), found, "there is nobody to ask");
    assert_eq!(counting.differ(leader).len(), 1, "it is said once");
    counting.world.restart(3);
    counting.world.pass(Duration::from_secs(1));
    counting.world.ask(leader, Question::SetLimit { name: "last".parse().expect("a name"), limit: Some(1) });
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}

#[test]
fn wrong_follower_stops_once_the_third_node_is_back() {
    is_settled_by_the_third(1);
}

#[test]
fn wrong_leader_stops_once_the_third_node_is_back() {
    is_settled_by_the_third(2);
}

/// A leader names another entry for a voter that is connected but can't be compared, but at most once a
/// minute.
#[test]
fn undecided_difference_causes_at_most_one_snapshot_a_minute() {
    let mut counting = Counting::of(3, 48_000, 1, 2);
    counting.world.cut_one_way(3, 1);
    counting.work_until_found();
    for _ in 0..30 {
        counting.world.pass(Duration::from_secs(10));
        counting.count();
    }
    let named: BTreeSet<u64> = counting.differ(1).iter().map(|it| it.index).collect();
    assert_eq!(named.len(), counting.differ(1).len(), "once for each entry: {:?}", counting.differ(1));
    assert!((4..=6).contains(&named.len()), "{named:?} in five minutes");
    assert_eq!(counting.wrong(), Vec::<u64>::new());
}

#[test]
fn two_differing_voters_never_stop_and_report_every_snapshot() {
    let mut counting = Counting::of(2, 1_600, 1, 2);
    for _ in 0..5 {
        counting.work();
        counting.world.pass(Duration::from_secs(61));
    }
    let named: BTreeSet<u64> = counting.differ(1).iter().map(|it| it.index).collect();
    assert!(named.len() >= 5, "{named:?}");
    assert_eq!(named.len(), counting.differ(1).len(), "once for each entry: {:?}", counting.differ(1));
    assert_eq!(counting.wrong(), Vec::<u64>::new());
}

/// During an upgrade that changes the snapshot format, equal tables have different digests.
#[test]
fn digests_of_another_format_are_not_compared() {
    let mut counting = Counting::new(1, 2);
    counting.world.other_format.insert(2);
    counting.work();
    counting.world.pass(Duration::from_secs(30));
    assert!(counting.stored(2) > 0 && counting.stored(2) == counting.stored(1));
    assert_eq!((counting.wrong(), counting.differ(1)), (vec![], &[][..]), "they say nothing of each other");
    // From here on both nodes use the same format.
    counting.world.other_format.clear();
    counting.work();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
}

/// Digests of different entries are not compared; one missed comparison does not prevent the next.
#[test]
fn node_that_missed_a_named_entry_is_compared_at_the_next() {
    let mut counting = Counting::new(1, 2);
    counting.world.cut_off(2);
    counting.work();
    assert!(counting.stored(1) > 0);
    counting.world.heal();
    counting.world.pass(Duration::from_secs(1));
    assert_eq!(counting.wrong(), Vec::<u64>::new());
    counting.leader = counting.world.leader();
    counting.work();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}
