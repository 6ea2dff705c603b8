//! Writes that a server loses, and clock steps: the holder detects the loss, and tokens still rise.

use lockkeeper::{Locks, LossCause};

use crate::support::{SECOND, address, durable, loss, until, with_tokens};
use crate::switch::Switch;

#[tokio::test]
async fn a_flush_is_seen_as_loss_and_tokens_rise_after_it() {
    let redis = durable();
    let (alice, bob) = (with_tokens(&redis, "alice").await, with_tokens(&redis, "bob").await);
    let held = alice.mutex("jobs").ttl(2 * SECOND).acquire().await.unwrap();
    redis.cli(&["FLUSHALL"]);
    let next = bob.mutex("jobs").acquire().await.unwrap();
    assert_eq!(loss(&held).await, LossCause::Forgotten);
    assert!(next.token_hint() > held.token_hint());
    assert!(held.release().await.is_err());
    next.verify().await.unwrap();
}

/// A real replica that lacks the last write becomes the primary.
#[tokio::test]
async fn a_fail_over_that_loses_the_hold_is_seen_as_loss() {
    let primary = durable();
    let replica = primary.replica();
    let switch = Switch::to(address(&primary));
    let url = format!("{}?fencing=counter", switch.url());
    let alice = Locks::connect_as(&url, "alice").await.unwrap();
    let copied = alice.mutex("copied").ttl(60 * SECOND).acquire().await.unwrap();
    // Polled, because `WAIT` covers only the writes of its own connection.
    until("it is copied", async || (replica.cli(&["EXISTS", "copied"]) == "1").then_some(())).await;
    // The replica is cut off and paused while the primary acknowledges a hold that is never replicated.
    replica.stop();
    primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost = alice.mutex("jobs").ttl(6 * SECOND).acquire().await.unwrap();
    primary.kill();
    replica.cont();
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    switch.turn_to(address(&replica));
    let bob = Locks::connect_as(&url, "bob").await.unwrap();
    let next = bob.mutex("jobs").acquire().await.unwrap();
    assert_eq!(loss(&lost).await, LossCause::Forgotten);
    assert!(next.token_hint() > lost.token_hint(), "the fence refuses the former holder's writes");
    copied.verify().await.expect("what was copied is held");
}

/// A wall clock that is set forward expires keys early; the next renewal detects it.
#[tokio::test]
async fn a_clock_that_is_set_forward_and_back_is_seen_as_loss_and_tokens_rise() {
    let redis = lockkeeper_rig::Redis::with_clock_and(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = with_tokens(&redis, "holder").await;
    let held = locks.mutex("jobs").ttl(10 * SECOND).acquire().await.unwrap();
    let first = held.token_hint();
    redis.clock().step(20);
    assert_eq!(loss(&held).await, LossCause::Forgotten);
    let again = locks.mutex("jobs").acquire().await.unwrap();
    let second = again.token_hint();
    again.release().await.unwrap();
    redis.clock().step(-20);
    let third = locks.mutex("jobs").acquire().await.unwrap().token_hint();
    assert!(first < second && second < third, "{first:?} {second:?} {third:?}");
}
