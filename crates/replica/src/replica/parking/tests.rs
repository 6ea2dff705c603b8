//! Which clients wait for a leader, and for how long.

use lockkeeper_core::{SessionId, Table, Usage, WallTime};
use lockkeeper_wire::peer::{PeerKind, PeerMessage};
use lockkeeper_wire::request::{Open, Secret};
use lockkeeper_wire::store::{Founding, Member};
use lockkeeper_wire::v1::{self, server_item::What};

use super::*;
use crate::event::{SessionPoll, StreamCloseCause};
use crate::members::Members;
use crate::replica::{Config, ENDS_PER_PART, Recovered, TAIL_BYTES, TICK, TURN_VISITS_MAX};

const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn frame(stream: StreamId, requests: usize) -> Event {
    let request = Request::KeepAlive { session: SessionId(1), id: 1 };
    Event::Frame(stream, vec![request; requests])
}

fn opened(stream: StreamId) -> Event {
    Event::StreamOpened { stream, identity: Box::default(), quota: Usage::UNLIMITED }
}

fn called(call: u64) -> Event {
    let (session, secret) = (SessionId(1), Secret([7; 16]));
    let request = CallRequest::KeepAlive { session, secret, id: 1, poll: SessionPoll::default() };
    let called = SessionCall { identity: "".into(), quota: Usage::UNLIMITED, request };
    Event::Called(CallId(call), Box::new(called))
}

fn asked(ask: u64) -> Event {
    Event::Asked(AskId(ask), Question::Sessions { max: 1, after: 0 })
}

/// The clients of the returned events, in order.
fn taken(parked: &mut Parked) -> Vec<Who> {
    parked.take().iter().filter_map(who).collect()
}

#[test]
fn events_of_waiting_clients_are_returned_in_order() {
    let mut parked = Parked::default();
    for event in [opened(ONE), opened(TWO), asked(3), frame(TWO, 1), called(5), frame(ONE, 1), asked(4)] {
        assert_eq!(parked.push(at(0), event), None);
    }
    parked.leaves(Who::Stream(ONE));
    parked.leaves(Who::Ask(AskId(3)));
    let (two, four, five) = (Who::Stream(TWO), Who::Ask(AskId(4)), Who::Call(CallId(5)));
    assert_eq!(taken(&mut parked), [two, two, five, four]);
    assert_eq!((taken(&mut parked).len(), parked.bytes), (0, 0));
}

#[test]
fn each_client_waits_for_its_own_time_limit() {
    let mut parked = Parked::default();
    parked.push(at(0), opened(ONE));
    parked.push(at(600), opened(TWO));
    parked.push(at(900), frame(ONE, 3));
    assert!(parked.take_late(at(999), at(1_000)).is_empty());
    assert_eq!(parked.take_late(at(1_000), at(1_000)), [Who::Stream(ONE)]);
    assert_eq!(
        parked.push(at(1_100), frame(ONE, 1)),
        None,
        "it was told already, and says nothing that counts"
    );
    assert!(parked.take_late(at(1_599), at(1_000)).is_empty());
    assert_eq!(parked.take_late(at(1_600), at(1_000)), [Who::Stream(TWO)]);
    assert_eq!((taken(&mut parked).len(), parked.bytes, parked.events.len()), (0, 0, 0));
}

#[test]
fn cancelled_call_is_not_late() {
    let mut parked = Parked::default();
    parked.push(at(0), asked(1));
    parked.push(at(0), asked(2));
    parked.leaves(Who::Ask(AskId(1)));
    assert_eq!(parked.take_late(at(5_000), at(1_000)), [Who::Ask(AskId(2))]);
}

#[test]
fn clients_beyond_the_limits_are_redirected() {
    let mut parked = Parked::default();
    for stream in 0..WAITING_MAX as u64 {
        assert_eq!(parked.push(at(0), opened(StreamId(stream))), None);
    }
    assert_eq!(parked.push(at(0), asked(9)), Some(Who::Ask(AskId(9))));
    let fits = (BYTES_MAX - parked.bytes) / FIXED - 1;
    assert_eq!(parked.push(at(0), frame(ONE, fits)), None);
    assert_eq!(parked.push(at(0), frame(TWO, 1)), Some(Who::Stream(TWO)));
    assert_eq!(parked.push(at(0), frame(TWO, 1)), None, "told once");
    assert_eq!(parked.take_late(at(1_000), at(1_000)).len(), WAITING_MAX - 1);
    assert_eq!(parked.push(at(1_000), opened(TWO)), None, "there is room again");
}

/// One node of three, partitioned from the other two.
fn cut_off() -> Replica {
    let config = Config {
        node: 1,
        seed: 1,
        tokens_above: 1,
        rules: lockkeeper_core::limits::RULES_VERSION,
        tick: TICK,
        tail_bytes: TAIL_BYTES,
        snapshot_after: u64::MAX,
        turn_visits_max: TURN_VISITS_MAX,
        ends_per_part: ENDS_PER_PART,
        mutant: None,
    };
    let member = |node| Member { node, client_address: format!("node{node}:5625"), ..Member::default() };
    let founding = Founding { node: 1, members: [1, 2, 3].map(member).into(), ..Founding::default() };
    let recovered = Recovered {
        table: Table::new(0),
        snapshot_index: 0,
        snapshot_term: 0,
        members: Members::founded(&founding),
        hard_state: None,
        entries: Vec::new(),
        entry_bytes: 0,
    };
    Replica::start(config, recovered, at(0)).unwrap()
}

fn turn(replica: &mut Replica, now: u64, events: Vec<Event>) -> Vec<Output> {
    turn_with_peers(replica, now, events).0
}

/// One turn: the outputs to clients, and node 2's responses to the messages sent to it.
fn turn_with_peers(replica: &mut Replica, now: u64, events: Vec<Event>) -> (Vec<Output>, Vec<PeerMessage>) {
    replica.begin(at(now), WallTime::default());
    events.into_iter().for_each(|event| replica.handle(event));
    while let Some(write) = replica.advance().unwrap() {
        replica.persisted(at(now), write.synced()).unwrap();
    }
    let outputs = replica.take_outputs();
    let is_for_nodes = |output: &Output| matches!(output, Output::Peer(..) | Output::Members(_));
    let (to_peers, told) = outputs.into_iter().partition(is_for_nodes);
    let to_peers: Vec<Output> = to_peers;
    let agreed: Vec<PeerMessage> = to_peers.iter().flat_map(agreement).collect();
    (told, agreed)
}

/// Node 2's responses if it accepts every message.
fn agreement(output: &Output) -> Vec<PeerMessage> {
    let Output::Peer(2, messages) = output else { return Vec::new() };
    let answer = |message: &PeerMessage| {
        let kind = match message.kind() {
            PeerKind::PreVote => PeerKind::PreVoteResponse,
            PeerKind::Vote => PeerKind::VoteResponse,
            PeerKind::Append => PeerKind::AppendResponse,
            PeerKind::Heartbeat => PeerKind::HeartbeatResponse,
            _ => return None,
        };
        let mut answer = PeerMessage {
            to: 1,
            from: 2,
            term: message.term,
            index: message.index + message.entries.len() as u64,
            context: message.context.clone(),
            ..PeerMessage::default()
        };
        answer.set_kind(kind);
        Some(answer)
    };
    messages.iter().filter_map(answer).collect()
}

fn heartbeat() -> Event {
    let mut heartbeat = PeerMessage { to: 1, from: 2, term: 5, ..PeerMessage::default() };
    heartbeat.set_kind(PeerKind::Heartbeat);
    Event::Peer(vec![heartbeat])
}

fn named(outputs: &[Output]) -> (&str, u64) {
    match outputs {
        [Output::EndStream(_, end)] => (&end.leader, end.term),
        other => panic!("one stream was to end: {other:?}"),
    }
}

/// A node in the minority redirects its clients, so that they find the majority.
#[test]
fn without_a_leader_clients_wait_a_second_then_are_redirected_without_an_address() {
    let mut replica = cut_off();
    let come = vec![opened(ONE), frame(ONE, 1), asked(7), opened(TWO)];
    let mut told = turn(&mut replica, 500, come);
    told.extend(turn(
        &mut replica,
        600,
        vec![Event::StreamClosed { stream: TWO, cause: StreamCloseCause::Client }],
    ));
    for now in (620..1_500).step_by(20) {
        told.extend(turn(&mut replica, now, Vec::new()));
    }
    assert_eq!(told, []);
    let end = v1::StreamEnd {
        reason: StreamEndReason::NotLeader.into(),
        text: "this node does not lead, and knows of none that does".to_owned(),
        ..v1::StreamEnd::default()
    };
    let told = turn(&mut replica, 1_500, Vec::new());
    let away = [Output::EndStream(ONE, end), Output::Answer(AskId(7), Answer::NotLeader { leader: 0 })];
    assert_eq!(told, away);
    assert_eq!(turn(&mut replica, 1_520, vec![frame(ONE, 1)]), []);
}

#[test]
fn waiting_clients_are_redirected_once_a_leader_is_known() {
    let mut replica = cut_off();
    assert_eq!(turn(&mut replica, 20, vec![opened(ONE), frame(ONE, 1)]), []);
    assert_eq!(named(&turn(&mut replica, 40, vec![heartbeat()])), ("node2:5625", 5));
    assert_eq!(named(&turn(&mut replica, 60, vec![opened(TWO), frame(TWO, 1)])), ("node2:5625", 5));
    let told = turn(&mut replica, 80, vec![asked(1)]);
    assert_eq!(told, [Output::Answer(AskId(1), Answer::NotLeader { leader: 2 })]);
}

/// A client that is redirected to a dead node loses more time than one that waits.
#[test]
fn disconnected_or_silent_leader_is_not_named() {
    let mut replica = cut_off();
    turn(&mut replica, 20, vec![heartbeat()]);
    assert_eq!(turn(&mut replica, 40, vec![Event::PeerDown(2), opened(ONE)]), []);
    assert_eq!(replica.follows(), None);
    let up = Event::PeerUp { node: 2, rules_max: 1, client_address: "moved:1".into() };
    assert_eq!(named(&turn(&mut replica, 60, vec![up])), ("moved:1", 5), "it was the network");
    for now in (80..320).step_by(20) {
        assert_eq!(turn(&mut replica, now, Vec::new()), []);
    }
    assert_eq!(turn(&mut replica, 320, vec![opened(TWO)]), [], "an election is due");
    assert_eq!(replica.follows(), None);
}

#[test]
fn waiting_clients_are_served_by_this_node_once_elected() {
    let mut replica = cut_off();
    let open = Open {
        secret: Secret([7; 16]),
        ttl_ms: 10_000,
        lock_delay_ms: 0,
        linger_ms: 0,
        label: String::new(),
        attach: 1,
    };
    let comes = Event::Frame(ONE, vec![Request::Open(open)]);
    let (mut told, mut agreed) = turn_with_peers(&mut replica, 20, vec![opened(ONE), comes, asked(7)]);
    for now in (40..1_000).step_by(20) {
        let (more, agrees) = turn_with_peers(&mut replica, now, vec![Event::Peer(agreed)]);
        told.extend(more);
        agreed = agrees;
    }
    assert!(replica.is_ready());
    let [Output::Answer(AskId(7), Answer::Sessions(_)), Output::Items(ONE, items)] = &told[..] else {
        panic!("the question is answered, and it is opened: {told:?}")
    };
    let [opened, nodes] = &items[..] else { panic!("{items:?}") };
    assert!(matches!(opened.what, Some(What::Opened(_))));
    let Some(What::Nodes(nodes)) = &nodes.what else { panic!("{nodes:?}") };
    assert_eq!(nodes.addresses, ["node1:5625", "node2:5625", "node3:5625"]);
    let moved = Event::PeerUp { node: 3, rules_max: 1, client_address: "moved:1".into() };
    let told = turn(&mut replica, 1_000, vec![moved]);
    let [Output::Items(ONE, items)] = &told[..] else { panic!("{told:?}") };
    let Some(What::Nodes(nodes)) = &items[0].what else { panic!("{items:?}") };
    assert_eq!(nodes.addresses[2], "moved:1", "and every change is told");
}

#[test]
fn stopping_node_redirects_waiting_clients() {
    let mut replica = cut_off();
    assert_eq!(turn(&mut replica, 500, vec![opened(ONE)]), []);
    let told = turn(&mut replica, 520, vec![Event::ShutDown]);
    assert!(matches!(told[..], [Output::EndStream(ONE, _)]), "{told:?}");
}
