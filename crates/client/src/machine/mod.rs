//! One session of a client as a pure state machine: lease deadline, calls to the backend, results for
//! callers.
//!
//! `handle(now, event)` in, [`Output`]s out; no clock, no I/O, no randomness. Production and tests run the
//! same code. Public with the feature `machine`, for programs that simulate or check it; its types may change
//! in every release. Responsible for: the session's lease deadline (P5), renewal and its retries, numbering
//! and retries of commands (P7), loss, `max_hold`, revocation, wait limits, and giving up without leaving an
//! orphan (P12).
//!
//! `hold.rs` numbers and repeats calls, `answers.rs` handles their answers, `link.rs` the state of the
//! connection. `cache/mod.rs` decides about cached holds; it stands beside the machine, since a section that
//! begins with one needs none of the rest.
//!
//! Invariants:
//!
//! - No guard answers "held" at or past its deadline, whatever arrives from the network (P5).
//! - An acknowledgement completes only calls that were made before the acknowledged message was sent (P5);
//!   messages from an earlier stream are ignored.

mod answers;
pub mod cache;
mod event;
mod hold;
mod link;
mod pause;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use event::{AcquireLimits, CallKind, Event, Key, NotAcquired, Output, Releasing, RunsOn};
use hold::{AcquireStage, HoldState, PendingAcquire};
use link::{Opens, SessionPhase};
#[cfg(any(test, feature = "machine"))]
pub use lockkeeper_backend::{Answer, CallId, Granted, Push, Spec};
use lockkeeper_backend::{BootInstant, LossCause};
#[cfg(not(any(test, feature = "machine")))]
use lockkeeper_backend::{CallId, Spec};
use lockkeeper_core::Seq;
use pause::{RETRY_MAX, RETRY_MIN, pause};

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
#[allow(missing_debug_implementations, reason = "public to the simulator only")]
pub struct Machine {
    spec: Spec,
    link: SessionPhase,
    opens: Opens,
    /// The session's lease deadline; `None` while there is no session, before the first acknowledgement, and
    /// where nothing expires.
    lease_deadline: Option<BootInstant>,
    next_seq: u64,
    next_call: u64,
    /// Numbered commands without an answer: `done_through` stays below them.
    unanswered: BTreeSet<Seq>,
    requests: BTreeMap<Key, PendingAcquire>,
    /// Requests that are not yet held. Only these are scanned for due deadlines; holds have `ends`.
    pending: BTreeSet<Key>,
    /// Subset of `pending`: to be sent as soon as the lease is valid.
    unsent: BTreeSet<Key>,
    /// Subset of `pending`: granted while the lease was not valid for long enough.
    early: BTreeSet<Key>,
    /// Earliest deadline of all pending requests and Finishes. They are checked only from then on. May be
    /// earlier than their deadlines, never later.
    next_check: Option<BootInstant>,
    /// When holds reach a deadline of their own (`max_hold`, the end of a grace period), in order of time;
    /// and the same by key.
    ends: BTreeSet<(BootInstant, Key)>,
    ends_of: BTreeMap<Key, BootInstant>,
    by_seq: BTreeMap<Seq, Key>,
    /// Unanswered Finishes, by their seq.
    finishing: BTreeMap<Seq, Finishing>,
    /// Subset of `finishing`: to be sent now.
    unfinished: BTreeSet<Seq>,
    calls: BTreeMap<CallId, Sent>,
    stopping: bool,
}

/// A `Finish` until it is answered. It is retried under the same seq (R4).
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Finishing {
    target: Seq,
    /// The caller that waits for the outcome.
    waiting: Option<(Key, FinishReply)>,
    under_way: bool,
    again: Option<BootInstant>,
    tries: u32,
}

/// The reason why a caller waits for a `Finish`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(test, derive(Hash))]
enum FinishReply {
    /// The caller released its guard.
    Release,
    /// The caller's wait has ended.
    TimedOut,
    /// The caller's wait has ended, and no attempt was answered.
    Unserved,
}

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
struct Sent {
    kind: CallKind,
    at: BootInstant,
}

impl Machine {
    pub fn new(spec: Spec) -> Self {
        Self {
            spec,
            link: SessionPhase::Closed,
            opens: Opens::default(),
            lease_deadline: None,
            next_seq: 1,
            next_call: 1,
            unanswered: BTreeSet::new(),
            requests: BTreeMap::new(),
            pending: BTreeSet::new(),
            unsent: BTreeSet::new(),
            early: BTreeSet::new(),
            next_check: None,
            ends: BTreeSet::new(),
            ends_of: BTreeMap::new(),
            by_seq: BTreeMap::new(),
            finishing: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            calls: BTreeMap::new(),
            stopping: false,
        }
    }

    pub fn handle(&mut self, now: BootInstant, event: Event, out: &mut Vec<Output>) {
        // Deadlines are checked first, for every event: no answer may hide a deadline that has passed (P5).
        self.pass_deadlines(now, out);
        match event {
            Event::Acquire { key, .. } if self.stopping => {
                out.push(Output::NotAcquired { key, why: NotAcquired::ShuttingDown });
            }
            Event::Acquire { key, limits } => {
                self.requests.insert(key, PendingAcquire::new(limits, now));
                self.index(key);
            }
            Event::Abandon { key } => self.abandon(key),
            Event::Release { key } => self.release(key, out),
            Event::Settle { key } => self.settle(now, key, out),
            Event::Answered { call, answer } => self.answered(now, call, answer, out),
            Event::Failed { call, sent } => self.failed(now, call, sent, out),
            Event::Pushed(push) => self.pushed(now, push, out),
            Event::Wake => {}
            Event::Shutdown => self.shut_down(out),
        }
        self.progress(now, out);
    }

    /// The time of the next [`Event::Wake`].
    pub fn next_wake(&self) -> Option<BootInstant> {
        let ends = self.ends.first().map(|&(at, _)| at);
        let has_holds = self.requests.len() > self.pending.len();
        let lease_deadline = self.lease_deadline.filter(|_| has_holds || self.stopping);
        let link = self.link.next_wake(self.renews());
        self.next_check
            .into_iter()
            .chain(ends)
            .chain(lease_deadline)
            .chain(link)
            .chain(self.next_open())
            .min()
    }

    /// The earliest deadline of all pending requests and Finishes.
    fn next_due(&self) -> Option<BootInstant> {
        let pending = self.pending.iter().filter_map(|key| self.requests.get(key));
        let pending = pending.filter_map(|request| request.next_wake(&self.spec));
        pending.chain(self.finishing.values().filter_map(|finishing| finishing.again)).min()
    }

    fn check_by(&mut self, at: Option<BootInstant>) {
        self.next_check = self.next_check.into_iter().chain(at).min();
    }

    /// Updates the indexes after a request has changed or ended: a session may have a million holds, and no
    /// event may scan all of them.
    fn index(&mut self, key: Key) {
        let (pending, unsent, early, ends_at) = match self.requests.get(&key).map(|request| &request.stage) {
            None => (false, false, false, None),
            Some(AcquireStage::Held(hold)) => (false, false, false, hold.ends_at),
            Some(AcquireStage::Unsent) => (true, true, false, None),
            Some(AcquireStage::Early { .. }) => (true, false, true, None),
            Some(AcquireStage::Sent { .. } | AcquireStage::Queued { .. }) => (true, false, false, None),
        };
        if pending {
            self.pending.insert(key);
            let due = self.requests.get(&key).and_then(|request| request.next_wake(&self.spec));
            self.check_by(due);
        } else {
            self.pending.remove(&key);
        }
        if unsent {
            self.unsent.insert(key);
        } else {
            self.unsent.remove(&key);
        }
        if early {
            self.early.insert(key);
        } else {
            self.early.remove(&key);
        }
        let before = match ends_at {
            Some(at) => self.ends_of.insert(key, at),
            None => self.ends_of.remove(&key),
        };
        if before != ends_at {
            before.map(|at| self.ends.remove(&(at, key)));
            ends_at.map(|at| self.ends.insert((at, key)));
        }
    }

    /// Removes a request.
    fn remove(&mut self, key: Key) -> Option<PendingAcquire> {
        let request = self.requests.remove(&key);
        self.index(key);
        request
    }

    /// The seq of a caller's hold at the backend.
    pub fn seq_of(&self, key: Key) -> Option<Seq> {
        match self.requests.get(&key)?.stage {
            AcquireStage::Held(HoldState { seq, .. }) => Some(seq),
            _ => None,
        }
    }

    /// The caller whose request has this seq at the backend.
    pub fn key_of(&self, seq: Seq) -> Option<Key> {
        self.by_seq.get(&seq).copied()
    }

    /// Numbers a change of a caller's hold, which the caller sends at once: the change's seq, the hold's seq,
    /// and `done_through`. `None` if the hold is over or lost. Until [`Machine::end_change`], the change
    /// counts as unanswered.
    pub fn begin_change(&mut self, key: Key) -> Option<(Seq, Seq, Seq)> {
        let AcquireStage::Held(HoldState { seq: target, lost: None, .. }) = self.requests.get(&key)?.stage
        else {
            return None;
        };
        let seq = self.new_seq();
        Some((seq, target, self.done_through()))
    }

    /// The change is answered, or its caller no longer waits for it.
    pub fn end_change(&mut self, seq: Seq) {
        self.unanswered.remove(&seq);
    }

    /// The kind of a call without an answer yet.
    pub fn kind_of(&self, call: CallId) -> Option<&CallKind> {
        self.calls.get(&call).map(|sent| &sent.kind)
    }

    /// The caller that waits for the answer to a call.
    pub fn caller_of(&self, call: CallId) -> Option<Key> {
        match self.kind_of(call)? {
            CallKind::Acquire { key, .. } => Some(*key),
            CallKind::Finish { seq, .. } => self.finishing.get(seq)?.waiting.map(|(key, _)| key),
            CallKind::Open { .. } | CallKind::KeepAlive | CallKind::Settle { .. } | CallKind::Close => None,
        }
    }

    /// Whether there is no request and no unanswered Finish.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.finishing.is_empty()
    }

    /// Whether the session has ended for good after [`Event::Shutdown`].
    pub fn is_closed(&self) -> bool {
        self.stopping && matches!(self.link, SessionPhase::Closed)
    }

    fn call(&mut self, now: BootInstant, kind: CallKind, runs_on: RunsOn, out: &mut Vec<Output>) {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.calls.insert(call, Sent { kind: kind.clone(), at: now });
        out.push(Output::Call { call, kind, runs_on });
    }

    fn new_seq(&mut self) -> Seq {
        let seq = Seq(self.next_seq);
        self.next_seq += 1;
        self.unanswered.insert(seq);
        seq
    }

    /// The highest seq up to which all commands are answered (R1). Requests that wait or hold may be below
    /// it: they count as answered (R2).
    fn done_through(&self) -> Seq {
        let first = self.unanswered.first().map_or(self.next_seq, |seq| seq.0);
        Seq(first - 1)
    }

    /// Sends everything that can be sent now, and ends waits that are due.
    fn progress(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        let due = self.next_check.is_some_and(|at| now >= at);
        if due {
            self.give_up_waits(now, out);
        }
        if self.stopping && self.lease_deadline.is_some_and(|until| now >= until) {
            // A session in shutdown stops its retries at its lease deadline: without an acknowledgement until
            // then, the service ends the session by itself.
            self.session_gone(now, LossCause::ShutDown, out);
        }
        if let SessionPhase::Live { .. } = self.link {
            // Seqs are assigned when an acquire is sent and when a Finish is created: sending Finishes first
            // keeps the order (R5).
            self.send_finishes(now, due, out);
            self.send_acquires(now, due, out);
        }
        if due {
            self.next_check = self.next_due();
        }
        self.advance_session(now, out);
        if self.stopping && self.is_idle() {
            self.close(now, out);
        }
    }

    /// Whether the session's lease is valid for at least `need` more.
    fn has_lease_for(&self, now: BootInstant, need: Duration) -> bool {
        match (self.spec.ttl, self.lease_deadline) {
            (None, _) => true,
            (Some(_), Some(until)) => now < until && until - now >= need,
            (Some(_), None) => false,
        }
    }

    /// Checks the session's deadline and the holds' own deadlines (P5, `max_hold`, breaks).
    fn pass_deadlines(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        let expired = self.lease_deadline.is_some_and(|until| now >= until);
        let held = |request: &PendingAcquire| matches!(request.stage, AcquireStage::Held(_));
        let due: Vec<Key> = if expired {
            self.requests.iter().filter(|(_, request)| held(request)).map(|(&key, _)| key).collect()
        } else {
            self.ends.iter().take_while(|&&(at, _)| now >= at).map(|&(_, key)| key).collect()
        };
        for key in due {
            let Some(request) = self.requests.get_mut(&key) else { continue };
            let AcquireStage::Held(hold) = &mut request.stage else { continue };
            if expired {
                hold.lose(key, LossCause::Expired, out);
            }
            if hold.lost.is_some() {
                self.end_hold(key, None);
            } else {
                hold.lose(key, LossCause::MaxHold, out);
                hold.ends_at = Some(now + request.limits.grace);
                self.index(key);
            }
        }
        if expired && !self.renews() {
            // No renewal moves this deadline any more: the next request opens a new session.
            self.session_gone(now, LossCause::Expired, out);
        }
    }

    /// Ends a hold; the next `progress` sends its `Finish`.
    fn end_hold(&mut self, key: Key, waiting: Option<FinishReply>) {
        let Some(PendingAcquire { stage: AcquireStage::Held(hold), .. }) = self.remove(key) else { return };
        self.finish(hold.seq, waiting.map(|outcome| (key, outcome)));
    }

    fn finish(&mut self, target: Seq, waiting: Option<(Key, FinishReply)>) {
        self.by_seq.remove(&target);
        let seq = self.new_seq();
        self.finishing.insert(seq, Finishing { target, waiting, under_way: false, again: None, tries: 0 });
        self.unfinished.insert(seq);
    }

    fn abandon(&mut self, key: Key) {
        let Some(request) = self.remove(key) else { return self.abandon_finish(key) };
        match request.stage {
            AcquireStage::Unsent => {}
            AcquireStage::Held(hold) => self.finish(hold.seq, None),
            AcquireStage::Early { seq, .. } => self.finish(seq, None),
            AcquireStage::Sent { seq, .. } | AcquireStage::Queued { seq } => {
                self.calls
                    .retain(|_, sent| !matches!(sent.kind, CallKind::Acquire { key: k, .. } if k == key));
                self.finish(seq, None);
            }
        }
    }

    /// Handles a caller that stopped waiting for a Finish: the Finish is sent on the lease thread instead.
    fn abandon_finish(&mut self, key: Key) {
        for (&seq, finishing) in &mut self.finishing {
            if finishing.waiting.is_some_and(|(waiting, _)| waiting == key) {
                finishing.waiting = None;
                finishing.under_way = false;
                if finishing.again.is_none() {
                    self.unfinished.insert(seq);
                }
                self.calls
                    .retain(|_, sent| !matches!(sent.kind, CallKind::Finish { seq: s, .. } if s == seq));
            }
        }
    }

    fn release(&mut self, key: Key, out: &mut Vec<Output>) {
        match self.requests.get(&key) {
            Some(PendingAcquire { stage: AcquireStage::Held(HoldState { lost: None, .. }), .. }) => {
                self.end_hold(key, Some(FinishReply::Release));
            }
            Some(PendingAcquire {
                stage: AcquireStage::Held(HoldState { lost: Some(cause), .. }), ..
            }) => {
                let how = Releasing::AlreadyLost(*cause);
                self.end_hold(key, None);
                out.push(Output::Released { key, how });
            }
            _ => out.push(Output::Released { key, how: Releasing::AlreadyLost(LossCause::Expired) }),
        }
    }

    fn shut_down(&mut self, out: &mut Vec<Output>) {
        self.stopping = true;
        let keys: Vec<Key> = self.requests.keys().copied().collect();
        for key in keys {
            match &mut self.requests.get_mut(&key).expect("listed above").stage {
                AcquireStage::Held(hold) => hold.lose(key, LossCause::ShutDown, out),
                _ => out.push(Output::NotAcquired { key, why: NotAcquired::ShuttingDown }),
            }
            self.abandon(key);
        }
    }
}
