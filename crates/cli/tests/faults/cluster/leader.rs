//! A leader that is killed again and again under load: nobody notices but by waiting (P7), and nothing that was acknowledged
//! is lost (P10).

use lockkeeper::{LockName, Wait};

use super::nodes::{ALL, Nodes, others};
use crate::load::Load;
use crate::server::{LONG, Server, answer, within};

const KILLS: u64 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_under_load_costs_no_hold_and_no_place() {
    let mut nodes = Nodes::founded();
    let (one, two) = (nodes.client("one").await, nodes.client("two").await);
    // Held and waited for over all of it.
    let kept = one.mutex("kept").ttl(LONG).acquire().await.unwrap();
    let token = kept.token();
    let waiter = tokio::spawn({
        let lock = two.mutex("kept").ttl(LONG);
        async move { lock.acquire().await }
    });
    let name: LockName = "kept".parse().unwrap();
    let watcher = nodes.client("watcher").await;
    let waiters = async || {
        let info = watcher.inspect(&name).await.ok()?;
        let holders: Vec<_> = info.holders.iter().map(|holder| holder.token).collect();
        (info.waiter_count == 1).then_some(holders)
    };
    answer("the waiter is in the queue", waiters).await;

    let load = Load::start(vec![one.clone(), two.clone()], 2, 5);
    for kill in 0..KILLS {
        // Another point of the load each time.
        load.goes_on(20 + kill * 7);
        let leader = nodes.leader(&ALL).await;
        nodes.nodes[leader].kill();
        // Two of three are enough.
        load.goes_on(20);
        assert_ne!(nodes.leader(&others(leader)).await, leader);
        let holders = answer("the waiter is in the queue still", waiters).await;
        assert_eq!(holders, [Some(token)], "after kill {kill}");
        assert_eq!(kept.loss(), None, "after kill {kill}");
        nodes.nodes[leader].start();
        nodes.catches_up(leader).await;
    }
    within("the service confirms the hold", kept.verify()).await.unwrap();
    within("the hold is given back", kept.release()).await.unwrap();
    let next = within("the waiter has its turn", waiter).await.unwrap().unwrap();
    assert!(next.token() > token);
    let free = one.mutex("kept").ttl(LONG).wait(Wait::No).acquire().await;
    assert!(free.is_err(), "the waiter's hold excludes");
    within("the hold is given back", next.release()).await.unwrap();
    let done = load.checked().await;
    assert!(done.granted > 40 * KILLS, "{} granted", done.granted);
}

/// P10: all of them at once, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_killed_as_a_whole_keeps_every_hold() {
    let mut nodes = Nodes::founded();
    let locks = nodes.client("one").await;
    let kept = locks.mutex("kept").ttl(LONG).acquire().await.unwrap();
    let load = Load::start(vec![locks.clone(), nodes.client("two").await], 2, 5);
    for _ in 0..3 {
        load.goes_on(30);
        nodes.nodes.iter_mut().for_each(Server::kill);
        nodes.nodes.iter_mut().for_each(Server::begin);
        nodes.nodes.iter_mut().for_each(Server::serves);
        load.goes_on(30);
        assert_eq!(kept.loss(), None);
    }
    within("the service confirms the hold", kept.verify()).await.unwrap();
    let free = nodes.client("third").await.mutex("kept").ttl(LONG).wait(Wait::No).acquire().await;
    assert!(free.is_err(), "the hold excludes");
    within("the hold is given back", kept.release()).await.unwrap();
    load.checked().await;
}
