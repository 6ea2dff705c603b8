//! The table: what it does with each message of a client.

use super::rule::CachedRule;
use super::state::{CachedState, Down, TableHold, Up, Waiter};
use super::{CachedModel, ClientStage};

impl CachedModel {
    pub(crate) fn apply(self, state: &mut CachedState, client: u8) {
        let up = state.client_mut(client).up.remove(0);
        if !state.client(client).is_live {
            return;
        }
        match up {
            Up::Acquire { spare, is_try } => self.acquire(state, client, spare, is_try),
            Up::Settle => {
                Self::settle(state, client);
                Self::tell(state, client, Down::Settled);
            }
            Up::Finish => {
                self.drop_request(state, client);
                Self::tell(state, client, Down::Finished);
            }
        }
    }

    fn tell(state: &mut CachedState, client: u8, what: Down) {
        let client = state.client_mut(client);
        if client.is_attached {
            client.down.push(what);
        }
    }

    /// An acquire that is sent again gets its first answer.
    fn acquire(self, state: &mut CachedState, client: u8, spare: u8, is_try: bool) {
        if let Some(hold) = state.hold.filter(|hold| hold.client == client) {
            return Self::tell(state, client, Down::Granted { token: hold.token, spare: hold.spare });
        }
        if state.waiters.iter().any(|waiter| waiter.client == client) {
            return;
        }
        let Some(mut hold) = state.hold else { return self.grant(state, client, spare) };
        let saw_use = state.is_in_use(hold);
        let is_put_off = hold.is_cached && state.waiters.is_empty() && self.has(CachedRule::PutOff);
        if is_try && !is_put_off {
            let is_excused = saw_use || !state.waiters.is_empty();
            return Self::busy(state, client, is_excused);
        }
        state.waiters.push(Waiter { client, is_try, saw_use });
        if hold.is_cached && !hold.is_recalled {
            hold.is_recalled = true;
            state.hold = Some(hold);
            Self::tell(state, hold.client, Down::Recalled);
        }
    }

    fn busy(state: &mut CachedState, client: u8, is_excused: bool) {
        state.faults.idle_is_busy |= !is_excused;
        Self::tell(state, client, Down::Busy);
    }

    fn grant(self, state: &mut CachedState, client: u8, spare: u8) {
        let token = state.counter + 1;
        state.counter = if self.has(CachedRule::WholeBlock) { token + spare } else { token };
        let hold = TableHold { client, token, spare, is_cached: spare > 0, is_recalled: false };
        state.hold = Some(hold);
        Self::tell(state, client, Down::Granted { token, spare });
    }

    /// The tries that were put off because of the hold are busy.
    fn settle(state: &mut CachedState, client: u8) {
        let Some(hold) = state.hold.as_mut().filter(|hold| hold.client == client) else { return };
        hold.is_cached = false;
        let waiters = std::mem::take(&mut state.waiters);
        for waiter in waiters {
            if waiter.is_try {
                state.met.settle_was_busy = true;
                Self::busy(state, waiter.client, waiter.saw_use);
            } else {
                state.waiters.push(waiter);
            }
        }
    }

    /// Ends the client's request. The next waiter has the lock.
    fn drop_request(self, state: &mut CachedState, client: u8) {
        state.waiters.retain(|waiter| waiter.client != client);
        if state.hold.is_none_or(|hold| hold.client != client) {
            return;
        }
        state.hold = None;
        if !state.waiters.is_empty() {
            let next = state.waiters.remove(0);
            state.met.try_was_granted |= next.is_try;
            self.grant(state, next.client, 0);
        }
    }

    /// The session ends: what its client knows is wrong from here on.
    pub(crate) fn expire(self, state: &mut CachedState, client: u8) {
        state.client_mut(client).is_live = false;
        self.drop_request(state, client);
    }

    /// A new stream: the recall is told again, and the client sends again what has no answer. If its session
    /// has ended, the client begins another one.
    pub(crate) fn attach(self, state: &mut CachedState, client: u8) {
        let is_recalled = state.hold.is_some_and(|hold| hold.client == client && hold.is_recalled);
        // The hold is not recalled any more once it is settled.
        let is_cached = state.hold.is_some_and(|hold| hold.is_cached);
        let it = state.client_mut(client);
        (it.is_attached, it.lease) = (true, super::state::LEASE);
        if !std::mem::replace(&mut it.is_live, true) {
            it.stage = ClientStage::None;
            return;
        }
        let again = match it.stage {
            ClientStage::None => None,
            ClientStage::Asked { spare, is_try, .. } => Some(Up::Acquire { spare, is_try }),
            ClientStage::Held(held) => held.settles.then_some(Up::Settle),
            ClientStage::Finishing => Some(Up::Finish),
        };
        it.up.extend(again);
        if is_recalled && is_cached && self.has(CachedRule::ToldAgain) {
            self.recalled(state, client);
        }
    }
}
