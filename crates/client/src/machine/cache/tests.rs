//! The cache against its rules, without a machine.

use lockkeeper_core::limits;

use super::*;

const CACHE_FOR: Duration = Duration::from_secs(10);

fn at(ms: u64) -> BootInstant {
    BootInstant::from_nanos(ms * 1_000_000)
}

fn lock(name: &str) -> Arc<CachedLock> {
    content(&[name], false, "", "")
}

fn content(names: &[&str], subtree: bool, value: &str, meta: &str) -> Arc<CachedLock> {
    let names = names.iter().map(|name| LockName::parse(name).unwrap()).collect();
    Arc::new(CachedLock::new(names, subtree, value.as_bytes().into(), meta.as_bytes().into()))
}

fn grant(token: u64, spare_tokens: u32) -> Granted {
    Granted { token: Token::new(token), spare_tokens, ..Granted::default() }
}

/// A cache with a valid lease on an attached stream.
fn cache() -> Cache<()> {
    let mut cache = Cache::default();
    cache.lease_until(Some(at(1_000_000)));
    cache.attached(true);
    cache
}

/// Caches a hold of `lock`; returns its first section.
fn cached(
    cache: &mut Cache<()>,
    now: BootInstant,
    key: u64,
    lock: &Arc<CachedLock>,
    spare: u32,
) -> CachedSection {
    let first = grant(1 + 10_000 * key, spare);
    cache.granted(now, Key(key), lock, &first, CACHE_FOR, ()).0.expect("it is cached")
}

fn begin(cache: &mut Cache<()>, now: BootInstant, lock: &CachedLock) -> Option<CachedSection> {
    cache.begin(now, lock, Duration::ZERO).map(|(section, ())| section)
}

#[test]
fn each_section_has_the_next_token_and_the_last_one_ends_the_hold() {
    let (mut cache, a) = (cache(), lock("a"));
    let mut section = cached(&mut cache, at(0), 7, &a, 3);
    let mut tokens = vec![section.token.get()];
    while cache.end(at(1), &section) == AfterSection::Keep {
        section = begin(&mut cache, at(1), &a).unwrap();
        assert_eq!((section.key, section.first.get()), (Key(7), 70_001));
        tokens.push(section.token.get());
    }
    assert_eq!(tokens, [70_001, 70_002, 70_003, 70_004]);
    assert_eq!(begin(&mut cache, at(1), &a), None);
    assert_eq!(cache.next_due(), None);
}

#[test]
fn a_section_begins_only_with_an_idle_hold_of_the_same_content() {
    let mut cache = cache();
    let lock = content(&["b", "a"], true, "v", "k=m");
    let first = cached(&mut cache, at(0), 1, &lock, 15);
    assert_eq!(begin(&mut cache, at(1), &lock), None, "in use");
    assert_eq!(cache.end(at(1), &first), AfterSection::Keep);
    for other in [
        content(&["a"], true, "v", "k=m"),
        content(&["a", "b"], false, "v", "k=m"),
        content(&["a", "b"], true, "w", "k=m"),
        content(&["a", "b"], true, "v", ""),
    ] {
        assert_eq!(begin(&mut cache, at(1), &other), None, "{other:?}");
    }
    let same = content(&["a", "b", "a"], true, "v", "k=m");
    assert_eq!(begin(&mut cache, at(1), &same).unwrap().token.get(), first.token.get() + 1);
}

#[test]
fn a_section_begins_only_with_a_valid_lease_on_an_attached_stream() {
    let (mut cache, a) = (cache(), lock("a"));
    let first = cached(&mut cache, at(0), 1, &a, 15);
    assert_eq!(cache.end(at(0), &first), AfterSection::Keep);
    cache.lease_until(Some(at(100)));
    cache.attached(false);
    assert_eq!(begin(&mut cache, at(1), &a), None);
    cache.attached(true);
    assert!(cache.begin(at(50), &a, Duration::from_millis(51)).is_none());
    assert_eq!(begin(&mut cache, at(100), &a), None);
    cache.lease_until(None);
    assert_eq!(begin(&mut cache, at(1), &a), None);
    cache.lease_until(Some(at(100)));
    assert!(cache.begin(at(50), &a, Duration::from_millis(50)).is_some());
}

#[test]
fn after_a_recall_no_section_begins() {
    let (mut cache, a) = (cache(), lock("a"));
    let first = cached(&mut cache, at(0), 1, &a, 15);
    assert_eq!(cache.recalled(at(1), Key(1)), RecallAnswer::Settle);
    assert_eq!(cache.recalled(at(2), Key(1)), RecallAnswer::Settle, "told again");
    assert_eq!(cache.end(at(3), &first), AfterSection::Release);
    assert_eq!(begin(&mut cache, at(3), &a), None);
    let second = cached(&mut cache, at(4), 2, &a, 15);
    assert_eq!(cache.end(at(5), &second), AfterSection::Keep);
    assert_eq!(cache.recalled(at(6), Key(2)), RecallAnswer::Release);
    assert_eq!(begin(&mut cache, at(6), &a), None);
}

#[test]
fn a_hold_that_is_lost_or_changed_leaves_the_cache() {
    let (mut cache, a) = (cache(), lock("a"));
    let first = cached(&mut cache, at(0), 1, &a, 15);
    assert!(!cache.remove_key(Key(1)), "a section uses it");
    // Another hold takes its place, also in memory.
    let other = cached(&mut cache, at(1), 2, &lock("b"), 15);
    assert_eq!(cache.end(at(2), &first), AfterSection::Release);
    assert_eq!(cache.end(at(2), &other), AfterSection::Keep);
    assert!(cache.remove_key(Key(2)), "it was idle");
    assert!(!cache.remove_key(Key(2)));
    assert_eq!(begin(&mut cache, at(2), &lock("b")), None);
}

/// Asks, and is granted what it asked for.
fn acquire(
    cache: &mut Cache<()>,
    now: BootInstant,
    key: u64,
    lock: &Arc<CachedLock>,
) -> (u32, Option<CachedSection>) {
    let spare = cache.spare_tokens(now, lock);
    let (section, _) = cache.granted(now, Key(key), lock, &grant(key * 10_000, spare), CACHE_FOR, ());
    (spare, section)
}

#[test]
fn a_lock_is_cached_after_three_acquires_alone_in_growing_blocks() {
    let (mut cache, a) = (cache(), lock("a"));
    let mut asked = Vec::new();
    for key in 1..=14 {
        if key == 3 {
            cache.met_others(&a);
        }
        let (spare, mut section) = acquire(&mut cache, at(0), key, &a);
        asked.push(spare);
        while let Some(it) = section {
            let after = cache.end(at(0), &it);
            section = begin(&mut cache, at(0), &a);
            assert_eq!(section.is_some(), after == AfterSection::Keep);
        }
    }
    assert_eq!(asked, [0, 0, 0, 0, 0, 15, 31, 63, 127, 255, 511, 1023, 1023, 1023]);
    assert_eq!(limits::SPARE_TOKENS_MAX, 1023);
}

#[test]
fn two_recalls_within_ten_seconds_pause_caching_for_ten() {
    let (mut cache, a) = (cache(), lock("a"));
    let mut key = 0;
    let mut next = |cache: &mut Cache<()>, ms| {
        key += 1;
        let (spare, section) = acquire(cache, at(ms), key, &a);
        if section.is_some() {
            assert_eq!(cache.recalled(at(ms), Key(key)), RecallAnswer::Settle);
        }
        spare
    };
    let mut asked = |from| [0; 4].map(|_| next(&mut cache, from));
    assert_eq!(asked(0), [0, 0, 0, 15]);
    assert_eq!(asked(10_001), [0, 0, 0, 15], "alone for long enough since the recall");
    assert_eq!(asked(20_001), [0, 0, 0, 15], "the second recall within 10 s");
    assert_eq!(asked(30_000), [0, 0, 0, 0]);
    assert_eq!(asked(30_001), [15, 0, 0, 0]);
}

#[test]
fn a_hold_is_due_once_it_was_idle_for_its_time() {
    let (mut cache, a) = (cache(), lock("a"));
    let first = cached(&mut cache, at(0), 1, &a, 15);
    assert_eq!(cache.next_due(), Some(at(10_000)));
    assert_eq!(cache.due(at(10_000)), None, "in use");
    assert_eq!(cache.end(at(12_000), &first), AfterSection::Keep);
    let second = begin(&mut cache, at(13_000), &a).unwrap();
    assert_eq!(cache.end(at(14_000), &second), AfterSection::Keep);
    assert_eq!(cache.next_due(), Some(at(20_000)), "a look costs a section nothing");
    assert_eq!(cache.due(at(20_000)), None);
    assert_eq!(cache.next_due(), Some(at(24_000)));
    assert_eq!(cache.due(at(23_999)), None);
    assert_eq!(cache.due(at(24_000)), Some(Key(1)));
    assert_eq!(begin(&mut cache, at(24_000), &a), None);
    assert_eq!(cache.due(at(24_000)), None);
}

#[test]
fn the_hold_that_was_idle_for_longest_makes_room() {
    let mut cache = cache();
    let max = CACHED_HOLDS_MAX as u64;
    let locks: Vec<_> = (0..max).map(|number| lock(&number.to_string())).collect();
    let sections: Vec<_> = (0..max).map(|n| cached(&mut cache, at(n), n, &locks[n as usize], 15)).collect();
    let one_more =
        |cache: &mut Cache<()>, ms| cache.granted(at(ms), Key(max), &lock("x"), &grant(1, 15), CACHE_FOR, ());
    assert_eq!(one_more(&mut cache, 4_500), (None, None), "all are in use");
    for section in &sections {
        assert_eq!(cache.end(at(5_000), section), AfterSection::Keep);
    }
    for number in [0, 1, 3] {
        let section = begin(&mut cache, at(6_000), &locks[number]).unwrap();
        assert_eq!(cache.end(at(7_000), &section), AfterSection::Keep);
    }
    let in_use = begin(&mut cache, at(8_000), &locks[2]).unwrap();
    let (section, released) = one_more(&mut cache, 9_000);
    assert!(section.is_some());
    assert_eq!(released, Some(Key(4)));
    assert_eq!(begin(&mut cache, at(9_000), &locks[4]), None);
    assert_eq!(cache.end(at(9_000), &in_use), AfterSection::Keep);
    assert_eq!(cache.by_key.len(), CACHED_HOLDS_MAX);
}

#[test]
fn memory_for_habits_is_bounded_and_the_latest_are_kept() {
    let mut cache = cache();
    for number in 0..10_000 {
        for key in 0..3 {
            acquire(&mut cache, at(0), key, &lock(&number.to_string()));
        }
        assert!(cache.habits.len() <= CACHED_HOLDS_MAX);
    }
    assert_eq!(cache.spare_tokens(at(0), &lock("9999")), 15);
    assert_eq!(cache.spare_tokens(at(0), &lock("8000")), 15);
    assert_eq!(cache.spare_tokens(at(0), &lock("1")), 0);
}

#[test]
fn after_the_stop_nothing_is_cached() {
    let (mut cache, a) = (cache(), lock("a"));
    let idle = cached(&mut cache, at(0), 1, &a, 15);
    assert_eq!(cache.end(at(0), &idle), AfterSection::Keep);
    let in_use = cached(&mut cache, at(0), 2, &lock("b"), 15);
    assert_eq!(cache.stop(), [Key(1)]);
    assert_eq!(cache.end(at(0), &in_use), AfterSection::Release);
    assert_eq!(begin(&mut cache, at(0), &a), None);
    assert_eq!(cache.granted(at(0), Key(3), &a, &grant(5, 15), CACHE_FOR, ()), (None, None));
    assert_eq!(cache.next_due(), None);
}
