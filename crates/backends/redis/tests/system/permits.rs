//! Semaphores: slots, one limit for all users, and exclusion of exclusive holds.

use lockkeeper::{AcquireError, HolderState, Wait};
use lockkeeper_rig::Redis;

use crate::support::{SECOND, address, client, keys, until, until_waiting};
use lockkeeper_rig::Faults;

#[tokio::test]
async fn the_lowest_free_slot_is_taken() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let mut held = Vec::new();
    for slot in 0..10 {
        let permit = locks.semaphore("slots", 10).acquire().await.unwrap();
        assert_eq!(permit.slot(), Some(slot));
        held.push(Some(permit));
    }
    for slots in [vec![7], vec![3], vec![9, 0, 4], vec![1, 2]] {
        for &slot in &slots {
            held[slot].take().unwrap().release().await.unwrap();
        }
        let mut lowest = slots.clone();
        lowest.sort_unstable();
        for slot in lowest {
            let permit = locks.semaphore("slots", 10).acquire().await.unwrap();
            assert_eq!(permit.slot(), Some(u32::try_from(slot).unwrap()), "of {slots:?}");
            held[slot] = Some(permit);
        }
    }
    let eleventh = locks.semaphore("slots", 10).try_acquire().await.unwrap();
    assert!(eleventh.is_none());
}

/// Rule L3 (docs/table-rules.md): a request with another limit than the one in use is refused, and the error
/// names both limits.
#[tokio::test]
async fn a_limit_other_than_the_one_in_use_is_refused_with_both() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let held = locks.semaphore("slots", 3).acquire().await.unwrap();
    let Err(AcquireError::Backend(error)) = locks.semaphore("slots", 5).acquire().await else {
        panic!("not refused")
    };
    assert!(error.message.contains('3') && error.message.contains('5'), "{error}");
    assert_eq!(locks.inspect("slots").await.unwrap().permits, Some(3));
    let same = locks.semaphore_in_force("slots").acquire().await.unwrap();
    assert_eq!(same.slot(), Some(1));
    same.release().await.unwrap();
    held.release().await.unwrap();
    // No permit is held: any limit may be set, and there is none in force.
    let Err(AcquireError::Backend(error)) = locks.semaphore_in_force("slots").acquire().await else {
        panic!("not refused")
    };
    assert!(error.message.contains("say how many"), "{error}");
    locks.semaphore("slots", 5).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn permits_and_an_exclusive_hold_exclude_each_other() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let alone = locks.mutex("slots").acquire().await.unwrap();
    assert!(locks.semaphore("slots", 2).try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock = locks.semaphore("slots", 2);
        async move { lock.acquire().await.unwrap() }
    });
    until_waiting(&locks, "slots", 1).await;
    alone.release().await.unwrap();
    let permit = waiting.await.unwrap();
    assert!(locks.mutex("slots").try_acquire().await.unwrap().is_none());
    let second = locks.semaphore("slots", 2).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.mutex("slots");
        async move { lock.acquire().await.unwrap() }
    });
    until_waiting(&locks, "slots", 1).await;
    // A later request does not overtake the exclusive waiter, although a permit is free.
    permit.release().await.unwrap();
    assert!(locks.semaphore("slots", 2).try_acquire().await.unwrap().is_none());
    second.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    assert_eq!(keys(&redis), [""; 0]);
}

/// Each permit has an expiry of its own: a crash frees its own slot, and no other.
#[tokio::test]
async fn a_crash_frees_its_own_permit_and_no_other() {
    let redis = Redis::start();
    let faults = Faults::default();
    let url = format!("redis://{}", faults.proxy("crashes", address(&redis)));
    let crashes = lockkeeper::Locks::connect_as(&url, "crashes").await.unwrap();
    let stays = client(&redis, "stays").await;
    let crashed = crashes.semaphore("slots", 2).ttl(2 * SECOND).acquire().await.unwrap();
    let kept = stays.semaphore("slots", 2).ttl(2 * SECOND).acquire().await.unwrap();
    faults.cut_off("crashes");
    let next = stays.semaphore("slots", 2).wait(Wait::For(20 * SECOND)).acquire().await.unwrap();
    assert_eq!((next.slot(), kept.slot()), (crashed.slot(), Some(1)));
    assert!(crashed.loss().is_some(), "it knew before its slot was free (P5)");
    kept.verify().await.unwrap();
    drop(crashed);
    // The lock's own key, which excludes exclusive holds while permits are held, is deleted with the last
    // permit. So an exclusive request need not wait until it expires.
    kept.release().await.unwrap();
    next.release().await.unwrap();
    assert!(stays.mutex("slots").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_permit_that_stays_closed_keeps_its_slot() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let first = locks.semaphore("slots", 2).keep_closed(2 * SECOND).acquire().await.unwrap();
    first.release().await.unwrap();
    let second = locks.semaphore("slots", 2).acquire().await.unwrap();
    assert_eq!(second.slot(), Some(1));
    assert!(locks.semaphore("slots", 2).try_acquire().await.unwrap().is_none());
    let seen = locks.inspect("slots").await.unwrap();
    assert!(seen.holds.iter().any(|holder| matches!(holder.state, HolderState::Closed { .. })), "{seen:?}");
    let third = locks.semaphore("slots", 2).wait(Wait::For(20 * SECOND)).acquire().await.unwrap();
    assert_eq!(third.slot(), Some(0));
}

/// An exclusive request waits until the closed permit's time is over, and no longer.
#[tokio::test]
async fn the_last_closed_permit_blocks_exclusive_holds_only_for_its_own_time() {
    let redis = Redis::start();
    let locks = client(&redis, "holder").await;
    let permit = locks.semaphore("slots", 2).ttl(600 * SECOND).keep_closed(SECOND).acquire().await.unwrap();
    permit.release().await.unwrap();
    assert!(locks.mutex("slots").try_acquire().await.unwrap().is_none());
    let left: u64 = redis.cli(&["PTTL", "slots"]).parse().unwrap();
    assert!(left <= 1000, "{left}");
    locks.mutex("slots").wait(Wait::For(20 * SECOND)).acquire().await.unwrap().release().await.unwrap();
}

/// Concurrent acquires and releases: never more holders than permits, never two in one slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_holders_than_permits() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let redis = Redis::start();
    let taken: Arc<[AtomicBool; 3]> = Arc::default();
    let wrong = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for worker in 0..8 {
        let locks = client(&redis, &format!("worker {worker}")).await;
        let (taken, wrong) = (taken.clone(), wrong.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let permit = locks.semaphore("slots", 3).acquire().await.unwrap();
                let slot = &taken[permit.slot().unwrap() as usize];
                wrong.fetch_add(usize::from(slot.swap(true, Ordering::SeqCst)), Ordering::SeqCst);
                tokio::task::yield_now().await;
                slot.store(false, Ordering::SeqCst);
                permit.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(wrong.load(Ordering::SeqCst), 0);
    until("nothing is left", async || keys(&redis).is_empty().then_some(())).await;
}
