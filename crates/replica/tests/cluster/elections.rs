//! Elections: at most one leader per term, and a leader without a quorum steps down.

use std::time::Duration;

use lockkeeper_replica::{Answer, AskId, ELECTION_TICKS, Event, Question, TICK};
use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::v1;

use crate::harness::World;
use crate::items::{acquire, granted};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn three_nodes_elect_a_leader_and_replicate_a_grant() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let token = granted(&world.send(leader, stream, vec![acquire(session, 1, "a", false)]));
    assert!(token.is_some_and(|token| token.get() > 1_000_000));
    // One heartbeat later, all nodes have applied the entry.
    world.pass(SECOND);
    let digest = |id: u64| world.node(id).table().snapshot().digest();
    assert_eq!(digest(1), digest(2));
    assert_eq!(digest(2), digest(3));
}

#[test]
fn one_follower_of_three_restarts_without_an_election() {
    let mut world = World::new(3);
    let leader = world.leader();
    let (follower, term) = (world.others(leader)[0], world.node(leader).term());
    world.crash(follower);
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    assert!(granted(&world.send(leader, stream, vec![acquire(session, 1, "a", false)])).is_some());
    world.pass(5 * SECOND);
    world.restart(follower);
    world.pass(5 * SECOND);
    assert_eq!(world.leader(), leader);
    assert_eq!(world.node(leader).term(), term, "the one that was down has disturbed nobody");
    assert_eq!(world.node(follower).applied_index(), world.node(leader).applied_index());
}

#[test]
fn partitioned_follower_does_not_raise_the_term() {
    let mut world = World::new(3);
    let leader = world.leader();
    let (follower, term) = (world.others(leader)[1], world.node(leader).term());
    world.cut_off(follower);
    world.pass(Duration::from_secs(48));
    assert_eq!(world.node(follower).term(), term, "it asks before it votes");
    world.heal();
    world.pass(5 * SECOND);
    assert_eq!((world.leader(), world.node(leader).term()), (leader, term));
}

#[test]
fn killed_leader_is_replaced_before_its_silence_is_noticed() {
    for (count, crashes) in [(3, 4), (5, 4)] {
        let mut world = World::new(count);
        for _ in 0..crashes {
            let (leader, killed_at) = (world.leader(), world.now);
            let term = world.node(leader).term();
            world.crash(leader);
            let next = world.leader();
            let silence = TICK * ELECTION_TICKS as u32;
            assert!(world.now - killed_at < silence, "{:?} without a leader", world.now - killed_at);
            assert_eq!(world.node(next).term(), term + 1, "the votes were not split");
            world.restart(leader);
            world.pass(SECOND);
        }
    }
}

#[test]
fn leader_that_is_heard_over_new_connections_keeps_its_lead() {
    let mut world = World::new(3);
    let leader = world.leader();
    let term = world.node(leader).term();
    for _ in 0..20 {
        world.others(leader).into_iter().for_each(|other| world.turn(other, vec![Event::PeerDown(leader)]));
        world.pass(TICK * 3);
    }
    assert_eq!((world.leader(), world.node(leader).term()), (leader, term));
}

/// The other follower receives the leader's heartbeats, and refuses its vote.
#[test]
fn follower_whose_connection_breaks_disturbs_nobody() {
    let mut world = World::new(3);
    let leader = world.leader();
    let (follower, term) = (world.others(leader)[0], world.node(leader).term());
    world.cut_one_way(leader, follower);
    world.cut_one_way(follower, leader);
    for _ in 0..10 {
        world.turn(follower, vec![Event::PeerDown(leader)]);
        world.pass(SECOND);
    }
    assert_eq!((world.leader(), world.node(leader).term()), (leader, term));
}

#[test]
fn new_leader_has_acknowledged_grants_and_the_old_one_steps_down() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 30_000, 0);
    let token = granted(&world.send(first, stream, vec![acquire(session, 1, "a", false)])).unwrap();
    world.cut_off(first);
    let second = world.until("another leader", |world| {
        let other = world.leader();
        (other != first).then_some(other)
    });
    let name = "a".parse().unwrap();
    let check = Question::CheckToken { name, token: token.get() };
    let Some(Answer::Checked(checked)) = world.ask(second, check.clone()) else { panic!("no answer") };
    assert_eq!(checked.status(), lockkeeper_wire::v1::TokenStatus::Current);
    // The partitioned leader answers no quorum read, and after an election time-out it steps down.
    assert!(!matches!(world.ask(first, check), Some(Answer::Checked(_))));
    world.heal();
    world.until("the first one follows", |world| world.node(first).follows().map(drop));
    assert!(!world.node(first).is_ready());
    assert!(world.nodes[&first].ended.contains_key(&stream), "its streams were told to go elsewhere");
}

#[test]
fn uncommitted_entry_of_a_partitioned_leader_is_replaced() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 30_000, 0);
    world.cut_off(first);
    assert_eq!(world.send(first, stream, vec![acquire(session, 1, "a", false)]), Vec::new());
    let second = world.until("another leader", |world| {
        let other = world.leader();
        (other != first).then_some(other)
    });
    let there = world.stream(second, 2);
    let other = world.open(second, there, 2, 30_000, 0);
    assert!(granted(&world.send(second, there, vec![acquire(other, 1, "a", false)])).is_some());
    world.heal();
    world.pass(2 * SECOND);
    assert_eq!(world.heard(first, stream), Vec::new(), "nothing was granted there");
    let digest = |id: u64| world.node(id).table().snapshot().digest();
    assert_eq!(digest(first), digest(second));
}

#[test]
fn grants_survive_a_restart_of_all_nodes() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let token = granted(&world.send(leader, stream, vec![acquire(session, 1, "a", false)])).unwrap();
    (1..=3).for_each(|id| world.crash(id));
    (1..=3).for_each(|id| world.restart(id));
    let leader = world.leader();
    let check = Question::CheckToken { name: "a".parse().unwrap(), token: token.get() };
    let Some(Answer::Checked(checked)) = world.ask(leader, check) else { panic!("no answer") };
    assert_eq!(checked.status(), lockkeeper_wire::v1::TokenStatus::Current);
}

#[test]
fn malformed_peer_messages_are_ignored() {
    let mut world = World::new(3);
    let leader = world.leader();
    let term = world.node(leader).term();
    let follower = world.others(leader)[0];
    let vote = |from, to, term| PeerMessage {
        kind: PeerKind::Vote.into(),
        from,
        to,
        term,
        index: 1_000,
        log_term: term,
        ..PeerMessage::default()
    };
    let bad = vec![
        // Without the check, raft-rs would take a message of term 0 for a local one and skip all term checks.
        vote(follower, leader, 0),
        vote(0, leader, term + 1),
        vote(leader, leader, term + 1),
        vote(follower, 9, term + 1),
        PeerMessage { kind: 99, ..vote(follower, leader, term + 1) },
        PeerMessage { context: vec![0; 33], ..vote(follower, leader, term + 1) },
    ];
    world.turn(leader, vec![Event::Peer(bad)]);
    world.pass(SECOND);
    assert_eq!((world.leader(), world.node(leader).term()), (leader, term));
}

/// The fields of a status are consistent: a term is never reported with the leader of another term.
#[test]
fn status_never_claims_leadership_of_a_later_term() {
    let mut world = World::new(3);
    let leader = world.leader();
    let (term, next) = (world.node(leader).term(), world.others(leader)[0]);
    let news = PeerMessage {
        kind: PeerKind::Heartbeat.into(),
        from: next,
        to: leader,
        term: term + 1,
        ..PeerMessage::default()
    };
    world.turn(leader, vec![Event::Peer(vec![news]), Event::Asked(AskId(900), Question::Status)]);
    let Some(Answer::Status(status)) = world.answer(leader, 900) else { panic!("no status") };
    assert_eq!((status.term, status.leader), (term + 1, next));
    assert_eq!(status.role(), v1::Role::Follower);
}
