//! The network between the client and the leaders: delays, losses, closed connections, and unread input.

use crate::action::Action;
use crate::model::Model;
use crate::state::{CallStage, CloseProgress, KeepAliveCall, Role, State, TTL};

impl Model {
    pub(crate) fn offer_network(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, call) in state.calls.iter().enumerate() {
            if call.stream > 0 && call.stage == CallStage::Network {
                let (call, stream) = (number as u8, call.stream);
                actions.push(Action::Arrive { call, stream, leader: state.stream(stream).to });
                actions.push(Action::Lose { call, stream });
            }
        }
        for number in 1..=state.client.streams {
            let stream = state.stream(number);
            let on_the_way = |call: &KeepAliveCall| call.stream == number && call.stage == CallStage::Network;
            // Streams are ordered: the end of a stream arrives after every message that arrives at all.
            if stream.end == CloseProgress::Network && !state.calls.iter().any(on_the_way) {
                actions.push(Action::EndArrives { stream: number, leader: stream.to });
            }
            if self.middlebox && stream.end == CloseProgress::Open {
                actions.push(Action::Middlebox(number));
            }
        }
    }

    pub(crate) fn arrive(state: &mut State, call: usize) {
        let number = state.calls[call].stream;
        let to = state.stream(number).to;
        let elected = state.elected;
        let leader = state.leader_mut(to);
        if matches!(leader.role, Role::Follower | Role::Done) {
            state.calls[call] = KeepAliveCall::default();
            return;
        }
        if number >= leader.attach {
            leader.alive = TTL;
        }
        let call = &mut state.calls[call];
        call.stage = CallStage::Socket;
        call.late = to < elected;
    }

    pub(crate) fn end_arrives(state: &mut State, stream: u8) {
        let to = state.stream(stream).to;
        if matches!(state.leader(to).role, Role::Follower | Role::Done) {
            state.end_stream(stream);
        } else {
            state.stream_mut(stream).end = CloseProgress::Socket;
        }
    }
}
