//! One Redis server.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::Process;
use crate::program::{Line, Program, ask};
use crate::wait::wait;

pub(crate) const SERVER: Program = Program { name: "redis-server", package: "redis-server" };
pub(crate) const CLI: Program = Program { name: "redis-cli", package: "redis-tools" };

/// A Redis server on a port of its own; ended when dropped.
///
/// Without further settings it stores nothing on disk: what was in it is gone after [`Redis::kill`]. With
/// `--appendonly yes --appendfsync always` it has everything again that it had acknowledged.
pub struct Redis {
    port: Port,
    folder: Folder,
    settings: Vec<String>,
    process: Mutex<Option<Process>>,
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
        let redis = Self {
            port: Port::free(),
            folder: Folder::new("redis"),
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            process: Mutex::new(None),
        };
        redis.start_again();
        redis
    }

    /// A replica of this one, with the same settings besides; in step when this returns.
    #[must_use]
    pub fn replica(&self) -> Self {
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

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The same with `user:password@` or, with an empty user, `:password@`.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port())
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
            cli.args(["-e", "-p", &self.port().to_string()]).args(command);
            cli.env_remove("REDISCLI_AUTH");
            if let Some(password) = self.setting("--requirepass") {
                cli.env("REDISCLI_AUTH", password);
            }
        })
    }

    /// `kill -9`; when this returns nobody listens.
    pub fn kill(&self) {
        let mut running = self.running().take().expect("it runs");
        running.kill().unwrap_or_else(|why| panic!("{why}"));
    }

    /// Starts it after [`Redis::kill`]: on the same port, with the data that are on disk.
    pub fn start_again(&self) {
        let mut running = self.running();
        assert!(running.is_none(), "it runs already: kill it first");
        let data = self.folder.data();
        fs::create_dir_all(&data).expect("our folder is ours");
        SERVER.path();
        let line = line(self.port(), &data, &self.settings);
        let mut process = Process::start(&line, Signal::SIGKILL, &self.folder.log());
        process.wait_until_ready("redis-server", || self.answers());
        *running = Some(process);
    }

    /// Ends it as one does (SIGTERM) and starts it again.
    pub fn restart(&self) {
        let mut running = self.running().take().expect("it runs");
        running.end(Signal::SIGTERM).unwrap_or_else(|why| panic!("{why}"));
        self.start_again();
    }

    /// SIGSTOP: it answers nobody, connections stay. When this returns it stands still.
    pub fn stop(&self) {
        self.running().as_ref().expect("it runs").stop();
    }

    /// SIGCONT after [`Redis::stop`].
    pub fn cont(&self) {
        self.running().as_ref().expect("it runs").cont();
    }

    /// Kills it and deletes its data. If it ran, it runs again, and has forgotten everything.
    pub fn wipe(&self) {
        let ran = self.running().is_some();
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
        self.running().as_ref().map(Process::id)
    }

    fn running(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
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
