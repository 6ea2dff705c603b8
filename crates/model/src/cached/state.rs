//! The state of the model of cached holds: one lock, the table's view of it, and the clients, each with a
//! stream that keeps the order of its messages.

/// Ticks for which a client's lease is valid after a sign of life.
pub(crate) const LEASE: u8 = 2;
/// The largest number of clients.
pub(crate) const CLIENTS: usize = 3;

/// The complete state.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CachedState {
    pub(crate) clients: [CachingClient; CLIENTS],
    pub(crate) hold: Option<TableHold>,
    /// First come, first served.
    pub(crate) waiters: Vec<Waiter>,
    /// The last token that the table has drawn.
    pub(crate) counter: u8,
    /// The highest token of a section so far.
    pub(crate) highest: u8,
    /// What an event has broken.
    pub(crate) faults: OrderFaults,
    pub(crate) met: Met,
}

/// Promises that can't be read from the state, since they are about the order of two events.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct OrderFaults {
    /// P2: a section began with a token that is not above those of all sections before.
    pub(crate) token_not_above: bool,
    /// P5: a section began with a hold that had ended.
    pub(crate) ended_hold_used: bool,
    /// P8: a section began after its client knew of the recall.
    pub(crate) begun_after_recall: bool,
    /// C6: a try was busy though the lock was idle from its arrival on.
    pub(crate) idle_is_busy: bool,
}

/// Situations that an exploration must reach to be meaningful.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Met {
    pub(crate) try_was_granted: bool,
    pub(crate) settle_was_busy: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct CachingClient {
    /// The number of acquires so far.
    pub(crate) asked: u8,
    /// Ticks until the client's lease deadline.
    pub(crate) lease: u8,
    pub(crate) is_attached: bool,
    /// The table has the client's session.
    pub(crate) is_live: bool,
    pub(crate) stage: ClientStage,
    /// The token of the section that is open. It may stay open after the hold was lost.
    pub(crate) section: Option<u8>,
    /// On their way: from the client, and to it.
    pub(crate) up: Vec<Up>,
    pub(crate) down: Vec<Down>,
}

/// What a client knows of its request. It has one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum ClientStage {
    #[default]
    None,
    Asked {
        spare: u8,
        is_try: bool,
        /// A recall came before the grant.
        is_recalled: bool,
    },
    Held(ClientHold),
    /// The request is finished, and this is not answered yet.
    Finishing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClientHold {
    /// The token of the next section.
    pub(crate) next: u8,
    /// Tokens left in the block, from `next` on.
    pub(crate) left: u8,
    pub(crate) is_recalled: bool,
    /// A `Settle` is sent, and not answered yet.
    pub(crate) settles: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Up {
    Acquire { spare: u8, is_try: bool },
    Settle,
    Finish,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Down {
    Granted { token: u8, spare: u8 },
    Busy,
    Recalled,
    Settled,
    Finished,
}

/// The hold, in the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TableHold {
    pub(crate) client: u8,
    pub(crate) token: u8,
    pub(crate) spare: u8,
    pub(crate) is_cached: bool,
    pub(crate) is_recalled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiter {
    pub(crate) client: u8,
    pub(crate) is_try: bool,
    /// Since the try arrived, the holder was in a section or about to end its hold.
    pub(crate) saw_use: bool,
}

impl CachedState {
    pub(crate) fn client(&self, client: u8) -> &CachingClient {
        &self.clients[usize::from(client)]
    }

    pub(crate) fn client_mut(&mut self, client: u8) -> &mut CachingClient {
        &mut self.clients[usize::from(client)]
    }

    /// Whether the hold's client uses the lock, or has sent that it no longer caches it.
    pub(crate) fn is_in_use(&self, hold: TableHold) -> bool {
        let client = self.client(hold.client);
        match client.stage {
            ClientStage::Held(held) => !hold.is_cached || held.settles || client.section.is_some(),
            ClientStage::None | ClientStage::Asked { .. } | ClientStage::Finishing => true,
        }
    }
}
