//! Links between nodes that are cut in one direction: the messages that one node sends are dropped, but it
//! still receives the other's. Clients reach every node.
//!
//! Each test has its own network, which requires root and `ip`.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_rig::Network;
use tokio::task::JoinHandle;

use super::nodes::{ALL, Nodes, others, status_at};
use crate::faults::load::Load;
use crate::faults::server::{LONG, answer, within};

/// Three nodes, each on its own host.
struct Scene {
    network: Arc<Network>,
    nodes: Nodes,
}

/// An environment variable that is set in the process that runs one test alone.
const ALONE: &str = "LK_FAULTS_ALONE";

/// Runs the test with this name inside a network, in a process of its own: the library uses one thread for
/// all streams of a process, and that thread must be inside the network, too.
fn scene<F: Future<Output = ()>>(name: &str, test: impl FnOnce(Scene) -> F) {
    if std::env::var_os(ALONE).is_none() {
        let mut own = Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "--nocapture", &format!("faults::cluster::cuts::{name}")]).env(ALONE, "1");
        let Output { status, stdout, stderr } = own.output().unwrap();
        let said = [stdout, stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(status.success() && said.contains("1 passed"), "{status}: {said}");
        return;
    }
    let network = Arc::new(Network::around_this_thread(3));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let nodes = Nodes::founded_on(&network);
        test(Scene { network, nodes }).await;
    });
}

impl Scene {
    fn cut(&self, from: &[usize], to: &[usize]) {
        each(from, to, |from, to| self.network.cut(from, to));
    }

    fn mend(&self, from: &[usize], to: &[usize]) {
        each(from, to, |from, to| self.network.mend(from, to));
    }

    /// Waits until `node` has no leader, or another one than `leader`.
    async fn misses(&self, node: usize, leader: usize) {
        answer("it misses its leader", async || {
            let status = self.nodes.status(node).await?;
            (status.leader != Some(leader as u64 + 1)).then_some(())
        })
        .await;
    }

    /// Waits until `leader` reports that it receives nothing from `node`.
    async fn is_missed(&self, node: usize, leader: usize) {
        let locks = self.nodes.client("operator").await;
        answer("the leader misses it", async || {
            let cluster = locks.cluster().await.ok().filter(|cluster| cluster.leader == leader as u64 + 1)?;
            let it = cluster.nodes.iter().find(|it| it.node == node as u64 + 1)?;
            (!it.answers).then_some(())
        })
        .await;
    }

    /// Waits until `node`, the former leader, has stepped down.
    async fn gives_up(&self, node: usize) {
        answer("it leads no more", async || {
            self.nodes.status(node).await.filter(|status| status.role != lockkeeper::NodeRole::Leader)
        })
        .await;
    }
}

fn each(from: &[usize], to: &[usize], does: impl Fn(usize, usize)) {
    from.iter().for_each(|&from| to.iter().for_each(|&to| does(from, to)));
}

/// Polls all nodes, and records which node leads in each term.
struct Believers {
    stop: Arc<AtomicBool>,
    task: JoinHandle<BTreeMap<u64, u64>>,
}

impl Believers {
    fn of(nodes: &Nodes) -> Self {
        let urls = ALL.map(|node| nodes.nodes[node].url());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut leaders = BTreeMap::new();
            while !stopped.load(Ordering::Relaxed) {
                for (node, url) in urls.iter().enumerate() {
                    let status = status_at(url, node)
                        .await
                        .filter(|status| status.role == lockkeeper::NodeRole::Leader);
                    let Some(status) = status else { continue };
                    let first = *leaders.entry(status.term).or_insert(status.node);
                    assert_eq!(first, status.node, "two nodes lead in term {}", status.term);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            leaders
        });
        Self { stop, task }
    }

    /// Asserts that no term had two leaders; returns the number of terms with a leader.
    async fn agreed(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        within("the nodes were asked", self.task).await.unwrap().len()
    }
}

#[test]
fn follower_cut_off_in_one_direction_does_not_disturb_the_cluster_and_recovers() {
    let name = "follower_cut_off_in_one_direction_does_not_disturb_the_cluster_and_recovers";
    scene(name, async |scene| {
        let nodes = &scene.nodes;
        let believers = Believers::of(nodes);
        let held = nodes.client("holder").await.mutex("held").ttl(LONG).acquire().await.unwrap();
        let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
        load.goes_on(20);
        let leader = nodes.leader(&ALL).await;
        let [follower, other] = others(leader);

        // The follower receives nothing from the leader, and starts a pre-vote; the leader and the
        // other follower refuse the pre-vote, since the cluster has a leader.
        scene.cut(&[leader], &[follower]);
        scene.misses(follower, leader).await;
        load.goes_on(100);
        nodes.leader(&[leader, other]).await;
        scene.mend(&[leader], &[follower]);
        nodes.catches_up(follower).await;
        load.goes_on(20);

        // The follower receives everything, but its messages to the leader, which include the
        // acknowledgements, are dropped.
        let leader = nodes.leader(&ALL).await;
        let [follower, _] = others(leader);
        scene.cut(&[follower], &[leader]);
        scene.is_missed(follower, leader).await;
        load.goes_on(100);
        scene.mend(&[follower], &[leader]);
        nodes.catches_up(follower).await;

        load.goes_on(20);
        assert_eq!(held.loss(), None);
        within("the hold is confirmed", held.verify()).await.unwrap();
        within("it is given back", held.release()).await.unwrap();
        load.checked().await;
        assert!(believers.agreed().await > 0);
    });
}

#[test]
fn leader_cut_off_in_one_direction_is_replaced_and_recovers() {
    let name = "leader_cut_off_in_one_direction_is_replaced_and_recovers";
    scene(name, async |scene| {
        let nodes = &scene.nodes;
        let believers = Believers::of(nodes);
        let held = nodes.client("holder").await.mutex("held").ttl(LONG).acquire().await.unwrap();
        let load = Load::start(vec![nodes.client("one").await, nodes.client("two").await], 2, 5);
        for is_heard in [false, true] {
            load.goes_on(20);
            let leader = nodes.leader(&ALL).await;
            let rest = others(leader);
            // Drops either the messages that the leader sends, or those that are sent to it.
            let (from, to) = if is_heard { (&rest[..], &[leader][..]) } else { (&[leader][..], &rest[..]) };
            scene.cut(from, to);
            scene.gives_up(leader).await;
            let next = nodes.leader(&rest).await;
            assert_ne!(next, leader);
            load.goes_on(100);
            assert_eq!(held.loss(), None, "heard: {is_heard}");
            within("the hold is confirmed", held.verify()).await.unwrap();
            scene.mend(from, to);
            nodes.catches_up(leader).await;
        }
        load.goes_on(20);
        assert_eq!(held.loss(), None);
        within("it is given back", held.release()).await.unwrap();
        load.checked().await;
        assert!(believers.agreed().await >= 3, "a leader before, and one after each cut");
    });
}
