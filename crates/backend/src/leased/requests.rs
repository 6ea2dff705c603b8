//! The requests of a session, and the stage of each. Every method is one step under one mutex, without I/O.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{End, Seq};
use tokio::sync::mpsc::UnboundedSender;

use super::store::{Entry, EntryId, Renewed};
use super::wakes::{Wake, WakeUp};
use crate::call::{Granted, Push};
use crate::time::BootInstant;

pub(super) struct LeasedRequests {
    state: Mutex<LeasedState>,
    pushes: UnboundedSender<Push>,
}

struct LeasedState {
    requests: BTreeMap<Seq, LeasedRequest>,
    /// When the session was opened, or last sent a keep-alive: its deadline is at most a ttl later.
    renewed_at: BootInstant,
    /// The highest seq of a request so far, if any. A request with this or a lower seq that is not in
    /// `requests` is over.
    last: Option<Seq>,
}

struct LeasedRequest {
    entry: Arc<Entry>,
    wake_up: Arc<WakeUp>,
    stage: Stage,
    attempts: Attempts,
    /// How many keep-alives did not renew the entry while its grant may have been on its way, because they
    /// did not find it or an operator had broken it. The hold may then expire before the session's deadline.
    missed: u64,
    /// When its end was first requested.
    ends_since: Option<BootInstant>,
}

/// The attempts of a request so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Attempts {
    /// An attempt was sent, or may have been: the entry may exist and must be ended.
    pub(super) sent: bool,
    /// An attempt was sent and not answered: it may arrive late, even after a later one was granted.
    doubt: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Stage {
    /// May hold or wait: an attempt is on its way, or its answer was lost.
    Asked,
    /// Waits in the queue, according to the last answer.
    Waits,
    Holds(Granted),
    /// An operator broke it, and the session was notified. It is not renewed any more.
    Revoked,
    /// A finish is on its way. No renewal is sent after it, since a late one could keep a released lock held.
    Ends {
        revoked: bool,
    },
}

/// An entry that a keep-alive renews.
pub(super) struct Renewable {
    seq: Seq,
    pub(super) entry: Arc<Entry>,
    /// Whether its grant had been returned to the caller when the renewal was sent.
    holds: bool,
}

/// How the result of an entry's renewal affects the keep-alive.
pub(super) enum EntryRenewal {
    Fine,
    /// A hold is lost. The keep-alive must not be acknowledged.
    Lost,
    /// The renewal did not find the entry, but its grant was returned after the renewal was sent: renew the
    /// entry again.
    Again(Renewable),
}

/// The state in which an acquire finds its request.
pub(super) enum Found {
    /// The request neither holds nor ends: attempt to hold.
    Asked(Arc<Entry>, Arc<WakeUp>),
    Holds(Arc<Entry>, Granted),
    Revoked,
    Over,
}

/// Whether a grant may be returned.
pub(super) enum Grant {
    Returned,
    /// Renew the entry first. The number is how many renewals missed the entry so far.
    Missed(u64),
    Revoked,
    Over,
}

impl LeasedRequests {
    pub(super) fn new(pushes: UnboundedSender<Push>) -> Self {
        let state = LeasedState { requests: BTreeMap::new(), renewed_at: BootInstant::now(), last: None };
        Self { state: Mutex::new(state), pushes }
    }

    fn state(&self) -> MutexGuard<'_, LeasedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, push: Push) {
        // If the send fails, the session has ended, and its holds with it.
        let _ = self.pushes.send(push);
    }

    /// The request of an acquire, created with the given entry if it is new.
    pub(super) fn find(&self, seq: Seq, entry: impl FnOnce() -> Entry) -> Found {
        let mut state = self.state();
        let LeasedState { requests, last, .. } = &mut *state;
        if Some(seq) <= *last && !requests.contains_key(&seq) {
            // The machine may not have processed the loss of this hold yet. A new request under its seq would
            // take the lock again.
            return Found::Over;
        }
        *last = Some(seq).max(*last);
        let request = requests.entry(seq).or_insert_with(|| LeasedRequest {
            entry: Arc::new(entry()),
            wake_up: Arc::default(),
            stage: Stage::Asked,
            attempts: Attempts::default(),
            missed: 0,
            ends_since: None,
        });
        match &request.stage {
            Stage::Asked | Stage::Waits => Found::Asked(request.entry.clone(), request.wake_up.clone()),
            Stage::Holds(granted) => Found::Holds(request.entry.clone(), granted.clone()),
            Stage::Revoked => Found::Revoked,
            Stage::Ends { .. } => Found::Over,
        }
    }

    /// Begins an attempt. Returns the attempts before it, whether it waits in the queue, and
    /// [`Attempt::ttl_from`](super::Attempt::ttl_from) for this one; `None` if the request is over. Until the
    /// attempt has ended, also if its call is dropped, it counts as sent and not answered.
    pub(super) fn begin_attempt(&self, seq: Seq) -> Option<(Attempts, bool, BootInstant)> {
        let mut state = self.state();
        let ttl_from = state.renewed_at;
        let request = state.requests.get_mut(&seq).filter(|request| !request.is_over())?;
        let before = mem::replace(&mut request.attempts, Attempts { sent: true, doubt: true });
        Some((before, request.stage == Stage::Waits, ttl_from))
    }

    /// Ends an attempt. `before`: the attempts before it; `failed`: whether one that failed may have arrived.
    pub(super) fn end_attempt(&self, seq: Seq, before: Attempts, failed: Option<bool>) {
        if let Some(request) = self.state().requests.get_mut(&seq) {
            match failed {
                None => request.attempts.doubt = before.doubt,
                Some(false) => request.attempts = before,
                Some(true) => {}
            }
        }
    }

    /// Sets the stage of a request, unless it is over. Returns whether the stage was set.
    pub(super) fn advance(&self, seq: Seq, stage: Stage) -> bool {
        let mut state = self.state();
        let request = state.requests.get_mut(&seq).filter(|request| !request.is_over());
        request.map(|request| request.stage = stage).is_some()
    }

    /// Records that a grant is returned, unless a keep-alive missed its entry since the entry's last renewal.
    /// `made_up_for`: the value of `missed` before that renewal.
    pub(super) fn grant(&self, seq: Seq, granted: &Granted, made_up_for: u64) -> Grant {
        let mut state = self.state();
        match state.requests.get_mut(&seq) {
            None | Some(LeasedRequest { stage: Stage::Ends { .. }, .. }) => Grant::Over,
            Some(LeasedRequest { stage: Stage::Revoked, .. }) => Grant::Revoked,
            Some(request) if request.missed == made_up_for => {
                request.stage = Stage::Holds(granted.clone());
                Grant::Returned
            }
            Some(request) => Grant::Missed(request.missed),
        }
    }

    /// Records that the session opens.
    pub(super) fn open(&self) {
        self.state().renewed_at = BootInstant::now();
    }

    /// The entries that a keep-alive which is sent now must renew.
    pub(super) fn renewable(&self) -> Vec<Renewable> {
        let mut state = self.state();
        state.renewed_at = BootInstant::now();
        let renews = |stage: &Stage| matches!(stage, Stage::Asked | Stage::Waits | Stage::Holds(_));
        let requests = state.requests.iter().filter(|(_, request)| renews(&request.stage));
        let renewable = requests.map(|(&seq, request)| Renewable {
            seq,
            entry: request.entry.clone(),
            holds: matches!(request.stage, Stage::Holds(_)),
        });
        renewable.collect()
    }

    /// Applies the answer of an entry's renewal by a keep-alive.
    pub(super) fn renewed(&self, one: Renewable, renewed: Renewed) -> EntryRenewal {
        let seq = one.seq;
        if renewed == Renewed::Revoked {
            return if self.revoked(seq) { EntryRenewal::Lost } else { EntryRenewal::Fine };
        }
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(&seq) else { return EntryRenewal::Fine };
        match (renewed, &request.stage) {
            (Renewed::Gone, Stage::Holds(_)) if !one.holds => {
                EntryRenewal::Again(Renewable { holds: true, ..one })
            }
            (Renewed::Gone, _) => self.gone(&mut state, seq),
            _ => EntryRenewal::Fine,
        }
    }

    /// Applies that an entry does not exist any more.
    fn gone(&self, state: &mut LeasedState, seq: Seq) -> EntryRenewal {
        let Some(request) = state.requests.get_mut(&seq) else { return EntryRenewal::Fine };
        match request.stage {
            Stage::Holds(_) => {
                state.requests.remove(&seq);
                self.push(Push::Ended { seq, end: End::Gone });
                EntryRenewal::Lost
            }
            Stage::Asked => {
                request.missed += 1;
                EntryRenewal::Fine
            }
            Stage::Waits => {
                request.missed += 1;
                // The entry lost its place in the queue: its next attempt takes a new one.
                request.wake_up.wake(Duration::ZERO);
                EntryRenewal::Fine
            }
            Stage::Revoked | Stage::Ends { .. } => EntryRenewal::Fine,
        }
    }

    /// Applies a message about one entry, or about all.
    pub(super) fn woken(&self, id: Option<&EntryId>, wake: Wake) {
        match (wake, id) {
            (Wake::Revoked, Some(id)) => {
                if let Some(seq) = id.seq() {
                    self.revoked(seq);
                }
            }
            (Wake::Gone, Some(id)) => {
                if let Some(seq) = id.seq() {
                    self.gone(&mut self.state(), seq);
                }
            }
            // These always name an entry.
            (Wake::Revoked | Wake::Gone, None) => {}
            (Wake::Try(after), Some(id)) => {
                let state = self.state();
                if let Some(request) = id.seq().and_then(|seq| state.requests.get(&seq)) {
                    request.wake_up.wake(after);
                }
            }
            (Wake::Try(after), None) => {
                self.state().requests.values().for_each(|request| request.wake_up.wake(after));
            }
        }
    }

    /// Applies the break of an entry by an operator. Returns whether a hold whose grant was returned is lost
    /// by it.
    fn revoked(&self, seq: Seq) -> bool {
        let mut state = self.state();
        let Some(request) = state.requests.get_mut(&seq) else { return false };
        match &request.stage {
            Stage::Holds(_) => {
                request.stage = Stage::Revoked;
                self.push(Push::Revoked { seq, notice: None });
                true
            }
            // A grant may be on its way. Before it is returned, `LeasedInner::hand_out` renews the entry and
            // finds the break.
            Stage::Asked | Stage::Waits => {
                request.missed += 1;
                false
            }
            Stage::Revoked | Stage::Ends { .. } => false,
        }
    }

    /// The entry of a request that holds.
    pub(super) fn holding(&self, target: Seq) -> Option<Arc<Entry>> {
        let state = self.state();
        state
            .requests
            .get(&target)
            .filter(|one| matches!(one.stage, Stage::Holds(_)))
            .map(|one| one.entry.clone())
    }

    /// Begins the end of an entry: it is not renewed from here on, and makes no further attempt. Returns the
    /// entry, and whether an attempt of it may still arrive; `None` if the request is unknown or no attempt
    /// was ever sent.
    pub(super) fn begin_end(&self, target: Seq) -> Option<(Arc<Entry>, bool)> {
        let mut state = self.state();
        let request = state.requests.get_mut(&target)?;
        request.end();
        let Attempts { sent, doubt } = request.attempts;
        let entry = request.entry.clone();
        if !sent {
            state.requests.remove(&target);
        }
        sent.then_some((entry, doubt))
    }

    /// As [`Self::begin_end`], for a request whose attempt was refused: `None` also if no earlier attempt can
    /// have left anything, that is, a place in the queue or a grant whose answer was lost (P7).
    pub(super) fn begin_end_of_refused(&self, seq: Seq) -> Option<(Arc<Entry>, bool)> {
        let left = |request: &LeasedRequest| request.attempts.doubt || request.stage != Stage::Asked;
        let left = self.state().requests.get(&seq).is_some_and(left);
        if left { self.begin_end(seq) } else { None }
    }

    /// Whether the end of the request was requested so long ago that its entry has expired: more than two
    /// ttls plus the time for which the lock stays closed.
    pub(super) fn is_long_over(&self, target: Seq) -> bool {
        let state = self.state();
        let Some(request) = state.requests.get(&target) else { return true };
        let until = request.entry.ttl.saturating_mul(2).saturating_add(request.entry.closed_after_expiry());
        request.ends_since.is_some_and(|since| BootInstant::now() - since > until)
    }

    /// Ends all requests without a call to the service: their entries expire there.
    pub(super) fn let_expire(&self) {
        self.state().requests.values_mut().for_each(LeasedRequest::end);
    }

    pub(super) fn seqs(&self) -> Vec<Seq> {
        self.state().requests.keys().copied().collect()
    }

    pub(super) fn forget(&self, seq: Seq) -> Option<Stage> {
        self.state().requests.remove(&seq).map(|request| request.stage)
    }
}

impl LeasedRequest {
    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Ends { .. } | Stage::Revoked)
    }

    fn end(&mut self) {
        let revoked = matches!(self.stage, Stage::Revoked | Stage::Ends { revoked: true });
        self.stage = Stage::Ends { revoked };
        self.ends_since.get_or_insert_with(BootInstant::now);
        // A waiting acquire wakes up and stops.
        self.wake_up.wake(Duration::ZERO);
    }
}
