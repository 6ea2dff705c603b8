//! The nodes of our own service, each a process on a network host of its own.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper::{Locks, NodePart, NodeRole, ServiceStatus};
use lockkeeper_rig::{Network, PowerDisk, Shim};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, timeout};

use crate::Result;

/// How long the cluster may take to be whole again after a fault.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const PORT: u16 = 5625;
/// Room for a log and two snapshots.
const DISK: &str = "size=256m";

/// What nodes keep their data on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskKind {
    /// Memory; nothing that a node has written is ever lost.
    Memory,
    /// A filesystem whose power can be cut.
    Power,
}

/// One node.
pub(crate) struct ChaosNode {
    host: usize,
    id: u64,
    power: Option<PowerDisk>,
    disk: PathBuf,
    network: Rc<Network>,
    program: PathBuf,
    folder: PathBuf,
    /// Of the command line, without the membership.
    arguments: Vec<String>,
    /// How it becomes a member of its cluster, while it has no data.
    membership: Vec<String>,
    pub(crate) shim: Shim,
    child: Option<Child>,
    /// A client of this node alone.
    status: Option<Locks>,
}

/// Who leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct View {
    /// By index.
    pub(crate) leader: usize,
    pub(crate) term: u64,
}

impl ChaosNode {
    fn new(cluster: &ClusterStart<'_>, (id, host): (u64, usize), peers: &str) -> Result<Self> {
        let ClusterStart { network, program, .. } = cluster;
        let folder = cluster.folder.join(format!("node{id}"));
        let disk = folder.join("disk");
        fs::create_dir_all(&disk)?;
        let power = match cluster.disk {
            DiskKind::Power => Some(PowerDisk::within(&folder)),
            DiskKind::Memory => {
                mount(Some("chaos"), &disk, Some("tmpfs"), MsFlags::empty(), Some(DISK))
                    .map_err(|error| format!("can't mount a disk for a node: {error}"))?;
                None
            }
        };
        let disk = power.as_ref().map_or(disk, PowerDisk::path);
        let listen = format!("{}:{PORT}", network.address(host));
        let mut arguments: Vec<String> =
            ["serve", "--insecure", "--http-listen", "off"].map(str::to_owned).to_vec();
        arguments.extend(["--segment-bytes".into(), cluster.segment_bytes.to_string()]);
        arguments.extend(["--listen".into(), listen]);
        let membership = ["--node", &id.to_string(), "--cluster", peers].map(str::to_owned).to_vec();
        Ok(Self {
            host,
            id,
            power,
            disk,
            network: Rc::clone(network),
            program: (*program).to_owned(),
            shim: Shim::new(&folder),
            folder,
            arguments,
            membership,
            child: None,
            status: None,
        })
    }

    /// Starts the process, and does not wait until it serves.
    pub(crate) fn start(&mut self) -> Result {
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = self.network.command(self.host, &self.program);
        command.args(&self.arguments).args(&self.membership).arg("--data").arg(self.data());
        command.envs(self.shim.environment()).env_remove("LOCKKEEPER_URL");
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
    }

    /// Cuts the power of its disk; the process runs on.
    pub(crate) fn cut_power(&self) -> Result {
        self.power.as_ref().ok_or("the node has no such disk")?.cut();
        Ok(())
    }

    /// Mounts the disk again, with what had been synced before the power cut. The node's process must have
    /// ended.
    pub(crate) fn restore_power(&self) -> Result {
        self.power.as_ref().ok_or("the node has no such disk")?.restore();
        Ok(())
    }

    fn peer_address(&self) -> String {
        format!("{}:{}", self.network.address(self.host), PORT + 1)
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.disk.join("data")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result {
        let child = self.child.as_ref().ok_or("the node does not run")?;
        Ok(kill(Pid::from_raw(i32::try_from(child.id())?), signal)?)
    }

    /// SIGKILL; returns when the process is gone.
    pub(crate) fn kill(&mut self) -> Result {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Whether the process ends by itself within the time.
    pub(crate) async fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        let Some(child) = &mut self.child else { return Ok(true) };
        while child.try_wait()?.is_none() {
            if Instant::now() >= until {
                return Ok(false);
            }
            sleep(POLL).await;
        }
        self.child = None;
        Ok(true)
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) -> Result {
        let mut file = File::create(self.disk.join("filler"))?;
        for size in [1 << 16, 512] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
        Ok(())
    }

    /// Undoes [`ChaosNode::fill`].
    pub(crate) fn free(&self) -> Result {
        Ok(fs::remove_file(self.disk.join("filler"))?)
    }

    /// `None` if it does not answer now.
    async fn status(&mut self) -> Option<ServiceStatus> {
        const LIMIT: Duration = Duration::from_millis(400);
        let asked = async {
            if self.status.is_none() {
                let url = format!("lockkeeper://{}:{PORT}", self.network.address(self.host));
                self.status = Locks::connect_as(&url, "status").await.ok();
            }
            self.status.as_ref()?.status().await.ok()
        };
        let status = timeout(LIMIT, asked).await.ok().flatten();
        let own = status.filter(|status| status.node == self.id);
        if own.is_none() {
            // A client that was refused goes to the other nodes, which it has learned of.
            self.status = None;
        }
        own
    }
}

/// How a cluster is started.
pub(crate) struct ClusterStart<'a> {
    pub(crate) network: &'a Rc<Network>,
    /// A node on each.
    pub(crate) hosts: Range<usize>,
    pub(crate) program: &'a Path,
    pub(crate) folder: PathBuf,
    pub(crate) disk: DiskKind,
    pub(crate) segment_bytes: u64,
}

/// All nodes.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<ChaosNode>,
    /// For operators' calls.
    client: Option<Locks>,
    /// The id of the next node: that of a removed one never comes back.
    next_id: u64,
}

impl Cluster {
    /// Bootstraps a cluster; returns when it serves.
    pub(crate) async fn start(start: &ClusterStart<'_>) -> Result<Self> {
        let nodes = || (1..).zip(start.hosts.clone());
        let peer = |(id, host): (u64, usize)| format!("{id}={}:{}", start.network.address(host), PORT + 1);
        let peers = nodes().map(peer).collect::<Vec<_>>().join(",");
        let node = |it| ChaosNode::new(start, it, &peers);
        let mut cluster = Self { nodes: nodes().map(node).collect::<Result<_>>()?, client: None, next_id: 0 };
        cluster.next_id = cluster.nodes.len() as u64 + 1;
        cluster.nodes.iter_mut().try_for_each(ChaosNode::start)?;
        cluster.settled().await?;
        cluster.client = Some(Locks::connect_as(&cluster.url(), "chaos").await?);
        Ok(cluster)
    }

    /// Cuts the power of all nodes at once, and starts them again with what their disks have kept.
    pub(crate) fn cut_power(&mut self) -> Result {
        self.nodes.iter().try_for_each(ChaosNode::cut_power)?;
        for node in &mut self.nodes {
            node.kill()?;
            node.restore_power()?;
            node.start()?;
        }
        Ok(())
    }

    /// For clients.
    pub(crate) fn url(&self) -> String {
        let address = |node: &ChaosNode| format!("{}:{PORT}", node.network.address(node.host));
        format!("lockkeeper://{}", self.nodes.iter().map(address).collect::<Vec<_>>().join(","))
    }

    /// The latest leader of which a node other than `without` knows now.
    pub(crate) async fn view(&mut self, without: Option<usize>) -> Option<View> {
        let ids = self.ids();
        let mut latest: Option<View> = None;
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if Some(index) == without {
                continue;
            }
            if let Some(status) = node.status().await
                && let Some(leader) = status.leader.and_then(|id| ids.iter().position(|it| *it == id))
                && latest.is_none_or(|view| view.term < status.term)
            {
                latest = Some(View { leader, term: status.term });
            }
        }
        latest
    }

    /// Waits until all nodes agree on the leader, and have applied all that it has.
    ///
    /// # Errors
    /// They do not: a fault was not recovered from.
    pub(crate) async fn settled(&mut self) -> Result<View> {
        let (until, mut target) = (Instant::now() + PATIENCE, None);
        loop {
            let mut answers = Vec::new();
            for node in &mut self.nodes {
                answers.push(node.status().await);
            }
            let leads = |it: &&ServiceStatus| it.role == NodeRole::Leader;
            if let Some(leader) = answers.iter().flatten().filter(leads).max_by_key(|status| status.term) {
                let target = *target.get_or_insert(leader.applied);
                let agrees = |it: &Option<ServiceStatus>| {
                    it.as_ref().is_some_and(|it| {
                        (it.leader, it.term) == (Some(leader.node), leader.term) && it.applied >= target
                    })
                };
                if answers.iter().all(agrees)
                    && let Some(index) = self.nodes.iter().position(|node| node.id == leader.node)
                {
                    return Ok(View { leader: index, term: leader.term });
                }
            }
            if Instant::now() >= until {
                let short = |it: &Option<ServiceStatus>| {
                    it.as_ref().map(|it| (it.node, it.role, it.leader, it.term, it.applied))
                };
                let shown: Vec<_> = answers.iter().map(short).collect();
                return Err(format!("the nodes are not whole again after {PATIENCE:?}: {shown:?}").into());
            }
            sleep(POLL).await;
        }
    }

    /// Whether the leader misses this node.
    pub(crate) async fn misses(&self, node: usize) -> bool {
        let Some(locks) = &self.client else { return false };
        let Ok(Ok(cluster)) = timeout(Duration::from_secs(1), locks.cluster()).await else { return false };
        cluster.nodes.iter().any(|it| it.node == self.nodes[node].id && !it.answers)
    }

    /// Asks the leader to hand over to another node.
    pub(crate) async fn transfer(&self, to: usize) -> bool {
        let Some(locks) = &self.client else { return false };
        let transfer = locks.transfer_leadership(Some(self.nodes[to].id));
        matches!(timeout(Duration::from_secs(5), transfer).await, Ok(Ok(_)))
    }

    fn ids(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// Removes a node by the operator's commands; later a new one joins in its place, without data. Returns
    /// whether the cluster has the new one as a voter, and not the old one.
    pub(crate) async fn replace(&mut self, index: usize, after: Duration) -> Result<bool> {
        let (old, new) = (self.nodes[index].id, self.next_id);
        self.next_id += 1;
        self.command(&["remove", &old.to_string()]).await?;
        let node = &mut self.nodes[index];
        node.kill()?;
        sleep(after).await;
        fs::remove_dir_all(node.data())?;
        let (own, other) = (node.peer_address(), &self.nodes[(index + 1) % self.nodes.len()]);
        let other = other.peer_address();
        let node = &mut self.nodes[index];
        let words = ["--node", &new.to_string(), "--peer-listen", &own, "--join", &other];
        (node.id, node.membership) = (new, words.map(str::to_owned).to_vec());
        node.start()?;
        let until = Instant::now() + PATIENCE;
        // The leader looks at the new node at once, which may not listen yet.
        while let Err(error) = self.command(&["add", &format!("{new}={own}")]).await {
            if Instant::now() >= until {
                return Err(error);
            }
            sleep(POLL).await;
        }
        self.settled().await?;
        let Some(locks) = &self.client else { return Ok(false) };
        let now = locks.cluster().await?;
        let is_voter = now.nodes.iter().any(|it| it.node == new && it.part == NodePart::Voter);
        Ok(is_voter && now.removed.contains(&old) && now.nodes.iter().all(|it| it.node != old))
    }

    /// Runs `lockkeeper cluster`.
    async fn command(&self, words: &[&str]) -> Result {
        let mut command = tokio::process::Command::new(&self.nodes[0].program);
        command.arg("cluster").args(words).args(["--wait", "60s", "--locks", &self.url()]);
        let output = command.kill_on_drop(true).output().await?;
        if output.status.success() {
            return Ok(());
        }
        let err = String::from_utf8_lossy(&output.stderr);
        Err(format!("lockkeeper cluster {}: {}: {}", words.join(" "), output.status, err.trim()).into())
    }

    /// The wall clock of the leader, as it shows in the lock that is acquired for this.
    pub(crate) async fn wall_clock(&self) -> Option<SystemTime> {
        let locks = self.client.as_ref()?;
        let asked = async {
            let guard = locks.mutex("clock").acquire().await.ok()?;
            let info = locks.inspect("clock").await.ok()?;
            drop(guard);
            info.holds.first()?.since
        };
        timeout(Duration::from_secs(2), asked).await.ok()?
    }
}
