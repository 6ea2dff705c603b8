//! One request of a caller, from its wish to the end of its hold.

use std::time::Duration;

use lockkeeper_core::Seq;

use super::event::{By, CallId, Granted, Key, NotAcquired, Output, Releasing, Want, What};
use super::{Finishing, Machine, Outcome, Spec, pause};
use crate::error::LossCause;
use crate::time::BootInstant;

/// A backend that a session is being opened at, and that has said nothing for so long, is out of reach for whoever gives
/// up then. A wait that is shorter proves nothing of it.
const SILENCE: Duration = Duration::from_secs(1);

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Request {
    pub(super) want: Want,
    /// When it was asked, or when a sign of life of the backend was last seen for it.
    pub(super) since: BootInstant,
    pub(super) stage: Stage,
}

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) enum Stage {
    /// Waits for a session that can be believed in.
    Unsent,
    /// Under way, or to be sent again at `again`. `doubt`: an earlier try may have arrived.
    Sent {
        seq: Seq,
        again: Option<BootInstant>,
        tries: u32,
        doubt: bool,
    },
    Queued {
        seq: Seq,
    },
    /// Granted while the session could not be believed in, or not for long enough: handed out as soon as it can, which
    /// keeps its turn, or given back.
    Early {
        seq: Seq,
        grant: Granted,
    },
    Held(Hold),
}

#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(super) struct Hold {
    pub(super) seq: Seq,
    /// `max_hold`; once lost, the end of the grace.
    pub(super) ends_at: Option<BootInstant>,
    pub(super) lost: Option<LossCause>,
}

impl Hold {
    /// Signals the loss, once; the first cause stays.
    pub(super) fn lose(&mut self, key: Key, cause: LossCause, out: &mut Vec<Output>) {
        if self.lost.is_none() {
            self.lost = Some(cause);
            out.push(Output::Lost { key, cause });
        }
    }
}

impl Request {
    /// Asks anew. The backend has just been heard, so its silence counts from now.
    pub(super) fn restart(&mut self, now: BootInstant) {
        self.since = now;
        self.stage = Stage::Unsent;
    }

    /// From when on the backend has been silent for too long, if it says nothing.
    fn silent_at(&self, spec: &Spec) -> BootInstant {
        let patience = spec.patience();
        self.since + self.want.patience.map_or(patience, |own| own.min(patience))
    }

    pub(super) fn next_wake(&self, spec: &Spec) -> Option<BootInstant> {
        let silent_at = self.silent_at(spec);
        let wait_until = self.want.wait_until;
        match &self.stage {
            Stage::Unsent | Stage::Early { .. } => wait_until.into_iter().chain([silent_at]).min(),
            Stage::Sent { again: Some(at), .. } => wait_until.into_iter().chain([*at, silent_at]).min(),
            Stage::Sent { again: None, .. } | Stage::Queued { .. } => wait_until,
            Stage::Held(hold) => hold.ends_at,
        }
    }
}

impl Machine {
    /// Waits whose limit has passed by the caller's own clock, and callers whose backend has been silent too long.
    pub(super) fn give_up_waits(&mut self, now: BootInstant, out: &mut Vec<Output>) {
        // Whoever is believed in has been heard of late.
        let is_heard = self.believes(now, Duration::ZERO);
        let mut over = Vec::new();
        for &key in &self.pending {
            let Some(request) = self.requests.get(&key) else { continue };
            let waited = request.want.wait_until.is_some_and(|until| now >= until);
            let silent = now >= request.silent_at(&self.spec);
            let unheard = !is_heard && now >= request.since + SILENCE;
            match request.stage {
                Stage::Held(_) => {}
                // Nobody has said that it isn't free.
                Stage::Unsent if waited && unheard => over.push((key, None, NotAcquired::Unreachable)),
                Stage::Unsent if waited => over.push((key, None, NotAcquired::TimedOut)),
                Stage::Unsent if silent => over.push((key, None, NotAcquired::Unreachable)),
                Stage::Early { seq, .. } if !waited && silent => {
                    over.push((key, Some(seq), NotAcquired::Unreachable));
                }
                Stage::Sent { seq, .. } | Stage::Queued { seq } | Stage::Early { seq, .. } if waited => {
                    over.push((key, Some(seq), NotAcquired::TimedOut));
                }
                Stage::Sent { seq, again: Some(_), doubt, .. } if silent => {
                    let why = if doubt { NotAcquired::Ambiguous } else { NotAcquired::Unreachable };
                    over.push((key, Some(seq), why));
                }
                _ => {}
            }
        }
        for (key, seq, why) in over {
            self.remove(key);
            let Some(seq) = seq else {
                out.push(Output::NotAcquired { key, why });
                continue;
            };
            self.calls.retain(|_, sent| !matches!(sent.what, What::Acquire { key: k, .. } if k == key));
            if let NotAcquired::TimedOut = why {
                // The answer of the Finish says for certain that nothing is held.
                self.finish(seq, Some((key, Outcome::TimedOut)));
            } else {
                self.finish(seq, None);
                out.push(Output::NotAcquired { key, why });
            }
        }
    }

    /// Sends what is new, and again what was not answered, as far as the session can be believed in.
    pub(super) fn send_acquires(&mut self, now: BootInstant, due: bool, out: &mut Vec<Output>) {
        let mut ready = Vec::new();
        // What was sent before is looked at when something is due, and not before.
        for &key in if due { &self.pending } else { &self.unsent } {
            let Some(request) = self.requests.get(&key) else { continue };
            match request.stage {
                Stage::Unsent if self.believes(now, request.want.min_validity) => ready.push((None, key)),
                // A grant would come too late to be of use: first renew (`min_validity`).
                Stage::Unsent => self.link.renew_soon(now, self.spec.try_every()),
                Stage::Sent { seq, again: Some(at), .. } if now >= at => ready.push((Some(seq), key)),
                _ => {}
            }
        }
        // Those sent before by their seq, then new ones: commands must arrive in the order of their numbers (R5).
        ready.sort_by_key(|&(seq, key)| (seq.is_none(), seq, key));
        for (seq, key) in ready {
            let seq = seq.unwrap_or_else(|| self.new_seq());
            self.by_seq.insert(seq, key);
            let done_through = self.done_through();
            let Some(request) = self.requests.get_mut(&key) else { continue };
            let (tries, doubt) = match request.stage {
                Stage::Sent { tries, doubt, .. } => (tries, doubt),
                _ => (0, false),
            };
            request.stage = Stage::Sent { seq, again: None, tries, doubt };
            self.unsent.remove(&key);
            let wait_left = request.want.wait_until.map(|until| until - now);
            self.call(now, What::Acquire { key, seq, done_through, wait_left }, By::Caller(key), out);
        }
    }

    /// Sends every end that is due. The first try of one whose caller waits goes on the caller's task.
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
            let by = finishing.waiting.map_or(By::Worker, |(key, _)| By::Caller(key));
            self.call(now, What::Finish { seq, target, done_through }, by, out);
        }
    }

    /// A call that got no answer: it is sent again, under its own number.
    pub(super) fn failed(&mut self, now: BootInstant, call: CallId, sent: bool, out: &mut Vec<Output>) {
        let Some(failed) = self.calls.remove(&call) else { return };
        match failed.what {
            What::Open { .. } | What::KeepAlive => self.link_failed(now),
            What::Close => self.closed(),
            What::Acquire { key, .. } => {
                let Some(request) = self.requests.get_mut(&key) else { return };
                match &mut request.stage {
                    Stage::Sent { again, tries, doubt, .. } => {
                        *doubt |= sent;
                        *again = Some(now + pause(*tries));
                        *tries += 1;
                    }
                    Stage::Queued { seq } => {
                        // Its place is kept; the backend has been silent for it from now on only.
                        request.since = now;
                        request.stage =
                            Stage::Sent { seq: *seq, again: Some(now + pause(0)), tries: 1, doubt: true };
                    }
                    Stage::Unsent | Stage::Early { .. } | Stage::Held(_) => {}
                }
                self.index(key);
            }
            What::Finish { seq, .. } => {
                let Some(finishing) = self.finishing.get_mut(&seq) else { return };
                finishing.under_way = false;
                let again = Some(now + pause(finishing.tries));
                finishing.again = again;
                finishing.tries += 1;
                if let Some((key, outcome)) = finishing.waiting.take() {
                    out.push(match outcome {
                        Outcome::Release => Output::Released { key, how: Releasing::Ambiguous },
                        Outcome::TimedOut => Output::NotAcquired { key, why: NotAcquired::Ambiguous },
                    });
                }
                self.look_by(again);
            }
        }
    }
}
