//! Stores each request ([`Entry`]: one session's hold or wait on one lock) as a row with an expiry time. Each
//! call is one SQL statement (a renewal: one per [`RENEWED_AT_ONCE`] entries); this module interprets its
//! result.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::leased::{Attempt, Entry, Renewed, Store, Tried};
use lockkeeper_backend::{BackendError, BackendErrorKind, BoxFuture, Busy, CallError, Granted};
use lockkeeper_core::{End, Mode, PermitGrant, Rejection, limits};
use tokio::sync::watch;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::calls::{self, ACQUIRE, Acquired, FINISH, RENEW, Statement, acquired, finished};
use super::database::{Database, Params, RowFailure};
use super::listen::{Hearing, Listening};
use super::random;
use crate::answer::{NoAnswer, kind_of};

/// Maximum entries renewed by one statement. Their rows stay locked until it commits.
const RENEWED_AT_ONCE: usize = 1000;

/// Margin added to the remaining time that the database reports, so that the hold has expired at the next
/// try.
const AFTER: Duration = Duration::from_millis(3);
/// Longest pause of the first waiter between two tries even if notifications work: a notification may be
/// lost.
const HEAD_POLL: Duration = Duration::from_secs(1);
/// Mean polling interval of the first waiter without notifications. Each waiter ahead adds as much, up to
/// `POLL_MOST`.
const POLL: Duration = Duration::from_millis(100);
const POLL_MOST: Duration = Duration::from_secs(2);

/// Lease rows of one database.
pub(super) struct RowStore {
    pub(super) database: Arc<Database>,
    /// Id of this client's notification channel, `lockkeeper_ID`.
    pub(super) wake: String,
    /// The listener task stops when this is dropped.
    pub(super) listening: watch::Receiver<Listening>,
    /// Time limit for inspect, list, token check, break, findings, and the check at the start.
    pub(super) limit: Duration,
    /// The command that makes the schema, for errors.
    pub(super) init: String,
}

impl RowStore {
    async fn try_to_hold(&self, attempt: &Attempt) -> Result<Tried, CallError> {
        if let Some(rejection) = rejected(attempt) {
            return Ok(Tried::Refused(rejection.into()));
        }
        let entry = &attempt.entry;
        let (permit, of) = calls::mode(entry.mode);
        let (ttl, closes) = (ms(entry.ttl), ms(entry.closed_after_expiry()));
        let (label, meta): (_, &[u8]) = (text(&attempt.label), &attempt.meta);
        let hearing = self.listening.borrow().hearing;
        // The channel's id is stored unless notifications are known to fail: if they are confirmed later, the
        // holder can still be notified of a break.
        let wake = (hearing != Hearing::Deaf).then_some(self.wake.as_str());
        let (name, id, wait) = (entry.name.as_str(), &entry.id.0, attempt.wait);
        let params: Params<'_> = &[&name, id, &permit, &of, &ttl, &closes, &wait, &label, &meta, &wake];
        match self.database.call(entry.limit(), &ACQUIRE, params).await {
            Ok(rows) => Ok(match acquired(&rows) {
                Ok(acquired) => tried(entry, acquired, hearing == Hearing::Hears),
                Err(error) => Tried::Refused(error),
            }),
            Err(RowFailure::NoAnswer(NoAnswer::Refused(error))) if !passes(error.code()) => {
                let failure = RowFailure::NoAnswer(NoAnswer::Refused(error));
                Ok(Tried::Refused(self.explained(failure, "lock")))
            }
            Err(failure) => Err(self.unanswered(failure, "acquire")),
        }
    }

    async fn renew_all(&self, entries: &[Arc<Entry>]) -> Result<Vec<Renewed>, CallError> {
        let mut renewed = Vec::with_capacity(entries.len());
        for entries in entries.chunks(RENEWED_AT_ONCE) {
            let limit = entries.iter().map(|entry| entry.limit()).min().unwrap_or_default();
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let ids: Vec<&str> = entries.iter().map(|entry| entry.id.0.as_str()).collect();
            let ttls: Vec<i64> = entries.iter().map(|entry| ms(entry.ttl)).collect();
            // Renewals use the listening connection, so that they don't queue behind other calls. Without a
            // listening connection they use the pool: a late renewal is better than none.
            let own = self.listening.borrow().connection.clone();
            let answered = self.database.call_on(own.as_deref(), limit, &RENEW, &[&names, &ids, &ttls]).await;
            let rows = answered.map_err(|failure| self.unanswered(failure, "renew"))?;
            let letters: String =
                calls::column(rows.first(), 0).map_err(|error| unreadable(&error, "renew"))?;
            renewed.extend(letters.chars().map(|letter| match letter {
                'k' => Renewed::Kept,
                'r' => Renewed::Revoked,
                _ => Renewed::Gone,
            }));
        }
        Ok(renewed)
    }

    async fn end(&self, entry: &Entry, doubt: bool) -> Result<End, CallError> {
        let (keep, ttl) = (ms(entry.keep_closed), ms(entry.ttl));
        let params: Params<'_> = &[&entry.name.as_str(), &entry.id.0, &keep, &ttl, &doubt];
        let answered = self.database.call(entry.limit(), &FINISH, params).await;
        let rows = answered.map_err(|failure| self.unanswered(failure, "finish"))?;
        finished(&rows).map_err(|error| unreadable(&error, "finish"))
    }

    /// Runs a read or a break once, without retry: its result is useless after the limit.
    pub(super) async fn ask(
        &self,
        statement: &Statement,
        params: Params<'_>,
        doing: &str,
    ) -> Result<Vec<Row>, BackendError> {
        let answered = self.database.call(self.limit, statement, params).await;
        answered.map_err(|failure| self.explained(failure, doing))
    }

    /// The error of a call that is repeated.
    fn unanswered(&self, failure: RowFailure, doing: &str) -> CallError {
        tracing::debug!(?failure, doing, "postgres: a call has no answer");
        let sent = failure.may_have_arrived();
        let is_silent = matches!(failure, RowFailure::NoAnswer(NoAnswer::Silent(_)));
        match is_silent {
            true => CallError::new(sent),
            false => CallError { sent, ..CallError::refused(self.explained(failure, doing)) },
        }
    }

    /// The error as shown to users; `doing` is the operation, as in "list locks".
    pub(super) fn explained(&self, failure: RowFailure, doing: &str) -> BackendError {
        let missing =
            [SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_TABLE];
        if !failure.code().is_some_and(|code| missing.contains(code)) {
            return failure.explained(doing);
        }
        let what = format!(
            "the database has no schema for lease rows: let someone who may create a schema run `{}`, or what \
             `lockkeeper postgres init --print` shows",
            self.init
        );
        BackendError::new(BackendErrorKind::Operator, what)
    }
}

impl Store for RowStore {
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>> {
        Box::pin(async move { self.try_to_hold(&attempt).await })
    }

    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>> {
        Box::pin(async move { self.renew_all(&entries).await })
    }

    fn trouble(&self) -> Option<String> {
        self.database.trouble().map(|error| error.to_string())
    }

    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>> {
        Box::pin(async move { self.end(&entry, doubt).await })
    }
}

/// Limits that are checked without the database.
fn rejected(attempt: &Attempt) -> Option<Rejection> {
    if attempt.meta.len() > limits::META_BYTES_MAX {
        return Some(Rejection::MetaTooLong { bytes: attempt.meta.len() });
    }
    match attempt.entry.mode {
        Mode::Permit { of: Some(of) } if !(1..=limits::PERMITS_MAX).contains(&of) => {
            Some(Rejection::PermitCount { of })
        }
        _ => None,
    }
}

fn tried(entry: &Entry, acquired: Acquired, hears: bool) -> Tried {
    let count = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let name = || entry.name.clone();
    match (acquired.outcome.as_str(), entry.mode) {
        ("granted", mode) => {
            let permit = PermitGrant { slot: count(acquired.slot), limit: count(acquired.permits) };
            let permits = if matches!(mode, Mode::Permit { .. }) { vec![permit] } else { Vec::new() };
            match acquired.token.and_then(calls::token) {
                Some(token) => Tried::Granted(Granted { token: Some(token), permits, spare_tokens: 0 }),
                None => Tried::Refused(Rejection::TokensExhausted.into()),
            }
        }
        ("waits", _) => {
            let again = again(entry.ttl, acquired.ahead, acquired.left, hears);
            Tried::Waits { ahead: acquired.ahead, again }
        }
        ("mismatch", Mode::Permit { of: Some(asked) }) => Tried::Refused(
            Rejection::LimitMismatch { name: name(), have: count(acquired.permits), asked }.into(),
        ),
        ("no-limit", _) => Tried::Refused(Rejection::NoLimit { name: name() }.into()),
        ("full", _) => Tried::Refused(Rejection::TooManyWaiters { name: name() }.into()),
        // `busy`; or `over`: the request was finished before this attempt, and its answer is discarded.
        _ => Tried::Busy(Busy { holder: acquired.holder, queued_ahead: acquired.ahead }),
    }
}

/// How long a waiter sleeps at most before it tries again. `ahead` waiters are before it, and what blocks it
/// (a hold, or a waiter ahead) lasts at most for `left`.
///
/// A waiter tries when `left` is over, or after a longest pause if that is earlier. With notifications the
/// longest pause is [`HEAD_POLL`] for the first waiter and a third of the ttl for the others. Without
/// notifications it is at most a third of the ttl, short for the first waiters and longer for the later ones,
/// so that the load per waiter falls as their number grows.
fn again(ttl: Duration, ahead: u64, left: Option<Duration>, hears: bool) -> Duration {
    let at_most = if hears && ahead == 0 {
        HEAD_POLL
    } else if hears {
        ttl / 3
    } else {
        let turn = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
        let pause = POLL.saturating_mul(turn).min(POLL_MOST);
        (pause / 2 + part_of(pause)).min(ttl / 3)
    };
    let spread = part_of(if ahead == 0 { AFTER } else { POLL });
    left.map_or(at_most, |left| (left + AFTER + spread).min(at_most))
}

/// A random fraction of `whole`, so that clients don't poll at the same times.
fn part_of(whole: Duration) -> Duration {
    whole.mul_f64((random() >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Whether an error of the server passes by itself.
fn passes(code: Option<&SqlState>) -> bool {
    matches!(kind_of(code), BackendErrorKind::Unreachable | BackendErrorKind::LimitReached)
}

/// The error for an answer that the functions of this program can't have given.
fn unreadable(error: &BackendError, doing: &str) -> CallError {
    tracing::warn!(%error, doing, "postgres: the answer of a call can't be read");
    CallError::IN_DOUBT
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// PostgreSQL text can't contain NUL; replaces it by U+FFFD.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}
