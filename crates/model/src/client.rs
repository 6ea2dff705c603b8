//! The client: when it stamps a renewal, its lease deadline, and when it gives up by itself.

use crate::action::Action;
use crate::model::Model;
use crate::rule::Rule;
use crate::state::{CallStage, CloseProgress, DRIFT, KeepAliveCall, LINGER, Role, State, TTL};

impl Model {
    /// The true duration of `ticks` measured by the client, whose clock is as slow as the assumed drift
    /// allows. The margin compensates the drift exactly.
    fn measured(&self, ticks: u8) -> u8 {
        if self.has(Rule::Margin) { ticks } else { ticks + DRIFT }
    }

    pub(crate) fn offer_client(&self, state: &State, actions: &mut Vec<Action>) {
        let client = &state.client;
        let takes = |leader: u8| matches!(state.leader(leader).role, Role::Coming | Role::Ready);
        if client.stream == 0 {
            if client.streams < self.streams {
                let leaders = (0..=state.elected).filter(|&leader| takes(leader));
                actions.extend(leaders.map(Action::Connect));
            }
            return;
        }
        let stream = state.stream(client.stream);
        match stream.end {
            CloseProgress::Open => {
                let under_way = state.calls.iter().filter(|call| call.stream > 0).count();
                if under_way < usize::from(self.calls) {
                    if takes(stream.to) {
                        actions.push(Action::Send { stream: client.stream });
                    }
                    if self.linger {
                        actions.push(Action::SendLate { stream: client.stream });
                    }
                }
                actions.push(Action::Hang);
            }
            CloseProgress::Over => actions.push(Action::EndReceived),
            CloseProgress::Network | CloseProgress::Socket => {}
        }
    }

    pub(crate) fn send(&self, state: &mut State) {
        let number = state.client.stream;
        let worth = self.measured(TTL);
        if let Some(index) = state.calls.iter().position(|call| call.stream == 0) {
            state.calls[index] = KeepAliveCall { stream: number, worth, ..KeepAliveCall::default() };
            Self::arrive(state, index);
        }
    }

    pub(crate) fn send_late(state: &mut State) {
        let stream = state.client.stream;
        if let Some(free) = state.calls.iter_mut().find(|call| call.stream == 0) {
            *free = KeepAliveCall { stream, stage: CallStage::Network, ..KeepAliveCall::default() };
        }
    }

    /// The client detects the end of its stream, or closes it. Renewals that are pending on the stream no
    /// longer extend the lease deadline, and `linger` may have begun.
    pub(crate) fn hang(&self, state: &mut State) {
        let stream = std::mem::take(&mut state.client.stream);
        state.stream_mut(stream).end = CloseProgress::Network;
        for call in state.calls.iter_mut().filter(|call| call.stream == stream) {
            call.worth = 0;
        }
        if self.linger && self.has(Rule::ClientCuts) {
            state.client.belief = state.client.belief.min(self.measured(LINGER));
        }
    }

    pub(crate) fn connect(state: &mut State, leader: u8) {
        state.client.streams += 1;
        state.client.stream = state.client.streams;
        let stream = state.stream_mut(state.client.stream);
        stream.to = leader;
        stream.end = CloseProgress::Open;
    }

    /// The client receives an acknowledgement. It ignores acknowledgements for earlier streams.
    pub(crate) fn heard(state: &mut State, call: KeepAliveCall, names_revoked: bool) {
        state.late_ack |= call.late;
        if call.stream == state.client.stream {
            state.client.belief = state.client.belief.max(call.worth);
            state.client.informed |= names_revoked;
        }
    }

    pub(crate) fn end_received(state: &mut State) {
        state.client.stream = 0;
    }
}
