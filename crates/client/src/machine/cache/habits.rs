//! How a lock was used lately, which decides whether its next hold is cached (C9).

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_backend::BootInstant;
use lockkeeper_core::limits;

use super::CachedLock;

/// The number of uncontended acquires in a row after which the next one asks for a cached hold.
const ALONE_MIN: u8 = 3;
/// Spare tokens of a first block: 16 sections.
const SPARE_MIN: u32 = 15;
/// Two recalls within this time end caching for this time.
const PAUSE: Duration = Duration::from_secs(10);
/// Half of the locks whose habits are kept while they have no cached hold.
const GENERATION: usize = 2_048;

#[derive(Clone, Default)]
pub(super) struct Habit {
    /// Uncontended acquires in a row, up to [`ALONE_MIN`].
    alone: u8,
    /// Spare tokens of the last block that was used up; 0: none.
    used_up: u32,
    recalled_at: Option<BootInstant>,
    paused_until: Option<BootInstant>,
}

impl Habit {
    pub(super) fn spare_tokens(&self, now: BootInstant) -> u32 {
        if self.alone < ALONE_MIN || self.paused_until.is_some_and(|until| now < until) {
            return 0;
        }
        // 16 tokens, then 32, …, 1,024.
        (2 * self.used_up + 1).clamp(SPARE_MIN, limits::SPARE_TOKENS_MAX)
    }

    pub(super) fn met_nobody(&mut self) {
        self.alone = (self.alone + 1).min(ALONE_MIN);
    }

    pub(super) fn met_others(&mut self) {
        self.alone = 0;
    }

    /// All tokens of a block of the size that [`Self::spare_tokens`] has returned are used.
    pub(super) fn used_up(&mut self) {
        self.used_up = (2 * self.used_up + 1).clamp(SPARE_MIN, limits::SPARE_TOKENS_MAX);
    }

    pub(super) fn recalled(&mut self, now: BootInstant) {
        if self.recalled_at.is_some_and(|last| now - last <= PAUSE) {
            self.paused_until = Some(now + PAUSE);
        }
        self.recalled_at = Some(now);
        self.alone = 0;
        self.used_up = 0;
    }
}

type Generation = HashMap<Arc<CachedLock>, Habit, BuildHasherDefault<DefaultHasher>>;

/// The habits of the locks that were acquired last. Once the young generation is full, it becomes the old
/// one, which is forgotten; so memory is bounded without an order of the locks.
#[derive(Default)]
pub(super) struct Habits {
    young: Generation,
    old: Generation,
}

impl Habits {
    pub(super) fn get(&mut self, lock: &CachedLock) -> Option<&mut Habit> {
        match self.old.remove_entry(lock) {
            Some((lock, habit)) => Some(self.put(lock, habit)),
            None => self.young.get_mut(lock),
        }
    }

    pub(super) fn put(&mut self, lock: Arc<CachedLock>, habit: Habit) -> &mut Habit {
        if self.young.len() >= GENERATION && !self.young.contains_key(&lock) {
            self.old = std::mem::take(&mut self.young);
        }
        let kept = self.young.entry(lock).or_default();
        *kept = habit;
        kept
    }

    pub(super) fn take(&mut self, lock: &CachedLock) -> Option<Habit> {
        self.young.remove(lock).or_else(|| self.old.remove(lock))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
