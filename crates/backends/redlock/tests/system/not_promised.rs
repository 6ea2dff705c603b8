//! Demonstrates the faults that Redlock does not survive, as docs/backends/redlock.md lists them.

use lockkeeper::LossCause;
use lockkeeper_rig::Redis;

use crate::support::{NAME, SECOND, Servers, hold, try_to_hold, until};

/// A single server that restarts without its data within a ttl is enough, if another server never stored the
/// hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_within_a_ttl_can_grant_the_lock_twice() {
    let servers = Servers::start(3);
    servers.0[2].kill();
    let one = servers.client("one").await;
    let held = hold(&one, 9 * SECOND).await.unwrap();
    servers.0[2].start_again();
    servers.0[1].wipe();
    let two = servers.client("two").await;
    let second = try_to_hold(&two).await.expect("two of three know of nobody");
    assert_eq!(held.loss(), None, "both believe that they hold it: only a fence could tell them apart");
    // The next keep-alive reports the loss, since no majority has the holder's entry any more.
    tokio::time::timeout(20 * SECOND, held.lost().cancelled()).await.expect("it is told");
    assert_eq!(held.loss(), Some(LossCause::Forgotten));
    second.verify().await.expect("what the first gave back was its own");
}

/// The remedy: servers that sync every write before they acknowledge it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_sync_each_write_keep_their_grants_over_a_restart() {
    let synced = || Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let servers = Servers::of((0..3).map(|_| synced()));
    servers.0[2].kill();
    let one = servers.client("one").await;
    let held = hold(&one, 9 * SECOND).await.unwrap();
    servers.0[2].start_again();
    servers.0[1].kill();
    servers.0[1].start_again();
    let two = servers.client("two").await;
    assert!(try_to_hold(&two).await.is_none(), "the one that was killed still knows the holder");
    until("the holder reaches it again", async || held.verify().await.ok()).await;
    held.release().await.unwrap();
    servers.until_nothing_is_left(NAME).await;
}

/// Two of three clocks that are set forward expire the holder's entries there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_clocks_set_forward_grants_the_lock_twice() {
    let servers = Servers::of((0..3).map(|_| Redis::with_clock()));
    let (one, two) = (servers.client("one").await, servers.client("two").await);
    let held = hold(&one, 9 * SECOND).await.unwrap();
    // Two grants are enough for the hold. The third server must have granted too before the clocks are set.
    until("all three have granted", async || (servers.keys(NAME) == 3).then_some(())).await;
    servers.0[..2].iter().for_each(|server| server.clock().step(3600));
    let _second = until("it is granted again", async || try_to_hold(&two).await).await;
    tokio::time::timeout(20 * SECOND, held.lost().cancelled()).await.expect("it is told");
    assert_eq!(held.loss(), Some(LossCause::Forgotten));
}
