//! Invariants of the table's state and of single commands. Tests and the simulator check them after every
//! command.
//!
//! They read snapshots with simple code that uses none of the table's indexes, so that they don't share a bug
//! with the indexes.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::Command;
use crate::name::{self, LockName};
use crate::reply::{Effect, Reply};
use crate::snapshot::{Caching, Phase, RequestState, Snapshot};
use crate::table::{Oldest, Table, Usage};
use crate::types::{ModeKind, Ticket, Token};

/// `Err` describes the violation.
pub type CheckResult = Result<(), String>;

/// Checks all invariants of the state. With a backlog, P7 and P8 are left out: then waiters that could be
/// granted may still wait, and requests of ended sessions may still exist.
///
/// # Errors
/// The first violation.
pub fn all(table: &Table) -> CheckResult {
    let snapshot = table.snapshot();
    p1_exclusion(&snapshot)?;
    p2_tokens(&snapshot)?;
    index(table)?;
    usage(table, &snapshot)?;
    loads(table, &snapshot)?;
    if table.has_backlog() {
        return Ok(());
    }
    p7_answers(&snapshot)?;
    c4_recalls(&snapshot)?;
    p8_queue(&snapshot, table.permit_waiters_passed_max())
}

/// The load of each prefix equals the number of the holds and waiters whose names begin with the prefix, and
/// its oldest hold and longest waiter are theirs.
///
/// # Errors
/// The prefixes whose numbers are wrong.
pub fn loads(table: &Table, snapshot: &Snapshot) -> CheckResult {
    for segments in [1, 2] {
        let mut expected: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        let mut oldest_expected: BTreeMap<String, Oldest> = BTreeMap::new();
        for request in &snapshot.requests {
            let column = usize::from(token(request).is_none());
            let since = Some(request.since).filter(|since| since.0 > 0);
            let oldest = match request.phase {
                Phase::Waiting { .. } => Oldest { hold: None, waiter: since },
                Phase::Held { .. } | Phase::Revoked { .. } => Oldest { hold: since, waiter: None },
                Phase::Closed { .. } => Oldest::default(),
            };
            // A waiter counts once for all of its names strictly below a prefix; a hold counts once for each
            // name.
            let mut below = BTreeSet::new();
            for name in &request.names {
                let prefix = name.as_str().split('/').take(segments).collect::<Vec<_>>().join("/");
                let older = oldest_expected.entry(prefix.clone()).or_default();
                *older = older.or(oldest);
                if column == 0 || prefix == name.as_str() || below.insert(prefix.clone()) {
                    expected.entry(prefix).or_default()[column] += 1;
                }
            }
        }
        let loads = table.loads(segments, usize::MAX);
        let found = loads.iter().map(|load| (load.prefix.to_string(), [load.holds, load.waiters]));
        let found: BTreeMap<String, [u64; 2]> = found.collect();
        if found != expected {
            return Err(format!("the loads of {segments} segments are {found:?}, there are {expected:?}"));
        }
        if let Some(load) = loads.iter().find(|load| table.load_of(&load.prefix, segments) != **load) {
            return Err(format!("{load:?} of {segments} segments is another one by its name"));
        }
        let mut oldest: BTreeMap<LockName, Oldest> =
            loads.into_iter().map(|load| (load.prefix, Oldest::default())).collect();
        let (_, next) = table.oldest_in_part(0, usize::MAX, segments, &mut oldest);
        let oldest: BTreeMap<String, Oldest> =
            oldest.into_iter().map(|(prefix, oldest)| (prefix.to_string(), oldest)).collect();
        if next.is_some() || oldest != oldest_expected {
            return Err(format!("the oldest of {segments} segments are {oldest:?}, not {oldest_expected:?}"));
        }
    }
    Ok(())
}

/// The usage of each identity equals the usage of its sessions and requests, and of its closed holds (whose
/// identities a snapshot does not contain).
///
/// # Errors
/// The identity whose numbers are wrong.
pub fn usage(table: &Table, snapshot: &Snapshot) -> CheckResult {
    let ending = snapshot.ending.iter().map(|ending| &ending.session);
    let owners: BTreeMap<_, _> =
        snapshot.sessions.iter().chain(ending).map(|session| (session.id, &*session.identity)).collect();
    let mut expected: BTreeMap<&str, Usage> = owners.values().map(|it| (*it, Usage::default())).collect();
    let mut count = |identity: &str, more: Usage| {
        if let Some(sum) = expected.get_mut(identity) {
            *sum = sum.plus(more);
        }
    };
    for session in &snapshot.sessions {
        count(&session.identity, Usage { sessions: 1, ..Usage::default() });
    }
    let mut closed = Usage::default();
    for request in &snapshot.requests {
        let waiters = u64::from(token(request).is_none());
        let usage = Usage { requests: 1, waiters, names: request.names.len() as u64, ..Usage::default() };
        match request.owner.and_then(|(session, _)| owners.get(&session)) {
            Some(identity) => count(identity, usage),
            None => closed = closed.plus(usage),
        }
    }
    let without_bytes = |usage: Usage| Usage { bytes: 0, ..usage };
    let (mut all, mut closed_of_known) = (Usage::default(), Usage::default());
    for (identity, counted) in table.usages() {
        let owned = expected.remove(identity).unwrap_or_default();
        let more = without_bytes(counted.minus(owned));
        if owned.plus(more) != without_bytes(counted) || more.sessions > 0 || more.waiters > 0 {
            return Err(format!(
                "the table counts {counted:?} for {identity:?}, there are {owned:?} in its sessions"
            ));
        }
        (all, closed_of_known) = (all.plus(counted), closed_of_known.plus(more));
    }
    if let Some((identity, owned)) = expected.first_key_value() {
        return Err(format!("the table counts nothing for {identity:?}, there are {owned:?}"));
    }
    let in_all = table.usage_in_all();
    let closed_of_unknown = in_all.minus(all);
    let is_all = all.plus(closed_of_unknown) == in_all
        && closed_of_known.plus(without_bytes(closed_of_unknown)) == closed
        && (closed_of_unknown.requests > 0 || closed_of_unknown.bytes == 0);
    if !is_all {
        return Err(format!(
            "all together are counted as {in_all:?}, the sum is {all:?}, with {closed_of_known:?} of {closed:?} closed holds"
        ));
    }
    Ok(())
}

/// P1: holds of one lock never conflict, closed and revoked holds included; permits have distinct slots.
///
/// # Errors
/// The two conflicting holds, or the slot held twice.
pub fn p1_exclusion(snapshot: &Snapshot) -> CheckResult {
    let holds: Vec<&RequestState> = snapshot.requests.iter().filter(|r| token(r).is_some()).collect();
    for (index, a) in holds.iter().enumerate() {
        for b in &holds[index + 1..] {
            if conflict(a, b) {
                return Err(format!("P1: {a:?} and {b:?} conflict"));
            }
        }
    }
    let mut slots = BTreeSet::new();
    for hold in holds {
        for (name, slot) in hold.names.iter().zip(slots_of(hold)) {
            if !slots.insert((name, slot)) {
                return Err(format!("P1: slot {slot} of {name} is held twice"));
            }
        }
    }
    Ok(())
}

/// P2: tokens are distinct and not above the counter, with the spare tokens of cached holds (C2).
///
/// # Errors
/// The offending token.
pub fn p2_tokens(snapshot: &Snapshot) -> CheckResult {
    let mut blocks: Vec<(u64, u64)> = snapshot.requests.iter().filter_map(tokens_of).collect();
    blocks.sort_unstable();
    let above = blocks.iter().any(|&(_, last)| last > snapshot.last_token);
    if above || blocks.windows(2).any(|pair| pair[0].1 >= pair[1].0) {
        return Err(format!("P2: of {blocks:?} some are above {} or held twice", snapshot.last_token));
    }
    Ok(())
}

/// P7: a live request belongs to a live session, its seq was seen, no other request of the session has it,
/// and no answer is kept under it. The seq of a kept answer was seen, and the client has not confirmed the
/// answer. `done_through` is not above the highest seq seen.
///
/// # Errors
/// The offending session and seq.
pub fn p7_answers(snapshot: &Snapshot) -> CheckResult {
    let mut live = BTreeSet::new();
    for request in &snapshot.requests {
        let Some((session, seq)) = request.owner else { continue };
        let Some(state) = snapshot.sessions.iter().find(|state| state.id == session) else {
            return Err(format!("P7: {session} is not live but has request {seq}"));
        };
        if seq > state.highest || !live.insert((session, seq)) {
            return Err(format!("P7: {session}/{seq} is above the highest seq or lives twice"));
        }
    }
    for session in &snapshot.sessions {
        if session.done_through > session.highest {
            return Err(format!("P7: done_through of {} is above its highest seq", session.id));
        }
        for kept in &session.kept {
            let wanted = kept.until.is_none_or(|until| until > session.done_through);
            if kept.seq > session.highest || !wanted || live.contains(&(session.id, kept.seq)) {
                return Err(format!("P7: {} keeps an answer it should not: {kept:?}", session.id));
            }
        }
    }
    Ok(())
}

/// C4, C6: every cached hold in the way of a waiter is recalled, except those below a subtree while something
/// else is in the way; and a request that is put off has the limit for that.
///
/// # Errors
/// The waiter, and the hold that is not recalled.
pub fn c4_recalls(snapshot: &Snapshot) -> CheckResult {
    for waiter in snapshot.requests.iter().filter(|request| token(request).is_none()) {
        let in_way = || snapshot.requests.iter().filter(|other| conflict(other, waiter));
        let is_blocked_by_others =
            || in_way().any(|other| !other.caching.is_held() && other.ticket < waiter.ticket);
        let cached = |hold: &&RequestState| {
            hold.caching == Caching::Cached && (covers(hold, waiter) || !is_blocked_by_others())
        };
        if let Some(hold) = in_way().find(cached) {
            return Err(format!("C4: {waiter:?} waits for {hold:?}, which is not recalled"));
        }
        let limit = Some(crate::limits::TRY_WAIT_MS);
        if waiter.caching == Caching::Try
            && !matches!(waiter.phase, Phase::Waiting { at_most_ms } if at_most_ms == limit)
        {
            return Err(format!("C6: {waiter:?} was put off without its limit"));
        }
    }
    Ok(())
}

/// P8: no waiter could be granted now (unless the tokens have run out), and no hold has a later ticket than a
/// waiter that conflicts with it. A waiter for permits waits while more than `permit_waiters_passed_max` are
/// before it (M2).
///
/// # Errors
/// The offending waiter.
pub fn p8_queue(snapshot: &Snapshot, permit_waiters_passed_max: usize) -> CheckResult {
    let (waiters, holds): (Vec<&RequestState>, Vec<&RequestState>) =
        snapshot.requests.iter().partition(|request| token(request).is_none());
    let limits: BTreeMap<&str, usize> =
        snapshot.limits.iter().map(|limit| (limit.name.as_str(), limit.limit as usize)).collect();
    for waiter in &waiters {
        let earlier = |other: &&&RequestState| other.ticket < waiter.ticket;
        if let Some(hold) = holds.iter().find(|hold| conflict(hold, waiter) && hold.ticket > waiter.ticket) {
            return Err(format!("P8: {hold:?} overtook {waiter:?}"));
        }
        let blocked = holds.iter().any(|hold| conflict(hold, waiter))
            || waiters.iter().filter(earlier).any(|other| conflict(other, waiter))
            || (waiter.mode == ModeKind::Permit
                && waiter.names.iter().any(|name| {
                    let permits = |r: &&&RequestState| r.mode == ModeKind::Permit && r.names.contains(name);
                    let held = holds.iter().filter(permits).count();
                    let ahead = waiters.iter().filter(earlier).filter(permits).count();
                    ahead > permit_waiters_passed_max
                        || held + ahead + 1 > limits.get(name.as_str()).copied().unwrap_or(0)
                }));
        if !blocked && snapshot.last_token < crate::limits::TOKEN_MAX {
            return Err(format!("P8: {waiter:?} waits for nothing"));
        }
    }
    Ok(())
}

/// The table's derived counters and indexes equal those of a table restored from its snapshot. The snapshot
/// is unchanged by encoding and decoding, and by restoring.
///
/// # Errors
/// The difference.
pub fn index(table: &Table) -> CheckResult {
    let snapshot = table.snapshot();
    let decoded = Snapshot::decode(&snapshot.encode()).map_err(|e| e.to_string())?;
    if decoded != snapshot {
        return Err(format!("index: {snapshot:?} became {decoded:?} through its bytes"));
    }
    let again = Table::restore(&snapshot, 1).map_err(|e| e.to_string())?;
    if again.snapshot() != snapshot {
        return Err(format!("index: {snapshot:?} became {:?} through restore", again.snapshot()));
    }
    let (here, there) = (table.counters(), again.counters());
    if here == there { Ok(()) } else { Err(format!("index: {here:?}, counted anew {there:?}")) }
}

/// P2, P4, S3 and E1 for one command: counters never fall, a hold keeps its token, new holds have new tokens
/// in the order of their tickets, and a hold ends only by its release, the end of its session, or a break; a
/// closed hold also by `EndDelay`. A hold of an expired session stays closed for the lock-delay. An ended
/// session gets no `Ended` or `Revoked`.
///
/// # Errors
/// The offending hold or counter.
pub fn step(
    before: &Snapshot,
    command: &Command,
    reply: &Reply,
    effects: &[Effect],
    after: &Snapshot,
) -> CheckResult {
    let counters = |s: &Snapshot| [s.last_token, s.last_ticket, s.last_session, u64::from(s.rules)];
    if counters(before).iter().zip(counters(after)).any(|(&before, after)| after < before) {
        return Err(format!("P2: a counter fell at {command:?}"));
    }
    let held = |s: &Snapshot| -> BTreeMap<Ticket, (u64, u64)> {
        s.requests.iter().filter_map(|r| Some((r.ticket, tokens_of(r)?))).collect()
    };
    let (old, new) = (held(before), held(after));
    for effect in effects {
        if let Effect::Ended { session, .. } | Effect::Revoked { session, .. } = effect
            && after.sessions.iter().all(|live| live.id != *session)
        {
            return Err(format!("E1: {effect:?} tells a session that has ended, at {command:?}"));
        }
    }
    let mut last = before.last_token;
    for (ticket, tokens) in &new {
        match old.get(ticket) {
            Some(same) if same == tokens => {}
            Some(other) => return Err(format!("P2: tokens {other:?} became {tokens:?} at {command:?}")),
            None if tokens.0 > last => last = tokens.1,
            None => return Err(format!("P2: {tokens:?} were granted after token {last} at {command:?}")),
        }
    }
    for request in after.requests.iter().filter(|request| request.caching.is_held()) {
        let before = before.requests.iter().find(|before| before.ticket == request.ticket);
        let was_less = |before: &RequestState| !before.caching.is_held() || before.caching > request.caching;
        if before.is_some_and(was_less) {
            return Err(format!("C4: {request:?} is cached again after {command:?}"));
        }
    }
    for request in &before.requests {
        let Some(token) = token(request) else { continue };
        let later = after.requests.iter().find(|later| later.ticket == request.ticket);
        let ended = later.is_none_or(|later| later.owner != request.owner);
        let is_of_ended =
            request.owner.is_some_and(|(owner, _)| before.sessions.iter().all(|it| it.id != owner));
        // A command that ends a session also continues the backlog of sessions that ended before, as `Resume`
        // does.
        let as_backlog = is_of_ended
            && matches!(
                command,
                Command::Resume | Command::CloseSession { .. } | Command::ExpireSession { .. }
            );
        let delay_ms = before
            .ending
            .iter()
            .find(|ending| request.owner.is_some_and(|(owner, _)| owner == ending.session.id))
            .map_or(0, |ending| ending.delay_ms);
        let at_once = matches!(command, Command::Break(order) if order.now);
        let is_closed =
            later.is_some_and(|later| matches!(later.phase, Phase::Closed { ms, .. } if ms >= delay_ms));
        if ended && delay_ms > 0 && !at_once && !is_closed {
            return Err(format!(
                "S3: {request:?} of an expired session does not stay closed after {command:?}"
            ));
        }
        if ended && !as_backlog && !may_end(request, token, command) {
            return Err(format!("P4: {request:?} was ended by {command:?} ({reply:?}, {effects:?})"));
        }
    }
    Ok(())
}

fn may_end(hold: &RequestState, token: Token, command: &Command) -> bool {
    let closed = matches!(hold.phase, Phase::Closed { .. });
    match command {
        Command::EndDelay { token: named } => closed && *named == token,
        Command::Break(order) => {
            let tokens = token.get()..=token.get() + u64::from(hold.spare_tokens);
            order.now && tokens.contains(&order.token.get())
        }
        Command::EndRevoked { token: named } => {
            matches!(hold.phase, Phase::Revoked { .. }) && *named == token
        }
        Command::Finish { session, target, .. } => hold.owner == Some((*session, *target)),
        Command::CloseSession { session } | Command::ExpireSession { session } => {
            hold.owner.is_some_and(|(owner, _)| owner == *session)
        }
        Command::OpenSession(_)
        | Command::TimeOut { .. }
        | Command::Acquire(_)
        | Command::SetValue { .. }
        | Command::Downgrade { .. }
        | Command::Settle { .. }
        | Command::SetLimit { .. }
        | Command::RaiseTokens { .. }
        | Command::RaiseRules { .. }
        | Command::SetClock { .. }
        | Command::Resume => false,
    }
}

fn token(request: &RequestState) -> Option<Token> {
    match request.phase {
        Phase::Waiting { .. } => None,
        Phase::Held { token, .. } | Phase::Revoked { token, .. } | Phase::Closed { token, .. } => Some(token),
    }
}

/// The first and the last token of a hold.
fn tokens_of(request: &RequestState) -> Option<(u64, u64)> {
    let first = token(request)?.get();
    Some((first, first + u64::from(request.spare_tokens)))
}

fn slots_of(request: &RequestState) -> &[u32] {
    match &request.phase {
        Phase::Waiting { .. } => &[],
        Phase::Held { slots, .. } | Phase::Revoked { slots, .. } | Phase::Closed { slots, .. } => slots,
    }
}

/// N2: the requests overlap, and they are neither both shared nor both permits.
fn conflict(a: &RequestState, b: &RequestState) -> bool {
    (covers(a, b) || covers(b, a)) && !(a.mode == b.mode && a.mode != ModeKind::Exclusive)
}

/// Whether a name of `b` is one of `a`, or below one of its subtree.
fn covers(a: &RequestState, b: &RequestState) -> bool {
    let covered = |name: &str| {
        a.names.iter().any(|own| {
            own.as_str() == name || (a.subtree && name::ancestors(name).any(|above| above == own.as_str()))
        })
    };
    b.names.iter().any(|name| covered(name.as_str()))
}
