//! Elections: a new leader, the first entry of its own term, and deposed leaders that have not learned of it.

use crate::action::Action;
use crate::model::Model;
use crate::rule::Rule;
use crate::state::{Leader, Role, State, TTL};

impl Model {
    pub(crate) fn offer_election(&self, state: &State, actions: &mut Vec<Action>) {
        if state.elected + 1 < self.leaders {
            let leader = state.elected + 1;
            actions.push(Action::Elect { leader, inherits: false });
            if state.floating {
                actions.push(Action::Elect { leader, inherits: true });
            }
        }
        if state.first_pending {
            actions.push(Action::FirstEntry(state.elected));
        }
        for number in 0..state.elected {
            if state.leader(number).role != Role::Follower {
                actions.push(Action::StepDown(number));
            }
        }
    }

    pub(crate) fn elect(&self, state: &mut State, leader: u8, inherits: bool) {
        state.elected = leader;
        state.first_pending = true;
        state.inherited = inherits;
        state.leader_mut(leader).role = Role::Coming;
        if !self.has(Rule::FirstEntry) {
            self.zero_point(state, leader);
        }
    }

    /// Applies the leader's first entry. With it every earlier entry in the leader's log is committed;
    /// entries that are only in other logs are lost.
    pub(crate) fn first_entry(&self, state: &mut State) {
        let leader = state.elected;
        state.first_pending = false;
        state.floating = false;
        state.ended |= std::mem::take(&mut state.inherited);
        if state.ended {
            Self::done(state, leader);
        } else if state.leader(leader).role == Role::Coming {
            self.zero_point(state, leader);
        }
    }

    fn zero_point(&self, state: &mut State, leader: u8) {
        let deadline = if self.has(Rule::FullTtl) { self.full() } else { 0 };
        let revoked = state.broken;
        let revoked_until = if self.has(Rule::RevokedWaits) && revoked { TTL } else { 0 };
        let alive = state.leader(leader).alive;
        *state.leader_mut(leader) = Leader {
            role: Role::Ready,
            deadline,
            zero: TTL,
            revoked,
            revoked_until,
            alive,
            ..Leader::default()
        };
    }
}
