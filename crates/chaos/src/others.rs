//! Lock services of others: their servers, and the faults that they must stand. docs/proof.md says which
//! faults are left out, and why.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::backends::{dynamodb, mysql, postgres};
use lockkeeper_rig::{DynamoDb, Etcd, Faults, MariaDb, Postgres, Redis, SeaweedFs, ZooKeeper};
use tokio::time::sleep;

use crate::Result;
use crate::plan::{Fault, FaultKind, Victim};
use crate::processes::stands_still;
use crate::worker::SERVICE;
use crate::workers::{WorkerPlace, Workers};

/// The values of `--on`.
pub(crate) const NAMES: [&str; 11] = [
    "own",
    "redis",
    "redlock",
    "etcd",
    "zookeeper",
    "postgres-row",
    "postgres-session",
    "dynamodb",
    "mysql",
    "s3",
    "file",
];

/// Where `cargo xtask test` installs packages of other registries.
const FOREIGN: &str = "target/foreign";

/// The faults that a service must stand.
pub(crate) fn kinds(service: &str) -> Vec<FaultKind> {
    let mut kinds = vec![FaultKind::Kill(Victim::Worker), FaultKind::Stop(Victim::Worker)];
    if service != "file" {
        kinds.extend([FaultKind::Cut(Victim::Worker), FaultKind::Stop(Victim::Leader)]);
    }
    // The emulator of DynamoDB keeps its tables in memory.
    if !["file", "dynamodb"].contains(&service) {
        kinds.push(FaultKind::Kill(Victim::Leader));
    }
    kinds
}

/// A server of the rig.
pub(crate) trait RigServer {
    fn port(&self) -> u16;
    fn kill(&self);
    fn start_again(&self);
    fn stop(&self);
    fn cont(&self);
}

macro_rules! servers {
    ($($server:ty),+) => {$(
        impl RigServer for $server {
            fn port(&self) -> u16 {
                self.port()
            }
            fn kill(&self) {
                self.kill();
            }
            fn start_again(&self) {
                self.start_again();
            }
            fn stop(&self) {
                self.stop();
            }
            fn cont(&self) {
                self.cont();
            }
        }
    )+};
}

servers!(Etcd, MariaDb, Postgres, Redis, SeaweedFs, ZooKeeper);

impl RigServer for DynamoDb {
    fn port(&self) -> u16 {
        self.port()
    }
    fn kill(&self) {
        unreachable!("no plan for it has kills");
    }
    fn start_again(&self) {}
    fn stop(&self) {
        self.stop();
    }
    fn cont(&self) {
        self.cont();
    }
}

pub(crate) type RigServers = Vec<Box<dyn RigServer>>;
pub(crate) type UrlOf = Box<dyn Fn(&[String]) -> String>;

/// A service, and the proxies through which workers reach it.
pub(crate) struct Other {
    pub(crate) servers: RigServers,
    /// The URL of the service behind these addresses.
    pub(crate) url: UrlOf,
    pub(crate) faults: Faults,
}

impl Other {
    /// Starts the servers of a service; a file service keeps its locks in `folder`.
    pub(crate) async fn start(service: &str, folder: &Path) -> Result<Self> {
        let foreign = PathBuf::from(FOREIGN);
        let durable = || Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let (servers, url): (RigServers, UrlOf) = match service {
            "redis" => {
                let url = |at: &[String]| format!("redis://{}?fencing=counter", at[0]);
                (vec![Box::new(durable())], Box::new(url))
            }
            "redlock" => {
                let servers = (0..3).map(|_| Box::new(durable()) as Box<dyn RigServer>);
                (servers.collect(), Box::new(|at: &[String]| format!("redlock://{}", at.join(","))))
            }
            "etcd" => {
                let url = |at: &[String]| format!("etcd://{}", at[0]);
                (vec![Box::new(Etcd::start())], Box::new(url))
            }
            "zookeeper" => {
                let url = |at: &[String]| format!("zookeeper://{}", at[0]);
                (vec![Box::new(ZooKeeper::start())], Box::new(url))
            }
            "postgres-row" | "postgres-session" => {
                let server = Postgres::start();
                let direct = server.url();
                postgres::init(&direct, None).await?;
                let own = format!("127.0.0.1:{}", server.port());
                let kind = service.trim_start_matches("postgres-").to_owned();
                let url = move |at: &[String]| format!("{}?lock={kind}", direct.replace(&own, &at[0]));
                (vec![Box::new(server)], Box::new(url))
            }
            "mysql" => {
                let server = MariaDb::start();
                server.sql(mysql::SCHEMA_SQL);
                let (direct, own) = (server.url(), format!("127.0.0.1:{}", server.port()));
                let url = move |at: &[String]| format!("{}?lock=row", direct.replace(&own, &at[0]));
                (vec![Box::new(server)], Box::new(url))
            }
            "dynamodb" => {
                let server = DynamoDb::start(&foreign);
                let url = |at: &[String]| {
                    let more = "region=us-east-1&credentials=none&poll_ms=20";
                    format!("dynamodb://chaos?{more}&endpoint=http://{}", at[0])
                };
                dynamodb::init(&url(&[format!("127.0.0.1:{}", server.port())])).await?;
                (vec![Box::new(server)], Box::new(url))
            }
            "s3" => {
                let url = |at: &[String]| {
                    format!("s3://lockkeeper/locks?credentials=none&poll_ms=20&endpoint=http://{}", at[0])
                };
                (vec![Box::new(SeaweedFs::start(&foreign))], Box::new(url))
            }
            _ => {
                let place = folder.join("locks");
                std::fs::create_dir_all(&place)?;
                (Vec::new(), Box::new(move |_: &[String]| format!("file://{}", place.display())))
            }
        };
        Ok(Self { servers, url, faults: Faults::default() })
    }

    /// The place of each worker, all on the service's own host.
    pub(crate) fn places(&self, workers: usize) -> Vec<WorkerPlace> {
        let place = |worker: usize| WorkerPlace {
            url: (self.url)(&self.proxies(worker)),
            host: None,
            service: SERVICE,
        };
        (0..workers).map(place).collect()
    }

    /// The addresses of a proxy to each server, for one client.
    pub(crate) fn proxies(&self, client: usize) -> Vec<String> {
        let proxy = |server| self.faults.proxy(&label(client), self.address(server)).to_string();
        (0..self.servers.len()).map(proxy).collect()
    }

    /// The address of a server.
    pub(crate) fn address(&self, server: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.servers[server].port()))
    }

    /// Injects a fault, and heals it. Returns whether it has bitten.
    pub(crate) async fn play(
        &self,
        fault: &Fault,
        workers: &mut Workers,
        mut tell: impl FnMut(&str, bool),
    ) -> Result<bool> {
        let (server, worker) = (fault.pick % self.servers.len().max(1), fault.pick % workers.all.len());
        let target = match fault.kind {
            FaultKind::Kill(Victim::Worker)
            | FaultKind::Stop(Victim::Worker)
            | FaultKind::Cut(Victim::Worker) => workers.all[worker].name.clone(),
            _ => format!("server{}", server + 1),
        };
        tell(&target, true);
        let bitten = match fault.kind {
            FaultKind::Kill(Victim::Worker) => workers.kill_and_start(worker, fault.lasts).await?,
            FaultKind::Stop(Victim::Worker) => workers.stop(worker, fault.lasts).await?,
            FaultKind::Cut(_) => {
                let bytes = || self.faults.traffic(&label(worker)).iter().map(|it| it.bytes).sum::<u64>();
                self.faults.silence(&label(worker));
                let is_silent = stands_still(fault.lasts, bytes).await;
                self.faults.end_silence(&label(worker));
                is_silent
            }
            FaultKind::Kill(_) => {
                self.servers[server].kill();
                sleep(fault.lasts).await;
                let refuses = !self.answers(server);
                self.servers[server].start_again();
                refuses
            }
            _ => {
                self.servers[server].stop();
                sleep(fault.lasts).await;
                self.servers[server].cont();
                true
            }
        };
        tell(&target, false);
        Ok(bitten)
    }

    /// Whether a server accepts connections.
    fn answers(&self, server: usize) -> bool {
        std::net::TcpStream::connect_timeout(&self.address(server), Duration::from_millis(150)).is_ok()
    }
}

/// The name of a client at the proxies.
pub(crate) fn label(worker: usize) -> String {
    format!("worker{}", worker + 1)
}
