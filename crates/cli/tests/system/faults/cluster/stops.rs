//! Stopped processes: a holder, a leader, a follower.

use std::time::Duration;

use lockkeeper::LockName;
use nix::sys::signal::Signal;

use super::nodes::{ALL, Nodes, lockkeeper, others};
use crate::faults::load::Load;
use crate::faults::server::{answer, within};
use crate::faults::stalls::{queue, sessions, stop_the_holder};

/// A ttl long enough to detect and replace a silent leader, even on a busy machine.
const TTL: Duration = Duration::from_secs(12);

/// P5: the stopped holder's guard is lost before the next holder has the lock. P3: its late write is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_holder_loses_its_hold_and_its_write_is_refused() {
    let nodes = Nodes::founded();
    stop_the_holder(&nodes.url(), &nodes.nodes[0].beside("resource")).await;
}

/// P6 and P9: the stopped leader extends no session, and does no harm when it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_leader_is_replaced_and_every_hold_and_waiter_is_kept() {
    let nodes = Nodes::founded();
    let watcher = nodes.client("watcher").await;
    let (holder, waiter) = (nodes.client("holder").await, nodes.client("waiter").await);
    let held = holder.mutex("held").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.mutex("held").ttl(TTL);
        async move { lock.acquire().await }
    });
    let before = answer("the waiter is in the queue", async || {
        let queue = queue(&watcher, "held").await;
        (queue.1.len() == 1).then_some(queue)
    })
    .await;
    let live = sessions(&watcher).await;

    let leader = nodes.leader(&ALL).await;
    nodes.nodes[leader].signal(Signal::SIGSTOP);
    let next = nodes.leader(&others(leader)).await;
    assert_ne!(next, leader);
    let fresh = nodes.client("fresh").await;
    let other = within("a new acquire works", fresh.mutex("other").ttl(TTL).acquire()).await.unwrap();
    within("it is given back", other.release()).await.unwrap();
    within("the hold is confirmed", held.verify()).await.unwrap();
    assert_eq!(held.loss(), None);
    assert_eq!(queue(&watcher, "held").await, before);

    nodes.nodes[leader].signal(Signal::SIGCONT);
    nodes.catches_up(leader).await;
    within("the hold is confirmed", held.verify()).await.unwrap();
    let now = sessions(&watcher).await;
    assert!(live.iter().all(|session| now.contains(session)), "{live:?} live before, {now:?} after");
    let token = held.token();
    within("it is given back", held.release()).await.unwrap();
    let granted = within("the waiter has its turn", waiting).await.unwrap().unwrap();
    assert!(granted.token() > token);
    within("it is given back", granted.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_follower_does_not_disturb_the_cluster_and_catches_up() {
    let nodes = Nodes::founded();
    let leader = nodes.leader(&ALL).await;
    let load = Load::start(vec![nodes.client("one").await], 2, 5);
    load.goes_on(20);
    let follower = others(leader)[0];
    nodes.nodes[follower].signal(Signal::SIGSTOP);
    load.goes_on(200);
    assert_eq!(nodes.leader(&others(follower)).await, leader, "nobody had a reason to elect another");
    nodes.nodes[follower].signal(Signal::SIGCONT);
    nodes.catches_up(follower).await;
    load.goes_on(20);
    load.checked().await;
}

/// The commands get the address of a follower only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_the_leader_through_a_follower() {
    let nodes = Nodes::founded();
    let leader = nodes.leader(&ALL).await;
    let held = nodes.client("holder").await.mutex("a").acquire().await.unwrap();
    for follower in others(leader) {
        let url = nodes.nodes[follower].url();
        let said = lockkeeper(&["ls", "--locks", &url, "--json"]);
        assert!(said.contains(&held.token().to_string()), "{said}");
        let said = lockkeeper(&["run", "--locks", &url, &format!("b/{follower}"), "--", "echo", "it works"]);
        assert_eq!(said, "it works\n");
        let token = held.token().to_string();
        lockkeeper(&["check-token", "--locks", &url, "a", &token]);
    }
    let name: LockName = "a".parse().unwrap();
    let watcher = nodes.client("watcher").await;
    let info = within("the service answers", watcher.inspect(&name)).await.unwrap();
    assert_eq!(info.holds.len(), 1);
    within("it is given back", held.release()).await.unwrap();
}
