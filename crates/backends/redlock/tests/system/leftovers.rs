//! Abandoned and failed acquires, and guards dropped outside of a runtime, leave no entry on any server.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_rig::Redis;

use crate::support::{NAME, SECOND, Servers, try_to_hold};

/// Drops an acquire after 1 to 25 polls with a pause after each, with and without a conflicting holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_at_any_await_leaves_nothing() {
    let servers = Servers::start(3);
    let (locks, other) = (servers.client("gives up").await, servers.client("holds").await);
    let (mut dropped, mut granted) = (0, 0);
    for busy in [false, true] {
        for polls in 0..25 {
            let held = if busy { Some(try_to_hold(&other).await.expect("it is free")) } else { None };
            let lock = locks.mutex(NAME).ttl(10 * SECOND);
            // For one acquire the servers are stopped, so that it is certainly dropped before any answer.
            let still = !busy && polls == 0;
            if still {
                servers.0.iter().for_each(Redis::stop);
            }
            let done = {
                let mut acquire = pin!(lock.acquire());
                let mut done = None;
                for _ in 0..=polls {
                    let mut context = Context::from_waker(Waker::noop());
                    if let Poll::Ready(guard) = acquire.as_mut().poll(&mut context) {
                        done = Some(guard.unwrap());
                        break;
                    }
                    // Spreads the polls over the round trips.
                    tokio::time::sleep(Duration::from_micros(100)).await;
                }
                done
            };
            if still {
                servers.0.iter().for_each(Redis::cont);
            }
            dropped += u32::from(done.is_none());
            granted += u32::from(done.is_some());
            drop(done);
            if let Some(held) = held {
                held.release().await.unwrap();
            }
            servers.until_nothing_is_left(NAME).await;
            let next = try_to_hold(&other).await.expect("nothing of it is in the way");
            next.release().await.unwrap();
            servers.until_nothing_is_left(NAME).await;
        }
    }
    assert!(
        dropped > 25 && granted > 0,
        "dropped {dropped}, granted {granted}: the steps do not span an acquire"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_while_servers_hang_leaves_nothing_when_they_go_on() {
    let servers = Servers::start(5);
    let locks = servers.client("gives up").await;
    try_to_hold(&locks).await.expect("it is free").release().await.unwrap();
    servers.until_nothing_is_left(NAME).await;
    servers.0[..3].iter().for_each(Redis::stop);
    let lock = locks.mutex(NAME).ttl(10 * SECOND);
    let acquiring = tokio::time::timeout(Duration::from_millis(200), lock.acquire()).await;
    assert!(acquiring.is_err(), "two of five are no majority");
    servers.0[..3].iter().for_each(Redis::cont);
    servers.until_nothing_is_left(NAME).await;
    let held = try_to_hold(&locks).await.expect("nothing of it is in the way");
    held.release().await.unwrap();
}

/// Clients whose concurrent attempts are each granted by too few servers leave no entries there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rivals_leave_nothing_of_the_rounds_that_they_lost() {
    let servers = Servers::start(5);
    let mut rivals = Vec::new();
    for rival in 0..6 {
        let locks = servers.client(&format!("rival {rival}")).await;
        rivals.push(tokio::spawn(async move {
            for _ in 0..5 {
                locks.mutex(NAME).acquire().await.unwrap().release().await.unwrap();
            }
        }));
    }
    for rival in rivals {
        rival.await.unwrap();
    }
    servers.until_nothing_is_left(NAME).await;
}

/// A runtime that ends drops its tasks, and a guard may be dropped outside any runtime.
#[test]
fn a_runtime_that_ends_and_a_guard_that_is_dropped_outside_of_any_leave_nothing() {
    let servers = Servers::start(3);
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lasting = runtime();
    for url in [servers.url(), servers.0[0].url()] {
        let locks = lasting.block_on(lockkeeper::Locks::connect(&url)).unwrap();
        let short = runtime();
        let held = short.block_on(try_to_hold(&locks)).expect("it is free");
        // When the runtime ends, the acquire of `NAME` is pending, and one server has not yet answered the
        // acquire of `another`.
        let waiting = locks.mutex(NAME).ttl(10 * SECOND);
        short.spawn(async move { waiting.acquire().await.map(drop) });
        servers.0[2].stop();
        let lock = locks.mutex("another").ttl(10 * SECOND);
        let another = short.block_on(lock.acquire()).unwrap();
        short.shutdown_background();
        std::thread::spawn(move || drop((held, another))).join().unwrap();
        servers.0[2].cont();
        lasting.block_on(async {
            servers.until_nothing_is_left(NAME).await;
            servers.until_nothing_is_left("another").await;
            try_to_hold(&locks).await.expect("nothing is in the way").release().await.unwrap();
            servers.until_nothing_is_left(NAME).await;
        });
    }
}
