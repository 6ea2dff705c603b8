//! The table's history: every command as it was applied, against a table of the oracle's own and the named invariants.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::snapshot::Phase;
use lockkeeper_core::{Command, Effects, LockName, Seq, SessionId, Snapshot, Table, invariants};
use lockkeeper_replica::Replica;
use lockkeeper_wire::{entry, store};

use super::silence::Silence;
use super::{Seen, told::Verdict};

/// A hold, from its grant on, for ever.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) session: SessionId,
    pub(crate) seq: Seq,
    /// The entry that granted it.
    pub(crate) index: u64,
    /// What ended it; `None`: it is live.
    pub(crate) ended: Option<String>,
    /// Its holder may go on believing in it for a while: an operator broke it with `now` (B2), or `linger` ended it after
    /// a close that its client could not know of.
    pub(crate) is_excused: bool,
}

struct Entry {
    term: u64,
    data: Vec<u8>,
    commands: Vec<Command>,
}

pub(crate) struct History {
    entries: BTreeMap<u64, Entry>,
    applied: u64,
    durable: u64,
    table: Table,
    snapshot: Snapshot,
    digests: BTreeMap<u64, u128>,
    holds: BTreeMap<u64, Hold>,
    /// When what ends by time began, on the lease clock: closed and revoked holds by token, waits by request.
    began: BTreeMap<Timer, (Duration, Duration)>,
    /// P8: at which turns of the input an acquire was given to this run of the node, first and last.
    handed: BTreeMap<(SessionId, Seq), (u64, u64)>,
    handings: u64,
    /// The latest first handing of all that this run has logged.
    logged: (u64, Option<(SessionId, Seq)>),
    /// The replica's table was compared up to here in this run.
    compared: u64,
    /// The last session that this run found when it began to lead.
    found: Option<SessionId>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Closed(u64),
    Revoked(u64),
    Wait(SessionId, Seq),
}

impl History {
    pub(crate) fn new() -> Self {
        let table = Table::new(0);
        let snapshot = table.snapshot();
        let digests = BTreeMap::from([(0, snapshot.digest())]);
        Self {
            entries: BTreeMap::new(),
            applied: 0,
            durable: 0,
            table,
            snapshot,
            digests,
            holds: BTreeMap::new(),
            began: BTreeMap::new(),
            handed: BTreeMap::new(),
            handings: 0,
            logged: (0, None),
            compared: 0,
            found: None,
        }
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn hold(&self, token: u64) -> Option<&Hold> {
        self.holds.get(&token)
    }

    pub(crate) fn is_durable(&self, index: u64) -> bool {
        index <= self.durable
    }

    pub(crate) fn least_ttl(&self) -> Duration {
        let least = self.snapshot.sessions.iter().map(|session| session.ttl_ms).min();
        Duration::from_millis(least.unwrap_or(lockkeeper_core::limits::TTL_MS_MIN))
    }

    /// Whether the session was there when this run of the node began to lead.
    pub(crate) fn opened_before(&self, session: SessionId) -> bool {
        self.found.is_some_and(|last| session <= last)
    }

    pub(crate) fn shown(&self, index: u64) -> String {
        self.entries.get(&index).map(|entry| format!("{:?}", entry.commands)).unwrap_or_default()
    }

    /// P10: what was applied is in the snapshot, or in the log behind it, as it was.
    pub(crate) fn recovered(&mut self, at: u64, table: &Table, found: &[store::Entry]) -> Verdict {
        self.handed.clear();
        self.logged = (0, None);
        self.compared = at;
        self.found = None;
        if self.digests.get(&at) != Some(&table.snapshot().digest()) {
            return Err(("P10", format!("the snapshot of entry {at} is not the table that was there")));
        }
        for (index, known) in self.entries.range(..=self.applied).filter(|(index, _)| **index > at) {
            let same = found.iter().find(|entry| entry.index == *index);
            if same.is_none_or(|entry| entry.term != known.term || entry.data != known.data) {
                return Err((
                    "P10",
                    format!(
                        "entry {index} was applied, and a start finds {} in its place: {:?}",
                        same.map_or("nothing", |_| "another"),
                        known.commands
                    ),
                ));
            }
        }
        self.durable = found.last().map_or(at, |entry| entry.index);
        let applied = self.applied;
        found.iter().filter(|entry| entry.index > applied).try_for_each(|entry| self.keep(entry))
    }

    fn keep(&mut self, entry: &store::Entry) -> Verdict {
        let commands = match entry.data.is_empty() {
            true => Vec::new(),
            false => entry::decode_batch(&entry.data).map_err(|error| ("P10", error.to_string()))?,
        };
        if entry.index <= self.applied {
            return Err(("P10", format!("entry {} is written anew, though it was applied", entry.index)));
        }
        let known = Entry { term: entry.term, data: entry.data.to_vec(), commands };
        self.entries.insert(entry.index, known);
        Ok(())
    }

    /// Keeps what is written; returns its commands.
    pub(crate) fn wrote(&mut self, record: &store::Record) -> Result<Vec<Command>, (&'static str, String)> {
        let mut commands = Vec::new();
        for entry in &record.entries {
            self.keep(entry)?;
            commands.extend(self.entries[&entry.index].commands.iter().cloned());
        }
        for command in &commands {
            self.in_order(command)?;
        }
        Ok(commands)
    }

    pub(crate) fn durable(&mut self, record: &store::Record) {
        if let Some(last) = record.entries.last() {
            self.durable = last.index;
        }
    }

    pub(crate) fn handed_over(&mut self, session: SessionId, seq: Seq) {
        self.handings += 1;
        let handing = self.handings;
        self.handed.entry((session, seq)).or_insert((handing, handing)).1 = handing;
    }

    /// P8: who came first is logged first, so it gets the lower ticket.
    fn in_order(&mut self, command: &Command) -> Verdict {
        let Command::Acquire(it) = command else { return Ok(()) };
        let Some(&(first, last)) = self.handed.get(&(it.session, it.seq)) else { return Ok(()) };
        if last < self.logged.0 {
            return Err((
                "P8",
                format!("{}/{} came before {:?}, and is logged behind it", it.session, it.seq, self.logged.1),
            ));
        }
        if first > self.logged.0 {
            self.logged = (first, Some((it.session, it.seq)));
        }
        Ok(())
    }

    /// What the leader ends by time has had its time, on the lease clock and counted anew by a new leader (P9, B1, D1,
    /// W1).
    pub(crate) fn may_propose(&self, command: &Command, silence: &Silence) -> Verdict {
        let (timer, promise) = match command {
            Command::EndDelay { token } => (Timer::Closed(token.get()), "P9"),
            Command::EndRevoked { token } => (Timer::Revoked(token.get()), "P4"),
            Command::TimeOut { session, target } => (Timer::Wait(*session, *target), "P4"),
            _ => return Ok(()),
        };
        let Some((since, needs)) = self.began.get(&timer) else { return Ok(()) };
        let passed = silence.reading().saturating_sub((*since).max(silence.zero()));
        if passed + Duration::from_millis(1) < *needs * 99 / 100 {
            return Err((promise, format!("{command:?} is proposed after {passed:?}, it needs {needs:?}")));
        }
        Ok(())
    }

    /// Follows the replica; compares tables.
    pub(crate) fn observe(&mut self, replica: &Replica, silence: &Silence, seen: &mut Seen) -> Verdict {
        let index = replica.applied_index();
        while self.applied < index {
            self.apply(self.applied + 1, silence, seen)?;
        }
        if index > self.compared {
            self.compared = index;
            let digest = replica.table().snapshot().digest();
            if self.digests.get(&index) != Some(&digest) {
                return Err(("P10", format!("at entry {index} the node's table is not what its log makes")));
            }
        }
        if replica.is_ready() {
            self.found.get_or_insert(SessionId(self.snapshot.last_session));
        }
        if replica.is_ready() && index < self.applied {
            return Err((
                "P10",
                format!("the node leads with entry {index} applied; {} was applied before", self.applied),
            ));
        }
        Ok(())
    }

    fn apply(&mut self, index: u64, silence: &Silence, seen: &mut Seen) -> Verdict {
        let Some(entry) = self.entries.get(&index) else {
            return Err(("P10", format!("entry {index} is applied and was never written")));
        };
        for command in entry.commands.clone() {
            seen.commands += 1;
            let mut effects = Effects::new();
            let reply = self.table.apply(command.clone(), &mut effects);
            let after = self.table.snapshot();
            let verdict = invariants::all(&self.table)
                .and_then(|()| invariants::step(&self.snapshot, &command, &reply, &effects, &after));
            verdict.map_err(|what| (promise_of(&what), what))?;
            self.follow_holds(index, &command, &after, silence, seen)?;
            self.follow_timers(&after, silence.reading());
            self.snapshot = after;
        }
        self.digests.insert(index, self.snapshot.digest());
        self.applied = index;
        Ok(())
    }

    /// P2 over the whole history: no token twice, each above all before.
    fn follow_holds(
        &mut self,
        index: u64,
        command: &Command,
        after: &Snapshot,
        silence: &Silence,
        seen: &mut Seen,
    ) -> Verdict {
        let mut live = BTreeMap::new();
        for request in &after.requests {
            let (Phase::Held { token, .. } | Phase::Revoked { token, .. }) = &request.phase else { continue };
            let Some((session, seq)) = request.owner else { continue };
            live.insert(token.get(), (session, seq));
        }
        for (&token, &(session, seq)) in &live {
            match self.holds.get(&token) {
                Some(known) if (known.session, known.seq) == (session, seq) && known.ended.is_none() => {}
                Some(known) => {
                    return Err(("P2", format!("token {token} was {known:?}, now {session}/{seq}")));
                }
                None => {
                    if let Some((&last, _)) = self.holds.last_key_value()
                        && last > token
                    {
                        return Err(("P2", format!("token {token} is granted after {last}")));
                    }
                    seen.grants += 1;
                    let hold = Hold { session, seq, index, ended: None, is_excused: false };
                    self.holds.insert(token, hold);
                }
            }
        }
        for (token, hold) in &mut self.holds {
            if hold.ended.is_none() && !live.contains_key(token) {
                hold.ended = Some(format!("{command:?} (entry {index})"));
                hold.is_excused = match command {
                    Command::Break(order) => order.now,
                    Command::ExpireSession { session } => silence.excused.contains(&session.0),
                    _ => false,
                };
            }
        }
        Ok(())
    }

    fn follow_timers(&mut self, after: &Snapshot, reading: Duration) {
        let ms = Duration::from_millis;
        let ttl = |session: SessionId| {
            after.sessions.iter().find(|state| state.id == session).map_or(0, |state| state.ttl_ms)
        };
        for request in &after.requests {
            let (timer, needs) = match (&request.phase, request.owner) {
                (Phase::Closed { token, ms: delay, .. }, _) => (Timer::Closed(token.get()), ms(*delay)),
                (Phase::Revoked { token, .. }, Some((session, _))) => {
                    (Timer::Revoked(token.get()), ms(ttl(session)))
                }
                (Phase::Waiting { at_most_ms: Some(at_most) }, Some((session, seq))) => {
                    (Timer::Wait(session, seq), ms(*at_most))
                }
                _ => continue,
            };
            self.began.entry(timer).or_insert((reading, needs));
        }
    }

    /// The names that are not free, for whoever waits for the end.
    pub(crate) fn in_use(&self) -> Vec<LockName> {
        self.table.names_in_use(None)
    }
}

/// The number with which an invariant's text begins.
fn promise_of(text: &str) -> &'static str {
    ["P1", "P2", "P4", "P7", "P8"].into_iter().find(|number| text.starts_with(number)).unwrap_or("P1")
}
