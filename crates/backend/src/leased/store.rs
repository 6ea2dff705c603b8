//! The operations of a lock service on which sessions are built.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, LockName, Mode, Seq};
use lockkeeper_core::{PermitGrant, Token};
use serde::{Deserialize, Serialize};

use crate::box_future::BoxFuture;
use crate::call::CallError;
use crate::call::Granted;
use crate::error::{BackendError, Busy};
use crate::time::BootInstant;

/// A lock service whose holds are entries (keys, rows) that expire by the service's clock.
///
/// Every call returns within [`Entry::limit`]; an error contains whether the call may have arrived (P12). A
/// call that is dropped before it returns may have arrived as well.
pub trait Store: Send + Sync + 'static {
    /// Attempts to hold. A repeat with the same entry never grants twice: for an entry that holds already it
    /// returns the first grant again, and one that waits keeps its place (P7).
    fn attempt(&self, attempt: Attempt) -> BoxFuture<'_, Result<Tried, CallError>>;

    /// Extends each entry that still holds or waits to a full ttl from now on, by its id and never by its
    /// name alone, and never creates anything: a renewal that arrives late must neither extend another's hold
    /// nor restore one that ended. Returns one result for each entry, in order; fails if any of the results
    /// is unknown.
    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<'_, Result<Vec<Renewed>, CallError>>;

    /// Ends a hold by its id, or leaves the queue, and wakes the next waiter. `doubt`: an attempt of this
    /// entry may still be on its way, and must not hold when it arrives.
    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<'_, Result<End, CallError>>;

    /// Replaces the value of a hold, unless it is broken. Made twice, it does no harm. Called only if the
    /// capabilities declare values.
    fn set_value(&self, _entry: Arc<Entry>, _value: Arc<[u8]>) -> BoxFuture<'_, Result<Renewed, CallError>> {
        Box::pin(std::future::ready(Err(CallError::NOT_SENT)))
    }

    /// The latest cause of a call without an answer, for display: a refused connection, or errors by node.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// One request of a session, as stored by its lock service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Names it for good.
    pub id: EntryId,
    /// The lock.
    pub name: LockName,
    /// Exclusive, shared, or one permit of a number.
    pub mode: Mode,
    /// For how long the hold outlives its last renewal.
    pub ttl: Duration,
    /// For how long the lock stays closed after the hold's end, however it ends.
    pub keep_closed: Duration,
    /// For how long the lock stays closed if the hold expires; the longer of this and `keep_closed` counts
    /// then.
    pub lock_delay: Duration,
}

/// The permanent name of an entry: the session's 128 random bits and the request's seq.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct EntryId(pub String);

impl EntryId {
    pub(super) fn of(session: &str, seq: Seq) -> Self {
        Self(format!("{session}-{}", seq.0))
    }

    /// Its session.
    pub(super) fn session(&self) -> &str {
        self.0.split_once('-').map_or(self.0.as_str(), |(session, _)| session)
    }

    /// Its seq in the session.
    pub(super) fn seq(&self) -> Option<Seq> {
        self.0.split_once('-')?.1.parse().ok().map(Seq)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Bounds of a command's time limit, for any ttl: the shortest and the longest.
const LIMITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

impl Entry {
    /// Time limit of one command: a sixth of the ttl, within `LIMITS`. A renewal that has got no answer by
    /// then is followed by another.
    pub fn limit(&self) -> Duration {
        (self.ttl / 6).clamp(LIMITS.0, LIMITS.1)
    }

    /// For how long the lock stays closed if the hold expires.
    pub fn closed_after_expiry(&self) -> Duration {
        self.keep_closed.max(self.lock_delay)
    }
}

/// An attempt to hold.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The request.
    pub entry: Arc<Entry>,
    /// No attempt of this entry was sent before, or all were answered and left no entry and no place in a
    /// queue.
    pub first: bool,
    /// Take a place in the queue if the lock isn't free.
    pub wait: bool,
    /// If it holds, its entry must not expire earlier than a full ttl after this time, the latest to which
    /// the session's deadline may go back. A full ttl from the attempt on is always enough.
    pub ttl_from: BootInstant,
    /// The value of the hold from its grant on; empty where the service has none.
    pub value: Box<[u8]>,
    /// The requester, for display.
    pub label: Arc<str>,
    /// The purpose, for display: `key=value` lines.
    pub meta: Box<[u8]>,
}

/// Result of an attempt.
#[derive(Clone, Debug)]
pub enum Tried {
    /// It holds, for a full ttl from the attempt on.
    Granted(Granted),
    /// The lock isn't free, and the entry is in no queue.
    Busy(Busy),
    /// The lock isn't free, and the entry waits behind `ahead` others. Try again when woken, and after
    /// `again` at the latest.
    Waits {
        /// How many wait before it.
        ahead: u64,
        /// The longest pause until the next attempt.
        again: Duration,
    },
    /// The service will never grant it, or an operator must act first. A first attempt that is refused has
    /// left nothing; the session keeps or ends what earlier attempts have left, such as a position in the
    /// queue.
    Refused(BackendError),
}

impl Tried {
    /// A grant with a token.
    #[must_use]
    pub fn granted(token: Token, permit: Option<PermitGrant>) -> Self {
        Self::Granted(Granted { token: Some(token), permits: permit.into_iter().collect(), spare_tokens: 0 })
    }
}

/// Result of a renewal, or of another change of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewed {
    /// It holds or waits: after a renewal, for a full ttl from now on.
    Kept,
    /// It neither holds nor waits.
    Gone,
    /// An operator broke it. It was not renewed, so that it expires.
    Revoked,
}
