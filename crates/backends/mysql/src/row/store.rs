//! Stores each request ([`Entry`]: one session's hold or wait on one lock) as a row with an expiry time.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::leased::{Attempt, Entry, EntryId, Renewed, Store, Tried};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, Busy, CallError, random_bytes};
use lockkeeper_core::{End, Rejection, limits};
use mysql_async::Value;

use super::sql::{self, Blocked};
use crate::answer::{NO_TABLE, StatementFailure, explained};
use crate::lane::{CallLane, Done, LaneCall, column, marks};

/// Maximum entries renewed by one statement. Their rows stay locked until it commits.
const RENEWED_AT_ONCE: usize = 512;
/// Margin added to the remaining time that the server reports, so that the hold has expired at the next try.
const AFTER: Duration = Duration::from_millis(3);
/// Mean polling interval of the first waiter. Each waiter ahead adds as much, up to `POLL_MOST`.
const POLL: Duration = Duration::from_millis(40);
const POLL_MOST: Duration = Duration::from_secs(1);
/// How long the mark of a finished request is kept at least, in ms.
const GONE_MS: i64 = 60_000;

/// Lease rows of one database.
pub(super) struct RowStore {
    pub(super) calls: CallLane,
    /// Renewals don't queue behind other calls.
    pub(super) renewals: CallLane,
    /// Time limit for inspect, list, token check, break and findings.
    pub(super) limit: Duration,
}

impl RowStore {
    async fn try_to_hold(&self, attempt: &Attempt) -> Result<Tried, StatementFailure> {
        if attempt.meta.len() > limits::META_BYTES_MAX {
            return Ok(Tried::Refused(Rejection::MetaTooLong { bytes: attempt.meta.len() }.into()));
        }
        let entry = &attempt.entry;
        let (name, id) = (entry.name.as_str(), entry.id.0.as_str());
        let (ttl, closes) = (us(entry.ttl), us(entry.ttl.saturating_add(entry.closed_after_expiry())));
        let mut call = self.calls.call(entry.limit()).await?;
        // Once a statement was answered, a failure of a later one leaves in doubt what an attempt that
        // arrives late may do between the two.
        let mut sent = false;
        let mut contended = !attempt.first;
        loop {
            let mut params: Vec<Value> = vec![
                id.into(),
                ttl.into(),
                closes.into(),
                attempt.label.as_bytes().to_vec().into(),
                attempt.meta.to_vec().into(),
            ];
            let statement = if contended {
                params.extend([id.into(), name.into(), id.into(), id.into()]);
                sql::ACQUIRE_CONTENDED
            } else {
                params.push(name.into());
                sql::ACQUIRE
            };
            let done = run(&mut call, "acquire", statement, params).await;
            let done = done.map_err(|failure| if sent { failure.in_doubt() } else { failure })?;
            sent = true;
            if done.matched > 0 {
                return granted(&mut call, attempt, done.last_id.cast_signed()).await;
            }
            let params: Vec<Value> = vec![id.into(), id.into(), id.into(), id.into(), name.into()];
            let found =
                run(&mut call, "acquire", sql::BLOCKED, params).await.map_err(StatementFailure::in_doubt)?;
            let Some(row) = found.rows.first() else {
                run(&mut call, "acquire", sql::CREATE, vec![name.into()])
                    .await
                    .map_err(StatementFailure::in_doubt)?;
                continue;
            };
            let blocked = Blocked::of(row).map_err(StatementFailure::Refused)?;
            if blocked.held && blocked.id == id.as_bytes() {
                // A repeat is told what was granted first (P7).
                return granted(&mut call, attempt, blocked.token).await;
            }
            if blocked.left.is_none() && blocked.contended && !contended {
                contended = true;
                continue;
            }
            return self.blocked(&mut call, attempt, blocked).await;
        }
    }

    /// Waits in the queue, or says who is in the way.
    async fn blocked(
        &self,
        call: &mut LaneCall<'_>,
        attempt: &Attempt,
        blocked: Blocked,
    ) -> Result<Tried, StatementFailure> {
        let entry = &attempt.entry;
        let Blocked { ahead, left, ahead_left, contended, .. } = blocked;
        if blocked.is_gone || !attempt.wait {
            let holder = blocked.held.then_some(blocked.label);
            return Ok(Tried::Busy(Busy { holder, queued_ahead: ahead }));
        }
        if !blocked.waits {
            if ahead >= limits::WAITERS_PER_NAME_MAX as u64 {
                return Ok(Tried::Refused(Rejection::TooManyWaiters { name: entry.name.clone() }.into()));
            }
            let (id, ttl) = (entry.id.0.as_str(), us(entry.ttl));
            let params: Vec<Value> = vec![
                entry.name.as_str().into(),
                id.into(),
                ttl.into(),
                attempt.label.as_bytes().to_vec().into(),
                attempt.meta.to_vec().into(),
                id.into(),
                ttl.into(),
            ];
            run(call, "wait", sql::WAIT, params).await.map_err(StatementFailure::in_doubt)?;
        }
        if !contended {
            let params = vec![entry.name.as_str().into()];
            run(call, "wait", sql::CONTENDED, params).await.map_err(StatementFailure::in_doubt)?;
        }
        Ok(Tried::Waits { ahead, again: again(entry.ttl, ahead, left.or(ahead_left)) })
    }

    async fn renew_all(&self, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, StatementFailure> {
        let mut renewed = Vec::with_capacity(entries.len());
        for entries in entries.chunks(RENEWED_AT_ONCE) {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let mut call = self.renewals.call(limit).await?;
            renewed.extend(renew(&mut call, entries).await?);
        }
        Ok(renewed)
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, StatementFailure> {
        let (name, id) = (entry.name.as_str(), entry.id.0.as_str());
        let keep = us(entry.keep_closed);
        let mut call = self.calls.call(entry.limit()).await?;
        let mut sent = false;
        if doubt {
            let kept = (2 * us(entry.ttl)).max(GONE_MS * 1000);
            let params = vec![id.into(), name.into(), kept.into(), kept.into()];
            run(&mut call, "finish", sql::MARK_GONE, params).await?;
            sent = true;
            // An attempt that arrives before this is released below.
            let flagged = run(&mut call, "finish", sql::CONTENDED, vec![name.into()]).await;
            flagged.map_err(StatementFailure::in_doubt)?;
        }
        let params: Vec<Value> = vec![keep.into(), keep.into(), name.into(), id.into()];
        let done = run(&mut call, "release", sql::RELEASE, params).await;
        let done = done.map_err(|failure| if sent { failure.in_doubt() } else { failure })?;
        let released = match (done.matched > 0, done.last_id) {
            (false, _) => None,
            (true, 2) => Some(End::Broken),
            (true, _) => Some(End::Released),
        };
        if let (Some(end), false) = (released, doubt) {
            return Ok(end);
        }
        let left = run(&mut call, "leave the queue", sql::LEAVE, vec![id.into()]).await;
        let left = left.map_err(StatementFailure::in_doubt)?.matched > 0;
        match released {
            Some(end) => Ok(end),
            None if left => Ok(End::Left),
            None => {
                let params = vec![name.into(), id.into()];
                let ended =
                    run(&mut call, "finish", sql::ENDED, params).await.map_err(StatementFailure::in_doubt)?;
                let ended = ended.rows.first().map(|row| column::<i64>(row, 0)).transpose();
                // A repeat is told how it ended (P7).
                Ok(match ended.map_err(StatementFailure::Refused)? {
                    Some(1) => End::Released,
                    Some(2) => End::Broken,
                    _ => End::Gone,
                })
            }
        }
    }

    /// Runs a read or a break.
    pub(super) async fn ask(&self, doing: &str, sql: &str, params: Vec<Value>) -> Result<Done, BackendError> {
        let answer = self.calls.ask(self.limit, doing, sql, params).await;
        with_remedy(answer).map_err(|failure| explained(failure, doing))
    }
}

/// Runs a statement.
pub(super) async fn run(
    call: &mut LaneCall<'_>,
    doing: &str,
    sql: &str,
    params: Vec<Value>,
) -> Result<Done, StatementFailure> {
    with_remedy(call.run(doing, sql, params).await)
}

/// If the tables are missing, the error says how to make them.
fn with_remedy(answer: Result<Done, StatementFailure>) -> Result<Done, StatementFailure> {
    match answer {
        Err(StatementFailure::Refused(error)) if error.message.contains(&format!("(error {NO_TABLE})")) => {
            let what = format!(
                "{error}: connect anew, which makes the tables, or make them by\n{}",
                super::SCHEMA_SQL
            );
            Err(StatementFailure::Refused(BackendError::new(BackendErrorKind::Operator, what)))
        }
        answer => answer,
    }
}

/// A grant: its request leaves the queue, so that nobody waits behind it once it is released.
async fn granted(call: &mut LaneCall<'_>, attempt: &Attempt, token: i64) -> Result<Tried, StatementFailure> {
    if !attempt.first {
        let leave = vec![attempt.entry.id.0.as_str().into()];
        run(call, "leave the queue", sql::LEAVE, leave).await.map_err(StatementFailure::in_doubt)?;
    }
    Ok(match sql::token(token) {
        Some(token) => Tried::granted(token, None),
        None => Tried::Refused(Rejection::TokensExhausted.into()),
    })
}

/// Renews entries of one session, which have one ttl.
async fn renew(call: &mut LaneCall<'_>, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, StatementFailure> {
    let ttl = us(entries.first().map_or(Duration::ZERO, |entry| entry.ttl));
    // The statement for each power of two is prepared once.
    let count = entries.len().next_power_of_two();
    let padded = || entries.iter().chain(std::iter::repeat(&entries[entries.len() - 1])).take(count);
    let names = || padded().map(|entry| Value::from(entry.name.as_str()));
    let ids = || padded().map(|entry| Value::from(entry.id.0.as_str()));
    let list = marks(count);
    // Assigned from left to right: the first assignment reads the old `held_until`.
    let holds = format!(
        "UPDATE lockkeeper_lease SET shut_until = UTC_TIMESTAMP(6) \
         + INTERVAL (? + TIMESTAMPDIFF(MICROSECOND, held_until, shut_until)) MICROSECOND, \
         held_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
         WHERE name IN ({list}) AND id IN ({list}) AND held_until > UTC_TIMESTAMP(6) AND revoked = 0"
    );
    let times = || [Value::from(ttl), Value::from(ttl)].into_iter();
    let done = run(call, "renew", &holds, times().chain(names()).chain(ids()).collect()).await?;
    if done.matched == entries.len() as u64 {
        return Ok(vec![Renewed::Kept; entries.len()]);
    }
    let waiting = format!(
        "UPDATE lockkeeper_waiter SET expires = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
         WHERE id IN ({list}) AND expires > UTC_TIMESTAMP(6)"
    );
    let params = std::iter::once(Value::from(ttl)).chain(ids()).collect();
    let waiting = run(call, "renew", &waiting, params).await.map_err(StatementFailure::in_doubt)?;
    if waiting.matched == entries.len() as u64 {
        return Ok(vec![Renewed::Kept; entries.len()]);
    }
    // An entry that neither statement has matched is gone or broken, or was granted in between. The numbers
    // alone don't tell: the row of a waiter that was granted may still be there.
    let held = format!(
        "SELECT id, revoked FROM lockkeeper_lease WHERE name IN ({list}) AND id IN ({list}) \
         AND held_until > UTC_TIMESTAMP(6) FOR UPDATE"
    );
    let held = run(call, "renew", &held, names().chain(ids()).collect())
        .await
        .map_err(StatementFailure::in_doubt)?;
    let waits = format!(
        "SELECT id, 0 FROM lockkeeper_waiter WHERE id IN ({list}) AND expires > UTC_TIMESTAMP(6) FOR UPDATE"
    );
    let waits = run(call, "renew", &waits, ids().collect()).await.map_err(StatementFailure::in_doubt)?;
    let mut states = Vec::new();
    for row in held.rows.iter().chain(&waits.rows) {
        let (id, revoked): (Vec<u8>, bool) = (
            column(row, 0).map_err(StatementFailure::Refused)?,
            column(row, 1).map_err(StatementFailure::Refused)?,
        );
        states.push((id, revoked));
    }
    let state = |id: &EntryId| match states.iter().find(|(of, _)| of == id.0.as_bytes()) {
        Some((_, true)) => Renewed::Revoked,
        Some((_, false)) => Renewed::Kept,
        None => Renewed::Gone,
    };
    Ok(entries.iter().map(|entry| state(&entry.id)).collect())
}

impl Store for RowStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_to_hold(&attempt).await.or_else(StatementFailure::of_attempt) })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move { self.renew_all(&entries).await.map_err(StatementFailure::of_repeated) })
    }

    fn trouble(&self) -> Option<String> {
        self.renewals.trouble().or_else(|| self.calls.trouble()).map(|error| error.to_string())
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry, doubt).await.map_err(StatementFailure::of_repeated) })
    }
}

/// How long a waiter sleeps until it tries again. `ahead` waiters are before it, and what blocks it (a hold,
/// or a waiter ahead) lasts at most for `left`. Nothing wakes it, so the pauses are short for the first
/// waiters, and longer for the later ones: the load for each waiter falls as their number grows.
pub(super) fn again(ttl: Duration, ahead: u64, left: Option<Duration>) -> Duration {
    let turn = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
    let pause = POLL.saturating_mul(turn).min(POLL_MOST);
    let at_most = (pause / 2 + part_of(pause)).min(ttl / 3);
    let spread = part_of(if ahead == 0 { AFTER } else { POLL });
    left.map_or(at_most, |left| (left + AFTER + spread).min(at_most))
}

/// A random fraction of `whole`, so that clients don't poll at the same times.
fn part_of(whole: Duration) -> Duration {
    let random = random_bytes::<8>().map_or(0, u64::from_le_bytes);
    whole.mul_f64((random >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Microseconds.
pub(super) fn us(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}
