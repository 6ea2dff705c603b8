//! The leases of a client's entries. Each entry has its own lease, because a key's name contains the lease's
//! id: two requests for one lock with one lease would have the same key. The lease of an ended entry is
//! reused, since a new lease costs a write to disk.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_backend::leased::{EndedEntries, Entry, EntryId};

use super::api::Compare;
use super::watcher::Watched;

/// The largest number of unused leases that are kept.
const UNUSED_MAX: usize = 1024;

/// A lease, and the state of its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryLease {
    pub(super) id: i64,
    /// A majority has confirmed that the lease lives for at least a ttl after this time.
    pub(super) renewed_at: BootInstant,
    /// The key's create revision, once an attempt was answered: the token.
    pub(super) revision: Option<i64>,
    pub(super) holds: bool,
    /// The longer lease of a holding key, if the lock must stay closed after an expiry; the key has it, or
    /// may have it by now.
    pub(super) closing: Option<i64>,
}

impl EntryLease {
    pub(super) fn new(id: i64, renewed_at: BootInstant) -> Self {
        Self { id, renewed_at, revision: None, holds: false, closing: None }
    }
}

/// What a waiter waits for, as of its latest attempt.
#[derive(Clone, Debug)]
pub(super) struct RestingWait {
    /// The waiter's key.
    pub(super) own: Vec<u8>,
    /// The conditions that neither the waiter's key nor the key that it waits for has changed.
    pub(super) unchanged: [Compare; 2],
    pub(super) watched: Watched,
    /// How many waiters are ahead.
    pub(super) ahead: u64,
    /// Whether its turn may come soon.
    pub(super) is_near: bool,
}

/// A lease without an entry.
struct Unused {
    id: i64,
    /// Its ttl, in whole seconds.
    seconds: i64,
    renewed_at: BootInstant,
    /// Not reused after this time: it may expire soon.
    until: BootInstant,
}

#[derive(Default)]
pub(super) struct Leases(Mutex<LeaseState>);

#[derive(Default)]
struct LeaseState {
    of_entries: HashMap<EntryId, EntryLease>,
    /// What each waiting entry waits for.
    waits: HashMap<EntryId, RestingWait>,
    /// The most recently used lease is last.
    unused: Vec<Unused>,
    /// Entries that were ended while they had no lease.
    ended: EndedEntries,
    /// Leases that a delayed call may still revoke, and until when; they must not be reused.
    doomed: HashMap<i64, BootInstant>,
}

/// The ttl of an entry's lease, in whole seconds. etcd may make it longer.
pub(super) fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

impl Leases {
    fn state(&self) -> MutexGuard<'_, LeaseState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(&self, entry: &EntryId) -> Option<EntryLease> {
        self.state().of_entries.get(entry).copied()
    }

    /// The lease of an entry that is being ended; an entry without a lease is recorded as ended. If the lease
    /// may have to be revoked (`doubt`, or its key is unknown), it is marked as doomed: the attempt under way
    /// may still return the lease for reuse, and the revocation may arrive after that.
    pub(super) fn of_ending(&self, entry: &Entry, doubt: bool, now: BootInstant) -> Option<EntryLease> {
        let mut state = self.state();
        let lease = state.of_entries.get(&entry.id).copied();
        match lease {
            None => state.ended.record(&entry.id),
            Some(EntryLease { id, revision, .. }) if doubt || revision.is_none() => {
                state.doomed.retain(|_, until| *until > now);
                // By then the lease has expired, since nothing renews it.
                state.doomed.insert(id, now + entry.ttl * 2 + entry.limit());
            }
            Some(_) => {}
        }
        lease
    }

    /// Whether the entry was ended while it had no lease.
    pub(super) fn is_ended(&self, entry: &EntryId) -> bool {
        self.state().ended.contains(entry)
    }

    /// Gives the entry an unused lease with enough time left.
    pub(super) fn reuse(&self, entry: &Entry, now: BootInstant) -> Option<EntryLease> {
        let mut state = self.state();
        state.unused.retain(|unused| unused.until > now);
        let wanted = seconds(entry.ttl);
        let at = state.unused.iter().rposition(|unused| unused.seconds == wanted)?;
        let unused = state.unused.remove(at);
        let lease = EntryLease::new(unused.id, unused.renewed_at);
        state.of_entries.insert(entry.id.clone(), lease);
        Some(lease)
    }

    pub(super) fn set(&self, entry: &EntryId, lease: EntryLease) {
        let mut state = self.state();
        state.waits.remove(entry);
        state.of_entries.insert(entry.clone(), lease);
    }

    /// Records that an entry waits with this lease.
    pub(super) fn wait(&self, entry: &EntryId, lease: EntryLease, wait: Option<RestingWait>) {
        let mut state = self.state();
        state.of_entries.insert(entry.clone(), EntryLease { holds: false, ..lease });
        match wait {
            Some(wait) => drop(state.waits.insert(entry.clone(), wait)),
            None => drop(state.waits.remove(entry)),
        }
    }

    pub(super) fn wait_of(&self, entry: &EntryId) -> Option<RestingWait> {
        self.state().waits.get(entry).cloned()
    }

    /// Records that an entry's lease was renewed.
    pub(super) fn renewed(&self, entry: &EntryId, id: i64, at: BootInstant) {
        if let Some(lease) = self.state().of_entries.get_mut(entry).filter(|lease| lease.id == id) {
            lease.renewed_at = lease.renewed_at.max(at);
        }
    }

    /// Removes the entry's lease, which has ended or is about to be revoked.
    pub(super) fn remove(&self, entry: &EntryId) -> Option<EntryLease> {
        let mut state = self.state();
        state.waits.remove(entry);
        state.of_entries.remove(entry)
    }

    /// Keeps the lease of an ended entry for reuse, until two thirds of its ttl have passed. The entry's key
    /// must be certainly deleted.
    pub(super) fn keep(&self, lease: EntryLease, ttl: Duration) {
        let mut state = self.state();
        let EntryLease { id, renewed_at, .. } = lease;
        if state.unused.len() < UNUSED_MAX && !state.doomed.contains_key(&id) {
            state.unused.push(Unused {
                id,
                seconds: seconds(ttl),
                renewed_at,
                until: renewed_at + ttl / 3 * 2,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str) -> Entry {
        Entry {
            id: EntryId(id.to_owned()),
            name: "x".parse().unwrap(),
            mode: lockkeeper_core::Mode::Exclusive,
            ttl: Duration::from_secs(30),
            keep_closed: Duration::ZERO,
            lock_delay: Duration::ZERO,
        }
    }

    #[test]
    fn lease_that_a_late_call_may_end_serves_no_other_entry() {
        let (leases, now) = (Leases::default(), BootInstant::now());
        for (id, doubt, is_reused) in [(1, false, true), (2, true, false)] {
            let (one, two) = (entry("one-1"), entry("one-2"));
            let lease = EntryLease { revision: Some(7), ..EntryLease::new(id, now) };
            leases.set(&one.id, lease);
            assert_eq!(leases.of_ending(&one, doubt, now).map(|lease| lease.id), Some(id));
            // The attempt that was under way finds the lock busy.
            leases.remove(&one.id);
            leases.keep(lease, one.ttl);
            assert_eq!(leases.reuse(&two, now).map(|lease| lease.id), is_reused.then_some(id));
        }
    }

    #[test]
    fn ttls_are_rounded_up_to_seconds() {
        for (ms, wanted) in [(1, 1), (1000, 1), (1001, 2), (30_000, 30)] {
            assert_eq!(seconds(Duration::from_millis(ms)), wanted);
        }
    }
}
