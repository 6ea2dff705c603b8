//! Streams and calls that come while no living leader is known: they wait for one, since an election takes less time
//! than a client's way round all nodes does.
//!
//! Bounded in number, bytes and time: a node that is cut off from the majority must not keep its clients from it. Who
//! has waited in vain is told to go elsewhere, and no leader is named: the one that was is most likely dead.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lockkeeper_wire::request::Request;
use lockkeeper_wire::v1::StreamEndReason;

use super::{Lead, Replica, size};
use crate::event::{Answer, AskId, Event, Output, StreamId};

/// How long one waits: some elections.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many may wait, and how many bytes they may have said meanwhile.
const WAITING_MAX: usize = 4096;
const BYTES_MAX: usize = 8 << 20;
/// What anything takes beside its text.
const FIXED: usize = 64;

/// Someone who waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    Stream(StreamId),
    Ask(AskId),
}

#[derive(Default)]
pub(super) struct Parked {
    /// In the order in which all of it came, with the time. What was said by those who wait no more is dropped when it
    /// comes to the front.
    events: VecDeque<(Duration, Event)>,
    bytes: usize,
    waiting: BTreeSet<Who>,
}

impl Parked {
    /// Takes a word of one who comes or who waits. `Some`: there is no room; this one is to go elsewhere.
    fn push(&mut self, now: Duration, event: Event) -> Option<Who> {
        let (who, comes) = match &event {
            Event::StreamOpened(stream) => (Who::Stream(*stream), true),
            Event::Frame(stream, _) => (Who::Stream(*stream), false),
            Event::Asked(ask, _) => (Who::Ask(*ask), true),
            _ => return None,
        };
        if !comes && !self.waiting.contains(&who) {
            // It was told already.
            return None;
        }
        if self.bytes + bytes(&event) > BYTES_MAX || (comes && self.waiting.len() >= WAITING_MAX) {
            self.waiting.remove(&who);
            return Some(who);
        }
        self.bytes += bytes(&event);
        self.waiting.insert(who);
        self.events.push_back((now, event));
        None
    }

    fn leaves(&mut self, who: Who) {
        self.waiting.remove(&who);
    }

    /// Those who came too long ago.
    fn take_late(&mut self, now: Duration) -> Vec<Who> {
        let mut late = Vec::new();
        while let Some((since, event)) = self.events.front() {
            let who = who(event).filter(|who| self.waiting.contains(who));
            if who.is_some() && now < *since + PATIENCE {
                break;
            }
            // The first word of one who waits is its coming.
            late.extend(who.filter(|who| self.waiting.remove(who)));
            if let Some((_, event)) = self.events.pop_front() {
                self.bytes -= bytes(&event);
            }
        }
        late
    }

    /// All that was said by those who still wait, in its order; nobody waits then.
    fn take(&mut self) -> Vec<Event> {
        let Self { events, waiting, .. } = std::mem::take(self);
        let waits = |event: &Event| who(event).is_some_and(|who| waiting.contains(&who));
        events.into_iter().map(|(_, event)| event).filter(waits).collect()
    }

    /// Nobody waits any more: who did?
    fn take_waiting(&mut self) -> BTreeSet<Who> {
        std::mem::take(self).waiting
    }
}

fn who(event: &Event) -> Option<Who> {
    match event {
        Event::StreamOpened(stream) | Event::Frame(stream, _) => Some(Who::Stream(*stream)),
        Event::Asked(ask, _) => Some(Who::Ask(*ask)),
        _ => None,
    }
}

fn bytes(event: &Event) -> usize {
    let of = |request: &Request| match request {
        Request::Command { command, .. } => size(command),
        Request::Open(open) => FIXED + open.label.len(),
        _ => FIXED,
    };
    match event {
        Event::Frame(_, requests) => FIXED + requests.iter().map(of).sum::<usize>(),
        _ => FIXED,
    }
}

impl Replica {
    /// The other node that leads and that was heard of lately: within the least time-out of elections, and over
    /// connections that have not broken since. `None` also while this node leads itself.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let leader = self.engine.leader();
        let lives = self.engine.hears_leader() && !self.unreachable.contains(&leader);
        (lives && leader != self.config.node).then_some(leader)
    }

    /// A peer can be reached, and says where it serves clients.
    pub(super) fn peer_up(&mut self, node: u64, client_address: String) {
        self.unreachable.remove(&node);
        if self.clients.get(&node) != Some(&client_address) {
            self.clients.insert(node, client_address);
            self.addresses_seen += 1;
        }
    }

    /// A killed process is noticed by this some hundred milliseconds before its silence tells.
    pub(super) fn peer_down(&mut self, node: u64) {
        self.unreachable.insert(node);
        self.engine.lost(node);
    }

    /// What a client says to a node that does not lead.
    pub(super) fn without_lead(&mut self, event: Event) {
        match event {
            Event::StreamClosed { stream, by_client } => {
                // What it had said was never handled: no session has been here, and none is let go of.
                self.parked.leaves(Who::Stream(stream));
                self.stream_closed(stream, by_client);
            }
            Event::Dropped(ask) => {
                self.parked.leaves(Who::Ask(ask));
                self.dropped(ask);
            }
            event if self.follows().is_none() => {
                if let Some(who) = self.parked.push(self.now, event) {
                    self.send_away(who);
                }
            }
            Event::StreamOpened(stream) => self.send_away(Who::Stream(stream)),
            Event::Asked(ask, _) => self.send_away(Who::Ask(ask)),
            // Its stream is told, or is about to be.
            _ => {}
        }
    }

    /// Those who wait go on as soon as anybody is known to lead, and elsewhere when they have waited long enough.
    pub(super) fn settle_parked(&mut self) {
        if self.parked.events.is_empty() {
            return;
        }
        if self.lead != Lead::No {
            self.parked.take().into_iter().for_each(|event| self.handle(event));
        } else if self.follows().is_some() {
            self.end_parked();
        } else {
            let late = self.parked.take_late(self.now);
            late.into_iter().for_each(|who| self.send_away(who));
        }
    }

    /// Nobody waits here any more.
    pub(super) fn end_parked(&mut self) {
        self.parked.take_waiting().into_iter().for_each(|who| self.send_away(who));
    }

    fn send_away(&mut self, who: Who) {
        let leader = self.follows();
        self.outputs.push(match who {
            Who::Stream(stream) => {
                let text = if leader.is_some() {
                    "this node does not lead"
                } else {
                    "this node does not lead, and knows of none that does"
                };
                Output::EndStream(stream, self.stream_end(StreamEndReason::NotLeader, text))
            }
            Who::Ask(ask) => Output::Answer(ask, Answer::NotLeader { leader: leader.unwrap_or(0) }),
        });
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{SessionId, Table};
    use lockkeeper_wire::peer::{PeerKind, PeerMessage};
    use lockkeeper_wire::store::{Founding, Member};
    use lockkeeper_wire::v1::{self, server_item::What};

    use super::*;
    use crate::event::Question;
    use crate::members::Members;
    use crate::replica::{Config, Recovered, TAIL_BYTES, TICK};

    const ONE: StreamId = StreamId(1);
    const TWO: StreamId = StreamId(2);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn frame(stream: StreamId, requests: usize) -> Event {
        let request = Request::KeepAlive { session: SessionId(1), id: 1 };
        Event::Frame(stream, vec![request; requests])
    }

    fn asked(ask: u64) -> Event {
        Event::Asked(AskId(ask), Question::Sessions { max: 1, after: 0 })
    }

    /// What is given back, by whom.
    fn taken(parked: &mut Parked) -> Vec<Who> {
        parked.take().iter().filter_map(who).collect()
    }

    #[test]
    fn all_is_given_back_in_its_order_but_what_those_said_who_left() {
        let mut parked = Parked::default();
        for event in [
            Event::StreamOpened(ONE),
            Event::StreamOpened(TWO),
            asked(3),
            frame(TWO, 1),
            frame(ONE, 1),
            asked(4),
        ] {
            assert_eq!(parked.push(at(0), event), None);
        }
        parked.leaves(Who::Stream(ONE));
        parked.leaves(Who::Ask(AskId(3)));
        let (two, four) = (Who::Stream(TWO), Who::Ask(AskId(4)));
        assert_eq!(taken(&mut parked), [two, two, four]);
        assert_eq!((taken(&mut parked).len(), parked.bytes), (0, 0));
    }

    #[test]
    fn each_waits_for_its_own_time() {
        let mut parked = Parked::default();
        parked.push(at(0), Event::StreamOpened(ONE));
        parked.push(at(600), Event::StreamOpened(TWO));
        parked.push(at(900), frame(ONE, 3));
        assert!(parked.take_late(at(999)).is_empty());
        assert_eq!(parked.take_late(at(1_000)), [Who::Stream(ONE)]);
        assert_eq!(
            parked.push(at(1_100), frame(ONE, 1)),
            None,
            "it was told already, and says nothing that counts"
        );
        assert!(parked.take_late(at(1_599)).is_empty());
        assert_eq!(parked.take_late(at(1_600)), [Who::Stream(TWO)]);
        assert_eq!((taken(&mut parked).len(), parked.bytes, parked.events.len()), (0, 0, 0));
    }

    #[test]
    fn who_left_is_not_late() {
        let mut parked = Parked::default();
        parked.push(at(0), asked(1));
        parked.push(at(0), asked(2));
        parked.leaves(Who::Ask(AskId(1)));
        assert_eq!(parked.take_late(at(5_000)), [Who::Ask(AskId(2))]);
    }

    #[test]
    fn too_many_and_too_much_is_sent_away_and_nobody_else() {
        let mut parked = Parked::default();
        for stream in 0..WAITING_MAX as u64 {
            assert_eq!(parked.push(at(0), Event::StreamOpened(StreamId(stream))), None);
        }
        assert_eq!(parked.push(at(0), asked(9)), Some(Who::Ask(AskId(9))));
        let fits = (BYTES_MAX - parked.bytes) / FIXED - 1;
        assert_eq!(parked.push(at(0), frame(ONE, fits)), None);
        assert_eq!(parked.push(at(0), frame(TWO, 1)), Some(Who::Stream(TWO)));
        assert_eq!(parked.push(at(0), frame(TWO, 1)), None, "told once");
        assert_eq!(parked.take_late(at(1_000)).len(), WAITING_MAX - 1);
        assert_eq!(parked.push(at(1_000), Event::StreamOpened(TWO)), None, "there is room again");
    }

    /// One of three nodes, the other two of which nobody hears.
    fn cut_off() -> Replica {
        let config = Config {
            node: 1,
            seed: 1,
            tokens_above: 1,
            tick: TICK,
            tail_bytes: TAIL_BYTES,
            snapshot_after: u64::MAX,
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
        };
        Replica::start(config, recovered, at(0)).unwrap()
    }

    fn turn(replica: &mut Replica, now: u64, events: Vec<Event>) -> Vec<Output> {
        turn_with_peers(replica, now, events).0
    }

    /// What clients are told, and how node 2 agrees with what peers are told.
    fn turn_with_peers(
        replica: &mut Replica,
        now: u64,
        events: Vec<Event>,
    ) -> (Vec<Output>, Vec<PeerMessage>) {
        replica.begin(at(now));
        events.into_iter().for_each(|event| replica.handle(event));
        while let Some(write) = replica.advance().unwrap() {
            replica.persisted(at(now), write.synced()).unwrap();
        }
        let outputs = replica.take_outputs();
        let (to_peers, told) = outputs.into_iter().partition(|output| matches!(output, Output::Peer(..)));
        let to_peers: Vec<Output> = to_peers;
        let agreed: Vec<PeerMessage> = to_peers.iter().flat_map(agreement).collect();
        (told, agreed)
    }

    /// What node 2 answers if it agrees with everything.
    fn agreement(output: &Output) -> Vec<PeerMessage> {
        let Output::Peer(2, messages) = output else { return Vec::new() };
        let answer = |message: &PeerMessage| {
            let kind = match message.kind() {
                PeerKind::PreVote => PeerKind::PreVoteResponse,
                PeerKind::Vote => PeerKind::VoteResponse,
                PeerKind::Append => PeerKind::AppendResponse,
                PeerKind::Heartbeat => PeerKind::HeartbeatResponse,
                other => panic!("{other:?} asks nothing"),
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
            answer
        };
        messages.iter().map(answer).collect()
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

    /// A node in the minority sends its clients to the majority, wherever that is.
    #[test]
    fn where_nobody_leads_streams_and_calls_wait_for_a_second_and_are_sent_away_without_a_name() {
        let mut replica = cut_off();
        let come = vec![Event::StreamOpened(ONE), frame(ONE, 1), asked(7), Event::StreamOpened(TWO)];
        let mut told = turn(&mut replica, 500, come);
        told.extend(turn(&mut replica, 600, vec![Event::StreamClosed { stream: TWO, by_client: true }]));
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
    fn who_waits_is_sent_to_the_leader_that_is_learnt_and_later_ones_at_once() {
        let mut replica = cut_off();
        assert_eq!(turn(&mut replica, 20, vec![Event::StreamOpened(ONE), frame(ONE, 1)]), []);
        assert_eq!(named(&turn(&mut replica, 40, vec![heartbeat()])), ("node2:5625", 5));
        assert_eq!(
            named(&turn(&mut replica, 60, vec![Event::StreamOpened(TWO), frame(TWO, 1)])),
            ("node2:5625", 5)
        );
        let told = turn(&mut replica, 80, vec![asked(1)]);
        assert_eq!(told, [Output::Answer(AskId(1), Answer::NotLeader { leader: 2 })]);
    }

    /// A client that is sent to a dead node loses more time than one that waits.
    #[test]
    fn a_leader_whose_connection_broke_or_that_is_silent_is_not_named() {
        let mut replica = cut_off();
        turn(&mut replica, 20, vec![heartbeat()]);
        assert_eq!(turn(&mut replica, 40, vec![Event::PeerDown(2), Event::StreamOpened(ONE)]), []);
        assert_eq!(replica.follows(), None);
        let up = Event::PeerUp { node: 2, rules_max: 1, client_address: "moved:1".into() };
        assert_eq!(named(&turn(&mut replica, 60, vec![up])), ("moved:1", 5), "it was the network");
        for now in (80..320).step_by(20) {
            assert_eq!(turn(&mut replica, now, Vec::new()), []);
        }
        assert_eq!(turn(&mut replica, 320, vec![Event::StreamOpened(TWO)]), [], "an election is due");
        assert_eq!(replica.follows(), None);
    }

    #[test]
    fn who_waits_is_served_by_the_node_that_is_elected() {
        let mut replica = cut_off();
        let open = lockkeeper_wire::request::Open {
            secret: [7; 16],
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: String::new(),
            attach: 1,
        };
        let comes = Event::Frame(ONE, vec![Request::Open(open)]);
        let (mut told, mut agreed) =
            turn_with_peers(&mut replica, 20, vec![Event::StreamOpened(ONE), comes, asked(7)]);
        for now in (40..1_000).step_by(20) {
            let (more, agrees) = turn_with_peers(&mut replica, now, vec![Event::Peer(agreed)]);
            told.extend(more);
            agreed = agrees;
        }
        assert!(replica.is_ready());
        let [Output::Items(ONE, items), Output::Answer(AskId(7), Answer::Sessions(_))] = &told[..] else {
            panic!("it is opened, and the question answered: {told:?}")
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
    fn a_node_that_stops_keeps_nobody_waiting() {
        let mut replica = cut_off();
        assert_eq!(turn(&mut replica, 500, vec![Event::StreamOpened(ONE)]), []);
        let told = turn(&mut replica, 520, vec![Event::ShutDown]);
        assert!(matches!(told[..], [Output::EndStream(ONE, _)]), "{told:?}");
    }
}
