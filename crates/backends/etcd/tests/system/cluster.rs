//! A cluster of three that loses members.

use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper_rig::Etcd;

use crate::until;

fn url(members: &[Etcd]) -> String {
    let hosts: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    format!("etcd://{}", hosts.join(","))
}

/// A hold is kept while each of the members in turn is killed, and while the leader is stopped; a waiter gets
/// the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_survives_the_loss_of_any_member() {
    let members = Etcd::cluster();
    let locks = Locks::connect(&url(&members)).await.unwrap();
    let held = locks.mutex("x").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let other = Locks::connect(&url(&members)).await.unwrap();
    let waiting = other.mutex("x");
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    for member in &members {
        member.kill();
        until("a renewal without this member", async || held.verify().await.ok()).await;
        member.start_again();
    }
    let leader = until("a leader", async || members.iter().find(|member| member.leads())).await;
    leader.stop();
    until("a renewal without the leader", async || held.verify().await.ok()).await;
    leader.cont();
    assert!(held.loss().is_none());
    let token = held.token_hint();
    held.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.token_hint() > token);
    next.release().await.unwrap();
}

/// A member that is cut off from the others grants and renews nothing. A hold through it is lost here before
/// the others grant the lock again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_through_a_member_without_a_majority_is_lost_first() {
    let members = Etcd::cluster();
    let one = Locks::connect(&members[0].url()).await.unwrap();
    let held = one.mutex("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    members[1..].iter().for_each(Etcd::stop);
    until("the loss", async || held.loss()).await;
    members[1..].iter().for_each(Etcd::cont);
    drop(held);
    // They may have to elect a leader again.
    let other = until("a majority", async || Locks::connect(&url(&members)).await.ok()).await;
    let next = until("the next grant", async || other.mutex("x").try_acquire().await.ok().flatten()).await;
    next.release().await.unwrap();
}
