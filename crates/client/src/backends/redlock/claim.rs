//! One request of a session, and how it stands at every node.
//!
//! All decisions that need no I/O: which answers count, since when, and what must be taken back. Every method is one
//! step under one lock, so that whatever the order in which nodes answer, nothing of ours is left where it does not
//! count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::End;
use tokio::sync::Notify;

use super::tally::Said;
use crate::backends::leased::{Entry, EntryId, Renewed};
use crate::time::BootInstant;

/// What a node's entry lives longer than the session's ttl: Redis counts in milliseconds (the formula's 2 ms).
pub(super) const ENTRY_EXTRA: Duration = Duration::from_millis(2);
/// What clocks may differ in their rate; the session's machine subtracts the same (P5).
const DRIFT_PERCENT: u32 = 1;
/// The first pause between two rounds, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

pub(super) struct Claim {
    pub(super) entry: Arc<Entry>,
    /// One round at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// One conversation at a time with each node: what is taken back is gone before it is asked for again.
    pub(super) doors: Box<[tokio::sync::Mutex<()>]>,
    /// While it ends: something was cleared, or could not be.
    pub(super) changed: Notify,
    majority: usize,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    rounds: u64,
    /// When the latest keep-alive that may have been acknowledged was sent: what was set by an earlier try would end
    /// before the session's deadline, and does not count (P5).
    floor: BootInstant,
    /// When this claim was last asked for or kept alive; what is long over is forgotten.
    touched: BootInstant,
    pause: Duration,
    seats: Vec<Seat>,
    /// The entry as nodes know it, as it was asked for last: hardly ever does one know it by another number.
    at_nodes: Option<(u32, Arc<Entry>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Between two rounds, or before the first.
    Idle,
    /// A round is under way; `since` is from before its first send.
    Trying {
        round: u64,
        since: BootInstant,
    },
    Held {
        round: u64,
        since: BootInstant,
    },
    /// Nothing may be left of it. `held`: it was a hold when its end began.
    Ending {
        held: bool,
    },
}

/// How a claim stands at one node.
#[derive(Clone, Copy, Debug)]
struct Seat {
    /// Makes the entry's id at this node. An id is not used again after it was taken back, since the node remembers
    /// it as gone; so a grant was always set by the try that it answers.
    number: u32,
    standing: Standing,
    /// How its last hold there ended.
    end: Option<End>,
    /// Somebody said since the last round that it may be our turn there.
    woken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Nothing of ours is there.
    Clear,
    /// A try of that round is on its way. `waited`: an earlier one left us in the queue.
    Asked {
        round: u64,
        waited: bool,
    },
    Waits,
    Holds,
    /// It is being taken back.
    Leaving {
        /// A try may still arrive.
        doubt: bool,
        /// It was part of a hold: the lock may have to stay closed.
        held: bool,
        failures: u32,
    },
}

/// What a node is to be asked in a round.
pub(super) enum Asking {
    /// To hold this entry. `first`: it never was asked for it before.
    Try { entry: Arc<Entry>, first: bool },
    /// To take back first what an earlier try left there.
    Owed,
    /// Nothing, since the outcome is certain.
    Nothing,
}

/// What must be taken back at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TakeBack {
    pub(super) entry: Arc<Entry>,
    pub(super) doubt: bool,
}

/// How the end of a claim stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Pending,
    Done(End),
    /// Those that are left do not answer.
    Unknown,
}

/// What a keep-alive means for a claim.
pub(super) enum Renewing {
    /// It holds nothing that could end.
    Nothing,
    Over,
    /// Ask these nodes, by their index, for these entries.
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

    /// How long one node may take for a try: small against the ttl, since it is taken from the hold's life.
    pub(super) fn try_limit(&self) -> Duration {
        (self.entry.ttl / 20)
            .clamp(Duration::from_millis(200), Duration::from_secs(1))
            .min(self.entry.limit())
    }

    /// The id of the claim of which a node has this entry.
    pub(super) fn of_entry(id: &EntryId) -> Option<EntryId> {
        id.0.rsplit_once('.').map(|(claim, _)| EntryId(claim.to_owned()))
    }

    /// Begins a round; `None` if the claim is over.
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

    /// What a node said to a try of this round. `true`: it must be taken back there.
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
            // Its place in the queue is kept, unless it is of no use any more.
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

    /// The tries of this round were given up: the answers that are missing can't be heard any more.
    pub(super) fn unheard(&self, round: u64) {
        for seat in &mut self.state().seats {
            if matches!(seat.standing, Standing::Asked { round: of, .. } if of == round) {
                seat.standing = Standing::Leaving { doubt: true, held: false, failures: 0 };
            }
        }
    }

    /// Where something must be taken back, whoever is at it.
    pub(super) fn leaving(&self) -> Vec<usize> {
        let state = self.state();
        let seats = state.seats.iter().enumerate();
        seats
            .filter(|(_, seat)| matches!(seat.standing, Standing::Leaving { .. }))
            .map(|(index, _)| index)
            .collect()
    }

    /// A majority granted. `Err`: it came too late to be of use, and everything of it must be taken back at these
    /// nodes. `Ok`: the queues that it must leave.
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

    /// How long a hold may be relied on at most, counted from before its first send: `ttl - (1 % + 2 ms)`, where the
    /// 2 ms are made up for by the entries' own ttl.
    fn validity(&self) -> Duration {
        self.entry.ttl - self.entry.ttl * DRIFT_PERCENT / 100
    }

    /// No majority: whatever was granted must be taken back at these nodes. Places in queues are kept.
    pub(super) fn lose(&self, round: u64) -> Vec<usize> {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Trying { round: now, .. } if now == round) {
            return Vec::new();
        }
        state.phase = Phase::Idle;
        leave(&mut state.seats, |standing| standing == Standing::Holds, false)
    }

    /// From here on nothing may be left of it. The nodes at which something must be taken back that is not yet, and whether
    /// others are at it as well, who say so in `changed`.
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

    /// Whether it is over, and nothing of it is left anywhere.
    pub(super) fn is_gone(&self) -> bool {
        self.state().is_gone()
    }

    /// Whether nobody has asked for it for so long that nothing of it can be left anywhere.
    pub(super) fn is_forgotten(&self, now: BootInstant) -> bool {
        now - self.state().touched > self.entry.ttl.saturating_mul(4)
    }

    /// Where the end of it stands.
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

    /// What must be taken back at a node, if anything must.
    pub(super) fn owed(&self, index: usize) -> Option<TakeBack> {
        let mut state = self.state();
        let Seat { standing: Standing::Leaving { doubt, held, .. }, number, .. } = state.seats[index] else {
            return None;
        };
        // What never was a hold must not keep the lock closed.
        let keep_closed = if held { self.entry.keep_closed } else { Duration::ZERO };
        Some(TakeBack { entry: state.at_nodes(&self.entry, number, keep_closed), doubt })
    }

    /// A node has taken it back, or it has ended there by itself. Whether nothing is left of a claim that is over.
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

    /// A node did not answer that it has taken it back.
    pub(super) fn not_cleared(&self, index: usize) {
        let mut state = self.state();
        if let Standing::Leaving { failures, .. } = &mut state.seats[index].standing {
            *failures += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// What a keep-alive that is sent now must ask for.
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
            // Already now, not when it is acknowledged: a round that began before and wins meanwhile must not count.
            Phase::Idle | Phase::Trying { .. } => {
                state.floor = state.floor.max(now);
                Renewing::Nothing
            }
        }
    }

    /// What a node said to a renewal of `entry`.
    pub(super) fn renewed(&self, index: usize, entry: &Entry, renewed: Renewed) {
        let mut state = self.state();
        let seat = &mut state.seats[index];
        let same = entry.id.0.rsplit('.').next() == Some(seat.number.to_string().as_str());
        if same && renewed == Renewed::Gone && seat.standing == Standing::Holds {
            // A node that lost it stays without it: a renewal never makes anything (peers' flaw 6).
            seat.standing = Standing::Clear;
            seat.number += 1;
        }
    }

    /// How long to wait before the next round: decorrelated jitter, so that rivals that met do not meet again.
    pub(super) fn next_pause(&self) -> Duration {
        let mut state = self.state();
        let most = (3 * state.pause).min(PAUSES.1);
        state.pause = PAUSES.0 + (most - PAUSES.0).mul_f64(fastrand::f64());
        state.pause
    }

    /// A node says that it may be our turn there. Whether enough nodes do now.
    pub(super) fn woken(&self, index: usize) -> bool {
        let mut state = self.state();
        state.seats[index].woken = true;
        let open = |seat: &&Seat| seat.woken || seat.standing != Standing::Waits;
        state.seats.iter().filter(open).count() >= self.majority
    }
}

impl State {
    /// The entry as nodes know it.
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

/// Marks those that are to be taken back; their indexes.
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

/// More than half.
pub(super) const fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// A take-back that a node has not answered, for as long as it is tried.
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
