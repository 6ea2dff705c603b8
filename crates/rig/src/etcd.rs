//! One etcd server.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program, ask};
use crate::tls::Certificates;

/// The server's program.
pub const SERVER: Program = Program { name: "etcd", package: "etcd-server" };
/// The command line client.
pub const CLI: Program = Program { name: "etcdctl", package: "etcd-client" };

/// An etcd member on its own ports, alone or one of three; ended when dropped. It syncs every write.
pub struct Etcd {
    // The first field, so that the process is ended before its ports are released and its folder removed.
    slot: ProcessSlot,
    clients: Port,
    peers: Port,
    /// Its name, and the members of its cluster by `--initial-cluster`.
    name: String,
    cluster: String,
    /// For TLS, which asks clients for certificates.
    certificates: Option<Certificates>,
    /// Further words of its command line.
    further: Vec<String>,
    folder: Folder,
}

process_methods!(Etcd, wipe);

impl Etcd {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// `etcd` is missing or doesn't start; this applies to all functions that start a server.
    #[must_use]
    pub fn start() -> Self {
        let [etcd] = Self::prepared(|_| None);
        etcd.start_again();
        etcd
    }

    /// Starts a server that gives logins tokens of JWT, which end after `ttl` (`10m`).
    ///
    /// # Panics
    /// As [`Etcd::start`].
    #[must_use]
    pub fn with_jwt(ttl: &str) -> Self {
        let [mut etcd] = Self::prepared(|_| None);
        let key = etcd.folder.path().join("jwt.key");
        fs::write(&key, "a secret of at least thirty-two bytes").expect("our folder is ours");
        let token = format!("jwt,sign-method=HS256,priv-key={},ttl={ttl}", key.display());
        etcd.further = vec!["--auth-token".to_owned(), token];
        etcd.start_again();
        etcd
    }

    /// Starts a server that speaks TLS only, and asks clients for certificates.
    #[must_use]
    pub fn start_tls() -> Self {
        let [etcd] = Self::prepared(|folder| Some(Certificates::make(folder)));
        etcd.start_again();
        etcd
    }

    /// Starts a cluster of three members; returns once each of them answers.
    #[must_use]
    pub fn cluster() -> [Self; 3] {
        let members = Self::prepared(|_| None);
        members.iter().for_each(Self::spawn);
        members.iter().for_each(Self::wait_until_ready);
        members
    }

    fn prepared<const N: usize>(certificates: impl Fn(&Path) -> Option<Certificates>) -> [Self; N] {
        let mut members: [Self; N] = std::array::from_fn(|number| {
            let folder = Folder::new("etcd");
            Self {
                slot: ProcessSlot::empty(),
                clients: Port::free(),
                peers: Port::free(),
                name: format!("member-{number}"),
                cluster: String::new(),
                certificates: certificates(folder.path()),
                further: Vec::new(),
                folder,
            }
        });
        let address = |member: &Self| format!("{}=http://127.0.0.1:{}", member.name, member.peers.number());
        let cluster = members.iter().map(address).collect::<Vec<_>>().join(",");
        members.iter_mut().for_each(|member| member.cluster.clone_from(&cluster));
        members
    }

    /// Whether this member leads its cluster.
    #[must_use]
    pub fn leads(&self) -> bool {
        let status = self.try_cli(&["endpoint", "status", "--write-out=fields"]).unwrap_or_default();
        let value = |field: &str| {
            let line = status.lines().find(|line| line.starts_with(&format!("\"{field}\"")))?;
            line.rsplit(' ').next().map(str::to_owned)
        };
        value("Leader").is_some() && value("Leader") == value("MemberID")
    }

    /// The files of a server with TLS: the authority, a certificate that it has signed, and its key.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn certificates(&self) -> [&Path; 3] {
        let files = self.certificates.as_ref().expect("it was started with TLS");
        [&files.ca, &files.certificate, &files.key]
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
            let port = self.port();
            cli.env("ETCDCTL_API", "3");
            match &self.certificates {
                None => cli.arg(format!("--endpoints=127.0.0.1:{port}")),
                Some(files) => cli
                    .arg(format!("--endpoints=https://127.0.0.1:{port}"))
                    .arg("--cacert")
                    .arg(&files.ca)
                    .arg("--cert")
                    .arg(&files.certificate)
                    .arg("--key")
                    .arg(&files.key),
            };
            cli.args(command);
        })
    }

    /// Starts the server after [`Etcd::kill`]: on the same port, with the data that are on disk.
    pub fn start_again(&self) {
        self.spawn();
        self.wait_until_ready();
    }

    fn spawn(&self) {
        SERVER.path();
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let clients = format!("{scheme}://127.0.0.1:{}", self.clients.number());
        let peers = format!("http://127.0.0.1:{}", self.peers.number());
        let mut line = CommandLine::new(SERVER.name)
            .args(["--name", &self.name, "--data-dir"])
            .path(&data)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &self.cluster, "--logger", "zap"])
            // The cheapest: a login at the default cost takes a core for some 60 ms, and seconds under load.
            .args(["--bcrypt-cost", "4"])
            .args(&self.further);
        if let Some(files) = &self.certificates {
            line = line.args(["--client-cert-auth", "--trusted-ca-file"]).path(&files.ca);
            line = line.args(["--cert-file"]).path(&files.certificate).args(["--key-file"]).path(&files.key);
        }
        self.slot.fill(|| ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log()));
    }

    fn wait_until_ready(&self) {
        self.slot.wait_until_ready(SERVER.name, || self.answers());
    }

    /// Succeeds once the server answers a read that needs a leader.
    fn answers(&self) -> Result<(), String> {
        self.try_cli(&["get", "lockkeeper-rig"]).map(drop)
    }
}
