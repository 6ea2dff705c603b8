//! What a lock service must offer so that sessions can be kept on top of it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{End, LockName, Mode, Seq};

use crate::backend::{BoxFuture, CallError};
use crate::error::{BackendError, Busy};
use crate::machine::Granted;

/// A lock service whose holds are entries with an expiry of their own, on the service's clock: keys, rows.
///
/// Every call answers or fails within [`Entry::limit`]; whether it may have arrived is told (P12). What is dropped
/// half-way may have arrived as well.
pub(crate) trait Store: Send + Sync + 'static {
    /// One try to hold. Repeating it with the same entry never grants twice: an entry that holds already is told its
    /// first grant again, one that waits keeps its place (P7).
    fn attempt(&self, attempt: Attempt) -> BoxFuture<Result<Tried, CallError>>;

    /// Gives each entry a full ttl from now on if it still holds or waits, by its id and never by its name alone.
    /// Never creates anything (peers' flaws 5 and 6). One answer an entry, in their order; an error if any of them is
    /// not known.
    fn renew(&self, entries: Vec<Arc<Entry>>) -> BoxFuture<Result<Vec<Renewed>, CallError>>;

    /// Ends a hold, by its id, or leaves the queue, and wakes whoever is next. `doubt`: an attempt of this entry may
    /// still be on its way, and must not hold when it arrives.
    fn finish(&self, entry: Arc<Entry>, doubt: bool) -> BoxFuture<Result<End, CallError>>;

    /// What the latest call without an answer failed of, for people: a refused connection, which node said what.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// One request of a session, as its lock service sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) id: EntryId,
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    /// How long the hold outlives its last renewal.
    pub(crate) ttl: Duration,
    /// How long the lock stays shut after the hold's end, however it ends.
    pub(crate) keep_closed: Duration,
    /// How long it stays shut if the hold expires. The longer of the two counts then.
    pub(crate) lock_delay: Duration,
}

/// Names an entry for ever: the session's 128 random bits and the request's number in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct EntryId(pub(crate) String);

impl EntryId {
    pub(super) fn of(session: &str, seq: Seq) -> Self {
        let mut id = String::with_capacity(session.len() + 8);
        id.push_str(session);
        // Writing to a string can't fail.
        let _ = write!(id, "-{}", seq.0);
        Self(id)
    }

    /// The session that it is of.
    pub(super) fn session(&self) -> &str {
        self.0.split_once('-').map_or(self.0.as_str(), |(session, _)| session)
    }

    /// Its number in the session.
    pub(super) fn seq(&self) -> Option<Seq> {
        self.0.split_once('-')?.1.parse().ok().map(Seq)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long a command may take at most, and at least is given, whatever the ttl.
const LIMITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

impl Entry {
    /// How long one command for it may take: a sixth of the ttl, after which a renewal is overtaken by the next.
    pub(crate) fn limit(&self) -> Duration {
        (self.ttl / 6).clamp(LIMITS.0, LIMITS.1)
    }

    /// How long the lock stays shut if the hold expires.
    pub(crate) fn closed_after_expiry(&self) -> Duration {
        self.keep_closed.max(self.lock_delay)
    }
}

/// A try to hold.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) entry: Arc<Entry>,
    /// None of this entry left before.
    pub(crate) first: bool,
    /// Take a place in the queue if it isn't free.
    pub(crate) wait: bool,
    /// Who asks, for people who look.
    pub(crate) label: Arc<str>,
    /// What for: `key=value` lines.
    pub(crate) meta: Box<[u8]>,
}

/// What became of a try.
#[derive(Clone, Debug)]
pub(crate) enum Tried {
    Granted(Granted),
    /// It isn't free, and the entry is in no queue.
    Busy(Busy),
    /// It isn't free, and the entry waits, with so many before it. Try again when woken, and after `again` at the
    /// latest.
    Waits {
        ahead: u64,
        again: Duration,
    },
    /// The service will never grant it, or an operator must act first.
    Refused(BackendError),
}

/// What became of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    /// It holds or waits for a full ttl from now on.
    Kept,
    /// It neither holds nor waits.
    Gone,
    /// An operator broke it. It was not renewed, so that it ends by itself.
    Revoked,
}
