//! The cached holds of one session (C5, C7–C9): which section may begin without the lock service, what a
//! recall means, and what is released when.
//!
//! Pure, as the [`Machine`](super::Machine) beside it: no clock, no I/O, no randomness. The machine knows a
//! cached hold as any other; this decides what happens with it between its sections. `H` is what the driver
//! keeps for each hold.
//!
//! Invariants:
//!
//! - A token is given to one section only (C2), and tokens of a lock rise in the order of its sections.
//! - No section begins with a hold that was recalled, revoked or lost, or that another section uses (C7).
//! - A hold leaves the cache before its release is sent, so no section begins after it.

mod habits;
#[cfg(test)]
mod tests;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use habits::{Habit, Habits};
use lockkeeper_backend::{BootInstant, Granted};
use lockkeeper_core::{LockName, Token};

use super::Key;

/// Maximum number of cached holds of a session (C8).
pub const CACHED_HOLDS_MAX: usize = 4_096;
/// Maximum number of holds in use that are passed over in the search for an idle one.
const LOOKS_MAX: usize = 64;

/// What a section asks for. A cached hold serves only requests for the same (C7).
#[derive(Clone, Debug)]
pub struct CachedLock {
    /// Sorted, without duplicates.
    names: Box<[LockName]>,
    subtree: bool,
    value: Box<[u8]>,
    meta: Box<[u8]>,
    /// Of the other fields: a lock's content is hashed once, not for each section.
    hash: u64,
}

/// A section that has begun with a cached hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedSection {
    /// The hold's request.
    pub key: Key,
    /// The section's own token.
    pub token: Token,
    /// The first token of the hold, by which the lock service names it.
    pub first: Token,
    slot: u32,
}

/// What happens with the hold at the end of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterSection {
    /// It stays, for the next section.
    Keep,
    /// It is released: its tokens are used up, others wait for it, or it is lost.
    Release,
}

/// The answer to a recall (C5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallAnswer {
    /// It is idle: release it now.
    Release,
    /// A section uses it: make it an ordinary hold, which ends with that section.
    Settle,
}

/// See the module documentation.
#[allow(missing_debug_implementations, reason = "public to the simulator only")]
pub struct Cache<H> {
    /// The session's lease deadline; `None` while there is no lease.
    lease_until: Option<BootInstant>,
    /// Whether the session's stream is attached, so that recalls arrive.
    attached: bool,
    stopped: bool,
    holds: Vec<Option<CachedHold<H>>>,
    free: Vec<u32>,
    by_lock: HashMap<Arc<CachedLock>, u32, BuildHasherDefault<DefaultHasher>>,
    by_key: BTreeMap<Key, u32>,
    /// When each hold is looked at: not later than it is due. A section moves the due time without moving the
    /// entry, which costs nothing then; the entry is moved when its time has come.
    looks: BTreeSet<(BootInstant, u32)>,
    habits: Habits,
}

struct CachedHold<H> {
    lock: Arc<CachedLock>,
    key: Key,
    first: Token,
    spare: u32,
    /// The number of tokens that sections have got.
    used: u32,
    in_use: bool,
    /// The end of the last section.
    idle_since: BootInstant,
    cache_for: Duration,
    /// Its entry in `looks`.
    look_at: BootInstant,
    habit: Habit,
    driver: H,
}

impl CachedLock {
    /// The content of a request in exclusive mode; `meta` as it is sent.
    #[must_use]
    pub fn new(mut names: Vec<LockName>, subtree: bool, value: Box<[u8]>, meta: Box<[u8]>) -> Self {
        names.sort_unstable();
        names.dedup();
        let mut hasher = DefaultHasher::new();
        (&names, subtree, &value, &meta).hash(&mut hasher);
        Self { names: names.into(), subtree, value, meta, hash: hasher.finish() }
    }
}

impl PartialEq for CachedLock {
    fn eq(&self, other: &Self) -> bool {
        let Self { names, subtree, value, meta, hash } = self;
        *hash == other.hash
            && *names == other.names
            && *subtree == other.subtree
            && *value == other.value
            && *meta == other.meta
    }
}

impl Eq for CachedLock {}

impl Hash for CachedLock {
    fn hash<S: Hasher>(&self, state: &mut S) {
        state.write_u64(self.hash);
    }
}

impl<H> CachedHold<H> {
    /// When it is released if no section begins.
    fn due(&self, now: BootInstant) -> BootInstant {
        let from = if self.in_use { now } else { self.idle_since };
        from + self.cache_for
    }
}

impl<H> Default for Cache<H> {
    fn default() -> Self {
        Self {
            lease_until: None,
            attached: false,
            stopped: false,
            holds: Vec::new(),
            free: Vec::new(),
            by_lock: HashMap::default(),
            by_key: BTreeMap::new(),
            looks: BTreeSet::new(),
            habits: Habits::default(),
        }
    }
}

impl<H> Cache<H> {
    /// The session's lease deadline has moved: [`Output::LeaseDeadline`](super::Output::LeaseDeadline).
    pub fn lease_until(&mut self, until: Option<BootInstant>) {
        self.lease_until = until;
    }

    /// The session's stream is attached, or has ended: [`Output::Attached`](super::Output::Attached).
    pub fn attached(&mut self, attached: bool) {
        self.attached = attached;
    }

    /// The number of spare tokens that the next acquire of this lock asks for; 0: an ordinary hold (C9).
    pub fn spare_tokens(&mut self, now: BootInstant, lock: &CachedLock) -> u32 {
        if self.stopped { 0 } else { self.habit(lock).map_or(0, |habit| habit.spare_tokens(now)) }
    }

    /// An acquire of this lock met others: it was queued, or the lock was busy.
    pub fn met_others(&mut self, lock: &Arc<CachedLock>) {
        self.change_habit(lock, Habit::met_others);
    }

    /// The acquire `key` was granted without meeting others. If its hold is a cached one, its first section
    /// has begun, with the first token. Also returns the hold that has to be released because there are too
    /// many.
    pub fn granted(
        &mut self,
        now: BootInstant,
        key: Key,
        lock: &Arc<CachedLock>,
        grant: &Granted,
        cache_for: Duration,
        driver: H,
    ) -> (Option<CachedSection>, Option<Key>) {
        self.change_habit(lock, Habit::met_nobody);
        let Some(first) = grant.token.filter(|_| grant.spare_tokens > 0 && !self.stopped) else {
            return (None, None);
        };
        // A hold of the same lock that is still here has ended at the service.
        if let Some(&slot) = self.by_lock.get(lock) {
            self.remove(slot);
        }
        let mut too_many = None;
        if self.by_key.len() >= CACHED_HOLDS_MAX {
            too_many = self.first_due(now);
            if too_many.is_none() {
                return (None, None); // All are in use: this one ends with its section.
            }
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.holds.push(None);
            (self.holds.len() - 1) as u32
        });
        let look_at = now + cache_for;
        let habit = self.habits.take(lock).unwrap_or_default();
        self.holds[slot as usize] = Some(CachedHold {
            lock: lock.clone(),
            key,
            first,
            spare: grant.spare_tokens,
            used: 1,
            in_use: true,
            idle_since: now,
            cache_for,
            look_at,
            habit,
            driver,
        });
        self.by_lock.insert(lock.clone(), slot);
        self.by_key.insert(key, slot);
        self.looks.insert((look_at, slot));
        (Some(CachedSection { key, token: first, first, slot }), too_many)
    }

    /// Begins a section with a cached hold, if there is one that it may use (C7). The lease must be valid for
    /// `min_validity` more, as for an acquire.
    pub fn begin(
        &mut self,
        now: BootInstant,
        lock: &CachedLock,
        min_validity: Duration,
    ) -> Option<(CachedSection, &H)> {
        let until = self.lease_until?;
        if !self.attached || now >= until || until - now < min_validity {
            return None;
        }
        let &slot = self.by_lock.get(lock)?;
        let hold = self.holds[slot as usize].as_mut()?;
        if hold.in_use || hold.used > hold.spare {
            return None;
        }
        let token = Token::new(hold.first.get() + u64::from(hold.used))?;
        hold.used += 1;
        hold.in_use = true;
        Some((CachedSection { key: hold.key, token, first: hold.first, slot }, &hold.driver))
    }

    /// Ends a section. On [`AfterSection::Release`] the hold has left the cache.
    pub fn end(&mut self, now: BootInstant, section: &CachedSection) -> AfterSection {
        let Some(Some(hold)) = self.holds.get_mut(section.slot as usize) else {
            return AfterSection::Release;
        };
        if hold.key != section.key {
            return AfterSection::Release;
        }
        if hold.used > hold.spare {
            hold.habit.used_up();
            self.remove(section.slot);
            return AfterSection::Release;
        }
        hold.in_use = false;
        hold.idle_since = now;
        AfterSection::Keep
    }

    /// A hold was recalled, once more perhaps. It has left the cache, if it was there.
    pub fn recalled(&mut self, now: BootInstant, key: Key) -> RecallAnswer {
        let slot = self.by_key.get(&key).copied();
        match slot.and_then(|slot| self.remove_with(slot, |habit| habit.recalled(now))) {
            Some(hold) if !hold.in_use => RecallAnswer::Release,
            _ => RecallAnswer::Settle,
        }
    }

    /// A hold was lost or revoked, or is changed so that no other section may use it. Returns whether it was
    /// idle: no section notices, and it is to be released.
    pub fn remove_key(&mut self, key: Key) -> bool {
        let hold = self.by_key.get(&key).copied().and_then(|slot| self.remove(slot));
        hold.is_some_and(|hold| !hold.in_use)
    }

    /// When [`Cache::due`] may have a hold to release.
    #[must_use]
    pub fn next_due(&self) -> Option<BootInstant> {
        self.looks.first().map(|&(at, _)| at)
    }

    /// Removes and returns a hold that was idle for its `cache_for`, to be released (C8).
    pub fn due(&mut self, now: BootInstant) -> Option<Key> {
        while let Some(&(at, slot)) = self.looks.first().filter(|&&(at, _)| at <= now) {
            self.looks.remove(&(at, slot));
            let hold = self.holds[slot as usize].as_mut()?;
            let due = hold.due(now);
            if due <= now && !hold.in_use {
                return self.remove(slot).map(|hold| hold.key);
            }
            // Not before the next nanosecond: this loop ends.
            hold.look_at = due.max(now + Duration::from_nanos(1));
            self.looks.insert((hold.look_at, slot));
        }
        None
    }

    /// Ends caching for good: no section begins, and no further hold is cached. Returns the idle holds, to be
    /// released.
    pub fn stop(&mut self) -> Vec<Key> {
        self.stopped = true;
        self.by_lock.clear();
        self.by_key.clear();
        self.looks.clear();
        self.free.clear();
        let holds = std::mem::take(&mut self.holds).into_iter().flatten();
        holds.filter(|hold| !hold.in_use).map(|hold| hold.key).collect()
    }

    /// Removes and returns the idle hold that is due first; `None` if the first ones are all in use.
    fn first_due(&mut self, now: BootInstant) -> Option<Key> {
        let mut in_use = 0;
        // A look at an idle hold corrects its time, which a section has moved; so these looks cost little.
        while in_use < LOOKS_MAX {
            let &(at, slot) = self.looks.first()?;
            let hold = self.holds[slot as usize].as_mut()?;
            let due = hold.due(now);
            if !hold.in_use && due <= at {
                return self.remove(slot).map(|hold| hold.key);
            }
            in_use += usize::from(hold.in_use);
            self.looks.remove(&(at, slot));
            hold.look_at = due;
            self.looks.insert((due, slot));
        }
        None
    }

    fn remove(&mut self, slot: u32) -> Option<CachedHold<H>> {
        self.remove_with(slot, |_| {})
    }

    fn remove_with(&mut self, slot: u32, change: impl FnOnce(&mut Habit)) -> Option<CachedHold<H>> {
        let mut hold = self.holds[slot as usize].take()?;
        self.free.push(slot);
        self.by_lock.remove(&hold.lock);
        self.by_key.remove(&hold.key);
        self.looks.remove(&(hold.look_at, slot));
        change(&mut hold.habit);
        self.habits.put(hold.lock.clone(), hold.habit.clone());
        Some(hold)
    }

    fn habit(&mut self, lock: &CachedLock) -> Option<&mut Habit> {
        match self.by_lock.get(lock) {
            Some(&slot) => self.holds[slot as usize].as_mut().map(|hold| &mut hold.habit),
            None => self.habits.get(lock),
        }
    }

    fn change_habit(&mut self, lock: &Arc<CachedLock>, change: impl FnOnce(&mut Habit)) {
        if let Some(habit) = self.habit(lock) {
            return change(habit);
        }
        let mut habit = Habit::default();
        change(&mut habit);
        self.habits.put(lock.clone(), habit);
    }
}
