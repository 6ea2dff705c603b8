//! Injects the faults of a plan into our own cluster and into workers, heals them, and measures whether they
//! have bitten.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper_rig::{Network, Number};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::time::sleep;

use crate::Result;
use crate::cluster::{ChaosNode, Cluster, View};
use crate::gate::ChaosGate;
use crate::plan::{Fault, FaultKind, Victim};
use crate::processes::reaches;
use crate::workers::Workers;

const PORT: u16 = 5625;
/// Less than a leader sends under the load of a run.
const SLOW_RATE: &str = "1mbit";
const HOUR: i64 = 3600;
/// What a drifting wall clock gains or loses, in millionths of the true time.
const DRIFT: i64 = 9_000_000;

/// How far a wall clock was off that has shown this a moment ago.
fn off(seen: SystemTime) -> Duration {
    seen.duration_since(SystemTime::now()).unwrap_or_else(|behind| behind.duration())
}

/// The world that faults are injected into.
pub(crate) struct World<'a> {
    pub(crate) network: &'a Rc<Network>,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) workers: &'a mut Workers,
    /// None beside a planted mistake.
    pub(crate) gate: Option<&'a mut ChaosGate>,
}

impl World<'_> {
    /// Injects a fault, and heals it. Returns whether it has bitten.
    ///
    /// # Errors
    /// The cluster did not recover from it.
    pub(crate) async fn play(&mut self, fault: &Fault, mut tell: impl FnMut(&str, bool)) -> Result<bool> {
        let before = self.cluster.settled().await?;
        let (leader, lasts) = (before.leader, fault.lasts);
        let node = match fault.kind {
            FaultKind::Kill(Victim::Follower)
            | FaultKind::Stop(Victim::Follower)
            | FaultKind::Cut(Victim::Follower) => self.follower(leader, fault.pick),
            FaultKind::FailingDisk | FaultKind::FullDisk | FaultKind::Power | FaultKind::Member => {
                fault.pick % self.count()
            }
            _ => leader,
        };
        let worker = fault.pick % self.workers.all.len();
        let target = match fault.kind {
            FaultKind::Kill(Victim::Worker)
            | FaultKind::Stop(Victim::Worker)
            | FaultKind::Cut(Victim::Worker) => self.workers.all[worker].name.clone(),
            FaultKind::Kill(Victim::Gate) | FaultKind::Stop(Victim::Gate) | FaultKind::Cut(Victim::Gate) => {
                "gate".to_owned()
            }
            FaultKind::Halves
            | FaultKind::Loss
            | FaultKind::Rolling
            | FaultKind::Upgrade
            | FaultKind::Certificates
            | FaultKind::All => "all".to_owned(),
            _ => format!("node{}", node + 1),
        };
        tell(&target, true);
        let bitten = match fault.kind {
            FaultKind::Kill(Victim::Worker) => self.workers.kill_and_start(worker, lasts).await?,
            FaultKind::Stop(Victim::Worker) => self.workers.stop(worker, lasts).await?,
            FaultKind::Cut(Victim::Worker) => {
                let host = self.count() + worker;
                self.cut_off(host, lasts, async |world| !world.connects(host, leader)).await
            }
            FaultKind::Kill(Victim::Gate) => self.gate()?.kill_and_start(lasts / 4).await?,
            FaultKind::Stop(Victim::Gate) => self.gate()?.stop(lasts).await?,
            FaultKind::Cut(Victim::Gate) => {
                let host = self.gate()?.host;
                let worker = self.count() + worker;
                let is_cut =
                    async |world: &mut Self| world.gate().is_ok_and(|gate| !gate.is_reached_from(worker));
                self.cut_off(host, lasts, is_cut).await
            }
            FaultKind::Kill(_) => {
                self.cluster.nodes[node].kill()?;
                sleep(lasts).await;
                let bitten = self.is_away(before, node).await;
                self.cluster.nodes[node].start()?;
                bitten
            }
            FaultKind::Stop(_) => {
                self.cluster.nodes[node].signal(Signal::SIGSTOP)?;
                sleep(lasts).await;
                let bitten = self.is_away(before, node).await;
                self.cluster.nodes[node].signal(Signal::SIGCONT)?;
                bitten
            }
            FaultKind::Cut(_) => {
                self.cut_off(node, lasts, async |world| world.is_away(before, node).await).await
            }
            FaultKind::OneWay => {
                let follower = self.follower(leader, fault.pick / 2);
                let (from, to) =
                    if fault.pick.is_multiple_of(2) { (leader, follower) } else { (follower, leader) };
                self.network.cut(from, to);
                sleep(lasts).await;
                // The connection needs both directions.
                let bitten = !self.connects(from, to);
                self.network.mend(from, to);
                bitten
            }
            FaultKind::Halves => {
                let minority = (self.count() - 1) / 2;
                let mut one: Vec<_> = (0..self.count()).cycle().skip(leader).take(minority.max(1)).collect();
                one.extend((self.count()..self.hosts()).filter(|host| host % 2 == fault.pick % 2));
                let two: Vec<_> = (0..self.hosts()).filter(|host| !one.contains(host)).collect();
                self.cut(&one, &two, lasts, async |world| world.is_away(before, leader).await).await
            }
            FaultKind::Loss => {
                self.network.lose(2);
                sleep(lasts).await;
                self.network.lose_no_more() > 0
            }
            FaultKind::SlowLink => {
                self.network.slow(node, SLOW_RATE);
                sleep(lasts).await;
                self.network.slow_no_more(node) > 0
            }
            FaultKind::Clock => {
                let step = if fault.pick.is_multiple_of(2) { HOUR } else { -HOUR };
                self.cluster.nodes[node].shim.set(Number::AheadSec, step);
                let seen = self.cluster.wall_clock().await;
                sleep(lasts).await;
                self.cluster.nodes[node].shim.set(Number::AheadSec, 0);
                seen.is_some_and(|seen| off(seen) > Duration::from_secs(3000))
            }
            FaultKind::Drift => {
                let rate = if fault.pick.is_multiple_of(2) { DRIFT } else { -DRIFT };
                self.cluster.nodes[node].shim.set_wall_rate(rate);
                sleep(lasts).await;
                let seen = self.cluster.wall_clock().await;
                self.cluster.nodes[node].shim.set_wall_rate(0);
                seen.is_some_and(|seen| off(seen) > lasts * 4)
            }
            FaultKind::SlowDisk => {
                let shim = &self.cluster.nodes[node].shim;
                let syncs = shim.get(Number::Syncs);
                shim.set(Number::DelayMs, 200);
                sleep(lasts).await;
                shim.set(Number::DelayMs, 0);
                shim.get(Number::Syncs) > syncs
            }
            FaultKind::FailingDisk => {
                let shim = &self.cluster.nodes[node].shim;
                let failed = shim.get(Number::Failed);
                shim.set(Number::Error, Errno::EIO as i64);
                shim.set(Number::FailIn, 1);
                sleep(lasts).await;
                let shim = &self.cluster.nodes[node].shim;
                shim.set(Number::FailIn, 0);
                let failed = shim.get(Number::Failed) - failed;
                if failed > 0 {
                    if !self.cluster.nodes[node].ends_within(Duration::from_secs(30)).await? {
                        return Err(format!("{target} goes on after {failed} failed syncs").into());
                    }
                    self.cluster.nodes[node].start()?;
                }
                failed > 0
            }
            FaultKind::FullDisk => {
                self.cluster.nodes[node].fill()?;
                sleep(lasts).await;
                let has_stopped = self.cluster.nodes[node].ends_within(Duration::from_secs(3)).await?;
                self.cluster.nodes[node].free()?;
                // A write that has failed may stop it even now.
                let has_stopped =
                    has_stopped || self.cluster.nodes[node].ends_within(Duration::from_secs(10)).await?;
                if has_stopped {
                    self.cluster.nodes[node].start()?;
                }
                has_stopped
            }
            FaultKind::Power => {
                self.cluster.nodes[node].cut_power()?;
                let has_stopped = self.cluster.nodes[node].ends_within(Duration::from_secs(3)).await?;
                self.cluster.nodes[node].kill()?;
                sleep(lasts / 2).await;
                self.cluster.nodes[node].restore_power()?;
                self.cluster.nodes[node].start()?;
                has_stopped
            }
            FaultKind::Member => self.cluster.replace(node, lasts / 4).await?,
            FaultKind::Transfer => {
                let to = self.follower(leader, fault.pick);
                self.cluster.transfer(to).await
                    && self.cluster.view(None).await.is_some_and(|view| view.leader != leader)
            }
            FaultKind::Rolling => {
                for node in 0..self.count() {
                    self.restart(node, false, lasts / 8).await?;
                }
                true
            }
            FaultKind::Upgrade => {
                // The leader last.
                let count = self.count();
                for after in 1..=count {
                    self.restart((leader + after) % count, true, lasts / 8).await?;
                }
                self.cluster.nodes.iter().all(ChaosNode::runs_its_program)
            }
            FaultKind::Certificates => {
                self.cluster.change_authority(lasts / 4).await?;
                true
            }
            FaultKind::All => {
                for node in &mut self.cluster.nodes {
                    node.kill()?;
                }
                sleep(lasts / 4).await;
                for node in &mut self.cluster.nodes {
                    node.start()?;
                }
                self.cluster.settled().await?.term > before.term
            }
        };
        tell(&target, false);
        self.cluster.settled().await?;
        Ok(bitten)
    }

    /// Ends a node by SIGTERM, and starts it again after this time, or its other release.
    async fn restart(&mut self, node: usize, is_upgrade: bool, after: Duration) -> Result {
        self.cluster.nodes[node].signal(Signal::SIGTERM)?;
        if !self.cluster.nodes[node].ends_within(Duration::from_secs(30)).await? {
            return Err(format!("node{} does not end by SIGTERM", node + 1).into());
        }
        sleep(after).await;
        if is_upgrade {
            self.cluster.nodes[node].change_program();
        }
        self.cluster.nodes[node].start()?;
        self.cluster.settled().await.map(drop)
    }

    fn count(&self) -> usize {
        self.cluster.nodes.len()
    }

    /// The number of hosts: of nodes, workers and the gate.
    fn hosts(&self) -> usize {
        self.count() + self.workers.all.len() + usize::from(self.gate.is_some())
    }

    fn gate(&mut self) -> Result<&mut ChaosGate> {
        self.gate.as_deref_mut().ok_or_else(|| "this run has no gate".into())
    }

    fn follower(&self, leader: usize, pick: usize) -> usize {
        (leader + 1 + pick % (self.count() - 1).max(1)) % self.count()
    }

    /// Cuts all paths from and to a host, like [`World::cut`].
    async fn cut_off(
        &mut self,
        host: usize,
        lasts: Duration,
        bites: impl AsyncFnOnce(&mut Self) -> bool,
    ) -> bool {
        let others: Vec<_> = (0..self.hosts()).filter(|other| *other != host).collect();
        self.cut(&[host], &others, lasts, bites).await
    }

    /// Cuts all paths between two groups of hosts, for a time, and looks at the end of it whether that has
    /// bitten.
    async fn cut(
        &mut self,
        one: &[usize],
        two: &[usize],
        lasts: Duration,
        bites: impl AsyncFnOnce(&mut Self) -> bool,
    ) -> bool {
        let network = Rc::clone(self.network);
        network.part(one, two);
        sleep(lasts).await;
        let bitten = bites(self).await;
        network.unite(one, two);
        bitten
    }

    /// Whether a node is replaced as the leader, or missed by the leader. A single node can only be silent.
    async fn is_away(&mut self, before: View, node: usize) -> bool {
        if self.count() == 1 {
            return self.cluster.view(None).await.is_none_or(|view| view.term > before.term);
        }
        if node != before.leader {
            return self.cluster.misses(node).await;
        }
        let now = self.cluster.view(Some(node)).await;
        now.is_some_and(|now| now.term > before.term && now.leader != node)
    }

    /// Whether a host can connect to a node.
    fn connects(&self, from: usize, to: usize) -> bool {
        reaches(self.network, from, SocketAddr::from((self.network.address(to), PORT)))
    }
}
