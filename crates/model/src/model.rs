//! The promises, and the transition function.

use stateright::Property;

use crate::action::Action;
use crate::rule::Rule;
use crate::state::{CallStage, Check, CloseProgress, Closing, Leader, QuorumRead, Role, State};

/// The promises that the model checks; P4 for breaks only.
pub const PROMISES: [&str; 4] = ["P4", "P5", "P6", "P9"];

/// The parameters of one model: its size and its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// Number of successive leaders: 1 to 3.
    pub leaders: u8,
    /// Number of streams that the client opens in succession: 1 to 3.
    pub streams: u8,
    /// Number of renewals in flight at once: 1 or 2.
    pub calls: u8,
    /// Whether the session expires: after its ttl without a keep-alive and, if it has a `linger`, after that
    /// time once the client has closed its stream.
    pub expiry: bool,
    /// Whether the session has a `linger`, the shorter time after which it expires once its client has closed
    /// the stream.
    pub linger: bool,
    /// Whether an operator breaks the session's hold.
    pub breaks: bool,
    /// Whether leaders end streams themselves.
    pub drops: bool,
    /// Whether a middlebox closes streams towards the leader, without the client's notice.
    pub middlebox: bool,
    /// The rule that is left out.
    pub without: Option<Rule>,
}

impl Model {
    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn leaders(&self) -> std::ops::Range<u8> {
        0..self.leaders
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_over() {
            // The session has ended and no leader is left that could acknowledge a renewal. Until another
            // leader is elected no promise can break, so other events are left out.
            return self.offer_election(state, actions);
        }
        self.offer_client(state, actions);
        self.offer_network(state, actions);
        self.leaders().for_each(|number| self.offer_leader(state, number, actions));
        self.offer_election(state, actions);
        self.offer_time(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let state = &mut next;
        match action {
            Action::Tick { stalled } => self.tick(state, stalled),
            Action::Send { .. } => self.send(state),
            Action::SendLate { .. } => Self::send_late(state),
            Action::Hang => self.hang(state),
            Action::Connect(leader) => Self::connect(state, leader),
            Action::EndReceived => Self::end_received(state),
            Action::Arrive { call, .. } => Self::arrive(state, usize::from(call)),
            Action::Lose { call, .. } => state.calls[usize::from(call)] = Default::default(),
            Action::EndArrives { stream, .. } => Self::end_arrives(state, stream),
            Action::Middlebox(stream) => state.stream_mut(stream).end = CloseProgress::Network,
            Action::Read { call, leader, .. } => self.read(state, leader, call),
            Action::ReadEnd { stream, leader } => self.read_end(state, leader, stream),
            Action::DropStream { stream, leader } => self.drop_stream(state, leader, stream),
            Action::Ask(leader) => Self::ask(state, leader),
            Action::Confirm(leader) => state.leader_mut(leader).round = QuorumRead::Confirmed,
            Action::Acknowledge(leader) => self.acknowledge(state, leader),
            Action::BeginCheck(leader) => self.begin_check(state, leader),
            Action::ConfirmCheck(leader) => Self::confirm_check(state, leader),
            Action::Decide(leader) => self.decide(state, leader),
            Action::CommitEnd(leader) => Self::commit_end(state, leader),
            Action::Elect { leader, inherits } => self.elect(state, leader, inherits),
            Action::FirstEntry(_) => self.first_entry(state),
            Action::StepDown(leader) => Self::leave(state, leader, Role::Follower),
            Action::Break(leader) => self.break_hold(state, leader),
            Action::OpenRevoked(_) => state.opened = true,
        }
        next.settle(self.leaders);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            // P5: once the session has ended, others can be granted its locks, so the client's lease deadline
            // must have passed. P4: once the lock of the revoked hold is open, the client must have been told
            // of the revocation, or its lease deadline must have passed. If the session has ended, only P5
            // applies.
            Property::always("P5", |_, it: &State| !it.ended || it.client.belief == 0),
            Property::always("P4", |_, it: &State| {
                !it.opened || it.ended || it.client.informed || it.client.belief == 0
            }),
            Property::always("P6", |_, it: &State| !it.late_ack),
            Property::always("P9", |_, it: &State| !it.hasty_end),
            // Situations that an exploration must reach to be meaningful.
            Property::sometimes("a deposed leader asks for a sign that came too late", |_, it: &State| {
                it.calls.iter().any(|call| call.late && call.stage == CallStage::Round)
            }),
            Property::sometimes("a later leader is confirmed for a sign of life", |_, it: &State| {
                let confirmed = |leader: u8| {
                    it.leader(leader).round == QuorumRead::Confirmed
                        && it.calls_at(leader, CallStage::Round).count() > 0
                };
                (1..=it.elected).any(confirmed)
            }),
            Property::sometimes("a later leader inherits the session's end", |_, it: &State| it.inherited),
            Property::sometimes("a later leader ends the session", |_, it: &State| {
                it.leaders[1..].iter().any(|leader| leader.ending)
            }),
            Property::sometimes("a check finds a sign that came meanwhile", |_, it: &State| {
                let found =
                    |check: Check, leader: &Leader| check.candidate && check.confirmed && leader.deadline > 0;
                it.leaders.iter().any(|leader| leader.check.is_some_and(|check| found(check, leader)))
            }),
            Property::sometimes("linger begins", |_, it: &State| {
                let confirmed = |leader: &Leader| leader.check.is_some_and(|check| check.confirmed);
                it.leaders.iter().any(|leader| leader.closing == Closing::InCheck && confirmed(leader))
            }),
            Property::sometimes("a newer attach takes linger back", |_, it: &State| {
                let cancelled = |leader: &Leader| leader.check.is_some_and(|check| !check.candidate);
                it.leaders.iter().any(|leader| leader.closing == Closing::No && cancelled(leader))
            }),
            Property::sometimes("a lock opens whose holder was told", |_, it: &State| {
                it.opened && it.client.informed
            }),
            Property::sometimes("a lock opens whose holder was never told", |_, it: &State| {
                it.opened && !it.client.informed
            }),
        ]
    }
}
