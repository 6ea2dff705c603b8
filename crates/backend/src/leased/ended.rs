//! Lease-store entries that were ended while an attempt of theirs was under way.

use std::collections::VecDeque;

use super::store::EntryId;

/// Maximum number of remembered entries. An attempt waits for a lease or a session only until its time limit,
/// so old ones can be forgotten.
const ENDED_MAX: usize = 1024;

/// The entries whose attempts must no longer begin.
#[derive(Default)]
pub struct EndedEntries(VecDeque<EntryId>);

impl EndedEntries {
    /// Remembers an entry. Beyond the bound, the oldest one is forgotten.
    pub fn record(&mut self, entry: &EntryId) {
        if self.contains(entry) {
            return;
        }
        if self.0.len() == ENDED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(entry.clone());
    }

    /// Whether the entry was ended.
    #[must_use]
    pub fn contains(&self, entry: &EntryId) -> bool {
        self.0.contains(entry)
    }
}
