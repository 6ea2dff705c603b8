//! Nodes compare their tables at entries that the leader names: the one that differs stops, and nobody else.

use std::time::Duration;

use lockkeeper_replica::mutant::Mutant;
use lockkeeper_replica::{Answer, Difference, Question};

use crate::harness::World;

/// Three nodes that take snapshots often, and one that forgets labels.
struct Counting {
    world: World,
    leader: u64,
    rounds: u32,
}

impl Counting {
    /// The first of these leads, the second is the one whose table is wrong; 0: none is.
    fn new(leader: u64, wrong: u64) -> Self {
        let mut world = World::new(3);
        for id in 1..=3 {
            world.crash(id);
            let node = world.nodes.get_mut(&id).expect("it is there");
            node.snapshot_after = 200;
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

    /// A number of permits is stored, and a heartbeat may tell the followers. There are few names, so that a snapshot is soon due again.
    fn count(&mut self) {
        self.rounds += 1;
        let name = format!("permits/{}", self.rounds % 7).parse().expect("a name");
        let limit = Some(self.rounds);
        let stored = self.world.ask(self.leader, Question::SetLimit { name, limit });
        assert_eq!(stored, Some(Answer::LimitSet), "round {}", self.rounds);
        self.world.tick();
    }

    /// So much happens that everybody takes a snapshot or two.
    fn work(&mut self) {
        for _ in 0..30 {
            self.count();
        }
    }

    /// The last entry in a node's stored snapshot.
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
fn every_node_takes_its_snapshot_after_the_entry_that_the_leader_names() {
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
fn a_follower_whose_table_differs_is_told_and_stops_and_the_others_go_on() {
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

/// Two of three agree against it: they go on, and it is the one that stops.
#[test]
fn a_leader_whose_table_differs_stops_and_the_others_elect_another() {
    let mut counting = Counting::new(2, 2);
    // It ends as soon as both have told.
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

/// Of two that differ nobody can know which is right; that it is not the follower that goes on would be no better.
#[test]
fn without_a_majority_the_follower_stops_once_the_third_had_time_to_tell() {
    let mut counting = Counting::new(1, 2);
    counting.world.crash(3);
    counting.work();
    counting.world.until("that it is found", |world| (!world.nodes[&1].differ.is_empty()).then_some(()));
    counting.world.pass(Duration::from_secs(5));
    assert_eq!(counting.wrong(), Vec::<u64>::new(), "the third may know");
    counting.world.pass(Duration::from_secs(6));
    assert_eq!(counting.wrong(), [2]);
}

#[test]
fn the_third_that_comes_back_in_time_decides_against_the_leader() {
    let mut counting = Counting::new(2, 2);
    // It has the entries and their name, and says nothing.
    counting.world.cut_one_way(3, 2);
    for _ in 0..30 {
        counting.count();
    }
    counting.world.until("that it is found", |world| (!world.nodes[&2].differ.is_empty()).then_some(()));
    assert_eq!(counting.wrong(), Vec::<u64>::new());
    counting.world.heal();
    counting.world.until("that it stops", |world| world.nodes[&2].wrong);
    counting.world.pass(Duration::from_secs(30));
    assert_eq!(counting.wrong(), [2]);
}

/// Nobody compares what was taken at another entry; and once is not for ever.
#[test]
fn a_node_that_missed_the_name_is_compared_the_next_time() {
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
