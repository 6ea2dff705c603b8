//! The nodes of our own service, each a process on a network host of its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lockkeeper::{Locks, NodeRole, ServiceStatus};
use lockkeeper_rig::{Network, Shim};
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

/// One node.
pub(crate) struct ChaosNode {
    host: usize,
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
    fn new(network: &Rc<Network>, host: usize, peers: &str, program: &Path, folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(folder.join("disk"))?;
        mount(Some("chaos"), &folder.join("disk"), Some("tmpfs"), MsFlags::empty(), Some(DISK))
            .map_err(|error| format!("can't mount a disk for a node: {error}"))?;
        let listen = format!("{}:{PORT}", network.address(host));
        let id = (host + 1).to_string();
        let words = ["serve", "--insecure", "--http-listen", "off", "--segment-bytes", "262144"];
        let mut arguments: Vec<String> = words.map(str::to_owned).to_vec();
        arguments.extend(["--listen".into(), listen, "--node".into(), id, "--cluster".into(), peers.into()]);
        Ok(Self {
            host,
            network: Rc::clone(network),
            program: program.to_owned(),
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
        command.args(&self.arguments).arg("--data").arg(self.folder.join("disk/data"));
        command.envs(self.shim.environment()).env_remove("LOCKKEEPER_URL");
        self.child = Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
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
        let mut file = File::create(self.folder.join("disk/filler"))?;
        for size in [1 << 16, 512] {
            while file.write_all(&vec![7; size]).is_ok() {}
        }
        Ok(())
    }

    /// Undoes [`ChaosNode::fill`].
    pub(crate) fn free(&self) -> Result {
        Ok(fs::remove_file(self.folder.join("disk/filler"))?)
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
        let own = status.filter(|status| status.node == self.host as u64 + 1);
        if own.is_none() {
            // A client that was refused goes to the other nodes, which it has learned of.
            self.status = None;
        }
        own
    }
}

/// All nodes.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<ChaosNode>,
    /// For operators' calls.
    client: Option<Locks>,
}

impl Cluster {
    /// Bootstraps a cluster on the first hosts of the network; returns when it serves.
    pub(crate) async fn start(
        network: &Rc<Network>,
        count: usize,
        program: &Path,
        folder: &Path,
    ) -> Result<Self> {
        let peer = |node: usize| format!("{}={}:{}", node + 1, network.address(node), PORT + 1);
        let peers = (0..count).map(peer).collect::<Vec<_>>().join(",");
        let node =
            |node| ChaosNode::new(network, node, &peers, program, folder.join(format!("node{}", node + 1)));
        let mut cluster = Self { nodes: (0..count).map(node).collect::<Result<_>>()?, client: None };
        cluster.nodes.iter_mut().try_for_each(ChaosNode::start)?;
        cluster.settled().await?;
        cluster.client = Some(Locks::connect_as(&cluster.url(), "chaos").await?);
        Ok(cluster)
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
