//! Registry of the claims that may have entries on nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkeeper_backend::BootInstant;
use lockkeeper_backend::leased::{Entry, EntryId};

use super::claim::Claim;

/// Smallest number of records at which old ones are swept.
const SWEEP_MIN: usize = 1024;

#[derive(Default)]
pub(super) struct Claims(Mutex<ClaimRecords>);

#[derive(Default)]
struct ClaimRecords {
    claims: BTreeMap<EntryId, Arc<Claim>>,
    /// Requests that have ended although a delayed attempt of them may still be made, and when each record
    /// expires.
    over: BTreeMap<EntryId, BootInstant>,
    /// Number of records at which the next sweep runs.
    sweep_at: usize,
}

impl ClaimRecords {
    /// Once there are `sweep_at` records, removes the expired ones, and the claims of abandoned sessions,
    /// which are never ended.
    fn sweep(&mut self, now: BootInstant) {
        if self.claims.len() + self.over.len() >= self.sweep_at {
            self.claims.retain(|_, claim| !claim.is_expired(now));
            self.over.retain(|_, until| now < *until);
            self.sweep_at = (2 * (self.claims.len() + self.over.len())).max(SWEEP_MIN);
        }
    }
}

impl Claims {
    fn records(&self) -> MutexGuard<'_, ClaimRecords> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim of a request, created if it is new; `None` if the request is over.
    pub(super) fn get_or_insert(
        &self,
        entry: &Arc<Entry>,
        nodes: usize,
        now: BootInstant,
    ) -> Option<Arc<Claim>> {
        let mut records = self.records();
        if records.over.contains_key(&entry.id) {
            return None;
        }
        if let Some(claim) = records.claims.get(&entry.id) {
            return Some(claim.clone());
        }
        records.sweep(now);
        let claim = Arc::new(Claim::new(entry.clone(), nodes, now));
        records.claims.insert(entry.id.clone(), claim.clone());
        Some(claim)
    }

    pub(super) fn get(&self, id: &EntryId) -> Option<Arc<Claim>> {
        self.records().claims.get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Claim>> {
        self.records().claims.values().cloned().collect()
    }

    /// Rejects all later attempts of a request, for twice its ttl.
    pub(super) fn remember_over(&self, entry: &Entry, now: BootInstant) {
        let mut records = self.records();
        records.sweep(now);
        records.over.insert(entry.id.clone(), now + entry.ttl.saturating_mul(2));
    }

    pub(super) fn remove(&self, claim: &Claim) {
        self.records().claims.remove(&claim.entry.id);
    }
}
