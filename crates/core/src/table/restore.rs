//! Restores a table from a snapshot: from its stream, piece by piece, or from plain data.
//!
//! Snapshot items (sessions, requests, limits) go directly into the table as they arrive, in any order,
//! without an intermediate copy. Steps that need all items run at the end: linking requests to their
//! sessions, and the search for duplicates.
//!
//! All properties that the table's code relies on are checked: numbers against the counters, uniqueness, and
//! consistent references. The lock rules are not checked again, because the digest shows that the holds are
//! those that were written. Of the limits (M1), only those on names, tokens and permits are checked: a
//! version with lower limits must read the snapshots of older versions.

use super::Table;
use super::crowd::{Class, Limit};
use super::request::{Extras, Few, Owner, RequestEntry, RequestId, RequestStage, base_bytes};
use super::session::TableSession;
use super::usage::AccountId;
use crate::limits;
use crate::name;
use crate::snapshot::items::{Header, SnapshotItem, StreamReader};
use crate::snapshot::{
    Caching, EndingState, FreedState, LimitState, Phase, RequestState, SessionState, Snapshot,
};
use crate::types::{ModeKind, Seq, SessionId, Slot, WallTime};

/// The snapshot does not describe a valid table. No part of it is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot does not describe a table: {0}; restore another one")]
pub struct SnapshotError(pub(crate) String);

fn refuse<T>(why: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError(why.into()))
}

/// Upper bound for counters in a snapshot: far above any value that a table can reach, and low enough that
/// incrementing can't overflow.
const COUNTER_MAX: u64 = 1 << 62;

/// Builds a table from a stream that [`Table::snapshot_piece`] or [`Snapshot::encode`] wrote, as its bytes
/// arrive.
///
/// Stores only the table and at most one incomplete item.
pub struct Restorer {
    table: Table,
    stream: StreamReader,
    failed: Option<SnapshotError>,
}

impl Restorer {
    /// `hash_seed`: see [`Table::new`].
    #[must_use]
    pub fn new(hash_seed: u64) -> Self {
        Self { table: Table::new(hash_seed), stream: StreamReader::default(), failed: None }
    }

    /// Reads the next bytes of the stream, split at any position.
    ///
    /// # Errors
    /// [`SnapshotError`] as soon as the bytes can't be part of a valid snapshot. Every later call returns the
    /// same error.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let table = &mut self.table;
        let result = self.stream.push(bytes, |item| match item {
            SnapshotItem::Header(header) => table.restore_header(&header),
            SnapshotItem::Clock(clock) => table.restore_clock(clock),
            SnapshotItem::Session(state) => table.restore_session(state, None),
            SnapshotItem::Ending(EndingState { session, delay_ms }) => {
                table.restore_session(session, Some(delay_ms))
            }
            SnapshotItem::Freed(state) => table.restore_freed(state),
            SnapshotItem::Request(state) => table.restore_request(state),
            SnapshotItem::Limit(state) => table.restore_limit(&state),
        });
        self.failed = result.clone().err();
        result
    }

    /// The stream's [`Snapshot::digest`]; `None` before the end of the stream was read.
    #[must_use]
    pub fn digest(&self) -> Option<u128> {
        self.stream.finish().ok()
    }

    /// The restored table, in exactly the state of the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`] if the stream is incomplete or inconsistent.
    pub fn finish(self) -> Result<Table, SnapshotError> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        self.stream.finish()?;
        let mut table = self.table;
        table.complete()?;
        Ok(table)
    }
}

impl Table {
    /// A table in exactly the state of the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot is inconsistent.
    pub fn restore(snapshot: &Snapshot, hash_seed: u64) -> Result<Self, SnapshotError> {
        let mut table = Self::new(hash_seed);
        table.restore_header(&snapshot.header())?;
        table.restore_clock(snapshot.clock)?;
        for state in &snapshot.sessions {
            table.restore_session(state.clone(), None)?;
        }
        for EndingState { session, delay_ms } in &snapshot.ending {
            table.restore_session(session.clone(), Some(*delay_ms))?;
        }
        for state in &snapshot.freed {
            table.restore_freed(state.clone())?;
        }
        for state in &snapshot.requests {
            table.restore_request(state.clone())?;
        }
        for state in &snapshot.limits {
            table.restore_limit(state)?;
        }
        table.complete()?;
        Ok(table)
    }

    fn restore_header(&mut self, header: &Header) -> Result<(), SnapshotError> {
        let &Header { rules, last_token, last_ticket, last_session, .. } = header;
        if rules > limits::RULES_VERSION {
            let known = limits::RULES_VERSION;
            return refuse(format!("it needs rules version {rules}, the newest known here is {known}"));
        }
        if last_token > limits::TOKEN_MAX || last_ticket > COUNTER_MAX || last_session > COUNTER_MAX {
            return refuse(format!("a counter is too high: {header:?}"));
        }
        (self.rules, self.last_token) = (rules, last_token);
        (self.last_ticket, self.last_session) = (last_ticket, last_session);
        Ok(())
    }

    fn restore_clock(&mut self, clock: WallTime) -> Result<(), SnapshotError> {
        self.check_time(clock)?;
        if self.clock != WallTime::default() {
            return refuse("it has two times of the leader's clock");
        }
        self.clock = clock;
        Ok(())
    }

    fn check_time(&self, time: WallTime) -> Result<(), SnapshotError> {
        if time != WallTime::default() && self.rules < limits::RULES_WITH_CLOCK {
            return refuse(format!("it has a time, which rules version {} does not know", self.rules));
        }
        Ok(())
    }

    /// `ending`: for a session that has ended, the lock-delay of its holds in milliseconds.
    fn restore_session(&mut self, state: SessionState, ending: Option<u64>) -> Result<(), SnapshotError> {
        let (id, secret_hash) = (state.id, state.secret_hash);
        if id.0 == 0 || id.0 > self.last_session {
            return refuse(format!("session {id} is above the counter {}", self.last_session));
        }
        if state.done_through > state.highest {
            return refuse(format!("session {id} has confirmed more than was seen of it"));
        }
        if !state.identity.is_empty() && self.rules < limits::RULES_WITH_IDENTITY {
            return refuse(format!(
                "session {id} has an identity, which rules version {} does not know",
                self.rules
            ));
        }
        let mut last = None;
        for kept in &state.kept {
            if last >= Some(kept.seq) || kept.seq > state.highest {
                return refuse(format!("session {id} keeps an answer to {} out of place", kept.seq));
            }
            last = Some(kept.seq);
        }
        // The secret of an ended session may belong to a live session too, which was opened later.
        let is_secret_new = ending.is_some() || self.by_secret.insert(secret_hash, id).is_none();
        if !is_secret_new || !self.sessions.insert(id, TableSession::restore(state, ending)) {
            return refuse(format!("session {id} or its secret appears twice"));
        }
        Ok(())
    }

    fn restore_freed(&mut self, state: FreedState) -> Result<(), SnapshotError> {
        let number = state.number;
        if number > COUNTER_MAX || state.after.0 > self.last_ticket || !self.unpassed.restore(state) {
            return refuse(format!("the freed name with number {number} has a number too high, or twice"));
        }
        Ok(())
    }

    fn restore_limit(&mut self, state: &LimitState) -> Result<(), SnapshotError> {
        let name = &state.name;
        if !(1..=limits::PERMITS_MAX).contains(&state.limit) {
            return refuse(format!("`{name}` has the limit {}", state.limit));
        }
        let node = self.names.intern(name.as_str());
        let here = self.names.here_mut(node);
        if here.limit().is_some() {
            return refuse(format!("`{name}` has two limits"));
        }
        here.imply_limit(Limit { number: state.limit, stored: state.stored }, &self.requests);
        self.stored_limits += usize::from(state.stored);
        Ok(())
    }

    fn restore_request(&mut self, state: RequestState) -> Result<(), SnapshotError> {
        let ticket = state.ticket;
        check_shape(&state, self.last_ticket)?;
        self.check_time(state.since)?;
        self.check_caching(&state)?;
        let (mode, subtree) = (state.mode, state.subtree);
        let (stage, slots, reason, by) = match state.phase {
            Phase::Waiting { at_most_ms } => {
                (RequestStage::Waiting { at_most_ms }, Vec::new(), Box::default(), Box::default())
            }
            Phase::Held { token, slots } => {
                (RequestStage::Held { token }, slots, Box::default(), Box::default())
            }
            Phase::Revoked { token, slots, reason, by } => {
                (RequestStage::Revoked { token }, slots, reason, by)
            }
            Phase::Closed { token, slots, ms } => {
                (RequestStage::Closed { token, ms }, slots, Box::default(), Box::default())
            }
        };
        let has_extras = !(state.value.is_empty() && state.meta.is_empty() && state.holding.is_empty())
            || matches!(stage, RequestStage::Revoked { .. });
        let keep_closed_ms = u32::try_from(state.keep_closed_ms)
            .map_err(|_| SnapshotError(format!("keep_closed of {} ms", state.keep_closed_ms)))?;
        let nodes: Few<_> = state.names.iter().map(|name| self.names.intern(name.as_str())).collect();
        let id = self.requests.insert(
            RequestEntry {
                ticket,
                owner: state.owner.map(|(session, seq)| Owner { session, seq }),
                fingerprint: state.fingerprint,
                nodes: nodes.clone(),
                slots: slots.iter().copied().collect(),
                kind: mode,
                subtree,
                keep_closed_ms,
                base_bytes: base_bytes(&state.names),
                account: AccountId::UNKNOWN,
                stage,
                caching: state.caching,
                spare_tokens: state.spare_tokens,
                since: state.since,
                extras: has_extras.then(|| {
                    let (value, meta, holding) = (state.value, state.meta, state.holding);
                    Box::new(Extras { value, meta, reason, by, holding })
                }),
            },
            &self.names,
        );
        self.restore_caching(id);
        self.closing += usize::from(keep_closed_ms > 0 || matches!(stage, RequestStage::Closed { .. }));
        match stage {
            RequestStage::Waiting { .. } => {
                self.queue(id);
                return Ok(());
            }
            RequestStage::Held { .. } => {}
            RequestStage::Revoked { token } => drop(self.revoked.insert(token, id)),
            RequestStage::Closed { token, .. } => drop(self.closed.insert(token, id)),
        }
        let shared = mode == ModeKind::Shared;
        for (index, &node) in nodes.as_slice().iter().enumerate() {
            let slot = slots.get(index).copied();
            let here = self.names.here_mut(node);
            if slot.is_some_and(|slot| here.is_taken(slot)) {
                return refuse(format!("request with ticket {} has a permit that is taken", ticket.0));
            }
            here.add_hold(id, slot, &self.requests);
            self.names.count_above(node, shared, 1);
        }
        Ok(())
    }

    fn check_caching(&self, state: &RequestState) -> Result<(), SnapshotError> {
        let is_held = matches!(state.phase, Phase::Held { .. });
        let is_waiting = matches!(state.phase, Phase::Waiting { .. });
        let fits = match state.caching {
            Caching::None => true,
            Caching::Cached | Caching::Recalled => {
                is_held && state.mode == ModeKind::Exclusive && state.spare_tokens > 0
            }
            Caching::Try => is_waiting,
        };
        let is_declaring =
            matches!(state.phase, Phase::Waiting { at_most_ms: None }) && state.mode != ModeKind::Permit;
        let is_plain = state.caching == Caching::None && state.spare_tokens == 0 && state.holding.is_empty();
        if !fits
            || (is_waiting && state.spare_tokens > 0)
            || (!is_declaring && !state.holding.is_empty())
            || (!is_plain && self.rules < limits::RULES_WITH_CACHED_HOLDS)
        {
            return refuse(format!("request with ticket {} is cached although it can't be", state.ticket.0));
        }
        Ok(())
    }

    /// Runs the steps that need all items.
    fn complete(&mut self) -> Result<(), SnapshotError> {
        let tickets = self.requests.iter().map(|(_, request)| request.ticket.0);
        if let Some(ticket) = first_twice(tickets.collect()) {
            return refuse(format!("two requests have the ticket {ticket}"));
        }
        let tokens = self.requests.iter().filter_map(|(_, request)| {
            let first = request.token()?.get();
            Some((first, first + u64::from(request.spare_tokens)))
        });
        let mut tokens: Vec<(u64, u64)> = tokens.collect();
        if let Some((_, token)) = tokens.iter().find(|&&(_, last)| last > self.last_token) {
            return refuse(format!("token {token} is above the counter {}", self.last_token));
        }
        tokens.sort();
        if let Some(twice) = tokens.windows(2).find(|pair| pair[0].1 >= pair[1].0) {
            return refuse(format!("two holds have the token {}", twice[1].0));
        }
        self.give_sessions_their_requests()?;
        for (id, node) in self.names.all() {
            let Some(crowd) = node.here.crowd() else { continue };
            let permits = crowd.holds.of(Class::Permit).len() + crowd.waiting.of(Class::Permit).len();
            match crowd.limit {
                None if permits > 0 => {
                    return refuse(format!("`{}` has permits but no limit", self.names.name(id)));
                }
                Some(Limit { stored: false, .. }) if permits == 0 => {
                    return refuse(format!("`{}` has an implied limit but no permits", self.names.name(id)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Links the requests to their sessions. Sorts the requests first, so that each session's map is built at
    /// once, with densely filled B-tree nodes.
    fn give_sessions_their_requests(&mut self) -> Result<(), SnapshotError> {
        let owned = self.requests.iter().filter_map(|(id, request)| Some((request.owner?, id)));
        let mut owned: Vec<(SessionId, Seq, RequestId)> =
            owned.map(|(owner, id)| (owner.session, owner.seq, id)).collect();
        owned.sort_unstable();
        for own in owned.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(id, ..)) = own.first() else { continue };
            let Some(mut session) = self.sessions.change(id) else {
                return refuse(format!("session {id} has requests but does not live"));
            };
            let account = session.account;
            own.iter().for_each(|&(_, _, request)| self.requests.assign(request, account));
            session.live = own.iter().map(|&(_, seq, request)| (seq, request)).collect();
            let wrong = |seq: Seq| seq > session.highest || session.kept(seq).is_some();
            if session.live.len() != own.len() || session.live.keys().any(|&seq| wrong(seq)) {
                return refuse(format!("the live requests of session {id} have wrong numbers"));
            }
        }
        Ok(())
    }
}

/// Checks that a single request is consistent.
fn check_shape(state: &RequestState, last_ticket: u64) -> Result<(), SnapshotError> {
    let ticket = state.ticket.0;
    let wrong = |what: &str| refuse(format!("request with ticket {ticket} has {what}"));
    if ticket == 0 || ticket > last_ticket {
        return wrong("a ticket above the counter");
    }
    // `is_sorted_by` with `<` rejects duplicates too.
    if state.names.is_empty() || !state.names.is_sorted_by(|a, b| a < b) {
        return wrong("no names, or not in their order");
    }
    let is_covered = |name: &name::LockName| {
        name::ancestors(name.as_str())
            .any(|above| state.names.binary_search_by(|other| other.as_str().cmp(above)).is_ok())
    };
    if state.subtree && (state.mode == ModeKind::Permit || state.names.iter().any(is_covered)) {
        return wrong("a subtree that it can't have");
    }
    let slots: &[Slot] = match &state.phase {
        Phase::Waiting { .. } => &[],
        Phase::Held { slots, .. } | Phase::Revoked { slots, .. } | Phase::Closed { slots, .. } => slots,
    };
    let is_hold = !matches!(state.phase, Phase::Waiting { .. });
    let slots_wanted = if is_hold && state.mode == ModeKind::Permit { state.names.len() } else { 0 };
    if slots.len() != slots_wanted || slots.iter().any(|&slot| slot >= limits::PERMITS_MAX) {
        return wrong("the wrong permits");
    }
    let is_closed = matches!(state.phase, Phase::Closed { .. });
    if state.owner.is_none() != is_closed {
        return wrong("the wrong owner");
    }
    if is_closed && (state.keep_closed_ms > 0 || !state.value.is_empty() || !state.meta.is_empty()) {
        return wrong("more than a closed hold keeps");
    }
    Ok(())
}

fn first_twice(mut numbers: Vec<u64>) -> Option<u64> {
    // The stable sort is fast on long sorted runs, which are usual here.
    numbers.sort();
    numbers.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
