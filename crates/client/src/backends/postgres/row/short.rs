//! Selects the calls that take the fast path: one prepared UPDATE on the view `row_take` or `row_give`, at half of a
//! function call's cost to the database.
//!
//! The fast path covers only the uncontended case: an existing, free lock without waiters or other holds. In all other
//! cases the function is called as well, which costs an extra round trip. So the fast path is tried only for names
//! whose last grant was immediate. A wrong guess costs time and nothing else.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{LockName, Mode, limits};
use tokio_postgres::error::SqlState;

use super::pool::Failure;
use crate::backends::leased::{Attempt, Entry};

/// Maximum number of cached names.
const NAMES: usize = 1024;
/// Limits that `row_acquire` enforces by refusal; `row_take` would truncate instead.
const TTL_MOST: Duration = Duration::from_millis(limits::TTL_MS_MAX);
const CLOSED_MOST: Duration = Duration::from_millis(limits::KEEP_CLOSED_MS_MAX);
const ID_MOST: usize = 100;

/// The cache of names for which the fast path is worth a try.
pub(super) struct ShortWay {
    /// False once the views were found to be missing or not granted to this user.
    open: AtomicBool,
    hashes: RandomState,
    /// Direct-mapped: each slot has the hash of its last name; zero is empty.
    names: Box<[AtomicU64]>,
}

impl Default for ShortWay {
    fn default() -> Self {
        let names = (0..NAMES).map(|_| AtomicU64::new(0)).collect();
        Self { open: AtomicBool::new(true), hashes: RandomState::new(), names }
    }
}

impl ShortWay {
    /// Whether an attempt may use the fast path.
    pub(super) fn takes(&self, attempt: &Attempt) -> bool {
        let entry = &attempt.entry;
        // A retry must return the original grant, which only the function can do.
        attempt.first
            && entry.mode == Mode::Exclusive
            && entry.ttl <= TTL_MOST
            && entry.closed_after_expiry() <= CLOSED_MOST
            && entry.id.0.len() <= ID_MOST
            && attempt.label.len() <= limits::LABEL_BYTES_MAX
            && self.is_worth(&entry.name)
    }

    /// Whether a release may use the fast path.
    pub(super) fn gives(&self, entry: &Entry, doubt: bool) -> bool {
        !doubt && entry.mode == Mode::Exclusive && entry.keep_closed.is_zero() && self.is_worth(&entry.name)
    }

    fn is_worth(&self, name: &LockName) -> bool {
        let (place, hash) = self.place(name);
        self.open.load(Ordering::Relaxed) && place.load(Ordering::Relaxed) == hash
    }

    /// Records whether a lock was granted at once.
    pub(super) fn learn(&self, name: &LockName, at_once: bool) {
        let (place, hash) = self.place(name);
        if at_once {
            place.store(hash, Ordering::Relaxed);
        } else {
            // The slot may belong to another name by now.
            let _ = place.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The database refused the statement. Missing views or privileges turn the fast path off; the functions may still
    /// work.
    pub(super) fn refused(&self, failure: &Failure) {
        let closed = [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::UNDEFINED_TABLE];
        if failure.code().is_some_and(|code| closed.contains(code)) {
            tracing::debug!(?failure, "postgres: the views for the short way are not for this user");
            self.open.store(false, Ordering::Relaxed);
        }
    }

    fn place(&self, name: &LockName) -> (&AtomicU64, u64) {
        let hash = self.hashes.hash_one(name.as_str()) | 1;
        (&self.names[(hash >> 32) as usize % NAMES], hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_path_is_tried_from_an_immediate_grant_to_the_first_miss() {
        let (way, name, other) = (ShortWay::default(), name("a"), name("b"));
        assert!(!way.is_worth(&name));
        way.learn(&name, true);
        way.learn(&other, false);
        assert!(way.is_worth(&name) && !way.is_worth(&other));
        way.learn(&name, false);
        assert!(!way.is_worth(&name));
    }

    #[test]
    fn fast_path_cache_never_confuses_names() {
        let way = ShortWay::default();
        let names: Vec<LockName> = (0..5000).map(|n| name(&format!("lock/{n}"))).collect();
        let (granted, others) = names.split_at(2500);
        granted.iter().for_each(|name| way.learn(name, true));
        assert!(others.iter().all(|name| !way.is_worth(name)));
        assert!(granted.iter().filter(|name| way.is_worth(name)).count() > NAMES / 2);
    }

    fn name(name: &str) -> LockName {
        name.parse().unwrap()
    }
}
