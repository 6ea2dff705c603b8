//! One Redis server.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{Process, Slot};
use crate::program::{Line, Program, ask};
use crate::shim::{Clock, Shim};
use crate::tls::Certificates;
use crate::wait::wait;

/// The server; it is the sentinel too.
pub const SERVER: Program = Program { name: "redis-server", package: "redis-server" };
/// Its command.
pub const CLI: Program = Program { name: "redis-cli", package: "redis-tools" };

/// A Redis server on a port of its own; ended when dropped.
///
/// Without further settings it stores nothing on disk: what was in it is gone after [`Redis::kill`]. With
/// `--appendonly yes --appendfsync always` it has everything again that it had acknowledged.
pub struct Redis {
    // Ended before its folder is removed and its port given back.
    slot: Slot,
    port: Port,
    /// For the other nodes of a cluster.
    bus: Option<Port>,
    folder: Folder,
    settings: Vec<String>,
    shim: Option<Shim>,
    tls: Option<Certificates>,
}

impl Redis {
    /// One that answers.
    ///
    /// # Panics
    /// `redis-server` is missing or doesn't start; this holds for all that start one.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// One with further settings, as the words of a command line: `&["--appendonly", "yes"]`, or
    /// `&["--user", "alice", "on", ">secret", "~jobs/*", "+@all"]`. With `--requirepass` also [`Redis::cli`] uses that
    /// password.
    #[must_use]
    pub fn with(settings: &[&str]) -> Self {
        Self::unstarted(settings).started()
    }

    /// One whose wall clock can be set: [`Redis::clock`].
    #[must_use]
    pub fn with_clock() -> Self {
        Self::with_clock_and(&[])
    }

    /// The same with further settings, as for [`Redis::with`].
    #[must_use]
    pub fn with_clock_and(settings: &[&str]) -> Self {
        let mut redis = Self::unstarted(settings);
        redis.shim = Some(Shim::new(redis.folder.path()));
        redis.started()
    }

    /// One that speaks TLS only, with a certificate for `localhost` and `127.0.0.1` by [`Redis::ca`].
    #[must_use]
    pub fn with_tls() -> Self {
        Self::with_tls_and(&[])
    }

    /// The same with further settings, as for [`Redis::with`].
    #[must_use]
    pub fn with_tls_and(settings: &[&str]) -> Self {
        let mut redis = Self::unstarted(settings);
        redis.tls = Some(Certificates::make(redis.folder.path()));
        redis.started()
    }

    /// A node of a cluster, so far alone.
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
            slot: Slot::empty(),
        }
    }

    fn started(self) -> Self {
        self.start_again();
        self
    }

    /// A replica of this one, with the same settings besides, and the true time; in step when this returns.
    ///
    /// # Panics
    /// This one speaks TLS; or as [`Redis::start`].
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

    /// Where it listens on 127.0.0.1; the same over all its starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://…` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.port())
    }

    /// The same with `user:password@` or, with an empty user, `:password@`.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("{}://{user}:{password}@127.0.0.1:{}", self.scheme(), self.port())
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "rediss" } else { "redis" }
    }

    /// The file of the authority that its certificate is from.
    ///
    /// # Panics
    /// It speaks no TLS.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").ca
    }

    /// The file of an authority that its certificate is *not* from.
    ///
    /// # Panics
    /// It speaks no TLS.
    #[must_use]
    pub fn stranger_ca(&self) -> &Path {
        &self.tls.as_ref().expect("only `with_tls` has certificates").stranger
    }

    /// Its wall clock. It keeps what was set over all starts.
    ///
    /// # Panics
    /// It was not started by [`Redis::with_clock`].
    #[must_use]
    pub fn clock(&self) -> Clock<'_> {
        Clock(self.shim.as_ref().expect("only `with_clock` has a clock to set"))
    }

    /// What `redis-cli` prints for a command: `&["GET", "orders/42"]`, without the line's end.
    ///
    /// # Panics
    /// The server answers with an error or not at all.
    #[track_caller]
    pub fn cli(&self, command: &[&str]) -> String {
        self.try_cli(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The same.
    ///
    /// # Errors
    /// The server answers with an error, or not within 30 s, or does not run.
    pub fn try_cli(&self, command: &[&str]) -> Result<String, String> {
        ask(CLI, |cli| {
            cli.args(["-e", "-p", &self.port().to_string()]);
            if let Some(tls) = &self.tls {
                cli.args(["--tls", "--cacert"]).arg(&tls.ca);
            }
            cli.args(command).env_remove("REDISCLI_AUTH");
            if let Some(password) = self.setting("--requirepass") {
                cli.env("REDISCLI_AUTH", password);
            }
        })
    }

    /// `kill -9`; when this returns nobody listens.
    pub fn kill(&self) {
        self.slot.kill();
    }

    /// Starts it after [`Redis::kill`]: on the same port, with the data that are on disk.
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
            line = line.args(["--tls-auth-clients", "no", "--tls-ca-cert-file"]).path(&tls.ca);
            line = line.args(["--tls-cert-file"]).path(&tls.certificate);
            line = line.args(["--tls-key-file"]).path(&tls.key);
        }
        for (name, value) in self.shim.iter().flat_map(Shim::environment) {
            line = line.env(name, value);
        }
        self.slot.fill(|| {
            let mut process = Process::start(&line, Signal::SIGKILL, &self.folder.log());
            process.wait_until_ready(SERVER.name, || self.answers());
            process
        });
    }

    /// Ends it as one does (SIGTERM) and starts it again.
    pub fn restart(&self) {
        self.slot.end(Signal::SIGTERM);
        self.start_again();
    }

    /// SIGSTOP: it answers nobody, connections stay. When this returns it stands still.
    pub fn stop(&self) {
        self.slot.stop();
    }

    /// SIGCONT after [`Redis::stop`].
    pub fn cont(&self) {
        self.slot.cont();
    }

    /// Kills it and deletes its data. If it ran, it runs again, and has forgotten everything.
    pub fn wipe(&self) {
        let ran = self.pid().is_some();
        if ran {
            self.kill();
        }
        fs::remove_dir_all(self.folder.data()).expect("our folder is ours");
        if ran {
            self.start_again();
        }
    }

    /// Its pid, if it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.slot.pid()
    }

    /// Where the other nodes of its cluster reach it.
    pub(crate) fn bus(&self) -> String {
        self.bus.as_ref().expect("it is a node").number().to_string()
    }

    /// The last word on `name` in our settings.
    fn setting(&self, name: &str) -> Option<&str> {
        let place = self.settings.iter().rposition(|setting| setting == name)?;
        self.settings.get(place + 1).map(String::as_str)
    }

    /// Also who is not let in is answered.
    fn answers(&self) -> Result<(), String> {
        match self.try_cli(&["PING"]) {
            Ok(answer) if answer == "PONG" => Ok(()),
            Err(why) if ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|no| why.contains(no)) => Ok(()),
            Ok(other) | Err(other) => Err(other),
        }
    }
}

/// A Redis in the foreground: on 127.0.0.1, with its data in `folder`, stored nowhere unless `settings` say so.
#[must_use]
pub fn line(port: u16, folder: &Path, settings: &[impl AsRef<str>]) -> Line {
    Line::new(SERVER.name)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .path(folder)
        .args(["--save", "", "--appendonly", "no"])
        // A replica is served at once instead of after 5 s in which others might ask too.
        .args(["--repl-diskless-sync-delay", "0"])
        // A title would overwrite the command line, which says whose process it is.
        .args(["--set-proc-title", "no"])
        .args(settings.iter().map(AsRef::as_ref))
}
