//! Foreign lock clients (peers) run as scripts that wrap another project's library. This module speaks the line protocol,
//! commands and answers, of the scripts in `peers/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::interop::peer::{Peer, Process};

/// A process of one of the scripts.
pub(crate) struct Script(Process);

impl Script {
    /// redis-py's `Lock` on one server.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_py(port: u16) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", libraries("pypi")).arg(script("redis_lock.py")).arg(port.to_string());
        Self::ready(&mut python, "python3")
    }

    /// node-redlock on these servers.
    #[cfg(feature = "redlock")]
    pub(crate) fn node_redlock(ports: &[u16]) -> Self {
        let mut node = Command::new("node");
        node.env("LOCKKEEPER_NPM", libraries("npm")).arg(script("redlock.mjs"));
        Self::ready(node.args(ports.iter().map(u16::to_string)), "nodejs")
    }

    /// python_dynamodb_lock on one table.
    #[cfg(feature = "dynamodb")]
    pub(crate) fn python_dynamodb_lock(endpoint: &str, table: &str) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", libraries("pypi")).arg(script("dynamodb_lock.py")).args([endpoint, table]);
        Self::ready(&mut python, "python3")
    }

    /// kazoo's `Lock` on one server.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn kazoo(port: u16) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", libraries("pypi")).arg(script("kazoo_lock.py")).arg(port.to_string());
        Self::ready(&mut python, "python3")
    }

    /// Go's `concurrency.Mutex` of etcd's own client, on one member. Compiled from Debian's packages, without a module.
    #[cfg(feature = "etcd")]
    pub(crate) fn concurrency_mutex(port: u16) -> Self {
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = temporary.join(format!("concurrency_mutex-{}", std::process::id()));
        let mut build = Command::new("go");
        build.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode");
        build.env("GOCACHE", temporary.join("go-cache"));
        build.arg("build").arg("-o").arg(&program).arg(script("concurrency_mutex.go"));
        let built = build.output().expect("`go` of Debian's package golang-go");
        assert!(
            built.status.success(),
            "is Debian's package golang-etcd-server-dev installed? {}",
            String::from_utf8_lossy(&built.stderr)
        );
        let peer = Self::ready(Command::new(&program).arg(port.to_string()), "golang-go");
        // It runs; another one may be built by the same test.
        std::fs::remove_file(&program).expect("our folder is ours");
        peer
    }

    /// Curator's locks on one server, of the recipe `mutex` or `readwrite`. Java compiles the program before it runs it.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn curator(port: u16, recipe: &str) -> Self {
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-cp", "/usr/share/java/*"]).arg(script("CuratorLock.java"));
        Self::ready(
            java.args([&port.to_string(), recipe]),
            "default-jdk-headless and libcurator-recipes-java",
        )
    }

    fn ready(command: &mut Command, package: &str) -> Self {
        let mut process = Process::start(command, package);
        assert_eq!(process.answer(), "ready");
        Self(process)
    }

    fn acquired(answer: &str) -> Option<String> {
        match answer.split_once(' ') {
            Some(("held", value)) => Some(value.to_owned()),
            _ => {
                assert_eq!(answer, "busy");
                None
            }
        }
    }

    fn is(&mut self, command: &str, yes: &str) -> bool {
        let answer = self.0.ask(command);
        assert!(answer == yes || answer == "lost", "`{command}`: {answer}");
        answer == yes
    }
}

impl Peer for Script {
    /// Our errors name a foreign holder by its key's value; nothing else about it is stored.
    fn in_errors(holder: &str) -> String {
        format!("another client (`{holder}`)")
    }

    fn try_acquire(&mut self, name: &str, ttl: Duration) -> Option<String> {
        Self::acquired(&self.0.ask(&format!("try {name} {}", ttl.as_millis())))
    }

    fn starts_waiting(&mut self, name: &str, ttl: Duration) {
        assert_eq!(self.0.ask(&format!("acquire {name} {}", ttl.as_millis())), "waiting");
    }

    fn gets_it(&mut self) {
        let answer = self.0.answer();
        assert!(Self::acquired(&answer).is_some(), "{answer}");
    }

    /// Extends the lease by the peer's own library, which fails unless the peer holds the lock.
    fn still_holds(&mut self, name: &str, ttl: Duration) -> bool {
        self.is(&format!("extend {name} {}", ttl.as_millis()), "held")
    }

    fn release(&mut self, name: &str) -> bool {
        self.is(&format!("release {name}"), "released")
    }

    fn crash(mut self) {
        self.0.kill();
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/interop/peers").join(name)
}

/// The directory in which `cargo xtask test` installs packages of a registry (xtask/src/foreign.rs).
fn libraries(registry: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign").join(registry);
    assert!(
        folder.join("installed.txt").is_file(),
        "{} is missing; `cargo xtask test` installs it, with whichever tests it is asked to run",
        folder.display()
    );
    folder
}
