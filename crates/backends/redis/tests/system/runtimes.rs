//! Guards dropped outside of any runtime, or in the context of a runtime that is not driven.

use lockkeeper_rig::Redis;

use crate::support::{client, until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn until_free(redis: &Redis, name: &str) {
    let locks = client(redis, "next").await;
    until("it is given back", async || locks.mutex(name).try_acquire().await.unwrap())
        .await
        .release()
        .await
        .unwrap();
}

#[test]
fn a_guard_that_is_dropped_outside_of_a_runtime_is_given_back() {
    let redis = Redis::start();
    let locks = lockkeeper::blocking::Locks::connect(&redis.url()).unwrap();
    drop(locks.mutex("blocking").acquire().unwrap());
    runtime().block_on(until_free(&redis, "blocking"));
}

#[test]
fn a_guard_that_is_dropped_beside_an_undriven_runtime_is_given_back() {
    let redis = Redis::start();
    let still = runtime();
    let held =
        still.block_on(async { client(&redis, "still").await.mutex("still").acquire().await.unwrap() });
    let entered = still.enter();
    drop(held);
    drop(entered);
    runtime().block_on(until_free(&redis, "still"));
}
