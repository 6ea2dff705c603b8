//! Leadership transfer: clients are redirected straight to the new leader.

use std::time::Duration;

use lockkeeper_core::SessionId;
use lockkeeper_replica::{Answer, AskId, Event, Question, StreamCloseCause};
use lockkeeper_wire::v1::{self, StreamEndReason, server_item::What};

use crate::harness::{World, member};
use crate::items::{acquire, attach, granted, keep_alive};

const SECOND: Duration = Duration::from_secs(1);

fn refused(answer: Option<Answer>) -> String {
    match answer {
        Some(Answer::Refused(refused)) => refused.text,
        other => panic!("not refused: {other:?}"),
    }
}

fn transfer(to: Option<u64>) -> Question {
    Question::Transfer { to }
}

#[test]
fn transfer_reaches_its_target_and_redirects_streams_to_it() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    let session = world.open(first, stream, 1, 30_000, 0);
    let token = granted(&world.send(first, stream, vec![acquire(session, 1, "a", false)]));
    let second = world.others(first)[1];
    let begun = world.now;
    assert_eq!(world.ask(first, transfer(Some(second))), Some(Answer::Transferred { leader: second }));
    assert_eq!(world.leader(), second);
    assert_eq!(world.now, begun, "not even a tick had to pass");
    let end = world.nodes[&first].ended[&stream].clone();
    assert_eq!((end.reason(), end.leader), (StreamEndReason::NotLeader, member(second).client_address));
    // The session and its lock still exist.
    let stream = world.stream(second, 2);
    world.send(second, stream, vec![attach(session, 1, 2)]);
    let other = world.open(second, stream, 2, 30_000, 0);
    let heard = world.send(second, stream, vec![acquire(other, 1, "a", false)]);
    assert!(token.is_some() && granted(&heard).is_none(), "{heard:?}");
}

#[test]
fn transfer_without_a_target_selects_the_most_up_to_date_voter() {
    let mut world = World::new(3);
    let first = world.leader();
    let [second, third] = world.others(first)[..] else { panic!("three nodes") };
    world.stop(second);
    let stream = world.stream(first, 1);
    world.open(first, stream, 1, 30_000, 0);
    assert_eq!(world.ask(first, transfer(None)), Some(Answer::Transferred { leader: third }));
}

#[test]
fn transfer_to_an_unfit_target_is_refused() {
    let mut world = World::new(3);
    let leader = world.leader();
    let [second, third] = world.others(leader)[..] else { panic!("three nodes") };
    assert_eq!(world.ask(leader, transfer(Some(leader))), Some(Answer::Transferred { leader }));
    let text = refused(world.ask(leader, transfer(Some(9))));
    assert!(text.contains("node 9 is no voter"), "{text}");
    world.crash(third);
    world.pass(SECOND);
    let text = refused(world.ask(leader, transfer(Some(third))));
    assert!(text.contains("does not answer"), "{text}");
    assert_eq!(world.ask(second, transfer(None)), Some(Answer::NotLeader { leader }), "not its to give");
}

#[test]
fn transfer_to_an_unreachable_target_times_out() {
    let mut world = World::new(3);
    let leader = world.leader();
    let target = world.others(leader)[0];
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    world.cut_off(target);
    world.turn(leader, vec![Event::Asked(AskId(900), transfer(Some(target)))]);
    // Requests that arrive during the transfer wait, in their order.
    let heard = world.send(leader, stream, vec![acquire(session, 1, "a", false)]);
    assert_eq!(heard, [], "nothing is proposed");
    let answer = world.until("an answer", |world| world.answer(leader, 900));
    let text = refused(Some(answer));
    assert!(text.contains("did not take over"), "{text}");
    world.tick();
    assert!(granted(&world.heard(leader, stream)).is_some());
    assert_eq!(world.leader(), leader);
}

#[test]
fn stopping_leader_transfers_before_it_ends_streams() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    world.open(first, stream, 1, 30_000, 0);
    world.turn(first, vec![Event::ShutDown]);
    assert!(!world.nodes[&first].ended.contains_key(&stream) && !world.node(first).has_left());
    world.deliver();
    assert!(world.node(first).has_left());
    let second = world.leader();
    assert_ne!(second, first);
    let end = &world.nodes[&first].ended[&stream];
    assert_eq!((end.reason(), &end.leader), (StreamEndReason::NotLeader, &member(second).client_address));
}

#[test]
fn leader_without_a_successor_still_stops() {
    for count in [1, 3] {
        let mut world = World::new(count);
        let leader = world.leader();
        let stream = world.stream(leader, 1);
        world.open(leader, stream, 1, 30_000, 0);
        // The followers are not known to be unreachable, so the leader tries a transfer.
        world.cut_off(leader);
        world.turn(leader, vec![Event::ShutDown]);
        world.until("that it has left", |world| world.node(leader).has_left().then_some(()));
        let end = &world.nodes[&leader].ended[&stream];
        assert_eq!(end.leader, "", "it knows of nobody: {end:?}");
    }
}

#[test]
fn stopping_follower_leaves_at_once() {
    let mut world = World::new(3);
    let leader = world.leader();
    let other = world.others(leader)[0];
    world.turn(other, vec![Event::ShutDown]);
    assert!(world.node(other).has_left());
    assert_eq!(world.leader(), leader);
}

#[test]
fn tokens_rise_across_repeated_transfers() {
    let mut world = World::new(3);
    let mut session = None;
    let mut tokens = Vec::new();
    for round in 1..=12_u64 {
        let leader = world.leader();
        let stream = world.stream(leader, round);
        let session = *session.get_or_insert_with(|| world.open(leader, stream, 1, 30_000, 0));
        if round > 1 {
            world.send(leader, stream, vec![attach(session, 1, round)]);
        }
        let heard = world.send(leader, stream, vec![acquire(session, round, &format!("lock{round}"), false)]);
        tokens.push(granted(&heard).expect("a grant").get());
        assert!(matches!(world.ask(leader, transfer(None)), Some(Answer::Transferred { .. })));
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// A case found by the simulator: a session was silent for its ttl, and the check before its expiry (a quorum
/// read and a drain barrier) completes while leadership is being transferred, when no expiry can be proposed.
/// A keep-alive that arrives during the transfer must still save the session (P9).
#[test]
fn keep_alive_during_a_failed_transfer_saves_a_silent_session() {
    let mut world = World::new(3);
    let leader = world.leader();
    let third = world.others(leader)[1];
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 1_000, 0);
    world.pass(Duration::from_millis(880));
    // The target never receives the request to campaign.
    world.cut_one_way(leader, third);
    let ask = AskId(77);
    world.turn(leader, vec![Event::Asked(ask, transfer(Some(third)))]);
    let is_live = |world: &World| world.node(leader).table().sessions().next().is_some();
    world.pass(Duration::from_millis(180));
    assert!(is_live(&world), "its ttl is over, and nothing can be proposed");
    world.say(leader, stream, vec![keep_alive(session, 1)]);
    world.pass(SECOND / 2);
    assert!(world.node(leader).is_ready(), "the handover has failed");
    assert!(is_live(&world));
    world.pass(SECOND);
    assert!(!is_live(&world), "silent once more, and for good");
}

/// While the order to end a session waits, its client attaches.
#[test]
fn order_to_end_a_session_is_judged_again_after_a_handover_that_failed() {
    let mut world = World::new(3);
    let leader = world.leader();
    let third = world.others(leader)[1];
    let stream = world.stream(leader, 1);
    let session = world.open(leader, stream, 1, 30_000, 0);
    let close = |stream| Event::StreamClosed { stream, cause: StreamCloseCause::Service };
    world.turn(leader, vec![close(stream)]);
    world.cut_one_way(leader, third);
    world.turn(leader, vec![Event::Asked(AskId(77), transfer(Some(third)))]);
    let order = Question::EndSession { session: SessionId(session), now: false };
    world.turn(leader, vec![Event::Asked(AskId(88), order.clone())]);
    world.deliver();
    assert_eq!(world.answer(leader, 88), None, "nothing can be proposed");
    let again = world.stream(leader, 2);
    world.say(leader, again, vec![attach(session, 1, 2)]);
    let answer = world.until("an answer", |world| world.answer(leader, 88));
    assert_eq!(answer, Answer::SessionEnded(v1::EndSessionResult::Attached));
    world.until("the acknowledgement", |world| {
        let heard = world.heard(leader, again);
        heard.iter().any(|it| matches!(it.what, Some(What::Attached(_)))).then_some(())
    });

    // Another one stays away.
    world.turn(leader, vec![close(again), Event::Asked(AskId(78), transfer(Some(third)))]);
    world.turn(leader, vec![Event::Asked(AskId(89), order)]);
    let answer = world.until("an answer", |world| world.answer(leader, 89));
    assert_eq!(answer, Answer::SessionEnded(v1::EndSessionResult::Done));
}

#[test]
fn leader_with_a_full_disk_gives_the_leadership_to_a_voter_with_room() {
    let mut world = World::new(3);
    let first = world.leader();
    let [second, third] = world.others(first)[..] else { panic!("three nodes") };
    world.pass(SECOND);
    world.turn(second, vec![Event::DiskFull(true)]);
    world.pass(SECOND);
    let text = refused(world.ask(first, transfer(Some(second))));
    assert!(text.contains("full") && text.contains(&format!("node {second}")), "{text}");
    assert_eq!(world.leader(), first, "the disk of a follower moves nothing");

    world.turn(first, vec![Event::DiskFull(true)]);
    world.until("that node 3 leads", |world| (world.leader() == third).then_some(()));

    // All are full: nobody is better than the leader.
    world.turn(third, vec![Event::DiskFull(true)]);
    world.pass(30 * SECOND);
    assert_eq!(world.leader(), third);
    assert!(refused(world.ask(third, transfer(None))).contains("room on its disk"));
    // But one that stops has to leave.
    world.turn(third, vec![Event::ShutDown]);
    world.deliver();
    assert!(world.node(third).has_left());
    assert_ne!(world.leader(), third, "a full disk is better than no leader");

    // A node whose space was freed is fit again.
    world.turn(second, vec![Event::DiskFull(false)]);
    world.until("that node 2 leads", |world| (world.leader() == second).then_some(()));
}
