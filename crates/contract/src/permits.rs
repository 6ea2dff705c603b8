//! Permits of one name: slots, one number for all who use it, exclusive holds beside them, and a crowd.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lockkeeper::{AcquireError, Wait};

use crate::subject::{Subject, start_waiting};

pub(crate) async fn check(subject: &impl Subject) {
    lowest_free_slot_is_taken(subject).await;
    another_number_is_refused_with_both(subject).await;
    exclusive_holds_are_excluded_and_wait_in_turn(subject).await;
    crowd_has_slots_of_its_own(subject).await;
}

async fn lowest_free_slot_is_taken(subject: &impl Subject) {
    let locks = subject.client("one").await;
    let mut held = Vec::new();
    for slot in 0..5 {
        let permit = locks.semaphore("permits/slots", 5).acquire().await.unwrap();
        assert_eq!(permit.slot(), Some(slot));
        held.push(Some(permit));
    }
    assert!(locks.semaphore("permits/slots", 5).try_acquire().await.unwrap().is_none());
    for slots in [vec![3], vec![4, 0, 2]] {
        for &slot in &slots {
            held[slot].take().unwrap().release().await.unwrap();
        }
        let mut lowest = slots.clone();
        lowest.sort_unstable();
        for slot in lowest {
            let permit = locks.semaphore("permits/slots", 5).acquire().await.unwrap();
            assert_eq!(permit.slot(), Some(u32::try_from(slot).unwrap()), "of {slots:?}");
            held[slot] = Some(permit);
        }
    }
    for permit in held.into_iter().flatten() {
        permit.release().await.unwrap();
    }
}

/// Rule L3 (docs/table-rules.md).
async fn another_number_is_refused_with_both(subject: &impl Subject) {
    let locks = subject.client("one").await;
    let refused = async |of: Option<u32>| {
        let lock = match of {
            Some(of) => locks.semaphore("permits/limit", of),
            None => locks.semaphore_in_force("permits/limit"),
        };
        match lock.acquire().await {
            Err(AcquireError::Backend(error)) => error.message,
            other => panic!("not refused: {other:?}"),
        }
    };
    let message = refused(None).await;
    assert!(message.contains("say how many"), "{message}");
    let held = locks.semaphore("permits/limit", 3).acquire().await.unwrap();
    let message = refused(Some(5)).await;
    assert!(message.contains('3') && message.contains('5'), "{message}");
    assert_eq!(locks.inspect("permits/limit").await.unwrap().permits, Some(3));
    let same = locks.semaphore_in_force("permits/limit").acquire().await.unwrap();
    assert_eq!(same.slot(), Some(1));
    same.release().await.unwrap();
    held.release().await.unwrap();
    // Nobody holds a permit: another number is fine.
    locks.semaphore("permits/limit", 5).acquire().await.unwrap().release().await.unwrap();
}

async fn exclusive_holds_are_excluded_and_wait_in_turn(subject: &impl Subject) {
    let (one, two) = (subject.client("one").await, subject.client("two").await);
    let name = "permits/alone";
    let alone = one.mutex(name).acquire().await.unwrap();
    assert!(two.semaphore(name, 2).try_acquire().await.unwrap().is_none());
    let waiting = start_waiting(two.semaphore(name, 2)).await;
    alone.release().await.unwrap();
    let first = waiting.await.unwrap().unwrap();
    let second = one.semaphore(name, 2).acquire().await.unwrap();
    assert!(one.mutex(name).try_acquire().await.unwrap().is_none());
    let waiting = start_waiting(one.mutex(name)).await;
    first.release().await.unwrap();
    if one.capabilities().fair {
        // It would overtake the exclusive waiter.
        assert!(two.semaphore(name, 2).try_acquire().await.unwrap().is_none());
    }
    second.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Within a slot, tokens rise: its fence refuses a late holder's writes (P2, P3).
async fn crowd_has_slots_of_its_own(subject: &impl Subject) {
    let last: Arc<Mutex<HashMap<u32, Option<u64>>>> = Arc::default();
    let inside: Arc<Mutex<Vec<u32>>> = Arc::default();
    let mut crowd = Vec::new();
    for number in 0..10 {
        let locks = subject.client(&format!("crowd {number}")).await;
        let (last, inside) = (last.clone(), inside.clone());
        crowd.push(tokio::spawn(async move {
            for _ in 0..3 {
                let lock = locks.semaphore("permits/crowd", 3).wait(Wait::Forever);
                let permit = lock.acquire().await.unwrap();
                let slot = permit.slot().unwrap();
                {
                    let mut inside = inside.lock().unwrap();
                    assert!(!inside.contains(&slot) && slot < 3, "slot {slot} beside {inside:?}");
                    inside.push(slot);
                    let token = permit.token_hint().map(|token| token.get());
                    let before = last.lock().unwrap().insert(slot, token).flatten();
                    assert!(token.is_none() || before < token, "slot {slot}: {token:?} after {before:?}");
                }
                tokio::task::yield_now().await;
                permit.verify().await.unwrap();
                inside.lock().unwrap().retain(|other| *other != slot);
                permit.release().await.unwrap();
            }
        }));
    }
    for one in crowd {
        one.await.unwrap();
    }
}
