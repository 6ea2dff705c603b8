//! Leases across leader changes: an acknowledged lease stays valid (P5), only a confirmed leader acknowledges
//! (P6), and a leader change expires no live session (P9).

use std::time::Duration;

use lockkeeper_core::SessionId;
use lockkeeper_replica::{Answer, Event, Question, StreamCloseCause, TICK};
use lockkeeper_wire::peer::PeerKind;
use lockkeeper_wire::v1::server_item::What;
use lockkeeper_wire::v1::{EndSessionResult, StreamEndReason};

use crate::harness::World;
use crate::items::{acquire, attach, bodies, by_call, granted, keep_alive};

const SECOND: Duration = Duration::from_secs(1);

fn is_acknowledged(heard: Vec<lockkeeper_wire::v1::ServerItem>) -> bool {
    bodies(heard).iter().any(|(_, what)| matches!(what, What::KeptAlive(_) | What::Attached(_)))
}

/// Partitions the leader `first`, and waits for another leader.
fn succeeded(world: &mut World, first: u64) -> u64 {
    world.cut_off(first);
    world.until("another leader", |world| {
        let other = world.leader();
        (other != first).then_some(other)
    })
}

#[test]
fn resumed_old_leader_acknowledges_nothing() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 1_000, 0);
    world.stop(first);
    let second = world.until("another leader", |world| {
        let other = world.leader();
        (other != first).then_some(other)
    });
    // The client's keep-alive waits in the stopped node's socket and is the first input that it reads.
    world.resume(first);
    world.say(first, stream, vec![keep_alive(session, 1)]);
    assert!(!is_acknowledged(world.heard(first, stream)), "it has asked nobody yet");
    world.deliver();
    assert!(!is_acknowledged(world.heard(first, stream)));
    world.pass(SECOND);
    assert!(!is_acknowledged(world.heard(first, stream)));
    assert!(world.nodes[&first].ended.contains_key(&stream));
    assert_eq!(world.leader(), second);
}

#[test]
fn keep_alive_needs_a_round_that_begins_after_its_arrival() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.say(leader, stream, vec![keep_alive(session, 1)]);
    // A quorum read is in flight; another keep-alive arrives, then the responses to that quorum read.
    for other in world.others(leader) {
        world.arrive(other);
    }
    let answers: Vec<_> = world.wires.iter_mut().filter(|((_, to), _)| *to == leader).collect();
    let answers = answers.into_iter().flat_map(|(_, wire)| wire.drain(..)).collect();
    world.say(leader, stream, vec![keep_alive(session, 2)]);
    world.turn(leader, vec![Event::Peer(answers)]);
    let heard = bodies(world.heard(leader, stream));
    let ids: Vec<u64> = heard
        .iter()
        .filter_map(|(_, what)| match what {
            What::KeptAlive(kept) => Some(kept.id),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [1], "the second came after that round began");
    world.deliver();
    world.pass(SECOND);
    assert!(is_acknowledged(world.heard(leader, stream)));
}

#[test]
fn new_leader_gives_every_session_its_full_ttl() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 3_000, 0);
    assert!(granted(&world.send(first, stream, vec![acquire(session, 1, "a", false)])).is_some());
    world.pass(Duration::from_millis(1_500));
    let second = succeeded(&mut world, first);
    world.pass(Duration::from_millis(2_800));
    assert!(
        world.node(second).table().sessions().next().is_some(),
        "ttl has not passed since its zero point"
    );
    let there = world.stream(second, 2);
    assert!(is_acknowledged(world.send(second, there, vec![attach(session, 1, 2)])));
    world.pass(Duration::from_millis(2_800));
    assert!(world.node(second).table().sessions().next().is_some());
    world.pass(Duration::from_millis(1_500));
    assert!(world.node(second).table().sessions().next().is_none(), "silent for longer than its ttl");
}

/// A new leader can't tell a dead client from one that is about to attach.
#[test]
fn order_to_end_a_session_spares_those_that_a_new_leader_has_not_heard_of() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 3_000, 0);
    let second = succeeded(&mut world, first);
    let order = |now| Question::EndSession { session: SessionId(session), now };
    let ended = |result| Some(Answer::SessionEnded(result));
    assert_eq!(world.ask(second, order(false)), ended(EndSessionResult::Attached));
    let there = world.stream(second, 2);
    assert!(is_acknowledged(world.send(second, there, vec![attach(session, 1, 2)])));
    let close = Event::StreamClosed { stream: there, cause: StreamCloseCause::Service };
    world.turn(second, vec![close]);
    assert_eq!(world.ask(second, order(false)), ended(EndSessionResult::Done), "its client has left");

    // The client of another session never attaches: only `now` ends that session.
    let there = world.stream(second, 3);
    let other = world.open(second, there, 2, 30_000, 0);
    world.heal();
    world.pass(SECOND);
    let third = succeeded(&mut world, second);
    let order = |now| Question::EndSession { session: SessionId(other), now };
    assert_eq!(world.ask(third, order(false)), ended(EndSessionResult::Attached));
    assert_eq!(world.ask(third, order(true)), ended(EndSessionResult::Done));
}

#[test]
fn new_leader_acknowledges_nothing_before_its_first_entry_is_applied() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 30_000, 0);
    world.pass(SECOND);
    let others = world.others(first);
    world.crash(first);
    // One of the others is elected, and its first entry is not delivered.
    let votes = |kind| {
        use PeerKind::{PreVote, PreVoteResponse, Vote, VoteResponse};
        matches!(kind, PreVote | PreVoteResponse | Vote | VoteResponse)
    };
    let is_elected = |world: &World, id: &u64| world.node(*id).leader() == *id;
    let second = loop {
        world.now += TICK;
        others.iter().for_each(|id| world.turn(*id, Vec::new()));
        while others.iter().any(|id| world.arrive_if(*id, votes)) {}
        if let Some(id) = others.iter().find(|id| is_elected(&world, id)) {
            break *id;
        }
    };
    let there = world.stream(second, 2);
    world.say(second, there, vec![attach(session, 1, 2)]);
    assert!(!world.node(second).is_ready());
    assert!(!is_acknowledged(world.heard(second, there)));
    // Once that entry is delivered, the pending attach is answered.
    world.deliver();
    world.pass(SECOND);
    assert!(world.node(second).is_ready());
    assert!(is_acknowledged(world.heard(second, there)));
}

#[test]
fn keep_alive_is_confirmed_by_a_later_batch_only() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.say(leader, stream, vec![acquire(session, 1, "a", false), keep_alive(session, 1)]);
    let kinds: Vec<PeerKind> = world.wires.values().flatten().map(|message| message.kind()).collect();
    assert_eq!(kinds, [PeerKind::Append; 2], "no round of its own");
    // The batch in flight does not serve a keep-alive that arrives after it was proposed.
    world.say(leader, stream, vec![keep_alive(session, 2)]);
    for other in world.others(leader) {
        world.arrive_if(other, |kind| kind == PeerKind::Append);
    }
    world.arrive_if(leader, |kind| kind == PeerKind::AppendResponse);
    let heard = bodies(world.heard(leader, stream));
    let [(1, What::Granted(_)), (0, What::KeptAlive(kept))] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(kept.id, 1);
    world.pass(SECOND);
    assert!(is_acknowledged(world.heard(leader, stream)));
}

#[test]
fn rounds_for_keep_alives_alone_are_rate_limited() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.pass(SECOND);
    // Ten keep-alives in one millisecond: one quorum read at once, and a later one for the rest.
    (1..=10).for_each(|id| world.say(leader, stream, vec![keep_alive(session, id)]));
    let rounds = |world: &World| {
        let all = world.wires.values().flatten();
        all.filter(|message| message.kind() == PeerKind::Heartbeat && !message.context.is_empty()).count()
    };
    assert_eq!(rounds(&world), 2, "one, to both followers");
    world.deliver();
    assert_eq!(rounds(&world), 0);
    world.pass(SECOND);
    let heard = bodies(world.heard(leader, stream));
    assert_eq!(heard.iter().filter(|(_, what)| matches!(what, What::KeptAlive(_))).count(), 10);
}

#[test]
fn keep_alive_by_a_call_is_answered_once_a_majority_confirms_the_leader() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let call = world.called(leader, by_call(keep_alive(session, 1), 1));
    assert!(world.responses(leader, call).is_empty());
    world.deliver();
    let kept = world.responses(leader, call).remove(0).item.unwrap();
    assert!(is_acknowledged(vec![kept]));

    // The others elect another leader, to which this one sends its calls: also those that wait for a lock.
    let (holder, waiter) = (acquire(session, 1, "a", true), acquire(session, 2, "a", true));
    world.called(leader, by_call(holder, 1));
    let waits = world.called(leader, by_call(waiter, 1));
    world.deliver();
    assert_eq!(world.responses(leader, waits).len(), 1, "it is queued");
    let second = succeeded(&mut world, leader);
    let late = world.called(leader, by_call(keep_alive(session, 2), 1));
    world.pass(SECOND);
    assert!(world.responses(leader, late).is_empty());
    world.heal();
    world.pass(SECOND);
    let ended = &world.nodes[&leader].ended_calls;
    assert!(ended.contains_key(&waits) && ended.contains_key(&late), "{ended:?}");
    let redirected = world.called(leader, by_call(keep_alive(session, 2), 1));
    let end = &world.nodes[&leader].ended_calls[&redirected];
    assert_eq!((end.reason(), &*end.leader), (StreamEndReason::NotLeader, &*format!("node{second}:5625")));
    let call = world.called(second, by_call(keep_alive(session, 2), 1));
    world.deliver();
    let kept = world.responses(second, call).remove(0).item.unwrap();
    assert!(is_acknowledged(vec![kept]));
}

#[test]
fn call_waits_for_a_leader_and_for_its_first_entry() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 30_000, 0);
    world.pass(SECOND);
    world.crash(first);
    let others = world.others(first);
    world.pass(3 * TICK);
    let calls: Vec<_> =
        others.iter().map(|&id| (id, world.called(id, by_call(acquire(session, 1, "a", true), 1)))).collect();
    world.pass(SECOND);
    let leader = world.leader();
    for (id, call) in calls {
        let answer = world.responses(id, call).pop().map(|it| it.item.unwrap());
        assert_eq!(answer.is_some(), id == leader, "the others redirect it: {answer:?}");
        assert_eq!(world.nodes[&id].ended_calls.contains_key(&call), id != leader);
    }
}

#[test]
fn call_waits_for_the_end_of_a_session_whose_expiry_is_proposed() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 1_000, 0);
    world.deliver();
    // Once the session is silent for its ttl, its expiry is the next entry.
    let proposed = |world: &World| world.wires.values().flatten().any(|message| !message.entries.is_empty());
    let until = world.now + 3 * SECOND;
    while !proposed(&world) {
        assert!(world.now < until, "its expiry is to be proposed");
        for id in 1..=3 {
            while world.arrive_if(id, |kind| kind != PeerKind::Append) {}
        }
        world.now += TICK;
        (1..=3).for_each(|id| world.turn(id, Vec::new()));
    }
    let items = [keep_alive(session, 1), acquire(session, 1, "a", true)];
    let calls = items.map(|item| world.called(leader, by_call(item, 1)));
    for call in calls {
        assert!(world.responses(leader, call).is_empty());
    }
    world.pass(SECOND);
    for call in calls {
        let what = world.responses(leader, call).pop().and_then(|it| it.item?.what);
        assert!(matches!(what, Some(What::SessionGone(_))), "{what:?}");
    }
}
