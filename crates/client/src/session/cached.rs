//! The session's cached holds (C5, C7, C8): sections that begin and end without the lock service.
//!
//! The cache has a lock of its own, which a section takes twice and for a lookup only; it never waits for the
//! session's state. All that makes a hold unfit for the next section happens under the state's lock, and
//! takes the hold out of the cache first.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_backend::{BootInstant, Granted};

use super::hold::{HoldHandle, HoldStatus};
use super::{Event, RequestProgress, Session, SessionInner, SessionState};
use crate::machine::Key;
use crate::machine::cache::{AfterSection, Cache, CachedLock, CachedSection, RecallAnswer};
use crate::observe::SectionMetrics;

/// How a caller wants its hold to be cached.
#[derive(Clone)]
pub(crate) struct Caching {
    pub(crate) lock: Arc<CachedLock>,
    /// After this idle time the hold is released.
    pub(crate) cache_for: Duration,
}

impl Session {
    /// Begins a section with a cached hold, if one may be used. No I/O.
    pub(crate) fn begin_section(
        self: &Arc<Self>,
        lock: &CachedLock,
        min_validity: Duration,
    ) -> Option<HoldHandle> {
        let now = self.now();
        let mut cache = self.0.cache();
        let (section, hold) = cache.begin(now, lock, min_validity)?;
        let hold = hold.clone();
        drop(cache);
        self.0.section_metrics().began();
        Some(HoldHandle::of_section(self.clone(), section, hold, now))
    }

    /// The number of spare tokens that the next acquire asks for.
    pub(crate) fn spare_tokens(&self, lock: &CachedLock) -> u32 {
        self.0.cache().spare_tokens(self.now(), lock)
    }
}

impl SessionInner {
    pub(super) fn cache(&self) -> MutexGuard<'_, Cache<Arc<HoldStatus>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn section_metrics(&self) -> &SectionMetrics {
        self.section_metrics.get_or_init(|| SectionMetrics::register(self.name()))
    }

    pub(super) fn end_section(&self, now: BootInstant, section: &CachedSection) -> AfterSection {
        self.cache().end(now, section)
    }

    /// Reports a grant, and caches its hold if it has spare tokens.
    pub(super) fn granted(&self, state: &mut SessionState, key: Key, grant: Granted) {
        let Some(caller) = state.callers.get(&key) else { return };
        let (section, too_many) = match caller.caching.as_ref().filter(|_| !caller.met_others) {
            Some(Caching { lock, cache_for }) => {
                let mut cache = self.cache();
                let hold = caller.hold.clone();
                let cached = cache.granted(self.clock.now(), key, lock, &grant, *cache_for, hold);
                state.cache_due = cache.next_due();
                cached
            }
            None => (None, None),
        };
        caller.hold.granted(state.machine.seq_of(key).map(|seq| (state.generation, seq)));
        caller.hold.report(RequestProgress::Granted(grant, section));
        too_many.inspect(|&key| state.abandon(key));
    }

    /// A caller's request was queued, or the lock was busy.
    pub(super) fn met_others(&self, state: &mut SessionState, key: Key) {
        let Some(caller) = state.callers.get_mut(&key) else { return };
        if let Some(caching) = caller.caching.as_ref()
            && !std::mem::replace(&mut caller.met_others, true)
        {
            self.cache().met_others(&caching.lock);
        }
    }

    pub(super) fn recalled(&self, state: &mut SessionState, key: Key) {
        match self.cache().recalled(self.clock.now(), key) {
            RecallAnswer::Release => state.abandon(key),
            RecallAnswer::Settle => state.follow_ups.push_back(Event::Settle { key }),
        }
    }

    /// Releases the holds that were idle for too long.
    pub(super) fn release_idle(&self, state: &mut SessionState) {
        let now = self.clock.now();
        if state.cache_due.is_none_or(|due| now < due) {
            return;
        }
        let mut cache = self.cache();
        while let Some(key) = cache.due(now) {
            state.abandon(key);
        }
        state.cache_due = cache.next_due();
    }

    /// Nothing is cached from now on. Idle holds are released; those in use are lost as any other.
    pub(super) fn stop_caching(&self, state: &mut SessionState) {
        self.cache().stop().into_iter().for_each(|key| state.abandon(key));
        state.cache_due = None;
    }
}

impl SessionState {
    /// Releases an idle cached hold in the background.
    pub(super) fn abandon(&mut self, key: Key) {
        self.callers.remove(&key);
        self.follow_ups.push_back(Event::Abandon { key });
    }
}
