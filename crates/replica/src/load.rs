//! A node's state, and its counts since its start, for metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{Effect, End, LockName, Oldest, PrefixLoad, Reply, Table, Usage};

use crate::summary::CommandSummary;

/// The state of a node.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// This node leads.
    pub leads: bool,
    /// The leader's id; 0 if none is known.
    pub leader: u64,
    /// The term of the election.
    pub term: u64,
    /// The last log entry that this node has applied.
    pub applied: u64,
    /// The last log entry that this node knows to be committed.
    pub committed: u64,
    /// The last token that was issued.
    pub last_token: u64,
    /// The usage of the table by all sessions together.
    pub usage: Usage,
    /// The number of names that cached holds have.
    pub cached_names: u64,
    /// The load of the requested prefixes, then of others, each with its oldest, found like [`Load::oldest`].
    pub prefixes: Vec<(PrefixLoad, Oldest)>,
    /// Number of members of the cluster.
    pub members: u64,
    /// Number of members from which the leader receives answers, itself included; 0 unless this node leads.
    pub answering: u64,
    /// The oldest hold and the longest waiter. In a table with many requests, as of a look at all of them
    /// that takes several questions: they may be over.
    pub oldest: Oldest,
    /// The counts of this node as the leader.
    pub activity: Activity,
}

/// Counts of a node as the leader, since its start. A new leader starts from its own counts, so a sum over
/// the nodes counts each event once.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Activity {
    /// Grants.
    pub grants: u64,
    /// Sessions that expired: no keep-alive arrived for the ttl.
    pub expired: u64,
    /// Requests that left the queue because their wait limit was over.
    pub timed_out: u64,
    /// Recalls of cached holds.
    pub recalls: u64,
    /// Breaks by operators. A break that is repeated with `now` counts twice.
    pub breaks: u64,
    /// Keep-alives, attaches and calls, by the part of the ttl that was left when they arrived, in tenths.
    pub slack: [u64; SLACK_PARTS],
    /// Grants of waiters, by how long they had waited: see [`wait_of`].
    pub waits: [u64; WAIT_PARTS],
}

/// The number of equal parts of a ttl in [`Activity::slack`].
pub const SLACK_PARTS: usize = 10;
/// The number of parts of [`Activity::waits`].
pub const WAIT_PARTS: usize = 32;

/// The part of a wait: the number of bits of its milliseconds.
fn wait_part(wait: Duration) -> usize {
    let bits = u128::BITS - wait.as_millis().leading_zeros();
    (bits as usize).min(WAIT_PARTS - 1)
}

/// A wait in the middle of a part of [`Activity::waits`].
#[must_use]
pub fn wait_of(part: usize) -> Duration {
    // From 2^(part - 1) to 2^part milliseconds; the first part is 0.
    Duration::from_micros(if part == 0 { 0 } else { 750 << part })
}

impl Activity {
    /// Counts the effects of an applied command.
    pub(crate) fn applied(
        &mut self,
        command: &CommandSummary,
        reply: &Reply,
        effects: &[Effect],
        granted_after: &[Duration],
    ) {
        for &wait in granted_after {
            self.waits[wait_part(wait)] += 1;
        }
        self.grants += u64::from(matches!(reply, Reply::Granted(_)));
        self.breaks += u64::from(matches!((command, reply), (CommandSummary::Break, Reply::Done)));
        for effect in effects {
            match effect {
                Effect::Granted { .. } => self.grants += 1,
                Effect::Recalled { .. } => self.recalls += 1,
                Effect::Ended { end: End::TimedOut, .. } => self.timed_out += 1,
                Effect::SessionEnded { .. } if matches!(command, CommandSummary::Expire) => self.expired += 1,
                _ => {}
            }
        }
    }

    /// Counts a keep-alive that arrived when `left` of the ttl was left.
    pub(crate) fn kept_alive(&mut self, left: Duration, ttl: Duration) {
        let parts = SLACK_PARTS as u128;
        let part = left.as_nanos() * parts / ttl.as_nanos().max(1);
        // The whole ttl is left if the session was opened or kept alive in this turn.
        let part = usize::try_from(part.min(parts - 1)).unwrap_or(SLACK_PARTS - 1);
        self.slack[part] += 1;
    }
}

/// The search for the oldest hold and waiter, a part of the table at each question.
#[derive(Default, Debug)]
pub(crate) struct OldestSearch {
    cursor: u64,
    all: OldestFound,
    /// Those of the prefixes that were asked for last.
    prefixes: BTreeMap<LockName, OldestFound>,
}

/// What the search has found for some names.
#[derive(Default, Debug)]
struct OldestFound {
    /// The oldest so far.
    part: Oldest,
    /// The oldest when the end of the table was reached last.
    whole: Oldest,
}

impl OldestFound {
    fn oldest(&self) -> Oldest {
        self.whole.or(self.part)
    }
}

impl OldestSearch {
    /// Searches `places` slab entries further, or fewer if their names are long or many: see
    /// [`Table::oldest_in_part`]. Returns the oldest of all requests.
    pub(crate) fn search<'a>(
        &mut self,
        table: &Table,
        places: usize,
        segments: usize,
        prefixes: impl Iterator<Item = &'a LockName>,
    ) -> Oldest {
        let mut known = std::mem::take(&mut self.prefixes);
        self.prefixes = prefixes.map(|it| (it.clone(), known.remove(it).unwrap_or_default())).collect();
        let parts = self.prefixes.iter_mut().map(|(prefix, found)| (prefix, &mut found.part));
        let (oldest, next) = table.oldest_in_part(self.cursor, places, segments, parts);
        self.all.part = self.all.part.or(oldest);
        self.cursor = next.unwrap_or_else(|| {
            for found in self.prefixes.values_mut().chain([&mut self.all]) {
                found.whole = std::mem::take(&mut found.part);
            }
            0
        });
        self.all.oldest()
    }

    /// The oldest of a prefix that the last search was for.
    pub(crate) fn of(&self, prefix: &LockName) -> Oldest {
        self.prefixes.get(prefix).map(OldestFound::oldest).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        Acquire, Command, Effects, IfBusy, LockName, Mode, OpenSession, Seq, SessionId, WallTime,
    };

    use super::*;

    fn acquire(session: SessionId, seq: u64, name: LockName) -> Command {
        Command::Acquire(Acquire {
            session,
            seq: Seq(seq),
            done_through: Seq(0),
            names: vec![name],
            mode: Mode::Exclusive,
            subtree: false,
            if_busy: IfBusy::WAIT,
            keep_closed_ms: 0,
            value: Box::default(),
            meta: Box::default(),
            spare_tokens: 0,
            holding: Box::default(),
        })
    }

    #[test]
    fn keep_alives_are_counted_by_what_was_left() {
        let mut activity = Activity::default();
        for left in [0, 99, 100, 950, 999, 1_000, 2_000] {
            activity.kept_alive(Duration::from_millis(left), Duration::from_secs(1));
        }
        assert_eq!(activity.slack, [2, 1, 0, 0, 0, 0, 0, 0, 0, 4]);
    }

    #[test]
    fn waits_are_shown_within_their_part() {
        for (ms, part) in [(0, 0), (1, 1), (2, 2), (3, 2), (1000, 10), (u64::MAX, WAIT_PARTS - 1)] {
            assert_eq!(wait_part(Duration::from_millis(ms)), part);
        }
        for part in 0..WAIT_PARTS {
            assert_eq!(wait_part(wait_of(part)), part);
        }
    }

    #[test]
    fn oldest_are_found_part_by_part_and_forgotten_after_the_next_look_at_all() {
        let (mut table, mut effects) = (Table::new(0), Effects::new());
        let mut apply = |table: &mut Table, command| {
            let _ = table.apply(command, &mut effects);
        };
        let open = OpenSession {
            secret_hash: [1; 32],
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            linger_ms: 0,
            label: Box::default(),
            identity: Box::default(),
        };
        apply(&mut table, Command::OpenSession(open));
        let session = SessionId(1);
        for seq in 1..=40_u64 {
            apply(&mut table, Command::SetClock { now: WallTime(seq * 100) });
            let number = if seq == 30 { 1 } else { seq };
            let name = LockName::parse(&format!("p{}/n{number}", number % 2)).unwrap();
            apply(&mut table, acquire(session, seq, name));
        }
        let prefixes = ["p0", "p1"].map(|prefix| LockName::parse(prefix).unwrap());
        let look = |search: &mut OldestSearch, table: &Table| search.search(table, 16, 1, prefixes.iter());
        let (hold, waiter) = (Some(WallTime(100)), Some(WallTime(3000)));
        let even = Oldest { hold: Some(WallTime(200)), waiter: None };
        let mut search = OldestSearch::default();
        assert_eq!(look(&mut search, &table), Oldest { hold, waiter: None });
        assert_eq!(prefixes.each_ref().map(|it| search.of(it)), [even, Oldest { hold, waiter: None }]);
        assert_eq!(look(&mut search, &table), Oldest { hold, waiter });
        assert_eq!(prefixes.each_ref().map(|it| search.of(it)), [even, Oldest { hold, waiter }]);
        while search.cursor > 0 {
            look(&mut search, &table);
        }
        let finish =
            |target| Command::Finish { session, seq: Seq(41), target: Seq(target), done_through: Seq(0) };
        apply(&mut table, Command::SetClock { now: WallTime(5000) });
        apply(&mut table, finish(1));
        assert_eq!(table.granted_after(), [Duration::from_secs(2)]);
        assert_eq!(look(&mut search, &table).hold, hold, "until the next look at all");
        assert_eq!(search.of(&prefixes[1]), Oldest { hold, waiter });
        while search.cursor > 0 {
            look(&mut search, &table);
        }
        let odd = Oldest { hold: Some(WallTime(300)), waiter: None };
        assert_eq!(
            [&search.all, &search.prefixes[&prefixes[0]], &search.prefixes[&prefixes[1]]].map(|it| it.whole),
            [even, even, odd]
        );
        search.search(&table, 16, 1, prefixes[..1].iter());
        assert_eq!(search.prefixes.len(), 1, "the others are forgotten");
    }
}
