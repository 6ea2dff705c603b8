//! The history of the table. Applies every command, in the agreed order, to a table of the oracle's own, and
//! checks the invariants that the rules name.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_core::snapshot::{Caching, Phase};
use lockkeeper_core::{
    Command, Effect, Effects, End, LockName, Reply, Seq, SessionId, Snapshot, Table, invariants,
};

use super::tries::Tries;
use super::{CheckResult, Coverage};
use crate::crowd::Budgets;
use crate::node::TOKENS_ABOVE;

/// With at least this many requests, invariants are no longer checked after every command.
const CROWD: usize = 64;

/// A hold, recorded from its grant to the end of the run.
#[derive(Clone, Debug)]
pub(crate) struct RecordedHold {
    pub(crate) session: SessionId,
    pub(crate) seq: Seq,
    /// The number of tokens after the first that the hold has as well (C2).
    pub(crate) spare: u32,
    /// The entry that granted the hold.
    pub(crate) index: u64,
    /// The command that ended the hold; `None` while the hold is live.
    pub(crate) ended: Option<String>,
    /// The holder may consider the hold live for a while after its end: an operator broke it with `now` (B2),
    /// or `linger` ended it after a close that the client could not know of.
    pub(crate) is_excused: bool,
    /// The first entry that revoked or ended the hold.
    pub(crate) stopped: Option<u64>,
    names: Vec<LockName>,
    subtree: bool,
}

impl RecordedHold {
    /// Whether the hold covers a name: `name` itself, or a subtree that contains it.
    pub(crate) fn covers(&self, name: &LockName) -> bool {
        let below = |own: &LockName| {
            name.as_str().strip_prefix(own.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        self.names.iter().any(|own| own == name || (self.subtree && below(own)))
    }
}

pub(crate) struct History {
    applied: u64,
    table: Table,
    snapshot: Snapshot,
    digests: BTreeMap<u64, u128>,
    holds: BTreeMap<u64, RecordedHold>,
    /// Holds that have not ended.
    live: BTreeSet<u64>,
    /// Cached holds that are recalled, and the entry that did it (C4).
    recalled: BTreeMap<(SessionId, Seq), u64>,
    pub(crate) tries: Tries,
    /// The duration of each timer, and the entry that began it.
    timers: BTreeMap<Timer, (Duration, u64)>,
    /// Timers that have not fired.
    pending: BTreeSet<Timer>,
    /// The timers begun by each entry.
    begun: BTreeMap<u64, Vec<Timer>>,
    budgets: Budgets,
    /// The number of commands since the last check of all invariants.
    unchecked: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    Closed(u64),
    Revoked(u64),
    Wait(SessionId, Seq),
}

impl Timer {
    /// The promise that a timer fires after its full duration, and in time.
    pub(crate) fn promise(self) -> &'static str {
        match self {
            Self::Closed(_) => "P9",
            Self::Revoked(_) | Self::Wait(..) => "P4",
        }
    }

    /// The timer that a leader's command ends, if any.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        match command {
            Command::EndDelay { token } => Some(Self::Closed(token.get())),
            Command::EndRevoked { token } => Some(Self::Revoked(token.get())),
            Command::TimeOut { session, target } => Some(Self::Wait(*session, *target)),
            _ => None,
        }
    }
}

impl History {
    /// Begins with an empty table of this rules version.
    pub(crate) fn new(rules: u32, budgets: Budgets) -> Self {
        let table = budgets.table(Table::with_rules(0, rules));
        let snapshot = table.snapshot();
        let digests = BTreeMap::from([(0, snapshot.digest())]);
        Self {
            applied: 0,
            table,
            snapshot,
            digests,
            holds: BTreeMap::new(),
            live: BTreeSet::new(),
            recalled: BTreeMap::new(),
            tries: Tries::default(),
            timers: BTreeMap::new(),
            pending: BTreeSet::new(),
            begun: BTreeMap::new(),
            budgets,
            unchecked: 0,
        }
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The hold that has this token. A cached hold has every token of its block (C2).
    pub(crate) fn hold(&self, token: u64) -> Option<&RecordedHold> {
        let (first, hold) = self.holds.range(..=token).next_back()?;
        (token - first <= u64::from(hold.spare)).then_some(hold)
    }

    /// The hold that was granted with this token as its first.
    pub(crate) fn granted(&self, token: u64) -> Option<&RecordedHold> {
        self.holds.get(&token)
    }

    /// The requests of a session whose holds are recalled, by an entry up to this one.
    pub(crate) fn recalled_by(&self, session: SessionId, index: u64) -> impl Iterator<Item = Seq> {
        let of_session = self.recalled.range((session, Seq(0))..=(session, Seq(u64::MAX)));
        of_session.filter(move |(_, at)| **at <= index).map(|((_, seq), _)| *seq)
    }

    /// Lets the open tries see whether their locks are in use, by the first tokens of the cached holds that
    /// are idle.
    pub(crate) fn look_at_tries(&mut self, idle: &BTreeSet<u64>) {
        self.tries.look_at_clients(&self.snapshot, idle);
    }

    /// The digest of the table after an entry.
    pub(crate) fn digest(&self, index: u64) -> Option<u128> {
        self.digests.get(&index).copied()
    }

    /// The duration of a timer.
    pub(crate) fn lasts(&self, timer: Timer) -> Option<Duration> {
        self.timers.get(&timer).map(|(needs, _)| *needs)
    }

    /// The pending timers, each with its duration and the entry that began it.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (Timer, Duration, u64)> {
        self.pending.iter().filter_map(|it| self.timers.get(it).map(|&(needs, index)| (*it, needs, index)))
    }

    /// The timers begun by an entry.
    pub(crate) fn begun(&self, index: u64) -> &[Timer] {
        self.begun.get(&index).map_or(&[], Vec::as_slice)
    }

    /// Applies the next entry.
    pub(crate) fn apply(
        &mut self,
        index: u64,
        commands: &[Command],
        excused: &BTreeSet<u64>,
        seen: &mut Coverage,
    ) -> CheckResult {
        for (place, command) in commands.iter().enumerate() {
            seen.commands += 1;
            seen.resumed += u64::from(*command == Command::Resume);
            seen.raised += u64::from(matches!(command, Command::RaiseRules { .. }));
            let mut effects = Effects::new();
            let before = self.table.visits();
            let reply = self.table.apply(command.clone(), &mut effects);
            let (visits, most) = (self.table.visits() - before, self.budgets.visits_max_of(command));
            if visits > most {
                let what = format!("{command:?} looks at {visits} entries of the table, {most} are allowed");
                return Err(("M2", what));
            }
            let is_checked = self.is_checked();
            if is_quiet(command, &reply, &effects) && !is_checked && place + 1 < commands.len() {
                continue;
            }
            let after = self.table.snapshot();
            if is_checked {
                let verdict = invariants::all(&self.table)
                    .and_then(|()| invariants::step(&self.snapshot, command, &reply, &effects, &after));
                verdict.map_err(|what| (promise_of(&what), what))?;
            }
            self.follow_holds(index, command, &after, excused, seen)?;
            self.follow_recalls(index, &after, seen);
            self.tries.follow(&after);
            self.follow_timers(index, &after);
            self.snapshot = after;
        }
        self.digests.insert(index, self.snapshot.digest());
        self.applied = index;
        Ok(())
    }

    /// Returns whether to check the invariants after this command: always, except with many requests, since
    /// the time for a check is quadratic in their number.
    fn is_checked(&mut self) -> bool {
        self.unchecked += 1;
        let requests = self.table.request_count();
        let is_due = requests < CROWD || self.unchecked >= requests / 8;
        if is_due {
            self.unchecked = 0;
        }
        is_due
    }

    /// Checks every invariant of the table as it is now.
    pub(crate) fn check(&self) -> CheckResult {
        invariants::all(&self.table).map_err(|what| (promise_of(&what), what))
    }

    /// P2 over the whole history: no token is granted twice, and each token is above all earlier ones.
    fn follow_holds(
        &mut self,
        index: u64,
        command: &Command,
        after: &Snapshot,
        excused: &BTreeSet<u64>,
        seen: &mut Coverage,
    ) -> CheckResult {
        let mut live = BTreeMap::new();
        for request in &after.requests {
            let (Phase::Held { token, .. } | Phase::Revoked { token, .. }) = &request.phase else { continue };
            let Some((session, seq)) = request.owner else { continue };
            live.insert(token.get(), (session, seq, request));
        }
        for (&token, &(session, seq, request)) in &live {
            match self.holds.get(&token) {
                Some(known) if (known.session, known.seq) == (session, seq) && known.ended.is_none() => {}
                Some(known) => {
                    return Err(("P2", format!("token {token} was {known:?}, now {session}/{seq}")));
                }
                None => {
                    if let Some((&last, hold)) = self.holds.last_key_value()
                        && last + u64::from(hold.spare) >= token
                    {
                        let last = last + u64::from(hold.spare);
                        return Err(("P2", format!("token {token} is granted after {last}")));
                    }
                    if token <= TOKENS_ABOVE {
                        let what =
                            format!("token {token} may be an older table's: it is not above {TOKENS_ABOVE}");
                        return Err(("P2", what));
                    }
                    seen.grants += 1;
                    seen.cached += u64::from(request.caching.is_held());
                    let hold = RecordedHold {
                        session,
                        seq,
                        spare: request.spare_tokens,
                        index,
                        ended: None,
                        is_excused: false,
                        stopped: None,
                        names: request.names.clone(),
                        subtree: request.subtree,
                    };
                    self.holds.insert(token, hold);
                    self.live.insert(token);
                }
            }
            if let (Phase::Revoked { .. }, Some(hold)) = (&request.phase, self.holds.get_mut(&token)) {
                hold.stopped.get_or_insert(index);
            }
        }
        let over: Vec<u64> = self.live.iter().copied().filter(|token| !live.contains_key(token)).collect();
        for token in over {
            self.live.remove(&token);
            let Some(hold) = self.holds.get_mut(&token) else { continue };
            hold.stopped.get_or_insert(index);
            hold.ended = Some(format!("{command:?} (entry {index})"));
            hold.is_excused = match command {
                Command::Break(order) => order.now,
                Command::ExpireSession { session } => excused.contains(&session.0),
                // `Resume` completes the expiry of a session.
                Command::Resume => excused.contains(&hold.session.0),
                _ => false,
            };
        }
        Ok(())
    }

    fn follow_recalls(&mut self, index: u64, after: &Snapshot, seen: &mut Coverage) {
        let recalled = after.requests.iter().filter(|request| request.caching == Caching::Recalled);
        let recalled: BTreeSet<(SessionId, Seq)> = recalled.filter_map(|request| request.owner).collect();
        self.recalled.retain(|hold, _| recalled.contains(hold));
        for hold in recalled {
            self.recalled.entry(hold).or_insert_with(|| {
                seen.recalled += 1;
                index
            });
        }
    }

    fn follow_timers(&mut self, index: u64, after: &Snapshot) {
        let ms = Duration::from_millis;
        let ttls: BTreeMap<SessionId, u64> =
            after.sessions.iter().map(|session| (session.id, session.ttl_ms)).collect();
        self.pending.clear();
        for request in &after.requests {
            // Requests of an ended session have no timers: the backlog ends them, in pieces.
            let owner = request.owner.and_then(|(session, seq)| Some((session, seq, *ttls.get(&session)?)));
            let (timer, needs) = match (&request.phase, owner) {
                (Phase::Closed { token, ms: delay, .. }, _) => (Timer::Closed(token.get()), ms(*delay)),
                (Phase::Revoked { token, .. }, Some((_, _, ttl))) => (Timer::Revoked(token.get()), ms(ttl)),
                (Phase::Waiting { at_most_ms: Some(at_most) }, Some((session, seq, _))) => {
                    (Timer::Wait(session, seq), ms(*at_most))
                }
                _ => continue,
            };
            self.pending.insert(timer);
            if let Entry::Vacant(place) = self.timers.entry(timer) {
                place.insert((needs, index));
                self.begun.entry(index).or_default().push(timer);
            }
        }
    }

    /// The names that are in use, for failure reports.
    pub(crate) fn in_use(&self) -> Vec<LockName> {
        self.table.names_in_use(None)
    }
}

/// Whether a command has changed only waiting requests. With many requests, no snapshot is then taken after
/// it, unless it is the last of its entry: the snapshot after the next command includes its changes.
fn is_quiet(command: &Command, reply: &Reply, effects: &[Effect]) -> bool {
    match reply {
        Reply::Queued { .. } | Reply::Finished(End::Left) => effects.is_empty(),
        _ => {
            let is_grant = |effect: &Effect| matches!(effect, Effect::Granted { .. });
            matches!(command, Command::TimeOut { .. }) && !effects.iter().any(is_grant)
        }
    }
}

/// The number of the promise with which an invariant's text begins.
fn promise_of(text: &str) -> &'static str {
    ["P1", "P2", "P4", "P7", "P8"].into_iter().find(|number| text.starts_with(number)).unwrap_or("P1")
}
