//! The leader's timers: session leases and all other deadlines. They are never in the log, so a keep-alive
//! costs no disk write. All times are readings of the lease clock (`lease.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::{Seq, SessionId, Token, limits};

use crate::event::StreamId;

/// A timer that fires.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// A session's deadline has passed: it was silent for its ttl, or for `linger` after its client closed
    /// the stream. The session's expiry also needs a quorum read and a drain barrier (P9).
    Session(SessionId),
    /// A waiter's wait limit has passed (W1).
    TimeOut(SessionId, Seq),
    /// A closed hold's time is over (D3).
    EndDelay(Token),
    /// The holder of a revoked hold has had its ttl to react (B1).
    EndRevoked(Token),
}

/// Who may send requests of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attached {
    /// The session's stream has ended, or there was none since this node leads.
    Nowhere,
    /// The stream of the latest attach.
    Stream(StreamId),
    /// Calls, of which any may take the session over from a stream. A later attach ends this.
    ToCalls,
}

impl Attached {
    /// The stream to which the session is attached.
    pub(crate) fn stream(self) -> Option<StreamId> {
        if let Self::Stream(stream) = self { Some(stream) } else { None }
    }
}

/// State of a session that only the leader has; not in the table.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) ttl: Duration,
    pub(crate) linger: Duration,
    pub(crate) deadline: Duration,
    /// The deadline that this leader gave when it took over; zero for a session opened under this leader. A
    /// closed stream never moves the deadline below this.
    floor: Duration,
    /// Time at which `timers` has this session: at or before `deadline`.
    scheduled: Duration,
    /// The highest attach number received on a stream. Calls have no such numbers.
    pub(crate) attach: u64,
    pub(crate) attached: Attached,
    /// The highest seq of the session's commands that this leader has queued.
    pub(crate) queued_through: Seq,
    /// Holds under a break: every acknowledgement names them (B1).
    pub(crate) revoked: BTreeSet<Seq>,
    /// Requests whose cached holds were recalled; some may have been settled since (C4).
    pub(crate) recalled: BTreeSet<Seq>,
    /// The seq of the last unconfirmed end sent since the attach, if more may remain; `None` if none remain
    /// or none were sent.
    pub(crate) ends_sent_to: Option<Seq>,
    /// The session's end is proposed: nothing is acknowledged for the session until the end is applied or
    /// taken back.
    pub(crate) ending: bool,
}

impl Lease {
    /// Whether the session's client has a stream open, or makes calls instead and has made one in the last
    /// half of the ttl. Also true while that is not known: this leader has found the session when it took
    /// over, and the client still has time to attach to it.
    pub(crate) fn may_be_attached(&self, now: Duration) -> bool {
        match self.attached {
            Attached::Stream(_) => true,
            Attached::ToCalls => now + self.ttl / 2 < self.deadline,
            Attached::Nowhere => self.attach == 0 && now < self.floor,
        }
    }
}

/// Maximum number of wait limits removed at once when a session ends; the rest is removed over later turns.
const WAITS_PER_END: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    leases: BTreeMap<SessionId, Lease>,
    timers: BTreeSet<(Duration, Timer)>,
    /// Deadlines of the wait limits, to find their timers when they are cancelled.
    waits: BTreeMap<(SessionId, Seq), Duration>,
    /// When each closed hold opens.
    closed: BTreeMap<Token, Duration>,
    /// Number of sessions by ttl.
    ttls: BTreeMap<Duration, usize>,
    /// Ended sessions that are still in `waits`.
    ended: Vec<SessionId>,
}

impl Deadlines {
    /// The shortest ttl of all sessions; without sessions, the shortest ttl that is allowed. Bounds the steps
    /// of the lease clock.
    fn least_ttl(&self) -> Duration {
        let least = self.ttls.first_key_value().map(|(&ttl, _)| ttl);
        least.unwrap_or(Duration::from_millis(limits::TTL_MS_MIN))
    }

    /// Maximum advance of the lease clock in one turn.
    pub(crate) fn step_max(&self) -> Duration {
        self.least_ttl() / 12
    }

    /// Maximum sleep of the event loop from `now`; `None` without timers.
    pub(crate) fn sleep_max(&self, now: Duration) -> Option<Duration> {
        let &(at, _) = self.timers.first()?;
        Some(at.saturating_sub(now).min(self.least_ttl() / 24))
    }

    /// Adds a session that was found in the table (`found`) or opened under this leader. Its first deadline
    /// is one ttl from now; a found session's deadline never moves below that. If the session was added
    /// before, only its deadline is extended.
    pub(crate) fn opened(
        &mut self,
        session: SessionId,
        ttl: Duration,
        linger: Duration,
        now: Duration,
        found: bool,
    ) {
        if let Some(lease) = self.leases.get_mut(&session) {
            lease.deadline = lease.deadline.max(now + ttl);
            return;
        }
        let deadline = now + ttl;
        let floor = if found { deadline } else { Duration::ZERO };
        let lease = Lease {
            ttl,
            linger,
            deadline,
            floor,
            scheduled: deadline,
            attach: 0,
            attached: Attached::Nowhere,
            queued_through: Seq(0),
            revoked: BTreeSet::new(),
            recalled: BTreeSet::new(),
            ends_sent_to: None,
            ending: false,
        };
        self.leases.insert(session, lease);
        self.timers.insert((deadline, Timer::Session(session)));
        *self.ttls.entry(ttl).or_default() += 1;
    }

    pub(crate) fn ended(&mut self, session: SessionId) -> Option<Lease> {
        let lease = self.leases.remove(&session)?;
        self.timers.remove(&(lease.scheduled, Timer::Session(session)));
        if let Some(count) = self.ttls.get_mut(&lease.ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&lease.ttl);
            }
        }
        self.ended.push(session);
        self.forget_waits(WAITS_PER_END);
        Some(lease)
    }

    /// Removes at most `most` wait limits of ended sessions.
    fn forget_waits(&mut self, most: usize) {
        for _ in 0..most {
            let Some(&session) = self.ended.last() else { return };
            match self.waits.range((session, Seq(0))..=(session, Seq(u64::MAX))).next() {
                Some((&(session, seq), _)) => self.waits_no_more(session, seq),
                None => drop(self.ended.pop()),
            }
        }
    }

    pub(crate) fn lease(&self, session: SessionId) -> Option<&Lease> {
        self.leases.get(&session)
    }

    pub(crate) fn lease_mut(&mut self, session: SessionId) -> Option<&mut Lease> {
        self.leases.get_mut(&session)
    }

    /// Shortens the lease to `linger`, but not below its floor: the client closed its stream, and all input
    /// that arrived before was handled.
    pub(crate) fn cut(&mut self, session: SessionId, now: Duration) {
        let Some(lease) = self.leases.get_mut(&session) else { return };
        lease.deadline = lease.deadline.min(now + lease.linger).max(lease.floor);
        if lease.deadline < lease.scheduled {
            self.timers.remove(&(lease.scheduled, Timer::Session(session)));
            lease.scheduled = lease.deadline;
            self.timers.insert((lease.scheduled, Timer::Session(session)));
        }
    }

    /// Starts a wait limit. A limit that runs already is not restarted, since a retry's `Queued` must not
    /// prolong it (E1).
    pub(crate) fn waits(&mut self, session: SessionId, seq: Seq, until: Duration) {
        if self.waits.contains_key(&(session, seq)) {
            return;
        }
        self.waits.insert((session, seq), until);
        self.timers.insert((until, Timer::TimeOut(session, seq)));
    }

    pub(crate) fn waits_no_more(&mut self, session: SessionId, seq: Seq) {
        if let Some(until) = self.waits.remove(&(session, seq)) {
            self.timers.remove(&(until, Timer::TimeOut(session, seq)));
        }
    }

    pub(crate) fn closed(&mut self, token: Token, until: Duration) {
        self.closed.insert(token, until);
        self.timers.insert((until, Timer::EndDelay(token)));
    }

    /// When a closed hold opens.
    pub(crate) fn closed_until(&self, token: Token) -> Option<Duration> {
        self.closed.get(&token).copied()
    }

    pub(crate) fn revoked(&mut self, token: Token, until: Duration) {
        self.timers.insert((until, Timer::EndRevoked(token)));
    }

    /// Returns the timers that have fired, each once. A session whose deadline has moved is not returned but
    /// rescheduled. Visits at most `most` timers; the rest stays due.
    pub(crate) fn take_due(&mut self, now: Duration, most: usize) -> Vec<Timer> {
        self.forget_waits(most);
        let mut taken = Vec::new();
        for _ in 0..most {
            let Some(&(at, due)) = self.timers.first().filter(|(at, _)| *at <= now) else { break };
            self.timers.pop_first();
            match due {
                Timer::Session(session) => {
                    let Some(lease) = self.leases.get_mut(&session) else { continue };
                    if lease.deadline > at {
                        lease.scheduled = lease.deadline;
                        self.timers.insert((lease.scheduled, due));
                        continue;
                    }
                }
                Timer::TimeOut(session, seq) => drop(self.waits.remove(&(session, seq))),
                Timer::EndDelay(token) => drop(self.closed.remove(&token)),
                Timer::EndRevoked(_) => {}
            }
            taken.push(due);
        }
        taken
    }

    /// Reschedules a session at its deadline: the session proved to be alive, or its queued expiry was taken
    /// back.
    pub(crate) fn again(&mut self, session: SessionId) {
        if let Some(lease) = self.leases.get_mut(&session) {
            self.timers.remove(&(lease.scheduled, Timer::Session(session)));
            lease.scheduled = lease.deadline;
            self.timers.insert((lease.scheduled, Timer::Session(session)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(1);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn next_due(book: &mut Deadlines, now: u64) -> Option<Timer> {
        (0..10).find_map(|_| book.take_due(at(now), 1).pop())
    }

    fn book(ttl: u64, linger: u64, found: bool) -> Deadlines {
        let mut book = Deadlines::default();
        book.opened(S, at(ttl), at(linger), at(0), found);
        book
    }

    #[test]
    fn session_fires_once_at_its_latest_deadline() {
        let mut book = book(1_000, 0, false);
        book.lease_mut(S).unwrap().deadline = at(1_700);
        assert_eq!(next_due(&mut book, 1_000), None, "it was kept alive meanwhile");
        assert_eq!(next_due(&mut book, 1_699), None);
        assert_eq!(next_due(&mut book, 1_700), Some(Timer::Session(S)));
        assert_eq!(next_due(&mut book, 9_000), None, "told once");
        book.again(S);
        assert_eq!(next_due(&mut book, 9_000), Some(Timer::Session(S)));
    }

    #[test]
    fn session_of_calls_is_attached_for_half_its_ttl_after_the_last_one() {
        let mut book = book(1_000, 0, false);
        let lease = book.lease_mut(S).unwrap();
        assert!(!lease.may_be_attached(at(0)), "opened under this leader, and left");
        lease.attached = Attached::ToCalls;
        assert!(lease.may_be_attached(at(499)) && !lease.may_be_attached(at(500)));
        lease.deadline = at(1_400);
        assert!(lease.may_be_attached(at(899)) && !lease.may_be_attached(at(900)));
        lease.attached = Attached::Stream(StreamId(1));
        assert!(lease.may_be_attached(at(1_399)));
    }

    #[test]
    fn linger_shortens_and_never_extends_a_lease() {
        let mut cut = book(10_000, 500, false);
        cut.cut(S, at(100));
        assert_eq!(next_due(&mut cut, 599), None);
        assert_eq!(next_due(&mut cut, 600), Some(Timer::Session(S)));
        let mut late = book(10_000, 500, false);
        late.cut(S, at(9_900));
        assert_eq!(next_due(&mut late, 10_000), Some(Timer::Session(S)));
    }

    #[test]
    fn linger_never_undercuts_a_new_leaders_deadline() {
        let mut book = book(10_000, 500, true);
        book.cut(S, at(100));
        assert_eq!(next_due(&mut book, 9_999), None);
        assert_eq!(next_due(&mut book, 10_000), Some(Timer::Session(S)));
    }

    #[test]
    fn wait_limit_starts_once_and_can_be_cancelled() {
        let mut book = book(60_000, 0, false);
        book.waits(S, Seq(1), at(100));
        book.waits(S, Seq(1), at(900));
        book.waits(S, Seq(2), at(100));
        book.waits_no_more(S, Seq(2));
        assert_eq!(next_due(&mut book, 100), Some(Timer::TimeOut(S, Seq(1))));
        assert_eq!(next_due(&mut book, 1_000), None);
    }

    #[test]
    fn ended_session_has_no_timers() {
        let mut book = book(1_000, 0, false);
        book.waits(S, Seq(1), at(100));
        assert!(book.ended(S).is_some());
        assert_eq!(next_due(&mut book, 100_000), None);
        assert_eq!(book.sleep_max(at(0)), None);
    }

    #[test]
    fn many_due_timers_are_taken_in_bounded_parts() {
        let mut book = book(1_000, 0, false);
        let waits = WAITS_PER_END as u64 * 3;
        (0..waits).for_each(|seq| book.waits(S, Seq(seq), at(100)));
        let due = book.take_due(at(100), 1_000);
        assert_eq!(due.first(), Some(&Timer::TimeOut(S, Seq(0))));
        assert_eq!((due.len(), book.sleep_max(at(100))), (1_000, Some(at(0))), "the rest is due still");
        assert!(book.ended(S).is_some());
        assert!(!book.waits.is_empty(), "not all at once");
        while !book.ended.is_empty() {
            book.take_due(at(0), 1_000);
        }
        assert_eq!((book.waits.len(), book.sleep_max(at(0))), (0, None));
    }

    #[test]
    fn loop_sleep_is_bounded_by_the_shortest_ttl() {
        let mut book = book(60_000, 0, false);
        assert_eq!(book.sleep_max(at(0)), Some(at(2_500)));
        book.opened(SessionId(2), at(1_200), at(0), at(0), false);
        assert_eq!((book.step_max(), book.sleep_max(at(0))), (at(100), Some(at(50))));
        book.ended(SessionId(2));
        assert_eq!(book.step_max(), at(5_000));
    }
}
