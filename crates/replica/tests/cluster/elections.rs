//! Who leads: never two in a term, and a leader that a majority doesn't hear leads no longer.

use std::time::Duration;

use lockkeeper_replica::{Answer, AskId, Event, Question};
use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::v1;

use crate::harness::World;
use crate::items::{acquire, granted};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn three_nodes_elect_one_and_grant_by_a_majority() {
    let mut world = World::new(3);
    let leader = world.leader();
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let token = granted(&world.send(leader, stream, vec![acquire(session, 1, "a", false)]));
    assert!(token.is_some_and(|token| token.get() > 1_000_000));
    // A heartbeat later everybody has it.
    world.pass(SECOND);
    let digest = |id: u64| world.node(id).table().snapshot().digest();
    assert_eq!(digest(1), digest(2));
    assert_eq!(digest(2), digest(3));
}

#[test]
fn one_of_three_is_not_needed_and_comes_back_without_an_election() {
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
fn one_that_was_cut_off_for_a_hundred_time_outs_moves_no_term_when_it_comes_back() {
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
fn the_next_leader_has_what_the_last_one_told_and_the_last_one_learns_that_it_is_none() {
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
    // Cut off, it answers nothing, and after an election time-out it says that it doesn't lead.
    assert!(!matches!(world.ask(first, check), Some(Answer::Checked(_))));
    world.heal();
    world.until("the first one follows", |world| world.node(first).follows().map(drop));
    assert!(!world.node(first).is_ready());
    assert!(world.nodes[&first].ended.contains_key(&stream), "its streams were told to go elsewhere");
}

#[test]
fn what_a_minority_of_one_has_taken_is_replaced() {
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
fn a_restart_of_all_keeps_what_was_granted() {
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
fn what_can_not_come_from_a_member_is_ignored() {
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
        // Term 0 would pass as a message of this very node, and skip all checks of terms.
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

/// What it says of itself is of one moment: a term is never shown with another one's leader.
#[test]
fn one_that_hears_of_a_later_term_does_not_say_that_it_leads_that_one() {
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
