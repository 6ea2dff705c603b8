//! Invariants checked after every event, for any sequence of events. The checker derives most of them from
//! the machine's inputs and outputs. Of the internal state it reads the lease deadline, the calls in flight,
//! and what the machine knows of requests, to find forgotten ones.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The state of a request as seen by its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum Caller {
    Waits,
    Holds,
    Lost,
    Releases { lost: bool },
    Over,
    Gone,
}

/// The machine with a record of its inputs and outputs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Checked {
    pub(super) machine: Machine,
    pub(super) now: BootInstant,
    pub(super) callers: BTreeMap<Key, (Caller, AcquireLimits)>,
    /// Unanswered calls of the present session.
    pub(super) calls: BTreeMap<CallId, (CallKind, BootInstant)>,
    lease_deadline: Option<BootInstant>,
    highest_seq: Seq,
    highest_done: Seq,
    /// Seqs of commands that no answer or push has settled. A failed call leaves its command here: the
    /// machine sends the command again or ends its request.
    unanswered: BTreeSet<Seq>,
    /// Acquires that may have left a request at the service, with their callers.
    live: BTreeMap<Seq, Key>,
    kept_alive_at: Option<BootInstant>,
    closing: bool,
    stopping: bool,
}

impl Checked {
    pub(super) fn new(spec: Spec) -> Self {
        Self {
            machine: Machine::new(spec),
            now: at(100),
            callers: BTreeMap::new(),
            calls: BTreeMap::new(),
            lease_deadline: None,
            highest_seq: Seq(0),
            highest_done: Seq(0),
            unanswered: BTreeSet::new(),
            live: BTreeMap::new(),
            kept_alive_at: None,
            closing: false,
            stopping: false,
        }
    }

    /// Feeds one event and checks every invariant. `Err` describes the violation.
    pub(super) fn step(&mut self, now: BootInstant, event: Event) -> Result<Vec<Output>, String> {
        self.now = now;
        let allowed = self.note_event(&event);
        let abandoned = match &event {
            Event::Abandon { key } => Some(*key),
            _ => None,
        };
        let mut out = Vec::new();
        self.machine.handle(now, event, &mut out);
        let lease_deadline = self.machine.lease_deadline;
        if lease_deadline.is_some() && lease_deadline != self.lease_deadline && lease_deadline != allowed {
            return Err(format!(
                "the lease deadline moved from {:?} to {lease_deadline:?}, allowed {allowed:?}",
                self.lease_deadline
            ));
        }
        self.lease_deadline = lease_deadline;
        for output in &out {
            self.note_output(output).map_err(|wrong| format!("{wrong}; output {output:?}"))?;
        }
        if let Some(key) = abandoned {
            // The event may still report a loss, because `handle` first processes deadlines that have passed.
            // It must not report a grant, since nobody would receive it.
            if self.callers.get(&key).is_some_and(|_| {
                out.iter().any(|output| matches!(output, Output::Granted { key: k, .. } if *k == key))
            }) {
                return Err("granted to a caller that is gone".into());
            }
            self.set(key, Caller::Gone);
        }
        self.check_rest()?;
        Ok(out)
    }

    /// Returns the lease deadline that the event may set.
    fn note_event(&mut self, event: &Event) -> Option<BootInstant> {
        match event {
            Event::Acquire { key, limits } => {
                self.callers.insert(*key, (Caller::Waits, *limits));
            }
            Event::Release { key } => {
                let lost = self.callers[key].0 == Caller::Lost;
                self.set(*key, Caller::Releases { lost });
            }
            Event::Answered { call, answer } => {
                let (kind, sent_at) = self.calls.remove(call)?;
                // Ignores the answer of a call that the machine has given up: another event gives the result.
                self.machine.calls.get(call)?;
                match (kind, answer) {
                    (CallKind::Open { .. } | CallKind::KeepAlive, Answer::Opened | Answer::KeptAlive) => {
                        return Some(sent_at + (TTL - TTL / 100));
                    }
                    (_, Answer::SessionGone) => {}
                    (CallKind::Acquire { seq, .. }, answer) => {
                        self.unanswered.remove(&seq);
                        if let Answer::Busy(_) | Answer::Refused(_) = answer {
                            self.live.remove(&seq);
                        }
                    }
                    (CallKind::Settle { seq, .. }, _) => {
                        self.unanswered.remove(&seq);
                    }
                    (CallKind::Finish { seq, target, .. }, _) => {
                        self.unanswered.remove(&seq);
                        self.unanswered.remove(&target);
                        self.live.remove(&target);
                    }
                    _ => {}
                }
            }
            Event::Failed { call, .. } => {
                // A Settle is not repeated: nobody waits for its answer any more.
                if let Some((CallKind::Settle { seq, .. }, _)) = self.calls.remove(call) {
                    self.unanswered.remove(&seq);
                }
            }
            Event::Pushed(Push::Queued { seq, .. }) => {
                self.unanswered.remove(seq);
            }
            // The end of a request that is not held answers its acquire.
            Event::Pushed(
                Push::Ended { seq, .. } | Push::HoldLost { seq, .. } | Push::Revoked { seq, .. },
            ) => {
                if self.live.get(seq).is_some_and(|key| self.callers[key].0 == Caller::Waits) {
                    self.unanswered.remove(seq);
                }
            }
            Event::Pushed(Push::Detached { at, announced: false }) => {
                let until = *at + (self.machine.spec.linger - self.machine.spec.linger / 100);
                return self
                    .lease_deadline
                    .filter(|_| !self.machine.spec.linger.is_zero())
                    .map(|b| b.min(until));
            }
            Event::Shutdown => self.stopping = true,
            Event::Abandon { .. } | Event::Settle { .. } | Event::Pushed(_) | Event::Wake => {}
        }
        None
    }

    fn set(&mut self, key: Key, caller: Caller) {
        if let Some((was, _)) = self.callers.get_mut(&key) {
            *was = caller;
        }
    }

    fn note_output(&mut self, output: &Output) -> Result<(), String> {
        match output {
            Output::Call { call, kind, .. } => return self.note_call(*call, kind),
            Output::LeaseDeadline(_) | Output::Attached(_) => {}
            Output::Recalled { key } => {
                self.expect(*key, |caller| matches!(caller, Caller::Holds | Caller::Lost))?;
            }
            Output::Queued { key, .. } => self.expect(*key, |caller| caller == Caller::Waits)?,
            Output::Granted { key, .. } => {
                self.expect(*key, |caller| caller == Caller::Waits)?;
                let need = self.callers[key].1.min_validity;
                if self.lease_deadline.is_none_or(|until| until <= self.now || until - self.now < need) {
                    return Err(format!(
                        "granted although the lease deadline is {:?} at {:?}",
                        self.lease_deadline, self.now
                    ));
                }
                self.set(*key, Caller::Holds);
            }
            Output::NotAcquired { key, .. } => {
                self.expect(*key, |caller| caller == Caller::Waits)?;
                self.set(*key, Caller::Over);
            }
            Output::Released { key, .. } => {
                self.expect(*key, |caller| matches!(caller, Caller::Releases { .. }))?;
                self.set(*key, Caller::Over);
            }
            Output::Lost { key, .. } => {
                self.expect(*key, |caller| {
                    matches!(caller, Caller::Holds | Caller::Releases { lost: false })
                })?;
                let releases = matches!(self.callers[key].0, Caller::Releases { .. });
                self.set(*key, if releases { Caller::Releases { lost: true } } else { Caller::Lost });
            }
        }
        Ok(())
    }

    fn expect(&self, key: Key, good: impl Fn(Caller) -> bool) -> Result<(), String> {
        match self.callers.get(&key) {
            Some(&(caller, _)) if good(caller) => Ok(()),
            other => Err(format!("{key:?} is told although it is {other:?}")),
        }
    }

    fn note_call(&mut self, call: CallId, kind: &CallKind) -> Result<(), String> {
        match kind {
            CallKind::Open { fresh } => {
                if *fresh {
                    self.calls.clear();
                    self.unanswered.clear();
                    self.live.clear();
                    (self.highest_seq, self.highest_done) = (Seq(0), Seq(0));
                }
                if self.stopping {
                    return Err("opens after a shutdown".into());
                }
            }
            CallKind::KeepAlive | CallKind::Close if self.closing => {
                return Err("sent after the close".into());
            }
            CallKind::KeepAlive if self.kept_alive_at == Some(self.now) => {
                return Err("two keep-alives in one moment: without an answer in between, a busy loop".into());
            }
            CallKind::KeepAlive => self.kept_alive_at = Some(self.now),
            CallKind::Close => self.closing = true,
            CallKind::Acquire { seq, done_through, key, .. } => {
                if self.stopping {
                    return Err("acquires after a shutdown".into());
                }
                self.live.insert(*seq, *key);
                self.numbered(*seq, *done_through)?;
            }
            CallKind::Finish { seq, done_through, .. } => self.numbered(*seq, *done_through)?,
            CallKind::Settle { seq, target, done_through } => {
                if !self.live.get(target).is_some_and(|key| self.callers[key].0 == Caller::Holds) {
                    return Err("settles what its caller does not hold".into());
                }
                let asks = |(kind, _): &(CallKind, BootInstant)| matches!(kind, CallKind::Settle { target: t, .. } if t == target);
                if self.calls.values().any(asks) {
                    return Err("settles a hold twice at the same time".into());
                }
                self.numbered(*seq, *done_through)?;
            }
        }
        self.calls.insert(call, (kind.clone(), self.now));
        Ok(())
    }

    fn numbered(&mut self, seq: Seq, done_through: Seq) -> Result<(), String> {
        if seq > self.highest_seq {
            self.highest_seq = seq;
            self.unanswered.insert(seq);
        } else if !self.unanswered.contains(&seq) && !self.live.contains_key(&seq) {
            // A new command under a seq below one already sent would be ignored by the service (R5).
            return Err("this number was passed already".into());
        }
        if done_through < self.highest_done {
            return Err(format!("done_through falls from {}", self.highest_done));
        }
        self.highest_done = done_through;
        match self.unanswered.first() {
            Some(&first) if done_through >= first => {
                Err(format!("done_through passes the unanswered {first}"))
            }
            _ => Ok(()),
        }
    }

    fn check_rest(&self) -> Result<(), String> {
        if let Some(wake) = self.machine.next_wake()
            && wake <= self.now
        {
            return Err(format!("it wants to be woken at {wake:?}, and it is {:?}: a busy loop", self.now));
        }
        if self.lease_deadline.is_none_or(|until| self.now >= until)
            && let Some((key, _)) = self.callers.iter().find(|(_, (caller, _))| *caller == Caller::Holds)
        {
            return Err(format!(
                "{key:?} is not lost at {:?}, the lease deadline is {:?}",
                self.now, self.lease_deadline
            ));
        }
        if matches!(self.machine.link, SessionPhase::Live { .. } | SessionPhase::Closing) {
            for (seq, key) in &self.live {
                let wanted = self.machine.requests.get(key).is_some_and(|request| match &request.stage {
                    AcquireStage::Sent { seq: s, .. }
                    | AcquireStage::Queued { seq: s }
                    | AcquireStage::Early { seq: s, .. } => s == seq,
                    AcquireStage::Held(hold) => hold.seq == *seq,
                    AcquireStage::Unsent => false,
                });
                let ends = self.machine.finishing.values().any(|finishing| finishing.target == *seq);
                if !wanted && !ends {
                    return Err(format!("request {seq} of {key:?} is nobody's and nobody ends it"));
                }
            }
        }
        // Every waiting caller must be known to the machine, otherwise the caller would wait forever.
        for (key, (caller, _)) in &self.callers {
            let known = self.machine.requests.contains_key(key)
                || self.machine.finishing.values().any(|f| f.waiting.is_some_and(|(waits, _)| waits == *key));
            if matches!(caller, Caller::Waits | Caller::Releases { .. }) && !known {
                return Err(format!("{key:?} waits and is forgotten"));
            }
        }
        if self.machine.is_closed() && self.callers.values().any(|(caller, _)| *caller == Caller::Waits) {
            return Err("closed, and a caller waits".into());
        }
        Ok(())
    }
}
