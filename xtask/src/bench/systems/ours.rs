//! Ours: through the library, as its users do.
//!
//! A `Locks` has one connection and one session for all its locks, so that four of them are the four connections.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lockkeeper::{Guard, Locks, Unfenced};
use nix::sys::signal::Signal;

use super::sessions::{self, KeptAlive};
use super::{CONNECTIONS, Peer, Setup, TTL, failed};
use crate::Outcome;
use crate::bench::server::Server;
use crate::process::{cargo, run};
use crate::services::catalogue::Service;
use crate::services::{Place, probe};

/// One node of our own service, from this tree.
pub(crate) const SERVICE: Service = Service {
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
    // Its port takes connections before it serves: the answer to HTTP/2's first words comes from the node itself.
    ends_by: Signal::SIGTERM,
    after: None,
    ready: |place| probe::ask(place.port, HTTP2_PREFACE, SETTINGS),
};

/// A client's first words in HTTP/2: the preface, and settings without any.
const HTTP2_PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// What an answer's head ends with, behind its length: settings, no flags, about no stream.
const SETTINGS: &str = "\x04\0\0\0\0\0";

pub(crate) struct Ours {
    connections: Vec<Locks>,
}

impl Peer for Ours {
    type Held = Guard<Unfenced>;

    async fn connect(setup: Setup<'_>) -> Outcome<Self> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS.min(setup.clients) {
            connections.push(Locks::connect(setup.at).await.map_err(failed("lockkeeper", "connect"))?);
        }
        Ok(Self { connections })
    }

    async fn acquire(&self, client: usize, name: &str) -> Outcome<Self::Held> {
        let lock = self.connections[client % self.connections.len()].mutex(name).ttl(TTL);
        lock.acquire().await.map_err(failed("lockkeeper", "acquire"))
    }

    async fn release(&self, held: Self::Held) -> Outcome {
        held.release().await.map_err(failed("lockkeeper", "release"))
    }

    async fn close(self) -> Outcome {
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
    /// `sessions` sessions on [`CONNECTIONS`] streams.
    pub(crate) async fn keep_alive(
        at: &str,
        server: Server,
        sessions: usize,
        duration: Duration,
    ) -> Outcome<KeptAlive> {
        sessions::keep_alive(at, server, sessions, duration).await
    }
}

/// Services live in a folder beside what cargo builds.
fn release_build(place: &Place) -> PathBuf {
    let target = place.folder.ancestors().nth(2).unwrap_or(&place.folder);
    target.join("release").join("lockkeeper")
}
