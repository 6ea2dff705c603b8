//! What Redlock does not survive, shown: docs/backends/redlock.md says it, and here it happens.

use lockkeeper::LossCause;
use lockkeeper_rig::Redis;

use crate::support::{NAME, SECOND, Servers, hold, try_to_hold, until};

/// One server that starts again with nothing, within a ttl, is enough if another had no part in the hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_within_a_ttl_can_give_the_lock_away_twice() {
    let servers = Servers::start(3);
    servers.0[2].kill();
    let one = servers.client("one").await;
    let held = hold(&one, 9 * SECOND).await.unwrap();
    servers.0[2].start_again();
    servers.0[1].wipe();
    let two = servers.client("two").await;
    let second = try_to_hold(&two).await.expect("two of three know of nobody");
    assert_eq!(held.loss(), None, "both believe that they hold it: only a fence could tell them apart");
    // It is told with the next keep-alive, since no majority has its entry any more.
    tokio::time::timeout(20 * SECOND, held.lost().cancelled()).await.expect("it is told");
    assert_eq!(held.loss(), Some(LossCause::Forgotten));
    second.verify().await.expect("what the first gave back was its own");
}

/// What helps: servers that have synced what they acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_sync_each_write_come_back_with_what_they_granted() {
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

/// Clocks of two of three that are set forward let the holder's entries expire there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_clocks_set_forward_gives_the_lock_away_twice() {
    let servers = Servers::of((0..3).map(|_| Redis::with_clock()));
    let (one, two) = (servers.client("one").await, servers.client("two").await);
    let held = hold(&one, 9 * SECOND).await.unwrap();
    // Two that granted are enough for the holder: a grant of the third that comes after the step would count as well.
    until("all three have granted", async || (servers.keys(NAME) == 3).then_some(())).await;
    servers.0[..2].iter().for_each(|server| server.clock().step(3600));
    let _second = until("it is granted again", async || try_to_hold(&two).await).await;
    tokio::time::timeout(20 * SECOND, held.lost().cancelled()).await.expect("it is told");
    assert_eq!(held.loss(), Some(LossCause::Forgotten));
}
