//! A client: when it begins a section by itself, and what it does with a recall.

use super::rule::CachedRule;
use super::state::{CachedState, ClientHold, ClientStage, Down, LEASE, Up};
use super::{CachedAction, CachedModel};

impl CachedModel {
    pub(crate) fn offer_client(self, state: &CachedState, client: u8, actions: &mut Vec<CachedAction>) {
        let it = state.client(client);
        if it.section.is_some() {
            actions.push(CachedAction::End(client));
        }
        match it.stage {
            ClientStage::None if it.section.is_none() && it.is_attached && it.lease > 0 && it.is_live => {
                if it.asked < self.asks {
                    let spare = if client == 0 || self.all_cache { self.spare } else { 0 };
                    actions.push(CachedAction::Ask { client, spare, is_try: false });
                    if client > 0 {
                        actions.push(CachedAction::Ask { client, spare: 0, is_try: true });
                    }
                }
            }
            ClientStage::Held(held) if it.section.is_none() && held.left > 0 => {
                let is_valid = it.lease > 0 || !self.has(CachedRule::ValidLease);
                let may = !held.is_recalled || !self.has(CachedRule::NoneAfterRecall);
                if is_valid && may {
                    actions.push(CachedAction::Begin(client));
                }
                if !held.settles {
                    actions.push(CachedAction::GiveBack(client));
                }
            }
            ClientStage::None | ClientStage::Asked { .. } | ClientStage::Held(_) | ClientStage::Finishing => {
            }
        }
        if it.is_attached {
            if !it.up.is_empty() {
                actions.push(CachedAction::Apply(client));
            }
            if !it.down.is_empty() {
                actions.push(CachedAction::Hear(client));
            }
            if it.is_live && it.lease < LEASE {
                actions.push(CachedAction::Renew(client));
            }
            if self.stalls {
                actions.push(CachedAction::Break(client));
            }
        } else {
            actions.push(CachedAction::Attach(client));
        }
        if it.is_live && it.lease == 0 {
            actions.push(CachedAction::Expire(client));
        }
    }

    fn send(state: &mut CachedState, client: u8, what: Up) {
        let it = state.client_mut(client);
        if it.is_attached {
            it.up.push(what);
        }
    }

    pub(crate) fn ask(state: &mut CachedState, client: u8, spare: u8, is_try: bool) {
        let it = state.client_mut(client);
        it.asked += 1;
        it.stage = ClientStage::Asked { spare, is_try, is_recalled: false };
        Self::send(state, client, Up::Acquire { spare, is_try });
    }

    pub(crate) fn finish(state: &mut CachedState, client: u8) {
        state.client_mut(client).stage = ClientStage::Finishing;
        Self::send(state, client, Up::Finish);
    }

    /// A section begins: with a grant, or by the client itself.
    pub(crate) fn begin(self, state: &mut CachedState, client: u8) {
        let ClientStage::Held(mut held) = state.client(client).stage else { return };
        let token = held.next;
        if self.has(CachedRule::FreshToken) {
            held.next += 1;
        }
        held.left -= 1;
        let is_own = state.hold.is_some_and(|hold| hold.client == client);
        state.faults.token_not_above |= token <= state.highest;
        state.faults.ended_hold_used |= !is_own;
        state.faults.begun_after_recall |= held.is_recalled;
        state.highest = state.highest.max(token);
        let it = state.client_mut(client);
        it.section = Some(token);
        it.stage = ClientStage::Held(held);
        if is_own {
            state.waiters.iter_mut().for_each(|waiter| waiter.saw_use = true);
        }
    }

    pub(crate) fn end(self, state: &mut CachedState, client: u8) {
        state.client_mut(client).section = None;
        let ClientStage::Held(held) = state.client(client).stage else { return };
        let is_over = held.is_recalled && self.has(CachedRule::SettledEnds);
        if is_over || held.left == 0 {
            Self::finish(state, client);
        }
    }

    pub(crate) fn hear(self, state: &mut CachedState, client: u8) {
        let it = state.client_mut(client);
        let what = it.down.remove(0);
        match (what, it.stage) {
            (Down::Granted { token, spare }, ClientStage::Asked { is_recalled, .. }) => {
                let (next, left) = (token, spare + 1);
                it.stage = ClientStage::Held(ClientHold { next, left, is_recalled: false, settles: false });
                if it.lease == 0 {
                    return Self::finish(state, client);
                }
                self.begin(state, client);
                if is_recalled {
                    self.recalled(state, client);
                }
            }
            (Down::Busy, ClientStage::Asked { .. }) | (Down::Finished, ClientStage::Finishing) => {
                it.stage = ClientStage::None
            }
            (Down::Recalled, _) => self.recalled(state, client),
            (Down::Settled, ClientStage::Held(held)) => {
                it.stage = ClientStage::Held(ClientHold { settles: false, ..held });
            }
            _ => {}
        }
    }

    /// C5: an idle hold is finished, one in use is settled.
    pub(crate) fn recalled(self, state: &mut CachedState, client: u8) {
        let it = state.client_mut(client);
        match &mut it.stage {
            ClientStage::Asked { is_recalled, .. } => *is_recalled = self.has(CachedRule::EarlyRecall),
            ClientStage::Held(held) if held.is_recalled => {}
            ClientStage::Held(held) => {
                held.is_recalled = true;
                if it.section.is_some() {
                    held.settles = true;
                    Self::send(state, client, Up::Settle);
                } else if self.has(CachedRule::NoneAfterRecall) {
                    Self::finish(state, client);
                }
            }
            ClientStage::None | ClientStage::Finishing => {}
        }
    }

    /// Half of a lease passes. A hold is lost at its deadline; its section may go on.
    pub(crate) fn tick(self, state: &mut CachedState) {
        for client in 0..self.clients {
            let it = state.client_mut(client);
            it.lease = it.lease.saturating_sub(1);
            if it.lease == 0 && matches!(it.stage, ClientStage::Held(_)) && self.has(CachedRule::ValidLease) {
                Self::finish(state, client);
            }
        }
    }
}
