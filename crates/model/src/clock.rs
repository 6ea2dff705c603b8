//! Time. A leader may be stalled for any number of ticks.

use crate::action::Action;
use crate::model::Model;
use crate::rule::Rule;
use crate::state::{Role, State};

impl Model {
    pub(crate) fn offer_time(&self, state: &State, actions: &mut Vec<Action>) {
        let runs = |number: &u8| state.leader(*number).role == Role::Ready;
        let running = (0..self.leaders).filter(runs).fold(0, |bits, number| bits | 1 << number);
        // Any subset of the running leaders may be stalled.
        let mut stalled: u8 = running;
        loop {
            actions.push(Action::Tick { stalled });
            if stalled == 0 {
                return;
            }
            stalled = (stalled - 1) & running;
        }
    }

    pub(crate) fn tick(&self, state: &mut State, stalled: u8) {
        state.client.belief = state.client.belief.saturating_sub(1);
        if self.has(Rule::StampBeforeSend) {
            for call in &mut state.calls {
                call.worth = call.worth.saturating_sub(1);
            }
        }
        for (number, leader) in state.leaders.iter_mut().enumerate() {
            let ran = stalled >> number & 1 == 0;
            if leader.role != Role::Ready {
                continue;
            }
            if ran || !self.has(Rule::StallsDontCount) {
                leader.deadline = leader.deadline.saturating_sub(1);
                leader.revoked_until = leader.revoked_until.saturating_sub(1);
            }
            if ran {
                leader.zero = leader.zero.saturating_sub(1);
                leader.alive = leader.alive.saturating_sub(1);
                if let Some(check) = &mut leader.check {
                    check.alive = check.alive.saturating_sub(1);
                }
            }
        }
    }
}
