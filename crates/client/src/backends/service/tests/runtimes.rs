//! Calls of tasks of one runtime share frames; a runtime that stops holds no call back.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::stand_in::StandIn;
use super::{SECOND, until};
use crate::guard::Guard;
use crate::kind::Unfenced;
use crate::locks::Locks;

const CALLERS: usize = 100;

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A hold whose session's next keep-alive is minutes away: a keep-alive would send what is held back, too.
async fn hold(service: &StandIn) -> (Locks, Guard<Unfenced>) {
    let locks = service.client("one").await;
    let held = locks.mutex("a").ttl(600 * SECOND).acquire().await.unwrap();
    (locks, held)
}

/// Polls a release once, and drops it.
async fn begin_to_release(held: Guard<Unfenced>) {
    let mut release = pin!(held.release());
    poll_fn(|cx| {
        assert!(release.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

async fn acquire_and_release_together(service: &StandIn) -> (usize, usize) {
    let (locks, warm) = hold(service).await;
    warm.release().await.unwrap();
    let before = service.frames();
    let mut tasks = JoinSet::new();
    for caller in 0..CALLERS {
        let lock = locks.mutex(format!("lock {caller}")).ttl(600 * SECOND);
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let held = tasks.join_all().await;
    let acquired = service.frames();
    let mut tasks = JoinSet::new();
    for held in held {
        tasks.spawn(async move { held.release().await.unwrap() });
    }
    tasks.join_all().await;
    (acquired - before, service.frames() - acquired)
}

#[test]
fn calls_of_tasks_that_are_ready_together_share_a_frame() {
    let service = StandIn::start();
    assert_eq!(current_thread().block_on(acquire_and_release_together(&service)), (1, 1));
}

/// How many tasks a thread finds ready at once is the system's choice, so it is enough if one of several
/// rounds shares.
#[test]
fn calls_from_several_threads_share_few_frames() {
    const ROUNDS: usize = 10;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let service = StandIn::start();
        let (acquires, releases) = runtime.block_on(async { acquire_and_release_together(&service).await });
        if acquires <= CALLERS / 4 && releases <= CALLERS / 4 {
            return;
        }
        seen.push((acquires, releases));
    }
    panic!("{seen:?}");
}

#[test]
fn an_abandoned_release_is_sent_although_its_runtime_stands_still() {
    let service = StandIn::start();
    let still = current_thread();
    let (_locks, held) = still.block_on(hold(&service));
    still.block_on(begin_to_release(held));
    current_thread().block_on(until("it is released", || service.in_use() == 0));
}

#[test]
fn an_abandoned_release_is_sent_when_its_runtime_ends() {
    let service = StandIn::start();
    let ending = current_thread();
    let (_locks, held) = ending.block_on(hold(&service));
    let task = ending.spawn(async move {
        let mut release = pin!(held.release());
        poll_fn(|cx| release.as_mut().poll(cx).map(drop)).await;
    });
    // The task is polled in the same turn as this future.
    ending.block_on(tokio::task::yield_now());
    drop(ending);
    assert!(task.is_finished());
    current_thread().block_on(until("it is released", || service.in_use() == 0));
}
