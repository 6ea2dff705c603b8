//! Decides when the guardian ends its descendants. Pure: the time is a parameter, and no signal is sent here.
//!
//! All times are nanoseconds of `CLOCK_BOOTTIME`.

use super::protocol::Reason;

/// Bounds of the margin between SIGKILL and the deadline, in ns. The margin must suffice for one scan of
/// `/proc` and for the kernel's teardown of large processes, on a busy machine. A longer margin shortens the
/// job's grace.
const MARGIN_NS_MIN: u64 = 50_000_000;
const MARGIN_NS_MAX: u64 = 1_000_000_000;

/// How long before "valid until" SIGKILL is sent, so that all descendants are dead by then: a quarter of the
/// grace, at least 50 ms, at most 1 s.
pub(crate) fn margin(grace: u64) -> u64 {
    (grace / 4).clamp(MARGIN_NS_MIN, MARGIN_NS_MAX)
}

/// The guardian's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineStep {
    /// Do nothing before this time. `None`: no deadline is set, so do nothing until an order or a signal
    /// arrives.
    Wait(Option<u64>),
    /// Send SIGTERM to all descendants, once, for this reason.
    Terminate(Reason),
    /// Send SIGKILL to all descendants, repeatedly until none is left.
    Kill,
}

pub(crate) struct Schedule {
    valid_until: Option<u64>,
    grace: u64,
    ending: Option<Termination>,
}

struct Termination {
    reason: Reason,
    announced: bool,
    kill_at: u64,
}

impl Schedule {
    pub(crate) fn new(valid_until: Option<u64>, grace: u64) -> Self {
        Self { valid_until, grace, ending: None }
    }

    /// Moves the deadline. If termination has begun, the deadline can't move to a later time: a command that
    /// received SIGTERM is shutting down, and a late renewal must not let its remaining processes run on. An
    /// earlier deadline then moves SIGKILL to an earlier time.
    pub(crate) fn set_valid_until(&mut self, at: u64) {
        match &mut self.ending {
            None => self.valid_until = Some(at),
            Some(ending) => ending.kill_at = ending.kill_at.min(at.saturating_sub(margin(self.grace))),
        }
    }

    /// Ends all descendants: SIGTERM now, SIGKILL at `kill_at`, or one margin before the lock's deadline if
    /// that is earlier. A second call can only move SIGKILL to an earlier time.
    pub(crate) fn end(&mut self, reason: Reason, kill_at: u64) {
        let kill_at = self.last_moment().map_or(kill_at, |last| last.min(kill_at));
        match &mut self.ending {
            None => self.ending = Some(Termination { reason, announced: false, kill_at }),
            Some(ending) => ending.kill_at = ending.kill_at.min(kill_at),
        }
    }

    /// [`Schedule::end`] with SIGKILL one grace from now.
    pub(crate) fn end_after_grace(&mut self, reason: Reason, now: u64) {
        self.end(reason, now.saturating_add(self.grace));
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether SIGTERM is due; then it is too late to start a command.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.term_at().is_some_and(|at| at <= now)
    }

    pub(crate) fn poll(&mut self, now: u64) -> DeadlineStep {
        if self.ending.is_none() && self.is_due(now) {
            self.end(Reason::ValidUntil, u64::MAX);
        }
        match &mut self.ending {
            None => DeadlineStep::Wait(self.term_at()),
            Some(ending) if !ending.announced => {
                ending.announced = true;
                DeadlineStep::Terminate(ending.reason)
            }
            Some(ending) if ending.kill_at <= now => DeadlineStep::Kill,
            Some(ending) => DeadlineStep::Wait(Some(ending.kill_at)),
        }
    }

    fn term_at(&self) -> Option<u64> {
        Some(self.valid_until?.saturating_sub(self.grace.max(margin(self.grace))))
    }

    fn last_moment(&self) -> Option<u64> {
        Some(self.valid_until?.saturating_sub(margin(self.grace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn sigterm_is_due_one_grace_before_the_deadline_and_sigkill_one_margin_before() {
        let mut schedule = Schedule::new(Some(10_000 * MS), 1000 * MS);
        assert_eq!(schedule.poll(0), DeadlineStep::Wait(Some(9000 * MS)));
        assert_eq!(schedule.poll(9000 * MS), DeadlineStep::Terminate(Reason::ValidUntil));
        assert_eq!(schedule.poll(9000 * MS), DeadlineStep::Wait(Some(9750 * MS)));
        assert_eq!(schedule.poll(9750 * MS), DeadlineStep::Kill);
        assert_eq!(schedule.poll(9751 * MS), DeadlineStep::Kill);
    }

    #[test]
    fn the_margin_is_a_quarter_of_the_grace_within_bounds() {
        assert_eq!(margin(0), 50 * MS);
        assert_eq!(margin(1000 * MS), 250 * MS);
        assert_eq!(margin(u64::MAX), 1000 * MS);
    }

    #[test]
    fn a_grace_below_the_margin_still_kills_before_the_deadline() {
        let mut schedule = Schedule::new(Some(1000 * MS), 0);
        assert_eq!(schedule.poll(0), DeadlineStep::Wait(Some(950 * MS)));
        assert_eq!(schedule.poll(950 * MS), DeadlineStep::Terminate(Reason::ValidUntil));
        assert_eq!(schedule.poll(950 * MS), DeadlineStep::Kill);
    }

    #[test]
    fn a_renewal_moves_the_deadline_only_before_termination() {
        let mut schedule = Schedule::new(Some(1000 * MS), 200 * MS);
        schedule.set_valid_until(2000 * MS);
        assert_eq!(schedule.poll(1000 * MS), DeadlineStep::Wait(Some(1800 * MS)));
        assert_eq!(schedule.poll(1800 * MS), DeadlineStep::Terminate(Reason::ValidUntil));
        schedule.set_valid_until(9000 * MS);
        assert_eq!(schedule.poll(1950 * MS), DeadlineStep::Kill);
    }

    #[test]
    fn without_a_deadline_no_time_is_set() {
        let mut schedule = Schedule::new(None, 100 * MS);
        assert_eq!(schedule.poll(u64::MAX), DeadlineStep::Wait(None));
        schedule.end_after_grace(Reason::WrapperGone, 5 * MS);
        assert_eq!(schedule.poll(5 * MS), DeadlineStep::Terminate(Reason::WrapperGone));
        assert_eq!(schedule.poll(5 * MS), DeadlineStep::Wait(Some(105 * MS)));
    }

    #[test]
    fn end_never_exceeds_the_deadline_and_a_second_end_only_shortens_it() {
        let mut schedule = Schedule::new(Some(1000 * MS), 400 * MS);
        schedule.end(Reason::Asked, 5000 * MS);
        assert_eq!(schedule.poll(0), DeadlineStep::Terminate(Reason::Asked));
        assert_eq!(schedule.poll(0), DeadlineStep::Wait(Some(900 * MS)));
        schedule.end(Reason::WrapperGone, 300 * MS);
        assert_eq!(schedule.poll(0), DeadlineStep::Wait(Some(300 * MS)), "the reason is told once");
        schedule.end(Reason::Asked, 800 * MS);
        assert_eq!(schedule.poll(300 * MS), DeadlineStep::Kill);
    }

    #[test]
    fn near_or_past_deadline_is_due() {
        assert!(Schedule::new(Some(1000), 100 * MS).is_due(0));
        assert!(Schedule::new(Some(0), 0).is_due(0));
        assert!(!Schedule::new(None, 0).is_due(u64::MAX));
    }
}
