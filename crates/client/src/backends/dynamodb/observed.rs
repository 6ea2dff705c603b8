//! Expiry by observation. DynamoDB ends no hold: a holder renews by changing its item's version, and stops working if it
//! could not do that for its lease. A client that has seen the same version for that long, by its own clock, may take over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::items::LockItem;
use crate::time::BootInstant;

/// Largest number of locks that are observed at a time.
const LOCKS_MAX: usize = 10_000;

/// What one client has seen of the locks of others.
#[derive(Default)]
pub(super) struct Observed(Mutex<HashMap<String, Observation>>);

struct Observation {
    version: String,
    /// When the answer with this version had arrived: later than the holder has stamped it.
    since: BootInstant,
}

impl Observed {
    /// Records an item that was read. `now`: after the answer has arrived. Returns for how long the holder may still hold; zero:
    /// its lease is over.
    pub(super) fn see(&self, item: &LockItem, now: BootInstant) -> Duration {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match locks.get(&item.name) {
            Some(seen) if seen.version == item.version => seen.since,
            _ => {
                if locks.len() >= LOCKS_MAX {
                    // Their waiters observe them for another lease.
                    locks.clear();
                }
                let observation = Observation { version: item.version.clone(), since: now };
                locks.insert(item.name.clone(), observation);
                now
            }
        };
        item.lease.saturating_sub(now - since)
    }

    /// Forgets a lock that is free, or held by this client.
    pub(super) fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_dead_once_its_version_was_the_same_for_its_lease() {
        let observed = Observed::default();
        let mut item = LockItem {
            name: "x".to_owned(),
            owner: "them".to_owned(),
            version: "1".to_owned(),
            lease: Duration::from_secs(10),
            is_released: false,
            token: None,
            note: None,
            revocation: None,
        };
        let start = BootInstant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(observed.see(&item, start), Duration::from_secs(10));
        assert_eq!(observed.see(&item, after(4)), Duration::from_secs(6));
        item.version = "2".to_owned();
        assert_eq!(observed.see(&item, after(9)), Duration::from_secs(10));
        assert_eq!(observed.see(&item, after(18)), Duration::from_secs(1));
        assert_eq!(observed.see(&item, after(19)), Duration::ZERO);
        observed.forget("x");
        assert_eq!(observed.see(&item, after(20)), Duration::from_secs(10));
    }
}
