//! Membership changes: one at a time, and never two disjoint majorities.

use std::time::Duration;

use lockkeeper_replica::mutant::Mutant;
use lockkeeper_replica::{Answer, AskId, Change, Event, Question, TICK};
use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::store::Member;

use crate::harness::{World, member};
use crate::items::{acquire, granted};

const SECOND: Duration = Duration::from_secs(1);

fn founders(count: u64) -> Vec<Member> {
    (1..=count).map(member).collect()
}

/// Requests a membership change at a node; returns the answer.
fn change(world: &mut World, id: u64, change: Change) -> Answer {
    world.ask(id, Question::Change(change)).expect("an answer")
}

fn refused(answer: Answer) -> String {
    match answer {
        Answer::Refused(refused) => refused.text,
        other => panic!("not refused: {other:?}"),
    }
}

/// Removes a node other than the leader, and waits for the end of the joint configuration.
fn remove(world: &mut World, leader: u64, node: u64) {
    assert_eq!(change(world, leader, Change::Remove(node)), Answer::Changed);
    world.until("the end of the removal", |world| {
        let members = world.node(leader).members();
        (!members.is_joint() && members.removed.contains_key(&node)).then_some(())
    });
}

/// Whether the cluster still grants locks.
fn serves(world: &mut World, leader: u64, stream: u64) -> bool {
    let stream = world.stream(leader, stream);
    let session = world.open(leader, stream, stream.0 as u8, 30_000, 0);
    granted(&world.send(leader, stream, vec![acquire(session, 1, &format!("lock{}", stream.0), false)]))
        .is_some()
}

#[test]
fn new_node_is_a_learner_then_a_voter() {
    let mut world = World::new(3);
    let leader = world.leader();
    world.join(4, founders(3));
    assert_eq!(change(&mut world, leader, Change::Add(member(4))), Answer::Changed);
    world.until("its vote", |world| world.node(leader).members().votes(4).then_some(()));
    world.until("that it knows", |world| world.node(4).members().votes(4).then_some(()));
    assert_eq!(change(&mut world, leader, Change::Add(member(4))), Answer::Changed, "asked once more");
    // Four voters need a majority of three, and exactly three are running.
    let other = world.others(leader)[0];
    world.crash(other);
    assert!(serves(&mut world, leader, 1));
    assert_eq!(
        world.node(4).members().nodes.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3, 4],
        "it knows all of them"
    );
}

#[test]
fn absent_learner_does_not_affect_the_quorum() {
    let mut world = World::new(3);
    let leader = world.leader();
    assert_eq!(change(&mut world, leader, Change::Add(member(4))), Answer::Changed);
    let other = world.others(leader)[0];
    world.crash(other);
    world.pass(5 * SECOND);
    assert!(serves(&mut world, leader, 1), "two of three voters are enough");
    assert!(world.node(leader).members().is_learner(4));
    remove(&mut world, leader, 4);
    assert!(serves(&mut world, leader, 2));
}

#[test]
fn removed_node_causes_no_election_and_its_id_is_not_reused() {
    let mut world = World::new(3);
    let leader = world.leader();
    let (gone, term) = (world.others(leader)[1], world.node(leader).term());
    remove(&mut world, leader, gone);
    world.pass(10 * SECOND);
    assert_eq!(
        (world.leader(), world.node(leader).term()),
        (leader, term),
        "it can't bring about an election"
    );
    // Two voters are left, and both are needed.
    assert!(serves(&mut world, leader, 1));
    let text =
        refused(change(&mut world, leader, Change::Add(Member { incarnation: vec![9; 16], ..member(gone) })));
    assert!(text.contains("ids never come back"), "{text}");
}

#[test]
fn leader_to_be_removed_transfers_leadership_first() {
    let mut world = World::new(3);
    let first = world.leader();
    let stream = world.stream(first, 1);
    world.open(first, stream, 1, 30_000, 0);
    let answer = change(&mut world, first, Change::Remove(first));
    let Answer::NotLeader { leader } = answer else { panic!("it is not the one to do that: {answer:?}") };
    assert_ne!(leader, first);
    assert_eq!(world.leader(), leader, "whom it names, leads");
    assert_eq!(world.nodes[&first].ended[&stream].leader, member(leader).client_address);
    remove(&mut world, leader, first);
    assert!(serves(&mut world, leader, 2));
    assert!(!world.node(leader).members().nodes.contains_key(&first));
}

#[test]
fn removal_that_would_lose_the_quorum_is_refused() {
    let mut world = World::new(3);
    let leader = world.leader();
    let others = world.others(leader);
    world.crash(others[0]);
    world.pass(SECOND);
    let text = refused(change(&mut world, leader, Change::Remove(others[1])));
    assert!(text.contains("2 are needed"), "{text}");
    remove(&mut world, leader, others[0]);
    assert!(serves(&mut world, leader, 1));
}

/// The leader took over just now, so a node that has not responded yet may still be alive.
#[test]
fn new_leader_waits_for_responses_before_it_refuses_a_removal() {
    for comes_back in [true, false] {
        let mut world = World::new(3);
        let first = world.leader();
        let [second, third] = world.others(first)[..] else { panic!("three nodes") };
        world.stop(third);
        let handed = world.ask(first, Question::Transfer { to: Some(second) });
        assert_eq!(handed, Some(Answer::Transferred { leader: second }));
        let remove = Question::Change(Change::Remove(first));
        world.turn(second, vec![Event::Asked(AskId(900), remove)]);
        world.deliver();
        assert_eq!(world.answer(second, 900), None, "not yet");
        if comes_back {
            world.resume(third);
        }
        let answer = world.until("an answer", |world| world.answer(second, 900));
        if comes_back {
            assert_eq!(answer, Answer::Changed);
        } else {
            assert!(refused(answer).contains("2 are needed"));
        }
    }
}

#[test]
fn second_change_in_flight_is_refused() {
    let mut world = World::new(3);
    let leader = world.leader();
    let last = world.others(leader)[1];
    let ask = |ask, change| Event::Asked(AskId(ask), Question::Change(change));
    world.turn(leader, vec![ask(901, Change::Remove(last)), ask(902, Change::Add(member(4)))]);
    let text = refused(world.answer(leader, 902).expect("at once"));
    assert!(text.contains("under way"), "{text}");
    world.deliver();
    assert_eq!(world.answer(leader, 901), Some(Answer::Changed));
}

/// A leader crashes between the two entries of a removal. raft-rs' automatic leave would be lost with that
/// leader, and then both majorities would be needed for ever.
#[test]
fn next_leader_completes_a_removal() {
    // Run also with the rule disabled, to show that the test can fail.
    for mutant in [None, Some(Mutant::NeverLeavesJoint)] {
        let mut world = with(5, mutant);
        let first = world.leader();
        let gone = world.others(first)[3];
        begin_removal(&mut world, first, gone);
        world.crash(first);
        let second = world.leader();
        world.pass(5 * SECOND);
        let members = world.node(second).members();
        assert_eq!(members.is_joint(), mutant.is_some());
        assert_eq!(members.removed.contains_key(&gone), mutant.is_none());
        assert!(serves(&mut world, second, 1));
    }
}

/// A cluster, with a mutant if one is given.
fn with(count: u64, mutant: Option<Mutant>) -> World {
    let mut world = World::new(count);
    for id in 1..=count {
        world.crash(id);
        world.nodes.get_mut(&id).expect("it is there").mutant = mutant;
        world.restart(id);
    }
    world
}

/// Delivers the first entry of the removal to all nodes; only the leader learns its commit, and has the
/// second entry.
fn begin_removal(world: &mut World, leader: u64, gone: u64) {
    world.turn(leader, vec![Event::Asked(AskId(900), Question::Change(Change::Remove(gone)))]);
    for other in world.others(leader) {
        world.arrive(other);
    }
    world.arrive(leader);
    assert!(world.node(leader).members().is_joint());
}

/// A node that is being removed may be elected in a joint configuration. raft-rs would let it lead on outside
/// its own cluster.
#[test]
fn elected_node_that_is_being_removed_transfers_leadership() {
    let mut world = World::new(5);
    let first = world.leader();
    let (gone, term) = (world.others(first)[3], world.node(first).term());
    begin_removal(&mut world, first, gone);
    world.crash(first);
    let campaign = PeerMessage {
        kind: PeerKind::TimeoutNow.into(),
        from: first,
        to: gone,
        term,
        ..PeerMessage::default()
    };
    world.turn(gone, vec![Event::Peer(vec![campaign])]);
    for other in world.others(gone) {
        world.arrive(other);
    }
    world.arrive(gone);
    assert_eq!(world.node(gone).leader(), gone, "it was elected");
    let second = world.until("another leader that ends it", |world| {
        let leader = world.leader();
        (leader != gone && !world.node(leader).members().is_joint()).then_some(leader)
    });
    assert!(world.node(second).members().removed.contains_key(&gone));
    assert!(serves(&mut world, second, 1));
}

/// The removed voter and the leader are the only ones that know that the removal is complete, and the leader
/// is lost for good. Of the three voters that remain two run, and they need the removed one's vote to learn
/// of it.
#[test]
fn removed_voter_votes_until_the_others_know() {
    let mut world = World::new(4);
    let first = world.leader();
    let others = world.others(first);
    let gone = others[2];
    begin_removal(&mut world, first, gone);
    for other in &others {
        world.arrive(*other);
    }
    world.arrive(first);
    assert!(world.node(first).members().removed.contains_key(&gone));
    world.arrive(gone);
    world.crash(first);
    assert!(world.node(gone).members().votes(gone), "it knows the end of its removal, and still votes");

    let second = world.leader();
    assert_ne!(second, gone);
    assert!(serves(&mut world, second, 1));
    assert!(world.node(second).members().removed.contains_key(&gone));
    assert!(world.node(gone).members().votes(gone));
}

/// Only then may the removed node be destroyed.
#[test]
fn removal_is_complete_once_a_majority_knows_it() {
    let mut world = World::new(4);
    let first = world.leader();
    let [with_entry, without, gone] = world.others(first)[..] else { panic!("four nodes") };
    begin_removal(&mut world, first, gone);
    world.arrive(with_entry);
    world.arrive(gone);
    world.arrive(first);
    assert!(!world.node(first).members().is_joint());
    // The answer needs a quorum read.
    world.turn(first, vec![Event::Asked(AskId(901), Question::Members)]);
    world.arrive_if(without, |kind| kind == PeerKind::Heartbeat);
    world.arrive(first);
    assert!(is_changing(world.answer(first, 901)), "no other node knows it");
    assert!(!is_changing(world.ask(first, Question::Members)), "two of three voters know it");
}

/// Whether the leader reports that a change is under way.
fn is_changing(answer: Option<Answer>) -> bool {
    match answer {
        Some(Answer::Members(members)) => members.changing,
        other => panic!("no members: {other:?}"),
    }
}

/// Removes two nodes in sequence, and cuts the power of the second one after `messages` messages to it; then
/// reconnects the first one. With configurations that are two changes old, these two nodes would be a
/// majority of the three, beside the real majority. Heartbeats, which cause no write by themselves, overtake
/// the appends, so the second node learns each commit from a heartbeat.
///
/// Returns whether both removals had completed, or the nodes that led at the same time or wrongly.
fn two_removals(messages: usize, mutant: Option<Mutant>) -> Result<bool, Vec<u64>> {
    let mut world = with(3, mutant);
    let leader = world.leader();
    let [second, third] = world.others(leader)[..] else { panic!("three nodes") };
    world.cut_off(third);
    let mut left = messages;
    let mut asked = [third, second].into_iter();
    let mut next = asked.next();
    // 40 passes are enough for both removals. Once the second one has completed, the leader sends `second`
    // nothing more.
    for _ in 0..40 {
        if let Some(node) = next
            && !world.node(leader).members().is_joint()
        {
            let question = Question::Change(Change::Remove(node));
            world.turn(leader, vec![Event::Asked(AskId(900 + node), question)]);
            next = asked.next();
        }
        // Long enough for a heartbeat, which overtakes the append.
        for _ in 0..2 {
            world.now += TICK;
            world.turn(leader, Vec::new());
        }
        for kind in [PeerKind::Heartbeat, PeerKind::Append] {
            if left > 0 && world.arrive_if(second, |it| it == kind) {
                left -= 1;
            }
        }
        world.arrive(leader);
    }
    let is_over = world.node(leader).members().configuration.voters == [leader];
    world.crash(second);
    world.heal();
    world.restart(second);
    for _ in 0..200 {
        world.tick();
        let elected = [leader, second, third].into_iter().filter(|id| world.node(*id).leader() == *id);
        let elected: Vec<u64> = elected.collect();
        let ready = elected.iter().filter(|id| world.node(**id).is_ready()).count();
        if ready > 1 || (is_over && elected != [leader]) {
            return Err(elected);
        }
    }
    Ok(is_over)
}

#[test]
fn power_cut_leaves_a_node_at_most_one_change_behind() {
    let cuts: Vec<Result<bool, Vec<u64>>> = (0..24).map(|messages| two_removals(messages, None)).collect();
    assert!(cuts.contains(&Ok(true)) && cuts.contains(&Ok(false)), "before the end and after it: {cuts:?}");
    assert!(cuts.iter().all(Result::is_ok), "after that many messages these led: {cuts:?}");
    // With the rule disabled.
    let early: Vec<Result<bool, Vec<u64>>> =
        (0..24).map(|messages| two_removals(messages, Some(Mutant::MembersAppliedEarly))).collect();
    // A removed node leads by the vote of the other removed node, and deposes the only voter that remains.
    assert!(early.iter().any(Result::is_err), "it makes no difference: {early:?}");
}
