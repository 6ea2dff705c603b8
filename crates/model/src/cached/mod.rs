//! Cached holds (C2 to C7) as a second model: two or three clients of one lock, and every order of acquires,
//! recalls, sections that begin by themselves, lost streams, stalls beyond the lease, and ends of sessions.
//!
//! That a session ends only after its client's lease deadline is the subject of the first model, and taken
//! for granted here. So the leaders are not in this model: a new one is a new stream.

mod action;
mod client;
mod rule;
mod state;
mod table;

use stateright::Property;

pub use action::CachedAction;
pub use rule::CachedRule;
use state::{CachedState, ClientStage, LEASE};

/// The promises that the model checks: P1, P2, P5 and P8 for sections that begin by themselves, and the rules
/// C4 (a recall reaches its holder, which acts on it) and C6 (a try is busy only if the lock is in use).
pub const CACHED_PROMISES: [&str; 6] = ["P1", "P2", "P5", "P8", "C4", "C6"];

/// The parameters of one model of cached holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedModel {
    /// Number of clients: 2 or 3.
    pub clients: u8,
    /// How often each client asks for the lock.
    pub asks: u8,
    /// Number of tokens in a block beyond the first.
    pub spare: u8,
    /// Whether all clients cache. Otherwise only the first does.
    pub all_cache: bool,
    /// Whether time passes and streams end. Otherwise no lease, recall or answer is lost.
    pub stalls: bool,
    /// The rule that is left out.
    pub without: Option<CachedRule>,
}

impl CachedModel {
    fn has(self, rule: CachedRule) -> bool {
        self.without != Some(rule)
    }
}

/// P1: at most one client is in a section and may consider its hold live.
fn is_exclusive(state: &CachedState) -> bool {
    let inside = |client: &&state::CachingClient| {
        client.section.is_some() && client.lease > 0 && matches!(client.stage, ClientStage::Held(_))
    };
    state.clients.iter().filter(inside).count() <= 1
}

/// C4: a client that is attached, and has heard everything, knows of the recall, and ends the hold once it is
/// idle.
fn hears_recall(state: &CachedState) -> bool {
    let Some(hold) = state.hold else { return true };
    let client = state.client(hold.client);
    let is_quiet = client.is_attached && client.down.is_empty() && client.up.is_empty();
    let ClientStage::Held(held) = client.stage else { return true };
    !is_quiet || !hold.is_recalled || (held.is_recalled && client.section.is_some())
}

impl stateright::Model for CachedModel {
    type State = CachedState;
    type Action = CachedAction;

    fn init_states(&self) -> Vec<CachedState> {
        let mut state = CachedState::default();
        for client in &mut state.clients[..usize::from(self.clients)] {
            (client.lease, client.is_attached, client.is_live) = (LEASE, true, true);
        }
        vec![state]
    }

    fn actions(&self, state: &CachedState, actions: &mut Vec<CachedAction>) {
        (0..self.clients).for_each(|client| self.offer_client(state, client, actions));
        if self.stalls {
            actions.push(CachedAction::Tick);
        }
    }

    fn next_state(&self, state: &CachedState, action: CachedAction) -> Option<CachedState> {
        let mut next = state.clone();
        let state = &mut next;
        match action {
            CachedAction::Tick => self.tick(state),
            CachedAction::Ask { client, spare, is_try } => Self::ask(state, client, spare, is_try),
            CachedAction::Apply(client) => self.apply(state, client),
            CachedAction::Hear(client) => self.hear(state, client),
            CachedAction::Begin(client) => self.begin(state, client),
            CachedAction::End(client) => self.end(state, client),
            CachedAction::GiveBack(client) => Self::finish(state, client),
            CachedAction::Renew(client) => state.client_mut(client).lease = LEASE,
            CachedAction::Break(client) => {
                let it = state.client_mut(client);
                it.is_attached = false;
                it.up.clear();
                it.down.clear();
            }
            CachedAction::Attach(client) => self.attach(state, client),
            CachedAction::Expire(client) => self.expire(state, client),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1", |_, it: &CachedState| is_exclusive(it)),
            // With P2 the fence refuses the writes of a section after a later one has entered.
            Property::always("P2", |_, it: &CachedState| !it.faults.token_not_above),
            Property::always("P5", |_, it: &CachedState| !it.faults.ended_hold_used),
            Property::always("P8", |_, it: &CachedState| !it.faults.begun_after_recall),
            Property::always("C4", |_, it: &CachedState| hears_recall(it)),
            Property::always("C6", |_, it: &CachedState| !it.faults.idle_is_busy),
            // Situations that an exploration must reach to be meaningful.
            Property::sometimes("a try is put off and granted", |_, it: &CachedState| it.met.try_was_granted),
            Property::sometimes("a try is put off and busy", |_, it: &CachedState| it.met.settle_was_busy),
            Property::sometimes("a section outlives its hold", |_, it: &CachedState| {
                let own = |client: &state::CachingClient| client.section.is_some() && !client.is_live;
                it.clients.iter().any(own) && it.hold.is_some()
            }),
            Property::sometimes("a recall comes before the grant", |_, it: &CachedState| {
                let early = |client: &state::CachingClient| {
                    matches!(client.stage, ClientStage::Asked { is_recalled: true, .. })
                };
                it.clients.iter().any(early)
            }),
            Property::sometimes("a block is used up", |_, it: &CachedState| {
                let last = |stage: ClientStage| matches!(stage, ClientStage::Held(held) if held.left == 0);
                it.clients.iter().any(|client| client.asked > 0 && last(client.stage))
            }),
        ]
    }
}
