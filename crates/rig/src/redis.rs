//! One Redis server.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess, process_methods};
use crate::program::{CommandLine, Program, ask};
use crate::shim::{Shim, ShimClock};
use crate::tls::Certificates;
use crate::wait::wait;

/// The server's program; it is also the sentinel's.
pub const SERVER: Program = Program { name: "redis-server", package: "redis-server" };
/// The command line client.
pub const CLI: Program = Program { name: "redis-cli", package: "redis-tools" };

/// A Redis server on its own port; ended when dropped.
///
/// Without further settings it stores nothing on disk: its data are lost by [`Redis::kill`]. With
/// `--appendonly yes --appendfsync always` all acknowledged writes survive.
pub struct Redis {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    /// The port for the other nodes of the cluster, if the server is a cluster node.
    bus: Option<Port>,
    folder: Folder,
    settings: Vec<String>,
    shim: Option<Shim>,
    tls: Option<Certificates>,
}

process_methods!(Redis, wipe);

impl Redis {
    /// Starts a server; returns once it answers.
    ///
    /// # Panics
    /// `redis-server` is missing or doesn't start; this applies to all functions that start a server.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further settings, as the words of a command line: `&["--appendonly", "yes"]`, or
    /// `&["--user", "alice", "on", ">secret", "~jobs/*", "+@all"]`. With `--requirepass`, [`Redis::cli`] uses
    /// that password too.
    #[must_use]
    pub fn with(settings: &[&str]) -> Self {
        Self::unstarted(settings).started()
    }

    /// Starts a server whose wall clock can be set: [`Redis::clock`].
    #[must_use]
    pub fn with_clock() -> Self {
        Self::with_clock_and(&[])
    }

    /// Like [`Redis::with_clock`], with further settings as for [`Redis::with`].
    #[must_use]
    pub fn with_clock_and(settings: &[&str]) -> Self {
        let mut redis = Self::unstarted(settings);
        redis.shim = Some(Shim::new(redis.folder.path()));
        redis.started()
    }

    /// Starts a server that accepts TLS only, with a certificate by [`Redis::ca`] for `localhost` and
    /// `127.0.0.1`.
    #[must_use]
    pub fn with_tls() -> Self {
        Self::with_tls_and(&[])
    }

    /// Like [`Redis::with_tls`], with further settings as for [`Redis::with`].
    #[must_use]
    pub fn with_tls_and(settings: &[&str]) -> Self {
        let mut redis = Self::unstarted(settings);
        redis.tls = Some(Certificates::make(redis.folder.path()));
        redis.started()
    }

    /// Starts a cluster node that is not part of a cluster yet.
    pub(crate) fn node(settings: &[&str]) -> Self {
        let mut redis = Self::unstarted(settings);
        redis.bus = Some(Port::free());
        redis.started()
    }

    fn unstarted(settings: &[&str]) -> Self {
        Self {
            port: Port::free(),
            bus: None,
            folder: Folder::new("redis"),
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            shim: None,
            tls: None,
            slot: ProcessSlot::empty(),
        }
    }

    fn started(self) -> Self {
        self.start_again();
        self
    }

    /// Starts a replica of this server, with the same settings and without a clock to set; returns once the
    /// replica is in sync.
    ///
    /// # Panics
    /// This server uses TLS; or those of [`Redis::start`].
    #[must_use]
    pub fn replica(&self) -> Self {
        assert!(self.tls.is_none(), "a replica by TLS is not provided for");
        let port = self.port().to_string();
        let mut settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        settings.extend(["--replicaof", "127.0.0.1", &port]);
        if let Some(password) = self.setting("--requirepass") {
            settings.extend(["--masterauth", password]);
        }
        let replica = Self::with(&settings);
        let in_step = wait(|| {
            let told = replica.try_cli(&["INFO", "replication"])?;
            if told.contains("master_link_status:up") { Ok(()) } else { Err(told) }
        });
        in_step.unwrap_or_else(|why| panic!("the replica does not come into step: {why}"));
        replica
    }

    /// The port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://…` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.port())
    }

    /// The same URL with `user:password@` or, with an empty user, `:password@`.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("{}://{user}:{password}@127.0.0.1:{}", self.scheme(), self.port())
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// The file of the authority that issued the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").ca
    }

    /// The files of a certificate and its key by [`Redis::ca`], which clients may use too.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn certificate(&self) -> [&Path; 2] {
        let tls = self.tls.as_ref().expect("only `with_tls` has certificates");
        [&tls.certificate, &tls.key]
    }

    /// The file of an authority that did *not* issue the server's certificate.
    ///
    /// # Panics
    /// The server has no TLS.
    #[must_use]
    pub fn stranger_ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").stranger
    }

    /// The server's wall clock. Its offset stays the same when the server is started again.
    ///
    /// # Panics
    /// The server was not started by [`Redis::with_clock`].
    #[must_use]
    pub fn clock(&self) -> ShimClock<'_> {
        ShimClock(self.shim.as_ref().expect("only `with_clock` has a clock to set"))
    }

    /// The output of `redis-cli` for a command, without the final newline: `&["GET", "orders/42"]`.
    ///
    /// # Panics
    /// The server answers with an error or not at all.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Like [`Redis::cli`].
    ///
    /// # Errors
    /// The server answers with an error, or not within 30 s, or does not run.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        ask(CLI, |cli| {
            cli.args(["-e", "-p", &self.port().to_string()]);
            if let Some(tls) = &self.tls {
                cli.args(["--tls", "--cacert"]).arg(&tls.ca);
                cli.arg("--cert").arg(&tls.certificate).arg("--key").arg(&tls.key);
            }
            cli.args(command).env_remove("REDISCLI_AUTH");
            if let Some(password) = self.setting("--requirepass") {
                cli.env("REDISCLI_AUTH", password);
            }
        })
    }

    /// Starts the server after [`Redis::kill`]: on the same port, with the data that are on disk.
    pub fn start_again(&self) {
        SERVER.path();
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        let mut line = line(self.port(), &data, &self.settings);
        if self.bus.is_some() {
            line = line.args(["--cluster-port", &self.bus()]);
        }
        if let Some(tls) = &self.tls {
            line = line.args(["--port", "0", "--tls-port", &self.port().to_string()]);
            let clients = self.setting("--tls-auth-clients").unwrap_or("no");
            line = line.args(["--tls-auth-clients", clients, "--tls-ca-cert-file"]).path(&tls.ca);
            line = line.args(["--tls-cert-file"]).path(&tls.certificate);
            line = line.args(["--tls-key-file"]).path(&tls.key);
        }
        for (name, value) in self.shim.iter().flat_map(Shim::environment) {
            line = line.env(name, value);
        }
        self.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready(SERVER.name, || self.answers());
            process
        });
    }

    /// Ends the server gracefully (SIGTERM) and starts it again.
    pub fn restart(&self) {
        self.slot.end(Signal::SIGTERM);
        self.start_again();
    }

    /// The port for the other nodes of the server's cluster.
    pub(crate) fn bus(&self) -> String {
        self.bus.as_ref().expect("it is a node").number().to_string()
    }

    /// The last value of `name` in the settings.
    fn setting(&self, name: &str) -> Option<&str> {
        let place = self.settings.iter().rposition(|setting| setting == name)?;
        self.settings.get(place + 1).map(String::as_str)
    }

    /// Succeeds once the server answers; a refused login counts as an answer.
    fn answers(&self) -> Result<(), String> {
        match self.try_cli(&["PING"]) {
            Ok(answer) if answer == "PONG" => Ok(()),
            Err(why) if ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|no| why.contains(no)) => Ok(()),
            Ok(other) | Err(other) => Err(other),
        }
    }
}

/// The command line of a Redis in the foreground: on 127.0.0.1, with `folder` for its data. It stores nothing
/// on disk unless `settings` enable that.
#[must_use]
pub fn line(port: u16, folder: &Path, settings: &[impl AsRef<str>]) -> CommandLine {
    CommandLine::new(SERVER.name)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .path(folder)
        .args(["--save", "", "--appendonly", "no"])
        // So a replica is served at once; by default, the server waits 5 s for further replicas.
        .args(["--repl-diskless-sync-delay", "0"])
        // A process title would overwrite the command line, by which xtask recognises the services that it
        // has started.
        .args(["--set-proc-title", "no"])
        .args(settings.iter().map(AsRef::as_ref))
}
