//! Explores every order in which hellos arrive, with crashes and a wiped disk in between; and checks the text
//! of every refusal.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

mod rejoin;

const NODES: [u64; 3] = [1, 2, 3];

fn candidate(node: u64, generation: u8) -> Candidate {
    let listed = NODES.map(|node| Listed { node, peer_address: address(node), incarnation: Vec::new() });
    Candidate {
        member: Some(Member {
            node,
            incarnation: vec![node as u8 * 16 + generation; ID_BYTES],
            peer_address: address(node),
            client_address: format!("client-{node}:1"),
        }),
        tokens_above: 10 * node,
        rules: 9 - node as u32,
        nodes: listed.to_vec(),
    }
}

fn address(node: u64) -> String {
    format!("peer-{node}:1")
}

/// The durable and the in-memory state of a node.
#[derive(Clone, PartialEq, Debug)]
enum Node {
    /// The candidates received since the start are in memory only; the rest is durable.
    Forming(Bootstrap),
    Founded(Founding),
    /// The node was refused for good.
    Stopped,
}

impl Node {
    fn new(node: u64, generation: u8) -> Self {
        Self::Forming(Bootstrap::new(candidate(node, generation)))
    }

    fn hello(&self) -> Option<Hello> {
        match self {
            Self::Forming(founder) => Some(founder.hello(0, Lane::Greeting)),
            Self::Founded(founding) => {
                Some(identity(founding, &Members::founded(founding)).hello(0, Lane::Greeting))
            }
            Self::Stopped => None,
        }
    }

    fn hear(&mut self, hello: &Hello) {
        let Self::Forming(founder) = self else { return };
        let mut step = founder.heard(hello);
        loop {
            match step {
                BootstrapStep::Wait { .. } | BootstrapStep::Refuse(_) => return,
                BootstrapStep::Promise(own) => {
                    founder.promised(own);
                    step = founder.step();
                }
                BootstrapStep::Found(founding) => {
                    *self = Self::Founded(founding);
                    return;
                }
                BootstrapStep::Stop(_) => {
                    *self = Self::Stopped;
                    return;
                }
            }
        }
    }

    fn crash(&mut self) {
        if let Self::Forming(founder) = self {
            *self = Self::Forming(Bootstrap::new(founder.own().clone()));
        }
    }
}

fn identity<'a>(founding: &'a Founding, members: &'a Members) -> NodeIdentity<'a> {
    NodeIdentity { founding, members, rules: 1, rules_max: 1, client_address: "client:1" }
}

fn hash(what: &impl std::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{what:?}").hash(&mut hasher);
    hasher.finish()
}

/// Three nodes, and all hellos ever sent. A sent hello may arrive at any time, and more than once.
#[derive(Clone, Debug)]
struct World {
    nodes: [Node; 3],
    said: Vec<(u64, Hello)>,
    /// All distinct bootstrap records ever written, without the id and incarnation of the node that wrote
    /// them.
    founded: Vec<Founding>,
    wiped: bool,
}

impl World {
    fn new() -> Self {
        let nodes = NODES.map(|node| Node::new(node, 0));
        let mut world = Self { nodes, said: Vec::new(), founded: Vec::new(), wiped: false };
        world.note();
        world
    }

    /// Adds the current hellos and bootstrap records to the history.
    fn note(&mut self) {
        for node in &self.nodes {
            let hello = node.hello().map(|hello| (hash(&hello), hello));
            self.said.extend(hello.filter(|(hash, _)| self.said.iter().all(|(said, _)| said != hash)));
            if let Node::Founded(founding) = node {
                let record = Founding { node: 0, incarnation: Vec::new(), ..founding.clone() };
                if !self.founded.contains(&record) {
                    self.founded.push(record);
                }
            }
        }
    }

    fn key(&self) -> u64 {
        let mut said: Vec<u64> = self.said.iter().map(|(hash, _)| *hash).collect();
        said.sort_unstable();
        hash(&(&self.nodes, said, self.wiped))
    }

    /// All successor states. A crash before a write needs no state of its own: it equals a crash before the
    /// hello that caused the write.
    fn next(&self, wipes: bool) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            world.note();
            next.push(world);
        };
        for (index, node) in NODES.into_iter().enumerate() {
            for (_, hello) in self.said.iter().filter(|(_, hello)| hello.node != node) {
                add(&|world| world.nodes[index].hear(hello));
            }
            add(&|world| world.nodes[index].crash());
        }
        if wipes && !self.wiped {
            add(&|world| {
                world.nodes[1] = Node::new(2, 1);
                world.wiped = true;
            });
        }
        next
    }

    /// Delivers the current hello of every node to every other node.
    fn exchange(&mut self) {
        for index in 0..3 {
            for other in 0..3 {
                if let Some(hello) = self.nodes[other].hello().filter(|_| index != other) {
                    self.nodes[index].hear(&hello);
                }
            }
        }
    }
}

/// Visits every reachable state once, or in a plain `cargo test` the nearest 1,500; returns the number of
/// states.
fn explore(wipes: bool, mut look: impl FnMut(&World)) -> usize {
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([World::new()]);
    while let Some(world) = queue.pop_front()
        && seen.len() < lockkeeper_corpus::size(1_500, usize::MAX, usize::MAX)
    {
        if seen.insert(world.key()) {
            look(&world);
            queue.extend(world.next(wipes));
        }
    }
    seen.len()
}

#[test]
fn three_nodes_form_one_cluster_in_every_message_order_and_with_crashes() {
    let mut ends = 0;
    let states = explore(false, |world| {
        assert!(world.founded.len() <= 1, "{world:#?}");
        let mut world = world.clone();
        (0..4).for_each(|_| world.exchange());
        for (node, founded) in NODES.iter().zip(&world.nodes) {
            let Node::Founded(founding) = founded else { panic!("node {node} is left over: {world:#?}") };
            assert_eq!(founding.node, *node);
            assert_eq!((founding.tokens_above, founding.rules), (30, 6), "the greatest and the least of all");
            let incarnations = founding.members.iter().map(|member| member.incarnation[0]);
            assert_eq!(incarnations.collect::<Vec<_>>(), [16, 32, 48]);
            ends += 1;
        }
    });
    assert!(states > 100 && ends == states * 3, "{states} states");
}

#[test]
fn a_disk_wiped_at_any_time_never_leads_to_two_clusters() {
    let (mut of_both, mut stopped) = (BTreeSet::new(), 0);
    explore(true, |world| {
        assert!(world.founded.len() <= 1, "{world:#?}");
        of_both.extend(world.founded.iter().map(|founding| founding.cluster.clone()));
        stopped += usize::from(world.wiped && world.nodes[1] == Node::Stopped);
    });
    assert_eq!(of_both.len(), 2, "the wipe came before the founding, and after");
    assert!(stopped > 0, "the node with the wiped disk was told");
}

fn text(step: BootstrapStep) -> String {
    match step {
        BootstrapStep::Refuse(refusal) => refusal.text,
        BootstrapStep::Stop(refusal) => format!("STOP {}", refusal.text),
        step => panic!("{step:?}"),
    }
}

fn founded() -> Founding {
    let mut world = World::new();
    (0..4).for_each(|_| world.exchange());
    let Node::Founded(founding) = &world.nodes[0] else { panic!("{world:?}") };
    Founding { cluster: vec![0xC1; ID_BYTES], ..founding.clone() }
}

/// The hello of node 2 as a member of the cluster that `founding` describes.
fn member_hello(founding: &Founding) -> Hello {
    let two = Founding { node: 2, incarnation: vec![32; ID_BYTES], ..founding.clone() };
    identity(&two, &Members::founded(&two)).hello(1, Lane::Messages)
}

fn refused(founding: &Founding, members: &Members, hello: &Hello) -> String {
    let identity = NodeIdentity { rules: 1, ..identity(founding, members) };
    identity
        .admit(hello)
        .map_or_else(|refusal| format!("{:?} {}", refusal.code(), refusal.text), |()| "welcome".to_owned())
}

#[test]
fn member_admits_known_peers_and_refuses_others_with_instructions() {
    let founding = founded();
    let mut members = Members::founded(&founding);
    let hello = member_hello(&founding);
    let changed = |change: &dyn Fn(&mut Hello)| {
        let mut hello = hello.clone();
        change(&mut hello);
        refused(&founding, &members, &hello)
    };
    assert_eq!(changed(&|_| {}), "welcome");
    assert_eq!(
        changed(&|hello| hello.protocol = 7),
        format!(
            "Version node 2 (release {}) speaks version 7 of the peers' protocol, node 1 version 1: upgrade one release at \
             a time, and all nodes before the next one",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert_eq!(
        changed(&|hello| hello.to = 3),
        "Stranger this is node 1, node 3 was asked for: node 2 was given an address that leads to another node"
    );
    assert_eq!(
        changed(&|hello| hello.node = 1),
        "Stranger two nodes call themselves 1: give each its own `--node`"
    );
    assert_eq!(
        changed(&|hello| (hello.node, hello.incarnation) = (1, founding.incarnation.clone())),
        "Stranger node 1 has reached itself: an address of another node leads back to it"
    );
    assert_eq!(
        changed(&|hello| hello.cluster = vec![0xC2; ID_BYTES]),
        "Stranger node 2 belongs to another cluster than node 1: an address leads to another cluster, or data directories \
         were exchanged"
    );
    let gone = "Wiped node 2's data are gone: start it with `--rejoin`, then `lockkeeper cluster replace 2` takes it \
                in under a new id. The cluster knows another data directory of node 2; without what that one held it \
                could help to undo what was acknowledged";
    assert_eq!(changed(&|hello| hello.incarnation = vec![33; ID_BYTES]), gone);
    let wiped = Bootstrap::new(candidate(2, 1)).hello(1, Lane::Greeting);
    assert_eq!(refused(&founding, &members, &wiped), gone, "it has nothing any more");
    assert_eq!(
        changed(&|hello| hello.rules_max = 0),
        "Version node 2 knows the rules of the table up to version 0, the cluster uses version 1: start it with the release \
         of the other nodes"
    );
    let mut four = candidate(4, 0);
    let listing = Bootstrap::new(four.clone()).hello(0, Lane::Greeting);
    assert_eq!(
        refused(&founding, &members, &listing),
        "Stranger this cluster was founded without node 4: start it with `--join` instead of `--cluster`, then `lockkeeper \
         cluster add 4=peer-4:1`"
    );
    four.nodes.clear();
    let waiting = Bootstrap::new(four).hello(0, Lane::Greeting);
    assert_eq!(
        refused(&founding, &members, &waiting),
        "Later node 4 is not added yet to this cluster: `lockkeeper cluster add 4=peer-4:1`"
    );
    assert_eq!(
        changed(&|hello| hello.node = 5),
        "Later node 5 is no member of this cluster, as far as this node knows"
    );
    assert!(changed(&|hello| hello.incarnation = vec![1]).starts_with("Version the greeting of node 2"));

    members.nodes.remove(&2);
    members.removed.insert(2, vec![32; ID_BYTES]);
    assert_eq!(
        refused(&founding, &members, &hello),
        "Removed node 2 was removed from the cluster, and ids never come back. To take part again it needs a new id and an \
         empty data directory: `lockkeeper cluster add`"
    );
}

#[test]
fn node_added_later_is_admitted_by_a_member_with_an_older_member_list() {
    let founding = founded();
    let members = Members { at: 40, ..Members::founded(&founding) };
    let four = Member { node: 4, incarnation: vec![64; ID_BYTES], ..Member::default() };
    let own = Founding { node: 4, incarnation: four.incarnation.clone(), ..founding.clone() };
    let mut theirs = members.clone();
    theirs.nodes.insert(4, four);
    for (at, known) in [(39, "Later"), (40, "Later"), (41, "welcome")] {
        theirs.at = at;
        let hello = identity(&own, &theirs).hello(1, Lane::Messages);
        assert!(refused(&founding, &members, &hello).starts_with(known), "at {at}");
    }
    let admitted = |theirs: &Members| {
        let hello = identity(&own, theirs).hello(1, Lane::Messages);
        refused(&founding, &members, &hello) == "welcome"
    };
    assert!(admitted(&theirs));
    // A stranger that has learned the cluster's id does not know the incarnations of all members.
    for node in [1, 2, 3] {
        let mut guessed = theirs.clone();
        guessed.nodes.get_mut(&node).expect("it is there").incarnation[0] ^= 1;
        assert!(!admitted(&guessed), "of node {node} it has guessed");
        let gone = guessed.nodes.remove(&node).expect("it is there");
        assert!(!admitted(&guessed), "node {node} can't be forgotten");
        guessed.removed.insert(node, gone.incarnation);
        assert!(!admitted(&guessed), "node {node} was another one");
        let known = theirs.nodes[&node].incarnation.clone();
        guessed.removed.insert(node, known);
        assert!(admitted(&guessed), "node {node} was removed meanwhile");
    }
    let mut crowd = theirs.clone();
    crowd.nodes.extend((5..30).map(|node| (node, Member { node, ..Member::default() })));
    assert!(!admitted(&crowd), "no cluster has so many");
    theirs.nodes.remove(&4);
    assert!(!admitted(&theirs), "its own list is without it");
}

/// Anyone who can connect receives refusals.
#[test]
fn refusals_contain_no_cluster_id_and_no_incarnation() {
    let founding = founded();
    let members = Members::founded(&founding);
    let stranger = |node: u64, change: &dyn Fn(&mut Hello)| {
        let mut hello =
            Bootstrap::new(Candidate { nodes: Vec::new(), ..candidate(node, 7) }).hello(1, Lane::Messages);
        change(&mut hello);
        BootstrapStep::Refuse(identity(&founding, &members).admit(&hello).expect_err("it is a stranger"))
    };
    let all = [
        stranger(2, &|_| {}),
        stranger(4, &|_| {}),
        stranger(4, &|hello| hello.candidate = Some(candidate(4, 7))),
        stranger(4, &|hello| hello.cluster = vec![9; ID_BYTES]),
        stranger(4, &|hello| hello.cluster = founding.cluster.clone()),
        stranger(4, &|hello| hello.candidate = None),
        stranger(1, &|_| {}),
        stranger(4, &|hello| hello.protocol = 9),
        stranger(4, &|hello| hello.rules_max = 0),
        stranger(4, &|hello| hello.to = 3),
        Bootstrap::new(candidate(4, 0)).heard(&member_hello(&founding)),
    ];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let secrets: Vec<String> =
        members.nodes.values().map(|it| hex(&it.incarnation)).chain([hex(&founding.cluster)]).collect();
    for refusal in all.map(text) {
        assert!(!secrets.iter().any(|secret| refusal.contains(secret)), "{refusal}");
    }
}

#[test]
fn candidate_refuses_nodes_of_other_lists_with_the_difference() {
    let heard = |change: &dyn Fn(&mut Candidate)| {
        let mut other = candidate(2, 0);
        change(&mut other);
        text(Bootstrap::new(candidate(1, 0)).heard(&Bootstrap::new(other).hello(1, Lane::Greeting)))
    };
    let differ = "nodes 1 and 2 were told to found different clusters: ";
    assert_eq!(
        heard(&|other| other.nodes[2].peer_address = "elsewhere:1".to_owned()),
        format!(
            "{differ}node 3 is `peer-3:1` for node 1, and `elsewhere:1` for node 2; start all founders with the same \
                 `--cluster`"
        )
    );
    assert_eq!(
        heard(&|other| other.nodes.truncate(2)),
        format!("{differ}node 3 is in the list of node 1 only; start all founders with the same `--cluster`")
    );
    assert_eq!(
        heard(&|other| other.nodes.push(Listed { node: 7, ..Listed::default() })),
        format!("{differ}node 7 is in the list of node 2 only; start all founders with the same `--cluster`")
    );
    let seven = Bootstrap::new(Candidate { nodes: candidate(1, 0).nodes, ..candidate(7, 0) });
    assert_eq!(
        text(Bootstrap::new(candidate(1, 0)).heard(&seven.hello(1, Lane::Greeting))),
        "node 7 is not in the list of nodes that found this cluster (`--cluster`)"
    );
    let joiner = Candidate { nodes: Vec::new(), ..candidate(4, 0) };
    assert_eq!(
        text(Bootstrap::new(joiner).heard(&Bootstrap::new(candidate(2, 0)).hello(4, Lane::Greeting))),
        "node 4 waits to be added to a cluster (`--join`), it founds none: node 2 must not list it in `--cluster`"
    );
}

#[test]
fn node_wiped_during_bootstrap_is_refused_and_stops() {
    let gone = "node 2's data are gone, while its cluster was being founded. If no node serves yet, empty the data \
                directories of all of them and start again; else `lockkeeper cluster remove 2`, then add it under a new id";
    let mut one = Bootstrap::new(candidate(1, 0));
    one.heard(&Bootstrap::new(candidate(2, 0)).hello(1, Lane::Greeting));
    let BootstrapStep::Promise(own) = one.heard(&Bootstrap::new(candidate(3, 0)).hello(1, Lane::Greeting))
    else {
        panic!("all were heard")
    };
    one.promised(own);
    let mut wiped = Bootstrap::new(candidate(2, 1));
    assert_eq!(text(one.heard(&wiped.hello(1, Lane::Greeting))), gone);
    assert_eq!(text(wiped.heard(&one.hello(2, Lane::Greeting))), format!("STOP {gone}"));
    let founding = founded();
    assert!(text(wiped.heard(&member_hello_of_one(&founding))).starts_with("STOP node 2's data are gone: "));
}

fn member_hello_of_one(founding: &Founding) -> Hello {
    identity(founding, &Members::founded(founding)).hello(0, Lane::Messages)
}

#[test]
fn joining_node_waits_until_it_is_listed_and_copies_the_bootstrap_record() {
    let joiner = Candidate { nodes: Vec::new(), rules: 6, ..candidate(4, 0) };
    let mut founder = Bootstrap::new(joiner.clone());
    assert_eq!(founder.step(), BootstrapStep::Wait { missing: Vec::new() });
    let founding = founded();
    let mut members = Members::founded(&founding);
    let hello = |members: &Members| identity(&founding, members).hello(4, Lane::Messages);
    assert_eq!(founder.heard(&hello(&members)), BootstrapStep::Wait { missing: Vec::new() });
    members.at = 12;
    members.nodes.insert(4, joiner.member.clone().expect("it has one"));
    let expected = Founding { node: 4, incarnation: vec![64; ID_BYTES], ..founding.clone() };
    assert_eq!(founder.heard(&hello(&members)), BootstrapStep::Found(expected));

    let mut older = Bootstrap::new(Candidate { rules: 5, ..joiner });
    assert_eq!(
        text(older.heard(&hello(&members))),
        "STOP node 4 knows the rules of the table up to version 5, the cluster uses version 6: start it with the release of \
         the other nodes"
    );

    // The members have node 4 with another data directory.
    members.nodes.insert(4, Member { node: 4, incarnation: vec![65; ID_BYTES], ..Member::default() });
    assert!(text(founder.heard(&hello(&members))).starts_with("STOP node 4's data are gone: "));
    members.nodes.remove(&4);
    members.removed.insert(4, vec![64; ID_BYTES]);
    assert!(text(founder.heard(&hello(&members))).starts_with("STOP node 4 was removed from the cluster"));
    // A node of the bootstrap that has no promise runs on an old copy of its data.
    let step = Bootstrap::new(candidate(2, 0)).heard(&member_hello_of_one(&founding));
    assert!(text(step).starts_with("STOP node 2's data are gone: "));
}

#[test]
fn inconsistent_hello_is_refused() {
    let mut founder = Bootstrap::new(candidate(1, 0));
    let sound = Bootstrap::new(candidate(2, 0)).hello(1, Lane::Greeting);
    let changes: [fn(&mut Hello); 4] = [
        |hello| hello.candidate = None,
        |hello| hello.candidate = Some(candidate(3, 0)),
        |hello| hello.node = 0,
        |hello| hello.founding = Some(Founding { cluster: vec![1; ID_BYTES], ..Founding::default() }),
    ];
    for change in changes {
        let mut hello = sound.clone();
        change(&mut hello);
        assert!(text(founder.heard(&hello)).contains("contradicts itself"), "{hello:?}");
    }
}
