//! One etcd server.

use std::fs;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess};
use crate::program::{CommandLine, Program, ask};

/// The server's program.
pub const SERVER: Program = Program { name: "etcd", package: "etcd-server" };
/// The command line client.
pub const CLI: Program = Program { name: "etcdctl", package: "etcd-client" };

/// A cluster of one etcd member on its own ports; ended when dropped. It syncs every write.
pub struct Etcd {
    // The first field, so that the process is ended before its ports are released and its folder removed.
    slot: ProcessSlot,
    clients: Port,
    peers: Port,
    folder: Folder,
}

impl Etcd {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// `etcd` is missing or doesn't start; this applies to all functions that start a server.
    #[must_use]
    pub fn start() -> Self {
        let etcd = Self {
            slot: ProcessSlot::empty(),
            clients: Port::free(),
            peers: Port::free(),
            folder: Folder::new("etcd"),
        };
        etcd.start_again();
        etcd
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.clients.number()
    }

    /// `etcd://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port())
    }

    /// The output of `etcdctl` for a command, without the final newline: `&["get", "a"]`.
    ///
    /// # Panics
    /// The server answers with an error or not at all.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Like [`Etcd::cli`].
    ///
    /// # Errors
    /// The server answers with an error, or not within 30 s, or does not run.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        ask(CLI, |cli| {
            cli.env("ETCDCTL_API", "3").arg(format!("--endpoints=127.0.0.1:{}", self.port())).args(command);
        })
    }

    /// `kill -9`; when this returns, the port is closed.
    pub fn kill(&self) {
        self.slot.kill();
    }

    /// Starts the server after [`Etcd::kill`]: on the same port, with the data that are on disk.
    pub fn start_again(&self) {
        SERVER.path();
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let (clients, peers) = (self.clients.number(), self.peers.number());
        let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let line = CommandLine::new(SERVER.name)
            .args(["--name", "one", "--data-dir"])
            .path(&data)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("one={peers}"), "--logger", "zap"]);
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready(SERVER.name, || self.answers());
            process
        });
    }

    /// SIGSTOP: the server does not answer, its connections stay open. When this returns, the server is stopped.
    pub fn stop(&self) {
        self.slot.stop();
    }

    /// SIGCONT after [`Etcd::stop`].
    pub fn cont(&self) {
        self.slot.cont();
    }

    /// Deletes the server's data. A running server is killed first, and then started again without data.
    pub fn wipe(&self) {
        let ran = self.slot.pid().is_some();
        if ran {
            self.kill();
        }
        fs::remove_dir_all(self.folder.data()).expect("our folder is ours");
        if ran {
            self.start_again();
        }
    }

    /// Succeeds once the server answers a read that needs a leader.
    fn answers(&self) -> Result<(), String> {
        self.try_cli(&["get", "lockkeeper-rig"]).map(drop)
    }
}
