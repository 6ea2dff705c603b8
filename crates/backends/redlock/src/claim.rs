//! A claim: one request of a session, and the state of its entry on every node.
//!
//! Contains the decisions that need no I/O: which replies count, from when a hold is valid, and which entries
//! must be removed. Every method is one step under one mutex, so that for any order of the nodes' replies no
//! entry is left that belongs to no hold.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_backend::leased::{Entry, EntryId};
use lockkeeper_backend::{BootInstant, CallError};
use lockkeeper_core::End;
use tokio::sync::Notify;

use super::majority::majority_of;
use super::tally::NodeReply;

/// By how much a node's entry outlives the session's ttl: Redis counts in milliseconds (the 2 ms of Redlock's
/// formula).
const ENTRY_EXTRA: Duration = Duration::from_millis(2);
/// Allowance for different clock rates; the session's machine subtracts the same (P5).
const DRIFT_PERCENT: u32 = 1;
/// Bounds of the pause between two rounds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

pub(super) struct Claim {
    pub(super) entry: Arc<Entry>,
    /// Locked during an attempt: one at a time.
    pub(super) attempt: tokio::sync::Mutex<()>,
    majority: usize,
    state: Mutex<ClaimState>,
    /// Notified when `state` has changed.
    changed: Notify,
}

struct ClaimState {
    phase: ClaimPhase,
    /// Number of rounds so far. A round is one attempt on every node.
    rounds: u64,
    /// When the latest keep-alive that may have been acknowledged was sent. Entries set by a round that began
    /// before would expire before the session's deadline, and do not count (P5).
    floor: BootInstant,
    /// When a call last used this claim.
    used: BootInstant,
    pause: Duration,
    nodes: Vec<NodeState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClaimPhase {
    /// Between two rounds, or before the first.
    Idle,
    /// A round is running; `since` is from before its first send.
    Acquiring { round: u64, since: BootInstant },
    /// `round` won.
    Held { round: u64 },
    /// The claim is over, and its entries are being removed. `held`: whether it was a hold when its end
    /// began.
    Ending { held: bool },
}

/// A claim's state on one node.
#[derive(Clone, Copy, Debug)]
struct NodeState {
    /// The last part of the entry's id on this node. Incremented after each removal, since the node rejects a
    /// removed id. So a grant always belongs to the present attempt, not to an earlier one.
    number: u32,
    entry: EntryState,
    /// How the claim's last hold on this node ended.
    end: Option<End>,
    /// A wake-up from this node has arrived since the last round began.
    woken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryState {
    Absent,
    /// An attempt of `round` is on its way. `queued`: an earlier attempt took a place in the queue.
    Requested {
        round: u64,
        queued: bool,
    },
    /// Has a place in the queue.
    Queued,
    Held,
    /// One task repeats the removal until the node has answered. No attempt is made before that.
    Removing {
        /// An attempt may still arrive.
        doubt: bool,
        /// The entry was part of a hold: the lock may have to stay closed.
        held: bool,
        /// Removals without an answer.
        failures: u32,
    },
}

impl EntryState {
    fn removing(doubt: bool) -> Self {
        Self::Removing { doubt, held: false, failures: 0 }
    }
}

/// An entry that must be removed from a node.
pub(super) struct Removal {
    pub(super) entry: Arc<Entry>,
    /// An attempt may still arrive.
    pub(super) doubt: bool,
    /// The node has not answered to an attempt or a removal.
    pub(super) unanswered: bool,
}

/// How a keep-alive treats a claim.
pub(super) enum Renewing {
    /// Renew nothing: the claim has no hold that could expire.
    Nothing,
    /// The claim is over.
    Over,
    /// Renew these entries, each on the node of its index.
    Entries(Vec<(usize, Arc<Entry>)>),
}

impl Claim {
    pub(super) fn new(entry: Arc<Entry>, nodes: usize, now: BootInstant) -> Self {
        let node = NodeState { number: 1, entry: EntryState::Absent, end: None, woken: false };
        Self {
            entry,
            attempt: tokio::sync::Mutex::default(),
            majority: majority_of(nodes),
            state: Mutex::new(ClaimState {
                phase: ClaimPhase::Idle,
                rounds: 0,
                floor: BootInstant::from_nanos(0),
                used: now,
                pause: PAUSES.0,
                nodes: vec![node; nodes],
            }),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ClaimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut ClaimState) -> T) -> T {
        let value = change(&mut self.state());
        self.changed.notify_waiters();
        value
    }

    /// Waits until `ready` returns a value for the state.
    async fn wait_for<T>(&self, mut ready: impl FnMut(&mut ClaimState) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(value) = ready(&mut self.state()) {
                return value;
            }
            changed.await;
        }
    }

    /// Time limit of an attempt on one node: small against the ttl, since it is subtracted from the hold's
    /// validity.
    pub(super) fn attempt_limit(&self) -> Duration {
        (self.entry.ttl / 20)
            .clamp(Duration::from_millis(200), Duration::from_secs(1))
            .min(self.entry.limit())
    }

    /// The id of the claim that a node's entry belongs to.
    pub(super) fn id_of(entry: &EntryId) -> Option<EntryId> {
        entry.0.rsplit_once('.').map(|(claim, _)| EntryId(claim.to_owned()))
    }

    /// The entry as it is stored on a node.
    fn node_entry(&self, number: u32, keep_closed: Duration) -> Arc<Entry> {
        let Entry { id, name, mode, ttl, keep_closed: _, lock_delay } = &*self.entry;
        Arc::new(Entry {
            id: EntryId([&id.0, ".", &number.to_string()].concat()),
            name: name.clone(),
            mode: *mode,
            ttl: *ttl + ENTRY_EXTRA,
            keep_closed,
            lock_delay: *lock_delay,
        })
    }

    /// Begins a round; `None` if the claim holds already or is over.
    pub(super) fn begin_round(&self, now: BootInstant) -> Option<u64> {
        let mut state = self.state();
        if state.phase != ClaimPhase::Idle {
            return None;
        }
        state.rounds += 1;
        state.used = now;
        state.phase = ClaimPhase::Acquiring { round: state.rounds, since: now };
        state.nodes.iter_mut().for_each(|node| node.woken = false);
        Some(state.rounds)
    }

    /// Waits until no earlier attempt or removal on the node is pending, then begins an attempt. Returns the
    /// entry, and whether it is new in the node's queue. `None`: the round is over, or the node has granted
    /// already.
    pub(super) async fn begin_attempt(&self, index: usize, round: u64) -> Option<(Arc<Entry>, bool)> {
        let began = self.wait_for(|state| {
            let acquires =
                matches!(state.phase, ClaimPhase::Acquiring { round: current, .. } if current == round);
            let node = &mut state.nodes[index];
            let queued = match node.entry {
                _ if !acquires => return Some(None),
                EntryState::Absent => false,
                EntryState::Queued => true,
                EntryState::Requested { .. } | EntryState::Removing { .. } => return None,
                EntryState::Held => return Some(None),
            };
            node.entry = EntryState::Requested { round, queued };
            Some(Some((node.number, !queued)))
        });
        began.await.map(|(number, first)| (self.node_entry(number, self.entry.keep_closed), first))
    }

    /// Records a node's reply to an attempt of this round. Returns whether the entry must now be removed
    /// there.
    pub(super) fn record_reply(&self, index: usize, round: u64, reply: &NodeReply) -> bool {
        self.change(|state| {
            let (counts, may_wait) = match state.phase {
                ClaimPhase::Idle => (false, true),
                ClaimPhase::Acquiring { round: current, .. } => (current == round, true),
                ClaimPhase::Held { round: current } => (current == round, false),
                ClaimPhase::Ending { .. } => (false, false),
            };
            let node = &mut state.nodes[index];
            let queued = match node.entry {
                EntryState::Requested { round: current, queued } if current == round => queued,
                // The attempt did not begin.
                _ => return false,
            };
            node.entry = match reply {
                NodeReply::Granted if counts => EntryState::Held,
                NodeReply::Granted => EntryState::removing(false),
                NodeReply::Failed { sent: true, .. } => EntryState::removing(true),
                NodeReply::Busy(_) => EntryState::Absent,
                NodeReply::Refused(_) | NodeReply::Failed { .. } if !queued => EntryState::Absent,
                // It has a place in the queue, by this reply or an earlier one.
                _ if may_wait => EntryState::Queued,
                _ => EntryState::removing(false),
            };
            matches!(node.entry, EntryState::Removing { .. })
        })
    }

    /// A majority granted. `Ok`: the nodes from whose queues the claim must be removed. `Err`: the grants
    /// came too late or do not count, and must be removed from these nodes.
    pub(super) fn win(&self, round: u64, now: BootInstant) -> Result<Vec<usize>, Vec<usize>> {
        self.change(|state| match state.phase {
            ClaimPhase::Acquiring { round: current, since }
                if current == round && since >= state.floor && now - since < self.validity() =>
            {
                state.phase = ClaimPhase::Held { round };
                Ok(state.remove_where(|entry| entry == EntryState::Queued))
            }
            _ => Err(state.lose(round)),
        })
    }

    /// No majority granted: the grants must be removed from these nodes. Places in queues are kept.
    pub(super) fn lose(&self, round: u64) -> Vec<usize> {
        self.change(|state| state.lose(round))
    }

    /// The longest validity of a hold, counted from before its first send: the session's ttl less 1 %. This
    /// is Redlock's `ttl - (1 % + 2 ms)` for the ttl of the entries, which is 2 ms longer.
    fn validity(&self) -> Duration {
        self.entry.ttl - self.entry.ttl * DRIFT_PERCENT / 100
    }

    /// Begins the end of the claim. Returns the nodes from which its entry must now be removed.
    pub(super) fn end(&self) -> Vec<usize> {
        self.change(|state| {
            if !matches!(state.phase, ClaimPhase::Ending { .. }) {
                state.phase = ClaimPhase::Ending { held: matches!(state.phase, ClaimPhase::Held { .. }) };
            }
            state.remove_where(|entry| matches!(entry, EntryState::Queued | EntryState::Held))
        })
    }

    /// Waits until the outcome of the claim's end is certain.
    pub(super) async fn ended(&self) -> Result<End, CallError> {
        self.wait_for(|state| state.outcome_of_end(self.majority)).await
    }

    /// Whether its end has begun.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.state().phase, ClaimPhase::Ending { .. })
    }

    /// Whether it is over, and no entry of it is left on any node.
    pub(super) fn is_gone(&self) -> bool {
        let state = self.state();
        let is_over = matches!(state.phase, ClaimPhase::Ending { .. });
        is_over && state.nodes.iter().all(|node| node.entry == EntryState::Absent)
    }

    /// Whether it was last used so long ago that all its entries have expired.
    pub(super) fn is_expired(&self, now: BootInstant) -> bool {
        now - self.state().used > self.entry.ttl.saturating_mul(4)
    }

    /// The entry that must be removed from a node, if any.
    pub(super) fn removal(&self, index: usize) -> Option<Removal> {
        let NodeState { entry: EntryState::Removing { doubt, held, failures }, number, .. } =
            self.state().nodes[index]
        else {
            return None;
        };
        // An entry that was never part of a hold must not keep the lock closed.
        let keep_closed = if held { self.entry.keep_closed } else { Duration::ZERO };
        let entry = self.node_entry(number, keep_closed);
        Some(Removal { entry, doubt, unanswered: doubt || failures > 0 })
    }

    /// An entry was removed, or has expired.
    pub(super) fn removed(&self, index: usize, end: End) {
        self.change(|state| {
            let node = &mut state.nodes[index];
            if let EntryState::Removing { held, .. } = node.entry {
                node.end = held.then_some(end);
                node.forget_entry();
            }
        });
    }

    /// The removal from a node got no answer.
    pub(super) fn not_removed(&self, index: usize) {
        self.change(|state| {
            if let EntryState::Removing { failures, .. } = &mut state.nodes[index].entry {
                *failures += 1;
            }
        });
    }

    /// Returns how a keep-alive that is sent now treats this claim.
    pub(super) fn renewing(&self, now: BootInstant) -> Renewing {
        let mut state = self.state();
        state.used = now;
        match state.phase {
            ClaimPhase::Ending { .. } => Renewing::Over,
            ClaimPhase::Held { .. } => {
                let held = state.nodes.iter().enumerate().filter(|(_, node)| node.entry == EntryState::Held);
                let entry = |node: &NodeState| self.node_entry(node.number, self.entry.keep_closed);
                Renewing::Entries(held.map(|(index, node)| (index, entry(node))).collect())
            }
            // Set when the keep-alive is sent, not when it is acknowledged: a round that began earlier and
            // wins meanwhile must not count.
            ClaimPhase::Idle | ClaimPhase::Acquiring { .. } => {
                state.floor = state.floor.max(now);
                Renewing::Nothing
            }
        }
    }

    /// Records that a node has lost this entry. The node stays without an entry of the hold: a renewal never
    /// creates one.
    pub(super) fn lost(&self, index: usize, entry: &Entry) {
        let node = &mut self.state().nodes[index];
        let is_same = entry.id.0.rsplit('.').next() == Some(node.number.to_string().as_str());
        if is_same && node.entry == EntryState::Held {
            node.forget_entry();
        }
    }

    /// The pause before the next round: decorrelated jitter, so that colliding rivals spread out.
    pub(super) fn next_pause(&self) -> Duration {
        let mut state = self.state();
        let most = (3 * state.pause).min(PAUSES.1);
        state.pause = PAUSES.0 + (most - PAUSES.0).mul_f64(fastrand::f64());
        state.pause
    }

    /// Records a wake-up from a node. Returns whether a majority of the nodes may grant now.
    pub(super) fn woken(&self, index: usize) -> bool {
        let mut state = self.state();
        state.nodes[index].woken = true;
        let may_grant = |node: &&NodeState| node.woken || node.entry != EntryState::Queued;
        state.nodes.iter().filter(may_grant).count() >= self.majority
    }
}

impl ClaimState {
    fn lose(&mut self, round: u64) -> Vec<usize> {
        if !matches!(self.phase, ClaimPhase::Acquiring { round: current, .. } if current == round) {
            return Vec::new();
        }
        self.phase = ClaimPhase::Idle;
        self.remove_where(|entry| entry == EntryState::Held)
    }

    /// Marks matching entries as to be removed. Returns the indexes of their nodes.
    fn remove_where(&mut self, matches: impl Fn(EntryState) -> bool) -> Vec<usize> {
        let ends_hold = self.phase == ClaimPhase::Ending { held: true };
        let mut removing = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| matches(node.entry)) {
            let held = ends_hold && node.entry == EntryState::Held;
            node.entry = EntryState::Removing { doubt: false, held, failures: 0 };
            removing.push(index);
        }
        removing
    }

    /// The outcome of the claim's end; `None` while answers of nodes that could decide it are pending. `Err`:
    /// undecided, and no such answer is pending.
    fn outcome_of_end(&self, majority: usize) -> Option<Result<End, CallError>> {
        let ClaimPhase::Ending { held } = self.phase else { return None };
        let count = |is: &dyn Fn(&NodeState) -> bool| self.nodes.iter().filter(|node| is(node)).count();
        let absent = count(&|node| node.entry == EntryState::Absent);
        let released = count(&|node| node.end == Some(End::Released));
        if absent >= majority {
            let may_be_released = released + self.nodes.len() - absent >= majority;
            match held {
                false => return Some(Ok(End::Left)),
                true if released >= majority => return Some(Ok(End::Released)),
                true if !may_be_released => return Some(Ok(End::Gone)),
                true => {}
            }
        }
        let may_answer = |node: &NodeState| {
            matches!(node.entry, EntryState::Requested { .. } | EntryState::Removing { failures: 0, .. })
        };
        (count(&may_answer) == 0).then_some(Err(CallError::IN_DOUBT))
    }
}

impl NodeState {
    fn forget_entry(&mut self) {
        self.entry = EntryState::Absent;
        self.number += 1;
    }
}
