//! Expiry by observation. DynamoDB ends no hold: a holder renews by changing its item's version, and gives up
//! if it fails to do so for its lease. A client that has seen the same version for a whole lease, by its own
//! clock, may take over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_backend::BootInstant;

use super::items::LockItem;

/// Largest number of locks that are observed at a time.
const LOCKS_MAX: usize = 10_000;

/// The versions that this client has observed: by lock name, then by the holder's owner.
#[derive(Default)]
pub(super) struct Observed(Mutex<HashMap<String, HashMap<String, Observation>>>);

struct Observation {
    version: String,
    /// When the first answer with this version arrived: later than the holder's own timestamp.
    since: BootInstant,
}

impl Observed {
    /// Records an item that was read. `now` is read after the answer has arrived. Returns the holders with
    /// the remaining time of their leases; zero: expired.
    pub(super) fn see<'a>(&self, item: &'a LockItem, now: BootInstant) -> Vec<(&'a str, Duration)> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.len() >= LOCKS_MAX && !locks.contains_key(&item.name) {
            // Waiters observe the forgotten locks for another lease, which is safe.
            locks.clear();
        }
        let before = locks.remove(&item.name).unwrap_or_default();
        let mut seen = HashMap::with_capacity(item.holds.len());
        let mut left = Vec::with_capacity(item.holds.len());
        for (owner, holder) in &item.holds {
            let since = match before.get(owner) {
                Some(before) if before.version == holder.version => before.since,
                _ => now,
            };
            left.push((owner.as_str(), holder.lease.saturating_sub(now - since)));
            seen.insert(owner.clone(), Observation { version: holder.version.clone(), since });
        }
        if !seen.is_empty() {
            locks.insert(item.name.clone(), seen);
        }
        left
    }

    /// Forgets a lock that is held by this client.
    pub(super) fn forget(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::ModeKind;

    use super::super::items::ItemHolder;
    use super::*;

    fn holder(version: &str) -> ItemHolder {
        ItemHolder {
            mode: ModeKind::Shared,
            version: version.to_owned(),
            lease: Duration::from_secs(10),
            token: None,
            note: None,
            revocation: None,
        }
    }

    #[test]
    fn holder_is_dead_once_its_version_was_the_same_for_its_lease() {
        let observed = Observed::default();
        let mut item = LockItem {
            name: "x".to_owned(),
            owner: "them".to_owned(),
            version: "1".to_owned(),
            lease: Duration::from_secs(10),
            holds: [("a".to_owned(), holder("1")), ("b".to_owned(), holder("1"))].into(),
        };
        let start = BootInstant::now();
        let left = |item: &LockItem, seconds: u64| -> Vec<u64> {
            let seen = observed.see(item, start + Duration::from_secs(seconds));
            seen.iter().map(|(_, left)| left.as_secs()).collect()
        };
        assert_eq!(left(&item, 0), [10, 10]);
        assert_eq!(left(&item, 4), [6, 6]);
        item.holds.insert("a".to_owned(), holder("2"));
        assert_eq!(left(&item, 9), [10, 1]);
        assert_eq!(left(&item, 18), [1, 0]);
        assert_eq!(left(&item, 19), [0, 0]);
        observed.forget("x");
        assert_eq!(left(&item, 20), [10, 10]);
    }
}
