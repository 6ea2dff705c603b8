//! Expiry by observation. A store ends no hold: a holder renews by a write, and gives up if it fails to do so
//! for its ttl. A client that has seen no renewal for a whole ttl, by its own clock, may take over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_backend::leased::EntryId;
use lockkeeper_core::LockName;
use object_store::UpdateVersion;

use super::record::LockRecord;

/// Largest number of locks that are remembered at a time.
const LOCKS_MAX: usize = 10_000;

/// What this client has seen last of each lock.
#[derive(Default)]
pub(super) struct Observed(Mutex<HashMap<LockName, SeenLock>>);

struct SeenLock {
    /// The object as it was read or written last; `None` if a write of this client is in doubt.
    last: Option<Sight>,
    since: HashMap<EntryId, ObservedHold>,
}

struct ObservedHold {
    renewal: u64,
    /// When the first answer with this renewal arrived: later than the holder's own timestamp.
    since: BootInstant,
}

/// A lock's object at one version.
#[derive(Clone)]
pub(super) struct Sight {
    /// `None` if there is no object.
    pub(super) version: Option<UpdateVersion>,
    pub(super) record: LockRecord,
    /// The rest of each hold's observation, in the order of the record's holds; zero: expired.
    pub(super) left: Vec<Duration>,
}

impl Observed {
    /// Records an object that was read, or written by this client. `now` is read after the answer arrived.
    pub(super) fn see(
        &self,
        name: &LockName,
        version: Option<UpdateVersion>,
        record: LockRecord,
        now: BootInstant,
    ) -> Sight {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if locks.len() >= LOCKS_MAX && !locks.contains_key(name) {
            // Waiters observe the forgotten locks for another ttl, which is safe.
            locks.clear();
        }
        let before = locks.remove(name).map(|seen| seen.since).unwrap_or_default();
        let mut since = HashMap::with_capacity(record.holds.len());
        let mut left = Vec::with_capacity(record.holds.len());
        for held in &record.holds {
            let at = match before.get(&held.id) {
                Some(before) if before.renewal == held.renewal => before.since,
                _ => now,
            };
            left.push(held.observed_for().saturating_sub(now - at));
            since.insert(held.id.clone(), ObservedHold { renewal: held.renewal, since: at });
        }
        let sight = Sight { version, record, left };
        locks.insert(name.clone(), SeenLock { last: Some(sight.clone()), since });
        sight
    }

    /// The object as this client saw it last. A write on the condition of its version proves that it is
    /// unchanged.
    pub(super) fn last(&self, name: &LockName) -> Option<Sight> {
        let locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.get(name)?.last.clone()
    }

    /// The object has another version than the one that was seen last, or may have.
    pub(super) fn is_outdated(&self, name: &LockName) {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = locks.get_mut(name) {
            seen.last = None;
        }
    }
}
