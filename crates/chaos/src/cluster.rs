//! The nodes of our own service, each a process on a network host of its own.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper::{Locks, NodeRole, ServiceStatus};
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
    arguments: Vec<String>,
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
        arguments.extend(["--listen".into(), listen, "--node".into(), id.to_string()]);
        arguments.extend(["--cluster".into(), peers.into()]);
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
            child: None,
            status: None,
        })
    }

    /// Starts the process, and does not wait until it serves.
    pub(crate) fn start(&mut self) -> Result {
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let mut command = self.network.command(self.host, &self.program);
        command.args(&self.arguments).arg("--data").arg(self.data());
        command.envs(self.shim.environment()).env_remove("LOCKKEEPER_URL");
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
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
}

impl Cluster {
    /// Bootstraps a cluster; returns when it serves.
    pub(crate) async fn start(start: &ClusterStart<'_>) -> Result<Self> {
        let nodes = || (1..).zip(start.hosts.clone());
        let peer = |(id, host): (u64, usize)| format!("{id}={}:{}", start.network.address(host), PORT + 1);
        let peers = nodes().map(peer).collect::<Vec<_>>().join(",");
        let node = |it| ChaosNode::new(start, it, &peers);
        let mut cluster = Self { nodes: nodes().map(node).collect::<Result<_>>()?, client: None };
        cluster.nodes.iter_mut().try_for_each(ChaosNode::start)?;
        cluster.settled().await?;
        cluster.client = Some(Locks::connect_as(&cluster.url(), "chaos").await?);
        Ok(cluster)
    }

    /// Cuts the power of all nodes at once, and starts them again with what their disks have kept.
    pub(crate) fn cut_power(&mut self) -> Result {
        let disks = || self.nodes.iter().filter_map(|node| node.power.as_ref());
        disks().for_each(PowerDisk::cut);
        for node in &mut self.nodes {
            node.kill()?;
            node.power.iter().for_each(PowerDisk::restore);
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
        let mut latest: Option<View> = None;
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if Some(index) == without {
                continue;
            }
            if let Some(status) = node.status().await
                && let Some(leader) = status.leader.and_then(|id| usize::try_from(id - 1).ok())
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
                if answers.iter().all(agrees) {
                    return Ok(View { leader: usize::try_from(leader.node - 1)?, term: leader.term });
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
        cluster.nodes.iter().any(|it| it.node == node as u64 + 1 && !it.answers)
    }

    /// Asks the leader to hand over to another node.
    pub(crate) async fn transfer(&self, to: usize) -> bool {
        let Some(locks) = &self.client else { return false };
        let transfer = locks.transfer_leadership(Some(to as u64 + 1));
        matches!(timeout(Duration::from_secs(5), transfer).await, Ok(Ok(_)))
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
