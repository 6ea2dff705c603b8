//! A Redis primary with a replica, and three sentinels that monitor both.

use std::fs;

use nix::sys::signal::Signal;

use crate::folder::Folder;
use crate::port::Port;
use crate::process::{ProcessSlot, ServerProcess};
use crate::program::{CommandLine, ask};
use crate::redis::{CLI, Redis, SERVER};
use crate::wait::wait;

/// The sentinels' name for the primary.
const NAME: &str = "main";
const SENTINELS: usize = 3;
/// A primary that has not answered for this long counts as down. On a busy machine, a healthy primary may
/// exceed a shorter time.
const DOWN_AFTER_MS: u32 = 2_000;
/// Two attempts at a failover are at least twice this time apart.
const FAILOVER_TIMEOUT_MS: u32 = 3_000;

/// Two Redis servers and three sentinels, which promote one server when the other does not answer for two
/// seconds.
pub struct Sentinel {
    // Dropped in this order, so that no sentinel observes the end of a server.
    sentinels: Vec<OneSentinel>,
    servers: [Redis; 2],
}

/// One sentinel.
pub struct OneSentinel {
    // The first field, so that the process is ended before its port is released and its folder removed.
    slot: ProcessSlot,
    port: Port,
    folder: Folder,
}

impl Sentinel {
    /// Starts both servers and all sentinels; returns once each sentinel knows both servers and the other
    /// sentinels.
    ///
    /// # Panics
    /// Redis is missing or doesn't start.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Like [`Sentinel::start`], with further settings for both servers, as for [`Redis::with`].
    ///
    /// # Panics
    /// Those of [`Sentinel::start`].
    #[must_use]
    pub fn with(settings: &[&str]) -> Self {
        let primary = Redis::with(settings);
        let replica = primary.replica();
        let sentinels = (0..SENTINELS).map(|_| OneSentinel::naming(primary.port(), 0, "")).collect();
        let all = Self { sentinels, servers: [primary, replica] };
        for one in &all.sentinels {
            let known = wait(|| one.knows_all());
            known.unwrap_or_else(|why| panic!("the sentinels do not find each other: {why}"));
        }
        all
    }

    /// The sentinels' name for the primary.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The addresses of the sentinels: `127.0.0.1:P,127.0.0.1:Q,127.0.0.1:R`.
    #[must_use]
    pub fn addresses(&self) -> String {
        let addresses = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port.number()));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The primary according to the first sentinel that answers. A primary that was just killed is still
    /// returned for some seconds.
    ///
    /// # Panics
    /// No sentinel answers.
    #[must_use]
    pub fn primary(&self) -> &Redis {
        let primary = self.primary_port();
        let server = self.servers.iter().find(|server| server.port() == primary);
        server.expect("a sentinel names one of our two servers")
    }

    /// The server that is not the primary.
    ///
    /// # Panics
    /// No sentinel answers.
    #[must_use]
    pub fn replica(&self) -> &Redis {
        let primary = self.primary_port();
        let server = self.servers.iter().find(|server| server.port() != primary);
        server.expect("there are two servers")
    }

    /// Waits until all sentinels report another primary than `former`, and that primary accepts writes.
    ///
    /// # Panics
    /// That takes more than a minute.
    pub fn wait_for_another_than(&self, former: &Redis) {
        let changed = wait(|| {
            for one in &self.sentinels {
                let port = one.primary_port()?;
                if port == former.port() {
                    return Err(format!("a sentinel still holds {port} for the primary"));
                }
            }
            let role = self.primary().try_cli(&["ROLE"])?;
            if role.starts_with("master") { Ok(()) } else { Err(format!("its role is {role}")) }
        });
        changed.unwrap_or_else(|why| panic!("no other server becomes the primary: {why}"));
    }

    fn primary_port(&self) -> u16 {
        let told = self.sentinels.iter().map(OneSentinel::primary_port);
        let port = told.reduce(|first, next| first.or(next)).expect("there are sentinels");
        port.unwrap_or_else(|why| panic!("no sentinel answers: {why}"))
    }
}

impl OneSentinel {
    /// Starts a sentinel that names the server at this port as its primary, as of this epoch. `further`: more
    /// lines of its settings file.
    ///
    /// # Panics
    /// Redis is missing or doesn't start.
    #[must_use]
    pub fn naming(primary: u16, epoch: u32, further: &str) -> Self {
        SERVER.path();
        let one = Self { port: Port::free(), slot: ProcessSlot::empty(), folder: Folder::new("sentinel") };
        // A sentinel stores its state in its settings file.
        let settings = one.folder.path().join("sentinel.conf");
        let text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}\n\
             sentinel config-epoch {NAME} {epoch}\n{further}",
            one.port.number(),
            one.folder.path().display()
        );
        fs::write(&settings, text).expect("our folder is ours");
        let line = CommandLine::new(SERVER.name).path(&settings).args(["--sentinel"]);
        one.slot.fill(|| {
            let mut process = ServerProcess::start(&line, Signal::SIGKILL, &one.folder.log());
            process.wait_until_ready("redis-server --sentinel", || one.answers());
            process
        });
        one
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Succeeds once it answers; a refused login counts as an answer.
    fn answers(&self) -> Result<(), String> {
        match self.ask(&["PING"]) {
            Err(why) if !why.contains("NOAUTH") => Err(why),
            _ => Ok(()),
        }
    }

    fn ask(&self, command: &[&str]) -> Result<String, String> {
        ask(CLI, |cli| {
            cli.args(["-e", "-p", &self.port.number().to_string()]).args(command).env_remove("REDISCLI_AUTH");
        })
    }

    /// The port of the primary. The answer has the address on its first line, and the port on its second.
    fn primary_port(&self) -> Result<u16, String> {
        let told = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        let port = told.lines().nth(1).and_then(|port| port.parse().ok());
        port.ok_or_else(|| format!("a sentinel answers {told:?}"))
    }

    fn knows_all(&self) -> Result<(), String> {
        let told = self.ask(&["SENTINEL", "MASTER", NAME])?;
        let lines: Vec<&str> = told.lines().collect();
        let number = |name: &str| lines.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        if (number("num-slaves"), number("num-other-sentinels")) != (Some("1"), Some("2")) {
            return Err(told);
        }
        // A replica without a link to the primary can't be promoted.
        let replicas = self.ask(&["SENTINEL", "REPLICAS", NAME])?;
        let lines: Vec<&str> = replicas.lines().collect();
        let is_linked = lines.windows(2).any(|pair| pair == ["master-link-status", "ok"]);
        if is_linked { Ok(()) } else { Err(replicas) }
    }
}
