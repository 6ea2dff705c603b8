//! Our service, used through the library.
//!
//! A `Locks` has one connection and one session for all its locks, so four `Locks` make four connections.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lockkeeper::{Guard, Locks, Unfenced};
use lockkeeper_wire::v1;
use lockkeeper_wire::v1::lockkeeper_client::LockkeeperClient;
use nix::sys::signal::Signal;
use tonic::transport::Endpoint;

use super::sessions::{self, KeptAlive};
use super::{CONNECTIONS, Peer, Setup, failed};
use crate::TaskResult;
use crate::bench::server::ServerProcesses;
use crate::process::{cargo, run};
use crate::services::catalogue::ServiceSpec;
use crate::services::clusters::{NODES, ThreeNodes, number};
use crate::services::{ServiceLocation, probe};

/// One node of our own service, built from this tree.
pub(crate) const SERVICE: ServiceSpec = ServiceSpec {
    name: "lockkeeper",
    family: "lockkeeper",
    port: 16430,
    needs: &[],
    version: |place| {
        let mut command = Command::new(release_build(place));
        command.arg("--version");
        command
    },
    prepare: |_| run(cargo().args(["build", "--release", "-p", "lockkeeper-cli"])),
    command: |place| {
        let mut command = Command::new(release_build(place));
        command.args(["serve", "--data"]).arg(place.data());
        command.args(["--listen", &format!("127.0.0.1:{}", place.port)]);
        command
    },
    ends_by: Signal::SIGTERM,
    after: None,
    // The port accepts connections before the node serves, so the node is ready once it answers the HTTP/2
    // preface.
    ready: |place| probe::ask(place.port, HTTP2_PREFACE, SETTINGS),
};

/// A node on loopback answers within a millisecond; a busy machine may need longer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// A client's HTTP/2 connection preface, followed by an empty SETTINGS frame.
const HTTP2_PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The header of the server's first frame, without the length: type SETTINGS, no flags, stream 0.
const SETTINGS: &str = "\x04\0\0\0\0\0";

const CLUSTER_PORTS: [u16; NODES] = [16580, 16590, 16600];

/// Three nodes, bootstrapped together, with default settings.
pub(crate) const CLUSTER: ThreeNodes = ThreeNodes {
    nodes: [
        node("lockkeeper-1", CLUSTER_PORTS[0]),
        node("lockkeeper-2", CLUSTER_PORTS[1]),
        node("lockkeeper-3", CLUSTER_PORTS[2]),
    ],
    leads: |place| match status(place)?.role() {
        v1::Role::Leader => Ok(()),
        other => Err(format!("is a {}", other.as_str_name())),
    },
};

const fn node(name: &'static str, port: u16) -> ServiceSpec {
    ServiceSpec {
        name,
        port,
        command: |place| {
            let peers = CLUSTER_PORTS.iter().zip(1..);
            let peers: Vec<String> =
                peers.map(|(port, node)| format!("{node}=127.0.0.1:{}", port + 1)).collect();
            let mut command = (SERVICE.command)(place);
            command.args(["--node", &number(place, &CLUSTER_PORTS).to_string()]);
            command.args(["--cluster", &peers.join(",")]);
            command.args(["--peer-listen", &format!("127.0.0.1:{}", place.port + 1)]);
            command
        },
        // A node accepts connections before it has found the other nodes, so it is ready once it knows a
        // leader.
        ready: |place| match status(place)?.leader {
            0 => Err("knows no leader".to_owned()),
            _ => Ok(()),
        },
        ..SERVICE
    }
}

/// The status reported by the node at `place`.
fn status(place: &ServiceLocation) -> Result<v1::StatusResponse, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start tokio: {error}"))?;
    let uri = format!("http://127.0.0.1:{}", place.port);
    let ask = async {
        let endpoint = Endpoint::from_shared(uri).map_err(failed("lockkeeper", "read its address"))?;
        let channel = endpoint.connect().await.map_err(failed("lockkeeper", "connect"))?;
        let answer = LockkeeperClient::new(channel).status(v1::StatusRequest { node: 0 }).await;
        answer.map(tonic::Response::into_inner).map_err(failed("lockkeeper", "tell its status"))
    };
    runtime.block_on(async {
        let late = |_| format!("port {} gives no answer within {} s", place.port, ANSWERS_WITHIN.as_secs());
        tokio::time::timeout(ANSWERS_WITHIN, ask).await.map_err(late)?
    })
}

pub(crate) struct Ours {
    connections: Vec<Locks>,
    ttl: Duration,
}

impl Peer for Ours {
    type Held = Guard<Unfenced>;

    async fn connect(setup: Setup<'_>) -> TaskResult<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(setup.clients) {
            connections.push(Locks::connect(setup.at).await.map_err(failed("lockkeeper", "connect"))?);
        }
        Ok(Self { connections, ttl: setup.ttl })
    }

    async fn acquire(&self, client: usize, name: &str) -> TaskResult<Self::Held> {
        let lock = self.connections[client % self.connections.len()].mutex(name).ttl(self.ttl);
        lock.acquire().await.map_err(failed("lockkeeper", "acquire"))
    }

    async fn release(&self, held: Self::Held) -> TaskResult {
        held.release().await.map_err(failed("lockkeeper", "release"))
    }

    async fn pairs_alone(&self, client: usize, name: &str, until: Instant) -> TaskResult<Vec<u64>> {
        let lock = self.connections[client % self.connections.len()].mutex(name).ttl(self.ttl).cached();
        let mut took = Vec::new();
        loop {
            let asked = Instant::now();
            if asked >= until {
                return Ok(took);
            }
            let held = lock.acquire().await.map_err(failed("lockkeeper", "acquire"))?;
            held.release().await.map_err(failed("lockkeeper", "release"))?;
            took.push(asked.elapsed().as_nanos() as u64);
        }
    }

    async fn close(self) -> TaskResult {
        for locks in self.connections {
            let report = locks.shutdown(Duration::from_secs(10)).await;
            if report.left > 0 {
                return Err(format!("lockkeeper left {} session open after 10 s", report.left));
            }
        }
        Ok(())
    }
}

impl Ours {
    /// Keeps `sessions` sessions alive on [`CONNECTIONS`] streams.
    pub(crate) async fn keep_alive(
        at: &str,
        server: &ServerProcesses,
        sessions: usize,
        duration: Duration,
    ) -> TaskResult<KeptAlive> {
        sessions::keep_alive(at, server, sessions, duration).await
    }
}

/// The binary of the release build. It is in cargo's target folder, two levels above the folder of a service.
fn release_build(place: &ServiceLocation) -> PathBuf {
    let target = place.folder.ancestors().nth(2).unwrap_or(&place.folder);
    target.join("release").join("lockkeeper")
}
