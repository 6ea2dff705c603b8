//! The nodes of our own service, each a process on a network host of its own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use lockkeeper::{Locks, NodePart, NodeRole, ServiceStatus};
use lockkeeper_rig::{Network, PowerDisk, Shim};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep, timeout};

use crate::Result;
use crate::certificates::{ClusterTls, Era};
use crate::processes::ended_within;
use crate::samples::{Sample, usage};

/// How long the cluster may take to be whole again after a fault.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const PORT: u16 = 5625;
const HTTP_PORT: u16 = 5627;
/// Room for a log and two snapshots.
const DISK: &str = "size=256m";

/// The URL of nodes for clients.
fn url(addresses: &str, tls: Option<&Rc<RefCell<ClusterTls>>>) -> String {
    match tls {
        Some(tls) => format!("lockkeepers://{addresses}{}", tls.borrow().query(Era::Now, Era::Now)),
        None => format!("lockkeeper://{addresses}"),
    }
}

/// The URL of the same nodes for clients that use HTTP.
pub(crate) fn http_url(url: &str) -> String {
    url.replacen("lockkeeper:", "http:", 1).replace(&format!(":{PORT}"), &format!(":{HTTP_PORT}"))
}

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
    /// What it runs; and another release, with which it changes places in an upgrade.
    programs: [PathBuf; 2],
    folder: PathBuf,
    tls: Option<Rc<RefCell<ClusterTls>>>,
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
        let ClusterStart { network, programs, .. } = cluster;
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
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(["--http-listen".into(), format!("{}:{HTTP_PORT}", network.address(host))]);
        match &cluster.tls {
            Some(tls) => arguments.extend(tls.borrow().arguments()),
            None => arguments.push("--insecure".into()),
        }
        arguments.extend(["--segment-bytes".into(), cluster.segment_bytes.to_string()]);
        arguments.extend(["--listen".into(), listen]);
        arguments.extend(cluster.more.iter().cloned());
        let membership = ["--node", &id.to_string(), "--cluster", peers].map(str::to_owned).to_vec();
        Ok(Self {
            host,
            id,
            power,
            disk,
            network: Rc::clone(network),
            programs: programs.clone(),
            tls: cluster.tls.clone(),
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
        let mut command = self.network.command(self.host, &self.programs[0]);
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

    /// The other release: what it runs after its next start.
    pub(crate) fn change_program(&mut self) {
        self.programs.swap(0, 1);
    }

    /// Whether its process runs the program that it was started with last.
    pub(crate) fn runs_its_program(&self) -> bool {
        let Some(child) = &self.child else { return false };
        fs::read_link(format!("/proc/{}/exe", child.id())).is_ok_and(|path| path == self.programs[0])
    }

    /// Whether a client with this part of a URL can connect to it alone.
    async fn takes(&self, query: &str) -> bool {
        const LIMIT: Duration = Duration::from_secs(1);
        let url = format!("lockkeepers://{}{query}", self.address());
        matches!(timeout(LIMIT, Locks::connect_as(&url, "certificates")).await, Ok(Ok(_)))
    }

    fn address(&self) -> String {
        format!("{}:{PORT}", self.network.address(self.host))
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
        let Some(child) = &mut self.child else { return Ok(true) };
        let has_ended = ended_within(child, limit).await?.is_some();
        if has_ended {
            self.child = None;
        }
        Ok(has_ended)
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
        // On a busy machine, a new connection takes its time, and one that is given up begins anew.
        const LIMIT: Duration = Duration::from_secs(2);
        let asked = async {
            if self.status.is_none() {
                let url = url(&self.address(), self.tls.as_ref());
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
    /// What nodes run; and another release, with which it changes places in an upgrade.
    pub(crate) programs: [PathBuf; 2],
    pub(crate) folder: PathBuf,
    /// Without it, nodes and clients use no TLS.
    pub(crate) tls: Option<Rc<RefCell<ClusterTls>>>,
    pub(crate) disk: DiskKind,
    pub(crate) segment_bytes: u64,
    /// Further options of all nodes.
    pub(crate) more: Vec<String>,
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
        let addresses: Vec<_> = self.nodes.iter().map(ChaosNode::address).collect();
        url(&addresses.join(","), self.nodes.first().and_then(|node| node.tls.as_ref()))
    }

    /// Exchanges the authority of all certificates, step by step: afterwards all nodes trust and show the
    /// new one alone.
    ///
    /// # Errors
    /// A step has no effect in time.
    pub(crate) async fn change_authority(&self, between: Duration) -> Result {
        let tls = self.nodes.first().and_then(|node| node.tls.as_ref()).ok_or("the nodes have no TLS")?;
        tls.borrow_mut().make_authority()?;
        tls.borrow().replace("ca.pem", &[Era::Before, Era::Newest])?;
        self.reload(|tls| (tls.query(Era::Before, Era::Newest), true)).await?;
        sleep(between).await;
        for file in ["node.key", "node.pem", "client.key", "client.pem"] {
            tls.borrow().replace(file, &[Era::Newest])?;
        }
        self.reload(|tls| (tls.query(Era::Newest, Era::Newest), true)).await?;
        sleep(between).await;
        tls.borrow().replace("ca.pem", &[Era::Newest])?;
        self.reload(|tls| (tls.query(Era::Newest, Era::Before), false)).await?;
        self.reload(|tls| (tls.query(Era::Now, Era::Now), true)).await
    }

    /// All nodes read their files again; waits until each takes, or does not take, a client with this part of
    /// its URL.
    async fn reload(&self, expected: impl Fn(&ClusterTls) -> (String, bool)) -> Result {
        for node in &self.nodes {
            node.signal(Signal::SIGHUP)?;
        }
        let until = Instant::now() + PATIENCE;
        for node in &self.nodes {
            let Some(tls) = &node.tls else { continue };
            let (query, is_taken) = expected(&tls.borrow());
            while node.takes(&query).await != is_taken {
                if Instant::now() >= until {
                    let not = if is_taken { "does not take" } else { "takes" };
                    return Err(format!("node{} {not} a client with {query}", node.id).into());
                }
                sleep(POLL).await;
            }
        }
        Ok(())
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
            let answers = join_all(self.nodes.iter_mut().map(ChaosNode::status)).await;
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
        let mut command = tokio::process::Command::new(&self.nodes[0].programs[0]);
        command.arg("cluster").args(words).args(["--wait", "60s", "--locks", &self.url()]);
        let output = command.kill_on_drop(true).output().await?;
        if output.status.success() {
            return Ok(());
        }
        let err = String::from_utf8_lossy(&output.stderr);
        Err(format!("lockkeeper cluster {}: {}: {}", words.join(" "), output.status, err.trim()).into())
    }

    /// What all nodes use, and how long a free lock takes.
    pub(crate) async fn sample(&self, seconds: u64) -> Result<Sample> {
        const PAIRS: usize = 20;
        let locks = self.client.as_ref().ok_or("there is no client")?;
        let mut took = Vec::new();
        for _ in 0..PAIRS {
            let began = Instant::now();
            locks.mutex("probe").acquire().await?.release().await?;
            took.push(u64::try_from(began.elapsed().as_micros())?);
        }
        took.sort_unstable();
        let nodes = self.nodes.iter().filter_map(|node| Some((node.child.as_ref()?.id(), node.data())));
        let nodes = nodes.map(|(pid, data)| usage(pid, &data)).collect::<Result<_>>()?;
        Ok(Sample { seconds: seconds as f64, nodes, pair: [took[PAIRS / 2], took[PAIRS - 1]] })
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
