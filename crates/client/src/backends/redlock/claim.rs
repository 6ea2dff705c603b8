//! One request of a session, and its state on every node.
//!
//! All decisions that need no I/O: which answers count, since when, and which entries must be taken back. Every
//! method is one step under one mutex, so that for any order of the nodes' answers no entry is left that belongs to
//! no hold.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::End;
use tokio::sync::Notify;

use super::tally::Said;
use crate::backends::leased::{Entry, EntryId, Renewed};
use crate::time::BootInstant;

/// By how much a node's entry outlives the session's ttl: Redis counts in milliseconds (the 2 ms of Redlock's
/// formula).
pub(super) const ENTRY_EXTRA: Duration = Duration::from_millis(2);
/// Allowance for different clock rates; the session's machine subtracts the same (P5).
const DRIFT_PERCENT: u32 = 1;
/// Bounds of the pause between two rounds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

pub(super) struct Claim {
    pub(super) entry: Arc<Entry>,
    /// Held for a round: one round at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// A mutex for each node. A take-back is complete before the node is asked again.
    pub(super) doors: Box<[tokio::sync::Mutex<()>]>,
    /// Notified when the state on a node may have changed while the claim ends.
    pub(super) changed: Notify,
    majority: usize,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    rounds: u64,
    /// When the latest keep-alive that may have been acknowledged was sent. Entries that an earlier attempt set would
    /// expire before the session's deadline, and do not count (P5).
    floor: BootInstant,
    /// When this claim was last requested or kept alive; a claim untouched for long is removed.
    touched: BootInstant,
    pause: Duration,
    seats: Vec<Seat>,
    /// The node entry that was built last, with its number. The nodes' numbers rarely differ.
    at_nodes: Option<(u32, Arc<Entry>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Between two rounds, or before the first.
    Idle,
    /// A round is running; `since` is from before its first send.
    Trying {
        round: u64,
        since: BootInstant,
    },
    Held {
        round: u64,
        since: BootInstant,
    },
    /// The claim is over, and its entries are taken back. `held`: it was a hold when its end began.
    Ending {
        held: bool,
    },
}

/// A claim's state on one node.
#[derive(Clone, Copy, Debug)]
struct Seat {
    /// Part of the entry's id on this node. An id is not used again after it was taken back, since the node records
    /// it as gone; so a grant was always set by the attempt that it answers.
    number: u32,
    standing: Standing,
    /// How its last hold there ended.
    end: Option<End>,
    /// A wake-up from this node has arrived since the last round began.
    woken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// No entry of this claim is there.
    Clear,
    /// An attempt of `round` is on its way. `waited`: an earlier one took a place in the queue.
    Asked {
        round: u64,
        waited: bool,
    },
    Waits,
    Holds,
    /// Its entry is being taken back.
    Leaving {
        /// An attempt may still arrive.
        doubt: bool,
        /// The entry was part of a hold: the lock may have to stay closed.
        held: bool,
        failures: u32,
    },
}

/// What a round asks of a node.
pub(super) enum Asking {
    /// Attempt to hold with this entry. `first`: the node has not been asked for it before.
    Try { entry: Arc<Entry>, first: bool },
    /// First take back the entry of an earlier attempt.
    Owed,
    /// Nothing, since the outcome is certain.
    Nothing,
}

/// An entry to take back on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TakeBack {
    pub(super) entry: Arc<Entry>,
    pub(super) doubt: bool,
}

/// Progress of a claim's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Pending,
    Done(End),
    /// The remaining nodes do not answer.
    Unknown,
}

/// What a keep-alive does for a claim.
pub(super) enum Renewing {
    /// Nothing: it has no hold that could expire.
    Nothing,
    Over,
    /// Renew these entries on these nodes, given by their indexes.
    Ask(Vec<(usize, Arc<Entry>)>),
}

impl Claim {
    pub(super) fn new(entry: Arc<Entry>, nodes: usize, now: BootInstant) -> Self {
        let seat = Seat { number: 1, standing: Standing::Clear, end: None, woken: false };
        Self {
            entry,
            turn: tokio::sync::Mutex::default(),
            doors: (0..nodes).map(|_| tokio::sync::Mutex::default()).collect(),
            changed: Notify::new(),
            majority: majority_of(nodes),
            state: Mutex::new(State {
                phase: Phase::Idle,
                rounds: 0,
                floor: BootInstant::from_nanos(0),
                touched: now,
                pause: PAUSES.0,
                seats: vec![seat; nodes],
                at_nodes: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time limit of an attempt on one node: small against the ttl, since it is subtracted from the hold's validity.
    pub(super) fn try_limit(&self) -> Duration {
        (self.entry.ttl / 20)
            .clamp(Duration::from_millis(200), Duration::from_secs(1))
            .min(self.entry.limit())
    }

    /// The id of the claim that a node's entry belongs to.
    pub(super) fn of_entry(id: &EntryId) -> Option<EntryId> {
        id.0.rsplit_once('.').map(|(claim, _)| EntryId(claim.to_owned()))
    }

    /// Begins a round; `None` if the claim holds already or is over.
    pub(super) fn begin(&self, now: BootInstant) -> Option<u64> {
        let mut state = self.state();
        if state.phase != Phase::Idle {
            return None;
        }
        state.rounds += 1;
        state.touched = now;
        state.phase = Phase::Trying { round: state.rounds, since: now };
        state.seats.iter_mut().for_each(|seat| seat.woken = false);
        Some(state.rounds)
    }

    /// What to ask of a node in this round.
    pub(super) fn ask(&self, index: usize, round: u64) -> Asking {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Trying { round: now, .. } if now == round) {
            return Asking::Nothing;
        }
        let seat = &mut state.seats[index];
        let waited = match seat.standing {
            Standing::Clear => false,
            Standing::Waits => true,
            Standing::Leaving { .. } => return Asking::Owed,
            Standing::Asked { .. } | Standing::Holds => return Asking::Nothing,
        };
        seat.standing = Standing::Asked { round, waited };
        let number = seat.number;
        Asking::Try { entry: state.at_nodes(&self.entry, number, self.entry.keep_closed), first: !waited }
    }

    /// Records a node's answer to an attempt of this round. Returns whether the entry must be taken back there.
    pub(super) fn heard(&self, index: usize, round: u64, said: &Said) -> bool {
        let mut state = self.state();
        let (counts, over) = match state.phase {
            Phase::Trying { round: now, .. } | Phase::Held { round: now, .. } => (now == round, false),
            Phase::Idle => (false, false),
            Phase::Ending { .. } => (false, true),
        };
        let held = matches!(state.phase, Phase::Held { .. });
        let seat = &mut state.seats[index];
        let Standing::Asked { waited, .. } = seat.standing else { return false };
        let leaving = |doubt| Standing::Leaving { doubt, held: false, failures: 0 };
        seat.standing = match said {
            Said::Granted if counts => Standing::Holds,
            Said::Granted => leaving(false),
            // The place in the queue is kept, unless the claim needs it no more.
            Said::Waits { .. } if over || held => leaving(false),
            Said::Waits { .. } => Standing::Waits,
            Said::Failed { sent: true, .. } => leaving(true),
            Said::Refused(_) | Said::Failed { sent: false, .. } if waited => {
                if over || held {
                    leaving(false)
                } else {
                    Standing::Waits
                }
            }
            Said::Busy(_) | Said::Refused(_) | Said::Failed { .. } => Standing::Clear,
        };
        let take_back = matches!(seat.standing, Standing::Leaving { .. });
        drop(state);
        if over {
            self.changed.notify_waiters();
        }
        take_back
    }

    /// The attempts of this round were dropped: the missing answers will never arrive.
    pub(super) fn unheard(&self, round: u64) {
        for seat in &mut self.state().seats {
            if matches!(seat.standing, Standing::Asked { round: of, .. } if of == round) {
                seat.standing = Standing::Leaving { doubt: true, held: false, failures: 0 };
            }
        }
    }

    /// The nodes on which an entry must be taken back, also where a take-back is running.
    pub(super) fn leaving(&self) -> Vec<usize> {
        let state = self.state();
        let seats = state.seats.iter().enumerate();
        seats
            .filter(|(_, seat)| matches!(seat.standing, Standing::Leaving { .. }))
            .map(|(index, _)| index)
            .collect()
    }

    /// A majority granted. `Err`: the grants came too late or do not count, and must be taken back on these nodes.
    /// `Ok`: the nodes whose queues the claim must leave.
    pub(super) fn win(&self, round: u64, now: BootInstant) -> Result<Vec<usize>, Vec<usize>> {
        let mut state = self.state();
        let Phase::Trying { round: current, since } = state.phase else { return Err(Vec::new()) };
        if current != round || since < state.floor || now - since >= self.validity() {
            drop(state);
            return Err(self.lose(round));
        }
        state.phase = Phase::Held { round, since };
        Ok(leave(&mut state.seats, |standing| standing == Standing::Waits, false))
    }

    /// The longest validity of a hold, counted from before its first send. Redlock's `ttl - (1 % + 2 ms)`; the
    /// entries' own ttl is longer by the 2 ms.
    fn validity(&self) -> Duration {
        self.entry.ttl - self.entry.ttl * DRIFT_PERCENT / 100
    }

    /// No majority granted: the grants must be taken back on these nodes. Places in queues are kept.
    pub(super) fn lose(&self, round: u64) -> Vec<usize> {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Trying { round: now, .. } if now == round) {
            return Vec::new();
        }
        state.phase = Phase::Idle;
        leave(&mut state.seats, |standing| standing == Standing::Holds, false)
    }

    /// Begins the end of the claim. Returns the nodes on which a take-back must now be started, and whether other
    /// calls or take-backs are running, which notify `changed`.
    pub(super) fn end(&self) -> (Vec<usize>, bool) {
        let mut state = self.state();
        let held = match state.phase {
            Phase::Ending { .. } => return (Vec::new(), true),
            Phase::Held { .. } => true,
            Phase::Idle | Phase::Trying { .. } => false,
        };
        state.phase = Phase::Ending { held };
        let others = |seat: &Seat| matches!(seat.standing, Standing::Asked { .. } | Standing::Leaving { .. });
        let others = state.seats.iter().any(others);
        let leaving = leave(&mut state.seats, |s| matches!(s, Standing::Waits | Standing::Holds), held);
        drop(state);
        self.changed.notify_waiters();
        (leaving, others)
    }

    /// Whether it is over, and no entry of it is left on any node.
    pub(super) fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    /// Whether it was last used so long ago that all its entries have expired.
    pub(super) fn is_forgotten(&self, now: BootInstant) -> bool {
        now - self.state().touched > self.entry.ttl.saturating_mul(4)
    }

    /// The progress of its end.
    pub(super) fn ending(&self) -> Ending {
        let state = self.state();
        let Phase::Ending { held } = state.phase else { return Ending::Pending };
        let count = |is: &dyn Fn(&Seat) -> bool| state.seats.iter().filter(|seat| is(seat)).count();
        let clear = count(&|seat| seat.standing == Standing::Clear);
        let released = count(&|seat| seat.end == Some(End::Released));
        let hopeful = count(&|seat| {
            matches!(seat.standing, Standing::Asked { .. } | Standing::Leaving { failures: 0, .. })
        });
        let unclear = state.seats.len() - clear;
        if clear >= self.majority {
            if !held {
                return Ending::Done(End::Left);
            }
            if released >= self.majority {
                return Ending::Done(End::Released);
            }
            if released + unclear < self.majority {
                return Ending::Done(End::Gone);
            }
        }
        if hopeful == 0 { Ending::Unknown } else { Ending::Pending }
    }

    /// The entry to take back on a node, if any.
    pub(super) fn owed(&self, index: usize) -> Option<TakeBack> {
        let mut state = self.state();
        let Seat { standing: Standing::Leaving { doubt, held, .. }, number, .. } = state.seats[index] else {
            return None;
        };
        // An entry that was never part of a hold must not keep the lock closed.
        let keep_closed = if held { self.entry.keep_closed } else { Duration::ZERO };
        Some(TakeBack { entry: state.at_nodes(&self.entry, number, keep_closed), doubt })
    }

    /// An entry was taken back, or has expired. Returns whether the claim is over and none of its entries is left.
    pub(super) fn cleared(&self, index: usize, end: End) -> bool {
        let mut state = self.state();
        let seat = &mut state.seats[index];
        if let Standing::Leaving { held, .. } = seat.standing {
            seat.standing = Standing::Clear;
            seat.number += 1;
            seat.end = held.then_some(end);
        }
        let (gone, ends) = (state.is_gone(), matches!(state.phase, Phase::Ending { .. }));
        drop(state);
        if ends {
            self.changed.notify_waiters();
        }
        gone
    }

    /// A take-back on a node got no answer.
    pub(super) fn not_cleared(&self, index: usize) {
        let mut state = self.state();
        if let Standing::Leaving { failures, .. } = &mut state.seats[index].standing {
            *failures += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// What a keep-alive that is sent now must do for this claim.
    pub(super) fn renewing(&self, now: BootInstant) -> Renewing {
        let mut state = self.state();
        state.touched = now;
        match state.phase {
            Phase::Ending { .. } => Renewing::Over,
            Phase::Held { .. } => {
                let mut asked = Vec::with_capacity(state.seats.len());
                for index in 0..state.seats.len() {
                    let Seat { standing: Standing::Holds, number, .. } = state.seats[index] else { continue };
                    asked.push((index, state.at_nodes(&self.entry, number, self.entry.keep_closed)));
                }
                Renewing::Ask(asked)
            }
            // Set when the keep-alive is sent, not when it is acknowledged: a round that began earlier and wins
            // meanwhile must not count.
            Phase::Idle | Phase::Trying { .. } => {
                state.floor = state.floor.max(now);
                Renewing::Nothing
            }
        }
    }

    /// Records a node's answer to a renewal of `entry`.
    pub(super) fn renewed(&self, index: usize, entry: &Entry, renewed: Renewed) {
        let mut state = self.state();
        let seat = &mut state.seats[index];
        let same = entry.id.0.rsplit('.').next() == Some(seat.number.to_string().as_str());
        if same && renewed == Renewed::Gone && seat.standing == Standing::Holds {
            // A node that lost the entry stays without it: a renewal never creates one.
            seat.standing = Standing::Clear;
            seat.number += 1;
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
        state.seats[index].woken = true;
        let open = |seat: &&Seat| seat.woken || seat.standing != Standing::Waits;
        state.seats.iter().filter(open).count() >= self.majority
    }
}

impl State {
    /// The entry in the form that is stored on the nodes.
    fn at_nodes(&mut self, entry: &Entry, number: u32, keep_closed: Duration) -> Arc<Entry> {
        if let Some((last, known)) = &self.at_nodes
            && (*last, known.keep_closed) == (number, keep_closed)
        {
            return known.clone();
        }
        let id = EntryId(format!("{}.{number}", entry.id));
        let known = Arc::new(Entry {
            id,
            name: entry.name.clone(),
            mode: entry.mode,
            ttl: entry.ttl + ENTRY_EXTRA,
            keep_closed,
            lock_delay: entry.lock_delay,
        });
        self.at_nodes = Some((number, known.clone()));
        known
    }

    fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. })
            && self.seats.iter().all(|seat| seat.standing == Standing::Clear)
    }
}

/// Marks matching entries to be taken back. Returns the indexes of their nodes.
fn leave(seats: &mut [Seat], which: impl Fn(Standing) -> bool, held: bool) -> Vec<usize> {
    let mut leaving = Vec::new();
    for (index, seat) in seats.iter_mut().enumerate() {
        if which(seat.standing) {
            let held = held && seat.standing == Standing::Holds;
            seat.standing = Standing::Leaving { doubt: false, held, failures: 0 };
            leaving.push(index);
        }
    }
    leaving
}

/// The smallest majority.
pub(super) const fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Counts a take-back as unanswered for as long as it is tried.
pub(super) struct Debt<'a>(&'a AtomicUsize);

impl<'a> Debt<'a> {
    pub(super) fn of(owed: &'a AtomicUsize) -> Self {
        owed.fetch_add(1, Ordering::Relaxed);
        Self(owed)
    }
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
