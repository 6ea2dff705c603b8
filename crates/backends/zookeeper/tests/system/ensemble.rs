//! An ensemble of three that loses members.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::ZooKeeper;

use crate::{until, until_within};

fn url(servers: &[ZooKeeper]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("zookeeper://{}", hosts.join(","))
}

fn leader(servers: &[ZooKeeper]) -> &ZooKeeper {
    servers.iter().find(|server| server.leads()).expect("a leader")
}

/// A hold is kept while each of the members in turn is killed, and while the leader is stopped.
///
/// A client that is connected to the stopped member finds that out after two thirds of the ttl. The rest must
/// be enough for the others' election, which on a busy machine has several rounds of up to 5 s (`initLimit`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_the_loss_of_any_member() {
    const TTL: Duration = Duration::from_secs(60);
    let servers = ZooKeeper::ensemble();
    let locks = Locks::connect(&url(&servers)).await.unwrap();
    let held = locks.mutex("x").ttl(TTL).acquire().await.unwrap();
    for server in &servers {
        server.kill();
        until("a renewal without this member", async || held.verify().await.ok()).await;
        server.start_again();
    }
    let stopped = leader(&servers);
    stopped.stop();
    until_within(2 * TTL, "a renewal without the leader, or a loss", async || {
        if held.loss().is_some() { Some(()) } else { held.verify().await.ok() }
    })
    .await;
    stopped.cont();
    assert_eq!(held.loss(), None);
    held.release().await.unwrap();
    let next = locks.mutex("x").acquire().await.unwrap();
    next.release().await.unwrap();
}

/// A member that is cut off from the others answers reads and pings for a while. A hold through it is lost
/// here before the others grant the lock again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_through_a_member_without_a_majority_is_lost_first() {
    let servers = ZooKeeper::ensemble();
    let follower = servers.iter().find(|server| !server.leads()).expect("a follower");
    let one = Locks::connect(&follower.url()).await.unwrap();
    let held = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    for other in servers.iter().filter(|server| server.port() != follower.port()) {
        other.stop();
    }
    until("the loss", async || held.loss()).await;
    for other in servers.iter().filter(|server| server.port() != follower.port()) {
        other.cont();
    }
    drop(held);
    // They may have to elect a leader again.
    let other = until("a majority", async || Locks::connect(&url(&servers)).await.ok()).await;
    let next = until("the next grant", async || other.mutex("x").try_acquire().await.ok().flatten()).await;
    next.release().await.unwrap();
}
