//! A leader: its lease of the session, its quorum reads, the two steps of an expiry, and a break.

use crate::action::Action;
use crate::model::Model;
use crate::rule::Rule;
use crate::state::{
    CallStage, Check, CloseProgress, Closing, KeepAliveCall, LINGER, Leader, QuorumRead, Role, State, TTL,
};

impl Model {
    /// Ticks until the deadline that the leader sets for the session when it reads a renewal now.
    pub(crate) fn full(&self) -> u8 {
        if self.has(Rule::ClockAfterInput) { TTL } else { TTL - 1 }
    }

    pub(crate) fn offer_leader(&self, state: &State, number: u8, actions: &mut Vec<Action>) {
        let leader = state.leader(number);
        if leader.role != Role::Ready {
            return;
        }
        let is_latest = number == state.elected;
        for (call, it) in state.calls.iter().enumerate() {
            if it.stream > 0 && it.stage == CallStage::Socket && state.stream(it.stream).to == number {
                actions.push(Action::Read { call: call as u8, leader: number, stream: it.stream });
            }
        }
        for stream in 1..=state.client.streams {
            let it = state.stream(stream);
            let unread = |call: &KeepAliveCall| call.stream == stream && call.stage == CallStage::Socket;
            if it.to == number && it.end == CloseProgress::Socket && !state.calls.iter().any(unread) {
                actions.push(Action::ReadEnd { stream, leader: number });
            }
        }
        if self.drops && leader.attached && state.stream(leader.attach).end != CloseProgress::Over {
            actions.push(Action::DropStream { stream: leader.attach, leader: number });
        }
        match leader.round {
            QuorumRead::None if state.calls_at(number, CallStage::Waiting).next().is_some() => {
                actions.push(Action::Ask(number));
            }
            QuorumRead::Asked if is_latest => actions.push(Action::Confirm(number)),
            QuorumRead::Confirmed => actions.push(Action::Acknowledge(number)),
            _ => {}
        }
        if self.expiry {
            self.offer_end(state, number, actions);
        }
        if self.breaks && is_latest && !state.first_pending {
            if !state.broken {
                actions.push(Action::Break(number));
            } else if leader.revoked && leader.revoked_until == 0 && !state.opened {
                actions.push(Action::OpenRevoked(number));
            }
        }
    }

    fn offer_end(&self, state: &State, number: u8, actions: &mut Vec<Action>) {
        let leader = state.leader(number);
        let is_latest = number == state.elected;
        if !is_latest && (!state.first_pending || state.elected + 1 == self.leaders) {
            return;
        }
        match leader.check {
            None if !leader.ending && (leader.deadline == 0 || leader.closing == Closing::Pending) => {
                actions.push(Action::BeginCheck(number));
            }
            Some(Check { confirmed: false, .. }) if is_latest => actions.push(Action::ConfirmCheck(number)),
            Some(Check { confirmed: true, .. }) if !Self::has_old(state, number) => {
                actions.push(Action::Decide(number));
            }
            _ => {}
        }
        if leader.ending && is_latest {
            actions.push(Action::CommitEnd(number));
        }
    }

    /// Returns true if input that had arrived when the check began is still unread.
    fn has_old(state: &State, leader: u8) -> bool {
        let old = |stream: &crate::state::ModelStream| {
            stream.to == leader && stream.end == CloseProgress::Socket && stream.old
        };
        state.calls_at(leader, CallStage::Socket).any(|call| call.old) || state.streams.iter().any(old)
    }

    pub(crate) fn read(&self, state: &mut State, number: u8, call: u8) {
        let index = usize::from(call);
        let stream = state.calls[index].stream;
        let (full, full_drop) = (self.full(), self.has(Rule::NothingAfterEnd));
        let leader = state.leader_mut(number);
        let counts = stream > leader.attach || (stream == leader.attach && leader.attached);
        if !counts && self.has(Rule::NewestAttach) {
            state.calls[index] = KeepAliveCall::default();
            return;
        }
        if stream != leader.attach {
            leader.closing = Closing::No;
        }
        leader.attach = stream;
        leader.attached = true;
        if leader.ending && full_drop {
            state.calls[index] = KeepAliveCall::default();
            return;
        }
        leader.deadline = leader.deadline.max(full);
        let joins = leader.round != QuorumRead::None && !self.has(Rule::LaterRound);
        let names_revoked = leader.revoked && self.has(Rule::NamesRevoked);
        if self.has(Rule::Round) {
            state.calls[index].stage = if joins { CallStage::Round } else { CallStage::Waiting };
        } else {
            let call = std::mem::take(&mut state.calls[index]);
            Self::heard(state, call, names_revoked);
        }
    }

    /// The leader reads the close of a stream: from here on no renewal of the stream extends the lease or is
    /// acknowledged.
    pub(crate) fn read_end(&self, state: &mut State, number: u8, stream: u8) {
        state.end_stream(stream);
        let newer = state.calls_at(number, CallStage::Socket).any(|call| call.stream > stream);
        let linger = self.linger;
        let leader = state.leader_mut(number);
        if leader.attach == stream && leader.attached {
            leader.attached = false;
            if linger {
                leader.closing = Closing::Pending;
                if !newer {
                    // The session is guaranteed only `linger` from here on: the one exception to P5 and P9.
                    leader.alive = 0;
                }
            }
        }
    }

    /// The leader ends a stream itself. The client then has its full ttl to reconnect.
    pub(crate) fn drop_stream(&self, state: &mut State, number: u8, stream: u8) {
        state.end_stream(stream);
        let (linger, full, ours) = (self.linger, self.full(), self.has(Rule::ClientsCloseOnly));
        let leader = state.leader_mut(number);
        leader.attached = false;
        if ours {
            leader.deadline = leader.deadline.max(full);
        } else if linger {
            leader.closing = Closing::Pending;
        }
    }

    pub(crate) fn ask(state: &mut State, number: u8) {
        state.leader_mut(number).round = QuorumRead::Asked;
        for index in 0..state.calls.len() {
            let call = state.calls[index];
            if call.stream > 0 && call.stage == CallStage::Waiting && state.stream(call.stream).to == number {
                state.calls[index].stage = CallStage::Round;
            }
        }
    }

    pub(crate) fn acknowledge(&self, state: &mut State, number: u8) {
        let leader = state.leader_mut(number);
        leader.round = QuorumRead::None;
        let silent = leader.ending && self.has(Rule::NothingAfterEnd);
        let (attach, attached) = (leader.attach, leader.attached);
        let names_revoked = leader.revoked && self.has(Rule::NamesRevoked);
        for index in 0..state.calls.len() {
            let call = state.calls[index];
            if call.stream == 0 || call.stage != CallStage::Round || state.stream(call.stream).to != number {
                continue;
            }
            state.calls[index] = KeepAliveCall::default();
            if !silent && call.stream == attach && attached {
                Self::heard(state, call, names_revoked);
            }
        }
    }

    pub(crate) fn begin_check(&self, state: &mut State, number: u8) {
        let (confirmed, drains) = (!self.has(Rule::ExpiryRound), self.has(Rule::ExpiryDrain));
        let leader = state.leader_mut(number);
        leader.check = Some(Check { candidate: leader.deadline == 0, confirmed, alive: leader.alive });
        if leader.closing == Closing::Pending {
            leader.closing = Closing::InCheck;
        }
        Self::mark_old(state, number, drains);
    }

    fn mark_old(state: &mut State, leader: u8, old: bool) {
        for index in 0..state.calls.len() {
            let call = state.calls[index];
            if call.stream > 0 && call.stage == CallStage::Socket && state.stream(call.stream).to == leader {
                state.calls[index].old = old;
            }
        }
        for stream in state.streams.iter_mut().filter(|it| it.to == leader && it.end == CloseProgress::Socket)
        {
            stream.old = old;
        }
    }

    pub(crate) fn confirm_check(state: &mut State, number: u8) {
        if let Some(check) = &mut state.leader_mut(number).check {
            check.confirmed = true;
        }
    }

    pub(crate) fn decide(&self, state: &mut State, number: u8) {
        let floor = self.has(Rule::Floor);
        let can_stay = number == state.elected || state.first_pending;
        let leader = state.leader_mut(number);
        let Some(check) = leader.check.take() else { return };
        if leader.closing == Closing::InCheck {
            leader.closing = Closing::No;
            leader.deadline = leader.deadline.min(LINGER).max(if floor { leader.zero } else { 0 });
        }
        if check.candidate && leader.deadline == 0 {
            leader.ending = true;
            state.hasty_end |= leader.zero > 0 || check.alive > 0;
            state.floating |= can_stay;
        }
        Self::mark_old(state, number, false);
    }

    pub(crate) fn commit_end(state: &mut State, number: u8) {
        state.ended = true;
        state.floating = false;
        Self::done(state, number);
    }

    /// The leader has applied the session's end, and takes no further part.
    pub(crate) fn done(state: &mut State, number: u8) {
        Self::leave(state, number, Role::Done);
    }

    pub(crate) fn leave(state: &mut State, number: u8, role: Role) {
        for stream in 1..=state.client.streams {
            if state.stream(stream).to == number && state.stream(stream).end != CloseProgress::Over {
                state.end_stream(stream);
            }
        }
        *state.leader_mut(number) = Leader { role, ..Leader::default() };
    }

    pub(crate) fn break_hold(&self, state: &mut State, number: u8) {
        state.broken = true;
        let waits = self.has(Rule::RevokedWaits);
        let leader = state.leader_mut(number);
        leader.revoked = true;
        leader.revoked_until = if waits { TTL } else { 0 };
    }
}
