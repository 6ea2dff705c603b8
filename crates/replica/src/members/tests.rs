//! Membership changes: which are refused, and that accepted ones have the same effect on `Members` and on the
//! consensus engine.

use std::collections::BTreeSet;

use lockkeeper_wire::store::{Configuration, Leave, Member, MembersChange};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::{Engine, Start};

const LEAVE: Change = Change::Leave(Leave {});

fn member(node: u64) -> Member {
    Member {
        node,
        incarnation: vec![node as u8; 16],
        peer_address: format!("node{node}:5626"),
        client_address: format!("node{node}:5625"),
    }
}

fn of(nodes: &[u64]) -> Members {
    let founding =
        Founding { members: nodes.iter().map(|node| member(*node)).collect(), ..Founding::default() };
    Members::founded(&founding)
}

fn all(members: &Members) -> BTreeSet<u64> {
    members.nodes.keys().copied().collect()
}

/// The members, and an engine that applies the same changes.
struct Cluster {
    members: Members,
    engine: Engine,
}

impl Cluster {
    fn of(nodes: &[u64]) -> Self {
        let members = of(nodes);
        let engine = Engine::start(Start {
            node: 1,
            configuration: members.configuration.clone(),
            mutant: None,
            seed: 1,
            tail_bytes: 0,
            snapshot_index: 0,
            snapshot_term: 0,
            hard_state: None,
            entries: Vec::new(),
        });
        Self { members, engine: engine.expect("a sound start") }
    }

    fn apply(&mut self, change: &Change) {
        let change = MembersChange { what: Some(change.clone()) };
        let configuration = self.engine.apply_change(&change).expect("it was checked");
        self.members.apply(self.members.at + 1, &change, configuration);
    }
}

fn after(nodes: &[u64], changes: &[Change]) -> Members {
    let mut cluster = Cluster::of(nodes);
    for change in changes {
        let active = all(&cluster.members);
        cluster.members.check(change, &active).unwrap_or_else(|why| panic!("{change:?}: {why}"));
        cluster.apply(change);
    }
    cluster.members
}

fn refusal(members: &Members, change: &Change) -> String {
    members.check(change, &all(members)).expect_err("it must be refused").to_string()
}

#[test]
fn new_node_is_a_learner_until_it_is_promoted() {
    let added = after(&[1, 2, 3], &[Change::Add(member(4))]);
    assert!(added.is_learner(4) && !added.votes(4));
    let promoted = after(&[1, 2, 3], &[Change::Add(member(4)), Change::Promote(4)]);
    assert!(promoted.votes(4) && !promoted.is_learner(4));
    assert_eq!(promoted.configuration.voters, [1, 2, 3, 4]);
    assert_eq!(promoted.at, 2);
}

#[test]
fn removed_voter_votes_until_the_removal_ends_and_its_id_is_never_reused() {
    let leaving = after(&[1, 2, 3], &[Change::Remove(3)]);
    assert!(leaving.is_leaving(3) && leaving.votes(3) && !leaving.is_leaving(2));
    assert_eq!(leaving.configuration.voters_outgoing, [1, 2, 3]);
    assert!(leaving.nodes.contains_key(&3), "it takes part until the change is over");

    let gone = after(&[1, 2, 3], &[Change::Remove(3), LEAVE]);
    assert!(!gone.votes(3) && !gone.is_joint() && !gone.nodes.contains_key(&3));
    assert_eq!(gone.removed[&3], vec![3; 16]);
    let text = refusal(&gone, &Change::Add(Member { incarnation: vec![9; 16], ..member(3) }));
    assert!(text.contains("node 3 was removed") && text.contains("--node 4"), "{text}");
    let text = refusal(&gone, &Change::Add(Member { incarnation: vec![3; 16], ..member(5) }));
    assert!(text.contains("is that of node 3"), "an old data directory under a new id: {text}");
}

#[test]
fn learner_can_be_removed_while_most_voters_are_inactive() {
    let mut cluster = Cluster::of(&[1, 2, 3]);
    cluster.apply(&Change::Add(member(4)));
    assert_eq!(cluster.members.check(&Change::Remove(4), &BTreeSet::from([1])), Ok(()));
    let gone = after(&[1], &[Change::Add(member(2)), Change::Remove(2), LEAVE]);
    assert!(!gone.is_joint() && gone.removed.contains_key(&2));
    assert_eq!(gone.configuration, Configuration { voters: vec![1], ..Configuration::default() });
}

#[test]
fn other_changes_are_refused_during_a_removal() {
    let leaving = after(&[1, 2, 3], &[Change::Remove(3)]);
    for change in [Change::Add(member(4)), Change::Remove(2), Change::Promote(2), Change::Remove(3)] {
        let text = refusal(&leaving, &change);
        assert!(text.contains("another change") && text.contains("try again"), "{change:?}: {text}");
    }
    assert!(refusal(&of(&[1]), &LEAVE).contains("no removal"));
}

#[test]
fn the_only_voter_can_not_be_removed() {
    let members = after(&[1], &[Change::Add(member(2))]);
    let text = refusal(&members, &Change::Remove(1));
    assert!(text.contains("only voter"), "{text}");
}

#[test]
fn removal_is_refused_if_the_remaining_active_voters_are_no_majority() {
    let members = of(&[1, 2, 3]);
    let text = members.check(&Change::Remove(2), &BTreeSet::from([1, 2])).unwrap_err().to_string();
    assert!(text.contains("1 of 2 voters") && text.contains("2 are needed"), "{text}");
    assert_eq!(members.check(&Change::Remove(3), &BTreeSet::from([1, 2])), Ok(()));
    let dead_of_five = BTreeSet::from([1, 2, 3]);
    assert_eq!(of(&[1, 2, 3, 4, 5]).check(&Change::Remove(5), &dead_of_five), Ok(()));
}

#[test]
fn identity_of_a_new_node_is_validated() {
    let members = of(&[1, 2]);
    let add = |change: fn(&mut Member)| {
        let mut new = member(4);
        change(&mut new);
        refusal(&members, &Change::Add(new))
    };
    assert!(add(|it| it.node = 0).contains("numbered from 1"));
    assert!(add(|it| it.incarnation.clear()).contains("no id of 16 bytes"));
    assert!(add(|it| it.peer_address.clear()).contains("HOST:PORT"));
    assert!(add(|it| it.peer_address = "node2:5626".into()).contains("node 2 has the address `node2:5626`"));
    assert!(add(|it| it.incarnation = vec![1; 16]).contains("is that of node 1"));
    assert!(add(|it| *it = member(2)).contains("nothing to do"));
    let wiped = add(|it| it.node = 2);
    assert!(wiped.contains("cluster remove 2") && wiped.contains("--node 3"), "{wiped}");
    assert!(refusal(&members, &Change::Remove(7)).contains("node 7 is no member"));
    assert!(refusal(&members, &Change::Promote(2)).contains("no learner"));
    let full = of(&(1..=NODES_MAX as u64).collect::<Vec<_>>());
    assert!(refusal(&full, &Change::Add(member(99))).contains(&NODES_MAX.to_string()));
}

#[test]
fn repeated_change_is_recognized_as_made() {
    let members = after(&[1, 2, 3], &[Change::Add(member(4)), Change::Remove(3)]);
    let again = |change| members.has_made(&change);
    assert!(again(Change::Add(member(4))) && again(Change::Remove(3)) && again(Change::Promote(2)));
    assert!(!again(Change::Add(Member { incarnation: vec![9; 16], ..member(4) })), "another one");
    assert!(!again(Change::Remove(4)) && !again(Change::Promote(4)) && !again(LEAVE));
    assert!(after(&[1, 2, 3], &[Change::Remove(3), LEAVE]).has_made(&Change::Remove(3)));
}

#[test]
fn members_are_unchanged_after_encoding_and_decoding() {
    let members = after(&[1, 2, 3], &[Change::Add(member(4)), Change::Remove(2)]);
    assert_eq!(Members::from(store::Members::from(&members)), members);
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (1..9_u64).prop_map(|node| Change::Add(member(node))),
        (1..9_u64).prop_map(Change::Promote),
        (1..9_u64).prop_map(Change::Remove),
        Just(LEAVE),
    ];
    vec(change, 0..60)
}

proptest! {
    /// The engine accepts every change that `check` accepts; at least one voter remains, and every listed
    /// node is a voter or learner.
    #[test]
    fn engine_accepts_every_change_that_is_not_refused(changes in changes()) {
        let mut cluster = Cluster::of(&[1, 2, 3]);
        for change in &changes {
            let members = &cluster.members;
            if members.check(change, &all(members)).is_err() {
                continue;
            }
            let removed = members.removed.clone();
            cluster.apply(change);
            let Members { nodes, configuration, .. } = &cluster.members;
            let Configuration { voters, learners, voters_outgoing, learners_next } = configuration;
            prop_assert!(!voters.is_empty() && learners_next.is_empty());
            let parts = voters.iter().chain(learners).chain(voters_outgoing);
            prop_assert!(parts.clone().all(|node| nodes.contains_key(node)));
            prop_assert!(nodes.keys().all(|node| parts.clone().any(|part| part == node)));
            prop_assert!(removed.keys().all(|node| cluster.members.removed.contains_key(node)), "gone for good");
        }
    }
}
