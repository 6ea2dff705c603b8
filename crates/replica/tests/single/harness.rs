//! A replica with an in-memory disk; the test controls the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Restorer, Table, Usage, WallTime};
use lockkeeper_replica::storage::record_bytes;
use lockkeeper_replica::{
    Answer, AskId, CallId, CallRequest, Config, Event, Members, Output, Question, Recovered, Replica,
    Requester, SessionCall, SnapshotStep, StreamCloseCause, StreamId, TURN_VISITS_MAX,
};
use lockkeeper_wire::request::{Open, Request, Secret};
use lockkeeper_wire::store::{self, Founding, Member};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::server_item::What;

pub(crate) const SECRET: Secret = Secret([7; 16]);

pub(crate) struct Node {
    pub(crate) replica: Replica,
    pub(crate) now: Duration,
    /// Only a test sets it.
    pub(crate) wall: WallTime,
    records: Vec<store::Record>,
    snapshot_after: u64,
    turn_visits_max: u64,
    /// The stored snapshot; the next field: the one being written.
    stored: Option<(store::SnapshotHead, Vec<u8>)>,
    writing: Option<(store::SnapshotHead, Vec<u8>)>,
    pub(crate) compacted: u64,
    /// Number of snapshot steps that succeed at once; after them the disk blocks until [`Node::quick_disk`].
    pub(crate) snapshot_steps: u64,
    held_step: Option<SnapshotStep>,
    /// Whether drain barriers complete at once.
    pub(crate) drains: bool,
    pub(crate) held_drains: Vec<u64>,
    heard: BTreeMap<StreamId, Vec<v1::ServerItem>>,
    pub(crate) ended: BTreeMap<StreamId, v1::StreamEnd>,
    called: BTreeMap<CallId, Vec<v1::SessionCallResponse>>,
    pub(crate) ended_calls: BTreeMap<CallId, v1::StreamEnd>,
    calls: u64,
    answers: BTreeMap<AskId, Answer>,
    asks: u64,
    /// Number of turns since the start; the next field: the most table entries visited in one turn.
    pub(crate) turns: u64,
    pub(crate) most_visits: u64,
    /// The quota of the streams that are opened.
    pub(crate) quota: Usage,
    /// The refusals at a quota.
    pub(crate) over_quota: Vec<(Requester, String)>,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::on(Vec::new(), None, u64::MAX, TURN_VISITS_MAX, Duration::from_secs(1_000))
    }

    /// A node that takes a snapshot whenever its log has grown by `after` bytes.
    pub(crate) fn with_snapshots(after: u64) -> Self {
        Self::on(Vec::new(), None, after, TURN_VISITS_MAX, Duration::from_secs(1_000))
    }

    /// As `with_snapshots`, with a budget of one command per turn.
    pub(crate) fn with_snapshots_and_small_turns(after: u64) -> Self {
        Self::on(Vec::new(), None, after, 1, Duration::from_secs(1_000))
    }

    fn on(
        records: Vec<store::Record>,
        stored: Option<(store::SnapshotHead, Vec<u8>)>,
        snapshot_after: u64,
        turn_visits_max: u64,
        now: Duration,
    ) -> Self {
        let mut hard_state = None;
        let mut entries: Vec<store::Entry> = Vec::new();
        for record in &records {
            hard_state = record.hard_state.or(hard_state);
            if let Some(first) = record.entries.first() {
                entries.retain(|entry| entry.index < first.index);
            }
            entries.extend(record.entries.iter().cloned());
        }
        let (mut table, mut snapshot_index, mut snapshot_term) = (Table::new(0), 0, 0);
        if let Some((head, bytes)) = &stored {
            let mut restorer = Restorer::new(0);
            bytes.chunks(7).for_each(|piece| restorer.push(piece).unwrap());
            table = restorer.finish().unwrap();
            (snapshot_index, snapshot_term) = (head.index, head.term);
            // The log is replayed from the entry after the snapshot.
            entries.retain(|entry| entry.index > head.index);
        }
        let alone = Member { node: 1, ..Member::default() };
        let members = Members::founded(&Founding { node: 1, members: vec![alone], ..Founding::default() });
        let config = Config {
            node: 1,
            tail_bytes: lockkeeper_replica::TAIL_BYTES,
            seed: 1,
            tokens_above: 1_000_000,
            rules: lockkeeper_core::limits::RULES_VERSION,
            tick: Duration::from_millis(50),
            snapshot_after,
            turn_visits_max,
            ends_per_part: lockkeeper_replica::ENDS_PER_PART,
            mutant: None,
        };
        let entry_bytes = bytes_after(&records, snapshot_index);
        let recovered =
            Recovered { table, snapshot_index, snapshot_term, members, hard_state, entries, entry_bytes };
        let mut node = Self {
            replica: Replica::start(config, recovered, now).unwrap(),
            now,
            wall: WallTime::default(),
            records,
            snapshot_after,
            turn_visits_max,
            stored,
            writing: None,
            compacted: 0,
            snapshot_steps: u64::MAX,
            held_step: None,
            drains: true,
            held_drains: Vec::new(),
            heard: BTreeMap::new(),
            ended: BTreeMap::new(),
            called: BTreeMap::new(),
            ended_calls: BTreeMap::new(),
            calls: 0,
            answers: BTreeMap::new(),
            asks: 0,
            turns: 0,
            most_visits: 0,
            quota: Usage::UNLIMITED,
            over_quota: Vec::new(),
        };
        node.turn(Vec::new());
        assert!(node.replica.is_ready(), "alone, it leads at once");
        node
    }

    /// `kill -9`, then a restart from the synced state.
    pub(crate) fn restart(self) -> Self {
        Self::on(self.records, self.stored, self.snapshot_after, self.turn_visits_max, self.now)
    }

    /// Runs a turn with these events, and then the turns that are due at once.
    pub(crate) fn turn(&mut self, mut events: Vec<Event>) {
        loop {
            let visits = self.replica.table().visits();
            events = self.one_turn(events);
            self.turns += 1;
            self.most_visits = self.most_visits.max(self.replica.table().visits() - visits);
            if events.is_empty() && self.replica.next_wake() > self.now {
                return;
            }
        }
    }

    fn one_turn(&mut self, events: Vec<Event>) -> Vec<Event> {
        self.replica.begin(self.now, self.wall);
        events.into_iter().for_each(|event| self.replica.handle(event));
        while let Some(write) = self.replica.advance().unwrap() {
            self.records.push(write.record().clone());
            self.replica.persisted(self.now, write.synced()).unwrap();
        }
        let mut drained = Vec::new();
        for output in self.replica.take_outputs() {
            match output {
                Output::Items(stream, items) => self.heard.entry(stream).or_default().extend(items),
                Output::EndStream(stream, end) => drop(self.ended.insert(stream, end)),
                Output::Called(call, response) | Output::CallWaits(call, response) => {
                    self.called.entry(call).or_default().push(response);
                }
                Output::CallEnded(call, end) => drop(self.ended_calls.insert(call, end)),
                Output::Answer(ask, answer) => drop(self.answers.insert(ask, answer)),
                Output::Drain(number) if self.drains => drained.push(Event::Drained(number)),
                Output::Drain(number) => self.held_drains.push(number),
                Output::Snapshot(step) if self.snapshot_steps == 0 => self.held_step = Some(step),
                Output::Snapshot(step) => {
                    self.snapshot_steps -= 1;
                    if let SnapshotStep::Begin(head) = &step {
                        let table_at = self.replica.begun_index();
                        assert_eq!(table_at, head.index, "the table has a part of a later entry already");
                    }
                    self.store(step);
                    drained.push(Event::SnapshotStepDone);
                }
                Output::Compact(index) => self.compacted = index,
                Output::OverQuota(from, text) => self.over_quota.push((from, text)),
                Output::Peer(node, messages) => panic!("alone, and something for {node}: {messages:?}"),
                other @ (Output::SendSnapshot(_)
                | Output::SnapshotUnused(_)
                | Output::Members(_)
                | Output::Differs(_)
                | Output::Wrong(_)) => panic!("alone, and yet: {other:?}"),
            }
        }
        drained
    }

    fn store(&mut self, step: SnapshotStep) {
        match step {
            SnapshotStep::Begin(head) => self.writing = Some((head, Vec::new())),
            SnapshotStep::Piece(bytes) => self.writing.as_mut().unwrap().1.extend(bytes),
            SnapshotStep::Finish(tail) => {
                assert_eq!(tail.bytes, self.writing.as_ref().unwrap().1.len() as u64);
                self.stored = self.writing.take();
            }
        }
    }

    /// Completes the blocked snapshot step and all further ones.
    pub(crate) fn quick_disk(&mut self) {
        self.quick_disk_and(Vec::new());
    }

    /// As `quick_disk`, in a turn with these events.
    pub(crate) fn quick_disk_and(&mut self, mut events: Vec<Event>) {
        self.snapshot_steps = u64::MAX;
        let step = self.held_step.take().expect("a step was held");
        self.store(step);
        events.push(Event::SnapshotStepDone);
        self.turn(events);
    }

    /// Fails the blocked snapshot step.
    pub(crate) fn failed_disk(&mut self) {
        self.held_step = None;
        self.turn(vec![Event::SnapshotFailed]);
    }

    /// The size on disk of the records with entries after the stored snapshot.
    pub(crate) fn log_bytes(&self) -> u64 {
        bytes_after(&self.records, self.stored.as_ref().map_or(0, |(head, _)| head.index))
    }

    /// The index of the stored snapshot, and its digest.
    pub(crate) fn stored(&self) -> (u64, u128) {
        let (head, bytes) = self.stored.as_ref().expect("a snapshot is stored");
        let mut restorer = Restorer::new(0);
        restorer.push(bytes).unwrap();
        (head.index, restorer.digest().expect("it is whole"))
    }

    /// Lets time pass in many turns, as on a healthy node.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.replica.next_wake().clamp(self.now + Duration::from_millis(1), end);
            self.turn(Vec::new());
        }
    }

    /// Models a stall: no turn runs for this long.
    pub(crate) fn stall(&mut self, duration: Duration) {
        self.now += duration;
        self.turn(Vec::new());
    }

    pub(crate) fn stream(&mut self, number: u64) -> StreamId {
        self.stream_of(number, "")
    }

    /// A stream of a client whose identity is known.
    pub(crate) fn stream_of(&mut self, number: u64, identity: &str) -> StreamId {
        let stream = StreamId(number);
        self.turn(vec![Event::StreamOpened { stream, identity: identity.into(), quota: self.quota }]);
        stream
    }

    pub(crate) fn send(&mut self, stream: StreamId, items: Vec<v1::ClientItem>) -> Vec<v1::ServerItem> {
        self.turn(vec![frame(stream, items)]);
        self.heard(stream)
    }

    /// The items that a stream received since the last call.
    pub(crate) fn heard(&mut self, stream: StreamId) -> Vec<v1::ServerItem> {
        self.heard.remove(&stream).unwrap_or_default()
    }

    /// The event of a call by a client of this identity.
    pub(crate) fn call_of(&mut self, identity: &str, request: CallRequest) -> (CallId, Event) {
        self.calls += 1;
        let (call, quota) = (CallId(self.calls), self.quota);
        let called = SessionCall { identity: identity.into(), quota, request };
        (call, Event::Called(call, Box::new(called)))
    }

    /// Makes a call; its answer may come later.
    pub(crate) fn called(&mut self, request: CallRequest) -> CallId {
        let (call, event) = self.call_of("", request);
        self.turn(vec![event]);
        call
    }

    /// The answers to a call since the last look.
    pub(crate) fn responses(&mut self, call: CallId) -> Vec<v1::SessionCallResponse> {
        self.called.remove(&call).unwrap_or_default()
    }

    /// Makes a call, and returns its only answer.
    pub(crate) fn call(&mut self, request: CallRequest) -> v1::SessionCallResponse {
        let call = self.called(request);
        let mut responses = self.responses(call);
        assert_eq!(responses.len(), 1, "{responses:?}");
        responses.remove(0)
    }

    /// Opens a session with a secret made of `number`, and attaches it.
    pub(crate) fn open(&mut self, stream: StreamId, number: u8, ttl: u64, linger: u64) -> u64 {
        let open = Open { ttl_ms: ttl, linger_ms: linger, ..opening(number, 1) };
        let heard = self.send(stream, vec![Request::Open(open).into()]);
        let [v1::ServerItem { session, what: Some(What::Opened(_)), .. }] = heard[..] else {
            panic!("not opened: {heard:?}")
        };
        session
    }

    pub(crate) fn ask(&mut self, question: Question) -> Answer {
        let ask = self.asked(question);
        self.answered(ask).expect("an answer")
    }

    /// Sends a call; its answer may come later.
    pub(crate) fn asked(&mut self, question: Question) -> AskId {
        self.asks += 1;
        let ask = AskId(self.asks);
        self.turn(vec![Event::Asked(ask, question)]);
        ask
    }

    pub(crate) fn answered(&mut self, ask: AskId) -> Option<Answer> {
        self.answers.remove(&ask)
    }

    pub(crate) fn close(&mut self, stream: StreamId, cause: StreamCloseCause) {
        self.turn(vec![Event::StreamClosed { stream, cause }]);
    }

    /// The changes that a watcher received since the last call.
    pub(crate) fn watched(&mut self, ask: AskId) -> Vec<v1::WatchResponse> {
        match self.answers.remove(&ask) {
            Some(Answer::Watched(told)) => told,
            Some(other) => panic!("not what a watcher is told: {other:?}"),
            None => Vec::new(),
        }
    }

    pub(crate) fn digest(&self) -> u128 {
        self.replica.table().snapshot().digest()
    }

    pub(crate) fn last_token(&self) -> u64 {
        self.replica.table().last_token()
    }
}

pub(crate) fn frame(stream: StreamId, items: Vec<v1::ClientItem>) -> Event {
    Event::Frame(stream, items.into_iter().map(|item| Request::try_from(item).unwrap()).collect())
}

/// The opening of a session with a secret made of `number`.
pub(crate) fn opening(number: u8, attach: u64) -> Open {
    Open {
        secret: Secret([number; 16]),
        ttl_ms: 10_000,
        lock_delay_ms: 0,
        linger_ms: 0,
        label: format!("client {number}"),
        attach,
    }
}

fn bytes_after(records: &[store::Record], index: u64) -> u64 {
    let is_after = |record: &&store::Record| record.entries.last().is_some_and(|last| last.index > index);
    records.iter().filter(is_after).map(record_bytes).sum()
}
