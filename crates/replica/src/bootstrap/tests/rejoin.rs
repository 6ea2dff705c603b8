//! A node whose data are gone gets a new id from its cluster.

use super::*;

/// A node whose data are gone takes an id that was never used from a member, and no other.
#[test]
fn lost_node_takes_the_next_id_of_its_cluster() {
    let founding = founded();
    let members = Members::founded(&founding);
    let member = identity(&founding, &members);
    let to = |id| member.hello(id, Lane::Greeting);
    let lost = candidate(2, 9);
    let mut stops = Bootstrap::new(lost.clone());
    assert!(matches!(stops.heard(&to(2)), BootstrapStep::Stop(_)));
    assert!(!stops.refused_for_good());
    assert!(matches!(stops.heard(&to(4)), BootstrapStep::Refuse(_)), "it was not told to rejoin");

    let mut node = Bootstrap::rejoining(lost.clone());
    assert!(matches!(node.heard(&to(4)), BootstrapStep::Refuse(_)), "it knows of no loss yet");
    assert!(matches!(node.heard(&to(2)), BootstrapStep::Stop(_)));
    assert!(node.refused_for_good() && node.is_lost());
    assert_eq!(node.step(), BootstrapStep::Wait { missing: Vec::new() }, "it founds nothing");
    for used in [1, 3] {
        assert!(matches!(node.heard(&to(used)), BootstrapStep::Refuse(_)), "{used} is another node's");
    }
    let stranger = Bootstrap::new(candidate(1, 0)).hello(4, Lane::Greeting);
    assert!(matches!(node.heard(&stranger), BootstrapStep::Refuse(_)), "only a member gives ids");
    let BootstrapStep::Promise(renamed) = node.heard(&to(4)) else { panic!("not renamed") };
    let own = renamed.member.clone().unwrap();
    assert_eq!((own.node, own.incarnation), (4, lost.member.unwrap().incarnation));
    assert!(renamed.nodes.is_empty(), "it joins, and founds nothing");
    node.promised(renamed);
    assert_eq!(node.heard(&to(4)), BootstrapStep::Wait { missing: Vec::new() });
    assert!(matches!(node.heard(&to(5)), BootstrapStep::Refuse(_)), "it has an id");
    // Another node was added under that id meanwhile.
    assert!(node.refused_for_good());
    let mut later = founding.clone();
    later.members.push(Member { node: 4, incarnation: vec![1; ID_BYTES], ..Member::default() });
    let members = Members::founded(&later);
    let hello = identity(&founding, &members).hello(5, Lane::Greeting);
    assert!(matches!(node.heard(&hello), BootstrapStep::Promise(_)));
}

/// A node that founds nothing may have the number of another: it takes the id that it gets, also without a
/// refusal, and keeps it.
#[test]
fn new_node_takes_the_id_under_which_it_is_added() {
    let founding = founded();
    let members = Members::founded(&founding);
    let to = |id| identity(&founding, &members).hello(id, Lane::Greeting);
    let own = Candidate { nodes: Vec::new(), ..candidate(9, 9) };
    let mut stays = Bootstrap::new(own.clone());
    assert!(matches!(stays.heard(&to(4)), BootstrapStep::Refuse(_)), "it was not told to rejoin");
    let mut node = Bootstrap::rejoining(own);
    let BootstrapStep::Promise(renamed) = node.heard(&to(4)) else { panic!("not renamed") };
    assert_eq!(renamed.member.as_ref().map(|member| member.node), Some(4));
    node.promised(renamed);
    assert!(matches!(node.heard(&to(5)), BootstrapStep::Refuse(_)), "it has an id");
}

#[test]
fn node_that_has_promised_to_found_a_cluster_takes_no_other_id() {
    let mut own = candidate(2, 9);
    own.nodes.iter_mut().for_each(|listed| listed.incarnation = vec![1; ID_BYTES]);
    let mut node = Bootstrap::rejoining(own);
    assert!(!node.refused_for_good() && !node.is_lost());
}
