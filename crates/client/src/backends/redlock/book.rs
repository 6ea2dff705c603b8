//! Registry of the claims that may have entries on nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::claim::Claim;
use crate::backends::leased::{Entry, EntryId};
use crate::time::BootInstant;

/// Smallest number of records at which old ones are swept.
const SWEEP_MIN: usize = 1024;

#[derive(Default)]
pub(super) struct Book(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    claims: BTreeMap<EntryId, Arc<Claim>>,
    /// Requests that ended while an attempt of them may still arrive here, and when each record expires.
    over: BTreeMap<EntryId, BootInstant>,
    /// Number of records at which the next sweep runs.
    sweep_at: usize,
}

impl Pages {
    /// Removes expired records, and the claims of abandoned sessions, which are never ended.
    fn sweep(&mut self, now: BootInstant) {
        if self.claims.len() + self.over.len() >= self.sweep_at {
            self.claims.retain(|_, claim| !claim.is_forgotten(now));
            self.over.retain(|_, until| now < *until);
            self.sweep_at = (2 * (self.claims.len() + self.over.len())).max(SWEEP_MIN);
        }
    }
}

impl Book {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim of a request, created if it is new; `None` if the request is over.
    pub(super) fn claim_for(&self, entry: &Arc<Entry>, nodes: usize, now: BootInstant) -> Option<Arc<Claim>> {
        let mut pages = self.pages();
        if pages.over.contains_key(&entry.id) {
            return None;
        }
        if let Some(claim) = pages.claims.get(&entry.id) {
            return Some(claim.clone());
        }
        pages.sweep(now);
        let claim = Arc::new(Claim::new(entry.clone(), nodes, now));
        pages.claims.insert(entry.id.clone(), claim.clone());
        Some(claim)
    }

    pub(super) fn known(&self, id: &EntryId) -> Option<Arc<Claim>> {
        self.pages().claims.get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Claim>> {
        self.pages().claims.values().cloned().collect()
    }

    /// Rejects all later attempts of a request, for twice its ttl.
    pub(super) fn remember_over(&self, entry: &Entry, now: BootInstant) {
        let mut pages = self.pages();
        pages.sweep(now);
        pages.over.insert(entry.id.clone(), now + entry.ttl.saturating_mul(2));
    }

    pub(super) fn forget(&self, claim: &Claim) {
        self.pages().claims.remove(&claim.entry.id);
    }
}
