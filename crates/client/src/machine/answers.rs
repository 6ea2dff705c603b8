//! The backend's answers and pushes.

use std::time::Duration;

use lockkeeper_backend::{Answer, BackendErrorKind, BootInstant, Busy, CallId, LossCause, Push};
use lockkeeper_core::{End, Seq};

use super::event::{CallKind, Key, NotAcquired, Output, Releasing};
use super::hold::{AcquireStage, HoldState, PendingAcquire};
use super::link::SessionPhase;
use super::{FinishReply, Finishing, Machine};

impl Machine {
    pub(super) fn answered(&mut self, now: BootInstant, call: CallId, answer: Answer, out: &mut Vec<Output>) {
        let Some(sent) = self.calls.remove(&call) else { return };
        if let Answer::SessionGone = answer {
            // Never the answer to a call of an earlier session: `session_gone` has removed those from
            // `calls`.
            return self.session_gone(now, LossCause::SessionEnded, out);
        }
        match sent.kind {
            CallKind::Open { .. } | CallKind::KeepAlive => self.confirmed(now, sent.at, answer, out),
            CallKind::Acquire { key, seq, .. } => {
                self.unanswered.remove(&seq);
                self.acquire_answered(now, key, seq, answer, out);
            }
            CallKind::Finish { seq, .. } => {
                self.unanswered.remove(&seq);
                self.unfinished.remove(&seq);
                if let Some(finishing) = self.finishing.remove(&seq) {
                    // The Finish's answer settles the acquire too, whether or not the acquire was answered
                    // (R4).
                    self.unanswered.remove(&finishing.target);
                    finishing.tell(released_by(&answer), out);
                }
            }
            CallKind::Settle { seq, target, .. } => {
                self.end_change(seq);
                match answer {
                    Answer::Revoked => self.pushed(now, Push::Revoked { seq: target, notice: None }, out),
                    Answer::Finished(end) => self.hold_over(now, target, end, cause_of(end), out),
                    _ => {}
                }
            }
            CallKind::Close => self.closed(),
        }
    }

    fn acquire_answered(
        &mut self,
        now: BootInstant,
        key: Key,
        seq: Seq,
        answer: Answer,
        out: &mut Vec<Output>,
    ) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let asked = |stage: &AcquireStage| match *stage {
            AcquireStage::Sent { seq, .. }
            | AcquireStage::Queued { seq }
            | AcquireStage::Early { seq, .. } => Some(seq),
            AcquireStage::Unsent | AcquireStage::Held(_) => None,
        };
        if asked(&request.stage) != Some(seq) {
            return;
        }
        match answer {
            Answer::Granted(grant) => {
                request.since = now;
                request.stage = AcquireStage::Early { seq, grant };
                if !self.hand_out(now, key, out) {
                    // The next acknowledged keep-alive decides whether the grant is returned to the caller.
                    self.index(key);
                    self.link.renew_soon(now, self.spec.try_every());
                }
            }
            Answer::Finished(End::TimedOut) => {
                // A request without a limit was put off while the holders of cached holds answered (C6).
                let is_try = request.limits.wait_until.is_none();
                // The service keeps an end that the client did not request until a Finish names it (R3).
                self.remove(key);
                self.finish(seq, None);
                let why = if is_try { NotAcquired::Busy(Busy::default()) } else { NotAcquired::TimedOut };
                out.push(Output::NotAcquired { key, why });
            }
            Answer::Busy(busy) => self.refused(key, seq, NotAcquired::Busy(busy), out),
            Answer::Refused(refusal) => {
                // Permissions are checked before the request is looked up, and a connection may have repeated
                // it: the earlier attempt may have been granted, or may still be on its way.
                let may_hold = refusal.kind == BackendErrorKind::Denied;
                self.refused(key, seq, NotAcquired::Refused(refusal), out);
                if may_hold {
                    self.finish(seq, None);
                }
            }
            // The request ended before its grant arrived (by a break, say), or the service ignored its seq as
            // too low (R5): request the lock again.
            Answer::Finished(_) | Answer::Revoked => self.ask_anew(now, key, seq),
            Answer::Opened | Answer::KeptAlive | Answer::Changed | Answer::SessionGone | Answer::Closed => {}
        }
    }

    /// Returns a grant to its caller if the session's lease is valid for long enough (P5, `min_validity`).
    fn hand_out(&mut self, now: BootInstant, key: Key, out: &mut Vec<Output>) -> bool {
        let need = self.requests.get(&key).map_or(Duration::ZERO, |request| request.limits.min_validity);
        if !self.has_lease_for(now, need) {
            return false;
        }
        let Some(request) = self.requests.get_mut(&key) else { return false };
        let AcquireStage::Early { seq, grant } = &request.stage else { return false };
        let (seq, grant) = (*seq, grant.clone());
        let ends_at = request.limits.max_hold.map(|max| now + max);
        let is_recalled = request.is_recalled;
        request.stage = AcquireStage::Held(HoldState { seq, ends_at, lost: None });
        self.index(key);
        out.push(Output::Granted { key, grant });
        if is_recalled {
            out.push(Output::Recalled { key });
        }
        true
    }

    /// After a new lease deadline: returns early grants to their callers, or releases and requests them again
    /// if even this deadline leaves less than `min_validity`.
    pub(super) fn hand_out_early(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        // The answer to an older keep-alive may arrive first, and its deadline may have passed already.
        if self.early.is_empty() || !self.has_lease_for(now, Duration::ZERO) {
            return;
        }
        for key in self.early.clone() {
            if self.hand_out(now, key, out) {
                continue;
            }
            let Some(PendingAcquire { stage: AcquireStage::Early { seq, .. }, .. }) = self.requests.get(&key)
            else {
                continue;
            };
            self.ask_anew(now, key, *seq);
            self.link.renew_soon(now, self.spec.try_every());
        }
    }

    /// Ends the request `seq` and sends it again under a new seq.
    fn ask_anew(&mut self, now: BootInstant, key: Key, seq: Seq) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.restart(now);
        }
        self.index(key);
        self.finish(seq, None);
    }

    fn refused(&mut self, key: Key, seq: Seq, why: NotAcquired, out: &mut Vec<Output>) {
        self.remove(key);
        self.by_seq.remove(&seq);
        out.push(Output::NotAcquired { key, why });
    }

    pub(super) fn pushed(&mut self, now: BootInstant, push: Push, out: &mut Vec<Output>) {
        match push {
            Push::Queued { seq, position } => {
                let Some(&key) = self.by_seq.get(&seq) else { return };
                let Some(request) = self.requests.get_mut(&key) else { return };
                request.is_known_busy = true;
                // If the call has failed (`again` is set), it is repeated nevertheless: no call waits for the
                // grant otherwise.
                if let AcquireStage::Sent { seq, again: None, .. } = request.stage {
                    request.stage = AcquireStage::Queued { seq };
                    request.since = now;
                    // The request's next deadline is not earlier than before, so `next_check` stays.
                }
                // Queued counts as an answer: otherwise the request would hold back `done_through` for the
                // whole wait (R2).
                self.unanswered.remove(&seq);
                if !matches!(request.stage, AcquireStage::Early { .. } | AcquireStage::Held(_)) {
                    out.push(Output::Queued { key, seq, position });
                }
            }
            Push::Revoked { seq, .. } => {
                let Some(&key) = self.by_seq.get(&seq) else { return };
                let Some(request) = self.requests.get_mut(&key) else { return };
                let AcquireStage::Held(hold) = &mut request.stage else {
                    return self.ended_before_it_held(now, key, seq, Answer::Revoked, out);
                };
                if hold.lost.is_none() {
                    hold.lose(key, LossCause::Broken, out);
                    // The hold ends after the grace period, but at the latest at the present lease deadline:
                    // later renewals of the session don't extend a revoked hold (B1).
                    let grace = now + request.limits.grace;
                    hold.ends_at = Some(self.lease_deadline.map_or(grace, |until| grace.min(until)));
                    self.index(key);
                }
            }
            Push::Recalled { seq } => {
                let Some(&key) = self.by_seq.get(&seq) else { return };
                let Some(request) = self.requests.get_mut(&key) else { return };
                if let AcquireStage::Held(_) = request.stage {
                    out.push(Output::Recalled { key });
                } else {
                    request.is_recalled = true;
                }
            }
            Push::Ended { seq, end } => self.hold_over(now, seq, end, cause_of(end), out),
            Push::HoldLost { seq, cause, .. } => self.hold_over(now, seq, End::Gone, cause, out),
            Push::Attached => out.push(Output::Attached(true)),
            Push::Detached { at, announced } => {
                out.push(Output::Attached(false));
                // An announced end starts no `linger`.
                if !announced {
                    self.detached(now, at, out);
                }
            }
            Push::Lost(cause) => self.session_gone(now, cause, out),
        }
    }

    /// The backend reports the end of a request, held or not.
    fn hold_over(&mut self, now: BootInstant, seq: Seq, end: End, cause: LossCause, out: &mut Vec<Output>) {
        let Some(&key) = self.by_seq.get(&seq) else { return };
        if let Some(PendingAcquire { stage: AcquireStage::Held(hold), .. }) = self.requests.get_mut(&key) {
            hold.lose(key, cause, out);
            self.end_hold(key, None);
        } else {
            self.ended_before_it_held(now, key, seq, Answer::Finished(end), out);
        }
    }

    /// Handles the end of a request that was not ended by its caller. Its grant may still be in flight and
    /// must be ignored when it arrives.
    fn ended_before_it_held(
        &mut self,
        now: BootInstant,
        key: Key,
        seq: Seq,
        answer: Answer,
        out: &mut Vec<Output>,
    ) {
        self.calls.retain(|_, sent| !matches!(sent.kind, CallKind::Acquire { seq: s, .. } if s == seq));
        self.unanswered.remove(&seq);
        self.acquire_answered(now, key, seq, answer, out);
    }

    /// The session has ended: holds are lost, waiters are requested again in a new session.
    pub(super) fn session_gone(&mut self, now: BootInstant, cause: LossCause, out: &mut Vec<Output>) {
        self.link = SessionPhase::Closed;
        self.lease_deadline = None;
        self.calls.clear();
        self.by_seq.clear();
        self.unanswered.clear();
        self.next_seq = 1;
        self.unfinished.clear();
        for finishing in std::mem::take(&mut self.finishing).into_values() {
            finishing.tell(Releasing::AlreadyLost(cause), out);
        }
        self.requests.retain(|&key, request| {
            if let AcquireStage::Held(hold) = &mut request.stage {
                hold.lose(key, cause, out);
                return false;
            }
            request.restart(now);
            true
        });
        self.pending = self.requests.keys().copied().collect();
        self.unsent = self.pending.clone();
        self.early.clear();
        self.next_check = self.next_due();
        self.ends.clear();
        self.ends_of.clear();
        out.push(Output::LeaseDeadline(None));
    }
}

/// The cause of a loss, for a hold that ended in this way at the service.
fn cause_of(end: End) -> LossCause {
    match end {
        End::Broken => LossCause::Broken,
        End::Gone => LossCause::Forgotten,
        _ => LossCause::Expired,
    }
}

/// How a `Finish` with this answer released its hold.
fn released_by(answer: &Answer) -> Releasing {
    match answer {
        Answer::Finished(End::Released) => Releasing::Released,
        Answer::Finished(end) => Releasing::AlreadyLost(cause_of(*end)),
        _ => Releasing::AlreadyLost(LossCause::Expired),
    }
}

impl Finishing {
    /// Tells the caller that waits, if any, how its hold was released.
    fn tell(self, how: Releasing, out: &mut Vec<Output>) {
        let Some((key, outcome)) = self.waiting else { return };
        out.push(match outcome {
            FinishReply::TimedOut => Output::NotAcquired { key, why: NotAcquired::TimedOut },
            FinishReply::Unserved => Output::NotAcquired { key, why: NotAcquired::Unreachable },
            FinishReply::Release => Output::Released { key, how },
        });
    }
}
