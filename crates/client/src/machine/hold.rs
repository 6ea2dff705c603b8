//! One request of a caller, from the acquire to the end of its hold.

use std::time::Duration;

use lockkeeper_backend::{BootInstant, CallId, Granted, LossCause};
use lockkeeper_core::Seq;

use super::event::{AcquireLimits, CallKind, Key, NotAcquired, Output, Releasing, RunsOn};
use super::{FinishReply, Finishing, Machine, Sent, Spec, pause};

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct PendingAcquire {
    pub(super) limits: AcquireLimits,
    /// The start of the backend's silence: when the request was made or restarted, or when the backend last
    /// answered it.
    pub(super) since: BootInstant,
    /// The backend has answered that the lock is not free.
    pub(super) is_known_busy: bool,
    /// A recall that has overtaken the grant: the caller hears of it with the grant.
    pub(super) is_recalled: bool,
    pub(super) stage: AcquireStage,
}

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) enum AcquireStage {
    /// Waits for a session with a valid lease.
    Unsent,
    /// In flight, or to be sent again at `again`. `doubt`: an earlier attempt may have arrived.
    Sent {
        seq: Seq,
        again: Option<BootInstant>,
        tries: u32,
        doubt: bool,
    },
    Queued {
        seq: Seq,
    },
    /// Granted while the lease was not valid, or not for long enough. The grant is kept, so that the request
    /// does not lose its place in the queue. The next acknowledgement decides whether it is returned to the
    /// caller, or released and requested again.
    Early {
        seq: Seq,
        grant: Granted,
    },
    Held(HoldState),
}

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct HoldState {
    pub(super) seq: Seq,
    /// The end by `max_hold`; once lost, the end of the grace period.
    pub(super) ends_at: Option<BootInstant>,
    pub(super) lost: Option<LossCause>,
}

impl HoldState {
    /// Signals the loss once; the first cause is kept.
    pub(super) fn lose(&mut self, key: Key, cause: LossCause, out: &mut Vec<Output>) {
        if self.lost.is_none() {
            self.lost = Some(cause);
            out.push(Output::Lost { key, cause });
        }
    }
}

impl PendingAcquire {
    pub(super) fn new(limits: AcquireLimits, now: BootInstant) -> Self {
        Self { limits, since: now, is_known_busy: false, is_recalled: false, stage: AcquireStage::Unsent }
    }

    /// Requests the lock again. The limit for the backend's silence begins again.
    pub(super) fn restart(&mut self, now: BootInstant) {
        self.since = now;
        self.is_recalled = false;
        self.stage = AcquireStage::Unsent;
    }

    /// Whether the backend has answered that the lock is not free, or no attempt has failed.
    fn was_served(&self) -> bool {
        self.is_known_busy || !matches!(self.stage, AcquireStage::Sent { tries: 1.., .. })
    }

    /// Whether the caller does not wait for a lock that isn't free. The service answers such a request within
    /// a second, also one that it has put off (C6).
    fn is_try(&self) -> bool {
        self.limits.patience.is_some() && self.limits.wait_until.is_none()
    }

    /// The time at which the backend counts as unreachable if it does not answer.
    fn silent_at(&self, spec: &Spec) -> BootInstant {
        let patience = spec.patience();
        self.since + self.limits.patience.map_or(patience, |own| own.min(patience))
    }

    pub(super) fn next_wake(&self, spec: &Spec) -> Option<BootInstant> {
        let silent_at = self.silent_at(spec);
        let wait_until = self.limits.wait_until;
        match &self.stage {
            AcquireStage::Unsent | AcquireStage::Early { .. } => {
                wait_until.into_iter().chain([silent_at]).min()
            }
            AcquireStage::Sent { again: Some(at), .. } => {
                wait_until.into_iter().chain([*at, silent_at]).min()
            }
            // A try that was put off has no limit of its own.
            AcquireStage::Queued { .. } if self.is_try() => Some(silent_at),
            AcquireStage::Sent { again: None, .. } | AcquireStage::Queued { .. } => wait_until,
            AcquireStage::Held(hold) => hold.ends_at,
        }
    }
}

impl Machine {
    /// Ends waits whose limit has passed on the caller's clock, and requests whose backend has been silent
    /// for too long.
    pub(super) fn give_up_waits(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        // A valid lease implies a recent answer of the backend. Without a ttl, the backend always counts as
        // having answered.
        let is_heard = self.has_lease_for(now, Duration::ZERO);
        let mut over = Vec::new();
        for &key in &self.pending {
            let Some(request) = self.requests.get(&key) else { continue };
            let waited = request.limits.wait_until.is_some_and(|until| now >= until);
            let silent = now >= request.silent_at(&self.spec);
            match request.stage {
                AcquireStage::Held(_) => {}
                // Not `TimedOut`: that would mean that the lock was busy, which the backend has not answered.
                AcquireStage::Unsent if waited && !is_heard => {
                    over.push((key, None, NotAcquired::Unreachable));
                }
                // Every attempt was refused, or not even sent.
                AcquireStage::Sent { seq, again: Some(_), doubt: false, .. }
                    if waited && !request.is_known_busy =>
                {
                    over.push((key, Some(seq), NotAcquired::Unreachable));
                }
                AcquireStage::Unsent if waited => over.push((key, None, NotAcquired::TimedOut)),
                AcquireStage::Unsent if silent => over.push((key, None, NotAcquired::Unreachable)),
                AcquireStage::Early { seq, .. } if !waited && silent => {
                    over.push((key, Some(seq), NotAcquired::Unreachable));
                }
                AcquireStage::Sent { seq, .. }
                | AcquireStage::Queued { seq }
                | AcquireStage::Early { seq, .. }
                    if waited =>
                {
                    over.push((key, Some(seq), NotAcquired::TimedOut));
                }
                AcquireStage::Queued { seq } if silent && request.is_try() => {
                    over.push((key, Some(seq), NotAcquired::Ambiguous));
                }
                AcquireStage::Sent { seq, again: Some(_), doubt, .. } if silent => {
                    let why = if doubt { NotAcquired::Ambiguous } else { NotAcquired::Unreachable };
                    over.push((key, Some(seq), why));
                }
                _ => {}
            }
        }
        for (key, seq, why) in over {
            let was_served = self.remove(key).is_some_and(|request| request.was_served());
            let Some(seq) = seq else {
                out.push(Output::NotAcquired { key, why });
                continue;
            };
            self.calls.retain(|_, sent| !matches!(sent.kind, CallKind::Acquire { key: k, .. } if k == key));
            if let NotAcquired::TimedOut = why {
                // Only the answer to the Finish shows for certain that nothing is held.
                let reply = if was_served { FinishReply::TimedOut } else { FinishReply::Unserved };
                self.finish(seq, Some((key, reply)));
            } else {
                self.finish(seq, None);
                out.push(Output::NotAcquired { key, why });
            }
        }
    }

    /// Sends new requests if the lease is valid for long enough, and repeats those whose retry is due.
    pub(super) fn send_acquires(&mut self, now: BootInstant, due: bool, out: &mut Vec<Output>) {
        let mut ready = Vec::new();
        // Requests already sent are checked only when one is due.
        for &key in if due { &self.pending } else { &self.unsent } {
            let Some(request) = self.requests.get(&key) else { continue };
            match request.stage {
                AcquireStage::Unsent if self.has_lease_for(now, request.limits.min_validity) => {
                    ready.push((None, key))
                }
                // There is no valid lease, or a grant would have less than `min_validity` left: renew first.
                AcquireStage::Unsent => self.link.renew_soon(now, self.spec.try_every()),
                AcquireStage::Sent { seq, again: Some(at), .. } if now >= at => ready.push((Some(seq), key)),
                _ => {}
            }
        }
        // Retries by their seq, then new requests: commands must arrive in the order of their seqs (R5).
        ready.sort_by_key(|&(seq, key)| (seq.is_none(), seq, key));
        for (seq, key) in ready {
            let seq = seq.unwrap_or_else(|| self.new_seq());
            self.by_seq.insert(seq, key);
            let done_through = self.done_through();
            let Some(request) = self.requests.get_mut(&key) else { continue };
            let (tries, doubt) = match request.stage {
                AcquireStage::Sent { tries, doubt, .. } => (tries, doubt),
                _ => (0, false),
            };
            request.stage = AcquireStage::Sent { seq, again: None, tries, doubt };
            self.unsent.remove(&key);
            let wait_left = request.limits.wait_until.map(|until| until - now);
            self.call(now, CallKind::Acquire { key, seq, done_through, wait_left }, RunsOn::Caller(key), out);
        }
    }

    /// Sends every Finish that is due: on the runtime of the caller that waits for it, and on the lease
    /// thread if no caller waits (any more).
    pub(super) fn send_finishes(&mut self, now: BootInstant, due: bool, out: &mut Vec<Output>) {
        let mut ready = std::mem::take(&mut self.unfinished);
        if due {
            let due =
                |finishing: &Finishing| !finishing.under_way && finishing.again.is_some_and(|at| now >= at);
            ready.extend(self.finishing.iter().filter(|(_, finishing)| due(finishing)).map(|(&seq, _)| seq));
        }
        let done_through = self.done_through();
        for seq in ready {
            let Some(finishing) = self.finishing.get_mut(&seq) else { continue };
            finishing.under_way = true;
            finishing.again = None;
            let target = finishing.target;
            let runs_on = finishing.waiting.map_or(RunsOn::LeaseThread, |(key, _)| RunsOn::Caller(key));
            self.call(now, CallKind::Finish { seq, target, done_through }, runs_on, out);
        }
    }

    /// Settles a live hold, unless that is under way. Runs at once: a hold is live only with a session.
    pub(super) fn settle(&mut self, now: BootInstant, key: Key, out: &mut Vec<Output>) {
        let is_asked = |target| {
            let asks = |sent: &Sent| matches!(sent.kind, CallKind::Settle { target: t, .. } if t == target);
            self.calls.values().any(asks)
        };
        if self.seq_of(key).is_none_or(is_asked) {
            return;
        }
        let Some((seq, target, done_through)) = self.begin_change(key) else { return };
        self.call(now, CallKind::Settle { seq, target, done_through }, RunsOn::LeaseThread, out);
    }

    /// Handles a call without an answer. Opens, keep-alives, acquires and Finishes are repeated later, the
    /// last two under the same seq. A Settle and a Close are not repeated.
    pub(super) fn failed(&mut self, now: BootInstant, call: CallId, sent: bool, out: &mut Vec<Output>) {
        let Some(failed) = self.calls.remove(&call) else { return };
        match failed.kind {
            CallKind::Open { .. } | CallKind::KeepAlive => self.link_failed(now),
            CallKind::Close => self.closed(),
            CallKind::Settle { seq, .. } => self.end_change(seq),
            CallKind::Acquire { key, .. } => {
                let Some(request) = self.requests.get_mut(&key) else { return };
                match &mut request.stage {
                    AcquireStage::Sent { again, tries, doubt, .. } => {
                        *doubt |= sent;
                        *again = Some(now + pause(*tries));
                        *tries += 1;
                    }
                    AcquireStage::Queued { seq } => {
                        // The request keeps its place in the queue; the backend's silence counts from now.
                        request.since = now;
                        request.stage = AcquireStage::Sent {
                            seq: *seq,
                            again: Some(now + pause(0)),
                            tries: 1,
                            doubt: true,
                        };
                    }
                    AcquireStage::Unsent | AcquireStage::Early { .. } | AcquireStage::Held(_) => {}
                }
                self.index(key);
            }
            CallKind::Finish { seq, .. } => {
                let Some(finishing) = self.finishing.get_mut(&seq) else { return };
                finishing.under_way = false;
                let again = Some(now + pause(finishing.tries));
                finishing.again = again;
                finishing.tries += 1;
                if let Some((key, outcome)) = finishing.waiting.take() {
                    out.push(match outcome {
                        FinishReply::Release => Output::Released { key, how: Releasing::Ambiguous },
                        FinishReply::TimedOut | FinishReply::Unserved => {
                            Output::NotAcquired { key, why: NotAcquired::Ambiguous }
                        }
                    });
                }
                self.check_by(again);
            }
        }
    }
}
