//! The lock service of a row: its servers, the way of each contender to them, and their faults.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockkeeper::backends::dynamodb;
use lockkeeper_rig::{Faults, Network, Redis};
use nix::sys::signal::Signal;
use tokio::time::sleep;

use super::contenders::ContenderRoute;
use super::rows::{ComparedRow, LockClient};
use crate::Result;
use crate::cluster::{Cluster, ClusterStart, DiskKind};
use crate::others::{Other, label};
use crate::run::SMALL_SEGMENT;

/// Nodes of our own service at most; the hosts of contenders come after them.
pub(crate) const NODES: usize = 3;

/// A running lock service.
pub(crate) enum ComparedService {
    Own { cluster: Cluster, network: Rc<Network>, count: usize },
    Other(Other),
    FailOver(Box<ReplicatedRedis>),
}

/// A primary and a replica behind one address, as with a floating address or a proxy: a fail-over moves the
/// address.
pub(crate) struct ReplicatedRedis {
    servers: [Redis; 2],
    primary: usize,
    /// The link from the primary to its replica.
    link: Faults,
    clients: Faults,
}

impl ComparedService {
    pub(crate) async fn start(
        row: &ComparedRow,
        network: &Rc<Network>,
        program: &Path,
        folder: &Path,
    ) -> Result<Self> {
        match row.on {
            "own-1" | "own-3" => {
                let count = if row.on == "own-1" { 1 } else { NODES };
                let cluster = Cluster::start(&ClusterStart {
                    network,
                    hosts: 0..count,
                    programs: [program.to_owned(), program.to_owned()],
                    folder: folder.to_owned(),
                    disk: DiskKind::Memory,
                    segment_bytes: SMALL_SEGMENT,
                    tls: None,
                    more: Vec::new(),
                })
                .await?;
                Ok(Self::Own { cluster, network: Rc::clone(network), count })
            }
            "fail-over" => Ok(Self::FailOver(Box::new(ReplicatedRedis::start()?))),
            on => {
                let other = Other::start(on, folder).await?;
                if row.client == LockClient::PythonDynamodbLock {
                    let url = (other.url)(&[other.address(0).to_string()]);
                    dynamodb::init(&url.replace("//chaos?", "//locks?attributes=python&")).await?;
                }
                Ok(Self::Other(other))
            }
        }
    }

    /// How each contender reaches it.
    pub(crate) fn routes(&self, contenders: usize) -> Vec<ContenderRoute> {
        let each = |index: usize| match self {
            Self::Own { cluster, .. } => {
                ContenderRoute { url: cluster.url(), addresses: Vec::new(), host: Some(NODES + index) }
            }
            Self::Other(other) => {
                let addresses = other.proxies(index);
                ContenderRoute { url: (other.url)(&addresses), addresses, host: None }
            }
            Self::FailOver(redis) => {
                let at = redis.clients.proxy(&label(index), redis.address(0)).to_string();
                ContenderRoute {
                    url: format!("redis://{at}?fencing=counter"),
                    addresses: vec![at],
                    host: None,
                }
            }
        };
        (0..contenders).map(each).collect()
    }

    /// Cuts a contender off, for this time.
    pub(crate) async fn cut(&self, contender: usize, lasts: Duration) {
        let faults = match self {
            Self::Own { network, count, .. } => {
                let nodes: Vec<_> = (0..*count).collect();
                return cut(network, NODES + contender, &nodes, lasts).await;
            }
            Self::Other(other) => &other.faults,
            Self::FailOver(redis) => &redis.clients,
        };
        faults.silence(&label(contender));
        sleep(lasts).await;
        faults.end_silence(&label(contender));
    }

    /// SIGSTOP of a server, for this time.
    pub(crate) async fn stop(&mut self, pick: usize, lasts: Duration) -> Result {
        match self {
            Self::Own { cluster, .. } => {
                let leader = leader(cluster).await;
                cluster.nodes[leader].signal(Signal::SIGSTOP)?;
                sleep(lasts).await;
                cluster.nodes[leader].signal(Signal::SIGCONT)?;
            }
            Self::Other(other) => {
                let server = &other.servers[pick % other.servers.len()];
                server.stop();
                sleep(lasts).await;
                server.cont();
            }
            Self::FailOver(redis) => {
                redis.servers[redis.primary].stop();
                sleep(lasts).await;
                redis.servers[redis.primary].cont();
            }
        }
        Ok(())
    }

    /// `kill -9` of a server, which is started again after this time.
    pub(crate) async fn kill(&mut self, pick: usize, lasts: Duration) -> Result {
        match self {
            Self::Own { cluster, .. } => {
                let leader = leader(cluster).await;
                cluster.nodes[leader].kill()?;
                sleep(lasts).await;
                cluster.nodes[leader].start()?;
            }
            Self::Other(other) => {
                let server = &other.servers[pick % other.servers.len()];
                server.kill();
                sleep(lasts).await;
                server.start_again();
            }
            Self::FailOver(_) => return Err("a primary is not started again: its replica takes over".into()),
        }
        Ok(())
    }

    /// Cuts the leader off from all others, for this time.
    pub(crate) async fn cut_leader(&mut self, contenders: usize, lasts: Duration) -> Result {
        let Self::Own { cluster, network, .. } = self else {
            return Err("only our own service has a leader here".into());
        };
        let network = Rc::clone(network);
        let leader = leader(cluster).await;
        let others: Vec<_> = (0..NODES + contenders).filter(|host| *host != leader).collect();
        cut(&network, leader, &others, lasts).await;
        Ok(())
    }

    /// Cuts the replication from the primary to its replica.
    pub(crate) fn lag(&self) {
        if let Self::FailOver(redis) = self {
            redis.link.silence(LINK);
        }
    }

    /// The replica takes over.
    pub(crate) fn fail_over(&mut self) -> Result {
        match self {
            Self::FailOver(redis) => redis.fail_over(),
            _ => Ok(()),
        }
    }

    /// Ends all servers of ours; those of others end when they are dropped.
    pub(crate) fn end(&mut self) -> Result {
        if let Self::Own { cluster, .. } = self {
            cluster.nodes.iter_mut().try_for_each(crate::cluster::ChaosNode::kill)?;
        }
        Ok(())
    }
}

/// The index of the leader; 0 while no leader is known.
async fn leader(cluster: &mut Cluster) -> usize {
    cluster.view(None).await.map_or(0, |view| view.leader)
}

async fn cut(network: &Network, one: usize, others: &[usize], lasts: Duration) {
    network.part(&[one], others);
    sleep(lasts).await;
    network.unite(&[one], others);
}

const LINK: &str = "replication";
/// Only bounds the wait for a replica that does not get in sync.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(60);

impl ReplicatedRedis {
    fn start() -> Result<Self> {
        let server = || Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let redis = Self {
            servers: [server(), server()],
            primary: 0,
            link: Faults::default(),
            clients: Faults::default(),
        };
        redis.follow()?;
        Ok(redis)
    }

    fn address(&self, index: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.servers[index].port()))
    }

    /// Makes the other server a replica of the primary, and waits until it is in sync.
    fn follow(&self) -> Result {
        let replica = &self.servers[1 - self.primary];
        let port = self.link.proxy(LINK, self.address(self.primary)).port().to_string();
        replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
        let until = Instant::now() + FOLLOWS_WITHIN;
        while !replica.cli(&["INFO", "replication"]).contains("master_link_status:up") {
            if Instant::now() >= until {
                return Err(format!("the replica is not in sync after {FOLLOWS_WITHIN:?}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn fail_over(&mut self) -> Result {
        let former = self.primary;
        self.servers[former].kill();
        self.link.end_silence(LINK);
        self.primary = 1 - former;
        self.servers[self.primary].cli(&["REPLICAOF", "NO", "ONE"]);
        self.clients.redirect(self.address(0), self.address(self.primary));
        self.servers[former].start_again();
        self.follow()
    }
}
