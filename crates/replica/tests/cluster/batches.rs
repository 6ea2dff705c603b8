//! Batching on a leader: which entries it proposes while others are in flight.

use std::time::Duration;

use lockkeeper_replica::StreamId;
use lockkeeper_wire::peer::PeerKind;
use lockkeeper_wire::v1::server_item::What;

use crate::harness::World;
use crate::items::{acquire, bodies, granted};

/// The production value of `propose.rs`: how long a batch waits for the previous one.
const HOLD: Duration = Duration::from_millis(1);
/// The production value of `propose.rs`: in this time after a wait without a commit, batches are not delayed.
const AGAIN: Duration = Duration::from_millis(100);

/// A leader with one entry in flight and two more queued acquires.
fn with_a_batch_on_its_way() -> (World, u64, StreamId, u64) {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.say(leader, stream, vec![acquire(session, 1, "a", false)]);
    for (seq, name) in [(2, "b"), (3, "c")] {
        world.say(leader, stream, vec![acquire(session, seq, name, false)]);
    }
    (world, leader, stream, session)
}

/// Number of entries in flight to each follower.
fn under_way(world: &World, leader: u64) -> Vec<usize> {
    let entries = |other: u64| {
        let wire = world.wires.get(&(leader, other)).into_iter().flatten();
        wire.filter(|message| message.kind() == PeerKind::Append).map(|message| message.entries.len()).sum()
    };
    world.others(leader).into_iter().map(entries).collect()
}

fn answered(world: &mut World, leader: u64, stream: StreamId) -> Vec<u64> {
    let heard = bodies(world.heard(leader, stream));
    heard.iter().filter(|(_, what)| matches!(what, What::Granted(_))).map(|(seq, _)| *seq).collect()
}

#[test]
fn commands_queued_behind_a_batch_share_the_next_entry() {
    let (mut world, leader, stream, _) = with_a_batch_on_its_way();
    assert_eq!(under_way(&world, leader), [1, 1], "the others are held back");
    let held = world.node(leader).held_until();
    assert_eq!((held, world.node(leader).next_wake()), (Some(world.now + HOLD), world.now + HOLD));
    for other in world.others(leader) {
        world.arrive_if(other, |kind| kind == PeerKind::Append);
    }
    assert_eq!(under_way(&world, leader), [0, 0]);
    world.arrive_if(leader, |kind| kind == PeerKind::AppendResponse);
    assert_eq!(answered(&mut world, leader, stream), [1]);
    assert_eq!(under_way(&world, leader), [1, 1], "two locks, one entry");
    world.deliver();
    assert_eq!(answered(&mut world, leader, stream), [2, 3]);
    assert_eq!(world.node(leader).held_until(), None);
}

#[test]
fn slow_followers_disable_the_batch_delay() {
    let (mut world, leader, stream, session) = with_a_batch_on_its_way();
    world.now += HOLD;
    assert_eq!(under_way(&world, leader), [1, 1]);
    world.turn(leader, Vec::new());
    assert_eq!(under_way(&world, leader), [2, 2], "its time is over");
    // The wait ended without a commit, so the next batches are not delayed.
    world.deliver();
    assert_eq!(answered(&mut world, leader, stream), [1, 2, 3]);
    for (seq, name) in [(4, "d"), (5, "e")] {
        world.say(leader, stream, vec![acquire(session, seq, name, false)]);
    }
    assert_eq!((under_way(&world, leader), world.node(leader).held_until()), (vec![2, 2], None));
    world.deliver();
    assert_eq!(answered(&mut world, leader, stream), [4, 5]);
    world.now += AGAIN;
    for (seq, name) in [(6, "f"), (7, "g")] {
        world.say(leader, stream, vec![acquire(session, seq, name, false)]);
    }
    assert_eq!(under_way(&world, leader), [1, 1]);
}

#[test]
fn single_node_does_not_delay_batches() {
    let mut world = World::new(1);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.say(leader, stream, vec![acquire(session, 1, "a", false)]);
    assert_eq!(world.node(leader).held_until(), None);
    assert!(granted(&world.heard(leader, stream)).is_some());
}

/// A client's command is committed after all that are queued and in flight, so there are few of them.
#[test]
fn requests_are_read_only_while_few_are_uncommitted() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let room = world.node(leader).room();
    let mut seq = 0;
    while world.node(leader).room() > 0 && seq <= 100_000 {
        seq += 1;
        world.say(leader, stream, vec![acquire(session, seq, &format!("{seq}"), false)]);
    }
    assert_eq!(seq as usize, room);
    world.now += HOLD;
    world.turn(leader, Vec::new());
    assert_eq!(world.node(leader).room(), 0, "what is proposed is not committed yet");
    world.deliver();
    assert_eq!(world.node(leader).room(), room);
    assert_eq!(answered(&mut world, leader, stream).len(), room);
}
